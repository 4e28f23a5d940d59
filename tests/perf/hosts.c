/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Two processes with TCP between them: over libfabric, or a socket with nothing around it, which is the limit.
 *
 *   hosts raw|PROVIDER PATTERN BYTES [ROUNDS]
 *
 * PATTERN is ping (tagged, one way), stream (tagged messages one way, 16 under way), write or read (RMA, 16 under
 * way), or sleep (a stream whose two sides sleep in fi_cq_sread(3) while there is nothing to do).
 *
 *   NAMESPACES=A,B    the network namespaces of the two (ip-netns(8)); else both have this one's
 *   CORES=0,1         the cores of the two; else the first two that are allowed
 *
 * Prints "PATTERN BYTES FIGURE CPU": microseconds one way, or MB/s; seconds of the processors, user's and kernel's, of
 * both sides for a message, or a GB.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { DEEP = 16, TAG = 5 };

/* What both sides send each other at the start. */
struct card {
	char name[64];
	size_t len;
	uint64_t addr, key;
};

static int me, beside, sock = -1, sleeps;
static struct fid_ep *ep;
static struct fid_cq *cq;
static fi_addr_t peer;
static struct card theirs;
static struct fi_info *info;
static void *desc;
static char *out, *in;
static size_t size;
static long done[2];
static struct fi_context2 contexts[2][DEEP];

static void must(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

static void swap(const void *mine, void *other, size_t n)
{
	must(write(beside, mine, n) == (ssize_t)n && recv(beside, other, n, MSG_WAITALL) == (ssize_t)n, "the other side");
}

static void meet(void)
{
	char word = 0;

	swap(&word, &word, 1);
}

/* done[1] counts receives, done[0] all else. */
static void look(void)
{
	struct fi_cq_tagged_entry e;
	long rc = sleeps ? fi_cq_sread(cq, &e, 1, NULL, 100) : fi_cq_read(cq, &e, 1);

	if (rc == 1)
		done[!!(e.flags & FI_RECV)]++;
	else if (rc != -FI_EAGAIN)
		CHECK(rc);
}

static void post_receive(long n)
{
	CHECK(fi_trecv(ep, in, size, desc, FI_ADDR_UNSPEC, TAG, 0, &contexts[1][n % DEEP]));
}

#define UNTIL_TAKEN(call) do { \
	long rc; \
	while ((rc = (call)) == -FI_EAGAIN) \
		look(); \
	CHECK(rc); \
} while (0)

static void fabric_ping(long rounds)
{
	int injects = size <= info->tx_attr->inject_size;

	done[0] = done[1] = 0;
	if (me)
		post_receive(0);
	for (long n = 0; n < rounds; n++) {
		while (me && done[1] <= n)
			look();
		if (injects)
			UNTIL_TAKEN(fi_tinject(ep, out, size, peer, TAG));
		else
			UNTIL_TAKEN(fi_tsend(ep, out, size, desc, peer, TAG, &contexts[0][n % DEEP]));
		if (!me || n + 1 < rounds)
			post_receive(n + 1);
		while (!me && done[1] <= n)
			look();
	}
	while (!injects && done[0] < rounds)
		look();
}

/* A side that is accessed has to make progress until a message comes. */
static void fabric_stream(long rounds, const char *pattern)
{
	int writes = !strcmp(pattern, "write"), reads = !strcmp(pattern, "read");
	long n;

	done[0] = done[1] = 0;
	if (me && (writes || reads)) {
		post_receive(0);
		while (done[1] < 1)
			look();
		return;
	}
	if (me) {
		for (n = 0; n < DEEP && n < rounds; n++)
			post_receive(n);
		while (done[1] < rounds) {
			long had = done[1];

			look();
			if (done[1] > had && n < rounds)
				post_receive(n++);
		}
		return;
	}
	for (n = 0; n < rounds; n++) {
		void *context = &contexts[0][n % DEEP];

		while (n - done[0] >= DEEP)
			look();
		if (writes)
			UNTIL_TAKEN(fi_write(ep, out, size, desc, peer, theirs.addr, theirs.key, context));
		else if (reads)
			UNTIL_TAKEN(fi_read(ep, in, size, desc, peer, theirs.addr + size, theirs.key, context));
		else
			UNTIL_TAKEN(fi_tsend(ep, out, size, desc, peer, TAG, context));
	}
	while (done[0] < rounds)
		look();
	if (writes || reads) {
		UNTIL_TAKEN(fi_tsend(ep, out, 1, desc, peer, TAG, &contexts[0][0]));
		while (done[0] < rounds + 1)
			look();
	}
}

static void start_fabric(const char *provider)
{
	struct fi_info *hints = fi_allocinfo();
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_mr *mr;
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED, .size = 1024,
				      .wait_obj = sleeps ? FI_WAIT_UNSPEC : FI_WAIT_NONE };
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
	struct card own = { .len = sizeof(own.name) };
	char node[] = "10.9.78.1";

	node[8] += me;
	hints->caps = FI_TAGGED | FI_MSG | FI_RMA;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->addr_format = FI_FORMAT_UNSPEC;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->fabric_attr->prov_name = strdup(provider);
	CHECK(fi_getinfo(FI_VERSION(1, 21), getenv("NAMESPACES") ? node : "127.0.0.1", NULL, FI_SOURCE, hints, &info));
	CHECK(fi_fabric(info->fabric_attr, &fabric, NULL));
	CHECK(fi_domain(fabric, info, &domain, NULL));
	CHECK(fi_cq_open(domain, &cq_attr, &cq, NULL));
	CHECK(fi_av_open(domain, &av_attr, &av, NULL));
	CHECK(fi_endpoint(domain, info, &ep, NULL));
	CHECK(fi_ep_bind(ep, &av->fid, 0));
	CHECK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	CHECK(fi_enable(ep));
	CHECK(fi_mr_reg(domain, in, 2 * size, FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE,
			0, 7, 0, &mr, NULL));
	desc = fi_mr_desc(mr);
	own.addr = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)in : 0;
	own.key = fi_mr_key(mr);
	CHECK(fi_getname(&ep->fid, own.name, &own.len));
	swap(&own, &theirs, sizeof(own));
	CHECK(fi_av_insert(av, theirs.name, 1, &peer, 0, NULL));
}

static void start_raw(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET }, other = at;
	socklen_t len = sizeof(at);
	int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);

	at.sin_addr.s_addr = inet_addr(!getenv("NAMESPACES") ? "127.0.0.1" : me ? "10.9.78.2" : "10.9.78.1");
	must(!bind(listener, (void *)&at, sizeof(at)) && !listen(listener, 1), "listen");
	getsockname(listener, (void *)&at, &len);
	swap(&at, &other, sizeof(at));
	if (me) {
		sock = accept(listener, NULL, NULL);
	} else {
		sock = socket(AF_INET, SOCK_STREAM, 0);
		must(!connect(sock, (void *)&other, sizeof(other)), "connect");
	}
	must(sock >= 0 && !setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)), "socket");
}

static void raw_move(int sends)
{
	for (size_t at = 0; at < size;) {
		ssize_t n = sends ? send(sock, out + at, size - at, sleeps ? 0 : MSG_DONTWAIT)
				  : recv(sock, in + at, size - at, sleeps ? 0 : MSG_DONTWAIT);

		must(n > 0 || (n < 0 && errno == EAGAIN), "the connection");
		at += n > 0 ? (size_t)n : 0;
	}
}

static void raw(long rounds, int ping)
{
	for (long n = 0; n < rounds; n++) {
		raw_move(!me);
		if (ping)
			raw_move(me);
	}
}

static void go(const char *pattern, long rounds)
{
	int ping = !strcmp(pattern, "ping");

	if (sock >= 0)
		raw(rounds, ping);
	else if (ping)
		fabric_ping(rounds);
	else
		fabric_stream(rounds, pattern);
	meet();
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static double processor(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* The word of this side in a list of two, or NULL. */
static const char *mine(const char *variable)
{
	const char *all = getenv(variable), *second = all ? strchr(all, ',') : NULL;

	return !second ? NULL : me ? second + 1 : strndup(all, second - all);
}

static void settle(void)
{
	const char *space = mine("NAMESPACES"), *core = mine("CORES");
	cpu_set_t allowed, one;
	char path[256];

	if (space) {
		snprintf(path, sizeof(path), "/run/netns/%s", space);
		must(!setns(open(path, O_RDONLY | O_CLOEXEC), CLONE_NEWNET), path);
	}
	sched_getaffinity(0, sizeof(allowed), &allowed);
	CPU_ZERO(&one);
	for (int cpu = 0, n = 0; cpu < CPU_SETSIZE && !core; cpu++)
		if (CPU_ISSET(cpu, &allowed) && n++ == me)
			CPU_SET(cpu, &one);
	if (core)
		CPU_SET(atoi(core), &one);
	sched_setaffinity(0, sizeof(one), &one);
}

int main(int argc, char **argv)
{
	int pair[2], status = 0;
	double begin, took, used, others;

	if (argc < 4 || (size = strtoul(argv[3], NULL, 0)) < 1) {
		fprintf(stderr, "usage: %s raw|PROVIDER ping|stream|sleep|write|read BYTES [ROUNDS]\n", argv[0]);
		return 2;
	}
	int ping = !strcmp(argv[2], "ping");
	size_t share = ping ? ((size_t)1 << 32) / (size + (1 << 16)) : ((size_t)1 << 30) / size;
	long rounds = argc > 4 ? atol(argv[4]) : (long)(share < 32 ? 32 : share > 100000 ? 100000 : share);

	sleeps = !strcmp(argv[2], "sleep");
	must(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "socketpair");
	pid_t child = fork();
	me = child == 0;
	beside = pair[me];
	close(pair[!me]);
	settle();
	in = aligned_alloc(4096, 2 * ((size + 4095) / 4096 * 4096));
	out = in + size;
	memset(in, 0, size);
	memset(out, 1, size);
	if (strcmp(argv[1], "raw"))
		start_fabric(argv[1]);
	else
		start_raw();
	meet();
	go(argv[2], rounds / 10 + 1);
	used = processor();
	begin = now();
	go(argv[2], rounds);
	took = now() - begin;
	used = processor() - used;
	swap(&used, &others, sizeof(used));
	if ((ping || me == !!strcmp(argv[2], "read")) && (in[0] != 1 || in[size - 1] != 1)) {
		fprintf(stderr, "what came is not what was sent\n");
		return 1;
	}
	if (me)
		_exit(0);
	if (ping)
		printf("%s %zu %.4g %.4g\n", argv[2], size, took / rounds / 2 * 1e6, (used + others) / rounds / 2 * 1e6);
	else
		printf("%s %zu %.4g %.4g\n", argv[2], size, rounds / 1e6 * size / took, (used + others) * 1e9 / rounds / size);
	waitpid(child, &status, 0);
	return status != 0;
}
