/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Memory of a device's under an RDMA adapter (ci/suite/guest p2pmem):  demand PUBLISHER NETDEV
 *
 * A soft RDMA device is made on NETDEV. Pinned registration of the memory is refused; on demand it is registered, and another
 * queue pair writes it, reads it, adds to it, and sends into it. The kernel's soft RDMA (7.2) takes pages of such registrations right if
 * buffers begin at a page and packets hold one: so the MTU is 4096, and lengths are whole pages.
 */
#include "peer.h"

#include <infiniband/verbs.h>
#include <linux/netlink.h>
#include <rdma/rdma_netlink.h>
#include <sys/socket.h>

#define LEN ((size_t)16 << 10)

static void attribute(struct nlmsghdr *head, unsigned short type, const char *text)
{
	struct nlattr *at = (struct nlattr *)((char *)head + NLMSG_ALIGN(head->nlmsg_len));

	at->nla_type = type;
	at->nla_len = NLA_HDRLEN + strlen(text) + 1;
	strcpy((char *)at + NLA_HDRLEN, text);
	head->nlmsg_len = NLMSG_ALIGN(head->nlmsg_len) + NLA_ALIGN(at->nla_len);
}

/* What `rdma link add NAME type rxe netdev NETDEV` does. */
static void add_link(const char *name, const char *netdev)
{
	union { struct nlmsghdr head; char room[512]; } ask = {0}, answer = {0};
	struct sockaddr_nl kernel = { .nl_family = AF_NETLINK };
	int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_RDMA);

	MUST(fd >= 0, "netlink: %s", strerror(errno));
	ask.head.nlmsg_len = NLMSG_HDRLEN;
	ask.head.nlmsg_type = RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_NEWLINK);
	ask.head.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK;
	attribute(&ask.head, RDMA_NLDEV_ATTR_DEV_NAME, name);
	attribute(&ask.head, RDMA_NLDEV_ATTR_NDEV_NAME, netdev);
	attribute(&ask.head, RDMA_NLDEV_ATTR_LINK_TYPE, "rxe");
	MUST(sendto(fd, &ask, ask.head.nlmsg_len, 0, (struct sockaddr *)&kernel, sizeof kernel) > 0, "%s", strerror(errno));
	MUST(recv(fd, &answer, sizeof answer, 0) > 0, "%s", strerror(errno));
	struct nlmsgerr *error = NLMSG_DATA(&answer.head);
	MUST(answer.head.nlmsg_type == NLMSG_ERROR && !error->error, "rdma link add: %s", strerror(-error->error));
	close(fd);
}

static struct ibv_context *device;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *pair[2];

static void make_pair(void)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 16, 16, 1, 1, 0 } };
	union ibv_gid gid;
	int index = -1;

	pd = ibv_alloc_pd(device);
	cq = ibv_create_cq(device, 64, NULL, NULL, 0);
	MUST(pd && cq, "%s", strerror(errno));
	/* An address of IPv4: the one that this guest's route leads to. */
	for (int i = 0; i < 16 && index < 0; i++)
		if (!ibv_query_gid(device, 1, i, &gid) && gid.raw[10] == 0xff && gid.raw[11] == 0xff)
			index = i;
	MUST(index >= 0, "no address");
	init.send_cq = init.recv_cq = cq;
	for (int i = 0; i < 2; i++)
		MUST((pair[i] = ibv_create_qp(pd, &init)), "%s", strerror(errno));
	for (int i = 0; i < 2; i++) {
		int access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access };
		GIVES(ibv_modify_qp(pair[i], &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
		attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = pair[!i]->qp_num,
					     .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
					     .ah_attr = { .is_global = 1, .port_num = 1,
							  .grh = { .dgid = gid, .sgid_index = index, .hop_limit = 4 } } };
		GIVES(ibv_modify_qp(pair[i], &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), 0);
	}
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
		GIVES(ibv_modify_qp(pair[i], &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				    IBV_QP_MAX_QP_RD_ATOMIC), 0);
	}
}

static enum ibv_wc_status completed(void)
{
	struct ibv_wc wc;
	int n;

	for (int i = 0; i < 30000; i++) {
		while ((n = ibv_poll_cq(cq, 1, &wc)) > 0)
			return wc.status;
		MUST(n == 0, "ibv_poll_cq");
		usleep(1000);
	}
	MUST(0, "no completion for 30 s");
	return IBV_WC_GENERAL_ERR;
}

/* One operation of the first queue pair, from `from` on. */
static enum ibv_wc_status run(enum ibv_wr_opcode opcode, struct ibv_mr *from, struct ibv_mr *to, size_t len)
{
	struct ibv_sge sge = { (uintptr_t)from->addr, len, from->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED }, *bad;

	wr.wr.rdma.remote_addr = (uintptr_t)to->addr;
	wr.wr.rdma.rkey = to->rkey;
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)to->addr;
		wr.wr.atomic.rkey = to->rkey;
		wr.wr.atomic.compare_add = 7;
	}
	GIVES(ibv_post_send(pair[0], &wr, &bad), 0);
	return completed();
}

static void put(unsigned char *at, unsigned seed)
{
	for (size_t i = 0; i < LEN; i++)
		at[i] = (unsigned char)(i * 7 + (i >> 8) * 13 + seed);
}

static void traffic(struct peer *peer, struct ibv_mr *mr)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	unsigned char *host = aligned_alloc(4096, 2 * LEN), *see = host + LEN;
	struct ibv_mr *own = ibv_reg_mr(pd, host, LEN, access);
	struct ibv_sge sge = { (uintptr_t)peer->at, LEN, mr->lkey };
	struct ibv_recv_wr receive = { .sg_list = &sge, .num_sge = 1 }, *bad;
	uint64_t sum = 5;

	MUST(own, "%s", strerror(errno));
	memset(peer->at, 0, LEN);
	put(host, 1);
	GIVES(run(IBV_WR_RDMA_WRITE, own, mr, LEN), IBV_WC_SUCCESS);
	MUST(!memcmp(peer->at, host, LEN), "what was written");
	put(see, 2);
	memcpy(peer->at, see, LEN);
	GIVES(run(IBV_WR_RDMA_READ, own, mr, LEN), IBV_WC_SUCCESS);
	MUST(!memcmp(host, see, LEN), "what was read");
	put(host, 3);
	GIVES(ibv_post_recv(pair[1], &receive, &bad), 0);
	GIVES(run(IBV_WR_SEND, own, mr, LEN), IBV_WC_SUCCESS);
	GIVES(completed(), IBV_WC_SUCCESS);
	MUST(!memcmp(peer->at, host, LEN), "what was sent");
	memcpy(peer->at, &sum, sizeof sum);
	GIVES(run(IBV_WR_ATOMIC_FETCH_AND_ADD, own, mr, 8), IBV_WC_SUCCESS);
	memcpy(&sum, host, sizeof sum);
	MUST(sum == 5 && *(volatile uint64_t *)peer->at == 12, "%llu", (unsigned long long)*(volatile uint64_t *)peer->at);
	GIVES(ibv_dereg_mr(own), 0);
	free(host);
}

int main(int argc, char **argv)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	struct ibv_device **list;
	struct ibv_mr *mr;
	struct peer peer;
	int count;

	MUST(argc == 3, "usage: demand PUBLISHER NETDEV");
	add_link("strait0", argv[2]);
	list = ibv_get_device_list(&count);
	MUST(list && count == 1 && (device = ibv_open_device(list[0])), "%d RDMA devices", count);
	make_pair();
	peer_alloc(&peer, argv[1], LEN);
	mr = ibv_reg_mr(pd, peer.at, LEN, access);
	MUST(!mr && errno == EFAULT, "pinned registration: %s", mr ? "it went well" : strerror(errno));
	mr = ibv_reg_mr(pd, peer.at, LEN, IBV_ACCESS_REMOTE_READ);
	MUST(!mr && errno == EREMOTEIO, "pinned registration to be read: %s", mr ? "it went well" : strerror(errno));
	mr = ibv_reg_mr(pd, peer.at, LEN, access | IBV_ACCESS_ON_DEMAND);
	MUST(mr, "registration on demand: %s", strerror(errno));
	traffic(&peer, mr);
	GIVES(ibv_dereg_mr(mr), 0);
	peer_free(&peer);
	printf("write, read, send and fetch-and-add into the memory of %s\n", argv[1]);
	return 0;
}
