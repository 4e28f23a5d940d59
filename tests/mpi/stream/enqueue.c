/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Pairs of ranks whose streams send to each other through include/strait_mpi_stream.h, under any MPI that takes device memory, by itself
 * or by libstrait_mpi.so.0. CUDA's driver, or its stand-in, is libcuda.so.1. Contents and statuses are checked.
 *
 *     enqueue ITERATIONS    a loop with a kernel between; several receives under way, with tags, waited for in another order; other
 *                           types; a ring of all ranks; what is refused; how often the agent polls; an abort while a stream waits
 *     enqueue half          rank 1 is stopped in the middle of a long message until the limit has passed
 *     enqueue killed        rank 1 is killed while the stream of rank 0 waits for it, which goes on
 *
 * Rank 0 prints one line, "ok enqueue ...". */
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <strait_mpi_stream.h>

typedef unsigned long long dptr;
extern int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *), cuStreamCreate(void **, unsigned);
extern int cuModuleLoadData(void **, const char *), cuModuleGetFunction(void **, void *, const char *), cuMemAlloc_v2(dptr *, size_t);
extern int cuMemcpyDtoH_v2(void *, dptr, size_t), cuMemcpyHtoD_v2(dptr, const void *, size_t), cuStreamQuery(void *);
extern int cuStreamBeginCapture_v2(void *, int), cuStreamEndCapture(void *, void **), cuGraphDestroy(void *);
extern int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

enum { words = 32, tags = 8, large = 300000, limit_s = 60 };

static int me, peer, odd, ranks; /* pairs of an even rank and an odd one */
static void *stream, *add;
static struct strait_mpi_stream *q;

#define CHECK(what)                                                                                               \
	do {                                                                                                      \
		if (!(what)) {                                                                                    \
			fprintf(stderr, "rank %d: line %d: %s (%s)\n", me, __LINE__, #what, strait_stream_error()); \
			MPI_Abort(MPI_COMM_WORLD, 1);                                                             \
		}                                                                                                 \
	} while (0)

/* add: thread i stores word i of `from`, and 1, in word i of `to`. */
static const char kernel[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
			     ".visible .entry add(.param .u64 to, .param .u64 from)\n{\n"
			     ".reg .b32 %r<4>;\n.reg .b64 %d<5>;\n"
			     "ld.param.u64 %d0, [to];\nld.param.u64 %d1, [from];\n"
			     "mov.u32 %r0, %tid.x;\nmov.u32 %r2, 4;\nmul.wide.u32 %d2, %r0, %r2;\n"
			     "add.u64 %d3, %d0, %d2;\nadd.u64 %d4, %d1, %d2;\n"
			     "ld.global.u32 %r1, [%d4+0];\nmov.u32 %r3, 1;\nadd.u32 %r1, %r1, %r3;\nst.global.u32 [%d3+0], %r1;\nret;\n}\n";

static void launch(dptr to, dptr from)
{
	void *args[] = {&to, &from};
	CHECK(cuLaunchKernel(add, 1, 1, 1, words, 1, 1, 0, stream, args, NULL) == 0);
}

static dptr memory(unsigned bytes, uint32_t step)
{
	uint32_t *start = malloc(bytes);
	dptr at;
	CHECK(start && cuMemAlloc_v2(&at, bytes) == 0);
	for (unsigned i = 0; i < bytes / 4; i++)
		start[i] = i * step;
	CHECK(cuMemcpyHtoD_v2(at, start, bytes) == 0);
	free(start);
	return at;
}

static void has(dptr at, unsigned bytes, uint32_t step, uint32_t plus)
{
	uint32_t *found = malloc(bytes);
	CHECK(found && cuMemcpyDtoH_v2(found, at, bytes) == 0);
	for (unsigned i = 0; i < bytes / 4; i++)
		CHECK(found[i] == i * step + plus);
	free(found);
}

static void end_of_stream(void)
{
	const double begin = MPI_Wtime();
	int rc;
	while ((rc = cuStreamQuery(stream)) == 600) {
		CHECK(MPI_Wtime() - begin < limit_s);
		usleep(50);
	}
	CHECK(rc == 0);
}

/* Each kernel adds 1: a message that is lost, or taken twice, shows. */
static void loop(int iterations)
{
	const dptr tx = memory(4 * words, odd ? 0 : 1000), rx = memory(4 * words, 0);
	MPI_Status status[20];
	for (int done = 0; done < iterations; done += 20) {
		memset(status, 0xff, sizeof status);
		for (int i = 0; i < 20; i++) {
			if (!odd)
				CHECK(strait_mpi_send_enqueue((void *)tx, words, MPI_UINT32_T, peer, 3, MPI_COMM_WORLD, q) == 0);
			CHECK(strait_mpi_recv_enqueue((void *)rx, words, MPI_UINT32_T, peer, MPI_ANY_TAG, MPI_COMM_WORLD, q, &status[i]) == 0);
			launch(tx, rx);
			if (odd)
				CHECK(strait_mpi_send_enqueue((void *)tx, words, MPI_UINT32_T, peer, 4, MPI_COMM_WORLD, q) == 0);
		}
		end_of_stream();
		for (int i = 0; i < 20; i++) {
			int count = 0;
			MPI_Get_count(&status[i], MPI_UINT32_T, &count);
			CHECK(status[i].MPI_SOURCE == peer && status[i].MPI_TAG == 4 - odd && count == words);
		}
		has(tx, 4 * words, 1000, 2 * (uint32_t)(done + 20) - (uint32_t)odd);
	}
}

/* Receives of all tags are under way before the sends, which come in the other order; also a long one, of a rendezvous. */
static void several(void)
{
	dptr out[tags], in[tags];
	strait_mpi_request receives[tags], sends[tags];
	const unsigned bytes = 4 * words;
	const dptr other = memory(bytes, 0);
	for (int t = 0; t < tags; t++) {
		out[t] = memory(t ? bytes : large, (uint32_t)(7 * t + 2 + me));
		in[t] = memory(t ? bytes : large, 0);
	}
	for (int t = 0; t < tags; t++)
		CHECK(strait_mpi_irecv_enqueue((void *)in[t], t ? (int)bytes : large, MPI_BYTE, peer, t, MPI_COMM_WORLD, q, MPI_STATUS_IGNORE,
					       &receives[t]) == 0);
	for (int t = tags - 1; t >= 0; t--)
		CHECK(strait_mpi_isend_enqueue((void *)out[t], t ? (int)bytes : large, MPI_BYTE, peer, t, MPI_COMM_WORLD, q, &sends[t]) == 0);
	CHECK(strait_mpi_wait_enqueue(q, &receives[5]) == 0 && receives[5].number == 0 && strait_mpi_wait_enqueue(q, &receives[5]) == 0);
	/* A kernel behind one wait, and before the others. */
	launch(other, in[5]);
	CHECK(strait_mpi_waitall_enqueue(q, tags, sends) == 0 && strait_mpi_waitall_enqueue(q, tags, receives) == 0);
	end_of_stream();
	for (int t = 0; t < tags; t++)
		has(in[t], t ? bytes : large, (uint32_t)(7 * t + 2 + peer), 0);
	has(other, bytes, 7 * 5 + 2 + (uint32_t)peer, 1);
}

/* Messages of other contiguous types than words. */
static void types(void)
{
	MPI_Datatype all[5] = {MPI_DOUBLE, MPI_FLOAT, MPI_INT64_T, MPI_CHAR, MPI_DATATYPE_NULL};
	const int counts[5] = {words / 2, words, words / 2, 4 * words, 4};
	MPI_Type_contiguous(8, MPI_UINT32_T, &all[4]);
	MPI_Type_commit(&all[4]);
	for (int t = 0; t < 5; t++) {
		const dptr out = memory(4 * words, (uint32_t)(5 * t + 3 + odd)), in = memory(4 * words, 1);
		strait_mpi_request request = {0};
		CHECK(strait_mpi_irecv_enqueue((void *)in, counts[t], all[t], peer, t, MPI_COMM_WORLD, q, MPI_STATUS_IGNORE, &request) == 0);
		CHECK(strait_mpi_send_enqueue((void *)out, counts[t], all[t], peer, t, MPI_COMM_WORLD, q) == 0);
		CHECK(strait_mpi_wait_enqueue(q, &request) == 0);
		end_of_stream();
		CHECK(!strait_mpi_stream_failed(q));
		has(in, 4 * words, (uint32_t)(5 * t + 3 + !odd), 0);
	}
	MPI_Type_free(&all[4]);
	/* One with gaps is refused, and the queue goes on. */
	const dptr at = memory(4 * words, 1);
	MPI_Datatype vector;
	strait_mpi_request request = {0};
	MPI_Type_vector(8, 2, 4, MPI_UINT32_T, &vector);
	MPI_Type_commit(&vector);
	CHECK(strait_mpi_irecv_enqueue((void *)at, 1, vector, peer, 9, MPI_COMM_WORLD, q, MPI_STATUS_IGNORE, &request) == -EOPNOTSUPP);
	CHECK(strait_mpi_send_enqueue((void *)at, 1, vector, peer, 9, MPI_COMM_WORLD, q) == -EOPNOTSUPP);
	CHECK(!strait_mpi_stream_failed(q));
	MPI_Type_free(&vector);
}

/* Each rank sends to the next one, and has a receive under way from the last one; a message goes once around. */
static void ring(void)
{
	const int next = (me + 1) % ranks, last = (me + ranks - 1) % ranks;
	const dptr at = memory(4 * words, 1000 * (uint32_t)me + 1), in = memory(4 * words, 0);
	for (int turn = 0; turn < ranks; turn++) {
		strait_mpi_request request = {0};
		CHECK(strait_mpi_irecv_enqueue((void *)in, words, MPI_UINT32_T, last, turn, MPI_COMM_WORLD, q, MPI_STATUS_IGNORE, &request) == 0);
		CHECK(strait_mpi_send_enqueue((void *)at, words, MPI_UINT32_T, next, turn, MPI_COMM_WORLD, q) == 0);
		CHECK(strait_mpi_wait_enqueue(q, &request) == 0);
		launch(at, in);
	}
	end_of_stream();
	CHECK(!strait_mpi_stream_failed(q));
	/* `ranks` turns of one more each. */
	has(at, 4 * words, 1000 * (uint32_t)me + 1, (uint32_t)ranks);
}

/* The failure names that operation with the peer. */
static void named(int code, int sends, int tag)
{
	struct strait_mpi_failure f;
	char words_of[200], rank[40];
	CHECK(strait_mpi_stream_failure(q, &f) == 0);
	CHECK(f.code == code && f.sends == sends && f.tag == tag && f.number > 0 && f.error == strait_mpi_stream_failed(q));
	snprintf(rank, sizeof rank, "%s rank %d with tag %d", sends ? "to" : "from", f.peer, tag);
	CHECK(strait_mpi_stream_describe(q, words_of, sizeof words_of) > 0 && strstr(words_of, rank));
}

static void closed(void)
{
	const double begin = MPI_Wtime();
	while (strait_mpi_stream_close(q) == -EBUSY)
		CHECK(MPI_Wtime() - begin < limit_s);
}

/* Nothing comes for as long as the time limit. What is under way and not waited for has none. */
static void limits(void)
{
	const dptr at = memory(4 * words, 9), other = memory(4 * words, 9);
	strait_mpi_request late;
	struct strait_mpi_failure f;
	CHECK(strait_mpi_stream_open(stream, &q) == 0);
	strait_mpi_stream_set_timeout(q, 100000000);
	CHECK(strait_mpi_irecv_enqueue((void *)other, words, MPI_UINT32_T, peer, 80, MPI_COMM_WORLD, q, MPI_STATUS_IGNORE, &late) == 0);
	end_of_stream();
	usleep(300000);
	CHECK(!strait_mpi_stream_failed(q) && strait_mpi_stream_failure(q, &f) == -EAGAIN);
	CHECK(strait_mpi_recv_enqueue((void *)at, words, MPI_UINT32_T, peer, 79, MPI_COMM_WORLD, q, MPI_STATUS_IGNORE) == 0);
	end_of_stream();
	named(ETIMEDOUT, 0, 79);
	has(at, 4 * words, 9, 0);
	closed();
}

/* An odd rank stops its peer for longer than the limit, and sends meanwhile: the message is there before the limit counts. */
static void stopped(void)
{
	uint32_t *at = calloc(words, 4);
	int pid = getpid(), other = 0;
	const char *mode = getenv("FI_STRAIT_XPU_MODE");
	MPI_Sendrecv(&pid, 1, MPI_INT, peer, 90, &other, 1, MPI_INT, peer, 90, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	CHECK(at);
	if (odd) {
		for (int i = 0; i < words; i++)
			at[i] = 6;
		MPI_Recv(&pid, 1, MPI_INT, peer, 91, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		CHECK(kill(other, SIGSTOP) == 0);
		CHECK(MPI_Send(at, words, MPI_UINT32_T, peer, 92, MPI_COMM_WORLD) == 0);
		usleep(2500000);
		CHECK(kill(other, SIGCONT) == 0);
	} else {
		CHECK(strait_mpi_stream_open(stream, &q) == 0);
		strait_mpi_stream_set_timeout(q, 2000000000);
		CHECK(strait_mpi_recv_enqueue(at, words, MPI_UINT32_T, peer, 92, MPI_COMM_WORLD, q, MPI_STATUS_IGNORE) == 0);
		/* Until the agent has seen that the stream waits, and reads the clock: soon, since the limit has begun. */
		const uint64_t before = strait_mpi_stream_polls(q);
		while (strait_mpi_stream_polls(q) - before < (mode && !strcmp(mode, "economy") ? 100 : 3000))
			usleep(50);
		MPI_Send(&pid, 1, MPI_INT, peer, 91, MPI_COMM_WORLD);
		end_of_stream();
		CHECK(!strait_mpi_stream_failed(q) && at[0] == 6 && at[words - 1] == 6);
		closed();
	}
	free(at);
}

/* A long receive whose sender is stopped cannot be cancelled: the MPI has the buffer, and the queue is not closed, until it goes on. */
static void half(void)
{
	enum { bytes = 8 << 20 };
	uint32_t *at = calloc(1, bytes);
	int pid = getpid(), other = 0, there = 0;
	CHECK(at);
	MPI_Sendrecv(&pid, 1, MPI_INT, peer, 93, &other, 1, MPI_INT, peer, 93, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	if (me == 1) {
		MPI_Request request;
		memset(at, 7, bytes);
		CHECK(MPI_Isend(at, bytes, MPI_BYTE, peer, 94, MPI_COMM_WORLD, &request) == 0);
		CHECK(raise(SIGSTOP) == 0);
		MPI_Wait(&request, MPI_STATUS_IGNORE);
	} else {
		CHECK(strait_mpi_stream_open(stream, &q) == 0);
		strait_mpi_stream_set_timeout(q, 200000000);
		while (!there)
			MPI_Iprobe(peer, 94, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
		usleep(200000);
		CHECK(strait_mpi_recv_enqueue(at, bytes, MPI_BYTE, peer, 94, MPI_COMM_WORLD, q, MPI_STATUS_IGNORE) == 0);
		end_of_stream();
		named(ETIMEDOUT, 0, 94);
		for (int i = 0; i < 30; i++, usleep(50000))
			CHECK(strait_mpi_stream_close(q) == -EBUSY);
		CHECK(kill(other, SIGCONT) == 0);
		closed();
		printf("ok enqueue half\n");
	}
	free(at);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Finalize();
	exit(0);
}

/* Whatever the MPI makes of it: it may notice, or not. */
static void killed(void)
{
	const dptr at = memory(4 * words, 9);
	struct strait_mpi_failure f;
	strait_mpi_stream_set_timeout(q, 1000000000);
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	MPI_Barrier(MPI_COMM_WORLD);
	if (me == 1) {
		usleep(100000);
		raise(SIGKILL);
	}
	signal(SIGTERM, SIG_IGN);
	CHECK(strait_mpi_recv_enqueue((void *)at, words, MPI_UINT32_T, peer, 5, MPI_COMM_WORLD, q, MPI_STATUS_IGNORE) == 0);
	end_of_stream();
	CHECK(strait_mpi_stream_failure(q, &f) == 0 && f.peer == 1);
	named(f.code, 0, 5);
	has(at, 4 * words, 9, 0);
	closed();
	printf("ok enqueue killed: code %d\n", f.code);
	fflush(stdout);
	_exit(0);
}

static void ends(void)
{
	const dptr at = memory(4 * words, 9);
	strait_mpi_request request = {0};
	void *graph = NULL;
	const char *mode = getenv("FI_STRAIT_XPU_MODE");
	CHECK(cuStreamBeginCapture_v2(stream, 2) == 0);
	CHECK(strait_mpi_send_enqueue((void *)at, words, MPI_UINT32_T, peer, 1, MPI_COMM_WORLD, q) == -EPERM);
	CHECK(cuStreamEndCapture(stream, &graph) == 0 && cuGraphDestroy(graph) == 0);
	/* Nothing comes: the stream waits, the agent polls, and an abort ends it. */
	CHECK(strait_mpi_recv_enqueue((void *)at, words, MPI_UINT32_T, peer, 77, MPI_COMM_WORLD, q, MPI_STATUS_IGNORE) == 0);
	const uint64_t before = strait_mpi_stream_polls(q);
	const double begin = MPI_Wtime();
	usleep(300000);
	const uint64_t polls = strait_mpi_stream_polls(q) - before;
	CHECK(polls > 10 && (!mode || strcmp(mode, "economy") || polls <= (MPI_Wtime() - begin) * 10000 + 10));
	CHECK(cuStreamQuery(stream) == 600 && strait_mpi_stream_close(q) == -EBUSY);
	strait_mpi_stream_abort(q);
	end_of_stream();
	CHECK(strait_mpi_stream_failed(q));
	named(ECANCELED, 0, 77);
	CHECK(strait_mpi_isend_enqueue((void *)at, words, MPI_UINT32_T, peer, 1, MPI_COMM_WORLD, q, &request) == -EIO);
	has(at, 4 * words, 9, 0);
	closed();
}

/* An error of MPI ends the queue. */
static void error(void)
{
	const dptr at = memory(4 * words, 9);
	MPI_Comm comm;
	CHECK(MPI_Comm_dup(MPI_COMM_WORLD, &comm) == 0 && MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN) == 0);
	CHECK(strait_mpi_stream_open(stream, &q) == 0);
	CHECK(strait_mpi_recv_enqueue((void *)at, words, MPI_UINT32_T, peer, 78, comm, q, MPI_STATUS_IGNORE) == 0 || strait_mpi_stream_failed(q));
	usleep(20000);
	/* Behind a wait that nothing ends, no other is begun: the rank is wrong in a queue of its own. */
	strait_mpi_stream_abort(q);
	end_of_stream();
	closed();
	CHECK(strait_mpi_stream_open(stream, &q) == 0);
	CHECK(strait_mpi_send_enqueue((void *)at, words, MPI_UINT32_T, 99, 1, comm, q) == 0);
	end_of_stream();
	CHECK(strait_mpi_stream_failed(q));
	named(EIO, 1, 1);
	closed();
	MPI_Comm_free(&comm);
}

int main(int argc, char **argv)
{
	void *ctx, *module;
	int provided = 0;
	if (argc != 2)
		return fprintf(stderr, "usage: enqueue ITERATIONS, enqueue half, enqueue killed\n"), 2;
	MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
	MPI_Comm_rank(MPI_COMM_WORLD, &me);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	CHECK(provided == MPI_THREAD_MULTIPLE && ranks % 2 == 0);
	odd = me & 1;
	peer = me ^ 1;
	CHECK(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&ctx, 0) == 0 && cuCtxSetCurrent(ctx) == 0);
	CHECK(cuStreamCreate(&stream, 1) == 0 && cuModuleLoadData(&module, kernel) == 0 && cuModuleGetFunction(&add, module, "add") == 0);
	CHECK(strait_mpi_stream_open(stream, &q) == 0);
	CHECK(ranks == 2 || atoi(argv[1]));
	if (!strcmp(argv[1], "killed"))
		killed();
	if (!strcmp(argv[1], "half"))
		half();
	loop(atoi(argv[1]));
	several();
	types();
	ring();
	ends();
	error();
	limits();
	stopped();
	MPI_Barrier(MPI_COMM_WORLD);
	if (me == 0)
		printf("ok enqueue: %s iterations\n", argv[1]);
	MPI_Finalize();
	return 0;
}
