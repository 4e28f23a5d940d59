/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The loop of streams.cc as the host does it: it waits for the kernel, sends, and waits for the answer, each time. What carries the
 * messages is a type with together(), send(at, n) and receive(at, n), which return when the buffer may be used: of ucx.cc and mpi.cc. */
#ifndef STRAIT_TEST_XPU_STREAMS_HOSTED_H
#define STRAIT_TEST_XPU_STREAMS_HOSTED_H

#include "gpu.h"

/* Times the batches but the first one, and prints a line as streams.cc does. `batch_of` exchanges the messages of one batch. */
template <class Carrier, class Batch> void timed(Carrier &by, gpu &g, bool leads, uint64_t iterations, const char *name, Batch batch_of)
{
	double begin = 0, spent = 0, spent_by_library = 0;
	for (uint64_t first = 0; first < iterations + batch; first += batch) {
		g.clear();
		by.together();
		if (first == batch)
			begin = now(), spent = cpu_seconds(), spent_by_library = library_seconds();
		batch_of();
		g.check(first, leads ? 0xffffffff : 0);
	}
	const double took = now() - begin;
	spent = cpu_seconds() - spent, spent_by_library = library_seconds() - spent_by_library;
	by.together();
	if (leads)
		printf("ok %s: %llu iterations, %.2f us and %.2f CPU us an iteration; of it %.2f by the library's threads, %.1f %% of a core\n",
		       name, (unsigned long long)iterations, took * 1e6 / iterations, spent * 1e6 / iterations,
		       spent_by_library * 1e6 / iterations, 100 * spent_by_library / took);
	fflush(stdout);
}

template <class Carrier> void synchronous(Carrier &by, gpu &g, bool leads, uint64_t iterations, const char *name)
{
	timed(by, g, leads, iterations, name, [&] {
		for (unsigned n = 0; n < batch; n++) {
			if (leads) {
				g.make(n);
			} else {
				by.receive(g.at(g.in, n), n);
				g.reply(n);
			}
			cu("cuStreamSynchronize", g.stream);
			by.send(g.at(g.out, n), n);
			if (leads)
				by.receive(g.at(g.in, n), n);
		}
	});
}

#endif
