/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* fi_xpu(3) in kernels, under its own names, for what the strait provider has exported: include it in place of
 * <rdma/fi_xpu_device.h>.
 *
 * libfabric's header picks a provider by a switch that has no case for this one. Where the compiler finds that header it is
 * included with its functions under other names, and what other providers have exported goes to them; else the answer to
 * those is -FI_ENOSYS. docs/xpu.md has what the functions do here.
 *
 * Every thread of a scope posts its own operation; reads of a completion queue are one for all threads of the scope. */
#ifndef STRAIT_FI_XPU_DEVICE_CUH
#define STRAIT_FI_XPU_DEVICE_CUH

#include "strait_xpu.cuh"

#if defined(__has_include)
#if __has_include(<rdma/fi_xpu_device.h>)
#define STRAIT_FI_XPU_STOCK 1
#endif
#endif

#ifdef STRAIT_FI_XPU_STOCK
#define fi_xpu_write fi_xpu_stock_write
#define fi_xpu_read fi_xpu_stock_read
#define fi_xpu_send fi_xpu_stock_send
#define fi_xpu_recv fi_xpu_stock_recv
#define fi_xpu_tsend fi_xpu_stock_tsend
#define fi_xpu_trecv fi_xpu_stock_trecv
#define fi_xpu_atomic fi_xpu_stock_atomic
#define fi_xpu_fetch_atomic fi_xpu_stock_fetch_atomic
#define fi_xpu_compare_atomic fi_xpu_stock_compare_atomic
#define fi_xpu_cntr_read fi_xpu_stock_cntr_read
#define fi_xpu_cntr_readerr fi_xpu_stock_cntr_readerr
#define fi_xpu_cntr_wait fi_xpu_stock_cntr_wait
#define fi_xpu_cntr_add fi_xpu_stock_cntr_add
#define fi_xpu_cntr_set fi_xpu_stock_cntr_set
#define fi_xpu_cntr_adderr fi_xpu_stock_cntr_adderr
#define fi_xpu_cntr_seterr fi_xpu_stock_cntr_seterr
#define fi_xpu_cq_read fi_xpu_stock_cq_read
#define fi_xpu_cq_readfrom fi_xpu_stock_cq_readfrom
#define fi_xpu_cq_readerr fi_xpu_stock_cq_readerr
#define fi_xpu_cq_sread fi_xpu_stock_cq_sread
#define fi_xpu_cq_sreadfrom fi_xpu_stock_cq_sreadfrom
#include <rdma/fi_xpu_device.h>
#undef fi_xpu_write
#undef fi_xpu_read
#undef fi_xpu_send
#undef fi_xpu_recv
#undef fi_xpu_tsend
#undef fi_xpu_trecv
#undef fi_xpu_atomic
#undef fi_xpu_fetch_atomic
#undef fi_xpu_compare_atomic
#undef fi_xpu_cntr_read
#undef fi_xpu_cntr_readerr
#undef fi_xpu_cntr_wait
#undef fi_xpu_cntr_add
#undef fi_xpu_cntr_set
#undef fi_xpu_cntr_adderr
#undef fi_xpu_cntr_seterr
#undef fi_xpu_cq_read
#undef fi_xpu_cq_readfrom
#undef fi_xpu_cq_readerr
#undef fi_xpu_cq_sread
#undef fi_xpu_cq_sreadfrom
#define STRAIT_FI_OTHER(call, otherwise) fi_xpu_stock_##call
#else
#define STRAIT_FI_OTHER(call, otherwise) otherwise
/* As <rdma/fi_xpu.h> has them. */
struct fid_xpu {
	strait_xpu_u32 fclass;
	strait_xpu_u32 prov_id;
	strait_xpu_u64 prov_ctx;
};
struct fid_xpu_ep {
	struct fid_xpu fid;
};
struct fid_xpu_cq {
	struct fid_xpu fid;
};
struct fid_xpu_cntr {
	struct fid_xpu fid;
};
enum { FI_XPU_WORK_ITEM, FI_XPU_SUBGROUP, FI_XPU_WORK_GROUP, FI_XPU_DEVICE };
#endif

#include "strait_xpu/fi.cuh"

#endif
