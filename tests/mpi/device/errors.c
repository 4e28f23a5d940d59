/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * What collectives by the ranks' devices answer where not all ranks do the same.
 *
 *   short   a rank's count is less than the root's: its error is MPI_ERR_TRUNCATE, and no call waits for ever
 *   fatal   the same, with MPI_ERRORS_ARE_FATAL: the error names MPI_Wait
 */
#include "device.h"

enum { N = 5000 };

static int *host, *device;

static void shorter(int is_blocking, int root)
{
	int code, class = 0, is_short = me == (root + 1) % ranks, n = is_short ? N - 8 * ranks : N;
	MPI_Request request;
	MPI_Comm comm;

	/* The devices do no more collectives of a communicator with a failure. */
	MPI_Comm_dup(MPI_COMM_WORLD, &comm);
	if (is_blocking) {
		code = MPI_Bcast(device, n, MPI_INT, root, comm);
	} else {
		OK(MPI_Ibcast(device, n, MPI_INT, root, comm, &request));
		code = MPI_Wait(&request, MPI_STATUS_IGNORE);
	}
	MPI_Error_class(code, &class);
	if (is_short)
		CHECK(class == MPI_ERR_TRUNCATE);
	else
		CHECK(code == MPI_SUCCESS || class == MPI_ERR_TRUNCATE || strstr(words(code), "libstrait_mpi"));
	MPI_Comm_free(&comm);
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "short";

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &me);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (strcmp(mode, "fatal"))
		MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	cuda_begin(me);
	host = malloc(N * sizeof *host), device = (int *)allocate(DEVICE, N * sizeof *device);
	for (int i = 0; i < N; i++)
		host[i] = i + me;
	move(DEVICE, (char *)device, (char *)host, N * sizeof *host);
	MPI_Barrier(MPI_COMM_WORLD);
	snprintf(the_case, sizeof the_case, "%s", mode);
	for (int i = 0; i < 2 * ranks; i++)
		shorter(i % 2, i / 2);
	if (!here_failed)
		printf("right errors %s: rank %d\n", mode, me);
	fflush(stdout);
	MPI_Finalize();
	return here_failed != 0;
}
