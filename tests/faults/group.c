/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Processes that are a group: what their collective operations compute, and what becomes of these when a
 * member is killed.
 *
 *   group MEMBERS ROUNDS SEED [auto|sread|join|remove|lack] [host=NAME...]
 *
 * In each round all members join two groups, of all and of every second one, and compute in both, with
 * operations of random length in flight. Then one member is killed at a random microsecond, while the others
 * go on: each has an error soon, in a group that the dead one was in, and can close all. By "join" it is killed
 * at a random microsecond from before the first join on. By "remove" it is not killed, and removes the address of a member when its
 * first join has begun: that join ends with an error at all. By "lack" it may write no file, so that it can make no channel by shared
 * memory, from before the first join on, which ends so, too. `host=` names a network namespace of ip-netns(8): the members are on
 * these in turn.
 */
#include "fab.h"

#include <rdma/fi_collective.h>
#include <rdma/fi_eq.h>
#include <fcntl.h>
#include <sys/resource.h>

#define MOST 16
#define WORDS 20000
#define FLIGHT 3

static struct shared {
	struct name names[MOST];
	volatile int named, computed;
	int victim;
} *sh;

static int members, own, automatic, sleeps, in_join, removes, lacks, host_count, host_fds[MOST];

static struct fab me;
static struct fid_eq *eq;

static void wait_for(volatile int *what, int n)
{
	uint64_t start = now_ns();

	while (*what < n) {
		fab_poll(&me);
		usleep(20);
		CHECK(now_ns() - start < 30000000000u, "the others are held up");
	}
}

static int is_of_a_death(int err)
{
	return err == FI_ECONNRESET || err == FI_ECONNREFUSED || err == FI_ECANCELED || err == FI_EIO || (lacks && err == FI_EMFILE);
}

/* NULL: a member was killed meanwhile. */
static struct fid_mc *join(fi_addr_t stride, struct fid_av_set **set)
{
	struct fi_av_set_attr attr = {.start_addr = 0, .end_addr = members - 1, .stride = stride};
	struct fi_eq_err_entry failed = {0};
	struct fi_eq_entry entry;
	struct fid_mc *mc;
	uint64_t start = now_ns();
	fi_addr_t addr;
	uint32_t event;
	ssize_t n;

	OK(fi_av_set(me.av, &attr, set, NULL));
	OK(fi_av_set_addr(*set, &addr));
	if (lacks && own == sh->victim) {
		signal(SIGXFSZ, SIG_IGN);
		CHECK(!setrlimit(RLIMIT_FSIZE, &(struct rlimit){0, 0}), "setrlimit: %s", strerror(errno));
	}
	OK(fi_join_collective(me.ep, addr, *set, 0, &mc, &mc));
	if (removes && !lacks && own == sh->victim) {
		fi_addr_t other = (sh->victim + 1) % members;

		OK(fi_av_remove(me.av, &other, 1, 0));
	}
	while ((n = fi_eq_read(eq, &event, &entry, sizeof entry, 0)) == -FI_EAGAIN) {
		CHECK(now_ns() - start < 30000000000u, "the join does not end");
		sched_yield();
	}
	if (n == -FI_EAVAIL && (in_join || removes)) {
		CHECK(fi_eq_readerr(eq, &failed, 0) == sizeof failed && is_of_a_death(failed.err), "join: error %d", failed.err);
		OK(fi_close(&mc->fid));
		return NULL;
	}
	CHECK(n == sizeof entry && event == FI_JOIN_COMPLETE && entry.context == &mc && entry.fid == &mc->fid,
	      "join: %zd, event %u", n, event);
	return mc;
}

struct call {
	struct op op;
	int kind, root;
	size_t count;
	uint64_t in[WORDS], out[WORDS];
};

static struct call calls[FLIGHT];

enum { ALLREDUCE, BROADCAST, GATHER, KINDS };

/* Of all members the same: kind, count, and root, which is a member of both groups. */
static void post(struct fid_mc *mc, struct call *c, uint64_t *seed, int rank, int round)
{
	fi_addr_t group = fi_mc_addr(mc);
	void *in = c->in, *out = c->out;
	size_t most = next_random(seed) % 4 ? 64 : WORDS;

	c->kind = next_random(seed) % KINDS;
	c->root = next_random(seed) % members & ~1;
	c->count = 1 + next_random(seed) % (c->kind == GATHER ? most / MOST : most);
	for (size_t i = 0; i < c->count; i++)
		c->in[i] = (uint64_t)rank * 1000 + i + round;
	if (c->kind == ALLREDUCE)
		POST(&me, &c->op, fi_allreduce(me.ep, in, c->count, NULL, out, NULL, group, FI_UINT64, FI_SUM, 0, &c->op));
	else if (c->kind == BROADCAST)
		POST(&me, &c->op, fi_broadcast(me.ep, in, c->count, NULL, group, c->root, FI_UINT64, 0, &c->op));
	else
		POST(&me, &c->op,
		     fi_gather(me.ep, in, c->count, NULL, out, NULL, group, c->root, FI_UINT64, 0, &c->op));
}

/* Of a group whose members are so far apart. */
static void check(struct call *c, int rank, int stride, int round)
{
	uint64_t ranks = 0, n = 0;

	for (int r = 0; r < members; r += stride)
		ranks += r, n++;
	if (c->kind == GATHER && rank != c->root)
		return;
	for (size_t i = 0; i < c->count * (c->kind == GATHER ? n : 1); i++) {
		size_t of = c->kind == GATHER ? i / c->count * stride : (size_t)c->root, at = i % c->count;
		uint64_t found = c->kind == BROADCAST ? c->in[i] : c->out[i];
		uint64_t due = c->kind == ALLREDUCE ? ranks * 1000 + n * (i + round) : of * 1000 + at + round;

		CHECK(found == due, "kind %d, element %zu of %zu: %lu, not %lu", c->kind, i, c->count,
		      (unsigned long)found, (unsigned long)due);
	}
}

static void compute(struct fid_mc *mc, int stride, int rank, uint64_t *seed, int rounds)
{
	for (int round = 0; round < rounds; round++) {
		for (int i = 0; i < FLIGHT; i++)
			post(mc, &calls[i], seed, rank, round);
		for (int i = 0; i < FLIGHT; i++) {
			await(&me, &calls[i].op, "an operation of a group");
			check(&calls[i], rank, stride, round);
		}
	}
}

/* Until an operation fails: in each group of the dead member's one does. */
static void until_it_fails(struct fid_mc *mc, uint64_t seed, int rank)
{
	uint64_t start = now_ns();

	for (int round = 0;; round++) {
		for (int i = 0; i < FLIGHT; i++)
			post(mc, &calls[i], &seed, rank, round);
		for (int i = 0; i < FLIGHT; i++)
			while (calls[i].op.state == PENDING) {
				if (!fab_poll(&me))
					sched_yield();
				CHECK(now_ns() - start < 30000000000u, "an operation without a member goes on");
			}
		for (int i = 0; i < FLIGHT; i++) {
			int err = calls[i].op.err;

			if (calls[i].op.state == DONE)
				continue;
			CHECK(is_of_a_death(err), "failed with %d (%s)", err, fi_strerror(err));
			return;
		}
	}
}

static void member(int rank, uint64_t seed)
{
	struct fid_av_set *all_set, *some_set = NULL;
	struct fid_mc *all, *some = NULL;
	struct fi_eq_attr attr = {.wait_obj = FI_WAIT_NONE};

	fab_role = "member";
	own = rank;
	if (host_count)
		CHECK(!setns(host_fds[rank % host_count], CLONE_NEWNET), "setns: %s", strerror(errno));
	fab_open(&me, (struct fab_options){.caps = FI_MSG | FI_TAGGED | FI_COLLECTIVE,
					   .sleeps = sleeps,
					   .progress = automatic ? FI_PROGRESS_AUTO : FI_PROGRESS_MANUAL});
	OK(fi_eq_open(me.fabric, &attr, &eq, NULL));
	OK(fi_ep_bind(me.ep, &eq->fid, 0));
	sh->names[rank] = me.name;
	__atomic_add_fetch(&sh->named, 1, __ATOMIC_SEQ_CST);
	wait_for(&sh->named, members);
	for (int i = 0; i < members; i++)
		fab_insert(&me, &sh->names[i]);
	all = join(1, &all_set);
	if (removes) {
		CHECK(!all, "a join without a member's address");
		OK(fi_close(&all_set->fid));
		__atomic_add_fetch(&sh->computed, 1, __ATOMIC_SEQ_CST);
		wait_for(&sh->computed, members);
		exit(0);
	}
	if (rank % 2 == 0) {
		some = join(2, &some_set);
		CHECK(some || sh->victim % 2 == 0, "a join fails without its member's end");
	}
	if (all && !in_join)
		compute(all, 1, rank, &seed, 10);
	if (some && in_join && sh->victim % 2 == 0)
		until_it_fails(some, seed, rank);
	else if (some)
		compute(some, 2, rank, &(uint64_t){seed}, 10);
	if (some)
		OK(fi_close(&some->fid));
	if (some_set)
		OK(fi_close(&some_set->fid));
	__atomic_add_fetch(&sh->computed, 1, __ATOMIC_SEQ_CST);
	if (all) {
		until_it_fails(all, seed, rank);
		OK(fi_close(&all->fid));
	}
	OK(fi_close(&all_set->fid));
	OK(fi_close(&me.ep->fid));
	me.ep = NULL;
	OK(fi_close(&eq->fid));
	fab_close(&me);
}

static void round_of(uint64_t *seed)
{
	uint64_t common = next_random(seed), start = now_ns();
	pid_t pids[MOST];
	int victim = next_random(seed) % members, status;

	memset(sh, 0, sizeof *sh);
	sh->victim = victim;
	for (int i = 0; i < members; i++) {
		pids[i] = fork();
		CHECK(pids[i] >= 0, "fork");
		if (!pids[i]) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			member(i, common);
			exit(0);
		}
	}
	while (!removes && (in_join ? sh->named : sh->computed) < members) {
		usleep(100);
		CHECK(now_ns() - start < 60000000000u, "%d of %d are as far", sh->computed, members);
		for (int i = 0; i < members; i++)
			CHECK(waitpid(pids[i], &status, WNOHANG) == 0, "member %d: status %x", i, status);
	}
	usleep(next_random(seed) % 20000);
	if (!removes)
		kill(pids[victim], SIGKILL);
	for (int i = 0; i < members; i++) {
		CHECK(waitpid(pids[i], &status, 0) == pids[i], "waitpid");
		CHECK((i == victim && !removes) || !status, "member %d of %d, %d was killed: status %x", i, members, victim, status);
	}
}

int main(int argc, char **argv)
{
	uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 0) : 1;
	int rounds = argc > 2 ? atoi(argv[2]) : 5;

	members = argc > 1 ? atoi(argv[1]) : 5;
	automatic = argc > 4 && !strcmp(argv[4], "auto");
	sleeps = argc > 4 && !strcmp(argv[4], "sread");
	in_join = argc > 4 && !strcmp(argv[4], "join");
	lacks = argc > 4 && !strcmp(argv[4], "lack");
	removes = lacks || (argc > 4 && !strcmp(argv[4], "remove"));
	CHECK(members >= 2 && members <= MOST, "2 to %d members", MOST);
	for (int i = 4; i < argc; i++) {
		char path[80];

		if (strncmp(argv[i], "host=", 5))
			continue;
		snprintf(path, sizeof path, "/run/netns/%s", argv[i] + 5);
		CHECK(host_count < MOST, "up to %d hosts", MOST);
		host_fds[host_count] = open(path, O_RDONLY | O_CLOEXEC);
		CHECK(host_fds[host_count++] >= 0, "%s: %s", path, strerror(errno));
	}
	sh = shared_memory(sizeof *sh);
	printf("group of %d, seed %lu\n", members, (unsigned long)seed);
	fflush(stdout);
	for (int i = 0; i < rounds; i++)
		round_of(&seed);
	printf("group ok\n");
	return 0;
}
