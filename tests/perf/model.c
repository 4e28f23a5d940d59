/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Terms of the latency of a transfer through a buffer of the kernel's, which a transfer in peer memory does not have:  model [ROUNDS]
 *
 * One line for each term and length: "term bytes agents ns", the lower quartile of all rounds. Agents are threads that do it at once, each with memory of
 * its own. docs/measurements/p2pmem-model.md says what each term is.
 *
 *   flush-dirty, flush-clean, flush-gone   clflushopt over lines that were written, read, or flushed just before; with an sfence
 *   writeback-dirty                        clwb over lines that were written, with an sfence
 *   load-cached, load-flushed              one load of each line
 *   kernel-copy                            pread(2) from the page cache into memory that is cached
 *   user-copy                              memcpy(3) of as much
 *   pin                                    process_vm_readv(2) of one byte of each page: the kernel looks the pages up and holds them
 *   fault                                  the first access to each page of a file that is mapped
 */
#define _GNU_SOURCE
#include <cpuid.h>
#include <immintrin.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "must.h"

#define MOST ((size_t)16 << 20)
#define AGENTS 2
#define LINE 64
#define PAGE 4096

struct agent {
	char *at, *other;
	int file;
	uint64_t ns;
	pthread_t thread;
};

static struct agent agents[AGENTS];
static volatile unsigned char sink;

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void load(const char *at, size_t len)
{
	for (size_t i = 0; i < len; i += LINE)
		sink = *(const volatile unsigned char *)(at + i);
}

__attribute__((target("clflushopt"))) static void flush(char *at, size_t len)
{
	for (size_t i = 0; i < len; i += LINE)
		_mm_clflushopt(at + i);
	_mm_sfence();
}

__attribute__((target("clwb"))) static void write_back(char *at, size_t len)
{
	for (size_t i = 0; i < len; i += LINE)
		_mm_clwb(at + i);
	_mm_sfence();
}

static void pin(char *at, size_t len)
{
	static _Thread_local char bytes[MOST / PAGE];
	static _Thread_local struct iovec pages[1024];

	for (size_t from = 0; from < len; from += 1024 * PAGE) {
		size_t count = (len - from < 1024 * PAGE ? len - from : 1024 * PAGE) / PAGE;
		struct iovec to = { bytes, count };

		for (size_t i = 0; i < count; i++)
			pages[i] = (struct iovec){ at + from + i * PAGE, 1 };
		CHECK(process_vm_readv(getpid(), &to, 1, pages, count, 0) == (ssize_t)count);
	}
}

enum term { FLUSH_DIRTY, FLUSH_CLEAN, FLUSH_GONE, WRITEBACK, LOAD_CACHED, LOAD_FLUSHED, KERNEL_COPY, USER_COPY, PIN, FAULT, TERMS };
static const char *const names[] = { "flush-dirty", "flush-clean", "flush-gone", "writeback-dirty", "load-cached", "load-flushed",
				     "kernel-copy", "user-copy", "pin", "fault" };

static void once(struct agent *a, enum term term, size_t len)
{
	uint64_t begin;
	char *mapped;

	memset(a->at, (int)term, len);
	if (term == FLUSH_CLEAN || term == LOAD_CACHED) {
		flush(a->at, len);
		load(a->at, len);
	} else if (term == FLUSH_GONE || term == LOAD_FLUSHED) {
		flush(a->at, len);
	} else if (term == KERNEL_COPY || term == USER_COPY) {
		load(a->other, len);
	}
	_mm_mfence();
	if (term == FAULT) {
		mapped = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, a->file, 0);
		CHECK(mapped != MAP_FAILED);
		begin = now();
		for (size_t i = 0; i < len; i += PAGE)
			*(volatile char *)(mapped + i) = 1;
		a->ns = now() - begin;
		munmap(mapped, len);
		return;
	}
	begin = now();
	switch (term) {
	case FLUSH_DIRTY:
	case FLUSH_CLEAN:
	case FLUSH_GONE:
		flush(a->at, len);
		break;
	case WRITEBACK:
		write_back(a->at, len);
		break;
	case LOAD_CACHED:
	case LOAD_FLUSHED:
		load(a->at, len);
		break;
	case KERNEL_COPY:
		CHECK(pread(a->file, a->at, len, 0) == (ssize_t)len);
		break;
	case USER_COPY:
		memcpy(a->at, a->other, len);
		break;
	default:
		pin(a->at, len);
	}
	a->ns = now() - begin;
}

static enum term asked_term;
static size_t asked_len;
static pthread_barrier_t start, done;
static _Atomic int over;

static void *agent(void *arg)
{
	for (;;) {
		pthread_barrier_wait(&start);
		if (over)
			return NULL;
		once(arg, asked_term, asked_len);
		pthread_barrier_wait(&done);
	}
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static uint64_t quartile(enum term term, size_t len, int count, int rounds, uint64_t *all)
{
	asked_term = term;
	asked_len = len;
	for (int i = 0; i < rounds; i++) {
		if (count > 1)
			pthread_barrier_wait(&start);
		else
			once(&agents[0], term, len);
		if (count > 1)
			pthread_barrier_wait(&done);
		all[i] = agents[0].ns;
		for (int n = 1; n < count; n++)
			all[i] = agents[n].ns > all[i] ? agents[n].ns : all[i];
	}
	qsort(all, rounds, sizeof *all, by_value);
	return all[rounds / 4];
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 101;
	uint64_t *all = calloc(rounds, sizeof *all);
	unsigned a = 0, b = 0, c = 0, d = 0;

	CHECK(__get_cpuid_count(7, 0, &a, &b, &c, &d));
	if (!(b & 1u << 23) || !(b & 1u << 24)) {
		fprintf(stderr, "this processor has no clflushopt or no clwb\n");
		return 77;
	}
	pthread_barrier_init(&start, NULL, AGENTS + 1);
	pthread_barrier_init(&done, NULL, AGENTS + 1);
	for (int i = 0; i < AGENTS; i++) {
		agents[i].at = aligned_alloc(PAGE, MOST);
		agents[i].other = aligned_alloc(PAGE, MOST);
		agents[i].file = memfd_create("model", MFD_CLOEXEC);
		memset(agents[i].at, 1, MOST);
		memset(agents[i].other, 2, MOST);
		CHECK(write(agents[i].file, agents[i].other, MOST) == (ssize_t)MOST);
		CHECK(!pthread_create(&agents[i].thread, NULL, agent, &agents[i]));
	}
	printf("# term bytes agents ns\n");
	for (int term = 0; term < TERMS; term++)
		for (size_t len = PAGE; len <= MOST; len *= 4)
			for (int count = 1; count <= AGENTS; count++)
				printf("%s %zu %d %llu\n", names[term], len, count,
				       (unsigned long long)quartile(term, len, count, rounds, all));
	over = 1;
	pthread_barrier_wait(&start);
	for (int i = 0; i < AGENTS; i++)
		pthread_join(agents[i].thread, NULL);
	return 0;
}
