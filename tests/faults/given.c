/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Memory given back: nothing reads or writes it any more, whatever was under way.
 *
 *   given close     reads, writes and messages that wait at a peer when their initiator closes everything
 *                   and uses the buffer for something else
 *   given cancel    the same of messages that are cancelled
 *   given exec      a target that runs another program: its memory at the same addresses is not the target's
 *   given dereg     fi_close of a memory region with operations of peers under way, then munmap or reuse
 *   given stop      the same with an initiator that is stopped in the middle of its copy
 *
 * One line for each case, "ok NAME" or "FAILED NAME: why".  Two processes for each: one owns the memory
 * that is given back, the other is its peer.  What both sides may see of an operation that was cut off is
 * an error or the right bytes, within WATCHDOG.  FI_STRAIT_CMA=no runs the same by frames.
 */
#include "parts/given_sides.h"

/* What one case is. */
struct what {
	const char *name;
	size_t len;
	int sort;
};

/*
 * close: the owner (0) posts and closes while its peer (1) makes no call.
 */
enum { FENCED, BEHIND, COUNTED, ORDERED, WRITE_DATA, MESSAGE };

static uint64_t order_of(const struct what *w)
{
	return w->sort == ORDERED ? FI_ORDER_RAW | FI_ORDER_WAR | FI_ORDER_WAW : 0;
}

static void close_owner(const struct what *w)
{
	unsigned char *buf = map(NULL, w->len);
	struct op op = {0};
	uint64_t word = 0;

	fill(buf, w->len, 1);
	meet_as(NULL, 0, w->sort == COUNTED, order_of(w));
	step(1);
	switch (w->sort) {
	case BEHIND:
		/* Goes out as a frame without an answer, and what is posted behind it must not overtake it. */
		OK(fi_inject_write(f.ep, &word, 8, other, sh->at, sh->key));
		/* fallthrough */
	case COUNTED:
	case ORDERED:
		POST(&f, &op, rma(0, buf, w->len, 0, 0, &op));
		break;
	case FENCED:
		POST(&f, &op, rma(0, buf, w->len, FI_FENCE, 0, &op));
		break;
	case WRITE_DATA:
		POST(&f, &op, rma(1, buf, w->len, FI_REMOTE_CQ_DATA | FI_FENCE, 9, &op));
		break;
	default:
		POST(&f, &op, fi_tsend(f.ep, buf, w->len, NULL, other, TAG, &op));
	}
	NEED(op.state == PENDING, "it has ended before its target made a call: %s", fi_strerror(op.err));
	close_all(NULL);
	memset(buf, CANARY, w->len);
	sh->step = 2;
	watch(buf, w->len, 0);
}

static void close_peer(const struct what *w)
{
	unsigned char *buf = map(NULL, w->len);
	struct op op = {0};
	uint64_t start;

	memset(buf, 0, w->len);
	if (w->sort < WRITE_DATA)
		fill(buf, w->len, 2);
	meet_as(buf, w->len, w->sort == COUNTED, order_of(w));
	sh->step = 1;
	step(2);
	if (w->sort == MESSAGE) {
		POST(&f, &op, fi_trecv(f.ep, buf, w->len, NULL, other, TAG, 0, &op));
		if (ends(&op, "the receive"))
			NEED(op.len == w->len && differs(buf, w->len, 1) == w->len,
			     "the receive completed ok with other contents, from byte %zu", differs(buf, w->len, 1));
	} else {
		struct fi_cq_tagged_entry e;
		struct fi_cq_err_entry err = {0};

		for (start = now_ns(); now_ns() - start < WATCH;) {
			ssize_t n = fi_cq_read(f.cq, &e, 1);

			if (n == -FI_EAVAIL)
				fi_cq_readerr(f.cq, &err, 0);
			if (n == 1 && w->sort == WRITE_DATA && e.flags & FI_REMOTE_CQ_DATA)
				NEED(differs(buf, w->len, 1) == w->len, "a write was reported with other contents, from byte %zu",
				     differs(buf, w->len, 1));
		}
	}
	sh->over = 1;
}

/*
 * cancel: the owner cancels a message that its peer has not taken, and uses the buffer for something else;
 * a second message follows, so that the peer's receive ends.
 */
static void cancel_owner(const struct what *w)
{
	unsigned char *buf = map(NULL, w->len), *second = map(NULL, w->len);
	struct op op = {0}, next = {0};
	int ret;

	fill(buf, w->len, 1);
	fill(second, w->len, 2);
	meet(NULL, 0);
	step(1);
	POST(&f, &op, fi_tsend(f.ep, buf, w->len, NULL, other, TAG, &op));
	NEED(op.state == PENDING, "it has ended before its target made a call");
	ret = (int)fi_cancel(&f.ep->fid, &op);
	NEED(!ret, "fi_cancel of a send that its target has not taken: %s", fi_strerror(-ret));
	ends(&op, "the cancelled send");
	NEED(op.state == FAILED && op.err == FI_ECANCELED, "the cancelled send: %s", fi_strerror(op.err));
	memset(buf, CANARY, w->len);
	sh->step = 2;
	POST(&f, &next, fi_tsend(f.ep, second, w->len, NULL, other, TAG, &next));
	NEED(ends(&next, "the second message") || next.err, "the second message: %s", fi_strerror(next.err));
	watch(buf, w->len, 1);
	close_all(NULL);
}

static void cancel_peer(const struct what *w)
{
	unsigned char *buf = map(NULL, w->len);
	struct op op = {0};
	int took = 0;

	meet(NULL, 0);
	sh->step = 1;
	step(2);
	/* The cancelled one may still be seen, as an error, or with the bytes it had. */
	for (int i = 0; i < 2 && took != 2; i++) {
		POST(&f, &op, fi_trecv(f.ep, buf, w->len, NULL, other, TAG, 0, &op));
		if (!ends(&op, "the receive"))
			continue;
		took = differs(buf, w->len, 2) == w->len ? 2 : 1;
		NEED(op.len == w->len && (took == 2 || differs(buf, w->len, 1) == w->len),
		     "the receive completed ok with other contents");
	}
	NEED(took == 2, "the message behind the cancelled one got lost");
	sh->over = 1;
	step_polling(3);
	close_all(NULL);
}

/*
 * exec: the owner becomes another program, which has a canary where the owner had its memory.
 */
enum { WRITES, READS, TAKES };

/* The other program. */
static int canary_program(char **argv)
{
	size_t len = strtoull(argv[3], NULL, 0), bad = 0;
	unsigned char *at;
	uint64_t start = now_ns();

	sh = mmap(NULL, sizeof *sh, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(argv[2]), 0);
	CHECK(sh != MAP_FAILED, "mmap: %s", strerror(errno));
	at = map(PLACE, len);
	memset(at, CANARY, len);
	sh->step = 2;
	while (!bad && (!sh->over || now_ns() - start < WATCH) && now_ns() - start < 12 * WATCHDOG) {
		bad = not_canary(at, len);
		usleep(1000);
	}
	bad = not_canary(at, len);
	if (bad)
		WRONG("%zu of %zu bytes were written in another program", bad, len);
	return 0;
}

/* A system call that answers as an old kernel does. */
static void forbid(int nr)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)nr, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {sizeof filter / sizeof *filter, filter};

	CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog), "seccomp: %s",
	      strerror(errno));
}

static void exec_owner(const struct what *w)
{
	char fd[16], len[32], *argv[] = {"given", "--canary", fd, len, NULL};
	unsigned char *at = map(PLACE, w->len);
	struct op op = {0};

	fill(at, w->len, 2);
	meet(at, w->len);
	if (w->sort == TAKES) {
		POST(&f, &op, fi_tsend(f.ep, at, w->len, NULL, other, TAG, &op));
		NEED(op.state == PENDING, "it has ended before its target made a call");
	}
	snprintf(fd, sizeof fd, "%d", sh_fd);
	snprintf(len, sizeof len, "%zu", w->len);
	step(1);
	execv("/proc/self/exe", argv);
	CHECK(0, "exec: %s", strerror(errno));
}

static void exec_peer(const struct what *w, int no_pidfd)
{
	unsigned char *buf = map(NULL, w->len);
	struct op op = {0};
	int ok;

	if (no_pidfd)
		forbid(SYS_pidfd_open);
	meet(NULL, 0);
	sh->step = 1;
	step(2);
	fill(buf, w->len, 1);
	switch (w->sort) {
	case WRITES:
		POST(&f, &op, rma(1, buf, w->len, FI_DELIVERY_COMPLETE, 0, &op));
		NEED(!ends(&op, "the write"), "a write to a process that runs another program now was ok");
		break;
	case READS:
		POST(&f, &op, rma(0, buf, w->len, 0, 0, &op));
		ok = ends(&op, "the read");
		NEED(!not_canary(buf, 0) && !ok, "a read from a process that runs another program now was ok");
		break;
	default:
		POST(&f, &op, fi_trecv(f.ep, buf, w->len, NULL, other, TAG, 0, &op));
		if (ends(&op, "the receive"))
			NEED(differs(buf, w->len, 2) == w->len, "another program's memory was received as a message");
	}
	sh->over = 1;
}

/*
 * dereg: the owner closes a region of which a part has been written or read, and unmaps or reuses it.
 */
enum { WRITTEN_UNMAPPED, WRITTEN_REUSED, READ_UNMAPPED, READ_REUSED };

static void dereg_owner(const struct what *w, int stopped)
{
	unsigned char *at = map(NULL, w->len);
	int unmap = w->sort == WRITTEN_UNMAPPED || w->sort == READ_UNMAPPED, written = w->sort < READ_UNMAPPED;
	int whole;
	struct fid_mr *mr;
	uint64_t start;

	fill(at, w->len, 2);
	mr = meet(at, w->len);
	sh->step = 1;
	if (stopped) {
		/* In the middle of its copy. */
		const volatile unsigned char *there = (written ? at : seen) + w->len / 4 * stopped;
		unsigned char before = *there;

		for (start = now_ns(); *there == before;)
			NEED(now_ns() - start < WATCHDOG, "the peer copies nothing");
		kill(sh->pids[1], SIGSTOP);
	} else {
		/* Until some of it has been done. */
		for (start = now_ns(); sh->step < 2;)
			NEED(now_ns() - start < WATCHDOG, "the peer posts nothing");
		for (int i = 0; i < 20; i++) {
			fab_poll(&f);
			usleep(20);
		}
	}
	close_again(&mr->fid, "the region");
	/* Quickly: a copy may be going on. */
	whole = written;
	for (size_t i = w->len; i > 0; i -= 4096)
		whole &= at[i - 1] == byte_at(1, i - 1);
	if (unmap)
		munmap(at, w->len);
	/* From the end, where a copy comes last. */
	for (size_t left = w->len; !unmap && left;) {
		size_t n = left < 1 << 20 ? left : 1 << 20;

		left -= n;
		memset(at + left, CANARY, n);
	}
	kill(sh->pids[1], SIGCONT);
	if (unmap) {
		for (start = now_ns(); !sh->over || now_ns() - start < WATCH;) {
			fab_poll(&f);
			NEED(now_ns() - start < WATCHDOG + WATCH, "the peer's side did not end");
		}
	} else {
		watch(at, w->len, 1);
	}
	NEED(!written || whole || sh->ok != 1, "a write that was cut off completed without an error");
	sh->step = 3;
	close_all(NULL);
}

static void dereg_peer(const struct what *w)
{
	int write = w->sort < READ_UNMAPPED;
	unsigned char *buf = w->len == LARGEST ? seen : map(NULL, w->len);
	struct op op = {0};

	fill(buf, w->len, write);
	meet(NULL, 0);
	step(1);
	sh->step = 2;
	POST(&f, &op, rma(write, buf, w->len, write ? FI_DELIVERY_COMPLETE : 0, 0, &op));
	sh->ok = ends(&op, write ? "the write" : "the read") ? 1 : -1;
	if (sh->ok == 1 && !write)
		NEED(differs(buf, w->len, 2) == w->len, "a read was ok with other contents, from byte %zu", differs(buf, w->len, 2));
	sh->over = 1;
	step_polling(3);
	close_all(NULL);
}

typedef void side(const struct what *w);
static void exec_with(const struct what *w) { exec_peer(w, 0); }
static void exec_without(const struct what *w) { exec_peer(w, 1); }
static void dereg_live(const struct what *w) { dereg_owner(w, 0); }
static void stop_early(const struct what *w) { dereg_owner(w, 1); }
static void stop_late(const struct what *w) { dereg_owner(w, 3); }

/* Runs both sides of a case; returns whether it went well. */
static int run(const struct what *w, side *owner, side *peer)
{
	side *sides[2] = {owner, peer};
	pid_t pids[2];
	int good = 1;

	memset((void *)sh, 0, sizeof *sh);
	for (int i = 0; i < 2; i++) {
		pids[i] = fork();
		CHECK(pids[i] >= 0, "fork: %s", strerror(errno));
		if (pids[i])
			continue;
		me = i;
		fab_role = i ? "peer" : "owner";
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		alarm(60);
		sides[i](w);
		_exit(0);
	}
	for (int left = 2; left > 0; left--) {
		int status, i;
		pid_t pid = wait(&status);

		CHECK(pid > 0, "wait: %s", strerror(errno));
		i = pid == pids[1];
		if (!status) {
			/* The second step of an owner that has ended is for its peer to go on. */
			if (!i && sh->step < 3)
				sh->step = 3;
			continue;
		}
		if (!sh->why[i][0])
			snprintf(sh->why[i], sizeof sh->why[i], "%s: status 0x%x%s", i ? "the peer" : "the owner", status,
				 WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV ? " (SIGSEGV)" : "");
		good = 0;
		sh->over = 1;
		kill(pids[!i], SIGCONT);
		sh->step = 3;
	}
	return good;
}

static int one(const char *name, const struct what *w, side *owner, side *peer)
{
	int good = run(w, owner, peer);

	if (good)
		printf("ok %s %s %zu\n", name, w->name, w->len);
	else
		printf("FAILED %s %s %zu: %s%s%s\n", name, w->name, w->len, sh->why[0], sh->why[0][0] && sh->why[1][0] ? "; " : "",
		       sh->why[1]);
	fflush(stdout);
	return good;
}

#define EACH(at, list) for (size_t at = 0; at < sizeof(list) / sizeof *(list); at++)

int main(int argc, char **argv)
{
	static const size_t reads[] = {32 << 10, 512 << 10, 8 << 20}, sends[] = {32 << 10, 1 << 20};
	static const size_t writes[] = {8, 4096, 32 << 10, 256 << 10, 4 << 20};
	static const char *const close_names[] = {"read, FI_FENCE", "read behind an inject", "read, counted region", "read, ordered",
						  "write with data", "message"};
	static const char *const dereg_names[] = {"written, munmap", "written, reused", "read, munmap", "read, reused"};
	const char *mode = argc > 1 ? argv[1] : "";
	int bad = 0;

	if (argc > 3 && !strcmp(mode, "--canary"))
		return canary_program(argv);
	sh_fd = memfd_create("given", 0);
	CHECK(sh_fd >= 0 && !ftruncate(sh_fd, sizeof *sh), "memfd: %s", strerror(errno));
	sh = mmap(NULL, sizeof *sh, PROT_READ | PROT_WRITE, MAP_SHARED, sh_fd, 0);
	CHECK(sh != MAP_FAILED, "mmap: %s", strerror(errno));
	if (!strcmp(mode, "close")) {
		for (int sort = FENCED; sort <= WRITE_DATA; sort++)
			EACH(i, reads)
				bad += !one("close", &(struct what){close_names[sort], reads[i], sort}, close_owner, close_peer);
		EACH(i, sends)
			bad += !one("close", &(struct what){close_names[MESSAGE], sends[i], MESSAGE}, close_owner, close_peer);
	} else if (!strcmp(mode, "cancel")) {
		EACH(i, sends)
			bad += !one("cancel", &(struct what){"message", sends[i], 0}, cancel_owner, cancel_peer);
	} else if (!strcmp(mode, "exec")) {
		for (int no_pidfd = 0; no_pidfd < 2; no_pidfd++) {
			const char *name = no_pidfd ? "exec, no pidfd:" : "exec:";
			side *peer = no_pidfd ? exec_without : exec_with;

			EACH(i, writes)
				bad += !one(name, &(struct what){"write", writes[i], WRITES}, exec_owner, peer);
			EACH(i, reads)
				bad += !one(name, &(struct what){"read", reads[i], READS}, exec_owner, peer);
			EACH(i, sends)
				bad += !one(name, &(struct what){"message taken", sends[i], TAKES}, exec_owner, peer);
		}
	} else if (!strcmp(mode, "dereg")) {
		for (int sort = WRITTEN_UNMAPPED; sort <= READ_REUSED; sort++)
			bad += !one("dereg", &(struct what){dereg_names[sort], 8 << 20, sort}, dereg_live, dereg_peer);
	} else if (!strcmp(mode, "stop")) {
		seen = mmap(NULL, LARGEST, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		CHECK(seen != MAP_FAILED, "mmap: %s", strerror(errno));
		for (int sort = WRITTEN_UNMAPPED; sort <= READ_REUSED; sort++) {
			bad += !one("stop early:", &(struct what){dereg_names[sort], LARGEST, sort}, stop_early, dereg_peer);
			bad += !one("stop late:", &(struct what){dereg_names[sort], LARGEST, sort}, stop_late, dereg_peer);
		}
	} else {
		fprintf(stderr, "given close|cancel|exec|dereg|stop\n");
		return 2;
	}
	if (!bad)
		printf("given %s ok\n", mode);
	return bad != 0;
}
