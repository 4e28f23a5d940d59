/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Reading a file through a few buffers, by threads that each read and copy, as provider/extras/p2pmem does, and by io_uring:
 *
 *   uring FILE [MIB [ROUNDS]]       FILE is made, MIB long (default 256), and removed
 *
 * Both read with O_DIRECT, into 4 buffers of 4 MiB, and copy each piece to where it belongs. io_uring has the buffers and the file registered,
 * one thread, and as many reads in flight as there are free buffers. In turns, once more with no copy. One line for each: median 10^6
 * bytes a second, system calls of one round, processor time of one round; at last io_uring divided by the threads. Contents are
 * checked. Ends with 77 where the kernel refuses io_uring or the file system O_DIRECT. Build: gcc -O2 uring.c -lpthread
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "must.h"

#define CHUNK ((size_t)4 << 20)
#define BUFFERS 4
#define MOST 101

static int file;
static size_t size;
static unsigned char *buffers[BUFFERS], *to;
static int copies;
static atomic_size_t next;
static atomic_long calls;

static double now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void piece_is_there(size_t at, const unsigned char *buffer)
{
	if (copies)
		memcpy(to + at, buffer, CHUNK);
}

static void *reader(void *arg)
{
	unsigned char *buffer = arg;
	size_t at;

	while ((at = atomic_fetch_add(&next, CHUNK)) < size) {
		calls++;
		CHECK(pread(file, buffer, CHUNK, at) == (ssize_t)CHUNK);
		piece_is_there(at, buffer);
	}
	return NULL;
}

static void by_threads(void)
{
	pthread_t all[BUFFERS];

	atomic_store(&next, 0);
	for (int n = 1; n < BUFFERS; n++)
		CHECK(!pthread_create(&all[n], NULL, reader, buffers[n]));
	reader(buffers[0]);
	for (int n = 1; n < BUFFERS; n++)
		pthread_join(all[n], NULL);
}

static struct {
	int fd;
	_Atomic unsigned *sq_tail, *cq_head, *cq_tail;
	unsigned *sq_mask, *cq_mask, *sq_array;
	struct io_uring_sqe *sqes;
	struct io_uring_cqe *cqes;
} ring;

static int open_ring(void)
{
	struct io_uring_params p = { 0 };
	struct iovec parts[BUFFERS];
	unsigned char *sq, *cq;

	ring.fd = syscall(SYS_io_uring_setup, 2 * BUFFERS, &p);
	if (ring.fd < 0)
		return -1;
	sq = mmap(NULL, p.sq_off.array + p.sq_entries * sizeof(unsigned), PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd, IORING_OFF_SQ_RING);
	cq = mmap(NULL, p.cq_off.cqes + p.cq_entries * sizeof *ring.cqes, PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd, IORING_OFF_CQ_RING);
	ring.sqes = mmap(NULL, p.sq_entries * sizeof *ring.sqes, PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd, IORING_OFF_SQES);
	CHECK(sq != MAP_FAILED && cq != MAP_FAILED && ring.sqes != MAP_FAILED);
	ring.sq_tail = (void *)(sq + p.sq_off.tail);
	ring.sq_mask = (void *)(sq + p.sq_off.ring_mask);
	ring.sq_array = (void *)(sq + p.sq_off.array);
	ring.cq_head = (void *)(cq + p.cq_off.head);
	ring.cq_tail = (void *)(cq + p.cq_off.tail);
	ring.cq_mask = (void *)(cq + p.cq_off.ring_mask);
	ring.cqes = (void *)(cq + p.cq_off.cqes);
	for (int n = 0; n < BUFFERS; n++)
		parts[n] = (struct iovec){ buffers[n], CHUNK };
	CHECK(!syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, parts, BUFFERS));
	CHECK(!syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_FILES, &file, 1));
	return 0;
}

static void queue(unsigned buffer, size_t at)
{
	unsigned tail = atomic_load_explicit(ring.sq_tail, memory_order_relaxed), slot = tail & *ring.sq_mask;
	struct io_uring_sqe *sqe = &ring.sqes[slot];

	*sqe = (struct io_uring_sqe){ .opcode = IORING_OP_READ_FIXED, .flags = IOSQE_FIXED_FILE, .off = at, .addr = (uintptr_t)buffers[buffer], .len = CHUNK,
		.buf_index = buffer, .user_data = (uint64_t)at << 8 | buffer };
	ring.sq_array[slot] = slot;
	atomic_store_explicit(ring.sq_tail, tail + 1, memory_order_release);
}

static void by_ring(void)
{
	size_t at = 0, done = 0;
	unsigned fresh = 0;

	for (; fresh < BUFFERS && at < size; at += CHUNK)
		queue(fresh++, at);
	while (done < size) {
		unsigned head = atomic_load_explicit(ring.cq_head, memory_order_relaxed);
		struct io_uring_cqe of;

		if (fresh || head == atomic_load_explicit(ring.cq_tail, memory_order_acquire)) {
			int wait = head == atomic_load_explicit(ring.cq_tail, memory_order_acquire);
			calls++;
			CHECK(syscall(SYS_io_uring_enter, ring.fd, fresh, wait, wait ? IORING_ENTER_GETEVENTS : 0, NULL, 0) == (long)fresh);
			fresh = 0;
			continue;
		}
		of = ring.cqes[head & *ring.cq_mask];
		atomic_store_explicit(ring.cq_head, head + 1, memory_order_release);
		CHECK(of.res == (int)CHUNK);
		piece_is_there(of.user_data >> 8, buffers[of.user_data & 255]);
		done += CHUNK;
		if (at < size) {
			queue(of.user_data & 255, at);
			at += CHUNK, fresh = 1;
		}
	}
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	size_t mib = argc > 2 ? strtoul(argv[2], NULL, 0) : 256;
	int rounds = argc > 3 ? atoi(argv[3]) : 11;
	double all[2][2][MOST], busy[2][2] = { 0 };
	long asked[2][2];

	CHECK(argc > 1 && mib >= 16 && mib % 4 == 0 && rounds > 0 && rounds <= MOST);
	size = mib << 20;
	to = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	CHECK(to != MAP_FAILED);
	for (int n = 0; n < BUFFERS; n++)
		CHECK((buffers[n] = aligned_alloc(1 << 16, CHUNK)));
	for (size_t n = 0; n < size; n++)
		to[n] = n * 7 + (n >> 8) * 13 + (n >> 16);
	file = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
	CHECK(file >= 0);
	for (size_t n = 0; n < size; n += CHUNK)
		CHECK(pwrite(file, to + n, CHUNK, n) == (ssize_t)CHUNK);
	CHECK(!fsync(file));
	close(file);
	file = open(argv[1], O_RDWR | O_DIRECT);
	unlink(argv[1]);
	if (file < 0 || open_ring()) {
		perror(file < 0 ? "O_DIRECT" : "io_uring_setup");
		return 77;
	}
	for (int round = -1; round < rounds; round++)
		for (int way = 0; way < 4; way++) {
			double begin = now(CLOCK_MONOTONIC), used = now(CLOCK_PROCESS_CPUTIME_ID);
			int with = way & 1, is_ring = (way >> 1) ^ (round & 1);

			copies = !with;
			atomic_store(&calls, 0);
			if (copies)
				memset(to, 0, 4096);
			(is_ring ? by_ring : by_threads)();
			/* The first round is not counted. */
			if (round < 0)
				continue;
			all[is_ring][with][round] = size / (now(CLOCK_MONOTONIC) - begin) / 1e6;
			busy[is_ring][with] += now(CLOCK_PROCESS_CPUTIME_ID) - used;
			asked[is_ring][with] = calls;
			for (size_t n = 0; copies && n < size; n += 4093)
				CHECK(to[n] == (unsigned char)(n * 7 + (n >> 8) * 13 + (n >> 16)));
		}
	for (int with = 0; with < 2; with++) {
		for (int is_ring = 0; is_ring < 2; is_ring++) {
			qsort(all[is_ring][with], rounds, sizeof(double), by_value);
			printf("%-8s %-10s %8.0f MB/s  %4ld calls  %7.2f ms\n", is_ring ? "io_uring" : "threads", with ? "read" : "read, copy",
			       all[is_ring][with][rounds / 2], asked[is_ring][with], busy[is_ring][with] / rounds * 1e3);
		}
		printf("%s: io_uring / threads %.2f\n", with ? "read" : "read, copy", all[1][with][rounds / 2] / all[0][with][rounds / 2]);
	}
	return 0;
}
