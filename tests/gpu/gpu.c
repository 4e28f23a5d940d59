/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* MPI programs whose buffers live on GPUs, for an MPI that knows nothing of GPUs.
 *
 *   gpu check [most [only]] bytes of every kind of memory and transfer, up to `most` bytes (default 1 MiB); of those
 *                        pairs of kinds whose names contain `only`
 *   gpu time [most [only]] time and bandwidth, each next to the raw copy, in turns; of those series whose
 *                        names contain `only`, or one of several with commas between them
 *   gpu staged [most [only]] the same from 64 KiB on of memory that cannot be exported, and of what is slower than
 *                        the raw copy; the raw copy is of memory as cudaMalloc makes it
 *   gpu onesided [most [least]] MPI_Put and MPI_Get
 *   gpu host [nocuda]    8 bytes between host buffers, with a live CUDA context or without one
 *
 * CUDA's driver is loaded at run time, so that the same program runs over a stand-in for it.
 */
#include <dlfcn.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long dptr;
static int rank, failures, device, peer_device;
static const char *only;
static void *driver;

static void *sym(const char *name)
{
	void *at = dlsym(driver, name);
	if (!at) {
		fprintf(stderr, "no %s in the driver\n", name);
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	return at;
}

#define CU(name, types, ...)                                                     \
	do {                                                                     \
		static int (*f) types;                                           \
		int code;                                                        \
		if (!f)                                                          \
			f = (int (*) types)sym(#name);                           \
		code = f(__VA_ARGS__);                                           \
		if (code) {                                                      \
			fprintf(stderr, "rank %d: %s: %d\n", rank, #name, code); \
			MPI_Abort(MPI_COMM_WORLD, 2);                            \
		}                                                                \
	} while (0)

static void enter(int number)
{
	void *ctx;
	CU(cuDevicePrimaryCtxRetain, (void **, int), &ctx, number);
	CU(cuCtxSetCurrent, (void *), ctx);
}

static void start_cuda(void)
{
	int count = 0;
	driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	if (!driver) {
		fprintf(stderr, "%s\n", dlerror());
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	CU(cuInit, (unsigned), 0);
	CU(cuDeviceGetCount, (int *), &count);
	device = rank % count;
	peer_device = (rank ^ 1) % count;
	enter(device);
}

enum kind { HOST, PINNED, PLAIN, MAPPED, POOL, SHARED_POOL, MANAGED, KINDS };
static const char *const names[] = { "host", "pinned", "cudaMalloc", "vmm", "pool", "shareable pool", "managed" };

struct mem {
	enum kind kind;
	char *at;
	size_t len;
};

#define PIECE ((size_t)2 << 20)

static struct mem make(enum kind kind, size_t len)
{
	struct mem m = { kind, NULL, len };
	dptr d = 0;
	void *p = NULL;
	switch (kind) {
	case HOST:
		m.at = malloc(len);
		return m;
	case PINNED:
		CU(cuMemHostAlloc, (void **, size_t, unsigned), &p, len, 0);
		m.at = p;
		return m;
	case PLAIN:
		CU(cuMemAlloc_v2, (dptr *, size_t), &d, len);
		break;
	case POOL:
		CU(cuMemAllocAsync, (dptr *, size_t, void *), &d, len, NULL);
		CU(cuCtxSynchronize, (void));
		break;
	case SHARED_POOL: {
		static void *pool;
		if (!pool) {
			struct {
				int type, handles, where, id;
				void *security;
				size_t most;
				unsigned char reserved[64];
			} props = { 1, 1, 1, device, NULL, 0, { 0 } };
			CU(cuMemPoolCreate, (void **, void *), &pool, &props);
		}
		CU(cuMemAllocFromPoolAsync, (dptr *, size_t, void *, void *), &d, len, pool, NULL);
		CU(cuCtxSynchronize, (void));
		break;
	}
	case MANAGED:
		CU(cuMemAllocManaged, (dptr *, size_t, unsigned), &d, len, 1);
		break;
	default: {
		/* As PyTorch's expandable segments: one range, mapped piece by piece. */
		struct {
			int type, handles, where, id;
			void *meta;
			unsigned char flags[8];
		} prop = { 1, 1, 1, device, NULL, { 0 } };
		struct {
			int where, id, flags;
		} access = { 1, device, 3 };
		size_t all = (len + PIECE - 1) / PIECE * PIECE, off;
		CU(cuMemAddressReserve, (dptr *, size_t, size_t, dptr, unsigned long long), &d, all, 0, 0, 0);
		for (off = 0; off < all; off += PIECE) {
			unsigned long long h;
			CU(cuMemCreate, (unsigned long long *, size_t, void *, unsigned long long), &h, PIECE, &prop, 0);
			CU(cuMemMap, (dptr, size_t, size_t, unsigned long long, unsigned long long), d + off, PIECE, 0, h, 0);
			CU(cuMemRelease, (unsigned long long), h);
		}
		CU(cuMemSetAccess, (dptr, size_t, void *, size_t), d, all, &access, 1);
	}
	}
	m.at = (char *)(uintptr_t)d;
	return m;
}

static void drop(struct mem m)
{
	size_t all = (m.len + PIECE - 1) / PIECE * PIECE, off;
	switch (m.kind) {
	case HOST:
		free(m.at);
		break;
	case PINNED:
		CU(cuMemFreeHost, (void *), m.at);
		break;
	case MAPPED:
		for (off = 0; off < all; off += PIECE)
			CU(cuMemUnmap, (dptr, size_t), (dptr)(uintptr_t)m.at + off, PIECE);
		CU(cuMemAddressFree, (dptr, size_t), (dptr)(uintptr_t)m.at, all);
		break;
	case POOL:
	case SHARED_POOL:
		CU(cuMemFreeAsync, (dptr, void *), (dptr)(uintptr_t)m.at, NULL);
		CU(cuCtxSynchronize, (void));
		break;
	default:
		CU(cuMemFree_v2, (dptr), (dptr)(uintptr_t)m.at);
	}
}

static void put(char *to, const char *from, size_t len)
{
	CU(cuMemcpy, (dptr, dptr, size_t), (dptr)(uintptr_t)to, (dptr)(uintptr_t)from, len);
	CU(cuCtxSynchronize, (void));
}

static char byte(size_t i, unsigned seed)
{
	return (char)(i * 31 + (i >> 8) * 7 + (i >> 16) + seed * 97);
}

static char *scratch;

static void fill(char *to, size_t len, unsigned seed)
{
	size_t i;
	for (i = 0; i < len; i++)
		scratch[i] = byte(i, seed);
	if (len)
		put(to, scratch, len);
}

static void same(const char *what, const char *from, size_t len, unsigned seed)
{
	size_t i;
	if (!len)
		return;
	memset(scratch, 0x5a, len);
	put(scratch, from, len);
	for (i = 0; i < len; i++)
		if (scratch[i] != byte(i, seed)) {
			printf("gpu WRONG rank %d: %s: %zu bytes, byte %zu\n", rank, what, len, i);
			failures++;
			return;
		}
}

/* One message of `len` bytes from byte `off` of rank 0's memory to byte `off` + 3 of rank 1's. */
static void message(struct mem m, const char *what, size_t off, size_t len, unsigned seed)
{
	if (rank == 0) {
		fill(m.at + off, len, seed);
		MPI_Send(m.at + off, (int)len, MPI_BYTE, 1, 7, MPI_COMM_WORLD);
	} else {
		fill(m.at, len + off + 8, seed + 1);
		MPI_Recv(m.at + off + 3, (int)len, MPI_BYTE, 0, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		same(what, m.at + off + 3, len, seed);
		/* What was there before and behind it still is. */
		same(what, m.at, off + 3, seed + 1);
	}
}

static void check(size_t most)
{
	static const size_t sizes[] = { 0, 1, 7, 8, 255, 4096, 8191, 8192, 8193, 65537, 1 << 20, (4 << 20) + 5,
					(33 << 20) + 1, 64 << 20, 1 << 30 };
	size_t n = sizeof(sizes) / sizeof(sizes[0]), i;
	unsigned seed = 1;
	int from, to, round;
	scratch = malloc(most + 64);
	for (from = HOST; from < KINDS; from++)
		for (to = HOST; to < KINDS; to++) {
			struct mem m;
			char what[64];
			snprintf(what, sizeof(what), "%s to %s", names[from], names[to]);
			if (only && !strstr(what, only))
				continue;
			m = make(rank ? to : from, most + 64);
			for (i = 0; i < n && sizes[i] <= most; i++) {
				/* The longest only between the kinds that matter most. */
				if (sizes[i] > (64 << 20) && !(from == PLAIN && to == PLAIN))
					continue;
				message(m, what, 0, sizes[i], seed++);
				if (sizes[i] + 32 < most)
					message(m, what, 13, sizes[i], seed++);
			}
			drop(m);
			MPI_Barrier(MPI_COMM_WORLD);
		}
	/* Memory that is freed and allocated again, most likely at the same place. */
	for (round = 0; round < 10; round++) {
		size_t len = most < 100000 ? most : 100000;
		struct mem m = make(round % 2 ? MAPPED : PLAIN, len + 64);
		message(m, "used again", 0, len, seed++);
		drop(m);
	}
	/* Both ways at once, many at a time, and from one to all. */
	{
		enum { MANY = 32 };
		size_t len = most / MANY / 2;
		struct mem out = make(PLAIN, most), in = make(PLAIN, most);
		MPI_Request req[2 * MANY];
		fill(out.at, most, seed + rank);
		for (i = 0; i < MANY; i++) {
			size_t l = i % 3 ? len : 16;
			MPI_Irecv(in.at + i * len, (int)l, MPI_BYTE, !rank, (int)i, MPI_COMM_WORLD, &req[i]);
			MPI_Isend(out.at + i * len, (int)l, MPI_BYTE, !rank, (int)i, MPI_COMM_WORLD, &req[MANY + i]);
		}
		MPI_Waitall(2 * MANY, req, MPI_STATUSES_IGNORE);
		put(scratch, in.at, most / 2);
		for (i = 0; i < MANY; i++) {
			size_t l = i % 3 ? len : 16, j;
			for (j = 0; j < l; j++)
				if (scratch[i * len + j] != byte(i * len + j, seed + !rank))
					break;
			if (j < l) {
				printf("gpu WRONG rank %d: message %zu of many, byte %zu\n", rank, i, j);
				failures++;
			}
		}
		MPI_Sendrecv(out.at, (int)most, MPI_BYTE, !rank, 1, in.at, (int)most, MPI_BYTE, !rank, 1,
			     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		same("sendrecv", in.at, most, seed + !rank);
		MPI_Bcast(out.at, (int)most, MPI_BYTE, 0, MPI_COMM_WORLD);
		same("bcast", out.at, most, seed);
		drop(out);
		drop(in);
	}
	MPI_Allreduce(MPI_IN_PLACE, &failures, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	if (rank == 0)
		printf(failures ? "gpu check FAILED\n" : "gpu check ok, up to %zu bytes\n", most);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double median(double *v, int n)
{
	qsort(v, (size_t)n, sizeof(*v), by_value);
	return v[n / 2];
}

static void *stream;

/* Seconds for one copy, if `window` of them are waited for together. */
static double raw(char *dst, char *src, size_t len, int window, int reps)
{
	double begin = MPI_Wtime();
	int i, j;
	for (i = 0; i < reps; i++) {
		for (j = 0; j < window; j++)
			CU(cuMemcpyAsync, (dptr, dptr, size_t, void *), (dptr)(uintptr_t)dst, (dptr)(uintptr_t)src, len,
			   stream);
		CU(cuStreamSynchronize, (void *), stream);
	}
	return (MPI_Wtime() - begin) / reps / window;
}

/* Seconds for one message from rank 0 to rank 1: half a round trip, or its share of a window. */
static double timed(struct mem m, size_t len, int window, int reps)
{
	MPI_Request req[64];
	char ack = 0;
	double begin;
	int i, j;
	MPI_Barrier(MPI_COMM_WORLD);
	begin = MPI_Wtime();
	for (i = 0; i < reps; i++) {
		if (window == 1) {
			if (rank == 0) {
				MPI_Send(m.at, (int)len, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
				MPI_Recv(m.at, (int)len, MPI_BYTE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			} else {
				MPI_Recv(m.at, (int)len, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
				MPI_Send(m.at, (int)len, MPI_BYTE, 0, 2, MPI_COMM_WORLD);
			}
			continue;
		}
		for (j = 0; j < window; j++)
			if (rank == 0)
				MPI_Isend(m.at, (int)len, MPI_BYTE, 1, 3, MPI_COMM_WORLD, &req[j]);
			else
				MPI_Irecv(m.at, (int)len, MPI_BYTE, 0, 3, MPI_COMM_WORLD, &req[j]);
		MPI_Waitall(window, req, MPI_STATUSES_IGNORE);
		if (rank == 0)
			MPI_Recv(&ack, 1, MPI_BYTE, 1, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		else
			MPI_Send(&ack, 1, MPI_BYTE, 0, 4, MPI_COMM_WORLD);
	}
	return (MPI_Wtime() - begin) / reps / (window == 1 ? 2 : window);
}

/* As many repetitions as take about that many seconds, the same on both sides. */
static int as_many(double seconds, double each)
{
	double n = seconds / (each > 1e-7 ? each : 1e-7);
	int reps = n < 1 ? 1 : n > 500 ? 500 : (int)n;
	MPI_Bcast(&reps, 1, MPI_INT, 0, MPI_COMM_WORLD);
	return reps;
}

/* Memory that cannot be exported has a raw copy of memory that can: of a pool's, other devices have no access. */
static enum kind raw_kind(enum kind kind)
{
	return kind == POOL || kind == MANAGED ? PLAIN : kind;
}

static double budget;

/* Whether the name contains one of those that `only` has, with commas between them. */
static int selected(const char *name)
{
	const char *at = only;
	while (at) {
		char one[64];
		size_t n = strcspn(at, ",");
		snprintf(one, sizeof(one), "%.*s", (int)n, at);
		if (strstr(name, one))
			return 1;
		at = at[n] ? at + n + 1 : NULL;
	}
	return !only;
}

static void series(const char *name, enum kind from, enum kind to, size_t least, size_t most, int window)
{
	struct mem m, other = { HOST, NULL, 0 }, own = { HOST, NULL, 0 };
	size_t len;
	if (!selected(name))
		return;
	m = make(rank ? to : from, most);
	if (budget && m.kind == MANAGED) {
		/* On the device, which has it once it has written it. */
		CU(cuMemsetD8_v2, (dptr, unsigned char, size_t), (dptr)(uintptr_t)m.at, 1, most);
		CU(cuCtxSynchronize, (void));
	}
	/* Rank 0 does the raw copies, in its own process, to the device that rank 1 is on. */
	if (rank == 0) {
		CU(cuStreamCreate, (void **, unsigned), &stream, 1);
		if (peer_device != device && from >= PLAIN && to >= PLAIN) {
			void *ctx;
			int (*peer)(void *, unsigned) = (int (*)(void *, unsigned))dlsym(driver, "cuCtxEnablePeerAccess");
			enter(peer_device);
			other = make(budget ? raw_kind(to) : to, most);
			CU(cuCtxGetCurrent, (void **), &ctx);
			enter(device);
			if (peer)
				peer(ctx, 0);
		} else {
			other = make(budget ? raw_kind(to) : to, most);
		}
		own = budget && raw_kind(from) != from ? make(raw_kind(from), most) : m;
	}
	for (len = least; len <= most; len *= 4) {
		enum { ROUNDS = 7 };
		int rounds = budget ? 3 : ROUNDS;
		double a[ROUNDS], b[ROUNDS], us, t = 0;
		int reps = len <= 65536 ? 200 : len <= (16 << 20) ? 20 : 4, i;
		int warm = budget && len > (1 << 20) ? 1 : 3;
		if (window > 1 && len > (budget ? 16 << 20 : 64 << 20))
			window = 4;
		t = timed(m, len, window, warm);
		if (rank == 0)
			raw(other.at, own.at, len, window, warm);
		if (budget)
			reps = as_many(budget, t * window);
		for (i = 0; i < rounds; i++) {
			a[i] = rank == 0 ? raw(other.at, own.at, len, window, reps) : 0;
			b[i] = timed(m, len, window, reps);
		}
		if (rank)
			continue;
		us = median(a, rounds) * 1e6;
		t = median(b, rounds) * 1e6;
		printf("gpu %s %zu %.2f %.2f %.3f %.1f %.1f\n", name, len, us, t, t / us, len / us / 1e3, len / t / 1e3);
		fflush(stdout);
	}
	if (rank == 0) {
		drop(other);
		if (own.at != m.at)
			drop(own);
	}
	drop(m);
	MPI_Barrier(MPI_COMM_WORLD);
}

/* MPI_Put and MPI_Get, of GPU memory into and from a window on GPU memory, between fences. */
static void onesided(size_t most)
{
	static const size_t sizes[] = { 1, 8, 4096, 8193, 65537, 1 << 20, 16 << 20 };
	struct mem there = make(PLAIN, most), here = make(PLAIN, most);
	unsigned seed = 1;
	size_t i;
	MPI_Win win;
	scratch = malloc(most + 64);
	MPI_Win_create(there.at, (MPI_Aint)most, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
	for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]) && sizes[i] <= most; i++) {
		int n = (int)sizes[i];
		if (only && sizes[i] < strtoull(only, NULL, 0))
			continue;
		fill(here.at, sizes[i], ++seed + rank);
		MPI_Win_fence(0, win);
		MPI_Put(here.at, n, MPI_BYTE, !rank, 0, n, MPI_BYTE, win);
		MPI_Win_fence(0, win);
		same("put", there.at, sizes[i], seed + !rank);
		fill(there.at, sizes[i], ++seed + rank);
		MPI_Win_fence(0, win);
		MPI_Get(here.at, n, MPI_BYTE, !rank, 0, n, MPI_BYTE, win);
		MPI_Win_fence(0, win);
		same("get", here.at, sizes[i], seed + !rank);
		if (rank == 0)
			printf("# put and get of %zu bytes: %s\n", sizes[i], failures ? "wrong" : "right");
		fflush(stdout);
	}
	MPI_Win_free(&win);
	MPI_Allreduce(MPI_IN_PLACE, &failures, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	if (rank == 0)
		printf(failures ? "gpu onesided FAILED\n" : "gpu onesided ok, up to %zu bytes\n", most);
}

static void times(size_t most)
{
	if (rank == 0)
		printf("# gpu <what> <bytes> <raw us> <MPI us> <ratio> <raw GB/s> <MPI GB/s>\n");
	series("lat-device-device", PLAIN, PLAIN, 1, most, 1);
	series("bw-device-device", PLAIN, PLAIN, 4096, most, 16);
	series("bw-vmm-vmm", MAPPED, MAPPED, 4096, most, 16);
	series("bw-pinned-device", PINNED, PLAIN, 4096, most, 16);
	series("bw-device-pinned", PLAIN, PINNED, 4096, most, 16);
	series("bw-host-device", HOST, PLAIN, 4096, most, 16);
	series("bw-device-host", PLAIN, HOST, 4096, most, 16);
	/* Memory of a pool is its own device's until access is set, so the raw copy needs one. */
	if (peer_device == device) {
		series("bw-pool-pool", POOL, POOL, 4096, most < (16 << 20) ? most : (16 << 20), 16);
		series("bw-shareable-pool", SHARED_POOL, SHARED_POOL, 4096, most < (64 << 20) ? most : (64 << 20), 16);
	}
}

/* What is staged, or slower than the raw copy without need. Short: about 20 ms for each round. */
static void staged(size_t most)
{
	budget = 0.01;
	if (rank == 0)
		printf("# gpu <what> <bytes> <raw us> <MPI us> <ratio> <raw GB/s> <MPI GB/s>\n");
	series("staged-lat-pool", POOL, POOL, 65536, most, 1);
	series("staged-bw-pool", POOL, POOL, 65536, most, 8);
	series("staged-lat-managed", MANAGED, MANAGED, 65536, most, 1);
	series("staged-bw-managed", MANAGED, MANAGED, 65536, most, 8);
	series("bw-device-host", PLAIN, HOST, 16384, most, 8);
	series("bw-host-device", HOST, PLAIN, 4096, 65536, 16);
	series("bw-device-device", PLAIN, PLAIN, 64, 16384, 64);
}

int main(int argc, char **argv)
{
	size_t most = argc > 2 ? strtoull(argv[2], NULL, 0) : (size_t)1 << 20;
	const char *mode = argc > 1 ? argv[1] : "check";
	only = argc > 3 ? argv[3] : NULL;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (!strcmp(mode, "host")) {
		struct mem m = { HOST, malloc(64), 64 };
		double v[15];
		int i;
		if (argc < 3)
			start_cuda();
		timed(m, 8, 1, 20000);
		for (i = 0; i < 15; i++)
			v[i] = timed(m, 8, 1, 20000);
		if (rank == 0)
			printf("gpu host8-%s 8 0 %.4f\n", argc < 3 ? "cuda" : "nocuda", median(v, 15) * 1e6);
	} else {
		start_cuda();
		if (!strcmp(mode, "time"))
			times(most);
		else if (!strcmp(mode, "staged"))
			staged(most);
		else if (!strcmp(mode, "onesided"))
			onesided(most);
		else
			check(most);
	}
	MPI_Finalize();
	return failures != 0;
}
