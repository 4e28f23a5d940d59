/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What is wrong ends with an MPI error; a driver that fails does, too; what an MPI says of GPUs; contexts and kinds. */
#include "types.h"
#include <sys/mman.h>

/* Arguments that the MPI itself refuses on host memory. The buffers of both sides stay as they are. */
static void bad_arguments(void)
{
	begin("bad arguments");
	struct buffer *b = take(400, UNCHANGED), *c = take(400, UNCHANGED);

	SIDES {
		MPI_Request q = MPI_REQUEST_NULL;
		MPI_Datatype open_type;

		BAD(MPI_Send(P(b), 10, MPI_DATATYPE_NULL, 0, 1, MPI_COMM_WORLD));
		BAD(MPI_Send(P(b), -1, MPI_INT, 0, 1, MPI_COMM_WORLD));
		BAD(MPI_Send(P(b), 10, MPI_INT, ranks + 3, 1, MPI_COMM_WORLD));
		BAD(MPI_Isend(P(b), 10, MPI_INT, 0, -5, MPI_COMM_WORLD, &q));
		BAD(MPI_Irecv(P(b), 10, MPI_DATATYPE_NULL, 0, 1, MPI_COMM_WORLD, &q));
		BAD(MPI_Recv(P(b), 10, MPI_INT, ranks + 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
		BAD(MPI_Bcast(P(b), -3, MPI_INT, 0, MPI_COMM_WORLD));
		/* Without the library MPICH ends with a failed assertion. */
		if (open_mpi || (side == 0 && on_device(b->kind) && on_device(c->kind))) {
			int counts[8] = { -1, -1, -1, -1, -1, -1, -1, -1 };

			BAD(MPI_Allreduce(P(b), P(c), -1, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
			BAD(MPI_Reduce_local(P(b), P(c), -1, MPI_INT, MPI_SUM));
			BAD(MPI_Alltoallv(P(b), counts, counts, MPI_INT, P(c), counts, counts, MPI_INT, MPI_COMM_WORLD));
		}
		if (open_mpi) {
			int some[8] = { 0 };

			BAD(MPI_Alltoallv(P(b), NULL, NULL, MPI_INT, P(c), NULL, NULL, MPI_INT, MPI_COMM_WORLD));
			BAD(MPI_Alltoallv(P(b), some, NULL, MPI_INT, P(c), some, NULL, MPI_INT, MPI_COMM_WORLD));
			BAD(MPI_Alltoallw(P(b), NULL, NULL, NULL, P(c), NULL, NULL, NULL, MPI_COMM_WORLD));
			BAD(MPI_Allgatherv(P(b), 5, MPI_INT, P(c), NULL, NULL, MPI_INT, MPI_COMM_WORLD));
			BAD(MPI_Reduce_scatter(P(b), P(c), NULL, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
			BAD(MPI_Ireduce_scatter(P(b), P(c), NULL, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &q));
			BAD(MPI_Allreduce(P(b), MPI_IN_PLACE, 5, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
		}
		BAD(MPI_Allreduce(P(b), P(c), 10, MPI_INT, MPI_OP_NULL, MPI_COMM_WORLD));
		/* MPICH ends with an assertion. */
		if (open_mpi)
			BAD(MPI_Allreduce(P(b), P(c), 10, MPI_DATATYPE_NULL, MPI_SUM, MPI_COMM_WORLD));
		BAD(MPI_Allgather(P(b), 10, MPI_DATATYPE_NULL, P(c), 10, MPI_INT, MPI_COMM_WORLD));
		BAD(MPI_Reduce_local(P(b), P(c), 10, MPI_FLOAT, MPI_BAND));
		BAD(MPI_Send_init(P(b), 10, MPI_DATATYPE_NULL, 0, 1, MPI_COMM_WORLD, &q));
		/* Not committed. */
		OK(MPI_Type_vector(2, 1, 3, MPI_INT, &open_type));
		BAD(MPI_Send(P(b), 1, open_type, 0, 1, MPI_COMM_WORLD));
		OK(MPI_Type_free(&open_type));
	}
	end();
}

/* A message longer than its receive: MPI_ERR_TRUNCATE, and nothing behind the receive is written. */
static void truncated(void)
{
	int to = (me + 1) % ranks, from = (me + ranks - 1) % ranks;

	if (ranks < 2)
		return;
	/* Open MPI writes all of a long message, in host memory too. */
	for (int n = 100; n < (open_mpi ? 10000 : 100000); n *= 30) {
		begin("a message of %d into half of it", n);
		struct buffer *s = take((size_t)n, UNCHANGED), *r = take((size_t)n, ANY);

		SIDES {
			MPI_Request q;
			MPI_Status status;
			int code, class = 0;

			OK(MPI_Isend(P(s), n, MPI_BYTE, to, 9, MPI_COMM_WORLD, &q));
			code = MPI_Recv(P(r), n / 2, MPI_BYTE, from, 9, MPI_COMM_WORLD, &status);
			OK(MPI_Error_class(code, &class));
			CHECK(class == MPI_ERR_TRUNCATE);
			OK(MPI_Wait(&q, MPI_STATUS_IGNORE));
		}
		/* How much of it was written is the MPI's affair. */
		for (int s_ = 0; s_ < 2; s_++)
			move(s_ ? HOST : r->kind, r->at[s_], r->before + GUARD, (size_t)n / 2);
		end();
	}
}

/* A buffer that was freed, whose address is used for another: what was known of the old one is not taken for the new. */
static void reused(void)
{
	int to = (me + 1) % ranks, from = (me + ranks - 1) % ranks;

	for (int i = 0; i < 30; i++) {
		begin("allocation %d", i);
		enum kind kinds[] = { DEVICE, HOST, POOL, MANAGED };
		enum kind kind = fixed == HOST ? HOST : kinds[i % 4];
		struct buffer *s = take_of(kind, 3000, UNCHANGED), *r = take_of(kind, 3000, CHANGED);

		SIDES
			OK(MPI_Sendrecv(P(s), 3000, MPI_BYTE, to, 1, P(r), 3000, MPI_BYTE, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
		end();
	}
}

static void (*plan)(const char *, uint64_t, int);

/* These calls of the driver fail, each time: an MPI error at once or at the completion, or right. */
static void failing(const char *const *calls, int n, int wrong)
{
	if (fixed == HOST || !(plan = (void (*)(const char *, uint64_t, int))dlsym(cuda, "stand_in_fail")))
		return;
	for (int i = 0; i < n; i++)
		for (int reduce = 0; reduce < 2; reduce++) {
			int code, later = MPI_SUCCESS, sent = MPI_SUCCESS;

			begin("%s fails in a %s", calls[i], reduce ? "Reduce_local" : "message to itself");
			struct buffer *s = take_of(DEVICE, 9000, UNCHANGED), *r = take_of(DEVICE, 9000, ANY);

			side = 0;
			plan(calls[i], 0, wrong);
			if (reduce) {
				code = MPI_Reduce_local(P(s), P(r), 2000, MPI_INT, MPI_SUM);
			} else {
				MPI_Request q[2] = { MPI_REQUEST_NULL, MPI_REQUEST_NULL };

				code = MPI_Irecv(P(r), 9000, MPI_BYTE, me, 1, MPI_COMM_WORLD, &q[0]);
				if (code == MPI_SUCCESS)
					sent = MPI_Isend(P(s), 9000, MPI_BYTE, me, 1, MPI_COMM_WORLD, &q[1]);
				if (sent == MPI_SUCCESS && code == MPI_SUCCESS) {
					later = MPI_Waitall(2, q, MPI_STATUSES_IGNORE);
				} else if (code == MPI_SUCCESS) {
					MPI_Cancel(&q[0]);
					MPI_Wait(&q[0], MPI_STATUS_IGNORE);
				}
			}
			plan(calls[i], 0, 0);
			if (code || sent || later) {
				int failed = code ? code : sent ? sent : later;

				CHECK(strlen(words(failed)) > 10);
				refuse(failed);
			} else {
				side = 1;
				if (reduce)
					OK(MPI_Reduce_local(P(s), P(r), 2000, MPI_INT, MPI_SUM));
				else
					OK(MPI_Sendrecv(P(s), 9000, MPI_BYTE, me, 1, P(r), 9000, MPI_BYTE, me, 1, MPI_COMM_WORLD,
							MPI_STATUS_IGNORE));
			}
			end();
			/* Afterwards all is as before, but for errors that end a context. */
			if (wrong == 700)
				continue;
			begin("after %s has failed", calls[i]);
			struct buffer *x = take_of(DEVICE, 5000, UNCHANGED), *y = take_of(DEVICE, 5000, CHANGED);

			SIDES
				OK(MPI_Sendrecv(P(x), 5000, MPI_BYTE, me, 1, P(y), 5000, MPI_BYTE, me, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
			end();
		}
}

static void short_driver(void)
{
	static const char *const calls[] = {
		"cuMemHostAlloc", "cuMemHostRegister_v2", "cuStreamCreate", "cuEventCreate", "cuMemAlloc_v2", "cuMemcpyAsync",
		"cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2", "cuMemcpy", "cuCtxPushCurrent_v2", "cuCtxGetCurrent",
		"cuModuleLoadData", "cuModuleLoadDataEx", "cuModuleGetFunction", "cuLaunchKernel",
	};

	/* CUDA_ERROR_OUT_OF_MEMORY */
	failing(calls, COUNT(calls), 2);
}

/* The last subject: the context is of no use behind these. */
static void broken_driver(void)
{
	static const char *const calls[] = {
		"cuEventRecord", "cuEventQuery", "cuMemcpyAsync", "cuStreamSynchronize", "cuEventSynchronize", "cuStreamQuery",
	};

	/* CUDA_ERROR_ILLEGAL_ADDRESS */
	failing(calls, COUNT(calls), 700);
}

/* The extension by which programs ask. */
static void asked(void)
{
	int (*query)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "MPIX_Query_cuda_support");
	int (*gpu)(int, int *) = (int (*)(int, int *))dlsym(RTLD_DEFAULT, "MPIX_GPU_query_support");
	int yes = 0;

	if (fixed == HOST)
		return;
	begin("MPIX_Query_cuda_support");
	CHECK(query && query() == 1);
	/* MPIX_GPU_SUPPORT_CUDA */
	if (gpu) {
		OK(gpu(0, &yes));
		CHECK(yes == 1);
	}
	end();
}

/* The MPI copies into the buffer of buffered sends with the CPU. */
static void attached(const char *attach, const char *detach, int of_comm, int big)
{
	int (*in)() = optional(attach), (*out)() = optional(detach);
	char *at, *host = malloc(2000), *got = malloc(2000);
	MPI_Count big_len = 1 << 16;
	void *was = NULL;
	int code, len;

	begin("%s of device memory", attach);
	at = in ? allocate(DEVICE, 1 << 16) : NULL;
	if (in) {
		code = of_comm ? (big ? in(MPI_COMM_WORLD, at, big_len) : in(MPI_COMM_WORLD, at, 1 << 16)) : big ? in(at, big_len) : in(at, 1 << 16);
		if (code == MPI_SUCCESS) {
			/* Taken: then a buffered send has to work. */
			memset(host, 5, 2000);
			OK(MPI_Bsend(host, 2000, MPI_BYTE, me, 3, MPI_COMM_WORLD));
			OK(MPI_Recv(got, 2000, MPI_BYTE, me, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
			CHECK(!memcmp(host, got, 2000));
			OK(of_comm ? (big ? out(MPI_COMM_WORLD, &was, &big_len) : out(MPI_COMM_WORLD, &was, &len)) : big ? out(&was, &big_len) : out(&was, &len));
			CHECK(was == at);
		}
		release(DEVICE, at);
	}
	free(host), free(got);
	end();
}

static void buffer_attach(void)
{
	if (fixed == HOST)
		return;
	attached("MPI_Buffer_attach", "MPI_Buffer_detach", 0, 0);
	attached("MPI_Buffer_attach_c", "MPI_Buffer_detach_c", 0, 1);
	attached("MPI_Comm_attach_buffer", "MPI_Comm_detach_buffer", 1, 0);
	attached("MPI_Comm_attach_buffer_c", "MPI_Comm_detach_buffer_c", 1, 1);
}

/* No context is current, and another device's is: afterwards it is as it was. */
static void contexts(void)
{
	void *own = NULL, *now = NULL, *other = NULL;
	int devices = 0;

	if (fixed == HOST)
		return;
	CU(cuCtxGetCurrent, (void **), &own);
	CU(cuDeviceGetCount, (int *), &devices);
	for (int how = 0; how < 2 && how < devices; how++) {
		begin(how ? "the context of another device" : "no context");
		struct buffer *s = take(5000, UNCHANGED), *r = take(5000, CHANGED), *x = take(5000, CHANGED);

		if (how)
			CU(cuDevicePrimaryCtxRetain, (void **, int), &other, !(me % devices));
		CU(cuCtxSetCurrent, (void *), how ? other : NULL);
		SIDES {
			OK(MPI_Sendrecv(P(s), 5000, MPI_BYTE, me, 1, P(r), 5000, MPI_BYTE, me, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
			OK(MPI_Allreduce(P(s), P(x), 1250, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
		}
		CU(cuCtxGetCurrent, (void **), &now);
		CHECK(now == (how ? other : NULL));
		CU(cuCtxSetCurrent, (void *), own);
		if (how)
			CU(cuDevicePrimaryCtxRelease_v2, (int), !(me % devices));
		end();
	}
}

/* No byte of a device's memory is attached. */
static void no_byte(void)
{
	begin("MPI_Win_attach of no byte");
	struct buffer *b = take(64, UNCHANGED);
	int detached[2];

	SIDES {
		MPI_Win win;

		OK(MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &win));
		OK(MPI_Win_set_errhandler(win, MPI_ERRORS_RETURN));
		OK(MPI_Win_attach(win, P(b), 0));
		/* Open MPI 5 does not find it. */
		detached[side] = MPI_Win_detach(win, P(b));
		OK(MPI_Win_free(&win));
	}
	CHECK(!detached[0] == !detached[1]);
	end();
}

/* A collective with both buffers at MPI_BOTTOM, in host and device memory that are as far apart as can be. */
static void far_apart(void)
{
	enum { MOST = 8 };
	static char data[2][MOST * 12];
	int n = ranks < MOST ? ranks : MOST;
	/* Half of the address space, if it is free: there is no room for copies of all that is in between. */
	size_t quarter = (size_t)1 << 45;
	void *space[2];

	begin("MPI_Alltoallw of data that are far apart");
	for (int i = 0; i < 2; i++)
		space[i] = mmap(NULL, quarter, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct buffer *s = take(MOST * 12, ANY), *r = take(MOST * 12, ANY);
	struct buffer *heap[2] = { take_of(HOST, MOST * 12, ANY), take_of(HOST, MOST * 12, ANY) };

	SIDES {
		int ones[MOST], none[MOST] = { 0 }, lens[] = { 12, 12, 12 };
		MPI_Datatype types[2][MOST], of[] = { MPI_BYTE, MPI_BYTE, MPI_BYTE };
		MPI_Aint at[3];

		for (int i = 0; i < MOST * 12; i++)
			data[0][i] = (char)(i + 7 * me);
		for (int i = 0; i < n; i++) {
			ones[i] = 1;
			for (int dir = 0; dir < 2; dir++) {
				OK(MPI_Get_address((char *)P(dir ? r : s) + 12 * i, &at[0]));
				OK(MPI_Get_address((char *)P(heap[dir]) + 12 * i, &at[1]));
				OK(MPI_Get_address(data[dir] + 12 * i, &at[2]));
				OK(MPI_Type_create_struct(3, lens, at, of, &types[dir][i]));
				OK(MPI_Type_commit(&types[dir][i]));
			}
		}
		if (ranks <= MOST)
			OK(MPI_Alltoallw(MPI_BOTTOM, ones, none, types[0], MPI_BOTTOM, ones, none, types[1], MPI_COMM_WORLD));
		for (int i = 0; i < n; i++) {
			has_first(r, side, 12 * (size_t)i, 12, i, 0, 12 * (size_t)me);
			for (int k = 0; k < 12 && ranks <= MOST; k++)
				CHECK(data[1][12 * i + k] == (char)(12 * me + k + 7 * i));
			OK(MPI_Type_free(&types[0][i]));
			OK(MPI_Type_free(&types[1][i]));
		}
	}
	for (int i = 0; i < 2; i++)
		if (space[i] != MAP_FAILED)
			munmap(space[i], quarter);
	end();
}

int main(int argc, char **argv)
{
	static const struct subject all[] = {
		{ "bad_arguments", bad_arguments }, { "truncated", truncated }, { "reused", reused },
		{ "short_driver", short_driver }, { "asked", asked }, { "no_byte", no_byte }, { "far_apart", far_apart },
		{ "buffer_attach", buffer_attach }, { "contexts", contexts }, { "broken_driver", broken_driver },
	};

	return run_subjects("misc", argc, argv, all, COUNT(all), MPI_THREAD_SINGLE);
}
