/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Two processes whose streams send to each other through include/strait_stream.h: messages of 128 bytes in batches of 20, with
 * a kernel between that reads what came. CUDA's driver, or its stand-in, is loaded as libcuda.so.1.
 *
 *     streams exchange WAY ITERATIONS     WAY: stream, host (a stream, through host memory), graph (captured), nodes (of a graph),
 *                                         cpu (no CUDA), raw (the driver's own copy to the peer, store and wait, without
 *                                         Strait). Contents are checked after each batch
 *     streams kill KILLS                  a peer is killed while a stream waits for its message: one without a GPU, one whose
 *                                         stream waits, too, in turns
 *     streams replays WAY REPLAYS         100 exchanges of one graph that is replayed (graph), or queued each time (stream)
 *     streams agent WAY ITERATIONS        the same as exchange, carried by an agent: stream, graph, nodes, cpu
 *     streams agent-kill KILLS            a peer is killed that an agent carries to
 *     streams agent-rest                  how often an agent polls while nothing happens, what it refuses, how it ends
 *     streams edges, agent-edges          calls in wrong orders, of wrong lengths, with too few descriptors; ends
 *     streams parts                       messages in parts, which several blocks of a kernel copy
 *     streams puts                        puts with signals, each with the acknowledgement of the one that it answers
 *     streams life                        graphs and contexts that have a list, and end
 *     streams lanes                       streams that share a hardware queue: over the stand-in
 *     streams users                       processes of two users
 *     streams agent-puts                  puts and gets that an agent carries out
 *     streams agent-silent MS             the cable between two hosts is cut while streams wait: streams/hosts.h
 *     streams cut, agent-cut              the driver refuses a launch in the middle of a list: over the stand-in
 *     streams words                       waits for words and counters, and stores: of one process
 *     streams sizes TURNS MOST            messages of 8 B to MOST bytes there and back, by each way in turns, NCCL's (STREAMS_NCCL,
 *                                         or libnccl.so.2) among them: the median of TURNS, contents checked
 *     streams busy TURNS MS BYTES         a kernel that fills the GPU for MS milliseconds: alone, and beside messages of BYTES
 *     streams contract                    what each call promises, and how each wait ends
 *
 * Prints one line, "ok streams ...", or what was not so. */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <vector>

#include <strait_fi_stream.h>
#include <strait_stream.h>

#include "streams/gpu.h"

/* A call that has to fail with that. */
#define REFUSED(code, call)                                                                                              \
	do {                                                                                                             \
		const int rc_ = (call);                                                                                  \
		if (rc_ != -(code)) {                                                                                    \
			fprintf(stderr, "%s: line %d: %s: %d (%s)\n", role, __LINE__, #call, rc_, strait_stream_error()); \
			_exit(1);                                                                                        \
		}                                                                                                        \
		CHECK(strlen(strait_stream_error()) > 10);                                                               \
	} while (0)
#define OK(call)                                                                                                         \
	do {                                                                                                             \
		const int rc_ = (call);                                                                                  \
		if (rc_) {                                                                                               \
			fprintf(stderr, "%s: line %d: %s: %d (%s)\n", role, __LINE__, #call, rc_, strait_stream_error()); \
			_exit(1);                                                                                        \
		}                                                                                                        \
	} while (0)

/* The other process, and a page of both. */
static int sock = -1;
static pid_t other_process;
static volatile uint32_t *shared;

static void together()
{
	char byte = 0;
	CHECK(send(sock, &byte, 1, 0) == 1 && recv(sock, &byte, 1, MSG_WAITALL) == 1);
}

static bool by_agent;
static bool on_hosts();
static void enter_host(bool leads);

static strait_stream *open_endpoint(uint32_t flags = 0, uint64_t timeout_ns = 0, uint32_t slots = 0, uint32_t slot_bytes = 0)
{
	strait_stream_options options = {};
	strait_stream *s = nullptr;
	options.size = sizeof options;
	/* Between hosts an agent carries without that. */
	options.flags = flags | (by_agent && !on_hosts() ? STRAIT_STREAM_BY_AGENT : 0);
	options.key = by_agent ? "a key of both" : nullptr;
	options.timeout_ns = timeout_ns;
	options.slots = slots;
	options.slot_bytes = slot_bytes;
	OK(strait_stream_open(&options, &s));
	return s;
}

static void meet(strait_stream *s)
{
	char mine[16384], theirs[16384];
	size_t length = 0, len = sizeof mine;
	CHECK(strait_stream_blob(s, nullptr, &length) == -ENOSPC && length > 0);
	OK(strait_stream_blob(s, mine, &len));
	CHECK(len == length);
	CHECK(send(sock, &len, sizeof len, 0) == sizeof len && send(sock, mine, len, 0) == (ssize_t)len);
	CHECK(recv(sock, &len, sizeof len, MSG_WAITALL) == sizeof len && len <= sizeof theirs);
	CHECK(recv(sock, theirs, len, MSG_WAITALL) == (ssize_t)len);
	OK(strait_stream_connect(s, theirs, len));
}

static strait_stream_failure failed(strait_stream *s)
{
	strait_stream_failure f = {};
	f.size = sizeof f;
	OK(strait_stream_failed(s, &f));
	return f;
}

static uint32_t path_of(strait_stream *s)
{
	strait_stream_path path = {};
	path.size = sizeof path;
	OK(strait_stream_query(s, &path));
	CHECK(strlen(path.why) > 20);
	return path.path;
}

/* Two processes of one program. */
static void two(const std::function<void(bool)> &body)
{
	int pair[2], status = 0;
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	const pid_t child = fork();
	CHECK(child >= 0);
	other_process = child > 0 ? child : getppid();
	enter_host(child != 0);
	if (child == 0) {
		role = "second";
		close(pair[0]);
		sock = pair[1];
		body(false);
		fflush(stdout);
		_exit(0);
	}
	close(pair[1]);
	sock = pair[0];
	body(true);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* Both loops of a batch, by what does it. */
struct lists {
	strait_stream_list *send[batch] = {}, *receive[batch] = {};

	void open(strait_stream *s, gpu &g)
	{
		for (unsigned n = 0; n < batch; n++) {
			OK(strait_stream_list_open(s, 1, &send[n]));
			OK(strait_stream_list_open(s, 1, &receive[n]));
			OK(strait_stream_list_send(send[n], g.at(g.out, n), size));
			OK(strait_stream_list_receive(receive[n], g.at(g.in, n), size));
		}
	}

	void close()
	{
		for (unsigned n = 0; n < batch; n++) {
			OK(strait_stream_list_close(send[n]));
			OK(strait_stream_list_close(receive[n]));
		}
	}
};

static void *captured(gpu &g, lists &l, bool leads)
{
	void *graph = nullptr, *exec = nullptr;
	cu("cuStreamBeginCapture_v2", g.stream, 2);
	for (unsigned n = 0; n < batch; n++) {
		if (!leads) {
			OK(strait_stream_list_run(l.receive[n], g.stream));
			g.reply(n);
		} else {
			g.make(n);
		}
		OK(strait_stream_list_run(l.send[n], g.stream));
		if (leads)
			OK(strait_stream_list_run(l.receive[n], g.stream));
	}
	cu("cuStreamEndCapture", g.stream, &graph);
	cu("cuGraphInstantiateWithFlags", &exec, graph, 0ull);
	cu("cuGraphDestroy", graph);
	return exec;
}

static void *of_nodes(strait_stream_list *l)
{
	void *graph = nullptr, *exec = nullptr, *last = nullptr;
	cu("cuGraphCreate", &graph, 0u);
	OK(strait_stream_list_add_to_graph(l, graph, nullptr, 0, &last));
	CHECK(last);
	cu("cuGraphInstantiateWithFlags", &exec, graph, 0ull);
	cu("cuGraphDestroy", graph);
	return exec;
}

static void exchange(const std::string &way, bool leads, uint64_t iterations)
{
	gpu g;
	lists l;
	void *graph[2] = {};
	strait_stream_list *sends = nullptr, *receives = nullptr;
	g.open();
	strait_stream *s = open_endpoint(way == "host" ? STRAIT_STREAM_HOST_MEMORY : 0);
	meet(s);
	CHECK(path_of(s) == (by_agent ? STRAIT_STREAM_AGENT : way == "host" ? STRAIT_STREAM_HOST : STRAIT_STREAM_DEVICE));
	if (way == "graph") {
		l.open(s, g);
		graph[0] = captured(g, l, leads);
	} else if (way == "nodes") {
		OK(strait_stream_list_open(s, batch, &sends));
		OK(strait_stream_list_open(s, batch, &receives));
		for (unsigned n = 0; n < batch; n++) {
			OK(strait_stream_list_send(sends, g.at(g.out, n), size));
			OK(strait_stream_list_receive(receives, g.at(g.in, n), size));
		}
		graph[0] = of_nodes(sends);
		graph[1] = of_nodes(receives);
	}
	double begin = 0, spent = 0, spent_by_library = 0;
	/* One batch before the clock starts. */
	for (uint64_t first = 0; first < iterations + batch; first += batch) {
		g.clear();
		together();
		if (first == batch)
			begin = now(), spent = cpu_seconds(), spent_by_library = library_seconds();
		if (way == "graph") {
			cu("cuGraphLaunch", graph[0], g.stream);
		} else if (way == "nodes") {
			for (unsigned n = 0; leads && n < batch; n++)
				g.make(n);
			cu("cuGraphLaunch", graph[leads ? 0 : 1], g.stream);
			for (unsigned n = 0; !leads && n < batch; n++)
				g.reply(n);
			cu("cuGraphLaunch", graph[leads ? 1 : 0], g.stream);
		} else {
			for (unsigned n = 0; n < batch; n++) {
				if (!leads) {
					OK(strait_stream_receive(s, g.stream, g.at(g.in, n), size));
					g.reply(n);
				} else {
					g.make(n);
				}
				OK(strait_stream_send(s, g.stream, g.at(g.out, n), size));
				if (leads)
					OK(strait_stream_receive(s, g.stream, g.at(g.in, n), size));
			}
		}
		g.end_of_stream();
		g.check(first, leads ? 0xffffffff : 0);
	}
	const double took = now() - begin;
	spent = cpu_seconds() - spent, spent_by_library = library_seconds() - spent_by_library;
	CHECK(failed(s).code == 0);
	for (void *exec : graph)
		if (exec)
			cu("cuGraphExecDestroy", exec);
	if (way == "graph") {
		REFUSED(EBUSY, strait_stream_close(s));
		l.close();
	}
	if (way == "nodes") {
		OK(strait_stream_list_close(sends));
		OK(strait_stream_list_close(receives));
	}
	OK(strait_stream_close(s));
	if (leads)
		printf("ok streams %s: %llu iterations, %.2f us and %.2f CPU us an iteration; of it %.2f by the library's threads, %.1f %% of a core\n",
		       way.c_str(), (unsigned long long)iterations, took * 1e6 / iterations, spent * 1e6 / iterations,
		       spent_by_library * 1e6 / iterations, 100 * spent_by_library / took);
}

#include "streams/replays.h"

/* What the driver has for the same loop: a copy into the peer's buffer, a store of a rising number in host memory and a wait
 * for the peer's. Nothing ends a wait whose peer is gone. */
static void exchange_raw(bool leads, uint64_t iterations)
{
	struct handle {
		char bytes[64];
	} mine, theirs;
	gpu g;
	dptr to = 0, words = 0;
	uint64_t queued = 0;
	g.open();
	cu("cuMemHostRegister_v2", (void *)shared, (size_t)4096, 2u);
	cu("cuMemHostGetDevicePointer_v2", &words, (void *)shared, 0u);
	cu("cuIpcGetMemHandle", &mine, g.in);
	CHECK(send(sock, &mine, sizeof mine, 0) == sizeof mine && recv(sock, &theirs, sizeof theirs, MSG_WAITALL) == sizeof theirs);
	cu("cuIpcOpenMemHandle_v2", &to, theirs, 1u);
	const dptr raise = words + (leads ? 1024 : 2048), wait = words + (leads ? 2048 : 1024);
	auto sends = [&](unsigned n) {
		cu("cuMemcpyAsync", to + (dptr)n * size, g.out + (dptr)n * size, (size_t)size, g.stream);
		cu("cuStreamWriteValue64_v2", g.stream, raise, queued + 1, 0u);
	};
	double begin = 0, spent = 0;
	for (uint64_t first = 0; first < iterations + batch; first += batch) {
		g.clear();
		together();
		if (first == batch)
			begin = now(), spent = cpu_seconds();
		for (unsigned n = 0; n < batch; n++, queued++) {
			if (leads) {
				g.make(n);
				sends(n);
			}
			cu("cuStreamWaitValue64_v2", g.stream, wait, queued + 1, 0u);
			if (!leads) {
				g.reply(n);
				sends(n);
			}
		}
		g.end_of_stream();
		g.check(first, leads ? 0xffffffff : 0);
	}
	const double took = now() - begin;
	spent = cpu_seconds() - spent;
	together();
	cu("cuIpcCloseMemHandle", to);
	if (leads)
		printf("ok streams raw: %llu iterations, %.2f us and %.2f CPU us an iteration\n", (unsigned long long)iterations,
		       took * 1e6 / iterations, spent * 1e6 / iterations);
}

/* No CUDA: the calling threads execute the lists. */
static void exchange_by_cpu(bool leads, uint64_t iterations)
{
	static uint32_t out[batch][threads], in[batch][threads];
	strait_stream_list *sends = nullptr, *receives = nullptr;
	strait_stream *s = open_endpoint();
	meet(s);
	CHECK(path_of(s) == (by_agent ? STRAIT_STREAM_AGENT : STRAIT_STREAM_HOST));
	OK(strait_stream_list_open(s, batch, &sends));
	OK(strait_stream_list_open(s, batch, &receives));
	for (unsigned n = 0; n < batch; n++) {
		OK(strait_stream_list_send(sends, out[n], size));
		OK(strait_stream_list_receive(receives, in[n], size));
	}
	const double begin = now();
	for (uint64_t first = 0; first < iterations; first += batch) {
		memset(in, 0xee, sizeof in);
		if (!leads)
			OK(strait_stream_list_run_on_cpu(receives));
		for (unsigned n = 0; n < batch; n++)
			for (unsigned i = 0; i < threads; i++)
				out[n][i] = leads ? (uint32_t)(first + n) * step + i : ~in[n][i];
		OK(strait_stream_list_run_on_cpu(sends));
		if (leads)
			OK(strait_stream_list_run_on_cpu(receives));
		for (unsigned n = 0; n < batch; n++)
			for (unsigned i = 0; i < threads; i++)
				CHECK(in[n][i] == (((uint32_t)(first + n) * step + i) ^ (leads ? 0xffffffff : 0)));
	}
	const double took = now() - begin;
	together();
	OK(strait_stream_list_close(sends));
	OK(strait_stream_list_close(receives));
	OK(strait_stream_close(s));
	if (leads)
		printf("ok streams cpu: %llu iterations, %.2f us an iteration\n", (unsigned long long)iterations,
		       took * 1e6 / iterations);
}

/* The peer of one kill: it is there, and sends nothing but one message; by the CPU alone, or by its GPU, whose stream then waits,
 * too. */
static void victim(int fd, bool with_gpu)
{
	static char out[size];
	strait_stream_list *l = nullptr;
	gpu g;
	role = "victim";
	sock = fd;
	enter_host(false);
	memset(out, 0x55, sizeof out);
	if (with_gpu)
		g.open(1);
	strait_stream *s = open_endpoint();
	meet(s);
	if (with_gpu) {
		cu("cuMemsetD8_v2", g.out, (unsigned char)0x55, (size_t)size);
		cu("cuCtxSynchronize");
		OK(strait_stream_send(s, g.stream, g.at(g.out, 0), size));
		OK(strait_stream_receive(s, g.stream, g.at(g.in, 0), size));
	} else {
		OK(strait_stream_list_open(s, 1, &l));
		OK(strait_stream_list_send(l, out, size));
		OK(strait_stream_list_run_on_cpu(l));
	}
	for (;;)
		pause();
}

static void kills(unsigned count, char *self)
{
	enter_host(true);
	gpu g;
	g.open();
	for (unsigned n = 0; n < count; n++) {
		int pair[2], status = 0;
		char fd[16];
		CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
		snprintf(fd, sizeof fd, "%d", pair[1]);
		const pid_t child = fork();
		if (child == 0) {
			close(pair[0]);
			execl(self, self, by_agent ? "agent-victim" : n % 2 ? "gpu-victim" : "victim", fd, (char *)nullptr);
			_exit(127);
		}
		close(pair[1]);
		sock = pair[0];
		strait_stream *s = open_endpoint();
		meet(s);
		g.clear();
		OK(strait_stream_receive(s, g.stream, g.at(g.in, 0), size));
		g.end_of_stream();
		CHECK(g.words(g.in, size)[0] == 0x55555555);
		/* Three messages that never come, and a kernel and a send behind them. */
		for (unsigned i = 1; i < 4; i++)
			OK(strait_stream_receive(s, g.stream, g.at(g.in, i), size));
		g.reply(1);
		OK(strait_stream_send(s, g.stream, g.at(g.out, 1), size));
		usleep((n * 37) % 2000);
		CHECK(!stream_ended(g.stream));
		REFUSED(EBUSY, strait_stream_close(s));
		CHECK(kill(child, SIGKILL) == 0);
		/* Nothing of the library is called until the stream has passed. */
		g.end_of_stream();
		CHECK(waitpid(child, &status, 0) == child);
		const strait_stream_failure f = failed(s);
		CHECK(f.code == ECONNRESET && f.operation == STRAIT_STREAM_OP_RECEIVE && f.peer == (uint32_t)child);
		CHECK(f.index == 1 && !f.by_peer);
		CHECK(g.untouched(g.in + size, size * 3));
		REFUSED(ECONNRESET, strait_stream_receive(s, g.stream, g.at(g.in, 1), size));
		OK(strait_stream_close(s));
		close(pair[0]);
	}
	printf("ok streams kill: %u kills, every wait passed\n", count);
}

static uint64_t polls_of(strait_stream *s)
{
	strait_stream_path path = {};
	path.size = sizeof path;
	OK(strait_stream_query(s, &path));
	return path.polls;
}

/* Two sides of an agent each. */
static void at_rest(bool leads)
{
	gpu g;
	g.open();
	const char *mode = getenv("FI_STRAIT_XPU_MODE");
	strait_stream *s = open_endpoint();
	strait_stream_path path = {};
	path.size = sizeof path;
	meet(s);
	OK(strait_stream_query(s, &path));
	CHECK(path.path == STRAIT_STREAM_AGENT && strstr(path.why, "the options ask for it"));
	CHECK(!mode || strcmp(mode, "economy") || strstr(path.why, "sleeps 100 microseconds"));

	/* A stream that waits: so long the agent polls at most each 100 microseconds, and wakes within its bound. */
	together();
	if (!leads)
		OK(strait_stream_receive(s, g.stream, g.at(g.in, 0), size));
	const uint64_t before = polls_of(s);
	const double begin = now();
	usleep(500000);
	const double most = (now() - begin) * 10000 + 10;
	const uint64_t polls = polls_of(s) - before;
	CHECK(polls > 10 && (!mode || strcmp(mode, "economy") || (double)polls <= most));
	CHECK(leads || !stream_ended(g.stream));
	together();
	if (leads) {
		g.make(0);
		OK(strait_stream_send(s, g.stream, g.at(g.out, 0), size));
	}
	g.end_of_stream();
	if (!leads)
		CHECK(g.words(g.in, size)[1] == 1);

	/* Longer than all slots; of no bytes; a signal; what there is not. */
	const size_t large = (3 << 20) + 7;
	dptr big = 0;
	cu("cuMemAlloc_v2", &big, large);
	cu("cuMemsetD8_v2", big, (unsigned char)(leads ? 0x5a : 0xee), large);
	strait_stream_transfer t = {};
	t.size = sizeof t;
	t.signal = 5;
	if (leads) {
		OK(strait_stream_send(s, g.stream, (void *)big, large));
		OK(strait_stream_send(s, g.stream, nullptr, 0));
		OK(strait_stream_put(s, g.stream, &t));
		OK(strait_stream_put(s, g.stream, &t));
		t.local = g.at(g.out, 0);
		t.length = size;
		REFUSED(EINVAL, strait_stream_put(s, g.stream, &t));
		t.signal = STRAIT_STREAM_NO_SIGNAL;
		REFUSED(EINVAL, strait_stream_get(s, g.stream, &t));
	} else {
		OK(strait_stream_receive(s, g.stream, (void *)big, large));
		OK(strait_stream_receive(s, g.stream, nullptr, 0));
		for (unsigned n = 0; n < 2; n++) {
			OK(strait_stream_wait(s, g.stream, 5));
			OK(strait_stream_acknowledge(s, g.stream, 5));
		}
	}
	g.end_of_stream();
	for (uint32_t v : g.words(big, large & ~(size_t)3))
		CHECK(v == 0x5a5a5a5a);
	CHECK(failed(s).code == 0);

	/* What was sent before the peer closed arrives, and the wait for more passes. */
	if (leads) {
		OK(strait_stream_send(s, g.stream, g.at(g.out, 0), size));
		g.end_of_stream();
		OK(strait_stream_close(s));
		together();
	} else {
		g.clear();
		together();
		OK(strait_stream_receive(s, g.stream, g.at(g.in, 0), size));
		g.end_of_stream();
		CHECK(failed(s).code == 0 && !g.untouched(g.in, 4));
		OK(strait_stream_receive(s, g.stream, g.at(g.in, 1), size));
		g.end_of_stream();
		CHECK(failed(s).code == EPIPE && g.untouched(g.in + size, size));
		OK(strait_stream_close(s));
	}
	together();

	/* An error of one side is brought to the other; a side alone has no agent. */
	s = open_endpoint();
	meet(s);
	if (leads) {
		OK(strait_stream_receive(s, g.stream, g.at(g.in, 0), size));
		together();
	} else {
		together();
		OK(strait_stream_abort(s));
	}
	g.end_of_stream();
	for (const double begun = now(); failed(s).code == 0; usleep(100))
		CHECK(now() - begun < limit_s);
	CHECK(failed(s).code == ECANCELED && failed(s).by_peer == leads);
	together();
	OK(strait_stream_close(s));
	by_agent = leads;
	s = open_endpoint();
	char mine[16384], theirs[16384];
	size_t length = sizeof mine;
	OK(strait_stream_blob(s, mine, &length));
	CHECK(send(sock, mine, sizeof mine, 0) == sizeof mine && recv(sock, theirs, sizeof theirs, MSG_WAITALL) == sizeof theirs);
	size_t other = length;
	CHECK(send(sock, &length, sizeof length, 0) == sizeof length && recv(sock, &other, sizeof other, MSG_WAITALL) == sizeof other);
	REFUSED(EHOSTUNREACH, strait_stream_connect(s, theirs, other));
	OK(strait_stream_close(s));
	if (leads)
		printf("ok streams agent-rest: %llu polls in half a second\n", (unsigned long long)polls);
}

static void hold_stream(gpu &g, uint64_t *word)
{
	*word = 0;
	cu("cuStreamWaitValue64_v2", g.stream, (dptr)word, (uint64_t)1, 0u);
}

static void contract(bool leads)
{
	gpu g;
	g.open();
	void *host = nullptr;
	cu("cuMemHostAlloc", &host, (size_t)4096, 0u);
	uint64_t *word = (uint64_t *)host;
	strait_stream_list *l = nullptr;

	/* Before there is a peer, and with what cannot be. */
	strait_stream *s = open_endpoint();
	strait_stream_failure unset = {};
	REFUSED(EINVAL, strait_stream_failed(s, &unset));
	uint32_t region = 7;
	dptr window = 0;
	cu("cuMemAlloc_v2", &window, (size_t)(2 * size));
	cu("cuMemsetD8_v2", window, (unsigned char)0xee, (size_t)(2 * size));
	REFUSED(EINVAL, strait_stream_register(s, &region, 4, &region));
	OK(strait_stream_register(s, (void *)window, 2 * size, &region));
	CHECK(region == 0);
	REFUSED(EPERM, strait_stream_send(s, g.stream, g.at(g.out, 0), size));
	REFUSED(EPERM, strait_stream_list_open(s, 1, &l));
	REFUSED(EINVAL, strait_stream_connect(s, "no blob", 8));
	meet(s);
	CHECK(path_of(s) == STRAIT_STREAM_DEVICE);
	REFUSED(EFAULT, strait_stream_send(s, g.stream, &region, 4));

	/* A short list is as it was. */
	OK(strait_stream_list_open(s, 2, &l));
	OK(strait_stream_list_wait(l, 3));
	REFUSED(ENOSPC, strait_stream_list_send(l, g.at(g.out, 0), 100000));
	REFUSED(EINVAL, strait_stream_list_wait(l, 1000));
	OK(strait_stream_list_close(l));

	/* Nothing leaves before the stream runs. */
	uint64_t sends = 9, receives = 9;
	OK(strait_stream_executed(s, &sends, &receives));
	CHECK(sends == 0 && receives == 0);
	together();
	if (leads) {
		hold_stream(g, word);
		g.make(0);
		OK(strait_stream_send(s, g.stream, g.at(g.out, 0), size));
		usleep(100000);
		REFUSED(EBUSY, strait_stream_close(s));
		OK(strait_stream_executed(s, &sends, &receives));
		CHECK(sends == 0 && receives == 0);
		void *other = nullptr;
		cu("cuStreamCreate", &other, 1u);
		REFUSED(EBUSY, strait_stream_send(s, other, g.at(g.out, 0), size));
		/* A child of fork(2) cannot fail its parent's endpoint. */
		int status = 0;
		const pid_t child = fork();
		if (child == 0) {
			REFUSED(ECHILD, strait_stream_abort(s));
			REFUSED(ECHILD, strait_stream_close(s));
			_exit(0);
		}
		CHECK(waitpid(child, &status, 0) == child && status == 0 && failed(s).code == 0);
		*shared = 1;
		__atomic_store_n(word, (uint64_t)1, __ATOMIC_RELEASE);
	} else {
		OK(strait_stream_receive(s, g.stream, g.at(g.in, 0), size));
		g.end_of_stream();
		CHECK(*shared == 1);
		CHECK(g.words(g.in, size)[1] == 1);
	}
	g.end_of_stream();

	OK(strait_stream_executed(s, &sends, &receives));
	CHECK(sends == leads && receives == !leads);

	/* A message longer than the slots of one turn, of host memory and of a device, and one of no bytes. */
	const size_t large = 9 << 20;
	dptr big = 0;
	cu("cuMemAlloc_v2", &big, large);
	cu("cuMemsetD8_v2", big, (unsigned char)(leads ? 0x5a : 0xee), large);
	if (leads) {
		OK(strait_stream_send(s, g.stream, (void *)big, large));
		OK(strait_stream_send(s, g.stream, nullptr, 0));
	} else {
		OK(strait_stream_receive(s, g.stream, (void *)big, large));
		OK(strait_stream_receive(s, g.stream, nullptr, 0));
		g.end_of_stream();
		for (uint32_t v : g.words(big, large))
			CHECK(v == 0x5a5a5a5a);
	}
	g.end_of_stream();

	/* A put with a signal, a kernel that reads it, and a get; a capture that is thrown away changes nothing. */
	strait_stream_transfer t = {};
	t.size = sizeof t;
	t.local = g.at(g.out, 0);
	t.length = size;
	t.signal = 5;
	OK(strait_stream_list_open(s, 4, &l));
	if (leads)
		OK(strait_stream_list_put(l, &t));
	else
		OK(strait_stream_list_wait(l, 5));
	cu("cuStreamBeginCapture_v2", g.stream, 2);
	OK(strait_stream_list_run(l, g.stream));
	REFUSED(EPERM, strait_stream_wait(s, g.stream, 5));
	void *graph = nullptr;
	cu("cuStreamEndCapture", g.stream, &graph);
	cu("cuGraphDestroy", graph);
	for (unsigned turn = 0; turn < 50; turn++) {
		if (leads) {
			strait_stream_transfer back = t;
			back.local = g.at(g.in, 0);
			back.offset = size;
			back.signal = STRAIT_STREAM_NO_SIGNAL;
			g.make(0);
			OK(strait_stream_list_run(l, g.stream));
			OK(strait_stream_wait(s, g.stream, 6));
			OK(strait_stream_get(s, g.stream, &back));
			OK(strait_stream_acknowledge(s, g.stream, 6));
			g.end_of_stream();
			const auto sent = g.words(g.out, size), came = g.words(g.in, size);
			for (unsigned i = 0; i < threads; i++)
				CHECK(came[i] == ~sent[i]);
		} else {
			strait_stream_transfer none = t;
			none.length = 0;
			none.signal = 6;
			OK(strait_stream_list_run(l, g.stream));
			g.launch(g.answer, threads, window + size, window);
			OK(strait_stream_put(s, g.stream, &none));
			OK(strait_stream_acknowledge(s, g.stream, 5));
			g.end_of_stream();
		}
	}
	OK(strait_stream_list_close(l));
	t.offset = 2 * size - 4;
	REFUSED(EINVAL, strait_stream_put(s, g.stream, &t));
	t.region = 9;
	REFUSED(EINVAL, strait_stream_put(s, g.stream, &t));

	/* A graph and calls in turn, against calls alone: one slot. */
	strait_stream *one = open_endpoint(0, 0, 1);
	meet(one);
	g.clear();
	if (leads) {
		cu("cuMemsetD8_v2", g.base, (unsigned char)0, (size_t)8);
		OK(strait_stream_list_open(one, 1, &l));
		OK(strait_stream_list_send(l, g.at(g.out, 0), size));
		void *exec = of_nodes(l);
		for (unsigned n = 0; n < batch; n++) {
			g.make(0);
			if (n % 3 == 1)
				OK(strait_stream_send(one, g.stream, g.at(g.out, 0), size));
			else
				cu("cuGraphLaunch", exec, g.stream);
		}
		g.end_of_stream();
		cu("cuGraphExecDestroy", exec);
		OK(strait_stream_list_close(l));
	} else {
		for (unsigned n = 0; n < batch; n++)
			OK(strait_stream_receive(one, g.stream, g.at(g.in, n), size));
		g.end_of_stream();
		g.check(0, 0);
	}
	together();
	OK(strait_stream_close(one));

	/* A message of another length fails both, and is not moved. */
	g.clear();
	together();
	if (leads)
		OK(strait_stream_send(s, g.stream, g.at(g.out, 0), size / 2));
	else
		OK(strait_stream_receive(s, g.stream, g.at(g.in, 0), size));
	g.end_of_stream();
	for (double begin = now(); failed(s).code == 0; usleep(100))
		CHECK(now() - begin < limit_s);
	CHECK(failed(s).code == EMSGSIZE && failed(s).by_peer == leads && g.untouched(g.in, size));
	REFUSED(EMSGSIZE, strait_stream_send(s, g.stream, g.at(g.out, 0), size));
	together();
	OK(strait_stream_close(s));

	/* A time limit: the side that waits names the operation, the other one says that its peer failed. */
	s = open_endpoint(0, 300000000);
	OK(strait_stream_register(s, (void *)window, 2 * size, &region));
	meet(s);
	/* Many waits for one signal take longer than that together, and each of them less. */
	for (unsigned n = 0; n < 60; n++) {
		if (leads) {
			strait_stream_transfer none = {};
			none.size = sizeof none;
			none.signal = 2;
			usleep(10000);
			OK(strait_stream_put(s, g.stream, &none));
		} else {
			OK(strait_stream_wait(s, g.stream, 2));
			OK(strait_stream_acknowledge(s, g.stream, 2));
		}
	}
	g.end_of_stream();
	CHECK(failed(s).code == 0);
	together();
	if (!leads) {
		const double begin = now();
		OK(strait_stream_receive(s, g.stream, g.at(g.in, 0), size));
		OK(strait_stream_send(s, g.stream, g.at(g.out, 0), size));
		g.end_of_stream();
		CHECK(now() - begin > 0.25 && g.untouched(g.in, size));
		CHECK(failed(s).code == ETIMEDOUT && failed(s).operation == STRAIT_STREAM_OP_RECEIVE && !failed(s).by_peer);
	}
	together();
	if (leads) {
		CHECK(failed(s).code == ETIMEDOUT && failed(s).by_peer == 1);
		REFUSED(ETIMEDOUT, strait_stream_receive(s, g.stream, g.at(g.in, 0), size));
	}
	OK(strait_stream_close(s));

	/* Abort while a stream waits; a graph that is launched later moves nothing and ends. */
	s = open_endpoint();
	meet(s);
	if (!leads) {
		OK(strait_stream_list_open(s, 1, &l));
		OK(strait_stream_list_receive(l, g.at(g.in, 0), size));
		void *exec = of_nodes(l);
		cu("cuGraphLaunch", exec, g.stream);
		usleep(20000);
		CHECK(!stream_ended(g.stream));
		OK(strait_stream_abort(s));
		g.end_of_stream();
		cu("cuGraphLaunch", exec, g.stream);
		g.end_of_stream();
		CHECK(failed(s).code == ECANCELED && g.untouched(g.in, size));
		cu("cuGraphExecDestroy", exec);
		OK(strait_stream_list_close(l));
	}
	together();
	OK(strait_stream_close(s));

	/* What was sent before the peer closed arrives, and the wait for more passes. */
	s = open_endpoint();
	meet(s);
	g.clear();
	if (leads) {
		g.make(0);
		OK(strait_stream_send(s, g.stream, g.at(g.out, 0), size));
		g.end_of_stream();
		OK(strait_stream_close(s));
		together();
	} else {
		together();
		OK(strait_stream_receive(s, g.stream, g.at(g.in, 0), size));
		g.end_of_stream();
		const auto came = g.words(g.in, size);
		CHECK(failed(s).code == 0 && came[1] == came[0] + 1 && came[threads - 1] == came[0] + threads - 1);
		OK(strait_stream_receive(s, g.stream, g.at(g.in, 1), size));
		g.end_of_stream();
		CHECK(failed(s).code == EPIPE && g.untouched(g.in + size, size));
		OK(strait_stream_close(s));
	}
	together();
	if (leads)
		printf("ok streams contract\n");
}

/* Queues what waits, and expects the stream to pass when the word becomes `last`, and with none of `before`. */
template <class T> static void passes_at(gpu &g, T *word, std::initializer_list<T> before, T last)
{
	for (T value : before) {
		__atomic_store_n(word, value, __ATOMIC_SEQ_CST);
		usleep(5000);
		CHECK(!stream_ended(g.stream));
	}
	__atomic_store_n(word, last, __ATOMIC_SEQ_CST);
	g.end_of_stream();
}

static void words()
{
	gpu g;
	g.open();
	void *host = nullptr, *graph = nullptr;
	strait_stream_words *page = nullptr;
	REFUSED(EINVAL, strait_stream_words_open(0, &page, &host));
	REFUSED(EINVAL, strait_stream_words_open(4096, &page, nullptr));
	OK(strait_stream_words_open(100, &page, &host));
	CHECK(*(uint64_t *)host == 0);
	uint32_t *word = (uint32_t *)host;
	uint64_t *counter = (uint64_t *)((char *)host + 64);
	const uint64_t set = 1ULL << 63, failed = 1ULL << 48;

	OK(strait_stream_wait_value32(g.stream, word, 7, STRAIT_STREAM_GEQ));
	passes_at<uint32_t>(g, word, {0, 6, 0x80000007}, 8);
	*word = 8;
	OK(strait_stream_wait_value32(g.stream, word, 7, STRAIT_STREAM_EQ | STRAIT_STREAM_FLUSH));
	passes_at<uint32_t>(g, word, {8, 6}, 7);
	*word = 0;
	OK(strait_stream_wait_value32(g.stream, word, 6, STRAIT_STREAM_AND));
	passes_at<uint32_t>(g, word, {0, 9}, 2);
	*word = 0xf;
	OK(strait_stream_wait_value32(g.stream, word, 0xfffffff0, STRAIT_STREAM_NOR));
	passes_at<uint32_t>(g, word, {0xf, 0xffffffff}, 0xe);

	/* A counter's word: by its value, by a failure that it has counted, by its end. */
	*counter = set;
	OK(strait_stream_wait_counter(g.stream, counter, 5));
	passes_at<uint64_t>(g, counter, {set | 1, set | 4}, set | 6);
	*counter = set;
	OK(strait_stream_wait_counter(g.stream, counter, FI_STRAIT_CNTR_SUCCESS_MAX));
	passes_at<uint64_t>(g, counter, {set | (FI_STRAIT_CNTR_SUCCESS_MAX - 1)}, set | failed);
	*counter = set;
	OK(strait_stream_wait_counter(g.stream, counter, 1));
	passes_at<uint64_t>(g, counter, {}, set | 127 * failed);
	CHECK(fi_strait_cntr_wb_readerr(*counter) == FI_STRAIT_CNTR_FAILURE_MAX);

	/* Stores are behind what precedes, and take their bytes with them. */
	uint32_t from[255];
	for (unsigned i = 0; i < 255; i++)
		from[i] = i * 3 + 1;
	hold_stream(g, counter + 1);
	OK(strait_stream_write_memory(g.stream, g.at(g.out, 0), from, sizeof from));
	OK(strait_stream_raise_counter(g.stream, counter, 77));
	OK(strait_stream_write_value32(g.stream, word, 99));
	memset(from, 0, sizeof from);
	usleep(20000);
	CHECK(*counter != 77 && *word != 99);
	__atomic_store_n(counter + 1, (uint64_t)1, __ATOMIC_SEQ_CST);
	g.end_of_stream();
	CHECK(*counter == 77 && *word == 99);
	const std::vector<uint32_t> copied = g.words(g.out, sizeof from);
	for (unsigned i = 0; i < 255; i++)
		CHECK(copied[i] == i * 3 + 1);

	/* What cannot be. */
	REFUSED(EINVAL, strait_stream_wait_value32(g.stream, word, 1, 4));
	REFUSED(EINVAL, strait_stream_wait_value32(g.stream, nullptr, 1, STRAIT_STREAM_GEQ));
	REFUSED(EINVAL, strait_stream_wait_counter(g.stream, counter, FI_STRAIT_CNTR_SUCCESS_MAX + 1));
	REFUSED(EINVAL, strait_stream_wait_counter(g.stream, word + 1, 1));
	REFUSED(EFAULT, strait_stream_write_value32(g.stream, from, 1));
	for (size_t length : {(size_t)0, (size_t)6, (size_t)1024})
		REFUSED(EINVAL, strait_stream_write_memory(g.stream, word, from, length));
	REFUSED(EINVAL, strait_stream_write_memory(g.stream, word, nullptr, 4));

	/* Values of 32 bits are constants of a graph, and counts are not. */
	void *exec = nullptr;
	cu("cuStreamBeginCapture_v2", g.stream, 2);
	REFUSED(EPERM, strait_stream_wait_counter(g.stream, counter, 1));
	REFUSED(EPERM, strait_stream_raise_counter(g.stream, counter, 1));
	OK(strait_stream_wait_value32(g.stream, word, 1, STRAIT_STREAM_EQ));
	OK(strait_stream_write_value32(g.stream, word, 2));
	cu("cuStreamEndCapture", g.stream, &graph);
	cu("cuGraphInstantiateWithFlags", &exec, graph, 0ull);
	cu("cuGraphDestroy", graph);
	for (unsigned n = 0; n < 10; n++) {
		cu("cuGraphLaunch", exec, g.stream);
		passes_at<uint32_t>(g, word, {2}, 1);
		CHECK(*word == 2);
	}
	cu("cuGraphExecDestroy", exec);
	OK(strait_stream_words_close(page));
	printf("ok streams words\n");
}

#include "streams/edges.h"
#include "streams/life.h"
#include "streams/puts.h"
#include "streams/parts.h"
#include "streams/signals.h"
#include "streams/compared.h"
#include "streams/hosts.h"

int main(int argc, char **argv)
{
	const std::string what = argc > 1 ? argv[1] : "";
	signal(SIGPIPE, SIG_IGN);
	shared = (uint32_t *)mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	try {
		by_agent = what.rfind("agent", 0) == 0;
		if ((what == "victim" || what == "gpu-victim" || what == "agent-victim") && argc == 3)
			victim(atoi(argv[2]), what == "gpu-victim");
		else if ((what == "kill" || what == "agent-kill") && argc == 3)
			kills((unsigned)atoi(argv[2]), argv[0]);
		else if (what == "agent-rest")
			two(at_rest);
		else if (what == "edges" || what == "agent-edges")
			two(edges);
		else if (what == "parts")
			two(parts);
		else if (what == "puts")
			two(signalled_puts);
		else if (what == "life")
			two(life);
		else if (what == "lanes")
			two(lanes);
		else if (what == "users")
			two(users);
		else if (what == "agent-puts")
			two(puts_by_agent);
		else if (what == "agent-silent" && argc == 3)
			two([&](bool leads) { silent(leads, (unsigned)atoi(argv[2])); });
		else if (what == "cut" || what == "agent-cut")
			two(cut);
		else if (what == "sizes" && argc == 4)
			two([&](bool leads) { sizes(leads, (unsigned)atoi(argv[2]), strtoull(argv[3], nullptr, 10)); });
		else if (what == "busy" && argc == 5)
			two([&](bool leads) { busy(leads, (unsigned)atoi(argv[2]), (unsigned)atoi(argv[3]), strtoull(argv[4], nullptr, 10)); });
		else if (what == "replays" && argc == 4)
			two([&](bool leads) { replays(argv[2], leads, strtoull(argv[3], nullptr, 10)); });
		else if (what == "words")
			words();
		else if (what == "contract")
			two(contract);
		else if ((what == "exchange" || what == "agent") && argc == 4)
			two([&](bool leads) {
				const uint64_t iterations = strtoull(argv[3], nullptr, 10);
				const std::string way = argv[2];
				if (way == "cpu")
					exchange_by_cpu(leads, iterations);
				else if (way == "raw")
					exchange_raw(leads, iterations);
				else
					exchange(way, leads, iterations);
			});
		else
			return fprintf(stderr, "usage: streams exchange WAY ITERATIONS, streams kill KILLS, streams replays WAY REPLAYS, streams agent WAY ITERATIONS, streams agent-kill KILLS, streams agent-rest, streams [agent-]edges, streams parts, streams puts, streams life, streams lanes, streams users, streams agent-puts, streams agent-silent MS, streams [agent-]cut, streams words, streams contract, streams sizes TURNS MOST, streams busy TURNS MS BYTES\n"), 2;
	} catch (const std::exception &e) {
		fprintf(stderr, "%s: %s\n", role, e.what());
		fflush(stdout);
		_exit(1);
	}
	fflush(stdout);
	_exit(0);
}
