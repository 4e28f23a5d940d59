/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * One endpoint that sends a message to each of many, and has an answer of each. The many are endpoints of one process, each
 * with queues of its own.
 *
 *   peers PROVIDER MANY
 *
 * Prints "peers MANY SECONDS KIB HOST": until all first answers are there, for which connections are made; and by how much the
 * memory of the one's process (VmRSS) has grown for each peer, and what the host has to give (MemAvailable) become less, by both ends and
 * the kernel, but for what the first of them took. NODE is the address of both (127.0.0.1). SIGTERM ends it with how far it has come.
 */
#define _GNU_SOURCE
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_tagged.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { TAG = 5, NAME = 64 };

struct end {
	struct fid_ep *ep;
	struct fid_cq *cq;
	struct fid_av *av;
	char name[NAME];
};

static struct fi_info *info;
static struct fid_domain *domain;

static void start(const char *provider)
{
	struct fi_info *hints = fi_allocinfo();
	struct fid_fabric *fabric;

	hints->caps = FI_TAGGED;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	/* What verbs;ofi_rxm asks of its callers. */
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->fabric_attr->prov_name = strdup(provider);
	CHECK(fi_getinfo(FI_VERSION(1, 21), getenv("NODE") ? getenv("NODE") : "127.0.0.1", NULL, FI_SOURCE, hints, &info));
	CHECK(fi_fabric(info->fabric_attr, &fabric, NULL));
	CHECK(fi_domain(fabric, info, &domain, NULL));
}

static void open_end(struct end *e)
{
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED, .size = 64 };
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
	size_t len = NAME;

	CHECK(fi_cq_open(domain, &cq_attr, &e->cq, NULL));
	CHECK(fi_av_open(domain, &av_attr, &e->av, NULL));
	CHECK(fi_endpoint(domain, info, &e->ep, NULL));
	CHECK(fi_ep_bind(e->ep, &e->av->fid, 0));
	CHECK(fi_ep_bind(e->ep, &e->cq->fid, FI_TRANSMIT | FI_RECV));
	CHECK(fi_enable(e->ep));
	CHECK(fi_getname(&e->ep->fid, e->name, &len));
}

static int look(struct end *e)
{
	struct fi_cq_tagged_entry entry;
	long rc = fi_cq_read(e->cq, &entry, 1);

	if (rc == -FI_EAGAIN)
		return 0;
	CHECK(rc == 1 ? 0 : rc);
	return !!(entry.flags & FI_RECV);
}

static void inject(struct end *e, fi_addr_t to, const void *what, size_t n)
{
	long rc;

	while ((rc = fi_tinject(e->ep, what, n, to, TAG)) == -FI_EAGAIN)
		if (look(e))
			exit(3);
	CHECK(rc);
}

/* Answers the one, each endpoint once; then goes on until it is killed. */
static void be_many(int many, int pipe)
{
	struct end *all = calloc(many, sizeof(*all));
	struct fi_context2 *contexts = calloc(many, sizeof(*contexts));
	char (*in)[8] = calloc(many, sizeof(*in)), one[NAME];
	int *answered = calloc(many, sizeof(*answered));

	for (int i = 0; i < many; i++) {
		open_end(&all[i]);
		CHECK(fi_trecv(all[i].ep, in[i], 8, NULL, FI_ADDR_UNSPEC, TAG, 0, &contexts[i]));
		if (write(pipe, all[i].name, NAME) != NAME)
			exit(1);
	}
	if (recv(pipe, one, NAME, MSG_WAITALL) != NAME)
		exit(1);
	for (;; sched_yield()) {
		for (int i = 0; i < many; i++) {
			fi_addr_t to;

			if (!look(&all[i]) || answered[i]++)
				continue;
			CHECK(fi_av_insert(all[i].av, one, 1, &to, 0, NULL) == 1 ? 0 : -FI_EINVAL);
			inject(&all[i], to, "pong", 4);
		}
	}
}

static long kib_of(const char *file, const char *format)
{
	char line[256];
	long kib = 0;
	FILE *f = fopen(file, "r");

	while (f && fgets(line, sizeof(line), f))
		sscanf(line, format, &kib);
	if (f)
		fclose(f);
	return kib;
}

static long memory(void)
{
	return kib_of("/proc/self/status", "VmRSS: %ld");
}

static long available(void)
{
	return kib_of("/proc/meminfo", "MemAvailable: %ld");
}

static volatile int opened, sent, got;
static pid_t child;

static void ended(int signal)
{
	(void)signal;
	dprintf(2, "peers: %d are open, %d messages sent, %d answers\n", opened, sent, got);
	kill(child, SIGKILL);
	_exit(4);
}

int main(int argc, char **argv)
{
	int pair[2], many = argc == 3 ? atoi(argv[2]) : 0;
	struct timespec begin, end;
	struct end one;
	char name[NAME];
	long before = 0, host = 0;

	if (many < 2 || socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) {
		fprintf(stderr, "usage: %s PROVIDER MANY\n", argv[0]);
		return 2;
	}
	child = fork();
	if (!child) {
		/* It ends with the one, also by a signal. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(pair[0]);
	}
	start(argv[1]);
	if (!child)
		be_many(many, pair[1]);
	close(pair[1]);
	signal(SIGTERM, ended);
	open_end(&one);
	struct fi_context2 *contexts = calloc(many, sizeof(*contexts));
	fi_addr_t *to = calloc(many, sizeof(*to));
	char (*in)[8] = calloc(many, sizeof(*in));

	memset(contexts, 1, many * sizeof(*contexts));
	for (int i = 0; i < many; i++) {
		if (recv(pair[0], name, NAME, MSG_WAITALL) != NAME)
			return 1;
		CHECK(fi_av_insert(one.av, name, 1, &to[i], 0, NULL) == 1 ? 0 : -FI_EINVAL);
		CHECK(fi_trecv(one.ep, in[i], 8, NULL, FI_ADDR_UNSPEC, TAG, 0, &contexts[i]));
		opened++;
	}
	if (write(pair[0], one.name, NAME) != NAME)
		return 1;
	clock_gettime(CLOCK_MONOTONIC, &begin);
	while (got < many) {
		if (sent < many && (got || !sent)) {
			long rc = fi_tinject(one.ep, "ping", 4, to[sent], TAG);

			if (rc != -FI_EAGAIN) {
				CHECK(rc);
				sent++;
			}
		}
		if (look(&one))
			got++;
		else
			sched_yield();
		if (got == 1 && !before) {
			before = memory();
			host = available();
		}
	}
	clock_gettime(CLOCK_MONOTONIC, &end);
	printf("peers %d %.4g %.4g %.4g\n", many, end.tv_sec - begin.tv_sec + (end.tv_nsec - begin.tv_nsec) / 1e9,
	       (double)(memory() - before) / (many - 1), (double)(host - available()) / (many - 1));
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	return 0;
}
