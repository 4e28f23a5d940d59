/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * A file to a GPU's memory and back, by cuFile and by Strait's own buffers, in turns:  storage FILE [MIB [ROUNDS]]
 *
 * FILE is made, MIB long (default 1024). Contents are checked. Prints 10^6 bytes a second, medians, and ours divided by cuFile's. Without a GPU it
 * exits with 77; without cuFile only ours is there. Build: gcc -O2 -Iinclude storage.c -L$STRAIT_LIB_DIR -lstrait -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <strait_storage.h>

#define MOST 101

static void *cuda;

static void *symbol(const char *name)
{
	void *found = dlsym(cuda, name);

	if (!found) {
		fprintf(stderr, "libcuda.so.1 has no %s\n", name);
		exit(77);
	}
	return found;
}

#define CU(name, types, ...)                                                              \
	do {                                                                              \
		int code = ((int (*)types)symbol(#name))(__VA_ARGS__);                    \
		if (code) {                                                               \
			fprintf(stderr, "%s: %d\n", #name, code);                         \
			exit(!strcmp(#name, "cuInit") ? 77 : 1);                          \
		}                                                                         \
	} while (0)

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *all, int n)
{
	qsort(all, n, sizeof *all, by_value);
	return all[n / 2];
}

static void must(int64_t got, int64_t want, const char *what)
{
	if (got != want) {
		fprintf(stderr, "%s: %lld, not %lld: %s\n", what, (long long)got, (long long)want, strait_storage_error());
		exit(1);
	}
}

static void check(uint64_t device, unsigned char *host, const unsigned char *want, size_t len, const char *what)
{
	CU(cuMemcpyDtoH_v2, (void *, uint64_t, size_t), host, device, len);
	if (memcmp(host, want, len)) {
		fprintf(stderr, "%s: the contents are wrong\n", what);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	size_t len = (size_t)(argc > 2 ? atoi(argv[2]) : 1024) << 20;
	int rounds = argc > 3 ? atoi(argv[3]) : 9, ways = 2, handle;
	unsigned char *want = malloc(len), *host = malloc(len);
	static double rates[2][2][MOST];
	struct strait_storage *files[2];
	uint64_t device = 0;
	void *context;

	if (argc < 2 || rounds < 1 || rounds > MOST || !len || !want || !host)
		return 2;
	if (!(cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL)))
		return 77;
	CU(cuInit, (unsigned), 0);
	CU(cuDeviceGet, (int *, int), &handle, 0);
	CU(cuDevicePrimaryCtxRetain, (void **, int), &context, handle);
	CU(cuCtxSetCurrent, (void *), context);
	CU(cuMemAlloc_v2, (uint64_t *, size_t), &device, len);
	for (size_t i = 0; i < len; i++)
		want[i] = (unsigned char)(i * 7 + (i >> 8) * 13 + (i >> 16));
	must(strait_storage_open(argv[1], STRAIT_STORAGE_WRITE | STRAIT_STORAGE_CREATE | STRAIT_STORAGE_NO_CUFILE, &files[0]), 0, "open");
	must(strait_storage_open(argv[1], STRAIT_STORAGE_WRITE, &files[1]), 0, "open");
	must(strait_storage_write(files[0], want, len, 0), len, "write");
	for (int round = 0; round < rounds + 1; round++)
		for (int way = 0; way < ways; way++) {
			struct strait_storage_info info = { .size = sizeof info };
			double begin;

			CU(cuMemsetD8_v2, (uint64_t, unsigned char, size_t), device, 0, len);
			begin = now();
			must(strait_storage_read(files[way], (void *)(uintptr_t)device, len, 0), len, "read");
			rates[way][0][round ? round - 1 : 0] = len / (now() - begin) / 1e6;
			check(device, host, want, len, "read");
			begin = now();
			must(strait_storage_write(files[way], (void *)(uintptr_t)device, len, 0), len, "write");
			rates[way][1][round ? round - 1 : 0] = len / (now() - begin) / 1e6;
			must(strait_storage_query(files[way], &info), 0, "query");
			if (!round)
				printf("%s: path %u, %s\n", way ? "cuFile" : "ours", info.path, info.why);
			/* The rest would be a comparison with itself. */
			if (way && info.path != STRAIT_STORAGE_PATH_CUFILE)
				ways = 1;
		}
	for (int what = 0; what < 2; what++) {
		double ours = median(rates[0][what], rounds), cufile = median(rates[1][what], rounds);

		if (ways == 2)
			printf("%s: ours %.0f, cuFile %.0f, ratio %.2f\n", what ? "write" : "read", ours, cufile, ours / cufile);
		else
			printf("%s: ours %.0f, no cuFile\n", what ? "write" : "read", ours);
	}
	must(strait_storage_close(files[0]), 0, "close");
	must(strait_storage_close(files[1]), 0, "close");
	return 0;
}
