/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * What userfaultfd(2) would cost as the watch of a cache of registrations, and what such a watch misses. No RDMA device takes part.
 *
 *   gcc -O2 -pthread -o watch watch.c && ./watch [SECONDS]
 *
 * Costs: a line "WHAT BYTES NANOSECONDS", the median of 9 turns. hit: what a lookup calls to learn of changes: nothing but a shared
 * word, a read(2) of the descriptor, UFFDIO_WRITEPROTECT of no protection, which refuses with EAGAIN while a change is under way.
 * munmap and the like: the program's calls on memory that is not watched, and on memory that is, with a thread that reads events.
 *
 * Misses, for SECONDS (5): one thread unmaps a page, or replaces it, while the other one maps memory until it gets that address. From
 * then on a cached registration of the address is stale. Counted is how often each of the three says that nothing has changed.
 * What was found: docs/measurements/registration.md.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "must.h"

enum { PAGE = 4096, TURNS = 9 };

/* The events that were read. */
static atomic_ulong events;
/* What the first byte of memory was when the event was read that it is discarded. */
static atomic_int found;
static int watch;

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void open_watch(void)
{
	struct uffdio_api api = {.api = UFFD_API,
		.features = UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE};

	watch = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
	if (watch < 0 || ioctl(watch, UFFDIO_API, &api)) {
		printf("no userfaultfd: %s\n", strerror(errno));
		exit(77);
	}
}

static int add(void *at, size_t len)
{
	struct uffdio_register ask = {.range = {(uintptr_t)at, len}, .mode = UFFDIO_REGISTER_MODE_WP};

	return ioctl(watch, UFFDIO_REGISTER, &ask);
}

static void take_off(void *at, size_t len)
{
	struct uffdio_range range = {(uintptr_t)at, len};

	(void)ioctl(watch, UFFDIO_UNREGISTER, &range);
}

/* Whether the kernel says that memory is watched, and that no change is under way. */
static int is_unchanged(void *at, size_t len)
{
	struct uffdio_writeprotect ask = {.range = {(uintptr_t)at, len}};

	return !ioctl(watch, UFFDIO_WRITEPROTECT, &ask);
}

static int read_one(void)
{
	struct uffd_msg event;

	if (read(watch, &event, sizeof event) != sizeof event)
		return 0;
	if (event.event == UFFD_EVENT_REMOVE)
		atomic_store(&found, *(volatile char *)(uintptr_t)event.arg.remove.start);
	atomic_fetch_add(&events, 1);
	return 1;
}

/* A thread that unmaps watched memory sleeps until its event was read. */
static void *reader(void *none)
{
	struct pollfd ready = {.fd = watch, .events = POLLIN};

	for (;;) {
		(void)poll(&ready, 1, -1);
		while (read_one())
			;
	}
	return none;
}

static int by_size(const void *a, const void *b)
{
	double d = *(const double *)a - *(const double *)b;

	return (d > 0) - (d < 0);
}

static void *fresh(size_t len)
{
	void *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(at != MAP_FAILED);
	memset(at, 1, len);
	return at;
}

static void *hit_at;
static size_t hit_len;

static void by_word(void)
{
	(void)atomic_load(&events);
}

static void by_read(void)
{
	(void)read_one();
}

static void by_ioctl(void)
{
	CHECK(is_unchanged(hit_at, hit_len));
}

static void time_hit(const char *what, size_t len, void (*hit)(void))
{
	double all[TURNS];

	for (int turn = 0; turn < TURNS; turn++) {
		uint64_t from = now();

		for (int i = 0; i < 20000; i++)
			hit();
		all[turn] = (double)(now() - from) / 20000;
	}
	qsort(all, TURNS, sizeof *all, by_size);
	printf("%-34s %8zu %9.0f\n", what, len, all[TURNS / 2]);
}

enum call { MUNMAP, FIXED, MREMAP, DONTNEED, ADD, CALLS };

static const char *names[] = {"munmap", "mmap, MAP_FIXED over it", "mremap, moved", "madvise, MADV_DONTNEED",
	"UFFDIO_REGISTER and _UNREGISTER"};

static void time_call(enum call call, size_t len, int is_watched)
{
	enum { ROUNDS = 64 };
	char what[64];
	double all[TURNS];

	for (int turn = 0; turn < TURNS; turn++) {
		uint64_t sum = 0;

		for (int i = 0; i < ROUNDS; i++) {
			void *at = fresh(len), *to = fresh(len);
			uint64_t from;

			if (is_watched)
				CHECK(!add(at, len));
			from = now();
			switch (call) {
			case MUNMAP:
				CHECK(!munmap(at, len));
				break;
			case FIXED:
				CHECK(mmap(at, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
				break;
			case MREMAP:
				CHECK(mremap(at, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
				break;
			case DONTNEED:
				CHECK(!madvise(at, len, MADV_DONTNEED));
				break;
			default:
				CHECK(!add(at, len));
				take_off(at, len);
			}
			sum += now() - from;
			munmap(at, len);
			munmap(to, len);
		}
		all[turn] = (double)sum / ROUNDS;
	}
	qsort(all, TURNS, sizeof *all, by_size);
	snprintf(what, sizeof what, "%s%s", names[call], is_watched ? ", watched" : "");
	printf("%-34s %8zu %9.0f\n", what, len, all[TURNS / 2]);
}

/* The address that one thread replaces and the other one maps, and whose turn it is. */
static void *_Atomic place;
static atomic_int turn;

static void *unmaps(void *none)
{
	for (int seen = 0;;) {
		while (atomic_load(&turn) == seen)
			;
		seen = atomic_load(&turn);
		CHECK(!munmap(atomic_load(&place), PAGE));
		atomic_store(&place, NULL);
	}
	return none;
}

/* One page that this thread has watched, and the other one unmaps meanwhile: it is mapped again here as soon as that can be. */
static void count_misses(double seconds)
{
	unsigned long rounds = 0, by_word = 0, by_read = 0, by_ioctl = 0;
	uint64_t until = now() + (uint64_t)(seconds * 1e9);
	pthread_t thread;

	CHECK(!pthread_create(&thread, NULL, unmaps, NULL));
	while (now() < until) {
		char *at = fresh(PAGE), *new;
		unsigned long before, after;
		int has_read, is_same;

		CHECK(!add(at, PAGE));
		before = atomic_load(&events);
		atomic_store(&place, at);
		atomic_fetch_add(&turn, 1);
		/* Refused as long as there is memory. */
		while ((new = mmap(at, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0)) == MAP_FAILED)
			;
		/* What a cached registration of this address has is the page before. */
		is_same = is_unchanged(at, PAGE);
		after = atomic_load(&events);
		has_read = read_one();
		rounds++;
		by_word += after == before;
		by_read += !has_read && atomic_load(&events) == before;
		by_ioctl += is_same;
		while (atomic_load(&place))
			;
		munmap(at, PAGE);
	}
	printf("%lu times another thread had unmapped the page: not seen %lu by a shared word, %lu by read(2) of the descriptor, %lu by the ioctl\n",
	       rounds, by_word, by_read, by_ioctl);
}

/* What has no event, or one that comes too early; and what the watch changes for the program. */
static void one_by_one(void)
{
	size_t len = 2 * PAGE;
	char *at = fresh(len);
	int fd = memfd_create("watch", MFD_CLOEXEC);
	unsigned long before;

	CHECK(!add(at, len));
	CHECK(!madvise(at, len, MADV_DONTNEED));
	printf("MADV_DONTNEED: the page that is discarded was %s when its event was read\n", atomic_load(&found) ? "still there" : "gone");
	CHECK(mremap(at, len, PAGE, 0) == at && mremap(at, PAGE, len, 0) == at);
	printf("mremap to half, and back: the new page %s\n", is_unchanged(at + PAGE, PAGE) ? "is watched, as the old one was" : "is not watched");
	munmap(at, len);
	CHECK(fd >= 0 && !ftruncate(fd, PAGE));
	at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(at != MAP_FAILED);
	at[0] = 1;
	if (add(at, PAGE)) {
		printf("memory of a memfd is refused: %s\n", strerror(errno));
		return;
	}
	before = atomic_load(&events);
	CHECK(!ftruncate(fd, 0) && !ftruncate(fd, PAGE));
	printf("ftruncate of a memfd and back: %lu events, the new page %s\n", atomic_load(&events) - before,
	       is_unchanged(at, PAGE) ? "is watched, as the old one was" : "is not watched");
	/* A range that is watched by half is three mappings: mremap(2) of the whole fails. */
	at = fresh(4 * PAGE);
	CHECK(!add(at + PAGE, PAGE));
	printf("mremap of a mapping, a part of which is watched: %s\n",
	       mremap(at, 4 * PAGE, 8 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED ? strerror(errno) : "ok");
}

int main(int argc, char **argv)
{
	static const size_t sizes[] = {64 << 10, 1 << 20};
	pthread_t thread;

	setvbuf(stdout, NULL, _IOLBF, 0);
	open_watch();
	CHECK(!pthread_create(&thread, NULL, reader, NULL));
	for (unsigned i = 0; i < 2; i++) {
		hit_at = fresh(sizes[i]);
		CHECK(!add(hit_at, sizes[i]));
		if (!i) {
			time_hit("hit, a shared word", sizes[i], by_word);
			time_hit("hit, read(2)", sizes[i], by_read);
			hit_len = PAGE;
			time_hit("hit, UFFDIO_WRITEPROTECT", hit_len, by_ioctl);
		}
		hit_len = sizes[i];
		time_hit("hit, UFFDIO_WRITEPROTECT", hit_len, by_ioctl);
	}
	for (unsigned i = 0; i < 2; i++)
		for (enum call call = 0; call < CALLS; call++)
			for (int is_watched = 0; is_watched < (call == ADD ? 1 : 2); is_watched++)
				time_call(call, sizes[i], is_watched);
	one_by_one();
	count_misses(argc > 1 ? atof(argv[1]) : 5);
	return 0;
}
