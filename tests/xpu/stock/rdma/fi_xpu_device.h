/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Stands in for libfabric's header of that name, with a provider of its own, 1: its functions answer -1000 or 1000. */
#ifndef FI_XPU_DEVICE_H
#define FI_XPU_DEVICE_H
#include <stddef.h>
#include <stdint.h>
struct fid_xpu {
	uint32_t fclass, prov_id;
	uint64_t prov_ctx;
};
struct fid_xpu_ep { struct fid_xpu fid; };
struct fid_xpu_cq { struct fid_xpu fid; };
struct fid_xpu_cntr { struct fid_xpu fid; };
enum { FI_XPU_WORK_ITEM, FI_XPU_SUBGROUP, FI_XPU_WORK_GROUP, FI_XPU_DEVICE };
#ifdef __CUDACC__
#define STAND_IN __device__ static inline
#else
#define STAND_IN static inline
#endif
#define FOR(at) ((at)->fid.prov_id == 1 ? -1000 : -38)
typedef uint64_t u;
STAND_IN int fi_xpu_write(struct fid_xpu_ep *e, const void *, size_t, void *, u, void *, u, u, void *, u, int) { return FOR(e); }
STAND_IN int fi_xpu_read(struct fid_xpu_ep *e, void *, size_t, void *, void *, u, u, void *, u, int) { return FOR(e); }
STAND_IN int fi_xpu_send(struct fid_xpu_ep *e, const void *, size_t, void *, u, void *, void *, u, int) { return FOR(e); }
STAND_IN int fi_xpu_recv(struct fid_xpu_ep *e, void *, size_t, void *, void *, void *, u, int) { return FOR(e); }
STAND_IN int fi_xpu_tsend(struct fid_xpu_ep *e, const void *, size_t, void *, u, void *, u, void *, u, int) { return FOR(e); }
STAND_IN int fi_xpu_trecv(struct fid_xpu_ep *e, void *, size_t, void *, void *, u, u, void *, u, int) { return FOR(e); }
STAND_IN int fi_xpu_atomic(struct fid_xpu_ep *e, const void *, size_t, void *, void *, u, u, int, int, void *, u, int) { return FOR(e); }
STAND_IN int fi_xpu_fetch_atomic(struct fid_xpu_ep *e, const void *, size_t, void *, void *, void *, void *, u, u, int, int, void *, u, int) { return FOR(e); }
STAND_IN int fi_xpu_compare_atomic(struct fid_xpu_ep *e, const void *, size_t, void *, const void *, void *, void *, void *, void *, u, u, int, int, void *, u, int) { return FOR(e); }
STAND_IN u fi_xpu_cntr_read(struct fid_xpu_cntr *, int) { return 1000; }
STAND_IN u fi_xpu_cntr_readerr(struct fid_xpu_cntr *, int) { return 1000; }
STAND_IN void fi_xpu_cntr_wait(struct fid_xpu_cntr *, u, int, int) {}
STAND_IN int fi_xpu_cntr_add(struct fid_xpu_cntr *c, u, int) { return FOR(c); }
STAND_IN int fi_xpu_cntr_set(struct fid_xpu_cntr *c, u, int) { return FOR(c); }
STAND_IN int fi_xpu_cntr_adderr(struct fid_xpu_cntr *c, u, int) { return FOR(c); }
STAND_IN int fi_xpu_cntr_seterr(struct fid_xpu_cntr *c, u, int) { return FOR(c); }
STAND_IN int64_t fi_xpu_cq_read(struct fid_xpu_cq *c, void *, size_t, int) { return FOR(c); }
STAND_IN int64_t fi_xpu_cq_readfrom(struct fid_xpu_cq *c, void *, size_t, void *, int) { return FOR(c); }
STAND_IN int64_t fi_xpu_cq_readerr(struct fid_xpu_cq *c, void *, u, int) { return FOR(c); }
STAND_IN int64_t fi_xpu_cq_sread(struct fid_xpu_cq *c, void *, size_t, u, int) { return FOR(c); }
STAND_IN int64_t fi_xpu_cq_sreadfrom(struct fid_xpu_cq *c, void *, size_t, void *, u, int) { return FOR(c); }
#endif
