/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Both ends of a connection in one thread, so that no scheduler has a part in what is timed: for a guest whose clock counts its
 * instructions (ci/suite/guest rdma), and for callgrind.
 *
 *   ends PROVIDER msg|rdm ROUNDS PATTERN BYTES...
 *
 * Each PATTERN is ping (there and back, tagged but for msg), write (fi_write of the other end's memory, until its completion), put
 * (fi_write there and back, each when the bytes of the one before are seen in memory, as in ib_write_lat) or count. NODE is the address of
 * both. The contents are checked before. Prints for each "PATTERN BYTES BEST MEDIAN": microseconds one way, or of a write.
 *
 * count is ping for valgrind --tool=callgrind --toggle-collect='counted_*', which counts what the program's own instructions are: of each
 * message its receive is posted, it is sent, and when the device had time for it, the receiver polls until it has the message, and the
 * sender once. Prints "count BYTES MESSAGES POLLS", those of the receiver. 200 messages before them are not counted: queues of receives
 * grow in these.
 */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "../perf/check.h"
#include "counted.h"

enum { TAG = 5, KEY = 7, SENT = 0, CAME = 1, MOST = 1 << 20 };

struct end {
	struct fi_info *info;
	struct fid_domain *domain;
	struct fid_ep *ep;
	struct fid_cq *cq;
	struct fid_av *av;
	struct fid_mr *mr;
	fi_addr_t peer;
	/* What is sent is the first half, what comes the second one. */
	char *memory;
	void *desc;
	struct fi_context2 contexts[2];
	long done[2];
};

static struct fid_fabric *fabric;
/* Of both. */
static struct fid_eq *eq;
static struct end ends[2];
static size_t bytes;
static int is_msg;

static void open_end(struct end *e, unsigned key)
{
	struct fi_cq_attr cq = { .format = is_msg ? FI_CQ_FORMAT_CONTEXT : FI_CQ_FORMAT_TAGGED, .size = 128 };
	struct fi_av_attr av = { .type = FI_AV_TABLE };

	CHECK(fi_domain(fabric, e->info, &e->domain, NULL));
	CHECK(fi_cq_open(e->domain, &cq, &e->cq, NULL));
	CHECK(fi_endpoint(e->domain, e->info, &e->ep, NULL));
	if (is_msg) {
		CHECK(fi_ep_bind(e->ep, &eq->fid, 0));
	} else {
		CHECK(fi_av_open(e->domain, &av, &e->av, NULL));
		CHECK(fi_ep_bind(e->ep, &e->av->fid, 0));
	}
	CHECK(fi_ep_bind(e->ep, &e->cq->fid, FI_TRANSMIT | FI_RECV));
	CHECK(fi_enable(e->ep));
	e->memory = aligned_alloc(4096, 2 * MOST);
	if (!e->memory)
		exit(1);
	memset(e->memory, 0, 2 * MOST);
	CHECK(fi_mr_reg(e->domain, e->memory, 2 * MOST, FI_SEND | FI_RECV | FI_WRITE | FI_REMOTE_WRITE, 0, key, 0, &e->mr, NULL));
	if (e->info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
		CHECK(fi_mr_bind(e->mr, &e->ep->fid, 0));
		CHECK(fi_mr_enable(e->mr));
	}
	e->desc = e->info->domain_attr->mr_mode & FI_MR_LOCAL ? fi_mr_desc(e->mr) : NULL;
}

/* Takes one completion in, if there is one. */
static int look(struct end *e)
{
	struct fi_cq_tagged_entry entry;
	long rc = fi_cq_read(e->cq, &entry, 1);

	if (rc == -FI_EAVAIL) {
		struct fi_cq_err_entry err = { 0 };

		fi_cq_readerr(e->cq, &err, 0);
		rc = -err.err;
	}
	if (rc == -FI_EAGAIN)
		return 0;
	CHECK(rc);
	e->done[entry.op_context == &e->contexts[CAME]]++;
	return 1;
}

/* The work of the device is the kernel's, which has this processor too. */
static void progress(void)
{
	if (!(look(&ends[0]) | look(&ends[1])))
		sched_yield();
}

static void await(struct end *e, int what)
{
	while (!e->done[what])
		progress();
	e->done[what]--;
}

#define RETRY(call)                                        \
	do {                                               \
		long rc_;                                  \
		while ((rc_ = (call)) == -FI_EAGAIN)       \
			progress();                        \
		CHECK(rc_);                                \
	} while (0)

static void receive(struct end *e)
{
	void *at = e->memory + MOST, *context = &e->contexts[CAME];

	if (is_msg)
		RETRY(fi_recv(e->ep, at, bytes, e->desc, 0, context));
	else
		RETRY(fi_trecv(e->ep, at, bytes, e->desc, e->peer, TAG, 0, context));
}

/* Whether a completion follows: what fits is injected. */
static int send_one(struct end *e)
{
	if (bytes <= 64 && e->info->tx_attr->inject_size >= bytes) {
		if (is_msg)
			RETRY(fi_inject(e->ep, e->memory, bytes, 0));
		else
			RETRY(fi_tinject(e->ep, e->memory, bytes, e->peer, TAG));
		return 0;
	}
	if (is_msg)
		RETRY(fi_send(e->ep, e->memory, bytes, e->desc, 0, &e->contexts[SENT]));
	else
		RETRY(fi_tsend(e->ep, e->memory, bytes, e->desc, e->peer, TAG, &e->contexts[SENT]));
	return 1;
}

static void one_way(struct end *from, struct end *to)
{
	int completes = send_one(from);

	await(to, CAME);
	/* The next one may be coming before this one's completion. */
	receive(to);
	if (completes)
		await(from, SENT);
}

static void write_to(struct end *from, struct end *to)
{
	int is_virtual = to->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR;
	uint64_t at = is_virtual ? (uintptr_t)to->memory + MOST : MOST;

	RETRY(fi_write(from->ep, from->memory, bytes, from->desc, from->peer, at, fi_mr_key(to->mr), &from->contexts[SENT]));
}

static void write_one(struct end *from, struct end *to)
{
	write_to(from, to);
	await(from, SENT);
}

/* The last byte changes with each. */
static void put_one(struct end *from, struct end *to)
{
	volatile char *last = to->memory + MOST + bytes - 1;
	char next = *last + 1;

	from->memory[bytes - 1] = next;
	write_to(from, to);
	while (*last != next)
		progress();
	await(from, SENT);
}

static void await_event(uint32_t event, struct fi_eq_cm_entry *entry)
{
	uint32_t got;
	long rc;

	while ((rc = fi_eq_read(eq, &got, entry, sizeof(*entry) + 64, 0)) == -FI_EAGAIN)
		sched_yield();
	CHECK(rc);
	if (got != event) {
		fprintf(stderr, "event %u for %u\n", got, event);
		exit(1);
	}
}

static void connect_msg(void)
{
	struct fi_eq_attr attr = { .wait_obj = FI_WAIT_NONE };
	struct fid_pep *listener;
	char entry[sizeof(struct fi_eq_cm_entry) + 64] __attribute__((aligned(8))), name[128];
	struct fi_eq_cm_entry *event = (void *)entry;
	size_t len = sizeof(name);

	CHECK(fi_eq_open(fabric, &attr, &eq, NULL));
	CHECK(fi_passive_ep(fabric, ends[0].info, &listener, NULL));
	CHECK(fi_pep_bind(listener, &eq->fid, 0));
	CHECK(fi_listen(listener));
	CHECK(fi_getname(&listener->fid, name, &len));
	open_end(&ends[0], KEY);
	CHECK(fi_connect(ends[0].ep, name, NULL, 0));
	await_event(FI_CONNREQ, event);
	ends[1].info = event->info;
	open_end(&ends[1], KEY + 1);
	CHECK(fi_accept(ends[1].ep, NULL, 0));
	await_event(FI_CONNECTED, event);
	await_event(FI_CONNECTED, event);
}

static void connect_rdm(void)
{
	for (int i = 0; i < 2; i++) {
		ends[i].info = fi_dupinfo(ends[0].info);
		open_end(&ends[i], KEY + i);
	}
	for (int i = 0; i < 2; i++) {
		char name[128];
		size_t len = sizeof(name);

		CHECK(fi_getname(&ends[i].ep->fid, name, &len));
		CHECK(fi_av_insert(ends[!i].av, name, 1, &ends[!i].peer, 0, NULL) == 1 ? 0 : -FI_EINVAL);
	}
}

/* By names of their own, for --toggle-collect. */
__attribute__((noinline)) static void counted_receive(struct end *e)
{
	receive(e);
}

__attribute__((noinline)) static int counted_send(struct end *e)
{
	return send_one(e);
}

__attribute__((noinline)) static int counted_look(struct end *e)
{
	return look(e);
}

/* How often the receiver has polled. */
static long counted_one_way(struct end *from, struct end *to)
{
	long polls = 0;
	int completes;

	counted_receive(to);
	completes = counted_send(from);
	for (; !to->done[CAME]; polls++) {
		device_works();
		counted_look(to);
	}
	to->done[CAME]--;
	counted_look(from);
	if (completes)
		await(from, SENT);
	return polls;
}

static void count(int rounds)
{
	long polls = 0;

	for (int i = -100; i < rounds; i++) {
		if (!i)
			counted_begin();
		for (int end = 0; end < 2; end++) {
			long these = counted_one_way(&ends[end], &ends[!end]);

			polls += i < 0 ? 0 : these;
		}
	}
	counted_end();
	printf("count %zu %d %ld\n", bytes, 2 * rounds, polls);
	fflush(stdout);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

/* By a name of its own, for --toggle-collect. */
__attribute__((noinline)) static void measured(const char *name)
{
	if (!strcmp(name, "write")) {
		write_one(&ends[0], &ends[1]);
	} else if (!strcmp(name, "put")) {
		put_one(&ends[0], &ends[1]);
		put_one(&ends[1], &ends[0]);
	} else {
		one_way(&ends[0], &ends[1]);
		one_way(&ends[1], &ends[0]);
	}
}

static int rising(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void pattern(const char *name, int rounds)
{
	int is_write = !strcmp(name, "write"), writes = is_write || !strcmp(name, "put"), wrong = 0;
	double *took = calloc(rounds, sizeof(*took));

	if (!took)
		exit(1);
	if (bytes >= 1 << 16)
		rounds = rounds / 8 + 1;
	for (int i = 0; i < 2; i++) {
		memset(ends[i].memory + MOST, 0, bytes);
		for (size_t at = 0; at < bytes; at++)
			ends[i].memory[at] = (char)(at * 7 + (at >> 8) * 13 + i + bytes);
		if (!writes)
			receive(&ends[i]);
	}
	for (int i = -10; i < rounds; i++) {
		double begun = now();

		measured(name);
		if (i >= 0)
			took[i] = (now() - begun) / (is_write ? 1 : 2);
		else if (writes)
			wrong |= memcmp(ends[1].memory + MOST, ends[0].memory, bytes);
		else
			wrong |= memcmp(ends[1].memory + MOST, ends[0].memory, bytes) | memcmp(ends[0].memory + MOST, ends[1].memory, bytes);
	}
	if (wrong) {
		fprintf(stderr, "%s of %zu bytes: wrong contents\n", name, bytes);
		exit(1);
	}
	/* The receives that are left take a message each. */
	for (int i = 0; i < 2 && !writes; i++) {
		int completes = send_one(&ends[i]);

		await(&ends[!i], CAME);
		if (completes)
			await(&ends[i], SENT);
	}
	qsort(took, rounds, sizeof(*took), rising);
	printf("%s %zu %.2f %.2f\n", name, bytes, took[0], took[rounds / 2]);
	fflush(stdout);
	free(took);
}

int main(int argc, char **argv)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	int rounds = argc > 3 ? atoi(argv[3]) : 0;

	if (argc < 6 || argc % 2 || rounds < 1) {
		fprintf(stderr, "usage: %s PROVIDER msg|rdm ROUNDS ping|write|put|count BYTES...\n", argv[0]);
		return 2;
	}
	is_msg = !strcmp(argv[2], "msg");
	hints->caps = (is_msg ? FI_MSG : FI_TAGGED) | FI_RMA;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->ep_attr->type = is_msg ? FI_EP_MSG : FI_EP_RDM;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
	hints->fabric_attr->prov_name = strdup(argv[1]);
	CHECK(fi_getinfo(FI_VERSION(1, 20), getenv("NODE"), NULL, getenv("NODE") ? FI_SOURCE : 0, hints, &info));
	CHECK(fi_fabric(info->fabric_attr, &fabric, NULL));
	ends[0].info = info;
	if (is_msg)
		connect_msg();
	else
		connect_rdm();
	for (int i = 4; i + 1 < argc; i += 2) {
		bytes = strtoul(argv[i + 1], NULL, 10);
		if (!bytes || bytes > MOST)
			return 2;
		if (!strcmp(argv[i], "count"))
			count(rounds);
		else
			pattern(argv[i], rounds);
	}
	return 0;
}
