/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * What one message of 8 bytes costs a provider, in one process and without another core: posting its
 * receive, sending it, finding it in the completion queue.
 *
 *   cost PROVIDER POSTED ORDER PEERS [ROUNDS]
 *     POSTED   receives that stand all the time
 *     ORDER    first   each message is for the oldest of them
 *              last    for the youngest
 *              any     as `last`, and every tenth of the others ignores the lower half of the tag
 *     PEERS    endpoints connected to the receiving one, of which the first sends
 *     ROUNDS   messages of each of two passes (200000). If it is given, the sender looks into its queue once after each message,
 *              as a program does that has more to do than send, and looks that find nothing are not timed: so that
 *              valgrind --tool=callgrind --toggle-collect=messages counts instructions of 2 * ROUNDS messages
 *
 * Prints nanoseconds for a message, and for a look into the queue that finds nothing.
 */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_tagged.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"

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
static char out[8] = "message", in[8];

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static void start(struct end *e)
{
	struct fi_cq_attr cq = { .format = FI_CQ_FORMAT_TAGGED, .size = 1024 };
	struct fi_av_attr av = { .type = FI_AV_TABLE };

	CHECK(fi_domain(fabric, info, &e->domain, NULL));
	CHECK(fi_cq_open(e->domain, &cq, &e->cq, NULL));
	CHECK(fi_av_open(e->domain, &av, &e->av, NULL));
	CHECK(fi_endpoint(e->domain, info, &e->ep, NULL));
	CHECK(fi_ep_bind(e->ep, &e->av->fid, 0));
	CHECK(fi_ep_bind(e->ep, &e->cq->fid, FI_TRANSMIT | FI_RECV));
	CHECK(fi_enable(e->ep));
	e->len = sizeof(e->name);
	CHECK(fi_getname(&e->ep->fid, e->name, &e->len));
}

static void post(struct end *e, uint64_t tag, uint64_t ignore)
{
	static struct fi_context context[1 << 17];
	static unsigned n;
	CHECK(fi_trecv(e->ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, tag, ignore, &context[n++ % (1 << 17)]));
}

static void carry(struct end *from, struct end *to, uint64_t tag)
{
	struct fi_cq_tagged_entry entry;
	long rc;

	while ((rc = fi_tinject(from->ep, out, sizeof(out), from->peer, tag)) == -FI_EAGAIN)
		fi_cq_read(to->cq, &entry, 0);
	CHECK(rc);
	while ((rc = fi_cq_read(to->cq, &entry, 1)) == -FI_EAGAIN)
		;
	CHECK(rc);
	if (entry.tag != tag) {
		fprintf(stderr, "a message with tag %lu went to a receive for another\n", (unsigned long)tag);
		exit(1);
	}
}

/* By a name of its own, for --toggle-collect. */
__attribute__((noinline)) static void messages(struct end *from, struct end *to, long rounds, long posted, int first, int looks)
{
	struct fi_cq_tagged_entry entry;

	for (long i = 0; i < rounds; i++) {
		uint64_t tag = first && posted > 1 ? 1000 + 1 + i % (posted - 1) : 7;
		if (!first || posted < 2)
			post(to, tag, 0);
		carry(from, to, tag);
		if (looks)
			fi_cq_read(from->cq, &entry, 1);
		if (first && posted > 1)
			post(to, tag, 0);
	}
}

int main(int argc, char **argv)
{
	if (argc < 5 || argc > 6) {
		fprintf(stderr, "usage: %s PROVIDER POSTED first|last|any PEERS [ROUNDS]\n", argv[0]);
		return 2;
	}
	long posted = atol(argv[2]), peers = atol(argv[4]), rounds = argc > 5 ? atol(argv[5]) : 200000;
	int first = !strcmp(argv[3], "first"), any = !strcmp(argv[3], "any");
	struct fi_info *hints = fi_allocinfo();
	struct end to = { 0 }, *from = calloc(peers, sizeof(*from));
	struct fi_cq_tagged_entry entry;

	hints->caps = FI_TAGGED;
	hints->mode = FI_CONTEXT;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	hints->fabric_attr->prov_name = strdup(argv[1]);
	CHECK(fi_getinfo(FI_VERSION(1, 21), NULL, NULL, 0, hints, &info));
	CHECK(fi_fabric(info->fabric_attr, &fabric, NULL));
	start(&to);
	for (long i = 0; i < peers; i++) {
		start(&from[i]);
		CHECK(fi_av_insert(from[i].av, to.name, 1, &from[i].peer, 0, NULL));
	}
	/* Every peer has said something, the sender last. */
	for (long i = peers; i-- > 0;) {
		post(&to, 1, 0);
		carry(&from[i], &to, 1);
	}
	double begin = now();
	for (long i = 0; argc < 6 && i < rounds; i++)
		fi_cq_read(to.cq, &entry, 1);
	double empty = (now() - begin) / rounds;

	for (long i = 1; i < posted; i++)
		post(&to, 1000 + i, any && i % 10 == 0 ? 0xffffffff00000000 : 0);
	double total = 0;
	for (int pass = 0; pass < 2; pass++) {
		begin = now();
		messages(&from[0], &to, rounds, posted, first, argc > 5);
		total = (now() - begin) / rounds;
	}
	printf("%.1f %.1f\n", total, empty);
	return 0;
}
