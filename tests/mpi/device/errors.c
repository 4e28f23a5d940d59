/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * What collectives by the ranks' devices answer where not all ranks do the same.
 *
 *   begun   rank 0 is in MPI_Finalize when the others call one that it has called, and has not waited for: it completes
 *   never   rank 0 is in MPI_Finalize, and has not called it: the others get an error
 *   ended   the process of rank 0 has ended before the others call it: they get an error
 *   short   a rank's count is less than the root's: its error is MPI_ERR_TRUNCATE, and no call waits for ever
 *   fatal   the same, with MPI_ERRORS_ARE_FATAL: the error names MPI_Wait
 *   cancel  MPI_Cancel refuses the request, in words
 */
#include "device.h"
#include <time.h>

enum { N = 5000 };

static int *host, *device;

static int begin_sum(MPI_Request *request)
{
	return MPI_Iallreduce(MPI_IN_PLACE, device, N, MPI_INT, MPI_SUM, MPI_COMM_WORLD, request);
}

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

/* Ranks but 0, which is there by now. */
static void others(const char *mode)
{
	MPI_Request request;
	int code;

	nanosleep(&(struct timespec){ 0, 300000000 }, NULL);
	OK(begin_sum(&request));
	code = MPI_Wait(&request, MPI_STATUS_IGNORE);
	if (!strcmp(mode, "begun")) {
		CHECK(code == MPI_SUCCESS);
		return;
	}
	CHECK(strstr(words(code), mode[0] == 'n' ? "rank 0 is in MPI_Finalize" : "the process of rank 0 has ended"));
	/* And so does the next one. */
	CHECK(begin_sum(&request) == code);
}

static void cancelled(void)
{
	MPI_Request request;

	if (me)
		nanosleep(&(struct timespec){ 0, 100000000 }, NULL);
	OK(begin_sum(&request));
	CHECK(strstr(words(MPI_Cancel(&request)), "cannot be cancelled"));
	OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "begun";
	int is_begun = !strcmp(mode, "begun"), is_together = 1, sum = 0;
	MPI_Request request;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &me);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (strcmp(mode, "fatal"))
		MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	cuda_begin(me);
	host = malloc(N * sizeof *host), device = (int *)allocate(DEVICE, N * sizeof *device);
	for (int i = 0; i < N; i++)
		host[i] = i + me, sum += i < ranks ? i : 0;
	move(DEVICE, (char *)device, (char *)host, N * sizeof *host);
	MPI_Barrier(MPI_COMM_WORLD);
	snprintf(the_case, sizeof the_case, "%s", mode);
	if (!strcmp(mode, "short") || !strcmp(mode, "fatal"))
		for (int i = 0; i < 2 * ranks; i++)
			shorter(i % 2, i / 2);
	else if (!strcmp(mode, "cancel"))
		cancelled();
	else if (me)
		others(mode);
	else
		is_together = 0;
	if (!is_together) {
		if (!strcmp(mode, "ended"))
			_exit(0);
		if (is_begun)
			OK(begin_sum(&request));
		MPI_Finalize();
	}
	move(DEVICE, (char *)host, (char *)device, N * sizeof *host);
	for (int i = 0; is_begun && i < N; i++)
		CHECK(host[i] == ranks * i + sum);
	if (!here_failed)
		printf("right errors %s: rank %d\n", mode, me);
	fflush(stdout);
	/* Without one rank MPI_Finalize has no end. */
	if (!strcmp(mode, "ended"))
		_exit(here_failed != 0);
	if (is_together)
		MPI_Finalize();
	return here_failed != 0;
}
