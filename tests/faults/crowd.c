/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Many processes on few cores, and many peers that say nothing.
 *
 *   crowd all N ROUNDS [poll|sread|auto|spin] [PROVIDER] [LEN]   every process to every other, ROUNDS times
 *   crowd idle N [PROVIDER]                                 what N connected peers that are silent cost
 *
 * All contents are checked, and that it ends; times are printed.
 */
#include "fab.h"

#define MOST 256

static struct shared {
	struct name names[MOST];
	volatile int ready, met, go, stop;
	volatile uint64_t slowest;
} *sh;

static void gather(volatile int *count, int n)
{
	__sync_fetch_and_add(count, 1);
	while (*count < n)
		usleep(500);
}

static struct fab f;
static fi_addr_t peers[MOST];
static int spins;

static void join(int me, int n, struct fab_options o)
{
	static char role[16];

	snprintf(role, sizeof role, "process %d", me);
	fab_role = role;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	o.cq_size = 4 * MOST;
	fab_open(&f, o);
	sh->names[me] = f.name;
	gather(&sh->ready, n);
	for (int i = 0; i < n; i++)
		peers[i] = fab_insert(&f, &sh->names[i]);
}

static void everybody(int me, int n, int rounds, size_t len, struct fab_options o)
{
	static struct op out[MOST], in[MOST];
	unsigned char *send = malloc(len * (size_t)n), *room = malloc(len * (size_t)n);
	uint64_t start, took, seen;

	CHECK(send && room, "memory");
	join(me, n, o);
	gather(&sh->met, n);
	start = now_ns();
	for (int round = 0; round < rounds; round++) {
		uint64_t last = now_ns();
		int left;

		for (int k = 0; k < n; k++)
			if (k != me)
				POST(&f, &in[k], fi_trecv(f.ep, room + len * (size_t)k, len, NULL, peers[k], (uint64_t)round, 0, &in[k]));
		for (int k = 0; k < n; k++) {
			int to = (me + k) % n;

			if (to == me)
				continue;
			fill(send + len * (size_t)to, len, (unsigned)(me * 7 + to * 3 + round));
			POST(&f, &out[to], fi_tsend(f.ep, send + len * (size_t)to, len, NULL, peers[to], (uint64_t)round, &out[to]));
		}
		do {
			if (fab_poll(&f))
				last = now_ns();
			else if (!f.sleeps && !spins)
				sched_yield();
			left = 0;
			for (int k = 0; k < n; k++)
				left += k != me && (in[k].state == PENDING || out[k].state == PENDING);
			CHECK(now_ns() - last < 60000000000u, "round %d: %d left, and nothing for a minute", round, left);
		} while (left);
		for (int k = 0; k < n; k++) {
			if (k == me)
				continue;
			CHECK(in[k].state == DONE && out[k].state == DONE, "round %d: %s, %s", round, fi_strerror(in[k].err),
			      fi_strerror(out[k].err));
			seen = differs(room + len * (size_t)k, len, (unsigned)(k * 7 + me * 3 + round));
			CHECK(in[k].len == len && seen == len, "round %d, from %d: wrong at %lu", round, k, seen);
		}
	}
	took = now_ns() - start;
	while ((seen = sh->slowest) < took && !__sync_bool_compare_and_swap(&sh->slowest, seen, took))
		;
	gather(&sh->go, n);
	fab_close(&f);
	exit(0);
}

/* Kilobytes of a line of a file in /proc. */
static long kilobytes(const char *file, const char *key)
{
	char line[256];
	FILE *in = fopen(file, "r");
	long n = -1;

	CHECK(in, "%s: %s", file, strerror(errno));
	while (fgets(line, sizeof line, in))
		if (!strncmp(line, key, strlen(key)))
			n = atol(line + strlen(key));
	fclose(in);
	return n;
}

static double poll_ns(void)
{
	enum { POLLS = 200000 };
	struct fi_cq_tagged_entry e;
	double best = 1e9;

	for (int go = 0; go < 25; go++) {
		uint64_t start = now_ns();
		double each;

		for (int i = 0; i < POLLS; i++)
			CHECK(fi_cq_read(f.cq, &e, 1) == -FI_EAGAIN, "something came");
		each = (double)(now_ns() - start) / POLLS;
		best = each < best ? each : best;
	}
	return best;
}

/* Talks to `from..to`, both ways. */
static void talk(int from, int to)
{
	for (int k = from; k < to; k++) {
		struct op in = {0}, out = {0};
		uint64_t word = 1, back = 0;

		POST(&f, &in, fi_trecv(f.ep, &back, 8, NULL, peers[k], 1, 0, &in));
		POST(&f, &out, fi_tsend(f.ep, &word, 8, NULL, peers[k], 1, &out));
		await(&f, &in, "an answer");
		await(&f, &out, "a word");
	}
}

static void idler(int me, int n, const char *provider)
{
	struct op in = {0}, out = {0};
	uint64_t word;

	join(me, n, (struct fab_options){.threading = FI_THREAD_DOMAIN, .provider = provider});
	POST(&f, &in, fi_trecv(f.ep, &word, 8, NULL, peers[0], 1, 0, &in));
	while (in.state == PENDING) {
		if (sh->stop)
			exit(0);
		if (!fab_poll(&f))
			usleep(1000);
	}
	POST(&f, &out, fi_tsend(f.ep, &word, 8, NULL, peers[0], 1, &out));
	await(&f, &out, "an answer");
	while (!sh->stop)
		usleep(5000);
	exit(0);
}

static void idle(int n, const char *provider)
{
	long rss, shared, pss;
	double one, all;

	join(0, n, (struct fab_options){.threading = FI_THREAD_DOMAIN, .provider = provider});
	talk(1, 2);
	one = poll_ns();
	rss = kilobytes("/proc/self/status", "RssAnon:");
	shared = kilobytes("/proc/meminfo", "Shmem:");
	pss = kilobytes("/proc/self/status", "RssShmem:");
	talk(2, n);
	all = poll_ns();
	printf("%s: an empty poll %.1f ns with 1 peer, %.1f with %d: %.2f times; per peer %.1f KiB of private memory here, "
	       "%.1f KiB shared mapped here, %.1f KiB shared on the host\n",
	       provider, one, all, n - 1, all / one, (double)(kilobytes("/proc/self/status", "RssAnon:") - rss) / (n - 2),
	       (double)(kilobytes("/proc/self/status", "RssShmem:") - pss) / (n - 2),
	       (double)(kilobytes("/proc/meminfo", "Shmem:") - shared) / (n - 2));
	sh->stop = 1;
	fab_close(&f);
}

int main(int argc, char **argv)
{
	int all = argc > 1 && !strcmp(argv[1], "all"), n = argc > 2 ? atoi(argv[2]) : 16;
	int rounds = all && argc > 3 ? atoi(argv[3]) : 10;
	const char *mode = all && argc > 4 ? argv[4] : "poll";
	const char *provider = argc > (all ? 5 : 3) ? argv[all ? 5 : 3] : "strait";
	size_t len = argc > 6 ? strtoull(argv[6], NULL, 0) : 100;
	struct fab_options o = {.provider = provider, .threading = FI_THREAD_DOMAIN};
	pid_t pids[MOST];

	n += !all;
	CHECK(n >= 2 && n <= MOST, "%d processes", n);
	if (!strcmp(mode, "auto"))
		o.progress = FI_PROGRESS_AUTO, o.threading = FI_THREAD_SAFE;
	o.sleeps = !strcmp(mode, "sread");
	spins = !strcmp(mode, "spin"); /* without a thought for others */
	sh = shared_memory(sizeof *sh);
	for (int i = 0; i < n; i++) {
		if (!i && !all)
			continue;
		pids[i] = fork();
		CHECK(pids[i] >= 0, "fork");
		if (!pids[i]) {
			if (all)
				everybody(i, n, rounds, len, o);
			idler(i, n, provider);
		}
	}
	if (!all)
		idle(n, provider);
	for (int i = !all; i < n; i++) {
		int status;

		CHECK(waitpid(pids[i], &status, 0) == pids[i] && !status, "process %d: status %x", i, status);
	}
	if (all)
		printf("crowd: %d processes, %s, %s, %zu bytes: %.3f ms a round\n", n, provider, mode, len,
		       (double)sh->slowest / 1e6 / rounds);
	puts("crowd ok");
	return 0;
}
