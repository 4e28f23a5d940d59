/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* libgdsync's calls, with the types that its programs have: compiled as C and as C++, and not run. */
#include <strait_gds.h>

struct calls {
	struct gds_qp *(*create)(struct ibv_pd *, struct ibv_context *, gds_qp_init_attr_t *, int, int);
	int (*destroy)(struct gds_qp *);
	int (*post_send)(struct gds_qp *, gds_send_wr *, gds_send_wr **);
	int (*post_recv)(struct gds_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **);
	int (*wait_cq)(CUstream, struct gds_cq *, int);
	int (*queue_send)(CUstream, struct gds_qp *, gds_send_wr *, gds_send_wr **);
	int (*prepare_send)(struct gds_qp *, gds_send_wr *, gds_send_wr **, gds_send_request_t *);
	int (*stream_send)(CUstream, gds_send_request_t *);
	int (*stream_send_all)(CUstream, int, gds_send_request_t *);
	int (*prepare_wait)(struct gds_cq *, gds_wait_request_t *, int);
	int (*stream_wait)(CUstream, gds_wait_request_t *);
	int (*stream_wait_all)(CUstream, int, gds_wait_request_t *);
	int (*cpu_wait)(struct gds_cq *, gds_wait_request_t *, int);
	int (*wait32)(gds_wait_value32_t *, uint32_t *, uint32_t, gds_wait_cond_flag_t, int);
	int (*write32)(gds_write_value32_t *, uint32_t *, uint32_t, int);
	int (*write_memory)(gds_write_memory_t *, uint8_t *, const uint8_t *, size_t, int);
	int (*stream_descriptors)(CUstream, size_t, gds_descriptor_t *, int);
	int (*cpu_descriptors)(size_t, gds_descriptor_t *, int);
	int (*query)(gds_param_t, int *);
	int (*poll)(struct gds_cq *, int, struct ibv_wc *);
};

#ifdef __cplusplus
extern "C"
#endif
	const struct calls *
	all_calls(void);

const struct calls *all_calls(void)
{
	static const struct calls calls = {
		gds_create_qp, gds_destroy_qp, gds_post_send, gds_post_recv, gds_stream_wait_cq, gds_stream_queue_send, gds_prepare_send,
		gds_stream_post_send, gds_stream_post_send_all, gds_prepare_wait_cq, gds_stream_post_wait_cq, gds_stream_post_wait_cq_all,
		gds_post_wait_cq, gds_prepare_wait_value32, gds_prepare_write_value32, gds_prepare_write_memory,
		gds_stream_post_descriptors, gds_post_descriptors, gds_query_param, gds_poll_cq,
	};
	return &calls;
}
