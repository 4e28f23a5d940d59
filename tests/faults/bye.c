/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * A sender ends as soon as its sends have completed, while the receiver, which has done something else meanwhile, sends to it.
 * Every message that completed has to arrive.
 *
 *   bye [rounds] [frames | late]
 *
 * With `late` the receiver reads nothing before the sender has ended, so that a ring is full: over shared
 * memory, where that holds nothing of what completed back. The sender ends by fi_close, by exit(3), or by the
 * end of main. What the receiver sends to it then is answered by a reset, after which the sender's kernel
 * sends no more of what it has.
 * With `frames` no message is one that the receiver reads (over ofi those of 64 KiB and more): such a one
 * completes when that has been done, and has arrived by then.
 */
#include "fab.h"

enum how { CLOSES, EXITS, RETURNS, HOWS };
static const char *const hows[] = {"fi_close", "exit(3)", "end of main"};
static const size_t all_lens[][4] = {{1 << 10, 100 << 10, 200 << 10, 1 << 20}, {64, 1 << 10, 8 << 10, 16 << 10}};
enum { LENS = sizeof all_lens[0] / sizeof *all_lens[0], MOST = 400, LONGEST = 1 << 20, WINDOW = 64 };

/* The receiver is busy for so long before it looks, and then sends so often. */
static const uint64_t busy_ns = 10000000, pause_ns = 2000000;

static struct shared {
	struct name a, b;
	volatile int a_ready, b_ready, met, completed, over;
} *sh;

static int late;
static unsigned char *buffers[WINDOW];
static struct op ops[WINDOW];

static void until_set(volatile int *flag)
{
	uint64_t start = now_ns();

	while (!*flag) {
		sched_yield();
		CHECK(now_ns() - start < 20000000000u, "nothing for 20 s");
	}
}

static void room(void)
{
	for (int i = 0; i < WINDOW; i++) {
		buffers[i] = malloc(LONGEST);
		CHECK(buffers[i], "malloc");
	}
}

/* Sends for 60 ms or until all have gone, and counts those that completed. */
static void sender(struct fab *me, size_t len, enum fi_threading threading)
{
	uint64_t start;
	fi_addr_t b;
	int sent = 0, most = (int)((64u << 20) / len);
	struct op op;

	/* Late: until there is no room. */
	if (!late && most > MOST)
		most = MOST;
	fab_role = "sender";
	fab_open(me, (struct fab_options){.progress = FI_PROGRESS_MANUAL, .threading = threading});
	sh->a = me->name;
	sh->a_ready = 1;
	until_set(&sh->b_ready);
	b = fab_insert(me, &sh->b);
	POST(me, &op, fi_tsend(me->ep, buffers[0], 1, NULL, b, 1, &op));
	await(me, &op, "the first word");
	until_set(&sh->met);
	for (start = now_ns(); now_ns() - start < 60000000u && sent < most;) {
		struct op *at = &ops[sent % WINDOW];

		if (at->state == PENDING) {
			fab_poll(me);
			continue;
		}
		CHECK(at->state != FAILED, "a send: %s", fi_strerror(at->err));
		if (at->state == DONE)
			sh->completed++;
		fill(buffers[sent % WINDOW], len, (unsigned)sent);
		begin(at);
		long ret = fi_tsend(me->ep, buffers[sent % WINDOW], len, NULL, b, 7, at);
		if (ret == -FI_EAGAIN) {
			at->state = FREE;
			fab_poll(me);
			continue;
		}
		OK(ret);
		sent++;
	}
	/* Those that do not complete in time may be lost: order has them behind all that did. One has to, however long a loaded machine takes. */
	for (start = now_ns(); now_ns() - start < (late || sh->completed ? 100000000u : 20000000000u);) {
		int pending = 0;

		fab_poll(me);
		for (int i = 0; i < WINDOW; i++) {
			pending += ops[i].state == PENDING;
			if (ops[i].state == DONE) {
				ops[i].state = FREE;
				sh->completed++;
			}
		}
		if (!pending)
			break;
	}
}

/* Returns how many came. */
static int receiver(size_t len)
{
	struct fab me;
	fi_addr_t a;
	int came = 0;
	static struct op back[512];
	unsigned said = 0;
	uint64_t last, idle, start;
	struct op in;

	fab_role = "receiver";
	fab_open(&me, (struct fab_options){.progress = FI_PROGRESS_MANUAL});
	sh->b = me.name;
	until_set(&sh->a_ready);
	a = fab_insert(&me, &sh->a);
	sh->b_ready = 1;
	POST(&me, &in, fi_trecv(me.ep, buffers[1], 1, NULL, FI_ADDR_UNSPEC, 1, 0, &in));
	await(&me, &in, "the first word");
	sh->met = 1;
	POST(&me, &in, fi_trecv(me.ep, buffers[0], len, NULL, FI_ADDR_UNSPEC, 7, 0, &in));
	for (start = last = now_ns(); !sh->over && (late || now_ns() - start < 200000000u);) {
		if (late) {
			CHECK(now_ns() - start < 20000000000u, "the sender has not ended within 20 s");
			sched_yield();
			continue;
		}
		/* A long message takes both. */
		if (len < LONGEST && now_ns() - last < busy_ns)
			continue;
		fab_poll(&me);
		last = now_ns();
	}
	for (idle = now_ns(); now_ns() - idle < 3000000000u;) {
		if (now_ns() - last >= pause_ns && back[said % 512].state != PENDING) {
			struct op *at = &back[said++ % 512];

			begin(at);
			long ret = fi_tsend(me.ep, buffers[1], 1000, NULL, a, 9, at);
			if (ret)
				at->state = FREE;
			last = now_ns();
		}
		fab_poll(&me);
		if (in.state == PENDING) {
			/* All have come, and for a while no more. */
			if (sh->over && came >= sh->completed && now_ns() - idle > 400000000u)
				break;
			continue;
		}
		if (in.state == FAILED)
			break;
		size_t wrong = differs(buffers[0], len, (unsigned)came);
		CHECK(wrong == len && in.len == len, "message %d has wrong contents at %zu of %zu", came, wrong, len);
		came++;
		idle = now_ns();
		/* One receive at a time: the rest waits with the kernels. */
		POST(&me, &in, fi_trecv(me.ep, buffers[0], len, NULL, FI_ADDR_UNSPEC, 7, 0, &in));
	}
	return came;
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 1, bad = 0;
	const size_t *lens = all_lens[argc > 2 && !strcmp(argv[2], "frames")];

	late = argc > 2 && !strcmp(argv[2], "late");
	setvbuf(stdout, NULL, _IOLBF, 0);
	sh = shared_memory(sizeof *sh);
	room();
	for (int round = 0; round < rounds * HOWS * LENS; round++) {
		enum how how = round % HOWS;
		size_t len = lens[round / HOWS % LENS];
		uint64_t before, took;
		int status, came;
		pid_t child, other;

		memset(sh, 0, sizeof *sh);
		child = fork();
		CHECK(child >= 0, "fork");
		if (!child) {
			struct fab me;

			prctl(PR_SET_PDEATHSIG, SIGKILL);
			/* Both of a thread of its own and of any. */
			sender(&me, len, how == RETURNS ? FI_THREAD_DOMAIN : FI_THREAD_SAFE);
			if (how == CLOSES)
				fab_close(&me);
			if (how == EXITS)
				exit(0);
			return 0;
		}
		other = fork();
		CHECK(other >= 0, "fork");
		if (!other) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			came = receiver(len);
			if (came < sh->completed)
				fprintf(stderr, "%s, %zu bytes: %d of %d messages lost\n", hows[how], len,
					sh->completed - came, sh->completed);
			_exit(came < sh->completed);
		}
		before = now_ns();
		CHECK(waitpid(child, &status, 0) == child && status == 0, "the sender: %d", status);
		took = now_ns() - before;
		sh->over = 1;
		CHECK(waitpid(other, &status, 0) == other, "waitpid");
		/* What has no completion shows nothing. A rendezvous has none while the receiver reads nothing. */
		bad += status != 0 || (!sh->completed && !(late && len >= 100 << 10));
		printf("%s, %zu bytes: %d completed, %s; the sender took %lu ms\n", hows[how], len, sh->completed,
		       status ? "not all came" : "all came", (unsigned long)(took / 1000000));
	}
	printf("%s\n", bad ? "FAILED" : "ok");
	return bad != 0;
}
