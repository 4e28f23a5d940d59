/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * What an application gets for its own mistakes and for what runs out: the error that libfabric's
 * manual pages name, and everything else goes on.  After each mistake something that is right has to
 * work.  Two processes, of which the second does what messages of the first name.
 */
#include "fab.h"
#include <fcntl.h>
#include <sys/resource.h>

enum { TAG_COMMAND = 1, TAG_ANSWER, TAG_FLOOD, TAG_DATA };
enum command { STOP, SLEEP, COUNT, FLOOD, STARVE };

struct order {
	uint64_t command, arg;
};

static struct shared {
	struct name a, b;
	volatile int b_ready, a_ready;
	uint64_t key, at, ro_key, ro_at;
	volatile int awake, starving, fed;
	volatile uint64_t sent;
} *sh;

static struct fab me;
static fi_addr_t peer, self;
static int checks;

#define IS(got, want)                                                                                   \
	do {                                                                                            \
		long is_got = (got), is_want = (want);                                                  \
		CHECK(is_got == is_want, "%s: %ld (%s), not %ld", #got, is_got,                         \
		      fi_strerror((int)(is_got < 0 ? -is_got : is_got)), is_want);                      \
		checks++;                                                                               \
	} while (0)

/* One message to the peer and back. */
static void fine(const char *what)
{
	static uint64_t seq;
	static struct op in, out;
	struct order back = {0}, order = {COUNT, ++seq};

	POST(&me, &in, fi_trecv(me.ep, &back, sizeof back, NULL, peer, TAG_ANSWER, 0, &in));
	POST(&me, &out, fi_tsend(me.ep, &order, sizeof order, NULL, peer, TAG_COMMAND, &out));
	await(&me, &out, what);
	await(&me, &in, what);
	CHECK(back.arg == seq, "%s: another answer", what);
	checks++;
}

static void order(enum command command, uint64_t arg)
{
	static struct op out;
	static struct order o;

	o = (struct order){command, arg};
	POST(&me, &out, fi_tsend(me.ep, &o, sizeof o, NULL, peer, TAG_COMMAND, &out));
	await(&me, &out, "an order");
}

/* Goes on without a descriptor to spare. */
static void starve(void)
{
	struct rlimit old, none;
	int end = dup(0);

	CHECK(end >= 0, "dup");
	close(end);
	OK(getrlimit(RLIMIT_NOFILE, &old));
	none = (struct rlimit){(rlim_t)end, old.rlim_max};
	OK(setrlimit(RLIMIT_NOFILE, &none));
	sh->starving = 1;
	while (!sh->fed)
		CHECK(fab_poll(&me) == 0, "something came");
	OK(setrlimit(RLIMIT_NOFILE, &old));
}

/* The second process. */
static void second(void)
{
	static unsigned char memory[4096], fixed[4096];
	struct op in = {0}, out = {0}, flood = {0};
	struct order o = {0};
	struct fid_mr *mr, *ro;
	uint64_t expect = 0, word;
	fi_addr_t a;

	fab_role = "second";
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	fab_open(&me, (struct fab_options){.threading = FI_THREAD_DOMAIN});
	OK(fi_mr_reg(me.domain, memory, sizeof memory, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 5, 0, &mr, NULL));
	OK(fi_mr_reg(me.domain, fixed, sizeof fixed, FI_REMOTE_READ, 0, 6, 0, &ro, NULL));
	int virt = !!(me.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR);
	sh->key = fi_mr_key(mr), sh->at = virt ? (uintptr_t)memory : 0;
	sh->ro_key = fi_mr_key(ro), sh->ro_at = virt ? (uintptr_t)fixed : 0;
	sh->b = me.name;
	sh->b_ready = 1;
	while (!sh->a_ready)
		usleep(100);
	a = fab_insert(&me, &sh->a);
	for (;;) {
		POST(&me, &in, fi_trecv(me.ep, &o, sizeof o, NULL, a, TAG_COMMAND, 0, &in));
		while (in.state == PENDING)
			if (!fab_poll(&me))
				sched_yield();
		CHECK(in.state == DONE, "%s", fi_strerror(in.err));
		switch ((enum command)o.command) {
		case STOP:
			OK(fi_close(&mr->fid));
			OK(fi_close(&ro->fid));
			fab_close(&me);
			exit(0);
		case SLEEP: /* no progress until `awake` is set */
			while (!sh->awake)
				usleep(100);
			break;
		case COUNT:
			POST(&me, &out, fi_tsend(me.ep, &o, sizeof o, NULL, a, TAG_ANSWER, &out));
			await(&me, &out, "an answer");
			break;
		case STARVE: /* no descriptor to be had for a while */
			starve();
			for (expect = 0; expect < sh->sent; expect++) {
				POST(&me, &flood, fi_trecv(me.ep, &word, 8, NULL, FI_ADDR_UNSPEC, TAG_DATA, 0, &flood));
				await(&me, &flood, "a message of before");
				CHECK(word == expect, "message %lu in the place of %lu", word, expect);
			}
			break;
		case FLOOD: /* take in a flood of so many numbered messages */
			for (expect = 0; expect < o.arg; expect++) {
				POST(&me, &flood, fi_trecv(me.ep, &word, 8, NULL, a, TAG_FLOOD, 0, &flood));
				await(&me, &flood, "a flood");
				CHECK(word == expect, "message %lu in the place of %lu", word, expect);
			}
			break;
		}
	}
}

/* A message of `len` bytes to ourselves, into a buffer of `room`. */
static void truncated(size_t len, size_t room)
{
	static unsigned char src[100000], dst[100000];
	static struct op in, out;
	struct fi_cq_err_entry err = {0};
	struct fi_cq_tagged_entry e;
	int sent = 0;
	ssize_t n;

	fill(src, len, 1);
	memset(dst, 0, sizeof dst);
	OK(fi_trecv(me.ep, dst, room, NULL, FI_ADDR_UNSPEC, TAG_DATA, 0, begin(&in)));
	OK(fi_tsend(me.ep, src, len, NULL, self, TAG_DATA, begin(&out)));
	do { /* the send, a success whatever became of it */
		n = fi_cq_read(me.cq, &e, 1);
		sent |= n == 1 && e.op_context == &out;
	} while (n == 1 || n == -FI_EAGAIN);
	IS(n, -FI_EAVAIL);
	IS(fi_cq_readerr(me.cq, &err, 0), 1);
	IS(err.err, FI_ETRUNC);
	IS(err.op_context == &in, 1);
	IS(err.len, (long)room);
	IS(err.olen, (long)(len - room));
	IS(differs(dst, room, 1), (long)room);
	IS(dst[room], 0);
	in.state = DONE;
	/* The completion of the send was read before, or is now. */
	while (!sent) {
		n = fi_cq_read(me.cq, &e, 1);
		CHECK(n == 1 || n == -FI_EAGAIN, "the truncated send: %s", fi_strerror((int)-n));
		sent = n == 1 && e.op_context == &out;
	}
	fine("after a truncated message");
}

static void arguments(void)
{
	static unsigned char buf[65536];
	static struct op op;
	struct iovec iov[9];
	struct fi_msg_tagged t = {.msg_iov = iov, .iov_count = 9, .addr = self, .context = &op};

	for (int i = 0; i < 9; i++)
		iov[i] = (struct iovec){buf, 1};
	IS(fi_tsend(me.ep, buf, 1, NULL, 12345, 0, &op), -FI_EADDRNOTAVAIL);
	IS(fi_tsend(me.ep, buf, 1, NULL, FI_ADDR_UNSPEC, 0, &op), -FI_EADDRNOTAVAIL);
	IS(fi_tsendmsg(me.ep, &t, 0), -FI_EINVAL);
	IS(fi_tinject(me.ep, buf, me.info->tx_attr->inject_size + 1, self, 0), -FI_EMSGSIZE);
	IS(fi_cancel(&me.ep->fid, &op), -FI_ENOENT);
	IS(fi_atomicvalid(me.ep, FI_ATOMIC_OP_LAST + 3, FI_SUM, NULL) != 0, 1);
	IS(fi_av_remove(me.av, (fi_addr_t[]){4711}, 1, 0) != 0, 1);
	fine("after wrong arguments");
}

/* RMA that the target has to refuse. */
static void keys(void)
{
	static unsigned char buf[8192];
	static struct op op;
	static uint64_t word;
	struct {
		int write;
		size_t len;
		uint64_t at, key;
		int err, other;
	} all[] = {
		{1, 8, sh->at, 999, FI_ENOKEY, FI_EKEYREJECTED},      {0, 8, sh->at, 999, FI_ENOKEY, FI_EKEYREJECTED},
		{1, 8, sh->at + 4090, sh->key, FI_EINVAL, FI_EACCES}, {0, 8, sh->at + 4090, sh->key, FI_EINVAL, FI_EACCES},
		{1, 8192, sh->at, sh->key, FI_EINVAL, FI_EACCES},     {0, 8192, sh->at, sh->key, FI_EINVAL, FI_EACCES},
		{1, 8, UINT64_MAX - 3, sh->key, FI_EINVAL, FI_EACCES}, {0, 8, UINT64_MAX - 3, sh->key, FI_EINVAL, FI_EACCES},
		{1, 8, sh->ro_at, sh->ro_key, FI_EACCES, FI_EACCES},
	};

	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		for (int deliver = 0; deliver < 2; deliver++) {
			struct iovec iov = {buf, all[i].len};
			struct fi_rma_iov there = {all[i].at, all[i].len, all[i].key};
			struct fi_msg_rma m = {.msg_iov = &iov, .iov_count = 1, .addr = peer, .rma_iov = &there,
					       .rma_iov_count = 1, .context = &op};

			memset(buf, 0xaa, sizeof buf);
			if (all[i].write) /* only then does the writer wait for the target's word */
				POST(&me, &op, fi_writemsg(me.ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE));
			else
				POST(&me, &op, fi_readmsg(me.ep, &m, FI_COMPLETION));
			for (uint64_t start = now_ns(); op.state == PENDING && now_ns() - start < 20000000000u;)
				fab_poll(&me);
			CHECK(op.state == FAILED && (op.err == all[i].err || op.err == all[i].other),
			      "access %zu: state %d, %s", i, op.state, fi_strerror(op.err));
			CHECK(buf[0] == 0xaa && buf[8191] == 0xaa, "access %zu brought bytes", i);
			checks++;
			POST(&me, &op, fi_read(me.ep, &word, 8, NULL, peer, sh->at, sh->key, &op));
			await(&me, &op, "a good read after a bad access");
			CHECK(word == 0, "access %zu changed memory", i);
		}
	fine("after bad accesses");
}

/* Sends until there is no more room, while the other does not look; then all arrive. */
static void full(void)
{
	static uint64_t words[1 << 16];
	static struct op one[1 << 16];
	uint64_t n = 0;
	long ret = 0;

	order(SLEEP, 0);
	for (uint64_t start = now_ns(); n < 1 << 16; n++) {
		words[n] = n;
		begin(&one[n]);
		while ((ret = fi_tsend(me.ep, &words[n], 8, NULL, peer, TAG_FLOOD, &one[n])) == -FI_EAGAIN) {
			fab_poll(&me);
			if (now_ns() - start > 500000000)
				break;
		}
		if (ret)
			break;
	}
	one[n].state = FREE;
	CHECK(n > 100 && n < 1 << 16 && ret == -FI_EAGAIN, "%lu sends, %s", n, fi_strerror((int)-ret));
	sh->awake = 1;
	order(FLOOD, n);
	for (uint64_t i = 0; i < n; i++)
		await(&me, &one[i], "one of many");
	fine("after a full queue");
}

/* A queue of one entry: what completes all the same is kept. */
static void small_queue(void)
{
	struct fab f;
	static struct op in[200], out[200];
	static uint64_t a[200], b[200];
	fi_addr_t me2;
	int posted = 0, refused = 0;

	fab_open(&f, (struct fab_options){.threading = FI_THREAD_DOMAIN, .cq_size = 1});
	me2 = fab_insert(&f, &f.name);
	for (int i = 0; i < 200; i++)
		POST(&f, &in[i], fi_trecv(f.ep, &b[i], 8, NULL, FI_ADDR_UNSPEC, (uint64_t)i, 0, &in[i]));
	while (posted < 200) {
		long ret;

		a[posted] = (uint64_t)posted * 3;
		begin(&out[posted]);
		ret = fi_tsend(f.ep, &a[posted], 8, NULL, me2, (uint64_t)posted, &out[posted]);
		if (ret == -FI_EAGAIN) {
			out[posted].state = FREE;
			CHECK(++refused < 1000000, "never any room");
			fab_poll(&f);
			continue;
		}
		IS(ret, 0);
		posted++;
	}
	for (int i = 0; i < 200; i++) {
		await(&f, &in[i], "a receive on a small queue");
		await(&f, &out[i], "a send on a small queue");
		IS(b[i], i * 3);
	}
	CHECK(refused > 0, "a queue of one entry was never full");
	fab_close(&f);
}

/* No descriptors, no address space: opening and connecting fail or wait, and work later. */
static void exhausted(void)
{
	struct rlimit old, none;
	struct fab f;
	static struct op op;
	static uint64_t word;
	int ret, fds = descriptors(), pipe_end = dup(0);

	/* Opening. */
	OK(getrlimit(RLIMIT_NOFILE, &old));
	close(pipe_end);
	for (int room = 0; room < 8; room++) {
		none = (struct rlimit){(rlim_t)pipe_end + (rlim_t)room, old.rlim_max};
		OK(setrlimit(RLIMIT_NOFILE, &none));
		ret = fab_try_open(&f, (struct fab_options){.threading = FI_THREAD_DOMAIN});
		CHECK(ret == 0 || ret == -FI_EMFILE || ret == -FI_ENOMEM, "opening with %d descriptors: %d (%s)", room, ret,
		      fi_strerror(-ret));
		if (room == 0)
			IS(ret, -FI_EMFILE);
		OK(setrlimit(RLIMIT_NOFILE, &old));
		fab_close(&f);
		IS(descriptors(), fds);
	}
	/* Connecting: not now, and then it goes on. */
	fab_open(&f, (struct fab_options){.threading = FI_THREAD_DOMAIN});
	fab_insert(&f, &f.name);
	close(pipe_end = dup(0));
	none.rlim_cur = (rlim_t)pipe_end;
	OK(setrlimit(RLIMIT_NOFILE, &none));
	for (int i = 0; i < 1000; i++)
		IS(fi_tsend(f.ep, &word, 8, NULL, 0, 1, &op), -FI_EAGAIN);
	OK(setrlimit(RLIMIT_NOFILE, &old));
	POST(&f, &op, fi_tsend(f.ep, &word, 8, NULL, 0, 1, &op));
	await(&f, &op, "a send after descriptors came back");
	fab_close(&f);
	IS(descriptors(), fds);
	/* The same for memory. */
	fab_open(&f, (struct fab_options){.threading = FI_THREAD_DOMAIN});
	fab_insert(&f, &f.name);
	OK(getrlimit(RLIMIT_AS, &old));
	none = (struct rlimit){1 << 20, old.rlim_max};
	OK(setrlimit(RLIMIT_AS, &none));
	for (int i = 0; i < 100; i++)
		IS(fi_tsend(f.ep, &word, 8, NULL, 0, 1, &op), -FI_EAGAIN);
	OK(setrlimit(RLIMIT_AS, &old));
	POST(&f, &op, fi_tsend(f.ep, &word, 8, NULL, 0, 1, &op));
	await(&f, &op, "a send after memory came back");
	fab_close(&f);
	IS(descriptors(), fds);
	fine("after resources ran out");
}

/* A process without a descriptor for a connection gets its peer's once there is one; nothing is lost meanwhile. */
static void acceptor(void)
{
	static struct op ops[1 << 15];
	static uint64_t words[1 << 15];
	uint64_t n = 0, start = now_ns();
	struct fab f;
	fi_addr_t to;

	fab_open(&f, (struct fab_options){.threading = FI_THREAD_DOMAIN});
	to = fab_insert(&f, &sh->b);
	order(STARVE, 0);
	while (!sh->starving)
		usleep(100);
	while (now_ns() - start < 500000000u && n < 1 << 15) {
		long ret;

		words[n] = n;
		begin(&ops[n]);
		ret = fi_tsend(f.ep, &words[n], 8, NULL, to, TAG_DATA, &ops[n]);
		if (!ret) {
			n++;
			continue;
		}
		IS(ret, -FI_EAGAIN);
		ops[n].state = FREE;
		fab_poll(&f);
	}
	CHECK(n < 1 << 15, "a peer that cannot be met took %lu messages", n);
	sh->sent = n;
	sh->fed = 1;
	for (uint64_t i = 0; i < n; i++)
		await(&f, &ops[i], "a send to one that had no descriptors");
	fine("after a peer without descriptors");
	fab_close(&f);
}

int main(void)
{
	pid_t pid;
	int status;

	fab_role = "first";
	sh = shared_memory(sizeof *sh);
	pid = fork();
	CHECK(pid >= 0, "fork");
	if (!pid)
		second();
	fab_open(&me, (struct fab_options){.threading = FI_THREAD_DOMAIN});
	while (!sh->b_ready)
		usleep(100);
	peer = fab_insert(&me, &sh->b);
	self = fab_insert(&me, &me.name);
	sh->a = me.name;
	sh->a_ready = 1;
	fine("the first word");
	arguments();
	truncated(100, 10);
	truncated(100000, 50000);
	keys();
	full();
	small_queue();
	exhausted();
	acceptor();
	order(STOP, 0);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0, "the second: status %x", status);
	fab_close(&me);
	printf("errors ok, %d checks\n", checks);
	return 0;
}
