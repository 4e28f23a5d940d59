/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * The floor: two processes, memory that both map, bytes that are copied there, and a flag behind them that the other one polls.
 *
 *   flag [ROUNDS]
 *
 * flag: the same bytes and the same flag each time, in lines of their own: what any form takes at least whose bytes begin in private memory.
 * flag-around: the bytes in the next of 16 places, of 64 KiB at most together (messages longer than that: 4 MiB), and the flag in the next of 256 lines: what messages that do not write
 * over each other take.
 *
 * Prints "FORM BYTES MICROSECONDS": half of there and back.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "common.h"

enum { PLACES = 16, FLAGS = 256 };

struct way {
	_Alignas(4096) char bytes[LONGEST];
	struct { _Alignas(64) _Atomic uint64_t number; } flags[FLAGS];
};

static struct way *to, *from;
static char *out;
static uint64_t stamps;

/* To the processor of this number among those that this process may use; with one alone, or none to be had, anywhere. */
static void bind_to(int number)
{
	cpu_set_t may, one;

	if (sched_getaffinity(0, sizeof(may), &may) || CPU_COUNT(&may) < 2)
		return;
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &may) || number--)
			continue;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		if (sched_setaffinity(0, sizeof(one), &one))
			perror("sched_setaffinity");
		return;
	}
}

static char *place(struct way *way, size_t size, uint64_t stamp, int around)
{
	size_t room = size < 64 ? 64 : size, all = size > MOST ? LONGEST : MOST, places = all / room < PLACES ? all / room : PLACES;

	return way->bytes + (around ? stamp % places * room : 0);
}

static void give(size_t size, uint64_t stamp, int around, int full)
{
	stamp_it(out, size, stamp, full);
	memcpy(place(to, size, stamp, around), out, size);
	atomic_store_explicit(&to->flags[around ? stamp % FLAGS : 0].number, stamp, memory_order_release);
}

static void take(size_t size, uint64_t stamp, int around, int full)
{
	while (atomic_load_explicit(&from->flags[around ? stamp % FLAGS : 0].number, memory_order_acquire) != stamp)
		;
	check_it("flag", place(from, size, stamp, around), size, stamp, full);
}

static double ping(int me, size_t size, long rounds, int around, int full)
{
	double begin = now();

	for (long n = 0; n < rounds; n++, stamps++) {
		if (me == 0)
			give(size, stamps + 1, around, full);
		take(size, stamps + 1, around, full);
		if (me)
			give(size, stamps + 1, around, full);
	}
	return (now() - begin) / rounds / 2 * 1e6;
}

int main(int argc, char **argv)
{
	static const char *names[] = { "flag", "flag-around" };
	long rounds = argc > 1 ? atol(argv[1]) : 10000;
	pid_t parent = getpid(), child;
	struct way *ways;
	int me;

	if (rounds < 1) {
		fprintf(stderr, "usage: %s [ROUNDS]\n", argv[0]);
		return 2;
	}
	ways = mmap(NULL, 2 * sizeof(*ways), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	child = ways == MAP_FAILED ? -1 : fork();
	if (child < 0) {
		perror("flag");
		return 1;
	}
	me = child == 0;
	/* A process that is alone polls no further. */
	if (me && (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent))
		return 1;
	bind_to(me);
	to = ways + me;
	from = ways + !me;
	out = aligned_alloc(4096, LONGEST);
	memset(out, 0, LONGEST);
	for (int around = 0; around < 2; around++) {
		/* Each line is touched before. */
		ping(me, MOST, FLAGS, around, 1);
		for (size_t size = LEAST; size <= LONGEST; size = size_after(size)) {
			ping(me, size, warm_of(size), around, 1);
			double took = ping(me, size, rounds_of(rounds, size), around, 0);

			if (me == 0)
				printf("%s %zu %.4f\n", names[around], size, took);
		}
	}
	return 0;
}
