/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Memory of a device's under an RDMA adapter (ci/suite/guest p2pmem):  demand PUBLISHER
 *
 * Pinned registration of the memory is refused; on demand it is registered, and another
 * queue pair writes it, reads it, adds to it, and sends into it. The kernel's soft RDMA (7.2) takes pages of such registrations right if
 * buffers begin at a page and packets hold one: so the MTU is 4096, and lengths are whole pages.
 */
#include "peer.h"
#include "../rdma/pair.h"

#define LEN ((size_t)16 << 10)

static struct pair_device device;
static struct ibv_qp *pair[2];

/* One operation of the first queue pair, from `from` on. */
static enum ibv_wc_status run(enum ibv_wr_opcode opcode, struct ibv_mr *from, struct ibv_mr *to, size_t len)
{
	pair_post(pair[0], opcode, (struct ibv_sge){ (uintptr_t)from->addr, len, from->lkey }, (uintptr_t)to->addr, to->rkey);
	return pair_completed(&device);
}

static void traffic(struct peer *peer, struct ibv_mr *mr)
{
	unsigned char *host = aligned_alloc(4096, 2 * LEN), *see = host + LEN;
	struct ibv_mr *own = ibv_reg_mr(device.pd, host, LEN, PAIR_ALL);
	struct ibv_sge sge = { (uintptr_t)peer->at, LEN, mr->lkey };
	struct ibv_recv_wr receive = { .sg_list = &sge, .num_sge = 1 }, *bad;
	uint64_t sum = 5;

	MUST(own, "%s", strerror(errno));
	memset(peer->at, 0, LEN);
	pair_fill(host, LEN, 1);
	GIVES(run(IBV_WR_RDMA_WRITE, own, mr, LEN), IBV_WC_SUCCESS);
	MUST(!memcmp(peer->at, host, LEN), "what was written");
	pair_fill(see, LEN, 2);
	memcpy(peer->at, see, LEN);
	GIVES(run(IBV_WR_RDMA_READ, own, mr, LEN), IBV_WC_SUCCESS);
	MUST(!memcmp(host, see, LEN), "what was read");
	pair_fill(host, LEN, 3);
	GIVES(ibv_post_recv(pair[1], &receive, &bad), 0);
	GIVES(run(IBV_WR_SEND, own, mr, LEN), IBV_WC_SUCCESS);
	GIVES(pair_completed(&device), IBV_WC_SUCCESS);
	MUST(!memcmp(peer->at, host, LEN), "what was sent");
	memcpy(peer->at, &sum, sizeof sum);
	GIVES(run(IBV_WR_ATOMIC_FETCH_AND_ADD, own, mr, 8), IBV_WC_SUCCESS);
	memcpy(&sum, host, sizeof sum);
	MUST(sum == 5 && *(volatile uint64_t *)peer->at == 12, "%llu", (unsigned long long)*(volatile uint64_t *)peer->at);
	GIVES(ibv_dereg_mr(own), 0);
	free(host);
}

int main(int argc, char **argv)
{
	struct ibv_mr *mr;
	struct peer peer;

	MUST(argc == 2, "usage: demand PUBLISHER");
	pair_open(&device, 64);
	pair_of_one(&device, pair);
	peer_alloc(&peer, argv[1], LEN);
	mr = ibv_reg_mr(device.pd, peer.at, LEN, PAIR_ALL);
	MUST(!mr && errno == EFAULT, "pinned registration: %s", mr ? "it went well" : strerror(errno));
	mr = ibv_reg_mr(device.pd, peer.at, LEN, IBV_ACCESS_REMOTE_READ);
	MUST(!mr && errno == EREMOTEIO, "pinned registration to be read: %s", mr ? "it went well" : strerror(errno));
	mr = ibv_reg_mr(device.pd, peer.at, LEN, PAIR_ALL | IBV_ACCESS_ON_DEMAND);
	MUST(mr, "registration on demand: %s", strerror(errno));
	traffic(&peer, mr);
	GIVES(ibv_dereg_mr(mr), 0);
	peer_free(&peer);
	printf("write, read, send and fetch-and-add into the memory of %s\n", argv[1]);
	return 0;
}
