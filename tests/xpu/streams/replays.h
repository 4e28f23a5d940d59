/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* 100 exchanges of 128 bytes with a kernel of each side between, in one graph that is replayed, or queued for the stream each time: part
 * of streams.cc. */

/* chain: word i of `sum` is 4 times what it was and word i of `from`, and is stored in word i of `to`, too. */
static const char chain_text[] = R"(.version 6.0
.target sm_50
.address_size 64
.visible .entry chain(.param .u64 to, .param .u64 from, .param .u64 sum)
{
	.reg .b32 %r<4>;
	.reg .b64 %d<7>;
	ld.param.u64 %d0, [to];
	ld.param.u64 %d1, [from];
	ld.param.u64 %d2, [sum];
	mov.u32 %r0, %tid.x;
	mov.u32 %r1, 4;
	mul.wide.u32 %d3, %r0, %r1;
	add.u64 %d4, %d0, %d3;
	add.u64 %d5, %d1, %d3;
	add.u64 %d6, %d2, %d3;
	ld.global.u32 %r2, [%d5+0];
	ld.global.u32 %r3, [%d6+0];
	add.u32 %r3, %r3, %r3;
	add.u32 %r3, %r3, %r3;
	add.u32 %r3, %r3, %r2;
	st.global.u32 [%d6+0], %r3;
	st.global.u32 [%d4+0], %r3;
	ret;
}
)";

/* Each message is made of the sum of all answers before, so the sum after a replay depends on the contents of each exchange: with the
 * complement as the answer it is 3 times the one before, and less one, by which no difference is lost. */
static void replays(const std::string &way, bool leads, uint64_t count)
{
	enum { exchanges = 100 };
	gpu g;
	lists l;
	dptr sum = 0;
	void *module = nullptr, *chain = nullptr, *exec = nullptr, *graph = nullptr;
	g.open();
	cu("cuModuleLoadData", &module, (const char *)chain_text);
	cu("cuModuleGetFunction", &chain, module, (const char *)"chain");
	cu("cuMemAlloc_v2", &sum, (size_t)size);
	std::vector<uint32_t> expected(threads), answer(threads, 0xeeeeeeee);
	for (unsigned word = 0; word < threads; word++)
		expected[word] = word;
	cu("cuMemcpyHtoD_v2", sum, (const void *)expected.data(), (size_t)size);
	cu("cuCtxSynchronize");
	strait_stream *s = open_endpoint();
	meet(s);
	l.open(s, g);
	auto queue = [&] {
		for (unsigned i = 0; i < exchanges; i++) {
			const unsigned n = i % batch, before = (i + batch - 1) % batch;
			if (leads) {
				uint64_t to = (uint64_t)g.at(g.out, n), from = (uint64_t)g.at(g.in, before), of = sum;
				void *args[] = {&to, &from, &of};
				cu("cuLaunchKernel", chain, 1u, 1u, 1u, (unsigned)threads, 1u, 1u, 0u, g.stream, (void **)args, (void **)nullptr);
				OK(strait_stream_list_run(l.send[n], g.stream));
				OK(strait_stream_list_run(l.receive[n], g.stream));
			} else {
				OK(strait_stream_list_run(l.receive[n], g.stream));
				g.reply(n);
				OK(strait_stream_list_run(l.send[n], g.stream));
			}
		}
	};
	if (way == "graph") {
		cu("cuStreamBeginCapture_v2", g.stream, 2);
		queue();
		cu("cuStreamEndCapture", g.stream, &graph);
		cu("cuGraphInstantiateWithFlags", &exec, graph, 0ull);
		cu("cuGraphDestroy", graph);
	}
	double begin = 0, spent = 0, spent_by_library = 0;
	/* One replay before the clock starts. */
	for (uint64_t replay = 0; replay <= count; replay++) {
		together();
		if (replay == 1)
			begin = now(), spent = cpu_seconds(), spent_by_library = library_seconds();
		if (exec)
			cu("cuGraphLaunch", exec, g.stream);
		else
			queue();
		for (unsigned i = 0; i < exchanges * threads; i++) {
			uint32_t &word = expected[i % threads];
			word = 4 * word + answer[i % threads];
			answer[i % threads] = ~word;
		}
		g.end_of_stream();
		CHECK(!leads || g.words(sum, size) == expected);
		CHECK(g.words(g.in + (exchanges - 1) % batch * size, size) == (leads ? answer : expected));
	}
	const double took = (now() - begin) / exchanges;
	spent = (cpu_seconds() - spent) / exchanges, spent_by_library = (library_seconds() - spent_by_library) / exchanges;
	CHECK(failed(s).code == 0);
	if (exec)
		cu("cuGraphExecDestroy", exec);
	l.close();
	OK(strait_stream_close(s));
	if (leads)
		printf("ok streams replays %s: %llu replays of %d exchanges, %.2f us and %.2f CPU us an exchange; of it %.2f by the library's threads, %.1f %% of a core\n",
		       way.c_str(), (unsigned long long)count, exchanges, took * 1e6 / count, spent * 1e6 / count, spent_by_library * 1e6 / count,
		       100 * spent_by_library / took);
}
