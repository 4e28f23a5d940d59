/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Short messages and other short operations in one process, called as Open MPI's mtl/ofi and btl/ofi call them: for
 * counting instructions, which a busy machine does not change.
 *
 *   short PROVIDER PATTERN ROUNDS [BYTES [WAITING [SENDERS]]]
 *     PATTERN  expected  the receive is posted first
 *              late      the message comes first, then the receive names its source
 *              any       as `late`, and the receive is for any source
 *              mask      as `late`, and the receive ignores half of the tag
 *              burst     as `late`, 64 messages and then 64 receives
 *              send      as `expected`, by fi_tsenddata with a completion
 *              delivery  as btl/ofi sends: fi_sendmsg that completes on delivery, to untagged receives that stand
 *              deliveries  as `delivery`, 64 in flight
 *              write, atomic, fetch   fi_writemsg, fi_atomicmsg and fi_fetch_atomicmsg with completion
 *     WAITING  messages that wait all the time, each under a tag of its own; in `expected`, receives
 *     SENDERS  endpoints that send in turn
 *
 * Prints nothing. Under valgrind --tool=callgrind --toggle-collect=measured the instructions of ROUNDS are counted, after a
 * tenth as many that are not (ci/check/instructions).
 */
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { BURST = 64, EVENTS = 100, KEY = 7, TAG = 5 };

struct end {
	struct fid_domain *domain;
	struct fid_ep *ep;
	struct fid_cq *cq;
	struct fid_av *av;
	fi_addr_t peer;
	char name[128];
	size_t len;
};

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct end to, *from;
static fi_addr_t *names;
static char out[1 << 16], in[1 << 16];
static size_t bytes = 8;
static struct fi_context2 contexts[1 << 15];
static unsigned posted;

static void start(struct end *e)
{
	struct fi_cq_attr cq = { .format = FI_CQ_FORMAT_TAGGED, .size = 1 << 15 };
	struct fi_av_attr av = { .type = FI_AV_TABLE };

	CHECK(fi_domain(fabric, info, &e->domain, NULL));
	CHECK(fi_cq_open(e->domain, &cq, &e->cq, NULL));
	CHECK(fi_av_open(e->domain, &av, &e->av, NULL));
	CHECK(fi_endpoint(e->domain, info, &e->ep, NULL));
	CHECK(fi_ep_bind(e->ep, &e->av->fid, 0));
	CHECK(fi_ep_bind(e->ep, &e->cq->fid, FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION));
	CHECK(fi_enable(e->ep));
	e->len = sizeof(e->name);
	CHECK(fi_getname(&e->ep->fid, e->name, &e->len));
}

/* Reads until the queue has no more; returns how many there were. */
static long drain(struct end *e)
{
	struct fi_cq_tagged_entry entries[EVENTS];
	long n = 0, rc;

	while ((rc = fi_cq_read(e->cq, entries, EVENTS)) > 0)
		n += rc;
	if (rc != -FI_EAGAIN)
		CHECK(rc);
	return n;
}

static void await(struct end *e, struct end *other)
{
	while (drain(e) == 0)
		drain(other);
}

static void receive(fi_addr_t source, uint64_t tag, uint64_t ignore)
{
	CHECK(fi_trecv(to.ep, in, bytes, NULL, source, tag, ignore, &contexts[posted++ % (1 << 15)]));
}

static void inject(struct end *e, uint64_t tag)
{
	long rc;

	while ((rc = fi_tinjectdata(e->ep, out, bytes, 3, e->peer, tag)) == -FI_EAGAIN)
		drain(&to);
	CHECK(rc);
}

static void one_sided(struct end *e, const char *pattern, struct fid_mr *mr)
{
	static uint64_t operand, result;
	struct iovec iov = { out, bytes };
	struct fi_rma_iov there = { 0, bytes, fi_mr_key(mr) };
	struct fi_ioc ioc = { &operand, 1 }, old = { &result, 1 };
	struct fi_rma_ioc target = { 0, 1, fi_mr_key(mr) };
	struct fi_msg_rma rma = { &iov, NULL, 1, e->peer, &there, 1, contexts, 0 };
	struct fi_msg_atomic atomic = { &ioc, NULL, 1, e->peer, &target, 1, FI_UINT64, FI_SUM, contexts, 0 };
	void *desc = NULL;

	if (!strcmp(pattern, "write"))
		CHECK(fi_writemsg(e->ep, &rma, FI_COMPLETION | FI_DELIVERY_COMPLETE));
	else if (!strcmp(pattern, "atomic"))
		CHECK(fi_atomicmsg(e->ep, &atomic, FI_COMPLETION));
	else
		CHECK(fi_fetch_atomicmsg(e->ep, &atomic, &old, &desc, 1, FI_COMPLETION));
	await(e, &to);
	drain(&to);
}

static void expected(struct end *e, fi_addr_t source, int completes)
{
	receive(source, TAG, 0);
	if (completes) {
		CHECK(fi_tsenddata(e->ep, out, bytes, NULL, 3, e->peer, TAG, contexts));
		await(e, &to);
	} else {
		inject(e, TAG);
	}
	await(&to, e);
}

static void late(struct end *e, fi_addr_t source, uint64_t ignore)
{
	inject(e, TAG);
	drain(&to);
	receive(source, TAG, ignore);
	await(&to, e);
}

static void burst(struct end *e, fi_addr_t source)
{
	for (int i = 0; i < BURST; i++)
		inject(e, TAG);
	for (int i = 0; i < BURST; i++) {
		receive(source, TAG, 0);
		await(&to, e);
	}
}

/* Receives of the one sort that btl/ofi has stand all the time. */
static void repost(long n)
{
	while (n-- > 0)
		CHECK(fi_recv(to.ep, in, bytes, NULL, FI_ADDR_UNSPEC, &contexts[posted++ % (1 << 15)]));
}

static void deliver(struct end *e, long window)
{
	static const struct iovec iov = { out, 8 };
	struct fi_msg msg = { .msg_iov = &iov, .iov_count = 1, .addr = e->peer, .context = contexts };
	long arrived = 0, done = 0;

	for (long i = 0; i < window; i++)
		CHECK(fi_sendmsg(e->ep, &msg, FI_COMPLETION | FI_DELIVERY_COMPLETE));
	while (arrived < window || done < window) {
		long n = drain(&to);

		repost(n);
		arrived += n;
		done += drain(e);
	}
}

static void operation(const char *pattern, long sender, struct fid_mr *mr)
{
	struct end *e = &from[sender];
	fi_addr_t source = names[sender];

	if (!strcmp(pattern, "expected") || !strcmp(pattern, "send"))
		expected(e, source, pattern[0] == 's');
	else if (!strcmp(pattern, "late"))
		late(e, source, 0);
	else if (!strcmp(pattern, "any"))
		late(e, FI_ADDR_UNSPEC, 0);
	else if (!strcmp(pattern, "mask"))
		late(e, source, 0xffffffff00000000 | 4);
	else if (!strcmp(pattern, "burst"))
		burst(e, source);
	else if (!strcmp(pattern, "delivery"))
		deliver(e, 1);
	else if (!strcmp(pattern, "deliveries"))
		deliver(e, BURST);
	else
		one_sided(e, pattern, mr);
}

/* By a name of its own, for --toggle-collect. */
__attribute__((noinline)) static void measured(const char *pattern, long rounds, long senders, struct fid_mr *mr)
{
	for (long i = 0; i < rounds; i++)
		operation(pattern, i % senders, mr);
}

int main(int argc, char **argv)
{
	if (argc < 4) {
		fprintf(stderr, "usage: %s PROVIDER PATTERN ROUNDS [BYTES [WAITING [SENDERS]]]\n", argv[0]);
		return 2;
	}
	const char *pattern = argv[2];
	long rounds = atol(argv[3]), waiting = argc > 5 ? atol(argv[5]) : 0, senders = argc > 6 ? atol(argv[6]) : 1;
	struct fi_info *hints = fi_allocinfo();
	struct fid_mr *mr;

	bytes = argc > 4 ? atol(argv[4]) : bytes;
	if (bytes > sizeof(in) || waiting > 1 << 14)
		return 2;
	from = calloc(senders, sizeof(*from));
	names = calloc(senders, sizeof(*names));
	hints->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_DIRECTED_RECV | FI_LOCAL_COMM;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->control_progress = hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	hints->tx_attr->op_flags = hints->rx_attr->op_flags = FI_COMPLETION;
	hints->fabric_attr->prov_name = strdup(argv[1]);
	CHECK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	CHECK(fi_fabric(info->fabric_attr, &fabric, NULL));
	start(&to);
	CHECK(fi_mr_reg(to.domain, in, sizeof(in), FI_REMOTE_WRITE | FI_REMOTE_READ, 0, KEY, 0, &mr, NULL));
	for (long i = 0; i < senders; i++) {
		start(&from[i]);
		CHECK(fi_av_insert(from[i].av, to.name, 1, &from[i].peer, 0, NULL));
		CHECK(fi_av_insert(to.av, from[i].name, 1, &names[i], 0, NULL));
		expected(&from[i], names[i], 0);
	}
	for (long i = 0; i < waiting; i++) {
		if (!strcmp(pattern, "expected")) {
			receive(names[0], 1000 + i, 0);
		} else {
			inject(&from[i % senders], 1000 + i);
			drain(&to);
		}
	}
	if (!strncmp(pattern, "deliver", 7))
		repost(2 * BURST);
	for (long i = 0; i < rounds / 10; i++)
		operation(pattern, i % senders, mr);
	measured(pattern, rounds, senders, mr);
	return 0;
}
