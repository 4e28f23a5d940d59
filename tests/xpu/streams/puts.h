/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Puts and gets of memory that is not mapped, which an agent carries out: part of streams.cc. */

static strait_stream_transfer transfer_of(void *local, size_t length, uint32_t region, uint64_t offset, uint32_t signal)
{
	strait_stream_transfer t = {};
	t.size = sizeof t;
	t.local = local;
	t.length = length;
	t.region = region;
	t.offset = offset;
	t.signal = signal;
	return t;
}

static std::vector<uint8_t> bytes_of(dptr at, size_t length)
{
	std::vector<uint8_t> all(length);
	if (length)
		cu("cuMemcpyDtoH_v2", (void *)all.data(), at, length);
	return all;
}

/* Each way: calls for a stream, a captured graph, nodes of a graph, the CPU. */
enum put_way { by_stream, by_capture, by_nodes, by_cpu, put_ways };

static void *captured_list(gpu &g, strait_stream_list *l)
{
	void *graph = nullptr, *exec = nullptr;
	cu("cuStreamBeginCapture_v2", g.stream, 2);
	OK(strait_stream_list_run(l, g.stream));
	cu("cuStreamEndCapture", g.stream, &graph);
	cu("cuGraphInstantiateWithFlags", &exec, graph, 0ull);
	cu("cuGraphDestroy", graph);
	return exec;
}

/* Puts that answer each other by strait_stream_acknowledge_and_put, of an endpoint whose registration 0 is `window`. While another
 * stream has a wait the call is refused: the other side would overwrite what that stream has yet to read. */
static void puts_by_call(gpu &g, bool leads, strait_stream *s, dptr window, dptr out, size_t length)
{
	const strait_stream_transfer put = transfer_of((void *)out, length, 0, 0, 1);
	void *other = nullptr;
	uint64_t puts = 0, waits = 0, after = 0;
	cu("cuStreamCreate", &other, 1u);
	for (bool answers : {false, true}) {
		const unsigned char mine = 1 + 2 * answers + leads, theirs = 1 + 2 * answers + !leads;
		cu("cuMemsetD8_v2", out, mine, length);
		cu("cuMemsetD8_v2", window, (unsigned char)0xee, length);
		cu("cuCtxSynchronize");
		OK(strait_stream_executed(s, &puts, &waits));
		together();
		if (answers) {
			OK(strait_stream_acknowledge_and_put(s, g.stream, 1, &put));
			OK(strait_stream_wait(s, g.stream, 1));
		} else {
			OK(strait_stream_wait(s, other, 1));
			REFUSED(EBUSY, strait_stream_acknowledge_and_put(s, g.stream, 1, &put));
			together();
			OK(strait_stream_put(s, g.stream, &put));
		}
		g.end_of_stream();
		const double begin = now();
		while (!stream_ended(other))
			CHECK(now() - begin < limit_s);
		OK(strait_stream_executed(s, &after, &waits));
		CHECK(failed(s).code == 0 && after == puts + 1);
		CHECK(bytes_of(window, length) == std::vector<uint8_t>(length, theirs));
	}
	/* In the stream of the wait it is not. */
	OK(strait_stream_acknowledge_and_put(s, g.stream, 1, &put));
	OK(strait_stream_wait(s, g.stream, 1));
	OK(strait_stream_acknowledge_and_put(s, g.stream, 1, &put));
	OK(strait_stream_wait(s, g.stream, 1));
	OK(strait_stream_acknowledge(s, g.stream, 1));
	g.end_of_stream();
	CHECK(failed(s).code == 0);
	cu("cuStreamDestroy_v2", other);
}

static void puts_by_agent(bool leads)
{
	enum { length = 300 * 1024 + 13, room = 400 * 1024, turns = 5 };
	const uint32_t none = STRAIT_STREAM_NO_SIGNAL;
	gpu g;
	g.open();
	dptr window = 0, source = 0, back = 0;
	void *host = nullptr;
	for (dptr *memory : {&window, &source, &back})
		cu("cuMemAlloc_v2", memory, (size_t)room);
	cu("cuMemHostAlloc", &host, (size_t)room, 0u);

	/* Windows in a device's memory and in the host's, which takes the flag also between hosts. */
	strait_stream *s = open_endpoint(STRAIT_STREAM_BY_AGENT, 20000000000);
	uint32_t region[2] = {9, 9};
	OK(strait_stream_register(s, (void *)window, room, &region[0]));
	OK(strait_stream_register(s, host, room, &region[1]));
	CHECK(region[0] == 0 && region[1] == 1);
	meet(s);
	for (unsigned way = 0; way < put_ways; way++) {
		for (unsigned w = 0; w < 2; w++) {
			strait_stream_list *l = nullptr, *signalled = nullptr;
			void *exec = nullptr;
			const strait_stream_transfer put = transfer_of((void *)source, length, w, 5, 3);
			const strait_stream_transfer get = transfer_of((void *)back, length, w, 5, none);
			cu("cuMemsetD8_v2", window, (unsigned char)0xee, (size_t)room);
			memset(host, 0xee, room);
			cu("cuCtxSynchronize");
			together();
			if (leads && way != by_stream) {
				OK(strait_stream_list_open(s, 2, &l));
				OK(strait_stream_list_put(l, &put));
				OK(strait_stream_list_get(l, &get));
			}
			if (leads && way == by_capture)
				exec = captured_list(g, l);
			if (leads && way == by_nodes)
				exec = of_nodes(l);
			if (!leads) {
				OK(strait_stream_list_open(s, 1, &signalled));
				OK(strait_stream_list_wait(signalled, 3));
			}
			for (unsigned turn = 0; turn < turns; turn++) {
				const unsigned char value = 1 + turn + 16 * way + 8 * w;
				if (leads) {
					cu("cuMemsetD8_v2", source, value, (size_t)room);
					cu("cuMemsetD8_v2", back, (unsigned char)0, (size_t)room);
					cu("cuCtxSynchronize");
					if (way == by_stream) {
						OK(strait_stream_put(s, g.stream, &put));
						/* The put's bytes are no more the buffer's. */
						g.launch(g.fill, threads, source, g.base);
						g.end_of_stream();
						OK(strait_stream_get(s, g.stream, &get));
					} else if (way == by_cpu) {
						OK(strait_stream_list_run_on_cpu(l));
					} else {
						cu("cuGraphLaunch", exec, g.stream);
					}
					g.end_of_stream();
					std::vector<unsigned char> got(room);
					cu("cuMemcpyDtoH_v2", (void *)got.data(), back, (size_t)room);
					for (unsigned i = 0; i < room; i++)
						CHECK(got[i] == (i < length ? value : 0));
					together();
				} else {
					if (way == by_cpu)
						OK(strait_stream_list_run_on_cpu(signalled));
					else
						OK(strait_stream_wait(s, g.stream, 3));
					g.end_of_stream();
					CHECK(failed(s).code == 0);
					std::vector<unsigned char> came(room);
					if (w == 0)
						cu("cuMemcpyDtoH_v2", (void *)came.data(), window, (size_t)room);
					else
						memcpy(came.data(), host, room);
					for (unsigned i = 0; i < room; i++)
						CHECK(came[i] == (i >= 5 && i < 5 + length ? value : 0xee));
					OK(strait_stream_acknowledge(s, g.stream, 3));
					g.end_of_stream();
					together();
				}
			}
			if (exec)
				cu("cuGraphExecDestroy", exec);
			OK(strait_stream_list_close(l));
			OK(strait_stream_list_close(signalled));
		}
	}
	puts_by_call(g, leads, s, window, source, length);
	strait_stream_transfer bad = transfer_of((void *)source, 16, 1, room - 15, none);
	REFUSED(EINVAL, strait_stream_put(s, g.stream, &bad));
	REFUSED(EINVAL, strait_stream_get(s, g.stream, &bad));
	bad.region = 2;
	REFUSED(EINVAL, strait_stream_put(s, g.stream, &bad));
	CHECK(failed(s).code == 0);
	together();
	OK(strait_stream_close(s));

	/* A peer that does not run answers no get, which the time limit ends; nothing is written. */
	s = open_endpoint(0, 1000000000);
	OK(strait_stream_register(s, (void *)window, room, &region[0]));
	meet(s);
	together();
	if (leads) {
		const strait_stream_transfer get = transfer_of((void *)back, 16, 0, 0, none);
		cu("cuMemsetD8_v2", back, (unsigned char)0xee, (size_t)room);
		cu("cuCtxSynchronize");
		CHECK(kill(other_process, SIGSTOP) == 0);
		OK(strait_stream_get(s, g.stream, &get));
		g.end_of_stream();
		CHECK(kill(other_process, SIGCONT) == 0);
		/* Memory that a peer of the same host maps may be read without it. */
		CHECK(failed(s).code == 0 || (failed(s).code == ETIMEDOUT && failed(s).operation == STRAIT_STREAM_OP_GET && g.untouched(back, 16)));
		OK(strait_stream_abort(s));
		const strait_stream_transfer put = transfer_of((void *)source, 16, 0, 0, 3);
		CHECK(strait_stream_put(s, g.stream, &put) < 0);
	}
	together();
	OK(strait_stream_close(s));
	if (leads)
		printf("ok streams agent puts\n");
}
