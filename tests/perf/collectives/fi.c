/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Collective operations of one group (fi_collective(3)) by size: members that are processes, each bound to a core, or all in
 * one process, for counting instructions. mpi.c does the same by an MPI.
 *
 *   fi PROVIDER MEMBERS SECONDS [OPERATION [BYTES]]
 *   fi PROVIDER MEMBERS count ROUNDS OPERATION BYTES
 *
 * Prints "OPERATION BYTES MICROSECONDS" for each: the median of five stretches, of the slowest member in each. The root of a
 * broadcast is another member each time. HOSTS has names of network namespaces (ip-netns(8)): the first ones of the members are in
 * the first of these, and as many in each. With "count" nothing is printed: under valgrind --tool=callgrind
 * --toggle-collect=measured the instructions of all members of ROUNDS operations are counted.
 */
#define _GNU_SOURCE
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "../check.h"

enum { MOST = 128, NAME = 64, STRETCHES = 5, LONGEST = 1 << 20 };
enum operation { BARRIER, BROADCAST, ALLREDUCE, ALLGATHER, OPERATIONS };

static const char *const names[OPERATIONS] = {"barrier", "broadcast", "allreduce", "allgather"};
static const size_t sizes[] = {8, 64, 512, 4096, 16384, 65536};

struct member {
	int rank;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_ep *ep;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_eq *eq;
	struct fid_av_set *set;
	struct fid_mc *mc;
	fi_addr_t group, *all;
	char *in, *out;
	struct fi_context2 context;
};

static struct shared {
	char names[MOST][NAME];
	volatile int named, at[MOST];
	double spent[MOST];
	long rounds;
} *sh;

static int members;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void open_member(struct member *m, const char *provider, int rank)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_CONTEXT, .wait_obj = FI_WAIT_NONE};
	struct fi_eq_attr eq = {.wait_obj = FI_WAIT_NONE};
	struct fi_av_attr av = {.type = FI_AV_TABLE};
	size_t length = NAME;

	hints->fabric_attr->prov_name = strdup(provider);
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_MSG | FI_COLLECTIVE;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	CHECK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	CHECK(fi_fabric(info->fabric_attr, &m->fabric, NULL));
	CHECK(fi_domain(m->fabric, info, &m->domain, NULL));
	CHECK(fi_av_open(m->domain, &av, &m->av, NULL));
	CHECK(fi_cq_open(m->domain, &cq, &m->cq, NULL));
	CHECK(fi_eq_open(m->fabric, &eq, &m->eq, NULL));
	CHECK(fi_endpoint(m->domain, info, &m->ep, NULL));
	CHECK(fi_ep_bind(m->ep, &m->av->fid, 0));
	CHECK(fi_ep_bind(m->ep, &m->eq->fid, 0));
	CHECK(fi_ep_bind(m->ep, &m->cq->fid, FI_TRANSMIT | FI_RECV));
	CHECK(fi_enable(m->ep));
	CHECK(fi_getname(&m->ep->fid, sh->names[rank], &length));
	m->rank = rank;
	m->all = calloc(members, sizeof *m->all);
	m->in = aligned_alloc(4096, LONGEST);
	m->out = aligned_alloc(4096, (size_t)LONGEST * members);
	memset(m->in, 0, LONGEST);
	memset(m->out, 0, (size_t)LONGEST * members);
	__atomic_add_fetch(&sh->named, 1, __ATOMIC_SEQ_CST);
}

static void begin_join(struct member *m)
{
	struct fi_av_set_attr attr = {.start_addr = 0, .end_addr = members - 1, .stride = 1};
	fi_addr_t addr;

	for (int i = 0; i < members; i++)
		if (fi_av_insert(m->av, sh->names[i], 1, &m->all[i], 0, NULL) != 1)
			exit(1);
	CHECK(fi_av_set(m->av, &attr, &m->set, NULL));
	CHECK(fi_av_set_addr(m->set, &addr));
	CHECK(fi_join_collective(m->ep, addr, m->set, 0, &m->mc, NULL));
}

static int has_joined(struct member *m)
{
	struct fi_eq_entry entry;
	uint32_t event;
	ssize_t n = fi_eq_read(m->eq, &event, &entry, sizeof entry, 0);

	if (n == -FI_EAGAIN)
		return 0;
	CHECK(n);
	m->group = fi_mc_addr(m->mc);
	return 1;
}

static void post(struct member *m, enum operation op, size_t bytes, int root)
{
	size_t n = bytes / sizeof(double);
	ssize_t rc;

	do {
		switch (op) {
		case BARRIER:
			rc = fi_barrier(m->ep, m->group, &m->context);
			break;
		case BROADCAST:
			rc = fi_broadcast(m->ep, m->out, n, NULL, m->group, m->all[root], FI_DOUBLE, 0, &m->context);
			break;
		case ALLREDUCE:
			rc = fi_allreduce(m->ep, m->in, n, NULL, m->out, NULL, m->group, FI_DOUBLE, FI_SUM, 0, &m->context);
			break;
		default:
			rc = fi_allgather(m->ep, m->in, n, NULL, m->out, NULL, m->group, FI_DOUBLE, 0, &m->context);
		}
	} while (rc == -FI_EAGAIN && (fi_cq_read(m->cq, NULL, 0), 1));
	CHECK(rc);
}

static int is_over(struct member *m)
{
	struct fi_cq_entry entry;
	ssize_t n = fi_cq_read(m->cq, &entry, 1);

	if (n == -FI_EAGAIN)
		return 0;
	if (n == -FI_EAVAIL) {
		struct fi_cq_err_entry err = {0};

		fi_cq_readerr(m->cq, &err, 0);
		fprintf(stderr, "an operation failed: %s\n", fi_strerror(err.err));
		exit(1);
	}
	CHECK(n);
	return 1;
}

static void once(struct member *m, enum operation op, size_t bytes, int root)
{
	post(m, op, bytes, root);
	while (!is_over(m))
		;
}

/* So many operations, and the seconds that they took. */
static double stretch(struct member *m, enum operation op, size_t bytes, long rounds)
{
	double start;

	once(m, BARRIER, 0, 0);
	start = now();
	for (long i = 0; i < rounds; i++)
		once(m, op, bytes, (int)(i % members));
	return now() - start;
}

static void measure(struct member *m, enum operation op, size_t bytes, double seconds)
{
	double all[STRETCHES];

	sh->spent[m->rank] = stretch(m, op, bytes, 20);
	once(m, BARRIER, 0, 0);
	if (m->rank == 0) {
		long rounds = (long)(seconds / STRETCHES / (sh->spent[0] / 20));

		sh->rounds = rounds < 5 ? 5 : rounds > 100000 ? 100000 : rounds;
	}
	once(m, BARRIER, 0, 0);
	for (int i = 0; i < STRETCHES; i++) {
		sh->spent[m->rank] = stretch(m, op, bytes, sh->rounds);
		once(m, BARRIER, 0, 0);
		all[i] = 0;
		for (int r = 0; r < members; r++)
			if (sh->spent[r] > all[i])
				all[i] = sh->spent[r];
		once(m, BARRIER, 0, 0);
	}
	if (m->rank)
		return;
	for (int i = 0; i < STRETCHES; i++)
		for (int k = i + 1; k < STRETCHES; k++)
			if (all[k] < all[i]) {
				double swap = all[i];

				all[i] = all[k];
				all[k] = swap;
			}
	printf("%s %zu %.3f\n", names[op], op == BARRIER ? 0 : bytes, all[STRETCHES / 2] / sh->rounds * 1e6);
	fflush(stdout);
}

/* The rank-th core that this program may run on. */
static void bind_to(int rank)
{
	cpu_set_t may, one;
	int cores, at = -1;

	CPU_ZERO(&one);
	if (sched_getaffinity(0, sizeof may, &may))
		return;
	cores = CPU_COUNT(&may);
	for (int left = rank % cores; left >= 0; left--)
		do
			at++;
		while (!CPU_ISSET(at, &may));
	CPU_SET(at, &one);
	sched_setaffinity(0, sizeof one, &one);
}

static void enter_host(int rank)
{
	char *names = getenv("HOSTS") ? strdup(getenv("HOSTS")) : NULL, *all[MOST], path[80];
	int hosts = 0, fd;

	for (char *name = names ? strtok(names, " ") : NULL; name && hosts < MOST; name = strtok(NULL, " "))
		all[hosts++] = name;
	if (!hosts)
		return;
	snprintf(path, sizeof path, "/run/netns/%s", all[rank * hosts / members]);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || setns(fd, CLONE_NEWNET)) {
		perror(path);
		exit(1);
	}
	close(fd);
}

static void run_member(const char *provider, int rank, double seconds, const char *what, size_t only)
{
	static struct member m;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	bind_to(rank);
	enter_host(rank);
	open_member(&m, provider, rank);
	while (sh->named < members)
		sched_yield();
	begin_join(&m);
	while (!has_joined(&m))
		;
	for (int op = 0; op < OPERATIONS; op++) {
		if (what && strcmp(what, names[op]))
			continue;
		for (size_t i = 0; i < (op == BARRIER ? 1 : sizeof sizes / sizeof *sizes); i++)
			if (!only || only == sizes[i])
				measure(&m, op, sizes[i], seconds);
	}
	once(&m, BARRIER, 0, 0);
}

__attribute__((noinline)) void measured(struct member *all, enum operation op, size_t bytes, long rounds)
{
	for (long i = 0; i < rounds; i++) {
		int left = members, over[MOST] = {0};

		for (int r = 0; r < members; r++)
			post(&all[r], op, bytes, (int)(i % members));
		while (left)
			for (int r = 0; r < members; r++)
				if (!over[r] && is_over(&all[r]))
					over[r] = 1, left--;
	}
}

static void count(const char *provider, long rounds, const char *what, size_t bytes)
{
	static struct member all[MOST];
	int left = members, joined[MOST] = {0}, op = 0;

	while (op < OPERATIONS - 1 && strcmp(what, names[op]))
		op++;
	for (int r = 0; r < members; r++)
		open_member(&all[r], provider, r);
	for (int r = 0; r < members; r++)
		begin_join(&all[r]);
	while (left)
		for (int r = 0; r < members; r++)
			if (!joined[r] && has_joined(&all[r]))
				joined[r] = 1, left--;
	for (long i = 0; i < rounds / 10 + 1; i++)
		measured(all, op, bytes, 1);
	measured(all, op, bytes, rounds);
}

int main(int argc, char **argv)
{
	int status, rc = 0;

	if (argc < 4 || (members = atoi(argv[2])) < 1 || members > MOST) {
		fprintf(stderr, "fi PROVIDER MEMBERS SECONDS [OPERATION [BYTES]]\n");
		return 2;
	}
	sh = mmap(NULL, sizeof *sh, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (sh == MAP_FAILED)
		return 1;
	if (!strcmp(argv[3], "count")) {
		if (argc < 7)
			return 2;
		count(argv[1], atol(argv[4]), argv[5], (size_t)atol(argv[6]));
		return 0;
	}
	for (int r = 0; r < members; r++)
		if (!fork()) {
			run_member(argv[1], r, atof(argv[3]), argc > 4 ? argv[4] : NULL, argc > 5 ? (size_t)atol(argv[5]) : 0);
			_exit(0);
		}
	for (int r = 0; r < members; r++)
		if (wait(&status) < 0 || status)
			rc = 1;
	return rc;
}
