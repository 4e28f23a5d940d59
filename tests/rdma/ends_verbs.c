/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * As ends.c, by libibverbs alone: two queue pairs in one thread.
 *
 *   ends_verbs ROUNDS PATTERN BYTES...
 *
 * PATTERN is ping (there and back by sends, inline up to 64 bytes), write (an RDMA write until its completion), put (RDMA writes there and
 * back, each when the bytes of the one before are seen in memory, as those of ib_write_lat) or count. The contents are checked before.
 * Prints for each "PATTERN BYTES BEST MEDIAN": microseconds one way, or of a write.
 */
#include <sched.h>
#include <stdint.h>
#include <time.h>

#include "counted.h"
#include "pair.h"

enum { MOST = 1 << 20, INLINE = 64 };

static struct pair_device device;
static struct ibv_qp *pair[2];
/* What is sent is the first half, what comes the second one. */
static unsigned char *memory[2];
static struct ibv_mr *mr[2];
static int sent[2], came[2];
static uint32_t bytes;

static void progress(void)
{
	struct ibv_wc wc;
	int n = ibv_poll_cq(device.cq, 1, &wc);

	PAIR_MUST(n >= 0, "ibv_poll_cq");
	if (!n) {
		sched_yield();
		return;
	}
	if (wc.status) {
		fprintf(stderr, "ends_verbs: %s\n", ibv_wc_status_str(wc.status));
		exit(1);
	}
	(wc.opcode == IBV_WC_RECV ? came : sent)[wc.qp_num == pair[1]->qp_num]++;
}

static void receive(int end)
{
	struct ibv_sge sge = { (uintptr_t)memory[end] + MOST, bytes, mr[end]->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	PAIR_MUST(!(errno = ibv_post_recv(pair[end], &wr, &bad)), "ibv_post_recv");
}

static void post(int end, enum ibv_wr_opcode opcode)
{
	struct ibv_sge sge = { (uintptr_t)memory[end], bytes, mr[end]->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED }, *bad;

	if (bytes <= INLINE)
		wr.send_flags |= IBV_SEND_INLINE;
	wr.wr.rdma.remote_addr = (uintptr_t)memory[!end] + MOST;
	wr.wr.rdma.rkey = mr[!end]->rkey;
	PAIR_MUST(!(errno = ibv_post_send(pair[end], &wr, &bad)), "ibv_post_send");
}

static void await(int *count)
{
	while (!*count)
		progress();
	--*count;
}

static void one_way(int end)
{
	post(end, IBV_WR_SEND);
	await(&came[!end]);
	receive(!end);
	await(&sent[end]);
}

/* The last byte changes with each. */
static void put(int end)
{
	volatile unsigned char *last = memory[!end] + MOST + bytes - 1;
	unsigned char next = *last + 1;

	memory[end][bytes - 1] = next;
	post(end, IBV_WR_RDMA_WRITE);
	while (*last != next)
		progress();
	await(&sent[end]);
}

/* By names of their own, for --toggle-collect. */
__attribute__((noinline)) static void counted_receive(int end)
{
	receive(end);
}

__attribute__((noinline)) static void counted_send(int end)
{
	post(end, IBV_WR_SEND);
}

__attribute__((noinline)) static void counted_look(void)
{
	progress();
}

/* One queue of completions has both: the message's and the send's. */
static void count(int rounds)
{
	for (int i = -200; i < 2 * rounds; i++) {
		int end = i & 1;

		if (!i)
			counted_begin();
		counted_receive(!end);
		counted_send(end);
		while (!came[!end] || !sent[end]) {
			device_works();
			counted_look();
			counted_look();
		}
		came[!end]--;
		sent[end]--;
	}
	counted_end();
	printf("count %u %d %d\n", bytes, 2 * rounds, 2 * rounds);
	fflush(stdout);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static int rising(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void pattern(const char *name, int rounds)
{
	int is_write = !strcmp(name, "write"), is_put = !strcmp(name, "put");
	double *took = calloc(rounds, sizeof(*took));

	PAIR_MUST(took, "calloc");
	for (int i = 0; i < 2; i++) {
		pair_fill(memory[i], bytes, i);
		if (!is_write && !is_put)
			receive(i);
	}
	for (int i = -10; i < rounds; i++) {
		double begun = now();

		if (is_write) {
			post(0, IBV_WR_RDMA_WRITE);
			await(&sent[0]);
		} else {
			for (int end = 0; end < 2; end++)
				(is_put ? put : one_way)(end);
		}
		if (i >= 0)
			took[i] = (now() - begun) / (is_write ? 1 : 2);
		PAIR_MUST(i >= 0 || !memcmp(memory[1] + MOST, memory[0], bytes), "contents");
	}
	/* The receives that are left take a message each. */
	for (int i = 0; i < 2 && !is_write && !is_put; i++) {
		post(i, IBV_WR_SEND);
		await(&came[!i]);
		await(&sent[i]);
	}
	qsort(took, rounds, sizeof(*took), rising);
	printf("%s %u %.2f %.2f\n", name, bytes, took[0], took[rounds / 2]);
	fflush(stdout);
	free(took);
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 0;

	if (argc < 4 || argc % 2 || rounds < 1) {
		fprintf(stderr, "usage: %s ROUNDS ping|write|put|count BYTES...\n", argv[0]);
		return 2;
	}
	pair_open(&device, 64);
	pair_of_one(&device, pair);
	for (int i = 0; i < 2; i++) {
		memory[i] = aligned_alloc(4096, 2 * MOST);
		PAIR_MUST(memory[i] && memset(memory[i], 0, 2 * MOST), "memory");
		PAIR_MUST((mr[i] = ibv_reg_mr(device.pd, memory[i], 2 * MOST, PAIR_ALL)), "ibv_reg_mr");
	}
	for (int i = 2; i + 1 < argc; i += 2) {
		bytes = (uint32_t)strtoul(argv[i + 1], NULL, 10);
		if (!bytes || bytes > MOST)
			return 2;
		if (!strcmp(argv[i], "count"))
			count(rounds);
		else
			pattern(argv[i], rounds);
	}
	return 0;
}
