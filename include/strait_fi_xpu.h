/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* fi_xpu(3) of the strait provider, for applications of libfabric 2.6 and older.
 *
 *     struct fi_strait_ops_xpu *ops;
 *     fi_open_ops(&domain->fid, FI_STRAIT_XPU_OPS, 0, (void **) &ops, NULL);
 *     ops->ctx_open(domain, &attr, &ctx, NULL);
 *
 * The functions do what those of fi_xpu(3) do, and take the context as an argument where libfabric 2.7 has it in a
 * structure. Structures have the layouts of 2.7. What is exported leads to structures of strait_xpu_layout.h. With
 * libfabric 2.7 and later the functions of rdma/fi_xpu.h are there, and do the same.
 */
#ifndef STRAIT_FI_XPU_H
#define STRAIT_FI_XPU_H

#include <stddef.h>
#include <stdint.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>

#define FI_STRAIT_XPU_OPS "strait_xpu_v1"
/* The flag of av_lookup and mr_desc. */
#define FI_STRAIT_XPU (1ULL << 44)

#define FI_STRAIT_XPU_CAP_EP (1ULL << 0)
#define FI_STRAIT_XPU_CAP_CQ (1ULL << 1)
#define FI_STRAIT_XPU_CAP_CNTR (1ULL << 2)

#define FI_STRAIT_XPU_IMPORT_DEVICEMAP (1ULL << 1)

/* struct fi_xpu_ops: `alloc` and `free` are not called. */
struct fi_strait_xpu_callbacks {
	size_t size;
	int (*alloc)(uint64_t device, uint64_t size, uint64_t alignment, uint64_t flags, void **addr, int *fd,
		     uint64_t *offset);
	int (*import)(uint64_t device, void *host_addr, uint64_t size, uint64_t flags, void **dev_addr);
	void (*free)(uint64_t device, void *addr);
};

/* struct fi_xpu_attr. FI_HMEM_SYSTEM: threads of this process play the device. */
struct fi_strait_xpu_attr {
	enum fi_hmem_iface iface;
	uint64_t device;
	struct fi_strait_xpu_callbacks *ops;
};

/* struct fi_xpu_ctx_attr */
struct fi_strait_xpu_ctx_attr {
	uint64_t caps;
	size_t av_addr_size;
	size_t mr_desc_size;
};

/* struct fid_xpu, and fid_xpu_ep, fid_xpu_cq, fid_xpu_cntr */
struct fi_strait_xpu_export {
	uint32_t fclass;
	uint32_t prov_id; /* STRAIT_XPU_PROV_ID */
	uint64_t prov_ctx;
};

struct fid_xpu_ctx;

struct fi_strait_ops_xpu {
	size_t size;
	/* Close it by fi_close((struct fid *) ctx), after all that was opened with it. */
	int (*ctx_open)(struct fid_domain *domain, struct fi_strait_xpu_attr *attr, struct fid_xpu_ctx **ctx,
			void *context);
	int (*ctx_query)(struct fid_xpu_ctx *ctx, struct fi_strait_xpu_ctx_attr *attr);
	int (*endpoint)(struct fid_domain *domain, struct fi_info *info, struct fid_xpu_ctx *ctx, struct fid_ep **ep,
			void *context);
	int (*cq_open)(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_xpu_ctx *ctx, struct fid_cq **cq,
		       void *context);
	int (*cntr_open)(struct fid_domain *domain, struct fi_cntr_attr *attr, struct fid_xpu_ctx *ctx,
			 struct fid_cntr **cntr, void *context);
	int (*ep_export)(struct fid_ep *ep, uint64_t flags, struct fi_strait_xpu_export *out);
	int (*cq_export)(struct fid_cq *cq, uint64_t flags, struct fi_strait_xpu_export *out);
	int (*cntr_export)(struct fid_cntr *cntr, uint64_t flags, struct fi_strait_xpu_export *out);
	int (*av_lookup)(struct fid_av *av, fi_addr_t addr, void *buf, size_t *len, uint64_t flags,
			 struct fid_xpu_ctx *ctx);
	int (*mr_desc)(struct fid_mr *mr, void *buf, size_t *len, uint64_t flags, struct fid_xpu_ctx *ctx);
};

#endif
