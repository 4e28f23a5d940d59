/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* How long a list is used: by graphs that live, by contexts that are gone. Streams that share a hardware queue: part of streams.cc. */

static bool is_stand_in() { return dlsym(RTLD_DEFAULT, "stand_in_calls"); }

static void *captured(gpu &g, strait_stream_list *l)
{
	void *graph = nullptr;
	cu("cuStreamBeginCapture_v2", g.stream, 2);
	OK(strait_stream_list_run(l, g.stream));
	cu("cuStreamEndCapture", g.stream, &graph);
	return graph;
}

static strait_stream_list *message(gpu &g, strait_stream *s, bool sends)
{
	strait_stream_list *l = nullptr;
	OK(strait_stream_list_open(s, 2, &l));
	OK(sends ? strait_stream_list_send(l, g.at(g.out, 0), size) : strait_stream_list_receive(l, g.at(g.in, 0), size));
	return l;
}

static void held(strait_stream_list *l)
{
	REFUSED(EBUSY, strait_stream_list_close(l));
	CHECK(strstr(strait_stream_error(), "graph"));
}

/* A list stays as long as a graph, an instance or a launch has it. */
static void life_of_graphs(gpu &g, bool leads)
{
	void *graph = nullptr, *exec = nullptr, *last = nullptr;
	strait_stream *s = open_endpoint(0, 20000000000);
	meet(s);
	strait_stream_list *l = message(g, s, leads);
	graph = captured(g, l);
	held(l);
	cu("cuGraphInstantiateWithFlags", &exec, graph, 0ull);
	cu("cuGraphDestroy", graph);
	held(l);
	REFUSED(EBUSY, strait_stream_close(s));
	if (leads) {
		together();
		g.make(0);
	}
	cu("cuGraphLaunch", exec, g.stream);
	cu("cuGraphExecDestroy", exec);
	if (!leads) {
		/* By the launch, or by the wait of it that has begun. */
		REFUSED(EBUSY, strait_stream_list_close(l));
		together();
	}
	g.end_of_stream();
	CHECK(failed(s).code == 0);
	OK(strait_stream_list_close(l));

	/* Made node by node, after what is no node has left the graph as it was; thrown away without a launch; cancelled. */
	l = message(g, s, leads);
	cu("cuGraphCreate", &graph, 0u);
	if (is_stand_in()) {
		void *wrong = (void *)&graph;
		CHECK(strait_stream_list_add_to_graph(l, graph, &wrong, 1, &last) < 0);
		OK(strait_stream_list_close(l));
		l = message(g, s, leads);
	}
	OK(strait_stream_list_add_to_graph(l, graph, nullptr, 0, &last));
	held(l);
	cu("cuGraphDestroy", graph);
	OK(strait_stream_list_close(l));
	l = message(g, s, leads);
	graph = captured(g, l);
	cu("cuGraphDestroy", graph);
	OK(strait_stream_list_close(l));
	l = message(g, s, leads);
	cu("cuStreamBeginCapture_v2", g.stream, 2);
	OK(strait_stream_list_run(l, g.stream));
	held(l);
	/* To wait for a stream ends its capture. */
	CHECK(((int (*)(void *))dlsym(RTLD_DEFAULT, "cuStreamSynchronize"))(g.stream) != 0);
	REFUSED(EOPNOTSUPP, strait_stream_list_run(l, g.stream));
	CHECK(((int (*)(void *, void **))dlsym(RTLD_DEFAULT, "cuStreamEndCapture"))(g.stream, &graph) != 0);
	OK(strait_stream_list_close(l));
	together();
	OK(strait_stream_close(s));
}

/* A stream is destroyed once it has executed what it was given; the driver gets its handle no more, also of a failed endpoint. */
static void life_of_streams(gpu &g, bool leads)
{
	auto strict = (void (*)(bool))dlsym(RTLD_DEFAULT, "stand_in_strict");
	void *stream = nullptr;
	strait_stream *s = open_endpoint(0, 20000000000);
	meet(s);
	cu("cuStreamCreate", &stream, 1u);
	if (leads)
		OK(strait_stream_send(s, stream, g.at(g.out, 0), size));
	else
		OK(strait_stream_receive(s, stream, g.at(g.in, 0), size));
	cu("cuStreamSynchronize", stream);
	cu("cuStreamDestroy_v2", stream);
	strict(true);
	together();
	if (leads)
		OK(strait_stream_abort(s));
	fails(s, ECANCELED);
	OK(strait_stream_close(s));
	strict(false);
	together();
}

/* A context that is gone does nothing more of what a failed endpoint has given it. */
static void life_of_contexts(bool leads)
{
	void *ctx = nullptr, *stream = nullptr, *host = nullptr;
	cu("cuCtxCreate_v2", &ctx, 0u, 0);
	cu("cuStreamCreate", &stream, 1u);
	cu("cuMemHostAlloc", &host, (size_t)4096, 0u);
	dptr at = 0;
	cu("cuMemAlloc_v2", &at, (size_t)size);
	strait_stream *s = open_endpoint(0, 20000000000);
	meet(s);
	strait_stream_list *l = nullptr;
	OK(strait_stream_list_open(s, 2, &l));
	OK(leads ? strait_stream_list_send(l, (void *)at, size) : strait_stream_list_receive(l, (void *)at, size));
	*(uint64_t *)host = 0;
	cu("cuStreamWaitValue64_v2", stream, (dptr)host, (uint64_t)1, 0u);
	OK(strait_stream_list_run(l, stream));
	together();
	REFUSED(EBUSY, strait_stream_list_close(l));
	if (leads)
		OK(strait_stream_abort(s));
	fails(s, ECANCELED);
	REFUSED(EBUSY, strait_stream_list_close(l));
	cu("cuCtxDestroy_v2", ctx);
	OK(strait_stream_list_close(l));
	together();
	OK(strait_stream_close(s));
}

static void life(bool leads)
{
	gpu g;
	g.open();
	life_of_graphs(g, leads);
	/* A device's context ends only when its kernels have. */
	if (is_stand_in()) {
		life_of_streams(g, leads);
		life_of_contexts(leads);
	}
	if (leads)
		printf("ok streams life\n");
}

static bool share_queue(void *first, void *second)
{
	uint32_t shared = 7;
	OK(strait_stream_share_queue(first, second, &shared));
	CHECK(shared <= 1);
	return shared;
}

/* A message each way: a stream receives, and `sender` sends behind what the stream had before, in which an event says so. */
static void cross(strait_stream *s, gpu &g, void *sender)
{
	void *event = nullptr, *behind = nullptr;
	cu("cuEventCreate", &event, 2u);
	g.make(0);
	cu("cuEventRecord", event, g.stream);
	OK(strait_stream_receive(s, g.stream, g.at(g.in, 0), size));
	/* A kernel that waits holds up other streams by what is queued behind it. */
	cu("cuMemHostAlloc", &behind, (size_t)64, 0u);
	cu("cuStreamWriteValue64_v2", g.stream, (dptr)behind, (uint64_t)1, 0u);
	cu("cuStreamWaitEvent", sender, event, 0u);
	OK(strait_stream_send(s, sender, g.at(g.out, 0), size));
	together();
}

static void lanes(bool leads)
{
	void *other = nullptr, *own = nullptr, *third = nullptr;
	strait_stream_path path = {};
	uint32_t shared = 0;
	path.size = sizeof path;
	for (const char *queues : {(const char *)nullptr, "1", "2"}) {
		gpu g;
		if (queues)
			setenv("CUDA_DEVICE_MAX_CONNECTIONS", queues, 1);
		g.open();
		int least = 0, greatest = 0;
		cu("cuCtxGetStreamPriorityRange", &least, &greatest);
		cu("cuStreamCreate", &other, 1u);
		cu("cuStreamCreate", &third, 1u);
		cu("cuStreamCreateWithPriority", &own, 1u, greatest);
		const bool one = queues && *queues == '1';
		CHECK(share_queue(g.stream, other) == one);
		CHECK(share_queue(other, g.stream) == one);
		CHECK(share_queue(g.stream, third) == one);
		/* A priority is no queue. */
		CHECK(share_queue(g.stream, own) == one);
		REFUSED(EINVAL, strait_stream_share_queue(other, other, &shared));
		REFUSED(EINVAL, strait_stream_share_queue(other, g.stream, nullptr));
		for (void *sender : {other, own}) {
			/* Only a wait that cannot end has a short time limit. */
			strait_stream *s = open_endpoint(0, one ? 700000000 : 60000000000);
			meet(s);
			OK(strait_stream_query(s, &path));
			CHECK(one == !!strstr(path.why, "one hardware queue"));
			CHECK(one == !!strstr(path.why, "CUDA_DEVICE_MAX_CONNECTIONS"));
			cross(s, g, sender);
			if (one)
				fails(s, ETIMEDOUT);
			g.end_of_stream();
			cu("cuStreamSynchronize", sender);
			if (!one) {
				CHECK(failed(s).code == 0);
				const std::vector<uint32_t> all = g.words(g.in, size);
				for (unsigned i = 1; i < threads; i++)
					CHECK(all[i] == all[0] + i && all[0] != 0xeeeeeeee);
			}
			g.clear();
			together();
			OK(strait_stream_close(s));
		}
		REFUSED(EBUSY, [&] {
			void *host = nullptr;
			cu("cuMemHostAlloc", &host, (size_t)64, 0u);
			*(uint64_t *)host = 0;
			cu("cuStreamWaitValue64_v2", other, (dptr)host, (uint64_t)1, 0u);
			const int rc = strait_stream_share_queue(g.stream, other, &shared);
			__atomic_store_n((uint64_t *)host, (uint64_t)1, __ATOMIC_SEQ_CST);
			cu("cuStreamSynchronize", other);
			return rc;
		}());
	}
	if (leads)
		printf("ok streams lanes\n");
}
