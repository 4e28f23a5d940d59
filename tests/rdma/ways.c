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
#include <infiniband/verbs.h>
#include <linux/dma-heap.h>
#include <linux/udmabuf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define LEN ((size_t)64 << 10)
#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)

#define MUST(cond, what)                                                                  \
	do {                                                                              \
		if (!(cond)) {                                                            \
			fprintf(stderr, "ways: %s: %s\n", what, strerror(errno));         \
			exit(1);                                                          \
		}                                                                         \
	} while (0)

static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *pair[2];
static int wrong;

/* `said`: 0, or the errno with which a call refused; `expected`: that of soft RDMA. */
static void line(const char *way, const char *call, int said, int expected)
{
	const char *what = said ? strerrorname_np(said) : "ok";

	printf("%-44s %-20s %-12s%s\n", way, call, what ? what : "?", said == expected ? "" : " UNEXPECTED");
	wrong |= said != expected;
}

static void connect_pair(struct ibv_context *device)
{
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {16, 16, 1, 1, 0}};
	union ibv_gid gid;
	int index = -1, i;

	/* A GID of IPv4: index 0 is link-local. */
	for (i = 0; i < 16 && index < 0; i++)
		if (!ibv_query_gid(device, 1, i, &gid) && gid.raw[10] == 0xff && gid.raw[11] == 0xff)
			index = i;
	MUST(index >= 0, "no GID of an IPv4 address");
	MUST((pd = ibv_alloc_pd(device)), "ibv_alloc_pd");
	MUST((cq = ibv_create_cq(device, 64, NULL, NULL, 0)), "ibv_create_cq");
	init.send_cq = init.recv_cq = cq;
	for (i = 0; i < 2; i++)
		MUST((pair[i] = ibv_create_qp(pd, &init)), "ibv_create_qp");
	for (i = 0; i < 2; i++) {
		struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL};

		MUST(!(errno = ibv_modify_qp(pair[i], &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)), "INIT");
		attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = pair[!i]->qp_num,
			.max_dest_rd_atomic = 1, .min_rnr_timer = 12,
			.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = index, .hop_limit = 4}}};
		MUST(!(errno = ibv_modify_qp(pair[i], &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)), "RTR");
	}
	for (i = 0; i < 2; i++) {
		struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};

		MUST(!(errno = ibv_modify_qp(pair[i], &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC)), "RTS");
	}
}

/* One RDMA operation of the first queue pair; 0, or EIO and the status on standard output. */
static int transfer(enum ibv_wr_opcode opcode, struct ibv_mr *own, struct ibv_mr *other)
{
	struct ibv_sge sge = {(uintptr_t)own->addr, LEN, own->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED}, *bad;
	struct ibv_wc wc;
	int i;

	wr.wr.rdma.remote_addr = (uintptr_t)other->addr;
	wr.wr.rdma.rkey = other->rkey;
	MUST(!(errno = ibv_post_send(pair[0], &wr, &bad)), "ibv_post_send");
	for (i = 0; i < 20000; i++) {
		if (ibv_poll_cq(cq, 1, &wc) > 0) {
			if (wc.status)
				printf("    %s\n", ibv_wc_status_str(wc.status));
			return wc.status ? EIO : 0;
		}
		usleep(1000);
	}
	return ETIMEDOUT;
}

static void fill(unsigned char *at, unsigned seed)
{
	for (size_t i = 0; i < LEN; i++)
		at[i] = (unsigned char)(i * 7 + (i >> 8) * 13 + seed);
}

/* Registers memory by address; what it carries is checked. */
static void by_address(const char *way, void *at, int access, int expected)
{
	unsigned char *host = aligned_alloc(4096, LEN);
	struct ibv_mr *mr = ibv_reg_mr(pd, at, LEN, access), *own;
	int said = mr ? 0 : errno;

	line(way, "ibv_reg_mr", said, expected);
	if (mr) {
		MUST(host && (own = ibv_reg_mr(pd, host, LEN, ALL)), "ibv_reg_mr of the other side");
		fill(host, 1);
		memset(at, 0, LEN);
		said = transfer(IBV_WR_RDMA_WRITE, own, mr);
		line("    RDMA write, contents", "ibv_poll_cq", said ? said : memcmp(at, host, LEN) ? EBADMSG : 0, 0);
		fill(at, 2);
		said = transfer(IBV_WR_RDMA_READ, own, mr);
		line("    RDMA read, contents", "ibv_poll_cq", said ? said : memcmp(at, host, LEN) ? EBADMSG : 0, 0);
		MUST(!ibv_dereg_mr(own) && !ibv_dereg_mr(mr), "ibv_dereg_mr");
	}
	free(host);
}

static void by_fd(const char *way, int fd, int expected)
{
	char text[80];
	void *at;
	struct ibv_mr *mr = ibv_reg_dmabuf_mr(pd, 0, LEN, 0, fd, ALL);

	line(way, "ibv_reg_dmabuf_mr", mr ? 0 : errno, expected);
	if (mr)
		MUST(!ibv_dereg_mr(mr), "ibv_dereg_mr");
	/* Its mapping has no pages that get_user_pages() takes. */
	at = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	MUST(at != MAP_FAILED, "mmap of a dma-buf");
	snprintf(text, sizeof text, "%s, its mapping, pinned", way);
	by_address(text, at, ALL, EFAULT);
	munmap(at, LEN);
	close(fd);
}

static int of_heap(void)
{
	struct dma_heap_allocation_data ask = {.len = LEN, .fd_flags = O_RDWR | O_CLOEXEC};
	int heap = open("/dev/dma_heap/system", O_RDWR | O_CLOEXEC);

	MUST(heap >= 0, "/dev/dma_heap/system");
	MUST(!ioctl(heap, DMA_HEAP_IOCTL_ALLOC, &ask), "DMA_HEAP_IOCTL_ALLOC");
	close(heap);
	return (int)ask.fd;
}

static int of_udmabuf(void)
{
	int memory = memfd_create("ways", MFD_ALLOW_SEALING), device = open("/dev/udmabuf", O_RDWR | O_CLOEXEC), fd;
	struct udmabuf_create ask = {.memfd = (unsigned)memory, .flags = UDMABUF_FLAGS_CLOEXEC, .size = LEN};

	MUST(memory >= 0 && device >= 0, "/dev/udmabuf");
	MUST(!ftruncate(memory, LEN) && !fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK), "a memfd");
	MUST((fd = ioctl(device, UDMABUF_CREATE, &ask)) >= 0, "UDMABUF_CREATE");
	close(memory);
	close(device);
	return fd;
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *device;
	struct ibv_device_attr_ex attr;
	struct ibv_mr *mr;
	struct ibv_sge part = {0};
	void *at = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	setvbuf(stdout, NULL, _IOLBF, 0);
	MUST(list && list[0], "no RDMA device");
	MUST((device = ibv_open_device(list[0])), "ibv_open_device");
	MUST(at != MAP_FAILED, "mmap");
	MUST(!(errno = ibv_query_device_ex(device, NULL, &attr)), "ibv_query_device_ex");
	printf("%s: atomics: %s\n", ibv_get_device_name(list[0]),
	       attr.orig_attr.atomic_cap == IBV_ATOMIC_GLOB  ? "IBV_ATOMIC_GLOB"
	       : attr.orig_attr.atomic_cap == IBV_ATOMIC_HCA ? "IBV_ATOMIC_HCA"
							     : "IBV_ATOMIC_NONE");
	printf("%s: on demand: general %#lx, RC %#x; max_cqe %d, max_mr_size %#lx\n", ibv_get_device_name(list[0]),
	       (unsigned long)attr.odp_caps.general_caps, attr.odp_caps.per_transport_caps.rc_odp_caps, attr.orig_attr.max_cqe,
	       (unsigned long)attr.orig_attr.max_mr_size);
	connect_pair(device);
	by_address("anonymous memory, pinned", at, ALL, 0);
	by_address("anonymous memory, relaxed ordering", at, ALL | IBV_ACCESS_RELAXED_ORDERING, 0);
	by_address("anonymous memory, on demand", at, ALL | IBV_ACCESS_ON_DEMAND, 0);
	mr = ibv_reg_mr(pd, at, LEN, ALL | IBV_ACCESS_ON_DEMAND);
	MUST(mr, "ibv_reg_mr on demand");
	part = (struct ibv_sge){(uintptr_t)at, LEN, mr->lkey};
	line("advice on an on-demand registration", "ibv_advise_mr", ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, &part, 1), EOPNOTSUPP);
	MUST(!ibv_dereg_mr(mr), "ibv_dereg_mr");
	mr = ibv_reg_mr(pd, NULL, SIZE_MAX, ALL | IBV_ACCESS_ON_DEMAND);
	line("all memory, implicit on demand", "ibv_reg_mr", mr ? 0 : errno, EOPNOTSUPP);
	by_fd("dma-buf of the heap system", of_heap(), EOPNOTSUPP);
	by_fd("dma-buf of udmabuf", of_udmabuf(), EOPNOTSUPP);
	return wrong;
}
