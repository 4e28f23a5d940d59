/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Two processes exchange messages of 128 bytes from their streams: a kernel makes the contents, the stream raises a counter,
 * deferred sends leave, and the stream waits for the message of the peer; beside it the loop that synchronizes. CUDA's
 * driver, or its stand-in, is loaded as libcuda.so.1.
 *
 *     stream async ITERATIONS      both sides' contents are checked after each batch of 20
 *     stream calls ITERATIONS      the same by the calls of include/strait_stream.h; libstrait_xpu.so.0 is loaded
 *     stream sync ITERATIONS
 *     stream kill KILLS            a peer is killed while a stream waits for its message
 *
 * Prints one line, "ok stream ..." with the time and the CPU seconds of an iteration, or what was not so. */
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_trigger.h>

#include <strait_fi_stream.h>

#include "driver.h"

static const char *role = "first";
#define CHECK_FORMAT "%s: "
#define CHECK_ARGS role
#include "must.h"

enum { size = 128, batch = 20, threads = size / 4, limit_s = 60 };

/* Thread i stores first + i in word i. */
static const char kernel_text[] = R"(.version 6.0
.target sm_50
.address_size 64
.visible .entry fill(.param .u64 to, .param .u64 first)
{
	.reg .b32 %r<3>;
	.reg .b64 %d<4>;
	ld.param.u64 %d0, [to];
	ld.param.u64 %d1, [first];
	cvt.u32.u64 %r1, %d1;
	mov.u32 %r0, %tid.x;
	add.u32 %r1, %r1, %r0;
	mov.u32 %r2, 4;
	mul.wide.u32 %d2, %r0, %r2;
	add.u64 %d3, %d0, %d2;
	st.global.u32 [%d3+0], %r1;
	ret;
}
)";

/* One process: a GPU's stream and an endpoint. */
struct side {
	void *stream = nullptr, *fill = nullptr;
	dptr out = 0, in = 0; /* `batch` messages each, in the GPU's memory */
	fi_info *info = nullptr;
	fid_fabric *fabric = nullptr;
	fid_domain *domain = nullptr;
	fid_av *av = nullptr;
	fid_cq *cq = nullptr;
	fid_ep *ep = nullptr;
	fid_cntr *trigger = nullptr, *sent = nullptr, *received = nullptr;
	fi_addr_t peer = FI_ADDR_UNSPEC;
	dptr raise = 0, sent_word = 0, received_word = 0;

	/* The second process has the second GPU, where there is one. */
	void open_gpu(bool leads = true)
	{
		void *ctx = nullptr, *module = nullptr;
		int gpus = 0;
		cu("cuInit", 0u);
		cu("cuDeviceGetCount", &gpus);
		cu("cuDevicePrimaryCtxRetain", &ctx, leads || gpus < 2 ? 0 : 1);
		cu("cuCtxSetCurrent", ctx);
		cu("cuStreamCreate", &stream, 1u);
		cu("cuModuleLoadData", &module, (const char *)kernel_text);
		cu("cuModuleGetFunction", &fill, module, (const char *)"fill");
		cu("cuMemAlloc_v2", &out, (size_t)size * batch);
		cu("cuMemAlloc_v2", &in, (size_t)size * batch);
	}

	static dptr word_of(fid_cntr *cntr, bool mmio)
	{
		fi_strait_ops_cntr *ops = nullptr;
		void *at = nullptr;
		size_t len = 0;
		MUST(fi_open_ops(&cntr->fid, FI_STRAIT_CNTR_OPS, 0, (void **)&ops, nullptr));
		MUST((mmio ? ops->get_mmio_addr : ops->get_wb_addr)(&cntr->fid, &at, &len));
		CHECK(len >= 8);
		return (dptr)at;
	}

	void open_endpoint(bool device = true)
	{
		fi_info *hints = fi_allocinfo();
		fi_av_attr av_attr = {};
		fi_cq_attr cq_attr = {};
		fi_cntr_attr cntr_attr = {};
		av_attr.type = FI_AV_TABLE;
		cq_attr.format = FI_CQ_FORMAT_DATA;
		hints->caps = FI_MSG | FI_TRIGGER | FI_DIRECTED_RECV | (device ? FI_HMEM : 0);
		hints->ep_attr->type = FI_EP_RDM;
		hints->domain_attr->threading = FI_THREAD_SAFE;
		hints->domain_attr->mr_mode = (device ? FI_MR_HMEM : 0) | FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY;
		hints->fabric_attr->prov_name = strdup("strait");
		MUST(fi_getinfo(FI_VERSION(1, 20), nullptr, nullptr, 0, hints, &info));
		MUST(fi_fabric(info->fabric_attr, &fabric, nullptr));
		MUST(fi_domain(fabric, info, &domain, nullptr));
		MUST(fi_av_open(domain, &av_attr, &av, nullptr));
		MUST(fi_cq_open(domain, &cq_attr, &cq, nullptr));
		for (fid_cntr **cntr : {&trigger, &sent, &received})
			MUST(fi_cntr_open(domain, &cntr_attr, cntr, nullptr));
		raise = word_of(trigger, true);
		sent_word = word_of(sent, false);
		received_word = word_of(received, false);
		MUST(fi_endpoint(domain, info, &ep, nullptr));
		MUST(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
		MUST(fi_ep_bind(ep, &received->fid, FI_RECV));
		MUST(fi_ep_bind(ep, &av->fid, 0));
		MUST(fi_enable(ep));
	}

	/* Gives the own name and gets the peer's. */
	void meet(int sock)
	{
		char mine[64] = {}, theirs[64] = {};
		size_t len = sizeof mine;
		MUST(fi_getname(&ep->fid, mine, &len));
		CHECK(send(sock, mine, sizeof mine, 0) == sizeof mine);
		CHECK(recv(sock, theirs, sizeof theirs, MSG_WAITALL) == sizeof theirs);
		CHECK(fi_av_insert(av, theirs, 1, &peer, 0, nullptr) == 1);
	}

	void launch(unsigned slot, uint32_t first)
	{
		uint64_t to = out + (dptr)slot * size, value = first;
		void *args[] = {&to, &value};
		cu("cuLaunchKernel", fill, 1u, 1u, 1u, (unsigned)threads, 1u, 1u, 0u, stream, (void **)args, (void **)nullptr);
	}

	void post_receives()
	{
		/* What is left of an earlier message is not taken for a later one. */
		cu("cuMemsetD8_v2", in, (unsigned char)0xee, (size_t)size * batch);
		for (unsigned n = 0; n < batch; n++)
			MUST(fi_recv(ep, (void *)(in + (dptr)n * size), size, nullptr, peer, (void *)(uintptr_t)(n + 1)));
	}

	void check(uint64_t base, uint32_t (*value)(uint64_t))
	{
		uint32_t words[batch * threads];
		cu("cuMemcpyDtoH_v2", (void *)words, in, sizeof words);
		for (unsigned n = 0; n < batch; n++)
			for (unsigned i = 0; i < threads; i++)
				if (words[n * threads + i] != value(base + n) + i) {
					fprintf(stderr, "%s: message %llu, word %u: %#x\n", role, (unsigned long long)(base + n), i,
						words[n * threads + i]);
					_exit(1);
				}
	}

	/* Waits until the stream is at its end, with calls of the driver alone. */
	void end_of_stream()
	{
		const double begin = now();
		while (!stream_ended(stream)) {
			CHECK(now() - begin < limit_s);
			usleep(50);
		}
	}
};

static uint32_t of_first(uint64_t n) { return (uint32_t)n * 64; }
static uint32_t of_second(uint64_t n) { return 0x80000000u + (uint32_t)n * 64; }

/* Takes one entry, of a receive or a send that asked for one. */
static void one_entry(side &s)
{
	fi_cq_data_entry e = {};
	const double begin = now();
	for (;;) {
		const ssize_t rc = fi_cq_read(s.cq, &e, 1);
		if (rc == 1)
			return;
		CHECK(rc == -FI_EAGAIN);
		CHECK(now() - begin < limit_s);
		sched_yield();
	}
}

static void sync_batch(side &s, bool leads, uint64_t base)
{
	for (unsigned n = 0; n < batch; n++) {
		if (!leads)
			one_entry(s);
		s.launch(n, (leads ? of_first : of_second)(base + n));
		cu("cuStreamSynchronize", s.stream);
		while (fi_send(s.ep, (void *)(s.out + (dptr)n * size), size, nullptr, s.peer, nullptr) == -FI_EAGAIN)
			sched_yield();
		one_entry(s);
		if (leads)
			one_entry(s);
	}
}

/* The work of a batch stays until it has completed. */
struct works {
	iovec iov[batch];
	fi_op_msg msg[batch];
	fi_deferred_work work[batch];
};

/* How a stream waits for a counter and raises one: by the driver's calls, or by those of libstrait_xpu.so. */
static bool by_calls;
static const char *xpu_call(const char *name, void *stream, dptr word, uint64_t value)
{
	static void *library = dlopen("libstrait_xpu.so.0", RTLD_NOW);
	if (!library)
		return dlerror();
	auto call = (int (*)(void *, void *, uint64_t))dlsym(library, name);
	auto error = (const char *(*)())dlsym(library, "strait_stream_error");
	return call(stream, (void *)word, value) == 0 ? nullptr : error();
}

static void wait_counter(void *stream, dptr word, uint64_t value)
{
	if (!by_calls)
		return cu("cuStreamWaitValue64_v2", stream, word, fi_strait_cntr_until(value), 0u);
	const char *why = xpu_call("strait_stream_wait_counter", stream, word, value);
	if (why)
		throw std::runtime_error(why);
}

static void raise_counter(void *stream, dptr word, uint64_t sum)
{
	if (!by_calls)
		return cu("cuStreamWriteValue64_v2", stream, word, sum, 0u);
	const char *why = xpu_call("strait_stream_raise_counter", stream, word, sum);
	if (why)
		throw std::runtime_error(why);
}

static void async_batch(side &s, works &w, bool leads, uint64_t base)
{
	for (unsigned n = 0; n < batch; n++) {
		w.iov[n] = {(void *)(s.out + (dptr)n * size), size};
		w.msg[n] = {};
		w.msg[n].ep = s.ep;
		w.msg[n].msg.msg_iov = &w.iov[n];
		w.msg[n].msg.iov_count = 1;
		w.msg[n].msg.addr = s.peer;
		w.work[n] = {};
		w.work[n].threshold = base + n + 1;
		w.work[n].triggering_cntr = s.trigger;
		w.work[n].completion_cntr = s.sent;
		w.work[n].op_type = FI_OP_SEND;
		w.work[n].op.msg = &w.msg[n];
		MUST(fi_control(&s.domain->fid, FI_QUEUE_WORK, &w.work[n]));
	}
	for (unsigned n = 0; n < batch; n++) {
		const uint64_t count = base + n + 1;
		if (!leads)
			wait_counter(s.stream, s.received_word, count);
		s.launch(n, (leads ? of_first : of_second)(base + n));
		raise_counter(s.stream, s.raise, count);
		if (leads)
			wait_counter(s.stream, s.received_word, count);
	}
	wait_counter(s.stream, s.sent_word, base + batch);
	s.end_of_stream();
	CHECK(fi_cntr_readerr(s.sent) == 0 && fi_cntr_readerr(s.received) == 0);
	CHECK(fi_cntr_read(s.sent) == base + batch);
	fi_cq_data_entry e[batch];
	for (unsigned n = 0; n < batch;) {
		const ssize_t rc = fi_cq_read(s.cq, e, batch - n);
		CHECK(rc > 0 || rc == -FI_EAGAIN);
		n += rc > 0 ? (unsigned)rc : 0;
	}
}

static void loop(int sock, bool leads, bool async, uint64_t iterations)
{
	side s;
	static works w;
	s.open_gpu(leads);
	s.open_endpoint();
	s.meet(sock);
	double begin = 0, spent = 0, spent_by_library = 0;
	/* One batch before the clock starts. */
	for (uint64_t base = 0; base < iterations + batch; base += batch) {
		char byte = 0;
		s.post_receives();
		CHECK(send(sock, &byte, 1, 0) == 1 && recv(sock, &byte, 1, MSG_WAITALL) == 1);
		if (base == batch)
			begin = now(), spent = cpu_seconds(), spent_by_library = library_seconds();
		if (async)
			async_batch(s, w, leads, base);
		else
			sync_batch(s, leads, base);
		s.check(base, leads ? of_second : of_first);
	}
	const double took = now() - begin;
	spent = cpu_seconds() - spent, spent_by_library = library_seconds() - spent_by_library;
	const char *mode = getenv("FI_STRAIT_XPU_MODE");
	if (leads)
		printf("ok stream %s %s: %llu iterations, %.2f us and %.2f CPU us an iteration; of it %.2f by the provider's threads, %.1f %% of a core\n", by_calls ? "calls" : async ? "async" : "sync",
		       async ? (mode ? mode : "auto") : "", (unsigned long long)iterations, took * 1e6 / iterations,
		       spent * 1e6 / iterations, spent_by_library * 1e6 / iterations, 100 * spent_by_library / took);
}

static void run(bool async, uint64_t iterations)
{
	int pair[2], status = 0;
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	const pid_t child = fork();
	if (child == 0) {
		role = "second";
		close(pair[0]);
		loop(pair[1], false, async, iterations);
		fflush(stdout);
		_exit(0);
	}
	close(pair[1]);
	loop(pair[0], true, async, iterations);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* The peer of one kill: it is there, and sends nothing but one message. */
static void victim(int sock)
{
	side s;
	role = "victim";
	s.open_endpoint(false);
	s.meet(sock);
	static char byte;
	while (fi_send(s.ep, &byte, 1, nullptr, s.peer, nullptr) == -FI_EAGAIN)
		sched_yield();
	for (;;) {
		fi_cq_data_entry e;
		(void)!fi_cq_read(s.cq, &e, 1);
		usleep(1000);
	}
}

/* A stream waits for the second message of a peer that is killed after the first. */
static void kills(unsigned count, char *self)
{
	side s;
	s.open_gpu();
	s.open_endpoint();
	for (unsigned n = 0; n < count; n++) {
		int pair[2];
		char fd[16];
		static char byte[2];
		CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
		snprintf(fd, sizeof fd, "%d", pair[1]);
		const pid_t child = fork();
		if (child == 0) {
			close(pair[0]);
			execl(self, self, "victim", fd, (char *)nullptr);
			_exit(127);
		}
		close(pair[1]);
		s.meet(pair[0]);
		const uint64_t before = fi_cntr_read(s.received);
		for (unsigned i = 0; i < 2; i++)
			MUST(fi_recv(s.ep, &byte[i], 1, nullptr, s.peer, (void *)(uintptr_t)(100 * n + i + 1)));
		cu("cuStreamWaitValue64_v2", s.stream, s.received_word, fi_strait_cntr_until(before + 1), 0u);
		s.end_of_stream();
		one_entry(s);
		cu("cuStreamWaitValue64_v2", s.stream, s.received_word, fi_strait_cntr_until(before + 2), 0u);
		usleep((n * 37) % 2000);
		CHECK(!stream_ended(s.stream));
		CHECK(kill(child, SIGKILL) == 0);
		/* Nothing of the provider is called until the stream has passed. */
		s.end_of_stream();
		int status;
		CHECK(waitpid(child, &status, 0) == child);
		CHECK(fi_cntr_readerr(s.received) == 1);
		fi_cq_data_entry e;
		fi_cq_err_entry err = {};
		CHECK(fi_cq_read(s.cq, &e, 1) == -FI_EAVAIL);
		CHECK(fi_cq_readerr(s.cq, &err, 0) == 1);
		CHECK((uintptr_t)err.op_context == 100 * n + 2 && (err.flags & FI_RECV) && err.src_addr == s.peer);
		/* The next peer's waits are no more satisfied. */
		MUST(fi_cntr_seterr(s.received, 0));
		MUST(fi_av_remove(s.av, &s.peer, 1, 0));
		const double begin = now();
		for (uint64_t word = ~0ULL; fi_strait_cntr_wb_readerr(word) != 0;) {
			word = __atomic_load_n((uint64_t *)s.received_word, __ATOMIC_ACQUIRE);
			CHECK(now() - begin < limit_s);
		}
		close(pair[0]);
	}
	printf("ok stream kill: %u kills, every wait passed\n", count);
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "";
	signal(SIGPIPE, SIG_IGN);
	try {
		if (!strcmp(what, "victim"))
			victim(atoi(argv[2]));
		else if (!strcmp(what, "kill"))
			kills((unsigned)atoi(argv[2]), argv[0]);
		else if (!strcmp(what, "async") || !strcmp(what, "calls") || !strcmp(what, "sync"))
			by_calls = !strcmp(what, "calls"), run(by_calls || !strcmp(what, "async"), strtoull(argv[2], nullptr, 10));
		else
			return fprintf(stderr, "usage: stream async|calls|sync ITERATIONS, stream kill KILLS\n"), 2;
	} catch (const std::exception &e) {
		fprintf(stderr, "%s: %s\n", role, e.what());
		fflush(stdout);
		_exit(1);
	}
	fflush(stdout);
	_exit(0);
}
