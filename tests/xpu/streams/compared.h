/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Messages of 8 B to 64 MiB there and back by each way, in turns, NCCL's send and receive among them; and a kernel that fills the
 * GPU beside such messages and alone: part of streams.cc. */

#include <algorithm>

/* Thread i of a block computes as long as said, and stores what comes of it in word i. */
static const char filler_text[] = R"(.version 6.0
.target sm_50
.address_size 64
.visible .entry filler(.param .u64 to, .param .u64 loops)
{
	.reg .pred %p<1>;
	.reg .b32 %r<4>;
	.reg .b64 %d<5>;
	ld.param.u64 %d0, [to];
	ld.param.u64 %d1, [loops];
	mov.u32 %r0, %tid.x;
	mov.u32 %r1, %r0;
	mov.u64 %d2, 0;
NEXT:
	add.u32 %r1, %r1, 77;
	xor.b32 %r1, %r1, %r0;
	add.u32 %r1, %r1, %r0;
	add.u64 %d2, %d2, 1;
	setp.lt.u64 %p0, %d2, %d1;
	@%p0 bra NEXT;
	mov.u32 %r2, 4;
	mul.wide.u32 %d3, %r0, %r2;
	add.u64 %d4, %d0, %d3;
	st.global.u32 [%d4+0], %r1;
	ret;
}
)";

static double median(std::vector<double> of)
{
	std::sort(of.begin(), of.end());
	return of.empty() ? 0 : of[of.size() / 2];
}

/* NCCL, loaded at run time: what is called of it, with the numbers of its public header. */
struct nccl {
	struct unique {
		char bytes[128];
	};
	enum { of_bytes = 0 };
	void *library = nullptr, *comm = nullptr;
	int (*send)(const void *, size_t, int, int, void *, void *) = nullptr;
	int (*receive)(void *, size_t, int, int, void *, void *) = nullptr;

	template <class F> void find(F &f, const char *symbol)
	{
		f = (F)dlsym(library, symbol);
		CHECK(f);
	}

	/* Whether both sides have it, and a GPU each. */
	bool open(bool leads)
	{
		int (*make)(unique *) = nullptr, (*begin)(void **, int, unique, int) = nullptr;
		const char *path = getenv("STREAMS_NCCL");
		library = dlopen(path && *path ? path : "libnccl.so.2", RTLD_NOW);
		if (!library) {
			if (leads)
				printf("-  NCCL: %s\n", dlerror());
			return false;
		}
		find(make, "ncclGetUniqueId");
		find(begin, "ncclCommInitRank");
		find(send, "ncclSend");
		find(receive, "ncclRecv");
		unique name = {};
		if (leads) {
			MUST(make(&name));
			CHECK(::send(sock, &name, sizeof name, 0) == sizeof name);
		} else {
			CHECK(recv(sock, &name, sizeof name, MSG_WAITALL) == sizeof name);
		}
		const int code = begin(&comm, 2, name, leads ? 0 : 1);
		if (code && leads)
			printf("-  NCCL: ncclCommInitRank: %d\n", code);
		return code == 0;
	}
};

/* A kernel of blocks of some 50 us that fills the GPU for so many milliseconds, on both sides. */
struct filler {
	void *stream = nullptr, *kernel = nullptr, *events[2] = {};
	dptr result = 0;
	unsigned threads_of_block = 32, blocks = 1;
	uint64_t loops = 4;
	bool timed = true;

	void launch()
	{
		void *args[] = {&result, &loops};
		for (void *event : events) {
			if (event == events[1])
				cu("cuLaunchKernel", kernel, blocks, 1u, 1u, threads_of_block, 1u, 1u, 0u, stream, (void **)args, (void **)nullptr);
			cu("cuEventRecord", event, stream);
		}
	}

	/* Some 3 ms of a stream by one block (H200), and the first event behind it. */
	void hold(void *of)
	{
		uint64_t longer = timed ? 250000 : 4;
		void *args[] = {&result, &longer};
		cu("cuLaunchKernel", kernel, 1u, 1u, 1u, 32u, 1u, 1u, 0u, of, (void **)args, (void **)nullptr);
		cu("cuEventRecord", events[0], of);
	}

	/* Of the last launch, which has ended; `waited` where the driver times nothing. */
	double milliseconds(double waited)
	{
		float ms = 0;
		if (!timed)
			return waited * 1e3;
		cu("cuEventElapsedTime", &ms, events[0], events[1]);
		return ms;
	}

	double alone()
	{
		const double begin = now();
		launch();
		while (!stream_ended(stream))
			CHECK(now() - begin < limit_s);
		return milliseconds(now() - begin);
	}

	void open(unsigned ms)
	{
		int device = 0, units = 0, threads = 0;
		void *module = nullptr;
		cu("cuCtxGetDevice", &device);
		cu("cuDeviceGetAttribute", &units, 16, device);
		cu("cuDeviceGetAttribute", &threads, 39, device);
		cu("cuModuleLoadData", &module, (const char *)filler_text);
		cu("cuModuleGetFunction", &kernel, module, (const char *)"filler");
		cu("cuStreamCreate", &stream, 1u);
		for (void *&event : events)
			cu("cuEventCreate", &event, 0u);
		cu("cuMemAlloc_v2", &result, (size_t)4096);
		timed = dlsym(RTLD_DEFAULT, "cuEventElapsedTime");
		if (threads >= 1024)
			threads_of_block = 512;
		blocks = (unsigned)(units * std::max(1, threads / 512));
		if (!ms)
			return;
		loops = 1000;
		for (unsigned n = 0; n < 3; n++)
			loops = std::max((uint64_t)1, (uint64_t)(loops * 0.05 / alone()));
		blocks *= std::max(1u, (unsigned)(ms / alone()));
	}
};

/* Two processes, and each way between them. The second sends back what has come. */
struct compared {
	struct way {
		const char *name;
		/* Queues so many messages there and back. */
		std::function<void(size_t length, unsigned count)> queue;
	};

	gpu g;
	bool leads = false;
	size_t most = 0;
	dptr out = 0, in = 0; /* `most` bytes each */
	dptr theirs = 0, words = 0;
	uint64_t raised = 0;
	strait_stream *calls = nullptr, *wide = nullptr, *lists = nullptr, *puts = nullptr, *listed = nullptr;
	/* Of puts in lists: the first one, one that answers another, the last wait. */
	strait_stream_list *put = nullptr, *answer = nullptr, *last = nullptr;
	size_t put_of = SIZE_MAX;
	/* Of the graph: lists of one length, and how many times a graph has each. */
	strait_stream_list *sends = nullptr, *receives = nullptr;
	void *graph = nullptr;
	unsigned replayed = 1;
	nccl n;
	filler held;
	std::vector<way> ways;

	/* A stream that goes before others, where the driver has such. */
	void first_stream()
	{
		int last = 0, first = 0;
		try {
			cu("cuCtxGetStreamPriorityRange", &last, &first);
			cu("cuStreamCreateWithPriority", &g.stream, 1u, first);
		} catch (const std::exception &) {
			cu("cuStreamCreate", &g.stream, 1u);
		}
	}

	void open(bool is_first, size_t bytes)
	{
		struct handle {
			char bytes[64];
		} mine, other;
		leads = is_first;
		most = bytes;
		g.open();
		first_stream();
		held.open(0);
		cu("cuMemAlloc_v2", &out, most);
		cu("cuMemAlloc_v2", &in, most);
		cu("cuMemHostRegister_v2", (void *)shared, (size_t)4096, 2u);
		cu("cuMemHostGetDevicePointer_v2", &words, (void *)shared, 0u);
		cu("cuIpcGetMemHandle", &mine, in);
		CHECK(send(sock, &mine, sizeof mine, 0) == sizeof mine && recv(sock, &other, sizeof other, MSG_WAITALL) == sizeof other);
		cu("cuIpcOpenMemHandle_v2", &theirs, other, 1u);
		ways.push_back({"driver", [this](size_t length, unsigned count) { by_driver(length, count); }});

		calls = open_endpoint();
		meet(calls);
		ways.push_back({"calls", [this](size_t length, unsigned count) { by_calls(calls, length, count); }});

		wide = open_endpoint(0, 0, 0, 1 << 20);
		meet(wide);
		ways.push_back({"1 MiB slots", [this](size_t length, unsigned count) { by_calls(wide, length, count); }});

		lists = open_endpoint();
		meet(lists);
		ways.push_back({"graph", [this](size_t, unsigned count) {
					for (unsigned i = 0; i < count; i += replayed)
						cu("cuGraphLaunch", graph, g.stream);
				}});

		uint32_t region = 9;
		puts = open_endpoint();
		OK(strait_stream_register(puts, (void *)in, most, &region));
		CHECK(region == 0);
		meet(puts);
		ways.push_back({"puts", [this](size_t length, unsigned count) { by_puts(length, count); }});

		listed = open_endpoint();
		OK(strait_stream_register(listed, (void *)in, most, &region));
		meet(listed);
		ways.push_back({"puts in lists", [this](size_t length, unsigned count) { by_lists_of_puts(length, count); }});

		if (n.open(leads))
			ways.push_back({"NCCL", [this](size_t length, unsigned count) { by_nccl(length, count); }});
	}

	void by_driver(size_t length, unsigned count)
	{
		const dptr raise = words + (leads ? 1024 : 2048), wait = words + (leads ? 2048 : 1024);
		for (unsigned i = 0; i < count; i++) {
			raised++;
			if (!leads)
				cu("cuStreamWaitValue64_v2", g.stream, wait, raised, 0u);
			cu("cuMemcpyAsync", theirs, leads ? out : in, length, g.stream);
			cu("cuStreamWriteValue64_v2", g.stream, raise, raised, 0u);
			if (leads)
				cu("cuStreamWaitValue64_v2", g.stream, wait, raised, 0u);
		}
	}

	void by_calls(strait_stream *s, size_t length, unsigned count)
	{
		for (unsigned i = 0; i < count; i++) {
			if (leads)
				OK(strait_stream_send(s, g.stream, (void *)out, length));
			OK(strait_stream_receive(s, g.stream, (void *)in, length));
			if (!leads)
				OK(strait_stream_send(s, g.stream, (void *)in, length));
		}
	}

	void by_puts(size_t length, unsigned count)
	{
		strait_stream_transfer t = {};
		t.size = sizeof t;
		t.local = (void *)(leads ? out : in);
		t.length = length;
		if (leads)
			OK(strait_stream_put(puts, g.stream, &t));
		for (unsigned i = 0; i < count; i++) {
			OK(strait_stream_wait(puts, g.stream, 0));
			if (leads && i + 1 == count)
				OK(strait_stream_acknowledge(puts, g.stream, 0));
			else
				OK(strait_stream_acknowledge_and_put(puts, g.stream, 0, &t));
		}
	}

	void by_lists_of_puts(size_t length, unsigned count)
	{
		if (put_of != length) {
			strait_stream_transfer t = {};
			t.size = sizeof t;
			t.local = (void *)(leads ? out : in);
			t.length = put_of = length;
			close_puts();
			OK(strait_stream_list_open(listed, 1, &put));
			OK(strait_stream_list_put(put, &t));
			OK(strait_stream_list_open(listed, 3, &answer));
			OK(strait_stream_list_wait(answer, 0));
			OK(strait_stream_list_acknowledge(answer, 0));
			OK(strait_stream_list_put(answer, &t));
			OK(strait_stream_list_open(listed, 2, &last));
			OK(strait_stream_list_wait(last, 0));
			OK(strait_stream_list_acknowledge(last, 0));
		}
		for (unsigned i = 0; i < count; i++)
			OK(strait_stream_list_run(leads && i == 0 ? put : answer, g.stream));
		if (leads)
			OK(strait_stream_list_run(last, g.stream));
	}

	void close_puts()
	{
		for (strait_stream_list *l : {put, answer, last})
			OK(strait_stream_list_close(l));
		put = answer = last = nullptr;
	}

	void by_nccl(size_t length, unsigned count)
	{
		const int peer = leads ? 1 : 0;
		for (unsigned i = 0; i < count; i++) {
			if (leads)
				MUST(n.send((void *)out, length, n.of_bytes, peer, n.comm, g.stream));
			MUST(n.receive((void *)in, length, n.of_bytes, peer, n.comm, g.stream));
			if (!leads)
				MUST(n.send((void *)in, length, n.of_bytes, peer, n.comm, g.stream));
		}
	}

	/* The graph of one length. */
	void capture(size_t length, unsigned count)
	{
		void *made = nullptr;
		replayed = count;
		OK(strait_stream_list_open(lists, length / 65536 + 1, &sends));
		OK(strait_stream_list_open(lists, length / 65536 + 1, &receives));
		OK(strait_stream_list_send(sends, (void *)(leads ? out : in), length));
		OK(strait_stream_list_receive(receives, (void *)in, length));
		cu("cuStreamBeginCapture_v2", g.stream, 2);
		for (unsigned i = 0; i < count; i++) {
			OK(strait_stream_list_run(leads ? sends : receives, g.stream));
			OK(strait_stream_list_run(leads ? receives : sends, g.stream));
		}
		cu("cuStreamEndCapture", g.stream, &made);
		cu("cuGraphInstantiateWithFlags", &graph, made, 0ull);
		cu("cuGraphDestroy", made);
	}

	void release()
	{
		cu("cuGraphExecDestroy", graph);
		OK(strait_stream_list_close(sends));
		OK(strait_stream_list_close(receives));
	}

	void close()
	{
		together();
		close_puts();
		for (strait_stream *s : {calls, wide, lists, puts, listed}) {
			CHECK(failed(s).code == 0);
			OK(strait_stream_close(s));
		}
		cu("cuIpcCloseMemHandle", theirs);
	}

	/* One turn, with contents: microseconds of a message there and back. Where the driver has times, by the stream's: a kernel
	 * holds it until all is queued. */
	double turn(const way &w, size_t length, unsigned count, uint32_t first)
	{
		std::vector<uint32_t> all(length / 4);
		for (size_t i = 0; leads && i < all.size(); i++)
			all[i] = first + (uint32_t)i * 2654435761u;
		if (leads)
			cu("cuMemcpyHtoD_v2", out, (void *)all.data(), length);
		cu("cuMemsetD8_v2", in, (unsigned char)0xee, length);
		cu("cuCtxSynchronize");
		together();
		const double begin = now();
		held.hold(g.stream);
		w.queue(length, count);
		cu("cuEventRecord", held.events[1], g.stream);
		while (!stream_ended(g.stream))
			CHECK(now() - begin < limit_s);
		const double took = held.milliseconds(now() - begin) / 1e3;
		together();
		CHECK(!leads || g.words(in, length) == all);
		return took * 1e6 / count;
	}
};

/* The median of so many turns of each length up to `most`. */
static void sizes(bool leads, unsigned turns, size_t most)
{
	static const size_t lengths[] = {8, 64, 512, 4096, 32768, 262144, 2 << 20, 16 << 20, 64 << 20};
	compared c;
	c.open(leads, std::max(most, (size_t)8));
	if (leads) {
		printf("bytes");
		for (const compared::way &w : c.ways)
			printf(" | %s", w.name);
		printf(" | microseconds there and back, the median of %u turns\n", turns);
	}
	uint32_t first = 1;
	for (size_t length : lengths) {
		if (length > c.most)
			break;
		/* The two sides do not begin at the same time: that is of the first one. */
		const unsigned count = length <= 65536 ? 40 : !c.held.timed ? 10 : length <= 2 << 20 ? 40 : 15;
		c.capture(length, length <= 65536 ? 20 : 1);
		std::vector<std::vector<double>> took(c.ways.size());
		/* One turn of each before those that count. */
		for (unsigned t = 0; t <= turns; t++)
			for (size_t w = 0; w < c.ways.size(); w++) {
				const double us = c.turn(c.ways[w], length, count, first += 12345);
				if (t)
					took[w].push_back(us);
			}
		c.release();
		if (!leads)
			continue;
		printf("%zu", length);
		for (const std::vector<double> &way : took)
			printf(" | %.1f", median(way));
		printf("\n");
		fflush(stdout);
	}
	c.close();
	if (leads)
		printf("ok streams sizes\n");
}

/* The filler beside messages of `length` bytes by each way, in turns with the filler alone. */
static void busy(bool leads, unsigned turns, unsigned ms, size_t length)
{
	const unsigned queued = 8, over = 9, last = 11, each = 20;
	compared c;
	filler f;
	c.open(leads, length);
	f.open(ms);
	c.capture(length, each);
	std::vector<double> alone;
	std::vector<std::vector<double>> beside(c.ways.size()), done(c.ways.size()), idle(c.ways.size());
	auto word = [](unsigned n) { return &shared[n]; };
	auto load = [&](unsigned n) { return __atomic_load_n(word(n), __ATOMIC_ACQUIRE); };
	auto store = [&](unsigned n, uint32_t value) { __atomic_store_n(word(n), value, __ATOMIC_RELEASE); };
	for (unsigned t = 0; t <= turns; t++) {
		together();
		const double took = f.alone();
		if (t)
			alone.push_back(took);
		for (size_t w = 0; w < c.ways.size(); w++) {
			const double us = c.turn(c.ways[w], length, each, t * 100 + (uint32_t)w);
			if (leads)
				for (unsigned n : {queued, over, over + 1, last})
					store(n, 0);
			together();
			const double begin = now();
			double filled = 0;
			uint32_t batches = 0, meanwhile = 0;
			f.launch();
			for (;;) {
				if (filled == 0 && stream_ended(f.stream)) {
					filled = now() - begin;
					meanwhile = batches;
					store(over + !leads, 1);
				}
				CHECK(now() - begin < limit_s);
				/* The first side says how many batches both queue. */
				const bool no_more = load(last);
				if (leads && load(over) && load(over + 1)) {
					store(last, 1);
					break;
				}
				if (leads && stream_ended(c.g.stream))
					store(queued, batches + 1);
				if (batches < load(queued)) {
					c.ways[w].queue(length, each);
					batches++;
				} else if (no_more) {
					break;
				}
			}
			while (!stream_ended(c.g.stream))
				CHECK(now() - begin < limit_s);
			together();
			const double milliseconds = f.milliseconds(filled);
			if (!t)
				continue;
			beside[w].push_back(milliseconds);
			done[w].push_back(meanwhile * (double)each / milliseconds);
			idle[w].push_back(1e3 / us);
		}
	}
	c.release();
	c.close();
	/* The second side's come behind the first's. */
	for (bool first : {true, false}) {
		if (first == leads) {
			printf("busy, %s: %u blocks, %zu bytes, the median of %u turns: alone %.3f ms", role, f.blocks, length, turns, median(alone));
			for (size_t w = 0; w < c.ways.size(); w++)
				printf("\n  beside %s: %.4f of that, and %.1f messages there and back a millisecond, of %.1f without it", c.ways[w].name,
				       median(beside[w]) / median(alone), median(done[w]), median(idle[w]));
			printf("\n");
			fflush(stdout);
		}
		together();
	}
	if (leads)
		printf("ok streams busy\n");
}
