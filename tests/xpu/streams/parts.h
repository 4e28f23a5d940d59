/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Messages in parts, which several blocks of a kernel copy at once: lengths and addresses of any kind, numbers of slots that no
 * number of blocks divides, waits of many blocks that end: part of streams.cc. */

static uint8_t byte_of(size_t n, unsigned turn)
{
	return (uint8_t)(n * 13 + n / 251 + turn * 31);
}

static void parts_arrive(gpu &g, bool leads, uint32_t slots, uint32_t slot_bytes)
{
	static const size_t lengths[] = {1, 3, 20, 8191, 8192, 8193, 16400, 70001, 131072, 300004, 1 << 20};
	const size_t most = (1 << 20) + 64;
	dptr memory = 0;
	cu("cuMemAlloc_v2", &memory, most);
	strait_stream *s = open_endpoint(0, 0, slots, slot_bytes);
	uint32_t region = 9;
	OK(strait_stream_register(s, (void *)memory, most, &region));
	meet(s);
	unsigned turn = 0;
	for (size_t length : lengths)
		for (size_t offset : {0, 4, 1}) {
			const uint8_t filled = leads ? 0 : 0xee;
			std::vector<uint8_t> all(most, filled);
			for (size_t i = 0; leads && i < length; i++)
				all[offset + i] = byte_of(i, turn);
			cu("cuMemcpyHtoD_v2", memory, (void *)all.data(), most);
			cu("cuCtxSynchronize");
			together();
			if (leads)
				OK(strait_stream_send(s, g.stream, (void *)(memory + offset), length));
			else
				OK(strait_stream_receive(s, g.stream, (void *)(memory + offset), length));
			g.end_of_stream();
			for (size_t i = 0; !leads && i < length; i++)
				all[offset + i] = byte_of(i, turn);
			CHECK(bytes_of(memory, most) == all);
			turn++;
		}

	/* A get and a put with a signal of as many bytes. */
	strait_stream_transfer t = {};
	t.size = sizeof t;
	t.region = region;
	t.local = (void *)memory;
	t.length = 300004;
	t.offset = 500000;
	t.signal = STRAIT_STREAM_NO_SIGNAL;
	together();
	std::vector<uint8_t> all(most, 0);
	if (!leads) {
		for (size_t i = 0; i < t.length; i++)
			all[t.offset + i] = byte_of(i, 200);
		cu("cuMemcpyHtoD_v2", memory, (void *)all.data(), most);
		cu("cuCtxSynchronize");
	}
	together();
	if (leads) {
		OK(strait_stream_get(s, g.stream, &t));
		t.offset = 1;
		t.signal = 3;
		OK(strait_stream_put(s, g.stream, &t));
	} else {
		OK(strait_stream_wait(s, g.stream, 3));
	}
	g.end_of_stream();
	all = bytes_of(memory, most);
	for (size_t i = 0; i < t.length; i++)
		CHECK(all[leads ? i : 1 + i] == byte_of(i, 200));
	CHECK(failed(s).code == 0);
	together();
	OK(strait_stream_close(s));
	cu("cuMemFree_v2", memory);
}

/* A graph of several long messages, replayed: parts go through each slot many times. */
static void parts_again(gpu &g, bool leads)
{
	const size_t length = 200000;
	const unsigned replays = 12;
	dptr memory = 0;
	void *graph = nullptr, *exec = nullptr, *last = nullptr;
	strait_stream_list *l = nullptr;
	cu("cuMemAlloc_v2", &memory, 2 * length);
	strait_stream *s = open_endpoint(0, 0, 7);
	meet(s);
	OK(strait_stream_list_open(s, 8, &l));
	for (unsigned n = 0; n < 2; n++) {
		void *at = (void *)(memory + n * length);
		OK(leads ? strait_stream_list_send(l, at, length) : strait_stream_list_receive(l, at, length));
	}
	cu("cuGraphCreate", &graph, 0u);
	OK(strait_stream_list_add_to_graph(l, graph, nullptr, 0, &last));
	cu("cuGraphInstantiateWithFlags", &exec, graph, 0ull);
	for (unsigned turn = 0; turn < replays; turn++) {
		std::vector<uint8_t> all(2 * length, 0xee);
		for (size_t i = 0; i < 2 * length; i++)
			all[i] = leads ? byte_of(i, turn) : 0xee;
		cu("cuMemcpyHtoD_v2", memory, (void *)all.data(), 2 * length);
		/* The copy may return before it is done, and the graph's stream does not wait for it. */
		cu("cuCtxSynchronize");
		cu("cuGraphLaunch", exec, g.stream);
		g.end_of_stream();
		for (size_t i = 0; i < 2 * length; i++)
			all[i] = byte_of(i, turn);
		CHECK(bytes_of(memory, 2 * length) == all);
	}
	cu("cuGraphExecDestroy", exec);
	cu("cuGraphDestroy", graph);
	OK(strait_stream_list_close(l));
	CHECK(failed(s).code == 0);
	together();
	OK(strait_stream_close(s));
	cu("cuMemFree_v2", memory);
}

/* All blocks of a kernel leave when the endpoint fails: of a receive that nothing arrives for, by the time limit; of a send with
 * more bytes than there are slots, and of a part of a message, by an abort. What is launched later moves nothing. */
static void parts_end(gpu &g, bool leads)
{
	const size_t length = 20 << 20;
	dptr memory = 0;
	cu("cuMemAlloc_v2", &memory, length);
	cu("cuMemsetD8_v2", memory, (unsigned char)0xee, length);
	cu("cuCtxSynchronize");
	strait_stream *s = open_endpoint(0, 300000000);
	meet(s);
	if (!leads) {
		OK(strait_stream_receive(s, g.stream, (void *)memory, length));
		OK(strait_stream_receive(s, g.stream, (void *)memory, length));
		g.end_of_stream();
		CHECK(failed(s).code == ETIMEDOUT && failed(s).operation == STRAIT_STREAM_OP_RECEIVE && !failed(s).by_peer);
		CHECK(g.untouched(memory, length));
	} else {
		fails(s, ETIMEDOUT);
	}
	together();
	OK(strait_stream_close(s));

	s = open_endpoint();
	meet(s);
	if (leads) {
		OK(strait_stream_send(s, g.stream, (void *)memory, length));
		usleep(100000);
		CHECK(!stream_ended(g.stream));
		OK(strait_stream_abort(s));
	}
	g.end_of_stream();
	fails(s, ECANCELED);
	CHECK(strait_stream_receive(s, g.stream, (void *)memory, length) == -ECANCELED);
	together();
	OK(strait_stream_close(s));

	/* Which words kernels or memory operations wait for is said. */
	s = open_endpoint();
	meet(s);
	strait_stream_path path = {};
	path.size = sizeof path;
	OK(strait_stream_query(s, &path));
	int gpus = 0;
	cu("cuDeviceGetCount", &gpus);
	CHECK(strstr(path.why, gpus > 1 ? "kernels of the stream wait" : "memory operations of the stream wait"));
	together();
	OK(strait_stream_close(s));
	cu("cuMemFree_v2", memory);
}

/* As many messages as there are slots are on the way, each of as many bytes as a slot: both sides send all before they receive. */
static void parts_queue(gpu &g, bool leads)
{
	const size_t length = 65536;
	const unsigned messages = 32;
	dptr memory = 0;
	cu("cuMemAlloc_v2", &memory, 2 * messages * length);
	strait_stream *s = open_endpoint(0, 20000000000);
	meet(s);
	std::vector<uint8_t> all(messages * length);
	for (size_t i = 0; i < all.size(); i++)
		all[i] = byte_of(i, leads ? 3 : 4);
	cu("cuMemcpyHtoD_v2", memory, (void *)all.data(), all.size());
	cu("cuCtxSynchronize");
	for (unsigned n = 0; n < messages; n++)
		OK(strait_stream_send(s, g.stream, (void *)(memory + n * length), length));
	for (unsigned n = 0; n < messages; n++)
		OK(strait_stream_receive(s, g.stream, (void *)(memory + all.size() + n * length), length));
	g.end_of_stream();
	CHECK(failed(s).code == 0);
	for (size_t i = 0; i < all.size(); i++)
		all[i] = byte_of(i, leads ? 4 : 3);
	CHECK(bytes_of(memory + all.size(), all.size()) == all);
	together();
	OK(strait_stream_close(s));
	cu("cuMemFree_v2", memory);
}

/* A message of the right length in the slots of an earlier receive, some of which the receive has too: other parts are there, and
 * nothing is moved. */
static void parts_refused(gpu &g, bool leads)
{
	const size_t lengths[] = {131072, 1 << 20};
	for (size_t length : lengths) {
		dptr memory = 0;
		strait_stream_list *lists[2] = {};
		cu("cuMemAlloc_v2", &memory, length);
		cu("cuMemsetD8_v2", memory, (unsigned char)(leads ? 0x11 : 0xee), length);
		cu("cuCtxSynchronize");
		strait_stream *s = open_endpoint(0, 20000000000);
		meet(s);
		strait_stream_path path = {};
		path.size = sizeof path;
		OK(strait_stream_query(s, &path));
		if (!strstr(path.why, "kernels of the stream wait")) {
			/* Parts of one device's have no numbers. */
			together();
			OK(strait_stream_close(s));
			cu("cuMemFree_v2", memory);
			return;
		}
		if (leads) {
			OK(strait_stream_send(s, g.stream, (void *)memory, length));
			g.end_of_stream();
		}
		together();
		for (unsigned n = 0; !leads && n < 2; n++) {
			OK(strait_stream_list_open(s, 16, &lists[n]));
			OK(strait_stream_list_receive(lists[n], (void *)memory, n ? length : 8192));
		}
		if (!leads) {
			OK(strait_stream_list_run(lists[1], g.stream));
			g.end_of_stream();
		}
		fails(s, EMSGSIZE);
		CHECK(failed(s).by_peer == (leads ? 1 : 0));
		CHECK(leads || g.untouched(memory, length));
		for (strait_stream_list *l : lists)
			if (l)
				OK(strait_stream_list_close(l));
		together();
		OK(strait_stream_close(s));
		cu("cuMemFree_v2", memory);
	}
}

static bool kernels_wait(strait_stream *s)
{
	strait_stream_path path = {};
	path.size = sizeof path;
	OK(strait_stream_query(s, &path));
	return strstr(path.why, "kernels of the stream wait") != nullptr;
}

/* A stream of a device that has the words not mapped is refused where kernels wait, and the endpoint is as it was. */
static void parts_of_another_device(gpu &g, bool leads)
{
	int gpus = 0;
	cu("cuDeviceGetCount", &gpus);
	strait_stream *s = open_endpoint();
	meet(s);
	if (gpus > 1 && kernels_wait(s)) {
		void *own = nullptr, *other = nullptr, *stream = nullptr, *graph = nullptr, *last = nullptr;
		strait_stream_list *l = nullptr;
		cu("cuCtxGetCurrent", &own);
		cu("cuDevicePrimaryCtxRetain", &other, leads ? 1 : 0);
		cu("cuCtxSetCurrent", other);
		cu("cuStreamCreate", &stream, 1u);
		OK(strait_stream_list_open(s, 4, &l));
		OK(strait_stream_list_acknowledge(l, 3));
		REFUSED(EINVAL, strait_stream_wait(s, stream, 3));
		REFUSED(EINVAL, strait_stream_list_run(l, stream));
		cu("cuGraphCreate", &graph, 0u);
		REFUSED(EINVAL, strait_stream_list_add_to_graph(l, graph, nullptr, 0, &last));
		cu("cuGraphDestroy", graph);
		cu("cuStreamDestroy_v2", stream);
		cu("cuCtxSetCurrent", own);
		OK(strait_stream_list_close(l));
	}
	g.clear();
	together();
	g.make(0);
	OK(strait_stream_send(s, g.stream, g.at(g.out, 0), size));
	OK(strait_stream_receive(s, g.stream, g.at(g.in, 0), size));
	g.end_of_stream();
	CHECK(failed(s).code == 0 && !g.untouched(g.in, 4));
	together();
	OK(strait_stream_close(s));
}

/* With these flags of the two sides kernels wait, or not, and messages and puts arrive. */
static void parts_by(gpu &g, bool leads, uint32_t one, uint32_t other, bool kernels)
{
	strait_stream *s = open_endpoint(leads ? one : other);
	uint32_t region = 9;
	dptr window = 0;
	cu("cuMemAlloc_v2", &window, (size_t)4096);
	OK(strait_stream_register(s, (void *)window, 4096, &region));
	meet(s);
	CHECK(kernels_wait(s) == kernels && path_of(s) == STRAIT_STREAM_DEVICE);
	g.clear();
	together();
	g.make(0);
	OK(strait_stream_send(s, g.stream, g.at(g.out, 0), size));
	OK(strait_stream_receive(s, g.stream, g.at(g.in, 0), size));
	g.end_of_stream();
	CHECK(failed(s).code == 0 && !g.untouched(g.in, 4));
	puts_by_call(g, leads, s, window, g.out, size);
	together();
	OK(strait_stream_close(s));
	cu("cuMemFree_v2", window);
}

/* Where memory operations wait between two devices. */
static void parts_without_kernels(gpu &g, bool leads)
{
	int gpus = 0;
	cu("cuDeviceGetCount", &gpus);
	parts_by(g, leads, STRAIT_STREAM_MEMORY_OPERATIONS, 0, false);
	parts_by(g, leads, STRAIT_STREAM_MEMORY_OPERATIONS, STRAIT_STREAM_MEMORY_OPERATIONS, false);
	parts_by(g, leads, 0, 0, gpus > 1);
	/* A device whose kernels have a time limit (CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT), and one of MPS (CU_DEVICE_ATTRIBUTE_MPS_ENABLED). */
	if (auto set = (void (*)(int, int))dlsym(RTLD_DEFAULT, "stand_in_attribute")) {
		for (int attribute : {17, 133}) {
			for (bool of_leader : {true, false}) {
				set(attribute, leads == of_leader);
				parts_by(g, leads, 0, 0, false);
			}
			set(attribute, 0);
			parts_by(g, leads, 0, 0, gpus > 1);
		}
	}
}

static void parts(bool leads)
{
	gpu g;
	g.open();
	parts_arrive(g, leads, 0, 0);
	parts_arrive(g, leads, 5, 65536);
	parts_arrive(g, leads, 1, 262144);
	parts_arrive(g, leads, 3, 131072);
	parts_again(g, leads);
	parts_queue(g, leads);
	parts_refused(g, leads);
	parts_of_another_device(g, leads);
	parts_without_kernels(g, leads);
	parts_end(g, leads);
	if (leads)
		printf("ok streams parts\n");
}
