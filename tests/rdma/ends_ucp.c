/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * As ends.c, by UCX: both ends of a connection in one thread, two workers of a context each.
 *
 *   ends_ucp ROUNDS PATTERN BYTES...
 *
 * PATTERN is ping (there and back, tagged), write (ucp_put_nbx and a flush) or count. The transports are those of UCX_TLS. The contents are
 * checked before. Prints for each "PATTERN BYTES BEST MEDIAN": microseconds one way, or of a write; before, what connecting took.
 */
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucp/api/ucp.h>

#include "counted.h"

enum { TAG = 5, MOST = 1 << 20 };

struct end {
	ucp_context_h context;
	ucp_worker_h worker;
	ucp_ep_h ep;
	ucp_mem_h mem;
	/* Of the other one's memory. */
	ucp_rkey_h rkey;
	/* What is sent is the first half, what comes the second one. */
	char *memory;
};

static struct end ends[2];
static size_t bytes;

static void check(ucs_status_t status, const char *what)
{
	if (status != UCS_OK) {
		fprintf(stderr, "ends_ucp: %s: %s\n", what, ucs_status_string(status));
		exit(1);
	}
}

#define CHECK(call) check(call, #call)

static void progress(void)
{
	/* Each before the next look. */
	unsigned did = ucp_worker_progress(ends[0].worker);

	did += ucp_worker_progress(ends[1].worker);
	if (!did)
		sched_yield();
}

static void await(ucs_status_ptr_t request, const char *what)
{
	if (!UCS_PTR_IS_PTR(request))
		return check(UCS_PTR_STATUS(request), what);
	while (ucp_request_check_status(request) == UCS_INPROGRESS)
		progress();
	check(ucp_request_check_status(request), what);
	ucp_request_free(request);
}

static const ucp_request_param_t none;

static ucs_status_ptr_t receive(struct end *e)
{
	return ucp_tag_recv_nbx(e->worker, e->memory + MOST, bytes, TAG, ~(ucp_tag_t)0, &none);
}

static void open_end(struct end *e)
{
	ucp_params_t params = { .field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG | UCP_FEATURE_RMA };
	ucp_worker_params_t single = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE };
	ucp_mem_map_params_t map = { .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH };
	ucp_config_t *config;

	CHECK(ucp_config_read(NULL, NULL, &config));
	CHECK(ucp_init(&params, config, &e->context));
	ucp_config_release(config);
	CHECK(ucp_worker_create(e->context, &single, &e->worker));
	e->memory = aligned_alloc(4096, 2 * MOST);
	if (!e->memory)
		exit(1);
	memset(e->memory, 0, 2 * MOST);
	map.address = e->memory;
	map.length = 2 * MOST;
	CHECK(ucp_mem_map(e->context, &map, &e->mem));
}

static void connect_end(struct end *e, struct end *to)
{
	ucp_ep_params_t params = { .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS };
	ucp_address_t *address;
	size_t len;
	void *key;

	CHECK(ucp_worker_get_address(to->worker, &address, &len));
	params.address = address;
	CHECK(ucp_ep_create(e->worker, &params, &e->ep));
	ucp_worker_release_address(to->worker, address);
	CHECK(ucp_rkey_pack(to->context, to->mem, &key, &len));
	CHECK(ucp_ep_rkey_unpack(e->ep, key, &e->rkey));
	ucp_rkey_buffer_release(key);
}

/* By a name of its own, for --toggle-collect. */
__attribute__((noinline)) static void one_way(struct end *from, struct end *to, ucs_status_ptr_t *came)
{
	ucs_status_ptr_t sent = ucp_tag_send_nbx(from->ep, from->memory, bytes, TAG, &none);

	await(*came, "ucp_tag_recv_nbx");
	/* The next one may be coming before this one's completion. */
	*came = receive(to);
	await(sent, "ucp_tag_send_nbx");
}

/* By names of their own, for --toggle-collect. */
__attribute__((noinline)) static ucs_status_ptr_t counted_receive(struct end *e)
{
	return receive(e);
}

__attribute__((noinline)) static ucs_status_ptr_t counted_send(struct end *e)
{
	return ucp_tag_send_nbx(e->ep, e->memory, bytes, TAG, &none);
}

__attribute__((noinline)) static void counted_look(struct end *e)
{
	ucp_worker_progress(e->worker);
}

static void count(int rounds)
{
	long polls = 0;

	for (int i = -200; i < 2 * rounds; i++) {
		struct end *from = &ends[i & 1], *to = &ends[!(i & 1)];
		ucs_status_ptr_t came, sent;

		if (!i) {
			counted_begin();
			polls = 0;
		}
		came = counted_receive(to);
		sent = counted_send(from);
		do {
			device_works();
			counted_look(to);
			polls++;
		} while (ucp_request_check_status(came) == UCS_INPROGRESS);
		counted_look(from);
		await(came, "ucp_tag_recv_nbx");
		await(sent, "ucp_tag_send_nbx");
	}
	counted_end();
	printf("count %zu %d %ld\n", bytes, 2 * rounds, polls);
	fflush(stdout);
}

static void write_one(struct end *from, struct end *to)
{
	await(ucp_put_nbx(from->ep, from->memory, bytes, (uintptr_t)to->memory + MOST, from->rkey, &none), "ucp_put_nbx");
	await(ucp_ep_flush_nbx(from->ep, &none), "ucp_ep_flush_nbx");
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static int rising(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void pattern(const char *name, int rounds)
{
	int writes = !strcmp(name, "write"), wrong = 0;
	double *took = calloc(rounds + 1, sizeof(*took));
	ucs_status_ptr_t came[2] = { NULL, NULL };

	if (!took)
		exit(1);
	if (bytes >= 1 << 16)
		rounds = rounds / 8 + 1;
	for (int i = 0; i < 2; i++) {
		memset(ends[i].memory + MOST, 0, bytes);
		for (size_t at = 0; at < bytes; at++)
			ends[i].memory[at] = (char)(at * 7 + (at >> 8) * 13 + i + bytes);
		if (!writes)
			came[i] = receive(&ends[i]);
	}
	for (int i = -10; i < rounds; i++) {
		double begun = now();

		if (writes) {
			write_one(&ends[0], &ends[1]);
		} else {
			one_way(&ends[0], &ends[1], &came[1]);
			one_way(&ends[1], &ends[0], &came[0]);
		}
		if (i >= 0)
			took[i] = (now() - begun) / (writes ? 1 : 2);
		wrong |= i < 0 && memcmp(ends[1].memory + MOST, ends[0].memory, bytes);
		wrong |= i < 0 && !writes && memcmp(ends[0].memory + MOST, ends[1].memory, bytes);
	}
	if (wrong) {
		fprintf(stderr, "%s of %zu bytes: wrong contents\n", name, bytes);
		exit(1);
	}
	/* The receives that are left take a message each. */
	for (int i = 0; i < 2 && !writes; i++) {
		ucs_status_ptr_t sent = ucp_tag_send_nbx(ends[i].ep, ends[i].memory, bytes, TAG, &none);

		await(came[!i], "ucp_tag_recv_nbx");
		await(sent, "ucp_tag_send_nbx");
	}
	qsort(took, rounds, sizeof(*took), rising);
	printf("%s %zu %.2f %.2f\n", name, bytes, took[0], took[rounds / 2]);
	fflush(stdout);
	free(took);
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 0;
	double begun;

	if (argc < 4 || argc % 2 || rounds < 1) {
		fprintf(stderr, "usage: %s ROUNDS ping|write|count BYTES...\n", argv[0]);
		return 2;
	}
	for (int i = 0; i < 2; i++)
		open_end(&ends[i]);
	begun = now();
	for (int i = 0; i < 2; i++)
		connect_end(&ends[i], &ends[!i]);
	for (int i = 0; i < 2; i++)
		await(ucp_ep_flush_nbx(ends[i].ep, &none), "ucp_ep_flush_nbx");
	printf("connected in %.0f\n", now() - begun);
	fflush(stdout);
	for (int i = 2; i + 1 < argc; i += 2) {
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
