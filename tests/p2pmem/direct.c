/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * RDMA of two processes, of one host or of two, straight into memory that strait_p2pmem_alloc gave (ci/suite/guest):
 *
 *   direct link NETDEV                      makes a soft RDMA device (what `rdma link add` does)
 *   direct ROLE ADDRESS MEMORY [revoke]     one of the two; role 0 has the ADDRESS, by TCP, and role 1 calls it
 *   direct refused MEMORY                   no way serves: one on demand may be granted, and fails when it is used
 *
 * MEMORY is sysfs:FUNCTION (what a driver has published), vfio:FUNCTION (BAR 2 of a device that VFIO has), heap or udmabuf (dma-bufs
 * of the kernel's). It is registered by the first way that is granted: as a dma-buf, by its address, on demand. A line says what each
 * refused. Each process writes its memory to the other's, reads it back, sends it there and adds to it, contents checked by both; none
 * of the bytes has another place. On demand lengths are whole pages, which the kernel's soft RDMA (7.3) copies right.
 *
 * With revoke process 1 has the exporter take its memory back (VFIO_DEVICE_RESET): the other one's next write fails, and a new
 * registration has the memory again.
 */
#include "peer.h"
#include "dmabufs.h"
#include "../rdma/pair.h"

#include <linux/netlink.h>
#include <rdma/rdma_netlink.h>
#include <sys/ioctl.h>

enum { PORT = 7001, LEN = 64 << 10, PIECE = 24 << 10, BAR = 2 };

/* What the other process knows. */
struct card {
	union ibv_gid gid;
	uint32_t number, rkey;
	uint64_t at;
	/* It is registered on demand. */
	uint64_t pages;
};

static int role, other, vfio_device = -1;
static struct pair_device device;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static struct strait_p2pmem *p2pmem;
static struct strait_p2pmem_buffer *buffer;
static unsigned char *at;
static uint64_t iova;
static const char *way;
static struct card card;

static void attribute(struct nlmsghdr *head, unsigned short type, const char *text)
{
	struct nlattr *attr = (struct nlattr *)((char *)head + NLMSG_ALIGN(head->nlmsg_len));

	attr->nla_type = type;
	attr->nla_len = NLA_HDRLEN + strlen(text) + 1;
	strcpy((char *)attr + NLA_HDRLEN, text);
	head->nlmsg_len = NLMSG_ALIGN(head->nlmsg_len) + NLA_ALIGN(attr->nla_len);
}

static int add_link(const char *netdev)
{
	union { struct nlmsghdr head; char room[512]; } ask = {0}, answer = {0};
	struct sockaddr_nl kernel = { .nl_family = AF_NETLINK };
	int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_RDMA);

	MUST(fd >= 0, "netlink: %s", strerror(errno));
	ask.head.nlmsg_len = NLMSG_HDRLEN;
	ask.head.nlmsg_type = RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_NEWLINK);
	ask.head.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK;
	attribute(&ask.head, RDMA_NLDEV_ATTR_DEV_NAME, "strait0");
	attribute(&ask.head, RDMA_NLDEV_ATTR_NDEV_NAME, netdev);
	attribute(&ask.head, RDMA_NLDEV_ATTR_LINK_TYPE, "rxe");
	MUST(sendto(fd, &ask, ask.head.nlmsg_len, 0, (struct sockaddr *)&kernel, sizeof kernel) > 0, "%s", strerror(errno));
	MUST(recv(fd, &answer, sizeof answer, 0) > 0, "%s", strerror(errno));
	struct nlmsgerr *error = NLMSG_DATA(&answer.head);
	MUST(answer.head.nlmsg_type == NLMSG_ERROR && !error->error, "rdma link add: %s", strerror(-error->error));
	close(fd);
	return 0;
}

/* Publishes MEMORY, and allocates it. */
static void allocate(const char *memory)
{
	const char *function = strchr(memory, ':');
	struct strait_p2pmem_info info = { .size = sizeof info };
	int fd;

	p2pmem = peer_open(!strncmp(memory, "sysfs:", 6) ? function + 1 : "given");
	if (!strcmp(memory, "heap") || !strcmp(memory, "udmabuf")) {
		fd = strcmp(memory, "heap") ? of_udmabuf(LEN) : of_heap(LEN);
		GIVES(strait_p2pmem_publish_file(p2pmem, "given", NULL, fd, 0, LEN), 0);
		close(fd);
	} else if (!strncmp(memory, "vfio:", 5)) {
		GIVES(strait_p2pmem_publish_vfio(p2pmem, "given", function + 1, vfio_device = of_vfio(function + 1), BAR, 0, LEN), 0);
	} else {
		MUST(!strncmp(memory, "sysfs:", 6), "%s", memory);
	}
	GIVES(peer_try(p2pmem, LEN, 1, &buffer), 0);
	GIVES(strait_p2pmem_query(buffer, &info), 0);
	at = peer_at(buffer);
	printf("memory of %s, kind %s\n", info.publisher, info.kind);
}

static void said(const char *name, const char *call, int errnum)
{
	printf("    %-10s %-26s %s\n", name, call, errnum ? strerrorname_np(errnum) : "ok");
}

static struct ibv_mr *as_dmabuf(void)
{
	uint64_t offset;
	struct ibv_mr *made;
	int fd, error = strait_p2pmem_dmabuf(buffer, 0, &fd, &offset);

	said("dma-buf", "strait_p2pmem_dmabuf", -error);
	if (error)
		return NULL;
	iova = (uintptr_t)at - (uintptr_t)at % 4096 + offset % 4096;
	made = ibv_reg_dmabuf_mr(device.pd, offset, LEN, iova, fd, PAIR_ALL);
	said("dma-buf", "ibv_reg_dmabuf_mr", made ? 0 : errno);
	close(fd);
	return made;
}

static struct ibv_mr *by_address(const char *name, int access)
{
	struct ibv_mr *made = ibv_reg_mr(device.pd, at, LEN, access);

	said(name, "ibv_reg_mr", made ? 0 : errno);
	iova = (uintptr_t)at;
	return made;
}

static void registered(void)
{
	way = "as a dma-buf";
	if (!(mr = as_dmabuf())) {
		way = "by its address";
		mr = by_address("address", PAIR_ALL);
	}
	if (!mr) {
		way = "on demand";
		mr = by_address("on demand", PAIR_ALL | IBV_ACCESS_ON_DEMAND);
	}
	MUST(mr, "no way");
}

/* Both have come here. */
static void meet(void)
{
	char c = 'm';

	MUST(write(other, &c, 1) == 1 && read(other, &c, 1) == 1, "the other process has gone");
}

static struct ibv_sge own(size_t from, size_t len) { return (struct ibv_sge){ iova + from, len, mr->lkey }; }

static enum ibv_wc_status run(enum ibv_wr_opcode opcode, size_t from, size_t to, size_t len)
{
	pair_post(qp, opcode, own(from, len), card.at + to, card.rkey);
	return pair_completed(&device);
}

/* Memory of a device takes aligned words alone. */
static void put(size_t to, const unsigned char *from, size_t len)
{
	for (size_t i = 0; i < len; i += 8)
		*(volatile uint64_t *)(at + to + i) = *(const uint64_t *)(from + i);
}

static void holds(size_t from, const unsigned char *wanted, size_t len, const char *what)
{
	for (size_t i = 0; i < len; i++)
		MUST(*(volatile unsigned char *)(at + from + i) == wanted[i], "%s: wrong at %zu", what, i);
}

/*
 * The memory has what is sent from 0 on, what comes from 32 KiB on, and a word in the page at its end. `acts`: this process does.
 */
static void traffic(int acts)
{
	static unsigned char bytes[PIECE], zero[PIECE] __attribute__((aligned(8)));
	const size_t in = LEN / 2, word = LEN - 4096;
	/* A dma-buf, and pinned memory, may be accessed from any byte on. */
	int pages = card.pages || !strcmp(way, "on demand");
	size_t len = pages ? PIECE : PIECE - 4096 + 77, shift = pages ? 0 : 13;
	struct ibv_sge place = own(in, PIECE);
	struct ibv_recv_wr receive = { .sg_list = &place, .num_sge = 1 }, *bad;
	uint64_t sum = 5;

	pair_fill(bytes, PIECE, 1);
	put(0, acts ? bytes : zero, PIECE);
	put(in, zero, PIECE);
	put(word, (unsigned char *)&sum, 8);
	if (!acts)
		GIVES(ibv_post_recv(qp, &receive, &bad), 0);
	meet();
	if (acts) {
		GIVES(run(IBV_WR_RDMA_WRITE, shift, in + shift, len), IBV_WC_SUCCESS);
		GIVES(run(IBV_WR_RDMA_READ, in + shift, in + shift, len), IBV_WC_SUCCESS);
		holds(in + shift, bytes + shift, len, "what was read back");
	}
	meet();
	if (!acts) {
		holds(in + shift, bytes + shift, len, "what was written here");
		put(in, zero, PIECE);
	}
	meet();
	if (acts) {
		GIVES(run(IBV_WR_SEND, 0, 0, PIECE), IBV_WC_SUCCESS);
		GIVES(run(IBV_WR_ATOMIC_FETCH_AND_ADD, in, word, 8), IBV_WC_SUCCESS);
		holds(in, (unsigned char *)&sum, 8, "what was fetched");
	} else {
		GIVES(pair_completed(&device), IBV_WC_SUCCESS);
		holds(in, bytes, PIECE, "what was sent here");
	}
	meet();
	sum = 12;
	if (!acts)
		holds(word, (unsigned char *)&sum, 8, "what was added here");
}

/* No way serves. */
static int refused(void)
{
	struct ibv_qp *pair[2];
	enum ibv_wc_status status;

	MUST(!as_dmabuf(), "it was registered as a dma-buf");
	MUST(!by_address("address", PAIR_ALL), "it was registered by its address");
	mr = by_address("on demand", PAIR_ALL | IBV_ACCESS_ON_DEMAND);
	if (!mr)
		return 0;
	pair_of_one(&device, pair);
	pair_post(pair[0], IBV_WR_RDMA_WRITE, own(0, 4096), iova + 4096, mr->rkey);
	status = pair_completed(&device);
	printf("    %-10s %-26s %s\n", "", "RDMA write", ibv_wc_status_str(status));
	MUST(status, "it is served on demand");
	return 0;
}

/* The exporter takes the memory of process 1 back. */
static void taken_back(void)
{
	if (role == 1) {
		MUST(!ioctl(vfio_device, VFIO_DEVICE_RESET), "VFIO_DEVICE_RESET: %s", strerror(errno));
		printf("    taken back by VFIO_DEVICE_RESET; registered anew:\n");
		MUST(as_dmabuf(), "%s", strerror(errno));
	}
	meet();
	if (role == 0) {
		enum ibv_wc_status status = run(IBV_WR_RDMA_WRITE, 0, LEN / 2, 4096);

		printf("    a write of what was revoked: %s\n", ibv_wc_status_str(status));
		MUST(status == IBV_WC_REM_ACCESS_ERR, "%s", ibv_wc_status_str(status));
	}
	meet();
}

int main(int argc, char **argv)
{
	struct card mine;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc == 3 && !strcmp(argv[1], "link"))
		return add_link(argv[2]);
	if (argc == 3 && !strcmp(argv[1], "refused")) {
		allocate(argv[2]);
		pair_open(&device, 64);
		return refused();
	}
	MUST(argc == 4 || (argc == 5 && !strcmp(argv[4], "revoke")), "usage: see the head of direct.c");
	role = atoi(argv[1]);
	allocate(argv[3]);
	pair_open(&device, 64);
	qp = pair_make(&device, NULL);
	registered();
	other = peer_connect(role, argv[2], PORT);
	mine = (struct card){ device.gid, qp->qp_num, mr->rkey, iova, !strcmp(way, "on demand") };
	MUST(write(other, &mine, sizeof mine) == sizeof mine, "write: %s", strerror(errno));
	MUST(recv(other, &card, sizeof card, MSG_WAITALL) == sizeof card, "the other process has gone");
	pair_connect(&device, qp, &card.gid, card.number);
	meet();
	traffic(role == 0);
	traffic(role == 1);
	printf("RDMA write, read, send and fetch-and-add of two processes, from and into that memory, registered %s\n", way);
	if (argc == 5)
		taken_back();
	GIVES(ibv_dereg_mr(mr), 0);
	GIVES(strait_p2pmem_free(buffer), 0);
	GIVES(strait_p2pmem_close(p2pmem), 0);
	return 0;
}
