/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Tagged ping-pong between two processes over libfabric, with nothing around it: what ucp.c does over UCX.
 *
 *   [PAUSE=64] fi PROVIDER BYTES
 *
 * Prints "lat BYTES MICROSECONDS", one way.  Bytes up to the provider's limit are injected.
 */
#define _GNU_SOURCE
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_tagged.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "pause.h"

enum { ROUNDS = 50000, WARM = 5000, TAG = 5 };

static int me, beside;
static struct fid_ep *ep;
static struct fid_cq *cq;
static fi_addr_t peer;
static char *out, *in;
static size_t size;
static int injects;
static long sent, received;
static struct fi_context contexts[3];

/* Each side's word, so that both are at the same place. */
static void swap(const void *mine, void *theirs, size_t n)
{
	if (write(beside, mine, n) != (ssize_t)n || read(beside, theirs, n) != (ssize_t)n)
		exit(1);
}

static void look(void)
{
	struct fi_cq_msg_entry entry;
	long rc = fi_cq_read(cq, &entry, 1);

	if (rc == 1)
		*(entry.flags & FI_RECV ? &received : &sent) += 1;
	else if (rc != -FI_EAGAIN)
		CHECK(rc);
}

static void post(long n)
{
	CHECK(fi_trecv(ep, in, size, NULL, FI_ADDR_UNSPEC, TAG, 0, &contexts[n % 2]));
}

static void send_one(void)
{
	long rc;

	while ((rc = injects ? fi_tinject(ep, out, size, peer, TAG)
			     : fi_tsend(ep, out, size, NULL, peer, TAG, &contexts[2])) == -FI_EAGAIN)
		look();
	CHECK(rc);
}

/* Receives are posted while the message is under way. */
static void ping_pong(long rounds)
{
	received = sent = 0;
	if (me)
		post(0);
	for (long n = 0; n < rounds; n++) {
		if (me)
			while (received <= n)
				look();
		pause_a_little();
		send_one();
		if (!me || n + 1 < rounds)
			post(n + 1);
		if (!me)
			while (received <= n)
				look();
	}
	while (!injects && sent < rounds)
		look();
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static void start(const char *provider)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_MSG, .size = 1024 };
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
	char name[256] = { 0 }, theirs[256];
	size_t len = sizeof(name);

	hints->caps = FI_TAGGED;
	hints->mode = FI_CONTEXT;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	hints->fabric_attr->prov_name = strdup(provider);
	CHECK(fi_getinfo(FI_VERSION(1, 21), NULL, NULL, 0, hints, &info));
	CHECK(fi_fabric(info->fabric_attr, &fabric, NULL));
	CHECK(fi_domain(fabric, info, &domain, NULL));
	CHECK(fi_cq_open(domain, &cq_attr, &cq, NULL));
	CHECK(fi_av_open(domain, &av_attr, &av, NULL));
	CHECK(fi_endpoint(domain, info, &ep, NULL));
	CHECK(fi_ep_bind(ep, &av->fid, 0));
	CHECK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	CHECK(fi_enable(ep));
	CHECK(fi_getname(&ep->fid, name, &len));
	swap(name, theirs, sizeof(name));
	CHECK(fi_av_insert(av, theirs, 1, &peer, 0, NULL));
	injects = size <= info->tx_attr->inject_size;
}

int main(int argc, char **argv)
{
	int pair[2], status = 0;
	char word = 0;
	cpu_set_t allowed, core;

	if (argc != 3 || (size = strtoul(argv[2], NULL, 0)) < 1 || size > 1 << 20) {
		fprintf(stderr, "usage: %s PROVIDER BYTES (at most 1 Mi)\n", argv[0]);
		return 2;
	}
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		return 1;
	pid_t child = fork();
	me = child == 0;
	beside = pair[me];
	close(pair[!me]);
	sched_getaffinity(0, sizeof(allowed), &allowed);
	CPU_ZERO(&core);
	for (int cpu = 0, n = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &allowed) && n++ == me)
			CPU_SET(cpu, &core);
	sched_setaffinity(0, sizeof(core), &core);
	out = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
	in = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
	memset(out, 1, size);
	memset(in, 0, size);
	start(argv[1]);

	swap(&word, &word, 1);
	ping_pong(WARM);
	swap(&word, &word, 1);
	double begin = now();
	ping_pong(ROUNDS);
	double took = now() - begin;
	if (memcmp(in, out, size)) {
		fprintf(stderr, "what came is not what was sent\n");
		return 1;
	}
	swap(&word, &word, 1);
	if (me)
		_exit(0);
	printf("lat %zu %.4g\n", size, took / ROUNDS / 2);
	waitpid(child, &status, 0);
	return status != 0;
}
