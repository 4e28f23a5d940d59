/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the strait provider tells of a memory registration beyond libfabric's own calls.
 *
 *     struct fi_strait_ops_hmem *ops;
 *     struct fi_strait_path path = { .size = sizeof(path) };
 *     fi_open_ops(&domain->fid, FI_STRAIT_HMEM_OPS, 0, (void **) &ops, NULL);
 *     ops->mr_query_path(mr, &path);
 *
 * Structures only grow at their end; `size` says how much of one its user knows.
 */
#ifndef STRAIT_HMEM_H
#define STRAIT_HMEM_H

#include <stddef.h>
#include <stdint.h>

#define FI_STRAIT_HMEM_OPS "strait_hmem_v1"

/* Paths to memory, in the order in which they are tried. */
enum fi_strait_path_kind {
	FI_STRAIT_PATH_CPU = 0,         /* host memory */
	FI_STRAIT_PATH_DMABUF_PCIE = 1, /* a dma-buf, reachable over PCIe, to another device */
	FI_STRAIT_PATH_DMABUF = 2,      /* a dma-buf to another device */
	FI_STRAIT_PATH_PEER_MAP = 3,    /* mapped by the other process, whose device copies */
	FI_STRAIT_PATH_STAGED = 4,      /* copied through host memory */
	FI_STRAIT_PATH_COUNT = 5
};

struct fi_strait_path {
	size_t size;                            /* in: sizeof(struct fi_strait_path) */
	uint32_t path;                          /* out: the one that is taken */
	int32_t refused[FI_STRAIT_PATH_COUNT];  /* out: errno of each that was tried before it, or 0 */
	char why[256];                          /* out: the refusals in words; with the link verbs the RDMA device before
	                                         * them, and by which way it takes the memory */
};

struct fid_mr;

struct fi_strait_ops_hmem {
	size_t size;
	/* 0, or -FI_EINVAL. The answer is of now: it asks the driver again, and the RDMA device of the link verbs. */
	int (*mr_query_path)(struct fid_mr *mr, struct fi_strait_path *path);
};

#endif
