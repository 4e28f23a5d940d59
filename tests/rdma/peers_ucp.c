/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * As tests/perf/peers.c, by UCX: one worker that sends a message to each of many, which one other process has, and has an answer of each.
 *
 *   peers_ucp MANY
 *
 * The transports are those of UCX_TLS. Prints "peers MANY SECONDS KIB HOST", as that does. SIGTERM ends it with how far it has come.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

enum { TAG = 5, NAME = 1024 };

struct name {
	size_t len;
	char address[NAME];
};

static ucp_context_h context;
static const ucp_request_param_t none;
static volatile int opened, sent, got;
static pid_t child;

static void check(ucs_status_t status, const char *what)
{
	if (status != UCS_OK) {
		fprintf(stderr, "peers_ucp: %s: %s\n", what, ucs_status_string(status));
		exit(1);
	}
}

#define CHECK(call) check(call, #call)

static void start(void)
{
	ucp_params_t params = { .field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG };
	ucp_config_t *config;

	CHECK(ucp_config_read(NULL, NULL, &config));
	CHECK(ucp_init(&params, config, &context));
	ucp_config_release(config);
}

static ucp_worker_h open_worker(struct name *name)
{
	ucp_worker_params_t single = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE };
	ucp_worker_h worker;
	ucp_address_t *address;

	CHECK(ucp_worker_create(context, &single, &worker));
	CHECK(ucp_worker_get_address(worker, &address, &name->len));
	if (name->len > NAME) {
		fprintf(stderr, "peers_ucp: an address of %zu bytes\n", name->len);
		exit(1);
	}
	memcpy(name->address, address, name->len);
	ucp_worker_release_address(worker, address);
	return worker;
}

static ucp_ep_h connect_to(ucp_worker_h worker, const struct name *name)
{
	ucp_ep_params_t params = { .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = (const ucp_address_t *)name->address };
	ucp_ep_h ep;

	CHECK(ucp_ep_create(worker, &params, &ep));
	return ep;
}

/* Whether this receive has its message, which is counted once. */
static int has_come(ucs_status_ptr_t *receive)
{
	ucs_status_t status;

	if (!*receive)
		return 0;
	status = ucp_request_check_status(*receive);
	if (status == UCS_INPROGRESS)
		return 0;
	check(status, "ucp_tag_recv_nbx");
	ucp_request_free(*receive);
	*receive = NULL;
	return 1;
}

static ucs_status_ptr_t receive(ucp_worker_h worker, char *in)
{
	ucs_status_ptr_t request = ucp_tag_recv_nbx(worker, in, 8, TAG, ~(ucp_tag_t)0, &none);

	if (UCS_PTR_IS_ERR(request))
		check(UCS_PTR_STATUS(request), "ucp_tag_recv_nbx");
	return request;
}

static void send_to(ucp_ep_h ep, const char *what)
{
	ucs_status_ptr_t request = ucp_tag_send_nbx(ep, what, 4, TAG, &none);

	if (UCS_PTR_IS_ERR(request))
		check(UCS_PTR_STATUS(request), "ucp_tag_send_nbx");
	/* It ends by itself. */
	if (request)
		ucp_request_free(request);
}

/* Answers the one, each worker once; then goes on until it is killed. */
static void be_many(int many, int pipe)
{
	ucp_worker_h *all = calloc(many, sizeof(*all));
	ucs_status_ptr_t *came = calloc(many, sizeof(*came));
	char (*in)[8] = calloc(many, sizeof(*in));
	struct name name = { 0 }, one;

	start();
	for (int i = 0; i < many; i++) {
		all[i] = open_worker(&name);
		came[i] = receive(all[i], in[i]);
		if (write(pipe, &name, sizeof(name)) != sizeof(name))
			exit(1);
	}
	if (recv(pipe, &one, sizeof(one), MSG_WAITALL) != sizeof(one))
		exit(1);
	for (;; sched_yield()) {
		for (int i = 0; i < many; i++) {
			ucp_worker_progress(all[i]);
			if (has_come(&came[i]))
				send_to(connect_to(all[i], &one), "pong");
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

static void ended(int signal)
{
	(void)signal;
	dprintf(2, "peers_ucp: %d are open, %d messages sent, %d answers\n", opened, sent, got);
	kill(child, SIGKILL);
	_exit(4);
}

int main(int argc, char **argv)
{
	int pair[2], many = argc == 2 ? atoi(argv[1]) : 0;
	struct timespec begin, end;
	struct name mine = { 0 };
	long before = 0, host = 0;

	if (many < 2 || socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) {
		fprintf(stderr, "usage: %s MANY\n", argv[0]);
		return 2;
	}
	child = fork();
	if (!child) {
		/* It ends with the one, also by a signal. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(pair[0]);
		be_many(many, pair[1]);
	}
	close(pair[1]);
	signal(SIGTERM, ended);
	start();
	ucp_worker_h worker = open_worker(&mine);
	struct name *names = calloc(many, sizeof(*names));
	ucs_status_ptr_t *came = calloc(many, sizeof(*came));
	char (*in)[8] = calloc(many, sizeof(*in));

	for (int i = 0; i < many; i++) {
		if (recv(pair[0], &names[i], sizeof(names[i]), MSG_WAITALL) != sizeof(names[i]))
			return 1;
		came[i] = receive(worker, in[i]);
		opened++;
	}
	if (write(pair[0], &mine, sizeof(mine)) != sizeof(mine))
		return 1;
	clock_gettime(CLOCK_MONOTONIC, &begin);
	while (got < many) {
		if (sent < many && (got || !sent)) {
			send_to(connect_to(worker, &names[sent]), "ping");
			sent++;
		}
		if (!ucp_worker_progress(worker))
			sched_yield();
		/* They come in the order of the receives. */
		while (got < many && has_come(&came[got])) {
			if (!got) {
				before = kib_of("/proc/self/status", "VmRSS: %ld");
				host = kib_of("/proc/meminfo", "MemAvailable: %ld");
			}
			got++;
		}
	}
	clock_gettime(CLOCK_MONOTONIC, &end);
	printf("peers %d %.4g %.4g %.4g\n", many, end.tv_sec - begin.tv_sec + (end.tv_nsec - begin.tv_nsec) / 1e9,
	       (double)(kib_of("/proc/self/status", "VmRSS: %ld") - before) / (many - 1),
	       (double)(host - kib_of("/proc/meminfo", "MemAvailable: %ld")) / (many - 1));
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	return 0;
}
