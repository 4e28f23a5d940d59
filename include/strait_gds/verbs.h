/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* As much of the verbs' structures as strait_gds.h takes, for programs that have no <infiniband/verbs.h>. The names and the
 * values are those of rdma-core, the layouts are not: no object of these goes to libibverbs. */
#ifndef STRAIT_GDS_VERBS_H
#define STRAIT_GDS_VERBS_H

#include <stdint.h>

struct ibv_pd;
struct ibv_cq;
struct ibv_qp;
struct ibv_context;

enum ibv_qp_type { IBV_QPT_RC = 2, IBV_QPT_UC = 3, IBV_QPT_UD = 4 };
enum ibv_wr_opcode { IBV_WR_RDMA_WRITE = 0, IBV_WR_SEND = 2 };
enum ibv_wc_opcode { IBV_WC_SEND = 0, IBV_WC_RDMA_WRITE = 1, IBV_WC_RECV = 128 };
enum ibv_wc_status { IBV_WC_SUCCESS = 0, IBV_WC_LOC_LEN_ERR = 1, IBV_WC_WR_FLUSH_ERR = 5, IBV_WC_RETRY_EXC_ERR = 12 };

struct ibv_sge {
	uint64_t addr;
	uint32_t length, lkey;
};

struct ibv_send_wr {
	uint64_t wr_id;
	struct ibv_send_wr *next;
	struct ibv_sge *sg_list;
	int num_sge;
	enum ibv_wr_opcode opcode;
	unsigned send_flags;
	union {
		struct {
			uint64_t remote_addr;
			uint32_t rkey;
		} rdma;
	} wr;
};

struct ibv_recv_wr {
	uint64_t wr_id;
	struct ibv_recv_wr *next;
	struct ibv_sge *sg_list;
	int num_sge;
};

struct ibv_qp_init_attr {
	void *qp_context;
	struct ibv_cq *send_cq, *recv_cq;
	struct {
		uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data;
	} cap;
	enum ibv_qp_type qp_type;
	int sq_sig_all;
};

struct ibv_wc {
	uint64_t wr_id;
	enum ibv_wc_status status;
	enum ibv_wc_opcode opcode;
	uint32_t byte_len;
};

#endif
