/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Endpoints of one process that connect to each other (ci/suite/guest rdma):  peers PROVIDER FROM TO
 *
 * Each of FROM endpoints sends a message of 64 bytes to each of TO endpoints, all at once, and then again to each: FROM times TO
 * connections, all ends in one thread. The contents are checked. NODE is the address of all. Prints for each connection: microseconds of
 * the first messages, and of the second ones; KiB that the host has less to give, of an endpoint and of a connection.
 */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_tagged.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "../perf/check.h"

enum { LEN = 64 };

struct end {
	struct fid_domain *domain;
	struct fid_ep *ep;
	struct fid_cq *cq;
	struct fid_av *av;
	fi_addr_t *peers;
};

struct message {
	struct fi_context2 context;
	unsigned char bytes[LEN];
	int is_posted, is_done;
};

static struct fid_fabric *fabric;
static struct fi_info *info;
static struct end *ends;
static int from, to;
/* Of each connection: what it sends, and what its peer takes. */
static struct message *sent, *taken;

static void look(struct end *e)
{
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error = { 0 };
	long n;

	while ((n = fi_cq_read(e->cq, &entry, 1)) == 1)
		((struct message *)entry.op_context)->is_done = 1;
	if (n == -FI_EAGAIN)
		return;
	fi_cq_readerr(e->cq, &error, 0);
	fprintf(stderr, "peers: %s\n", fi_strerror(error.err ? error.err : (int)-n));
	exit(1);
}

static void progress(void)
{
	for (int i = 0; i < from + to; i++)
		look(&ends[i]);
	sched_yield();
}

static void open_end(struct end *e)
{
	struct fi_cq_attr cq = { .format = FI_CQ_FORMAT_TAGGED, .size = (size_t)from + to };
	struct fi_av_attr av = { .type = FI_AV_TABLE };

	CHECK(fi_domain(fabric, info, &e->domain, NULL));
	CHECK(fi_cq_open(e->domain, &cq, &e->cq, NULL));
	CHECK(fi_endpoint(e->domain, info, &e->ep, NULL));
	CHECK(fi_av_open(e->domain, &av, &e->av, NULL));
	CHECK(fi_ep_bind(e->ep, &e->av->fid, 0));
	CHECK(fi_ep_bind(e->ep, &e->cq->fid, FI_TRANSMIT | FI_RECV));
	CHECK(fi_enable(e->ep));
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static double available(void)
{
	char line[128];
	long kib = 0;
	FILE *file = fopen("/proc/meminfo", "r");

	if (!file)
		exit(1);
	while (fgets(line, sizeof(line), file))
		if (sscanf(line, "MemAvailable: %ld", &kib) == 1)
			break;
	fclose(file);
	return kib;
}

/* A message of each connection; microseconds. */
static double exchange(int round)
{
	double begun;

	for (int i = 0; i < from * to; i++) {
		struct end *e = &ends[from + i % to];

		memset(taken[i].bytes, 0, LEN);
		memset(sent[i].bytes, i * 7 + round, LEN);
		sent[i].is_posted = sent[i].is_done = taken[i].is_done = 0;
		/* The tag has the sender. */
		CHECK(fi_trecv(e->ep, taken[i].bytes, LEN, NULL, FI_ADDR_UNSPEC, i / to, 0, &taken[i]));
	}
	begun = now();
	/* One that finds its peer not connected yet has the others begin. */
	for (int left = from * to; left;) {
		for (int i = 0; i < from * to; i++) {
			struct end *e = &ends[i / to];
			long rc = -FI_EAGAIN;

			if (!sent[i].is_posted)
				rc = fi_tsend(e->ep, sent[i].bytes, LEN, NULL, e->peers[i % to], i / to, &sent[i]);
			if (rc == -FI_EAGAIN)
				continue;
			CHECK(rc);
			sent[i].is_posted = 1;
			left--;
		}
		progress();
	}
	for (int i = 0; i < from * to; i++) {
		while (!sent[i].is_done || !taken[i].is_done)
			progress();
		if (memcmp(sent[i].bytes, taken[i].bytes, LEN)) {
			fprintf(stderr, "peers: wrong contents\n");
			exit(1);
		}
	}
	return (now() - begun) / (from * to);
}

int main(int argc, char **argv)
{
	struct fi_info *hints = fi_allocinfo();
	double before, opened, first, connected;

	from = argc == 4 ? atoi(argv[2]) : 0;
	to = argc == 4 ? atoi(argv[3]) : 0;
	if (from < 1 || to < 1) {
		fprintf(stderr, "usage: %s PROVIDER FROM TO\n", argv[0]);
		return 2;
	}
	hints->caps = FI_TAGGED;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	hints->fabric_attr->prov_name = strdup(argv[1]);
	CHECK(fi_getinfo(FI_VERSION(1, 20), getenv("NODE"), NULL, getenv("NODE") ? FI_SOURCE : 0, hints, &info));
	CHECK(fi_fabric(info->fabric_attr, &fabric, NULL));
	ends = calloc(from + to, sizeof(*ends));
	sent = calloc((size_t)from * to, sizeof(*sent));
	taken = calloc((size_t)from * to, sizeof(*taken));
	if (!ends || !sent || !taken)
		exit(1);
	before = available();
	for (int i = 0; i < from + to; i++)
		open_end(&ends[i]);
	opened = available();
	for (int i = 0; i < from; i++) {
		ends[i].peers = calloc(to, sizeof(fi_addr_t));
		for (int k = 0; k < to; k++) {
			char name[128];
			size_t len = sizeof(name);

			CHECK(fi_getname(&ends[from + k].ep->fid, name, &len));
			CHECK(fi_av_insert(ends[i].av, name, 1, &ends[i].peers[k], 0, NULL) == 1 ? 0 : -FI_EINVAL);
		}
	}
	first = exchange(0);
	connected = available();
	printf("%d x %d: connecting and the first message %.1f, the second message %.1f; an endpoint %.0f KiB, a connection %.1f KiB\n", from, to,
	       first, exchange(1), (before - opened) / (from + to), (opened - connected) / ((double)from * to));
	return 0;
}
