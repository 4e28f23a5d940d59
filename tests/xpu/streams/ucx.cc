/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Two processes exchange messages of 128 bytes of device memory by UCX's tagged messages, each behind a kernel that the host waits
 * for: what streams.cc is compared with. UCX takes its transports from UCX_TLS.
 *
 *     ucx ITERATIONS
 *
 * Prints one line, "ok ucx ...", or what was not so. */
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <ucp/api/ucp.h>

#include "hosted.h"

enum { limit_of_request_s = 20 };

/* To the other process. */
static int sock = -1;

struct ucx {
	ucp_context_h context = nullptr;
	ucp_worker_h worker = nullptr;
	ucp_ep_h ep = nullptr;
	ucp_request_param_t param = {};

	static void must(ucs_status_t status, const char *what)
	{
		if (status == UCS_OK)
			return;
		fprintf(stderr, "%s: %s: %s\n", role, what, ucs_status_string(status));
		_exit(1);
	}

	void open()
	{
		ucp_config_t *config = nullptr;
		ucp_params_t params = {};
		ucp_worker_params_t worker_params = {};
		ucp_ep_params_t ep_params = {};
		ucp_address_t *mine = nullptr;
		char theirs[8192];
		size_t length = 0, other = 0;
		params.field_mask = UCP_PARAM_FIELD_FEATURES;
		params.features = UCP_FEATURE_TAG;
		worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
		worker_params.thread_mode = UCS_THREAD_MODE_SINGLE;
		must(ucp_config_read(nullptr, nullptr, &config), "ucp_config_read");
		must(ucp_init(&params, config, &context), "ucp_init");
		ucp_config_release(config);
		must(ucp_worker_create(context, &worker_params, &worker), "ucp_worker_create");
		must(ucp_worker_get_address(worker, &mine, &length), "ucp_worker_get_address");
		CHECK(length <= sizeof theirs);
		CHECK(::send(sock, &length, sizeof length, 0) == sizeof length && recv(sock, &other, sizeof other, MSG_WAITALL) == sizeof other);
		CHECK(other <= sizeof theirs);
		CHECK(::send(sock, mine, length, 0) == (ssize_t)length && recv(sock, theirs, other, MSG_WAITALL) == (ssize_t)other);
		ep_params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
		ep_params.address = (const ucp_address_t *)theirs;
		must(ucp_ep_create(worker, &ep_params, &ep), "ucp_ep_create");
		ucp_worker_release_address(worker, mine);
		/* UCX does not look up what memory it is. */
		param.op_attr_mask = UCP_OP_ATTR_FIELD_MEMORY_TYPE;
		param.memory_type = UCS_MEMORY_TYPE_CUDA;
	}

	void together()
	{
		/* The peer may need progress for what has completed here. */
		char byte = 0;
		const double begin = now();
		CHECK(::send(sock, &byte, 1, 0) == 1);
		while (recv(sock, &byte, 1, MSG_DONTWAIT) != 1) {
			CHECK(now() - begin < limit_s);
			ucp_worker_progress(worker);
		}
	}

	void wait(void *request, const char *what)
	{
		if (!request)
			return;
		CHECK(!UCS_PTR_IS_ERR(request));
		const double begin = now();
		ucs_status_t status;
		while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) {
			if (ucp_worker_progress(worker) == 0 && now() - begin > limit_of_request_s) {
				fprintf(stderr, "%s: a %s has not completed in %d s\n", role, what, limit_of_request_s);
				_exit(1);
			}
		}
		must(status, what);
		ucp_request_free(request);
	}

	void send(void *at, unsigned n) { wait(ucp_tag_send_nbx(ep, at, size, n, &param), "send"); }
	void receive(void *at, unsigned n) { wait(ucp_tag_recv_nbx(worker, at, size, n, (ucp_tag_t)-1, &param), "receive"); }

	void close()
	{
		ucp_request_param_t flush = {};
		wait(ucp_ep_close_nbx(ep, &flush), "close");
		together();
		ucp_worker_destroy(worker);
		ucp_cleanup(context);
	}
};

static void loop(bool leads, uint64_t iterations)
{
	gpu g;
	ucx by;
	g.open();
	by.open();
	const char *transports = getenv("UCX_TLS");
	synchronous(by, g, leads, iterations, (std::string("ucx ") + (transports ? transports : "all")).c_str());
	by.close();
}

int main(int argc, char **argv)
{
	int pair[2], status = 0;
	if (argc != 2)
		return fprintf(stderr, "usage: ucx ITERATIONS\n"), 2;
	signal(SIGPIPE, SIG_IGN);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	const pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0)
		role = "second";
	sock = pair[child == 0];
	::close(pair[child != 0]);
	try {
		loop(child != 0, strtoull(argv[1], nullptr, 10));
	} catch (const std::exception &e) {
		fprintf(stderr, "%s: %s\n", role, e.what());
		fflush(stdout);
		_exit(1);
	}
	if (child != 0)
		CHECK(waitpid(child, &status, 0) == child && status == 0);
	fflush(stdout);
	_exit(0);
}
