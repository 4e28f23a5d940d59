/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * What collectives by the ranks' devices answer where not all ranks do the same.
 *
 *   begun   rank 0 is in MPI_Finalize when the others call one that it has called, and has not waited for: it completes
 *   never   rank 0 is in MPI_Finalize, and has not called it: the others get an error
 *   ended   the process of rank 0 has ended before the others call it: they get an error
 *   killed  the process of rank 0 ends while the others call MPI_Allreduce again and again: they get an error
 *   short   a rank's count is less than the root's: its error is MPI_ERR_TRUNCATE, a third rank gets one, too, since devices do it, and no call
 *           waits for ever
 *   fatal   the same, with MPI_ERRORS_ARE_FATAL at ranks with enough room: the third rank's error names MPI_Wait
 *   cancel  MPI_Cancel refuses the request, in words
 *   mpi     a rank's count is less than the root's, which passes host memory, so that the MPI does it: the error is raised once, by MPI_Wait
 *   handler  the error handler calls a collective of the communicator that has failed, since a kernel of rank 0 has
 *   attribute  a function for an attribute of a datatype, which the library has copied, calls a collective; also where it is called in a
 *           collective of the same communicator
 *   null    the error handler calls a collective of the communicator, of which one with MPI_DATATYPE_NULL was called
 *   corrupt  a rank has written words that cannot be: a rank that has seen them gets an error, and so does one that waits for that rank
 */
#include "device.h"
#include <sys/time.h>
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
	else if (me == root)
		CHECK(code == MPI_SUCCESS || class == MPI_ERR_TRUNCATE || strstr(words(code), "libstrait_mpi"));
	else
		CHECK(class == MPI_ERR_TRUNCATE || strstr(words(code), "libstrait_mpi"));
	MPI_Comm_free(&comm);
}

static int handled;

static void count_handled(MPI_Comm *comm, int *code, ...)
{
	(void)code;
	CHECK(*comm == MPI_COMM_WORLD);
	handled++;
}

static void by_mpi(void)
{
	MPI_Errhandler handler;
	MPI_Request request;
	MPI_Comm comm;

	OK(MPI_Comm_create_errhandler(count_handled, &handler));
	OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, handler));
	for (int root = 0; root < ranks; root++) {
		/* No rank gets its data from that one: Open MPI's MPI_Ibcast is linear up to 4 ranks, and a tree with more, of which it is a leaf. */
		int code, class = 0, is_short = me == (root == ranks - 1 ? 0 : ranks - 1);

		OK(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
		OK(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
		handled = 0;
		OK(MPI_Ibcast(me == root ? host : device, is_short ? N - 8 : N, MPI_INT, root, comm, &request));
		CHECK(handled == 0);
		code = MPI_Wait(&request, MPI_STATUS_IGNORE);
		OK(MPI_Error_class(code, &class));
		CHECK(class == (is_short ? MPI_ERR_TRUNCATE : MPI_SUCCESS));
		CHECK(handled == is_short);
		OK(MPI_Comm_free(&comm));
	}
	OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
	OK(MPI_Errhandler_free(&handler));
}

static void sum_in_handler(MPI_Comm *comm, int *code, ...)
{
	int sum = 1;

	(void)code;
	handled++;
	OK(MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_INT, MPI_SUM, *comm));
	CHECK(sum == ranks);
}

static void in_handler(void)
{
	MPI_Errhandler handler;
	MPI_Comm comm;

	OK(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
	OK(MPI_Comm_create_errhandler(sum_in_handler, &handler));
	OK(MPI_Comm_set_errhandler(comm, handler));
	CHECK(strstr(words(MPI_Allreduce(MPI_IN_PLACE, device, N, MPI_INT, MPI_SUM, comm)), "libstrait_mpi"));
	CHECK(handled == 1);
	OK(MPI_Errhandler_free(&handler));
	OK(MPI_Comm_free(&comm));
}

static void null_datatype(void)
{
	int counts[64] = { 0 }, begins[64] = { 0 };
	MPI_Errhandler handler;

	counts[0] = 1;
	OK(MPI_Comm_create_errhandler(sum_in_handler, &handler));
	OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, handler));
	BAD(MPI_Alltoallv(device, counts, begins, MPI_DATATYPE_NULL, device, counts, begins, MPI_DATATYPE_NULL, MPI_COMM_WORLD));
	CHECK(handled > 0);
	OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
	OK(MPI_Errhandler_free(&handler));
}

static MPI_Request of_deleted;
static int deleted;

static int delete_attribute(MPI_Datatype type, int key, void *value, void *extra)
{
	(void)type, (void)key, (void)value, (void)extra;
	if (!deleted++)
		OK(begin_sum(&of_deleted));
	return MPI_SUCCESS;
}

static int delete_and_sum(MPI_Datatype type, int key, void *value, void *extra)
{
	(void)type, (void)key, (void)value, (void)extra;
	if (!deleted++)
		OK(MPI_Allreduce(MPI_IN_PLACE, device, N, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
	return MPI_SUCCESS;
}

static void attribute(MPI_Type_delete_attr_function *function, int is_blocking)
{
	MPI_Datatype type;
	MPI_Request request;
	int key;

	OK(MPI_Type_create_keyval(MPI_TYPE_DUP_FN, function, &key, NULL));
	OK(MPI_Type_contiguous(100, MPI_INT, &type));
	OK(MPI_Type_commit(&type));
	OK(MPI_Type_set_attr(type, key, host));
	deleted = 0;
	/* So that it completes in the call that blocks, which the others are in by then. */
	if (is_blocking && !me)
		nanosleep(&(struct timespec){ 0, 200000000 }, NULL);
	OK(MPI_Ibcast(device, 1, type, 0, MPI_COMM_WORLD, &request));
	CHECK(deleted == 0);
	if (is_blocking)
		OK(MPI_Allreduce(MPI_IN_PLACE, device, N, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
	OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
	CHECK(deleted == 1);
	if (!is_blocking)
		OK(MPI_Wait(&of_deleted, MPI_STATUS_IGNORE));
	OK(MPI_Type_free(&type));
	CHECK(deleted == 2);
	OK(MPI_Type_free_keyval(&key));
}

/* A word of a rank's in the memory that the ranks of MPI_COMM_WORLD share: what it has posted, and one that the library has no use for. */
enum { POSTED = 4, UNUSED = 7, WORDS = 8 };

static volatile uint64_t *word(int rank, int at)
{
	static volatile uint64_t *memory;
	unsigned long first = 0;
	char line[512];
	FILE *maps = memory ? NULL : fopen("/proc/self/maps", "r");

	while (maps && !memory && fgets(line, sizeof line, maps))
		if (strstr(line, "/dev/shm/strait-mpi-") && sscanf(line, "%lx", &first) == 1)
			memory = (volatile uint64_t *)first;
	if (maps)
		fclose(maps);
	if (!memory) {
		fail("the ranks share no memory");
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	return &memory[WORDS * rank + at];
}

/* All ranks are so far. */
static void all_are_at(uint64_t step)
{
	*word(me, UNUSED) = step;
	for (int rank = 0; rank < ranks; rank++)
		while (*word(rank, UNUSED) < step)
			nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
}

static void wait_fails(MPI_Request *request, const char *why)
{
	const char *text = words(MPI_Wait(request, MPI_STATUS_IGNORE));

	if (!strstr(text, why))
		fail("not '%s' but '%s'", why, text);
}

static const char given_up[] = "calls no more collectives that return a request, after an error";

static void corrupt(void)
{
	uint64_t before = *word(0, POSTED);
	MPI_Request request;
	const char *text;

	if (me > 1)
		OK(begin_sum(&request));
	all_are_at(1);
	if (me == 0)
		*word(0, POSTED) = ~(uint64_t)0;
	all_are_at(2);
	if (me == 1) {
		OK(begin_sum(&request));
		wait_fails(&request, "words that cannot be");
	}
	all_are_at(3);
	if (me == 0)
		*word(0, POSTED) = before;
	all_are_at(4);
	if (me > 1)
		wait_fails(&request, given_up);
	all_are_at(5);
	/* A rank that passes host memory would wait for that one in the MPI. */
	text = words(MPI_Iallreduce(MPI_IN_PLACE, me ? device : host, N, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request));
	if (!strstr(text, me == 1 ? "words that cannot be" : given_up))
		fail("'%s'", text);
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

static void leave(int signal)
{
	(void)signal;
	_exit(0);
}

static void in_collectives(void)
{
	const struct itimerval soon = { .it_value.tv_usec = 200000 + (suseconds_t)(mix((unsigned)getpid()) % 100000) };
	int code;

	if (!me) {
		signal(SIGALRM, leave);
		setitimer(ITIMER_REAL, &soon, NULL);
	}
	do
		code = MPI_Allreduce(MPI_IN_PLACE, device, N, MPI_INT, MPI_BXOR, MPI_COMM_WORLD);
	while (code == MPI_SUCCESS);
	CHECK(strstr(words(code), "libstrait_mpi"));
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "begun";
	int is_begun = !strcmp(mode, "begun"), is_together = 1, sum = 0;
	MPI_Request request;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &me);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	/* With MPI_ERRORS_ARE_FATAL the first collective is the last one. */
	if (strcmp(mode, "fatal") || me == 1)
		MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	if (!strcmp(mode, "handler") && me == 0)
		setenv("CUDA_STAND_IN_FAIL", "cuLaunchKernel=719", 1);
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
	else if (!strcmp(mode, "mpi"))
		by_mpi();
	else if (!strcmp(mode, "handler"))
		in_handler();
	else if (!strcmp(mode, "null"))
		null_datatype();
	else if (!strcmp(mode, "attribute"))
		attribute(delete_attribute, 0), attribute(delete_and_sum, 1);
	else if (!strcmp(mode, "corrupt"))
		corrupt();
	else if (!strcmp(mode, "killed"))
		in_collectives();
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
	if (!strcmp(mode, "ended") || !strcmp(mode, "killed"))
		_exit(here_failed != 0);
	if (is_together)
		MPI_Finalize();
	return here_failed != 0;
}
