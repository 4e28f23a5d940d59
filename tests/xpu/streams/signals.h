/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Puts into memory that is mapped, with signals: there and back, of lengths that one block of a kernel copies, and many: part of
 * streams.cc. */

/* Puts there and back, each with the acknowledgement of the one that it answers, by what executes their lists; by a stream also with the
 * call that has both. */
static void puts_answer(gpu &g, bool leads)
{
	static const size_t lengths[] = {8, 32768, 32772, 300004, (3 << 20) + 4};
	const size_t most = (3 << 20) + 64;
	dptr window = 0, out = 0;
	cu("cuMemAlloc_v2", &window, most);
	cu("cuMemAlloc_v2", &out, most);
	strait_stream *s = open_endpoint();
	uint32_t region = 9;
	OK(strait_stream_register(s, (void *)window, most, &region));
	meet(s);
	for (size_t length : lengths) {
		for (unsigned way = 0; way < put_ways; way++) {
			const size_t offset = way == by_nodes ? 1 : 16;
			const strait_stream_transfer put = transfer_of((void *)out, length, region, offset, 2);
			strait_stream_list *wait = nullptr, *first = nullptr, *again = nullptr;
			void *replayed = nullptr;
			unsigned answers = 0;
			OK(strait_stream_list_open(s, 1, &wait));
			OK(strait_stream_list_wait(wait, 2));
			OK(strait_stream_list_open(s, 1, &first));
			OK(strait_stream_list_put(first, &put));
			OK(strait_stream_list_open(s, 2, &again));
			OK(strait_stream_list_acknowledge(again, 2));
			OK(strait_stream_list_put(again, &put));
			if (way == by_capture)
				replayed = captured_list(g, again);
			if (way == by_nodes)
				replayed = of_nodes(again);
			auto run = [&](strait_stream_list *l) {
				if (way == by_cpu)
					OK(strait_stream_list_run_on_cpu(l));
				else if (l == again && replayed)
					cu("cuGraphLaunch", replayed, g.stream);
				else if (l == again && ++answers % 2)
					OK(strait_stream_acknowledge_and_put(s, g.stream, 2, &put));
				else
					OK(strait_stream_list_run(l, g.stream));
				g.end_of_stream();
			};
			for (unsigned turn = 0; turn < 4; turn++) {
				const unsigned mine = 2 * turn + !leads, theirs = 2 * turn + leads;
				std::vector<uint8_t> all(most, 0xee);
				cu("cuMemcpyHtoD_v2", window, (void *)all.data(), most);
				for (size_t i = 0; i < length; i++)
					all[i] = byte_of(i, mine);
				cu("cuMemcpyHtoD_v2", out, (void *)all.data(), most);
				cu("cuCtxSynchronize");
				together();
				if (leads)
					run(turn ? again : first);
				run(wait);
				all.assign(most, 0xee);
				for (size_t i = 0; i < length; i++)
					all[offset + i] = byte_of(i, theirs);
				CHECK(bytes_of(window, most) == all);
				if (!leads)
					run(again);
			}
			if (leads)
				OK(strait_stream_acknowledge(s, g.stream, 2));
			g.end_of_stream();
			together();
			if (replayed)
				cu("cuGraphExecDestroy", replayed);
			for (strait_stream_list *l : {wait, first, again})
				OK(strait_stream_list_close(l));
		}
	}
	CHECK(failed(s).code == 0);
	together();
	OK(strait_stream_close(s));
	cu("cuMemFree_v2", window);
	cu("cuMemFree_v2", out);
}

/* Both sides put at once, and then acknowledge and put at once: no acknowledgement waits for a put of its list. */
static void puts_cross(gpu &g, bool leads)
{
	const size_t length = 300004;
	const uint32_t signal = leads ? 6 : 7, other = leads ? 7 : 6;
	dptr window = 0, out = 0;
	cu("cuMemAlloc_v2", &window, length);
	cu("cuMemAlloc_v2", &out, length);
	for (unsigned way : {by_stream, by_nodes, by_cpu}) {
		strait_stream *s = open_endpoint(0, 10000000000);
		strait_stream_list *wait = nullptr, *first = nullptr, *again = nullptr;
		uint32_t region = 9;
		OK(strait_stream_register(s, (void *)window, length, &region));
		meet(s);
		const strait_stream_transfer put = transfer_of((void *)out, length, region, 0, signal);
		OK(strait_stream_list_open(s, 1, &wait));
		OK(strait_stream_list_wait(wait, other));
		OK(strait_stream_list_open(s, 1, &first));
		OK(strait_stream_list_put(first, &put));
		OK(strait_stream_list_open(s, 2, &again));
		OK(strait_stream_list_acknowledge(again, other));
		OK(strait_stream_list_put(again, &put));
		void *replayed = way == by_nodes ? of_nodes(again) : nullptr;
		for (unsigned turn = 0; turn < 6; turn++) {
			std::vector<uint8_t> all(length);
			for (size_t i = 0; i < length; i++)
				all[i] = byte_of(i, 2 * turn + leads);
			cu("cuMemcpyHtoD_v2", out, (void *)all.data(), length);
			cu("cuCtxSynchronize");
			together();
			if (way == by_cpu)
				OK(strait_stream_list_run_on_cpu(turn ? again : first));
			else if (turn && replayed)
				cu("cuGraphLaunch", replayed, g.stream);
			else
				OK(strait_stream_list_run(turn ? again : first, g.stream));
			if (way == by_cpu)
				OK(strait_stream_list_run_on_cpu(wait));
			else
				OK(strait_stream_list_run(wait, g.stream));
			g.end_of_stream();
			CHECK(failed(s).code == 0);
			for (size_t i = 0; i < length; i++)
				all[i] = byte_of(i, 2 * turn + !leads);
			CHECK(bytes_of(window, length) == all);
		}
		together();
		if (replayed)
			cu("cuGraphExecDestroy", replayed);
		for (strait_stream_list *l : {wait, first, again})
			OK(strait_stream_list_close(l));
		OK(strait_stream_close(s));
	}
	cu("cuMemFree_v2", window);
	cu("cuMemFree_v2", out);
}

/* A put that waits for the acknowledgement of the one before moves nothing when its endpoint fails: by the time limit, an abort of
 * the other side, the end of the other side. */
static void puts_end(gpu &g, bool leads)
{
	enum { by_time, by_abort, by_close, ends };
	const size_t length = 300004;
	dptr window = 0, out = 0;
	cu("cuMemAlloc_v2", &window, length);
	cu("cuMemAlloc_v2", &out, length);
	for (unsigned end = 0; end < ends; end++) {
		const int code = end == by_time ? ETIMEDOUT : end == by_abort ? ECANCELED : EPIPE;
		strait_stream *s = open_endpoint(0, end == by_time ? 300000000 : 20000000000);
		uint32_t region = 9;
		OK(strait_stream_register(s, (void *)window, length, &region));
		meet(s);
		const strait_stream_transfer alone = transfer_of((void *)out, 0, region, 0, 5);
		if (leads) {
			const strait_stream_transfer put = transfer_of((void *)out, length, region, 0, 3);
			cu("cuMemsetD8_v2", out, (unsigned char)0x11, length);
			cu("cuCtxSynchronize");
			OK(strait_stream_put(s, g.stream, &put));
			g.end_of_stream();
			cu("cuMemsetD8_v2", out, (unsigned char)0x22, length);
			cu("cuCtxSynchronize");
			/* A plain put behind it, and one with another signal, whose word is there. */
			OK(strait_stream_put(s, g.stream, &put));
			const strait_stream_transfer plain = transfer_of((void *)out, length, region, 0, STRAIT_STREAM_NO_SIGNAL);
			OK(strait_stream_put(s, g.stream, &plain));
			const strait_stream_transfer other = transfer_of((void *)out, length, region, 0, 4);
			OK(strait_stream_put(s, g.stream, &other));
			/* One of a signal alone, and a wait whose signal has come. */
			OK(strait_stream_put(s, g.stream, &alone));
			OK(strait_stream_wait(s, g.stream, 5));
			together();
			g.end_of_stream();
			fails(s, code);
			CHECK(end == by_abort || (failed(s).operation == STRAIT_STREAM_OP_PUT && failed(s).index == 3));
		} else {
			OK(strait_stream_wait(s, g.stream, 3));
			OK(strait_stream_put(s, g.stream, &alone));
			g.end_of_stream();
			together();
			usleep(100000);
			if (end == by_abort)
				OK(strait_stream_abort(s));
			if (end == by_time)
				fails(s, ETIMEDOUT);
			if (end == by_close)
				OK(strait_stream_close(s));
		}
		together();
		if (!leads)
			CHECK(bytes_of(window, length) == std::vector<uint8_t>(length, 0x11));
		if (leads || end != by_close)
			OK(strait_stream_close(s));
		together();
	}
	cu("cuMemFree_v2", window);
	cu("cuMemFree_v2", out);
}

/* Over the stand-in: one launch for a put of any length, with the acknowledgement before it. Of the two nothing is queued if either is
 * refused. */
static void puts_launch(gpu &g)
{
	auto calls = (uint64_t (*)(const char *))dlsym(RTLD_DEFAULT, "stand_in_calls");
	dptr memory = 0;
	const size_t length = 3 << 20;
	cu("cuMemAlloc_v2", &memory, 2 * length);
	strait_stream *s = open_endpoint();
	strait_stream_list *l = nullptr;
	uint32_t region = 9;
	OK(strait_stream_register(s, (void *)memory, length, &region));
	meet(s);
	if (calls && kernels_wait(s)) {
		const strait_stream_transfer put = transfer_of((void *)(memory + length), length, region, 0, 3);
		OK(strait_stream_list_open(s, 2, &l));
		OK(strait_stream_list_acknowledge(l, 5));
		OK(strait_stream_list_put(l, &put));
		const uint64_t before = calls("cuLaunchKernel");
		OK(strait_stream_list_run(l, g.stream));
		CHECK(calls("cuLaunchKernel") == before + 1);
		OK(strait_stream_wait(s, g.stream, 3));
		CHECK(calls("cuLaunchKernel") == before + 2);
		OK(strait_stream_acknowledge_and_put(s, g.stream, 3, &put));
		CHECK(calls("cuLaunchKernel") == before + 3);
		OK(strait_stream_wait(s, g.stream, 3));
		g.end_of_stream();
		OK(strait_stream_list_close(l));
	}
	const strait_stream_transfer outside = transfer_of((void *)memory, 2, region, length - 1, 3);
	const strait_stream_transfer inside = transfer_of((void *)memory, 2, region, 0, 3);
	uint64_t puts = 0, waits = 0, puts_after = 0, waits_after = 0;
	OK(strait_stream_executed(s, &puts, &waits));
	REFUSED(EINVAL, strait_stream_acknowledge_and_put(s, g.stream, 3, &outside));
	REFUSED(EINVAL, strait_stream_acknowledge_and_put(s, g.stream, 99999, &inside));
	g.end_of_stream();
	OK(strait_stream_executed(s, &puts_after, &waits_after));
	CHECK(puts_after == puts && waits_after == waits && failed(s).code == 0);
	together();
	OK(strait_stream_close(s));
	cu("cuMemFree_v2", memory);
}

static void signalled_puts(bool leads)
{
	gpu g;
	g.open();
	puts_answer(g, leads);
	puts_cross(g, leads);
	puts_end(g, leads);
	puts_launch(g);
	if (leads)
		printf("ok streams puts\n");
}
