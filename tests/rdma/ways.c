/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Ways of registration with the first RDMA device (ci/suite/guest rdma): a line for each, with the call that refused and its errno.
 *
 * Pinned and on-demand registrations of anonymous memory carry an RDMA write and an RDMA read to a second registration of the
 * process, contents checked; dma-bufs are of the heap `system` and of /dev/udmabuf. Exits 1 where a way of the table WAYS differs
 * from what it says of soft RDMA.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/dma-heap.h>
#include <linux/udmabuf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pair.h"

#define LEN ((size_t)64 << 10)

static struct pair_device device;
static struct ibv_qp *pair[2];
static int wrong;

/* `said`: 0, or the errno with which a call refused; `expected`: that of soft RDMA. */
static void line(const char *way, const char *call, int said, int expected)
{
	const char *what = said ? strerrorname_np(said) : "ok";

	printf("%-44s %-20s %-12s%s\n", way, call, what ? what : "?", said == expected ? "" : " UNEXPECTED");
	wrong |= said != expected;
}

/* One RDMA operation of the first queue pair; 0, or EIO and the status on standard output. */
static int transfer(enum ibv_wr_opcode opcode, struct ibv_mr *own, struct ibv_mr *other)
{
	enum ibv_wc_status status;

	pair_post(pair[0], opcode, (struct ibv_sge){(uintptr_t)own->addr, LEN, own->lkey}, (uintptr_t)other->addr, other->rkey);
	status = pair_completed(&device);
	if (status)
		printf("    %s\n", ibv_wc_status_str(status));
	return status ? EIO : 0;
}

/* Registers memory by address; what it carries is checked. */
static void by_address(const char *way, void *at, int access, int expected)
{
	unsigned char *host = aligned_alloc(4096, LEN);
	struct ibv_mr *mr = ibv_reg_mr(device.pd, at, LEN, access), *own;
	int said = mr ? 0 : errno;

	line(way, "ibv_reg_mr", said, expected);
	if (mr) {
		PAIR_MUST(host && (own = ibv_reg_mr(device.pd, host, LEN, PAIR_ALL)), "ibv_reg_mr of the other side");
		pair_fill(host, LEN, 1);
		memset(at, 0, LEN);
		said = transfer(IBV_WR_RDMA_WRITE, own, mr);
		line("    RDMA write, contents", "ibv_poll_cq", said ? said : memcmp(at, host, LEN) ? EBADMSG : 0, 0);
		pair_fill(at, LEN, 2);
		said = transfer(IBV_WR_RDMA_READ, own, mr);
		line("    RDMA read, contents", "ibv_poll_cq", said ? said : memcmp(at, host, LEN) ? EBADMSG : 0, 0);
		PAIR_MUST(!ibv_dereg_mr(own) && !ibv_dereg_mr(mr), "ibv_dereg_mr");
	}
	free(host);
}

static void by_fd(const char *way, int fd, int expected)
{
	char text[80];
	void *at;
	struct ibv_mr *mr = ibv_reg_dmabuf_mr(device.pd, 0, LEN, 0, fd, PAIR_ALL);

	line(way, "ibv_reg_dmabuf_mr", mr ? 0 : errno, expected);
	if (mr)
		PAIR_MUST(!ibv_dereg_mr(mr), "ibv_dereg_mr");
	/* Its mapping has no pages that get_user_pages() takes. */
	at = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	PAIR_MUST(at != MAP_FAILED, "mmap of a dma-buf");
	snprintf(text, sizeof text, "%s, its mapping, pinned", way);
	by_address(text, at, PAIR_ALL, EFAULT);
	munmap(at, LEN);
	close(fd);
}

static int of_heap(void)
{
	struct dma_heap_allocation_data ask = {.len = LEN, .fd_flags = O_RDWR | O_CLOEXEC};
	int heap = open("/dev/dma_heap/system", O_RDWR | O_CLOEXEC);

	PAIR_MUST(heap >= 0, "/dev/dma_heap/system");
	PAIR_MUST(!ioctl(heap, DMA_HEAP_IOCTL_ALLOC, &ask), "DMA_HEAP_IOCTL_ALLOC");
	close(heap);
	return (int)ask.fd;
}

static int of_udmabuf(void)
{
	int memory = memfd_create("ways", MFD_ALLOW_SEALING), device = open("/dev/udmabuf", O_RDWR | O_CLOEXEC), fd;
	struct udmabuf_create ask = {.memfd = (unsigned)memory, .flags = UDMABUF_FLAGS_CLOEXEC, .size = LEN};

	PAIR_MUST(memory >= 0 && device >= 0, "/dev/udmabuf");
	PAIR_MUST(!ftruncate(memory, LEN) && !fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK), "a memfd");
	PAIR_MUST((fd = ioctl(device, UDMABUF_CREATE, &ask)) >= 0, "UDMABUF_CREATE");
	close(memory);
	close(device);
	return fd;
}

int main(void)
{
	struct ibv_device_attr_ex attr;
	struct ibv_mr *mr;
	struct ibv_sge part = {0};
	void *at = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	setvbuf(stdout, NULL, _IOLBF, 0);
	pair_open(&device, 64);
	PAIR_MUST(at != MAP_FAILED, "mmap");
	PAIR_MUST(!(errno = ibv_query_device_ex(device.context, NULL, &attr)), "ibv_query_device_ex");
	printf("%s: atomics: %s\n", ibv_get_device_name(device.context->device),
	       attr.orig_attr.atomic_cap == IBV_ATOMIC_GLOB  ? "IBV_ATOMIC_GLOB"
	       : attr.orig_attr.atomic_cap == IBV_ATOMIC_HCA ? "IBV_ATOMIC_HCA"
							     : "IBV_ATOMIC_NONE");
	printf("%s: on demand: general %#lx, RC %#x; max_cqe %d, max_mr_size %#lx\n", ibv_get_device_name(device.context->device),
	       (unsigned long)attr.odp_caps.general_caps, attr.odp_caps.per_transport_caps.rc_odp_caps, attr.orig_attr.max_cqe,
	       (unsigned long)attr.orig_attr.max_mr_size);
	pair_of_one(&device, pair);
	by_address("anonymous memory, pinned", at, PAIR_ALL, 0);
	by_address("anonymous memory, relaxed ordering", at, PAIR_ALL | IBV_ACCESS_RELAXED_ORDERING, 0);
	by_address("anonymous memory, on demand", at, PAIR_ALL | IBV_ACCESS_ON_DEMAND, 0);
	mr = ibv_reg_mr(device.pd, at, LEN, PAIR_ALL | IBV_ACCESS_ON_DEMAND);
	PAIR_MUST(mr, "ibv_reg_mr on demand");
	part = (struct ibv_sge){(uintptr_t)at, LEN, mr->lkey};
	line("advice on an on-demand registration", "ibv_advise_mr", ibv_advise_mr(device.pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, &part, 1), EOPNOTSUPP);
	PAIR_MUST(!ibv_dereg_mr(mr), "ibv_dereg_mr");
	mr = ibv_reg_mr(device.pd, NULL, SIZE_MAX, PAIR_ALL | IBV_ACCESS_ON_DEMAND);
	line("all memory, implicit on demand", "ibv_reg_mr", mr ? 0 : errno, EOPNOTSUPP);
	by_fd("dma-buf of the heap system", of_heap(), EOPNOTSUPP);
	by_fd("dma-buf of udmabuf", of_udmabuf(), EOPNOTSUPP);
	return wrong;
}
