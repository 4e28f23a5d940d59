/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * A receiver closes its endpoint and opens another one under the same name; the sender, which has not polled since,
 * sends to that name.  No message that completes without error may be lost, and one that is posted when the sender has
 * polled has to arrive.
 *
 *   reopen [rounds]
 *
 * Each round is of one of the cases below, and of one of the lengths.  The sender reads in shared memory when the other
 * one has closed, and when it has opened again.
 */
#include "fab.h"

enum state { ABSENT, READY, MET, CLOSED, OPEN_AGAIN, ENOUGH };
/* What the receiver has done with the channel before it closes. */
enum how { POLLED, SLEPT, UNMET, BACK_AND_FORTH, HOWS };
static const char *const hows[] = {"polled", "slept", "not met", "both ways"};
/* By an injected message, a plain one, one of two lines, one that is longer than the ring. */
static const size_t lens[] = {8, 8, 100, 4000};
enum { LENS = sizeof lens / sizeof *lens };

static struct shared {
	struct name b, a;
	volatile int a_ready;
	volatile enum state state;
	volatile int got, last;
} *sh;

static unsigned char buffer[4096];

static void until(enum state state)
{
	uint64_t start = now_ns();

	while (sh->state != state) {
		sched_yield();
		CHECK(now_ns() - start < 20000000000u, "%d, not %d, for 20 s", sh->state, state);
	}
}

/* Another endpoint under the same name. */
static void reopen(struct fab *me)
{
	struct fi_info *info = fi_dupinfo(me->info);

	OK(fi_close(&me->ep->fid));
	sh->state = CLOSED;
	until(READY);
	free(info->src_addr);
	info->src_addr = malloc(me->name.len);
	memcpy(info->src_addr, me->name.bytes, info->src_addrlen = me->name.len);
	OK(fi_endpoint(me->domain, info, &me->ep, NULL));
	OK(fi_ep_bind(me->ep, &me->av->fid, 0));
	OK(fi_ep_bind(me->ep, &me->cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_enable(me->ep));
	fi_freeinfo(info);
}

/* Takes messages with this tag until the last one has come. */
static void take(struct fab *me, uint64_t tag)
{
	struct op in;

	while (sh->state != ENOUGH || sh->got < sh->last) {
		POST(me, &in, fi_trecv(me->ep, buffer, sizeof buffer, NULL, FI_ADDR_UNSPEC, tag, 0, &in));
		for (uint64_t start = now_ns(); in.state == PENDING;) {
			fab_poll(me);
			if (sh->state == ENOUGH && now_ns() - start > 10000000000u) {
				/* The sender counts. */
				OK(fi_cancel(&me->ep->fid, &in));
				while (in.state == PENDING)
					fab_poll(me);
				return;
			}
		}
		CHECK(in.state == DONE, "a receive: %s", fi_strerror(in.err));
		sh->got++;
	}
}

static void receiver(enum how how)
{
	struct fab me;
	struct op op;
	fi_addr_t a;

	fab_role = "receiver";
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	fab_open(&me, (struct fab_options){.sleeps = how == SLEPT, .threading = FI_THREAD_DOMAIN});
	a = fab_insert(&me, &sh->a);
	sh->b = me.name;
	sh->state = READY;
	until(MET);
	if (how != UNMET) {
		POST(&me, &op, fi_trecv(me.ep, buffer, 8, NULL, FI_ADDR_UNSPEC, 1, 0, &op));
		await(&me, &op, "the first word");
	}
	if (how == BACK_AND_FORTH) {
		POST(&me, &op, fi_tsend(me.ep, buffer, 8, NULL, a, 2, &op));
		await(&me, &op, "an answer");
	}
	if (how == SLEPT)
		for (int i = 0; i < 3; i++)
			fab_poll(&me);
	reopen(&me);
	sh->state = OPEN_AGAIN;
	take(&me, 3);
	fab_close(&me);
	_exit(0);
}

/* How many of the messages behind the end completed as sent, and how many were refused. */
static void round_of(enum how how, size_t len, int inject, int counts[2])
{
	struct op op, in;
	struct fab me;
	fi_addr_t b;
	pid_t child;
	int status;

	fab_open(&me, (struct fab_options){.threading = FI_THREAD_DOMAIN});
	memset(sh, 0, sizeof *sh);
	sh->a = me.name;
	child = fork();
	if (!child)
		receiver(how);
	until(READY);
	b = fab_insert(&me, &sh->b);
	POST(&me, &op, fi_tsend(me.ep, buffer, 8, NULL, b, 1, &op));
	await(&me, &op, "the first word");
	if (how == BACK_AND_FORTH) {
		POST(&me, &in, fi_trecv(me.ep, buffer, 8, NULL, b, 2, 0, &in));
		sh->state = MET;
		await(&me, &in, "an answer");
	} else {
		sh->state = MET;
	}
	until(CLOSED);
	sh->state = READY;
	until(OPEN_AGAIN);
	int sent = 0;
	for (int i = 0; i < 3; i++) {
		long ret = inject ? fi_tinject(me.ep, buffer, len, b, 3)
				  : fi_tsend(me.ep, buffer, len, NULL, b, 3, begin(&op));

		if (!ret && !inject) {
			/* No poll, if it is there already. */
			for (uint64_t start = now_ns(); op.state == PENDING; sched_yield()) {
				fab_poll(&me);
				CHECK(now_ns() - start < 20000000000u, "a send neither ends nor fails");
			}
			ret = op.state == DONE ? 0 : -op.err;
		}
		CHECK(!ret || ret == -FI_ECONNRESET || ret == -FI_EAGAIN, "a send: %s", fi_strerror((int)-ret));
		counts[!!ret]++;
		sent += !ret;
	}
	/* Another has to arrive when polls have found the end, which they look for now and then. */
	uint64_t start = now_ns();
	do {
		for (int polls = 0; polls < 20; polls++)
			fab_poll(&me);
		POST(&me, &op, fi_tsend(me.ep, buffer, len, NULL, b, 3, &op));
		while (op.state == PENDING)
			fab_poll(&me);
		CHECK(op.state == DONE || op.err == FI_ECONNRESET, "a send after polls: %s", fi_strerror(op.err));
		CHECK(now_ns() - start < 10000000000u, "a send after polls is refused for 10 s");
	} while (op.state != DONE);
	sh->last = sent + 1;
	sh->state = ENOUGH;
	/* It may call, and has to be answered. */
	while (waitpid(child, &status, WNOHANG) == 0)
		fab_poll(&me);
	CHECK(WIFEXITED(status) && !WEXITSTATUS(status), "the receiver: %x", status);
	CHECK(sh->got == sent + 1, "%s, %zu bytes: %d sent to the name behind the end of its endpoint, %d received",
	      hows[how], len, sent + 1, sh->got);
	fab_close(&me);
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 2, counts[2] = {0};

	sh = shared_memory(sizeof *sh);
	for (int round = 0; round < rounds; round++)
		for (int how = 0; how < HOWS; how++)
			for (int len = 0; len < LENS; len++)
				round_of((enum how)how, lens[len], len == 0, counts);
	printf("reopen ok: of the messages behind an end %d arrived and %d were refused\n", counts[0], counts[1]);
	return 0;
}
