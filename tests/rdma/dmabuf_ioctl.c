/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * ibv_reg_dmabuf_mr(3) by the kernel's interface, for LD_PRELOAD: libibverbs' drivers for soft RDMA have none, and answer EOPNOTSUPP
 * before they ask the kernel. A program that looks the function up (dlsym) finds this one, too.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/rdma_user_ioctl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

enum { ATTRIBUTES = 9, REGISTERED_AS_DMABUF = 3 };

/* What libibverbs has for a registration, and frees. */
struct registration {
	struct ibv_mr mr;
	int type, access;
	char room[64];
};

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
	struct registration *made = calloc(1, sizeof *made);
	struct {
		struct ib_uverbs_ioctl_hdr head;
		struct ib_uverbs_attr attrs[ATTRIBUTES];
	} ask = { .head = { .length = sizeof ask, .object_id = UVERBS_OBJECT_MR, .method_id = UVERBS_METHOD_REG_DMABUF_MR,
			    .num_attrs = ATTRIBUTES, .driver_id = RDMA_DRIVER_RXE } };
	struct ib_uverbs_attr *at = ask.attrs;

	if (!made)
		return NULL;
	*at++ = (struct ib_uverbs_attr){ .attr_id = UVERBS_ATTR_REG_DMABUF_MR_HANDLE, .flags = UVERBS_ATTR_F_MANDATORY };
	*at++ = (struct ib_uverbs_attr){ .attr_id = UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE, .flags = UVERBS_ATTR_F_MANDATORY, .data = pd->handle };
	*at++ = (struct ib_uverbs_attr){ .attr_id = UVERBS_ATTR_REG_DMABUF_MR_OFFSET, .len = 8, .flags = UVERBS_ATTR_F_MANDATORY, .data = offset };
	*at++ = (struct ib_uverbs_attr){ .attr_id = UVERBS_ATTR_REG_DMABUF_MR_LENGTH, .len = 8, .flags = UVERBS_ATTR_F_MANDATORY, .data = length };
	*at++ = (struct ib_uverbs_attr){ .attr_id = UVERBS_ATTR_REG_DMABUF_MR_IOVA, .len = 8, .flags = UVERBS_ATTR_F_MANDATORY, .data = iova };
	*at++ = (struct ib_uverbs_attr){ .attr_id = UVERBS_ATTR_REG_DMABUF_MR_FD, .len = 4, .flags = UVERBS_ATTR_F_MANDATORY, .data = (uint32_t)fd };
	*at++ = (struct ib_uverbs_attr){ .attr_id = UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS, .len = 4, .flags = UVERBS_ATTR_F_MANDATORY, .data = (uint32_t)access };
	*at++ = (struct ib_uverbs_attr){ .attr_id = UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, .len = 4, .flags = UVERBS_ATTR_F_MANDATORY,
					 .data = (uintptr_t)&made->mr.lkey };
	*at++ = (struct ib_uverbs_attr){ .attr_id = UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, .len = 4, .flags = UVERBS_ATTR_F_MANDATORY,
					 .data = (uintptr_t)&made->mr.rkey };
	if (ioctl(pd->context->cmd_fd, RDMA_VERBS_IOCTL, &ask)) {
		free(made);
		return NULL;
	}
	made->mr.context = pd->context;
	made->mr.pd = pd;
	made->mr.addr = (void *)(uintptr_t)iova;
	made->mr.length = length;
	made->mr.handle = (uint32_t)ask.attrs[0].data;
	made->type = REGISTERED_AS_DMABUF;
	made->access = access;
	return &made->mr;
}

void *dlsym(void *restrict handle, const char *restrict name)
{
	static void *(*real)(void *, const char *);

	if (!real)
		real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
	return strcmp(name, "ibv_reg_dmabuf_mr") ? real(handle, name) : (void *)ibv_reg_dmabuf_mr;
}
