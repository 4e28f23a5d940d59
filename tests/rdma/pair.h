/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Queue pairs of libibverbs for the tests of a guest: connected by GID and number, packets of a page.
 */
#ifndef PAIR_H
#define PAIR_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAIR_ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)

#define PAIR_MUST(cond, what)                                                             \
	do {                                                                              \
		if (!(cond)) {                                                            \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, what, strerror(errno)); \
			exit(1);                                                          \
		}                                                                         \
	} while (0)

struct pair_device {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	union ibv_gid gid;
	int gid_index;
};

/* The first device, with the GID of an IPv4 address: index 0 is link-local. */
static inline void pair_open(struct pair_device *device, int entries)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	PAIR_MUST(list && list[0] && (device->context = ibv_open_device(list[0])), "an RDMA device");
	PAIR_MUST((device->pd = ibv_alloc_pd(device->context)), "ibv_alloc_pd");
	PAIR_MUST((device->cq = ibv_create_cq(device->context, entries, NULL, NULL, 0)), "ibv_create_cq");
	device->gid_index = -1;
	for (int i = 0; i < 16 && device->gid_index < 0; i++)
		if (!ibv_query_gid(device->context, 1, i, &device->gid) && device->gid.raw[10] == 0xff && device->gid.raw[11] == 0xff)
			device->gid_index = i;
	PAIR_MUST(device->gid_index >= 0, "the GID of an IPv4 address");
}

static inline struct ibv_qp *pair_make(struct pair_device *device, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 16, srq ? 0 : 16, 1, 1, 64 }, .srq = srq };
	struct ibv_qp *qp;

	init.send_cq = init.recv_cq = device->cq;
	PAIR_MUST((qp = ibv_create_qp(device->pd, &init)), "ibv_create_qp");
	return qp;
}

/* The end of the other one: its GID and number. */
static inline void pair_connect(struct pair_device *device, struct ibv_qp *qp, const union ibv_gid *gid, uint32_t number)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = PAIR_ALL & ~IBV_ACCESS_LOCAL_WRITE };

	PAIR_MUST(!(errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)), "INIT");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = number,
				     .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
				     .ah_attr = { .is_global = 1, .port_num = 1,
						  .grh = { .dgid = *gid, .sgid_index = device->gid_index, .hop_limit = 4 } } };
	PAIR_MUST(!(errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)), "RTR");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
	PAIR_MUST(!(errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					  IBV_QP_MAX_QP_RD_ATOMIC)), "RTS");
}

/* Two of this process, each the other's peer. */
static inline void pair_of_one(struct pair_device *device, struct ibv_qp *pair[2])
{
	for (int i = 0; i < 2; i++)
		pair[i] = pair_make(device, NULL);
	for (int i = 0; i < 2; i++)
		pair_connect(device, pair[i], &device->gid, pair[!i]->qp_num);
}

/* The next completion's status. */
static inline enum ibv_wc_status pair_completed(struct pair_device *device)
{
	struct ibv_wc wc;
	int n;

	for (int i = 0; i < 30000; i++) {
		if ((n = ibv_poll_cq(device->cq, 1, &wc)) > 0)
			return wc.status;
		PAIR_MUST(n == 0, "ibv_poll_cq");
		usleep(1000);
	}
	errno = ETIMEDOUT;
	PAIR_MUST(0, "no completion for 30 s");
	return IBV_WC_GENERAL_ERR;
}

/* What this queue pair is to do with memory of the peer's; an atomic adds 7. Its status is next of the queue's. */
static inline void pair_post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, struct ibv_sge sge, uint64_t at, uint32_t rkey)
{
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED }, *bad;

	wr.wr.rdma.remote_addr = at;
	wr.wr.rdma.rkey = rkey;
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = at;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = 7;
	}
	PAIR_MUST(!(errno = ibv_post_send(qp, &wr, &bad)), "ibv_post_send");
}

static inline void pair_fill(unsigned char *at, size_t len, unsigned seed)
{
	for (size_t i = 0; i < len; i++)
		at[i] = (unsigned char)(i * 7 + (i >> 8) * 13 + seed);
}

#endif
