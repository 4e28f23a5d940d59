/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Ways of registration with the first RDMA device (ci/suite/guest rdma): a line for each, with the call that refused and its errno.
 *
 * Pinned and on-demand registrations of anonymous memory carry an RDMA write and an RDMA read to a second registration of the
 * process, contents checked; dma-bufs are of the heap `system` and of /dev/udmabuf. Then what calls cost, a line "WHAT BYTES
 * MICROSECONDS", the median of 33. Exits 1 where a way differs from what is expected of soft RDMA.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/dma-heap.h>
#include <linux/udmabuf.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
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

/* One request of a queue pair until its completion; 0, or EIO and the status on standard output. */
static int request(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	int i;

	PAIR_MUST(!(errno = ibv_post_send(qp, wr, &bad)), "ibv_post_send");
	for (i = 0; i < 2000000; i++) {
		if (ibv_poll_cq(device.cq, 1, &wc) > 0) {
			if (wc.status)
				printf("    %s\n", ibv_wc_status_str(wc.status));
			return wc.status ? EIO : 0;
		}
		sched_yield();
	}
	return ETIMEDOUT;
}

/* One RDMA operation of the first queue pair, of `len` bytes at `off` of the other side's memory, which has this key. */
static int transfer_part(enum ibv_wr_opcode opcode, struct ibv_mr *own, void *other, uint32_t rkey, size_t off, size_t len)
{
	struct ibv_sge sge = {(uintptr_t)own->addr, (uint32_t)len, own->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED};

	wr.wr.rdma.remote_addr = (uintptr_t)other + off;
	wr.wr.rdma.rkey = rkey;
	return request(pair[0], &wr);
}

static int transfer(enum ibv_wr_opcode opcode, struct ibv_mr *own, struct ibv_mr *other)
{
	return transfer_part(opcode, own, other->addr, other->rkey, 0, LEN);
}

/* Binds a window to all of a registration, for what the first queue pair accesses; 0, or why not. */
static int bind(struct ibv_mw *window, struct ibv_mr *mr)
{
	struct ibv_send_wr wr = {.opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED};

	wr.bind_mw.mw = window;
	wr.bind_mw.rkey = ibv_inc_rkey(window->rkey);
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){mr, (uintptr_t)mr->addr, mr->length, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE};
	if (request(pair[1], &wr))
		return EIO;
	window->rkey = wr.bind_mw.rkey;
	return 0;
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

/* A window of on-demand memory, and a part of a page. */
static void on_demand(unsigned char *at)
{
	enum { LITTLE = 64, OFF = 100 };
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND | IBV_ACCESS_ON_DEMAND;
	unsigned char *host = aligned_alloc(4096, LEN);
	struct ibv_mw *window = ibv_alloc_mw(device.pd, IBV_MW_TYPE_2);
	struct ibv_mr *mr = ibv_reg_mr(device.pd, at, LEN, access), *own;
	int said;

	line("anonymous memory, on demand, IBV_ACCESS_MW_BIND", "ibv_reg_mr", mr ? 0 : errno, 0);
	PAIR_MUST(host && mr && window && (own = ibv_reg_mr(device.pd, host, LEN, PAIR_ALL)), "memory and a window");
	said = bind(window, mr);
	line("    a window of it", "IBV_WR_BIND_MW", said, 0);
	if (!said) {
		pair_fill(host, LEN, 3);
		memset(at, 0, LEN);
		said = transfer_part(IBV_WR_RDMA_WRITE, own, at, window->rkey, 0, LEN);
		line("    RDMA write by the window, contents", "ibv_poll_cq", said ? said : memcmp(at, host, LEN) ? EBADMSG : 0, 0);
		memset(at, 0, LEN);
		said = transfer_part(IBV_WR_RDMA_WRITE, own, at, window->rkey, OFF, LITTLE);
		line("    64 bytes at byte 100 of a page, contents", "ibv_poll_cq", said ? said : memcmp(at + OFF, host, LITTLE) ? EBADMSG : 0,
		     EBADMSG);
		/* The next use of the address, which has other pages. */
		PAIR_MUST(!munmap(at, LEN) && mmap(at, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at, "mmap");
		said = transfer_part(IBV_WR_RDMA_WRITE, own, at, window->rkey, 0, LEN);
		line("    the same address, mapped anew, contents", "ibv_poll_cq", said ? said : memcmp(at, host, LEN) ? EBADMSG : 0, 0);
	}
	PAIR_MUST(!ibv_dealloc_mw(window) && !ibv_dereg_mr(own) && !ibv_dereg_mr(mr), "ibv_dereg_mr");
	free(host);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static int rising(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

enum { TIMES = 33 };

static void cost(const char *what, size_t len, double *took)
{
	qsort(took, TIMES, sizeof *took, rising);
	printf("%-44s %9zu %9.1f\n", what, len, took[TIMES / 2]);
}

/* Of memory that is there. */
static void costs(size_t len)
{
	unsigned char *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int access[] = {IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND};
	double first[TIMES], again[TIMES], end[TIMES], copied[TIMES];
	unsigned char *other = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	PAIR_MUST(at != MAP_FAILED && other != MAP_FAILED, "mmap");
	memset(at, 1, len);
	memset(other, 1, len);
	for (int way = 0; way < 2; way++) {
		struct ibv_mr *peers = ibv_reg_mr(device.pd, other, len, PAIR_ALL);

		PAIR_MUST(peers, "ibv_reg_mr");
		for (int i = 0; i < TIMES; i++) {
			double t0 = now(), t1, t2, t3;
			struct ibv_mr *mr = ibv_reg_mr(device.pd, at, len, access[way]);

			t1 = now();
			PAIR_MUST(mr, "ibv_reg_mr");
			PAIR_MUST(!transfer_part(IBV_WR_RDMA_READ, mr, other, peers->rkey, 0, len), "a read");
			t2 = now();
			PAIR_MUST(!transfer_part(IBV_WR_RDMA_READ, mr, other, peers->rkey, 0, len), "a read");
			t3 = now();
			first[i] = t2 - t1;
			again[i] = t3 - t2;
			copied[i] = t1 - t0;
			t0 = now();
			PAIR_MUST(!ibv_dereg_mr(mr), "ibv_dereg_mr");
			end[i] = now() - t0;
		}
		cost(way ? "on demand, ibv_reg_mr" : "pinned, ibv_reg_mr", len, copied);
		cost("    ibv_dereg_mr", len, end);
		cost("    RDMA read into it, the first", len, first);
		cost("    RDMA read into it, the second", len, again);
		PAIR_MUST(!ibv_dereg_mr(peers), "ibv_dereg_mr");
	}
	for (int i = 0; i < TIMES; i++) {
		double t0 = now();

		memcpy(at, other, len);
		__asm__ volatile("" : : "r"(at) : "memory");
		copied[i] = now() - t0;
	}
	cost("memcpy", len, copied);
	munmap(at, len);
	munmap(other, len);
}

static void cost_of_windows(void)
{
	double made[TIMES], bound[TIMES], ended[TIMES];
	void *at = aligned_alloc(4096, LEN);
	struct ibv_mr *mr = ibv_reg_mr(device.pd, at, LEN, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);

	PAIR_MUST(at && mr, "ibv_reg_mr");
	for (int i = 0; i < TIMES; i++) {
		double t0 = now(), t1, t2;
		struct ibv_mw *window = ibv_alloc_mw(device.pd, IBV_MW_TYPE_2);

		t1 = now();
		PAIR_MUST(window && !bind(window, mr), "a window");
		t2 = now();
		PAIR_MUST(!ibv_dealloc_mw(window), "ibv_dealloc_mw");
		made[i] = t1 - t0;
		bound[i] = t2 - t1;
		ended[i] = now() - t2;
	}
	cost("ibv_alloc_mw", LEN, made);
	cost("IBV_WR_BIND_MW, until it has completed", LEN, bound);
	cost("ibv_dealloc_mw", LEN, ended);
	PAIR_MUST(!ibv_dereg_mr(mr), "ibv_dereg_mr");
	free(at);
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
	on_demand(at);
	mr = ibv_reg_mr(device.pd, at, LEN, PAIR_ALL | IBV_ACCESS_ON_DEMAND);
	PAIR_MUST(mr, "ibv_reg_mr on demand");
	part = (struct ibv_sge){(uintptr_t)at, LEN, mr->lkey};
	line("advice on an on-demand registration", "ibv_advise_mr", ibv_advise_mr(device.pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, &part, 1), EOPNOTSUPP);
	PAIR_MUST(!ibv_dereg_mr(mr), "ibv_dereg_mr");
	mr = ibv_reg_mr(device.pd, NULL, SIZE_MAX, PAIR_ALL | IBV_ACCESS_ON_DEMAND);
	line("all memory, implicit on demand", "ibv_reg_mr", mr ? 0 : errno, EOPNOTSUPP);
	by_fd("dma-buf of the heap system", of_heap(), EOPNOTSUPP);
	by_fd("dma-buf of udmabuf", of_udmabuf(), EOPNOTSUPP);
	for (size_t len = 16 << 10; len <= 1 << 20; len *= 4)
		costs(len);
	cost_of_windows();
	return wrong;
}
