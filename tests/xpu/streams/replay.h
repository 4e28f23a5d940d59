/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* One graph of many exchanges, which is launched many times. Of tests/xpu/streams.cc. */

static void replay(bool leads, unsigned exchanges, unsigned launches)
{
	gpu g;
	lists l;
	dptr log = 0; /* the complement of each message that has come, of one launch */
	void *graph = nullptr, *exec = nullptr;
	const size_t bytes = (size_t)size * exchanges;
	g.open();
	strait_stream *s = open_endpoint();
	meet(s);
	l.open(s, g);
	cu("cuMemAlloc_v2", &log, bytes);
	cu("cuStreamBeginCapture_v2", g.stream, 2);
	for (unsigned n = 0; n < exchanges; n++) {
		const unsigned k = n % batch;
		if (leads) {
			g.make(k);
			OK(strait_stream_list_run(l.send[k], g.stream));
		}
		OK(strait_stream_list_run(l.receive[k], g.stream));
		g.launch(g.answer, threads, log + (dptr)n * size, g.in + (dptr)k * size);
		if (!leads) {
			g.reply(k);
			OK(strait_stream_list_run(l.send[k], g.stream));
		}
	}
	cu("cuStreamEndCapture", g.stream, &graph);
	cu("cuGraphInstantiateWithFlags", &exec, graph, 0ull);
	cu("cuGraphDestroy", graph);
	const double begin = now();
	for (uint64_t turn = 0; turn < launches; turn++) {
		g.clear();
		cu("cuMemsetD8_v2", log, (unsigned char)0xee, bytes);
		cu("cuCtxSynchronize");
		together();
		cu("cuGraphLaunch", exec, g.stream);
		g.end_of_stream();
		const std::vector<uint32_t> all = g.words(log, bytes);
		for (unsigned n = 0; n < exchanges * threads; n++) {
			const uint32_t sent = (uint32_t)(turn * exchanges + n / threads) * step + n % threads;
			CHECK(all[n] == (leads ? sent : ~sent));
		}
	}
	const double took = now() - begin;
	CHECK(failed(s).code == 0);
	cu("cuGraphExecDestroy", exec);
	l.close();
	OK(strait_stream_close(s));
	if (leads)
		printf("ok streams replay: a graph of %u exchanges, launched %u times, %.2f us an exchange with checks\n", exchanges, launches,
		       took * 1e6 / exchanges / launches);
}
