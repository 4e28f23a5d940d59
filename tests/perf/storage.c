/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * A file to a GPU's memory and back, in turns by cuFile and by Strait's own buffers, at once and on a stream:
 *
 *   storage FILE [MIB [ROUNDS]]      FILE is made, MIB long (default 1024)
 *   storage FILE probe               says whether cuFile takes FILE, and why not; ends with 3 if not
 *
 * Contents are checked. Prints 10^6 bytes a second, medians, and ours divided by cuFile's. Without a GPU it ends with 77; where cuFile
 * does not take the file only ours is there. Build: gcc -O2 -Iinclude -Itests/gpu storage.c -L$STRAIT_LIB_DIR -lstrait -ldl
 */
#define _GNU_SOURCE
#include "driver.h"

#include <time.h>

#include <strait_storage.h>

#define MOST 101

enum { OURS, CUFILE, OURS_STREAM, CUFILE_STREAM, WAYS };
static const char *const names[WAYS] = { "ours", "cuFile", "ours, on a stream", "cuFile, on a stream" };
static int given_up[WAYS];
static double rates[WAYS][2][MOST];
static struct strait_storage *files[2];
static void *stream;

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

/* One transfer; how long it took, or below 0 if cuFile failed on the stream. */
static double transfer(int way, int write, uint64_t device, size_t len)
{
	struct strait_storage_op op = { .addr = (void *)(uintptr_t)device, .len = len, .write = write };
	struct strait_storage *file = files[way & 1];
	struct strait_storage_request *request;
	double begin = now();

	if (way < OURS_STREAM) {
		must(write ? strait_storage_write(file, op.addr, len, 0) : strait_storage_read(file, op.addr, len, 0), len, names[way]);
		return now() - begin;
	}
	must(strait_storage_submit_on_stream(file, &op, 1, stream, &request), 0, names[way]);
	must(strait_storage_wait(request, 60000), 0, names[way]);
	must(strait_storage_release(request), 0, names[way]);
	if (way == CUFILE_STREAM && op.result < 0) {
		printf("%s: %s\n", names[way], strait_storage_error());
		return -1;
	}
	must(op.result, len, names[way]);
	return now() - begin;
}

/* A way's read and write; it is given up where cuFile was not what was taken. */
static void measure(int way, int round, uint64_t device, unsigned char *host, const unsigned char *want, size_t len)
{
	struct strait_storage_info info = { .size = sizeof info };
	double took[2];

	for (int write = 0; write < 2; write++) {
		if (!write) {
			CU(cuMemsetD8_v2, (uint64_t, unsigned char, size_t), device, 0, len);
			CU(cuCtxSynchronize, (void));
		}
		if ((took[write] = transfer(way, write, device, len)) < 0) {
			given_up[way] = 1;
			return;
		}
		if (!write)
			check(device, host, want, len, names[way]);
	}
	must(strait_storage_query(files[way & 1], &info), 0, "query");
	if (!round)
		printf("%s: path %u, %s\n", names[way], info.path, info.why);
	if ((way & 1) && info.path != STRAIT_STORAGE_PATH_CUFILE)
		given_up[way] = 1;
	for (int write = 0; write < 2 && round; write++)
		rates[way][write][round - 1] = len / took[write] / 1e6;
}

static int probe(uint64_t device)
{
	struct strait_storage_info info = { .size = sizeof info };

	must(strait_storage_read(files[1], (void *)(uintptr_t)device, 4096, 0), 4096, "read");
	must(strait_storage_query(files[1], &info), 0, "query");
	printf("path %u: %s\n", info.path, info.why);
	return info.path == STRAIT_STORAGE_PATH_CUFILE ? 0 : 3;
}

int main(int argc, char **argv)
{
	int probing = argc > 2 && !strcmp(argv[2], "probe"), rounds = argc > 3 ? atoi(argv[3]) : 9;
	size_t len = (size_t)(probing ? 1 : argc > 2 ? atoi(argv[2]) : 1024) << 20;
	unsigned char *want = malloc(len), *host = malloc(len);
	uint64_t device = 0;

	if (argc < 2 || rounds < 1 || rounds > MOST || !len || !want || !host)
		return 2;
	cuda_begin(0);
	CU(cuMemAlloc_v2, (uint64_t *, size_t), &device, len);
	CU(cuStreamCreate, (void **, unsigned), &stream, 1);
	for (size_t i = 0; i < len; i++)
		want[i] = (unsigned char)(i * 7 + (i >> 8) * 13 + (i >> 16));
	must(strait_storage_open(argv[1], STRAIT_STORAGE_WRITE | STRAIT_STORAGE_CREATE | STRAIT_STORAGE_NO_CUFILE, &files[0]), 0, "open");
	must(strait_storage_open(argv[1], STRAIT_STORAGE_WRITE, &files[1]), 0, "open");
	must(strait_storage_write(files[0], want, len, 0), len, "write");
	if (probing)
		return probe(device);
	for (int round = 0; round < rounds + 1; round++)
		for (int way = 0; way < WAYS; way++)
			if (!given_up[way])
				measure(way, round, device, host, want, len);
	for (int write = 0; write < 2; write++)
		for (int way = OURS; way < WAYS; way += 2) {
			double ours = median(rates[way][write], rounds), cufile = median(rates[way + 1][write], rounds);

			printf("%-5s %-18s %6.0f", write ? "write" : "read", names[way], ours);
			if (given_up[way + 1])
				printf("   no cuFile\n");
			else
				printf("   cuFile %6.0f   ratio %.2f\n", cufile, ours / cufile);
		}
	must(strait_storage_close(files[0]), 0, "close");
	must(strait_storage_close(files[1]), 0, "close");
	CU(cuStreamDestroy_v2, (void *), stream);
	return 0;
}
