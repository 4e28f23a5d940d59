/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Many queue pairs of one RDMA device (ci/suite/guest rdma):  many PAIRS
 *
 * Both ends are of this process; all receive by one shared receive queue. Each is connected, sends a message to its peer, takes the peer's,
 * whose contents are checked, and is destroyed. Prints the device's limits, and what the kernel has less to give meanwhile.
 */
#define _GNU_SOURCE

#include "pair.h"

enum { LEN = 64 };

static struct pair_device device;
static unsigned char *memory;
static struct ibv_qp **qps;
static int pairs, came, sent;

static long available(void)
{
	char line[128];
	long kib = 0;
	FILE *file = fopen("/proc/meminfo", "r");

	PAIR_MUST(file, "/proc/meminfo");
	while (fgets(line, sizeof line, file))
		if (sscanf(line, "MemAvailable: %ld", &kib) == 1)
			break;
	fclose(file);
	return kib;
}

/* Takes completions in until there is none. */
static void look(void)
{
	struct ibv_wc wc;
	int n;

	while ((n = ibv_poll_cq(device.cq, 1, &wc)) > 0) {
		if (wc.status) {
			fprintf(stderr, "many: %s\n", ibv_wc_status_str(wc.status));
			exit(1);
		}
		if (wc.opcode != IBV_WC_RECV) {
			sent++;
			continue;
		}
		/* The message says which queue pair it is for, and has nothing else. */
		for (size_t i = 0; i < LEN / sizeof(uint32_t); i++)
			PAIR_MUST(((uint32_t *)(memory + wc.wr_id * LEN))[i] == wc.qp_num + i, "contents");
		came++;
	}
	PAIR_MUST(n == 0, "ibv_poll_cq");
}

int main(int argc, char **argv)
{
	struct ibv_srq_init_attr shared = { .attr = { .max_sge = 1 } };
	struct ibv_device_attr attr;
	struct ibv_srq *srq;
	struct ibv_mr *mr;
	long before;
	int i;

	pairs = argc == 2 ? atoi(argv[1]) : 0;
	if (pairs <= 0 || pairs > 10000) {
		fprintf(stderr, "usage: many PAIRS\n");
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	pair_open(&device, 8192);
	PAIR_MUST(!(errno = ibv_query_device(device.context, &attr)), "ibv_query_device");
	printf("max_qp %d, max_cqe %d, max_srq_wr %d\n", attr.max_qp, attr.max_cqe, attr.max_srq_wr);
	shared.attr.max_wr = 2 * pairs;
	PAIR_MUST((srq = ibv_create_srq(device.pd, &shared)), "ibv_create_srq");
	/* What comes, and behind it what is sent. */
	memory = aligned_alloc(4096, (size_t)4 * pairs * LEN / 4096 * 4096 + 4096);
	qps = calloc(2 * pairs, sizeof *qps);
	PAIR_MUST(memory && qps && (mr = ibv_reg_mr(device.pd, memory, (size_t)4 * pairs * LEN, PAIR_ALL)), "ibv_reg_mr");
	for (i = 0; i < 2 * pairs; i++) {
		struct ibv_sge sge = { (uintptr_t)memory + (size_t)i * LEN, LEN, mr->lkey };
		struct ibv_recv_wr receive = { .wr_id = i, .sg_list = &sge, .num_sge = 1 }, *bad;

		PAIR_MUST(!(errno = ibv_post_srq_recv(srq, &receive, &bad)), "ibv_post_srq_recv");
	}
	before = available();
	for (i = 0; i < 2 * pairs; i++)
		qps[i] = pair_make(&device, srq);
	for (i = 0; i < 2 * pairs; i++)
		pair_connect(&device, qps[i], &device.gid, qps[i ^ 1]->qp_num);
	printf("%d queue pairs are connected: %ld KiB of memory less\n", 2 * pairs, before - available());
	for (i = 0; i < 2 * pairs; i++) {
		uint32_t *from = (uint32_t *)(memory + (size_t)(2 * pairs + i) * LEN);

		for (size_t word = 0; word < LEN / sizeof *from; word++)
			from[word] = qps[i ^ 1]->qp_num + word;
		pair_post(qps[i], IBV_WR_SEND, (struct ibv_sge){ (uintptr_t)from, LEN, mr->lkey }, 0, 0);
		look();
	}
	for (i = 0; i < 60000 && (came < 2 * pairs || sent < 2 * pairs); i++) {
		usleep(1000);
		look();
	}
	printf("%d messages were sent, and %d came with their contents\n", sent, came);
	errno = ETIMEDOUT;
	PAIR_MUST(came == 2 * pairs && sent == 2 * pairs, "messages");
	for (i = 0; i < 2 * pairs; i++)
		PAIR_MUST(!(errno = ibv_destroy_qp(qps[i])), "ibv_destroy_qp");
	PAIR_MUST(!(errno = ibv_destroy_srq(srq)) && !(errno = ibv_dereg_mr(mr)), "ibv_destroy_srq");
	printf("all are destroyed\n");
	return 0;
}
