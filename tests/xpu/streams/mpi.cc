/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Two ranks exchange messages of 128 bytes of device memory through an MPI, each behind a kernel that the host waits for: what
 * streams.cc is compared with; and the same loop by include/strait_mpi_stream.h, whose stream waits.
 *
 *     mpi device ITERATIONS     the MPI takes device memory, by itself or by libstrait_mpi.so.0, preloaded
 *     mpi staged ITERATIONS     the program copies to host memory and back
 *     mpi enqueue ITERATIONS    strait_mpi_stream.h; device memory as in `device`
 *
 * Rank 0 prints one line, "ok mpi ...". */
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <strait_mpi_stream.h>

#include "hosted.h"

struct mpi {
	int peer = 0;
	bool staged = false;
	char bounce[size];

	void together()
	{
		char mine = 0, theirs = 0;
		CHECK(MPI_Sendrecv(&mine, 1, MPI_CHAR, peer, 99, &theirs, 1, MPI_CHAR, peer, 99, MPI_COMM_WORLD, MPI_STATUS_IGNORE) == MPI_SUCCESS);
	}

	void send(void *at, unsigned n)
	{
		if (staged) {
			cu("cuMemcpyDtoH_v2", (void *)bounce, (dptr)at, (size_t)size);
			at = bounce;
		}
		CHECK(MPI_Send(at, size, MPI_BYTE, peer, (int)n, MPI_COMM_WORLD) == MPI_SUCCESS);
	}

	void receive(void *at, unsigned n)
	{
		CHECK(MPI_Recv(staged ? bounce : at, size, MPI_BYTE, peer, (int)n, MPI_COMM_WORLD, MPI_STATUS_IGNORE) == MPI_SUCCESS);
		if (staged)
			cu("cuMemcpyHtoD_v2", (dptr)at, (const void *)bounce, (size_t)size);
	}
};

static void enqueued(mpi &by, gpu &g, bool leads, uint64_t iterations)
{
	strait_mpi_stream *q = nullptr;
	const char *mode = getenv("FI_STRAIT_XPU_MODE");
	CHECK(strait_mpi_stream_open(g.stream, &q) == 0);
	timed(by, g, leads, iterations, (std::string("mpi enqueue ") + (mode ? mode : "auto")).c_str(), [&] {
		for (unsigned n = 0; n < batch; n++) {
			if (!leads) {
				CHECK(strait_mpi_recv_enqueue(g.at(g.in, n), size, MPI_BYTE, by.peer, (int)n, MPI_COMM_WORLD, q, MPI_STATUS_IGNORE) == 0);
				g.reply(n);
			} else {
				g.make(n);
			}
			CHECK(strait_mpi_send_enqueue(g.at(g.out, n), size, MPI_BYTE, by.peer, (int)n, MPI_COMM_WORLD, q) == 0);
			if (leads)
				CHECK(strait_mpi_recv_enqueue(g.at(g.in, n), size, MPI_BYTE, by.peer, (int)n, MPI_COMM_WORLD, q, MPI_STATUS_IGNORE) == 0);
		}
		g.end_of_stream();
		CHECK(strait_mpi_stream_failed(q) == 0);
	});
	for (const double begin = now(); strait_mpi_stream_close(q);)
		CHECK(now() - begin < limit_s);
}

int main(int argc, char **argv)
{
	int provided = 0, rank = 0, ranks = 0;
	const std::string way = argc == 3 ? argv[1] : "";
	if (way != "device" && way != "staged" && way != "enqueue")
		return fprintf(stderr, "usage: mpi device|staged|enqueue ITERATIONS\n"), 2;
	const uint64_t iterations = strtoull(argv[2], nullptr, 10);
	MPI_Init_thread(&argc, &argv, way == "enqueue" ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &provided);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	CHECK(ranks == 2 && (way != "enqueue" || provided == MPI_THREAD_MULTIPLE));
	role = rank ? "second" : "first";
	try {
		gpu g;
		mpi by;
		by.peer = 1 - rank;
		by.staged = way == "staged";
		g.open();
		if (way == "enqueue")
			enqueued(by, g, rank == 0, iterations);
		else
			synchronous(by, g, rank == 0, iterations, ("mpi " + way).c_str());
	} catch (const std::exception &e) {
		fprintf(stderr, "%s: %s\n", role, e.what());
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	MPI_Finalize();
	return 0;
}
