/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Pipes with memory of a CUDA device, between two processes that share nothing else: contents, errors, a forked child, and kernels that
 * wait for messages.
 *
 *     device                     checks; "rank N: ok"
 *     device kernel FILE         FILE: tests/rpipe/kernels.cu, compiled for the device
 *     device time [FILE]         microseconds, beside copies by the driver of as many bytes
 *
 * The variables of strait_rpipe(7) say which processes these are. Without a GPU it ends with 77. */
#define _GNU_SOURCE
#include <errno.h>
#include <strait_rpipe.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"

#define CHECK(what)                                                                                   \
	do {                                                                                          \
		if (!(what)) {                                                                        \
			fprintf(stderr, "rank %d, line %d: %s: %s\n", rank, __LINE__, #what, rerror()); \
			exit(1);                                                                      \
		}                                                                                     \
	} while (0)

enum { SIZES = 11, MOST = 1 << 20, ROUNDS = 4, SLOTS = 16 };

static const size_t sizes[SIZES] = {0, 1, 4, 8, 40, 41, 64, 4096, 65536, 100003, MOST};
static int rank;
static unsigned char bytes[MOST], got[MOST];

static void pattern(unsigned char *to, int n, size_t size)
{
	for (size_t i = 0; i < size; i++)
		to[i] = (unsigned char)(n * 31 + i * 7 + i / 251);
}

static void to_device(void *at, const void *from, size_t size)
{
	if (size)
		CU(cuMemcpy, (uint64_t, uint64_t, size_t), (uint64_t)(uintptr_t)at, (uint64_t)(uintptr_t)from, size);
}

static void from_device(void *to, const void *at, size_t size)
{
	to_device(to, at, size);
}

static void *device_memory(size_t size)
{
	uint64_t at = 0;

	CU(cuMemAlloc_v2, (uint64_t *, size_t), &at, size);
	return (void *)(uintptr_t)at;
}

static rpipe_t reader(unsigned flags, size_t heap)
{
	struct rpipe_attr attr = {sizeof attr, 0, HD_PIPE | flags, RPIPE_UNBOUNDED, heap, SLOTS};
	rpipe_t rp;

	CHECK(rpipe_open_attr(&rp, 1 - rank, &attr) == 0);
	return rp;
}

static rpipe_t writer(unsigned flags)
{
	rpipe_t rp;

	CHECK(rpipe(rp, 1 - rank, 1, RPIPE_UNBOUNDED, HD_PIPE | flags) == 0);
	return rp;
}

/* A forked child: its calls fail, and take nothing from the parent. */
static void fork_beside(rpipe_t rp)
{
	int status;
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0) {
		struct rpipe_device of = {.size = sizeof of};

		CHECK(rwrite_from(rp, bytes, 8) == -EINVAL);
		CHECK(rpipe_on_device(rp, &of) == -EINVAL);
		CHECK(rpipe_close(rp) == -EINVAL);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Rank 0 writes to the heap in memory of the device, rank 1 reads; `local`: the writer's blocks are memory of the device, too. */
static void contents(unsigned heap, unsigned local)
{
	if (rank == 0) {
		rpipe_t rp = writer(local);
		void *source = device_memory(MOST);

		for (int n = 0; n < ROUNDS * SIZES; n++) {
			size_t size = sizes[n % SIZES];
			raddr_t addr;

			pattern(bytes, n, size);
			if (n % 3 == 1) {
				CHECK(rwrite_from(rp, bytes, size) == 0);
			} else if (n % 3 == 2) {
				to_device(source, bytes, size);
				CHECK(rwrite_from(rp, source, size) == 0);
			} else {
				addr = rmalloc(rp, size);
				CHECK(addr != RADDR_NULL && rmem(rp, addr) != NULL);
				if (local) {
					/* A copy from memory that is not page-locked returns before the bytes are there. */
					to_device(rmem(rp, addr), bytes, size);
					CU(cuStreamSynchronize, (void *), NULL);
				} else
					memcpy(rmem(rp, addr), bytes, size);
				CHECK(rwrite(rp, addr) == 0);
			}
			memset(bytes, 0xee, size);
			if (n == SIZES)
				fork_beside(rp);
		}
		CHECK(rwrite_from(rp, NULL, 8) == -EINVAL);
		CHECK(rwrite_from(rp, bytes, SIZE_MAX) == -EMSGSIZE);
		CHECK(rpipe_on_device(rp, NULL) == -EINVAL);
		CHECK(rpipe_close(rp) == 0);
	} else {
		rpipe_t rp = reader(heap, 3 * MOST);
		raddr_t addr;

		for (int n = 0; n < ROUNDS * SIZES; n++) {
			size_t size = sizes[n % SIZES];

			CHECK(rread(rp, addr, MOST) == 0);
			CHECK(rlength(addr) == (ptrdiff_t)size);
			memset(got, 0, size);
			if (heap)
				from_device(got, rmem(rp, addr), size);
			else
				memcpy(got, rmem(rp, addr), size);
			pattern(bytes, n, size);
			CHECK(memcmp(got, bytes, size) == 0);
			if (n == SIZES)
				fork_beside(rp);
			CHECK(rfree(addr) == 0);
			CHECK(rfree(addr) == -ESTALE);
		}
		CHECK(rread(rp, addr, MOST) == -EPIPE);
		CHECK(rpipe_close(rp) == 0);
	}
}

/* What rpipe_on_device reports, and what it refuses. */
static void reported(void)
{
	struct rpipe_device of = {.size = sizeof of};
	struct rpipe_number number;
	raddr_t addr;
	rpipe_t rp;

	CHECK(rpipe(rp, 1 - rank, 0, 8, HD_PIPE | RPIPE_NUMBERS) == -EINVAL);
	CHECK(rpipe(rp, 1 - rank, 1, 8, HD_PIPE | RPIPE_NUMBERS | RPIPE_DEVICE) == -EINVAL);
	if (rank == 0) {
		rp = writer(0);
		for (int n = 0; n < 3 * SLOTS; n++) {
			pattern(bytes, n, 100 + n);
			CHECK(rwrite_from(rp, bytes, 100 + n) == 0);
		}
		addr = rmalloc(rp, 8);
		CHECK(addr != RADDR_NULL && rwrite_am(rp, addr, 3) == -EINVAL);
		CHECK(rfree(addr) == 0);
		CHECK(rpipe_close(rp) == 0);
		return;
	}
	rp = reader(RPIPE_DEVICE | RPIPE_NUMBERS, MOST);
	of.size--;
	CHECK(rpipe_on_device(rp, &of) == -EINVAL);
	of.size++;
	CHECK(rpipe_on_device(rp, &of) == 0);
	CHECK(of.slots == SLOTS && of.heap_size == MOST && of.next == 1 && of.granule == 64 && of.numbers);
	for (int n = 0; n < 3 * SLOTS; n++) {
		CHECK(rread(rp, addr, MOST) == 0);
		from_device(&number, of.numbers + n % SLOTS, sizeof number);
		CHECK(number.number == (uint32_t)n + 1 && number.again == number.number && number.size == 100u + n);
		CHECK((char *)of.heap + of.granule * number.place == rmem(rp, addr));
		CHECK(rfree(addr) == 0);
	}
	CHECK(rpipe_close(rp) == 0);
	rp = reader(0, 0);
	CHECK(rpipe_on_device(rp, &of) < 0);
	CHECK(rpipe_close(rp) == 0);
}

/* A running kernel. */
struct kernel {
	void *module, *function, *stream;
	uint64_t sums, *done;
};

/* As strait::rpipe::heap. */
struct heap {
	uint64_t begin, size, numbers;
	uint32_t granule, slots;
};

static struct kernel launch(const char *file, rpipe_t rp, uint64_t count)
{
	static char image[1 << 20];
	struct rpipe_device of = {.size = sizeof of};
	struct kernel k = {0};
	FILE *from = fopen(file, "rb");
	uint64_t first;
	int64_t timeout = 20000000000;
	struct heap heap;
	void *arguments[] = {&heap, &first, &count, &timeout, &k.sums, &k.done};

	CHECK(from && fread(image, 1, sizeof image - 1, from) > 0);
	fclose(from);
	CHECK(rpipe_on_device(rp, &of) == 0);
	heap = (struct heap){(uintptr_t)of.heap, of.heap_size, (uintptr_t)of.numbers, (uint32_t)of.granule, (uint32_t)of.slots};
	first = of.next;
	CU(cuModuleLoadData, (void **, const void *), &k.module, image);
	CU(cuModuleGetFunction, (void **, void *, const char *), &k.function, k.module, "take");
	CU(cuStreamCreate, (void **, unsigned), &k.stream, 1);
	CU(cuMemAlloc_v2, (uint64_t *, size_t), &k.sums, count * 8);
	CU(cuMemsetD8_v2, (uint64_t, unsigned char, size_t), k.sums, 0, count * 8);
	CU(cuMemHostAlloc, (void **, size_t, unsigned), (void **)&k.done, 64, 0);
	*(volatile uint64_t *)k.done = 0;
	CU(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **),
	   k.function, 1, 1, 1, 256, 1, 1, 0, k.stream, arguments, NULL);
	return k;
}

static void await_kernel(const struct kernel *k, uint64_t n)
{
	time_t end = time(NULL) + 40;

	while (__atomic_load_n(k->done, __ATOMIC_ACQUIRE) < n)
		CHECK(time(NULL) < end);
}

/* The kernel has each message before the host takes it. */
static void by_kernel(const char *file)
{
	enum { COUNT = ROUNDS * SIZES };
	uint64_t sums[COUNT];
	raddr_t addr;

	if (rank == 0) {
		rpipe_t rp = writer(0);

		for (int n = 0; n < COUNT; n++) {
			pattern(bytes, n, sizes[n % SIZES]);
			CHECK(rwrite_from(rp, bytes, sizes[n % SIZES]) == 0);
		}
		CHECK(rpipe_close(rp) == 0);
	} else {
		rpipe_t rp = reader(RPIPE_DEVICE | RPIPE_NUMBERS, 3 * MOST);
		struct kernel k = launch(file, rp, COUNT);

		for (int n = 0; n < COUNT; n++) {
			await_kernel(&k, n + 1);
			CHECK(rread(rp, addr, MOST) == 0);
			CHECK(rfree(addr) == 0);
		}
		CU(cuStreamSynchronize, (void *), k.stream);
		from_device(sums, (void *)(uintptr_t)k.sums, sizeof sums);
		for (int n = 0; n < COUNT; n++) {
			uint64_t sum = 0;

			pattern(bytes, n, sizes[n % SIZES]);
			for (size_t i = 0; i < sizes[n % SIZES]; i++)
				sum += (uint64_t)bytes[i] * (i % 251 + 1);
			CHECK(sums[n] == sum);
		}
		CHECK(rpipe_close(rp) == 0);
	}
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int order(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *of, int count)
{
	qsort(of, (size_t)count, sizeof *of, order);
	return of[count / 2];
}

/* The device of a rank: each has its own, where there are several. */
static int device_of(int of)
{
	int count = 0;

	CU(cuDeviceGetCount, (int *), &count);
	return getenv("STRAIT_RPIPE_TEST_ONE_DEVICE") ? 0 : of % count;
}

/* Memory of the other rank's device, which this process's may copy to. */
static void *memory_there(size_t size)
{
	int device = 0;
	void *mine = NULL, *there = NULL, *at;
	int (*peer)(void *, unsigned) = (int (*)(void *, unsigned))dlsym(cuda, "cuCtxEnablePeerAccess");

	if (device_of(rank) == device_of(1 - rank))
		return device_memory(size);
	CU(cuDeviceGet, (int *, int), &device, device_of(rank));
	CU(cuDevicePrimaryCtxRetain, (void **, int), &mine, device);
	CU(cuDeviceGet, (int *, int), &device, device_of(1 - rank));
	CU(cuDevicePrimaryCtxRetain, (void **, int), &there, device);
	CU(cuCtxSetCurrent, (void *), there);
	at = device_memory(size);
	CU(cuCtxSetCurrent, (void *), mine);
	/* It fails where it is allowed already, and where no way leads there: then the driver copies by the host. */
	if (peer)
		peer(there, 0);
	return at;
}

/* Message there, 8 bytes back over a pipe of host memory. Each round also the driver's copy of as many bytes, within this process, to memory of the same
 * device as the reader's. What the last message has is checked. */
static void times(const char *file)
{
	enum { REPEATS = 201 };
	static double rtt[REPEATS], write[REPEATS], raw[REPEATS];
	static const char *names[] = {"host-device", "device-device", "host-host"};
	unsigned char *all = malloc(64u << 20);

	CHECK(all);
	for (size_t i = 0; i < 64u << 20; i++)
		all[i] = (unsigned char)(i * 7 + i / 251);
	if (rank == 0)
		printf("rpipe-device devices: writer %d, reader %d\n", device_of(0), device_of(1));
	for (int way = 0; way < 3 + (file != NULL); way++) {
		for (size_t size = 8; size <= 64u << 20; size *= 8) {
			unsigned flags = way == 2 ? 0 : way == 3 ? RPIPE_DEVICE | RPIPE_NUMBERS : RPIPE_DEVICE;
			rpipe_t there, back;
			raddr_t addr;

			if (rank == 0) {
				void *host = malloc(size), *device = device_memory(size), *other = memory_there(size), *stream;
				const void *from = way == 1 ? device : host;

				memcpy(host, all, size);
				to_device(device, all, size);
				CU(cuStreamCreate, (void **, unsigned), &stream, 1);
				there = writer(0);
				back = reader(0, 0);
				for (int n = 0; n < REPEATS; n++) {
					double begin = now();

					CHECK(rwrite_from(there, from, size) == 0);
					write[n] = now() - begin;
					CHECK(rread(back, addr, 8) == 0);
					rtt[n] = now() - begin;
					CHECK(rfree(addr) == 0);
					begin = now();
					CU(cuMemcpyAsync, (uint64_t, uint64_t, size_t, void *), (uint64_t)(uintptr_t)other,
					   (uint64_t)(uintptr_t)from, size, stream);
					CU(cuStreamSynchronize, (void *), stream);
					raw[n] = now() - begin;
				}
				printf("rpipe-device %s %zu %.2f %.2f %.2f\n", way == 3 ? "host-kernel" : names[way], size, median(rtt, REPEATS),
				       median(write, REPEATS), median(raw, REPEATS));
				fflush(stdout);
				CU(cuMemFree_v2, (uint64_t), (uint64_t)(uintptr_t)device);
				CU(cuMemFree_v2, (uint64_t), (uint64_t)(uintptr_t)other);
				free(host);
			} else {
				uint64_t word = 0;
				struct kernel k = {0};

				there = reader(flags, 2 * size + 8192);
				back = writer(0);
				if (way == 3)
					k = launch(file, there, REPEATS);
				for (int n = 0; n < REPEATS; n++) {
					if (way == 3)
						await_kernel(&k, n + 1);
					CHECK(rread(there, addr, size) == 0 && rlength(addr) == (ptrdiff_t)size);
					if (n == REPEATS - 1) {
						unsigned char *came = calloc(1, size);

						CHECK(came);
						if (flags)
							from_device(came, rmem(there, addr), size);
						else
							memcpy(came, rmem(there, addr), size);
						CHECK(memcmp(came, all, size) == 0);
						free(came);
					}
					CHECK(rfree(addr) == 0);
					CHECK(rwrite_from(back, &word, 8) == 0);
				}
			}
			CHECK(rpipe_close(there) == 0);
			CHECK(rpipe_close(back) == 0);
		}
	}
	free(all);
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "check";

	CHECK(rinit(&rank, NULL) == 0);
	CHECK(rcount() == 2);
	cuda_begin(getenv("STRAIT_RPIPE_TEST_ONE_DEVICE") ? 0 : rank);
	if (!strcmp(how, "kernel") && argc > 2) {
		by_kernel(argv[2]);
	} else if (!strcmp(how, "time")) {
		times(argc > 2 ? argv[2] : NULL);
	} else {
		contents(RPIPE_DEVICE, 0);
		contents(RPIPE_DEVICE, RPIPE_DEVICE);
		contents(RPIPE_DEVICE | RPIPE_NUMBERS, RPIPE_DEVICE);
		contents(0, RPIPE_DEVICE);
		contents(0, 0);
		reported();
	}
	CHECK(rfinalize() == 0);
	printf("rank %d: ok\n", rank);
	return 0;
}
