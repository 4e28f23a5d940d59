/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * A program that sends one message at a time and reads its queue until that one has completed: each read finds an entry, and none
 * says -FI_EAGAIN. Messages that others send it have to arrive all the same, the end of its peer has to be reported, and a peer
 * that comes again under the same name has to be reached.
 *
 *   busy
 */
#include "fab.h"

/* Messages to the busy one; sends within which each thing has to be seen; between two sends. */
enum { MESSAGES = 20, SENDS = 2000, PAUSE_US = 1000 };

static struct shared {
	struct name a, b;
	volatile int a_ready, b_ready, sent, got;
} *sh;

static void until_set(volatile int *word)
{
	uint64_t start = now_ns();

	while (!*word) {
		sched_yield();
		CHECK(now_ns() - start < 20000000000u, "the other one is not there after 20 s");
	}
}

/* Another endpoint, under this name. */
static void reopen_as(struct fab *me, struct name *name)
{
	struct fi_info *info = fi_dupinfo(me->info);

	OK(fi_close(&me->ep->fid));
	free(info->src_addr);
	info->src_addr = malloc(name->len);
	memcpy(info->src_addr, name->bytes, info->src_addrlen = name->len);
	OK(fi_endpoint(me->domain, info, &me->ep, NULL));
	OK(fi_ep_bind(me->ep, &me->av->fid, 0));
	OK(fi_ep_bind(me->ep, &me->cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_enable(me->ep));
	fi_freeinfo(info);
}

/* Receives, and sends as many as are asked for once the first message has come. Never returns. */
static void peer(int messages, struct name *under)
{
	static struct op in, out[MESSAGES];
	static unsigned char bytes[64];
	struct fab me;
	fi_addr_t a;

	fab_role = "peer";
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	fab_open(&me, (struct fab_options){.progress = FI_PROGRESS_MANUAL});
	if (under)
		reopen_as(&me, under);
	else
		sh->b = me.name;
	sh->b_ready = 1;
	until_set(&sh->a_ready);
	a = fab_insert(&me, &sh->a);
	for (;;) {
		POST(&me, &in, fi_trecv(me.ep, bytes, sizeof bytes, NULL, FI_ADDR_UNSPEC, 1, 0, &in));
		while (in.state == PENDING)
			fab_poll(&me);
		sh->got++;
		for (; sh->sent < messages; sh->sent++)
			POST(&me, &out[sh->sent], fi_tsend(me.ep, bytes, 8, NULL, a, 2, &out[sh->sent]));
	}
}

static pid_t start(int messages, struct name *under)
{
	pid_t pid;

	sh->b_ready = sh->got = 0;
	pid = fork();
	CHECK(pid >= 0, "fork");
	if (!pid)
		peer(messages, under);
	until_set(&sh->b_ready);
	return pid;
}

static void end(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

/* One message, and the read of its completion. 0 or its error. */
static int send_one(struct fab *me, fi_addr_t to)
{
	static struct op out;
	static unsigned char bytes[64];

	POST(me, &out, fi_tsend(me->ep, bytes, 8, NULL, to, 1, &out));
	while (out.state == PENDING)
		fab_poll(me);
	usleep(PAUSE_US);
	return out.err;
}

int main(void)
{
	static struct op in[MESSAGES];
	static unsigned char bytes[MESSAGES][64];
	struct fab me;
	fi_addr_t b;
	pid_t pid;
	int came = 0, n;

	sh = shared_memory(sizeof *sh);
	pid = start(MESSAGES, NULL);
	fab_open(&me, (struct fab_options){.progress = FI_PROGRESS_MANUAL});
	sh->a = me.name;
	sh->a_ready = 1;
	b = fab_insert(&me, &sh->b);
	for (int i = 0; i < MESSAGES; i++)
		POST(&me, &in[i], fi_trecv(me.ep, bytes[i], sizeof bytes[i], NULL, b, 2, 0, &in[i]));
	for (n = 0; came < MESSAGES; n++) {
		CHECK(n < SENDS, "%d of %d messages have come after %d sends", came, MESSAGES, n);
		CHECK(!send_one(&me, b), "a send to a peer that lives");
		came = 0;
		for (int i = 0; i < MESSAGES; i++)
			came += in[i].state == DONE;
	}
	printf("%d messages came within %d sends\n", MESSAGES, n);
	end(pid);
	for (n = 0; !send_one(&me, b); n++)
		CHECK(n < SENDS, "%d sends have completed to a peer that ended", n);
	printf("the end was reported within %d sends\n", n + 1);
	pid = start(0, &sh->b);
	for (n = 0; sh->got == 0; n++) {
		CHECK(n < SENDS, "%d sends have not reached the peer that came again", n);
		send_one(&me, b);
	}
	printf("the peer that came again was reached within %d sends\n", n);
	end(pid);
	return 0;
}
