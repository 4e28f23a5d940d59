/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * A peer killed at every step.  Three processes: a survivor and a bystander that live for the whole
 * run, and a victim for each case, which does its part of one operation with the survivor and is
 * killed, by itself after so many calls of fi_cq_read, or by the driver after a random time.
 *
 *   kill [poll|sread|auto] [rounds] [seed]
 *
 * Checked for each case: the survivor's operation ends; what ended well has the right bytes; other
 * receives stay posted and get what the bystander sends; the bystander's ping-pong with the survivor
 * goes on; a later send to the victim fails; no descriptor is left.  Times are printed, and fail the
 * test at WATCHDOG only.
 */
#include "fab.h"

#define WATCHDOG 8000000000u
#define LARGE (24u << 20)

enum deed { SEND, TSEND, RNDV_SEND, RNDV_RECV, RECV_ANY, RECV_IDLE, WRITE, READ, ATOMIC, FETCH, SERVE_READ, SERVE_WRITE, DEEDS };
static const char *const deed_names[DEEDS] = {
	"send", "tagged send", "rendezvous, sending", "rendezvous, receiving", "receive from any, matched",
	"receive, directed", "RMA write", "RMA read", "atomic", "fetching atomic", "serving a read", "serving a write"};

enum { TAG_WARM = 1, TAG_DEED = 5, TAG_OTHER = 77, TAG_DIRECTED = 78, TAG_PING = 100, TAG_PONG = 101, TAG_LATE = 102 };
#define KEY 9

struct stat {
	unsigned good, failed, late;
	uint64_t sum, worst, worst_late;
};

static struct shared {
	struct name survivor, bystander, victim;
	uint64_t survivor_key, survivor_at, victim_key, victim_at;
	volatile int number; /* the case; -1 ends the run */
	volatile int ready, victim_ready, warm, survivor_done, bystander_ready;
	volatile uint64_t asked, answered; /* tags wanted of the bystander: how many asked, answered */
	volatile uint64_t ask_tag;
	volatile uint64_t pings;
	volatile uint64_t death;
	volatile pid_t child;
	/* The case. */
	enum deed deed;
	size_t len;
	int steps, posted, forks;
	struct stat stats[DEEDS];
} *sh;

static void wait_for(volatile int *flag, int value, const char *what)
{
	uint64_t start = now_ns();

	while (*flag != value) {
		if (sh->number < 0)
			exit(0);
		usleep(50);
		CHECK(now_ns() - start < 60000000000u, "waited for %s", what);
	}
}

static struct fid_mr *share(struct fab *f, void *at, size_t len, uint64_t *key, uint64_t *base)
{
	struct fid_mr *mr;

	OK(fi_mr_reg(f->domain, at, len, FI_REMOTE_READ | FI_REMOTE_WRITE | FI_READ | FI_WRITE, 0, KEY, 0, &mr, NULL));
	*key = fi_mr_key(mr);
	*base = f->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)at : 0;
	return mr;
}

/* A send or receive that completes when the other side has it. */
static ssize_t delivered(struct fab *f, fi_addr_t to, void *buf, size_t len, uint64_t tag, int tagged, struct op *op)
{
	struct iovec iov = {buf, len};
	struct fi_msg_tagged t = {.msg_iov = &iov, .iov_count = 1, .addr = to, .tag = tag, .context = op};
	struct fi_msg m = {.msg_iov = &iov, .iov_count = 1, .addr = to, .context = op};
	uint64_t flags = FI_DELIVERY_COMPLETE | FI_COMPLETION;

	return tagged ? fi_tsendmsg(f->ep, &t, flags) : fi_sendmsg(f->ep, &m, flags);
}

static ssize_t rma(struct fab *f, fi_addr_t to, int write, void *buf, size_t len, uint64_t at, uint64_t key, struct op *op)
{
	struct iovec iov = {buf, len};
	struct fi_rma_iov there = {at, len, key};
	struct fi_msg_rma m = {.msg_iov = &iov, .iov_count = 1, .addr = to, .rma_iov = &there, .rma_iov_count = 1, .context = op};

	return write ? fi_writemsg(f->ep, &m, FI_DELIVERY_COMPLETE | FI_COMPLETION)
		     : fi_readmsg(f->ep, &m, FI_COMPLETION);
}

static ssize_t atomic(struct fab *f, fi_addr_t to, int fetch, void *buf, uint64_t *old, uint64_t at, uint64_t key, struct op *op)
{
	struct fi_ioc ioc = {buf, 1}, result = {old, 1};
	struct fi_rma_ioc there = {at, 1, key};
	struct fi_msg_atomic m = {.msg_iov = &ioc, .iov_count = 1, .addr = to, .rma_iov = &there, .rma_iov_count = 1,
				  .datatype = FI_UINT64, .op = FI_SUM, .context = op};

	return fetch ? fi_fetch_atomicmsg(f->ep, &m, &result, NULL, 1, FI_COMPLETION)
		     : fi_atomicmsg(f->ep, &m, FI_DELIVERY_COMPLETE | FI_COMPLETION);
}

/* The victim's part, until its death. */
static void victim(void)
{
	static unsigned char *buf;
	struct fab f;
	struct op warm[2] = {0}, deed = {0};
	fi_addr_t s;
	uint64_t word = 0;

	fab_role = "victim";
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	fab_open(&f, (struct fab_options){.threading = FI_THREAD_DOMAIN});
	s = fab_insert(&f, &sh->survivor);
	buf = malloc(LARGE);
	CHECK(buf, "memory");
	fill(buf, LARGE, 3);
	share(&f, buf, LARGE, &sh->victim_key, &sh->victim_at);
	sh->victim = f.name;
	POST(&f, &warm[0], fi_trecv(f.ep, &word, 8, NULL, FI_ADDR_UNSPEC, TAG_WARM, 0, &warm[0]));
	sh->victim_ready = sh->number;
	await(&f, &warm[0], "the survivor's first word");
	POST(&f, &warm[1], fi_tsend(f.ep, &word, 8, NULL, s, TAG_WARM, &warm[1]));
	await(&f, &warm[1], "our first word");
	if (sh->forks) {
		pid_t child = fork();

		if (!child) { /* holds copies of all our descriptors */
			prctl(PR_SET_PDEATHSIG, 0);
			alarm(120);
			pause();
			_exit(0);
		}
		sh->child = child;
	}
	wait_for(&sh->warm, sh->number, "the survivor");
	switch (sh->deed) {
	case SEND:
		if (sh->posted)
			POST(&f, &deed, fi_recv(f.ep, buf, sh->len, NULL, FI_ADDR_UNSPEC, &deed));
		break;
	case TSEND:
	case RNDV_SEND:
		if (sh->posted)
			POST(&f, &deed, fi_trecv(f.ep, buf, sh->len, NULL, s, TAG_DEED, 0, &deed));
		break;
	case RNDV_RECV:
	case RECV_ANY:
		POST(&f, &deed, delivered(&f, s, buf, sh->len, TAG_DEED, 1, &deed));
		break;
	case SERVE_READ:
		POST(&f, &deed, rma(&f, s, 0, buf, sh->len, sh->survivor_at, sh->survivor_key, &deed));
		break;
	case SERVE_WRITE:
		POST(&f, &deed, rma(&f, s, 1, buf, sh->len, sh->survivor_at, sh->survivor_key, &deed));
		break;
	default:
		break;
	}
	for (int step = 0; sh->steps < 0 || step < sh->steps; step++)
		fab_poll(&f);
	sh->death = now_ns();
	raise(SIGKILL);
}

static void bystander(void)
{
	struct fab f;
	struct op ping = {0}, pong = {0}, extra = {0};
	uint64_t out = 0, in = 0, word;
	fi_addr_t s;

	fab_role = "bystander";
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	fab_open(&f, (struct fab_options){.threading = FI_THREAD_DOMAIN});
	sh->bystander = f.name;
	sh->bystander_ready = 1;
	while (!sh->ready)
		usleep(100);
	s = fab_insert(&f, &sh->survivor);
	while (sh->number >= 0) {
		out++;
		POST(&f, &pong, fi_trecv(f.ep, &in, 8, NULL, s, TAG_PONG, 0, &pong));
		POST(&f, &ping, fi_tsend(f.ep, &out, 8, NULL, s, TAG_PING, &ping));
		while (pong.state == PENDING || ping.state == PENDING) {
			if (sh->number < 0)
				goto out;
			if (!fab_poll(&f))
				sched_yield();
		}
		CHECK(ping.state == DONE && pong.state == DONE && in == out, "ping %lu, pong %lu, %s, %s", out, in,
		      fi_strerror(ping.err), fi_strerror(pong.err));
		sh->pings++;
		if (sh->answered != sh->asked) {
			word = sh->ask_tag;
			POST(&f, &extra, fi_tsend(f.ep, &word, 8, NULL, s, sh->ask_tag, &extra));
			await(&f, &extra, "an extra message");
			sh->answered = sh->asked;
		}
	}
out:
	fab_close(&f);
	exit(0);
}

/* The survivor. */
static struct fab me;
static fi_addr_t by, dead;
static struct op ping_in, ping_out;
static uint64_t ping_word, pong_word;

static void turn(void)
{
	if (ping_in.state == DONE && ping_out.state != PENDING) {
		pong_word = ping_word;
		POST(&me, &ping_out, fi_tsend(me.ep, &pong_word, 8, NULL, by, TAG_PONG, &ping_out));
		POST(&me, &ping_in, fi_trecv(me.ep, &ping_word, 8, NULL, by, TAG_PING, 0, &ping_in));
	}
	CHECK(ping_in.state != FAILED && ping_out.state != FAILED, "talking to the bystander: %s, %s",
	      fi_strerror(ping_in.err), fi_strerror(ping_out.err));
	if (!fab_poll(&me))
		sched_yield();
}

static void ask(uint64_t tag)
{
	sh->ask_tag = tag;
	sh->asked++;
}

static void describe(const char *what)
{
	fprintf(stderr, "case %d: %s, %zu bytes, %d steps%s%s: %s\n", sh->number, deed_names[sh->deed], sh->len, sh->steps,
		sh->posted ? ", posted" : "", sh->forks ? ", with a forked child" : "", what);
}

#define EXPECT(cond, ...)                          \
	do {                                       \
		if (!(cond)) {                     \
			describe("failed");        \
			fab_die(__LINE__, __VA_ARGS__); \
		}                                  \
	} while (0)

/* Runs until the operation has ended; returns whether it has within `ns` after the death. */
static int ends(struct op *op, uint64_t ns)
{
	while (op->state == PENDING) {
		turn();
		if (sh->death && now_ns() - sh->death > ns)
			return 0;
	}
	return 1;
}

static void one_case(unsigned char *buf)
{
	static struct op deed, other, directed, warm[2], late;
	static uint64_t other_word, directed_word, word, old;
	struct stat *st = &sh->stats[sh->deed];
	size_t len = sh->len;
	uint64_t pings, start;

	dead = fab_insert(&me, &sh->victim);
	POST(&me, &warm[0], fi_trecv(me.ep, &word, 8, NULL, dead, TAG_WARM, 0, &warm[0]));
	POST(&me, &warm[1], fi_tsend(me.ep, &word, 8, NULL, dead, TAG_WARM, &warm[1]));
	while (warm[0].state == PENDING || warm[1].state == PENDING)
		turn();
	EXPECT(warm[0].state == DONE && warm[1].state == DONE, "warming up: %s, %s", fi_strerror(warm[0].err),
	       fi_strerror(warm[1].err));
	POST(&me, &other, fi_trecv(me.ep, &other_word, 8, NULL, FI_ADDR_UNSPEC, TAG_OTHER, 0, &other));
	POST(&me, &directed, fi_trecv(me.ep, &directed_word, 8, NULL, by, TAG_DIRECTED, 0, &directed));
	sh->warm = sh->number;
	deed.state = FREE;
	switch (sh->deed) {
	case SEND:
	case TSEND:
	case RNDV_SEND:
		fill(buf, len, 4);
		POST(&me, &deed, delivered(&me, dead, buf, len, TAG_DEED, sh->deed != SEND, &deed));
		break;
	case RNDV_RECV:
	case RECV_IDLE:
		POST(&me, &deed, fi_trecv(me.ep, buf, len, NULL, dead, TAG_DEED, 0, &deed));
		break;
	case RECV_ANY:
		POST(&me, &deed, fi_trecv(me.ep, buf, len, NULL, FI_ADDR_UNSPEC, TAG_DEED, 0, &deed));
		break;
	case WRITE:
	case READ:
		POST(&me, &deed, rma(&me, dead, sh->deed == WRITE, buf, len, sh->victim_at, sh->victim_key, &deed));
		break;
	case ATOMIC:
	case FETCH:
		POST(&me, &deed, atomic(&me, dead, sh->deed == FETCH, &word, &old, sh->victim_at, sh->victim_key, &deed));
		break;
	default:
		break;
	}
	if (sh->deed == RECV_ANY && !ends(&deed, 300000000)) {
		/* Nothing had matched it: so it has to be there for the bystander's.  The victim's may
		   still come first; then the bystander's waits for another receive. */
		ask(TAG_DEED);
		EXPECT(ends(&deed, WATCHDOG) && (deed.state == DONE || deed.err == FI_ECONNRESET),
		       "a receive from anybody got lost: state %d, %s", deed.state, fi_strerror(deed.err));
		if (deed.state == FAILED || deed.src != by) {
			EXPECT(deed.state == FAILED || differs(buf, len, 3) == len, "wrong bytes");
			POST(&me, &deed, fi_trecv(me.ep, buf, len, NULL, FI_ADDR_UNSPEC, TAG_DEED, 0, &deed));
			EXPECT(ends(&deed, WATCHDOG), "the bystander's message got lost");
		}
		EXPECT(deed.state == DONE && deed.src == by && deed.len == 8, "not the bystander's: %s",
		       fi_strerror(deed.err));
		while (sh->asked != sh->answered)
			turn();
	} else if (deed.state != FREE) {
		EXPECT(ends(&deed, WATCHDOG), "it never ended");
		if (deed.state == FAILED) {
			uint64_t took = deed.when > sh->death ? deed.when - sh->death : 0;

			EXPECT(deed.err == FI_ECONNRESET || deed.err == FI_ECONNREFUSED, "%s", fi_strerror(deed.err));
			st->failed++;
			st->sum += took;
			st->worst = took > st->worst ? took : st->worst;
		} else {
			st->good++;
			if (sh->deed == RNDV_RECV || sh->deed == RECV_ANY || sh->deed == READ)
				EXPECT(differs(buf, len, 3) == len, "wrong at %zu", differs(buf, len, 3));
		}
	}
	while (!sh->death)
		turn();
	/* Whatever is said to it from now on fails. */
	do {
		POST(&me, &late, delivered(&me, dead, &word, 8, TAG_LATE, 1, &late));
		EXPECT(ends(&late, WATCHDOG), "a later send never ended");
	} while (late.state == DONE);
	EXPECT(late.err == FI_ECONNRESET || late.err == FI_ECONNREFUSED, "a later send: %s", fi_strerror(late.err));
	start = late.when > sh->death ? late.when - sh->death : 0;
	st->worst_late = start > st->worst_late ? start : st->worst_late;
	/* The others are not bothered. */
	EXPECT(other.state == PENDING && directed.state == PENDING, "other receives did not stay posted: %s, %s",
	       fi_strerror(other.err), fi_strerror(directed.err));
	ask(TAG_OTHER);
	EXPECT(ends(&other, WATCHDOG) && other.state == DONE && other_word == TAG_OTHER && other.src == by, "the other receive");
	while (sh->asked != sh->answered)
		turn();
	ask(TAG_DIRECTED);
	EXPECT(ends(&directed, WATCHDOG) && directed.state == DONE && directed_word == TAG_DIRECTED, "the directed receive");
	while (sh->asked != sh->answered)
		turn();
	pings = sh->pings;
	for (start = now_ns(); sh->pings < pings + 5; turn())
		EXPECT(now_ns() - start < WATCHDOG, "the bystander is not answered");
	OK(fi_av_remove(me.av, &dead, 1, 0));
}

static void survivor(const char *mode)
{
	unsigned char *buf = malloc(LARGE);
	struct fid_mr *mr;
	int before, base = 0, last = 0;
	struct fab_options o = {.threading = FI_THREAD_DOMAIN};

	fab_role = "survivor";
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	CHECK(buf, "memory");
	if (!strcmp(mode, "auto"))
		o.progress = FI_PROGRESS_AUTO, o.threading = FI_THREAD_SAFE;
	o.sleeps = !strcmp(mode, "sread");
	before = descriptors();
	fab_open(&me, o);
	mr = share(&me, buf, LARGE, &sh->survivor_key, &sh->survivor_at);
	while (!sh->bystander_ready)
		usleep(100);
	by = fab_insert(&me, &sh->bystander);
	POST(&me, &ping_in, fi_trecv(me.ep, &ping_word, 8, NULL, by, TAG_PING, 0, &ping_in));
	sh->survivor = me.name;
	sh->ready = 1;
	for (;;) {
		while (sh->number == last || (sh->number > 0 && sh->victim_ready != sh->number))
			turn();
		if (sh->number < 0)
			break;
		if (!base)
			base = descriptors();
		one_case(buf);
		/* One may come and go: the timer that is there while a receive waits for a peer. What is left by each
		 * death would show at the second. */
		EXPECT(descriptors() <= base + 1, "%d descriptors, %d before", descriptors(), base);
		last = sh->number;
		sh->survivor_done = last;
	}
	OK(fi_close(&mr->fid));
	fab_close(&me);
	/* What the library itself keeps is there from the first fi_getinfo on. */
	before = descriptors() - before;
	CHECK(before <= 1, "%d descriptors left after everything was closed", before);
	exit(0);
}

static pid_t start(void (*run)(const char *), const char *mode)
{
	pid_t pid = fork();

	CHECK(pid >= 0, "fork: %s", strerror(errno));
	if (!pid) {
		run(mode);
		_exit(0);
	}
	return pid;
}
static void run_victim(const char *mode) { (void)mode; victim(); }
static void run_bystander(const char *mode) { (void)mode; bystander(); }

/* Waits for a process, which has to end as expected. */
static void reap(pid_t pid, int by_kill, const char *what)
{
	int status;

	CHECK(waitpid(pid, &status, 0) == pid, "waitpid: %s", strerror(errno));
	if (by_kill)
		CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "%s: status %x", what, status);
	else
		CHECK(WIFEXITED(status) && !WEXITSTATUS(status), "%s: status %x", what, status);
}

static void run_case(enum deed deed, size_t len, int steps, int posted, pid_t survivor, uint64_t *random)
{
	pid_t v;
	int status;

	sh->deed = deed, sh->len = len, sh->steps = steps, sh->posted = posted;
	sh->death = 0, sh->child = 0;
	sh->forks = next_random(random) % 5 == 0;
	sh->number++;
	v = start(run_victim, NULL);
	if (steps < 0) {
		while (sh->warm != sh->number && !waitpid(survivor, &status, WNOHANG))
			usleep(20);
		usleep((useconds_t)(next_random(random) % 3000));
		sh->death = now_ns();
		kill(v, SIGKILL);
	}
	reap(v, 1, "the victim");
	while (sh->survivor_done != sh->number) {
		if (waitpid(survivor, &status, WNOHANG)) {
			if (sh->child)
				kill(sh->child, SIGKILL);
			CHECK(0, "the survivor did not survive: status %x", status);
		}
		usleep(100);
	}
	if (sh->child) {
		kill(sh->child, SIGKILL);
		reap(sh->child, 1, "the victim's child");
	}
}

int main(int argc, char **argv)
{
	static const int steps[] = {0, 1, 2, 3, 5, 9, 30, 300, -1, -1, -1, -1};
	const char *mode = argc > 1 ? argv[1] : "poll";
	int rounds = argc > 2 ? atoi(argv[2]) : 1;
	uint64_t random = argc > 3 ? strtoull(argv[3], NULL, 0) : 1;
	pid_t s, b;

	fab_role = "driver";
	sh = shared_memory(sizeof *sh);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	s = start(survivor, mode);
	b = start(run_bystander, mode);
	while (!sh->ready)
		usleep(100);
	for (int round = 0; round < rounds; round++)
		for (int deed = 0; deed < DEEDS; deed++)
			for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
				int large = deed == RNDV_SEND || deed == RNDV_RECV || (deed != SEND && deed != TSEND && i % 2);
				size_t len = large ? (size_t)20000 << next_random(&random) % 11 : 100;

				if (deed == ATOMIC || deed == FETCH)
					len = 8;
				run_case(deed, len, steps[i], next_random(&random) % 3 != 0, s, &random);
			}
	printf("%s, %d deaths\n%-28s %6s %6s %12s %12s %16s\n", mode, sh->number, "operation", "ended", "failed",
	       "mean, ms", "worst, ms", "later send, ms");
	for (int d = 0; d < DEEDS; d++) {
		struct stat *st = &sh->stats[d];

		printf("%-28s %6u %6u %12.3f %12.3f %16.3f\n", deed_names[d], st->good, st->failed,
		       st->failed ? (double)st->sum / st->failed / 1e6 : 0, (double)st->worst / 1e6,
		       (double)st->worst_late / 1e6);
	}
	sh->number = -1;
	reap(s, 0, "the survivor");
	reap(b, 0, "the bystander");
	puts("kill ok");
	return 0;
}
