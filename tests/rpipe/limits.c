/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Rank 1 runs into a limit of its process (setrlimit(2)) in the middle of a job of two: each call works, or ends with an error that
 * names the limit, and those of rank 0 with EPIPE; once the limit is raised a new pipe and a new group work.
 *
 * STRAIT_RPIPE_TEST_LIMIT: "KIND STEP N". KIND: nofile, fsize, as, memlock, none. STEP, from which on the limit holds: rinit, rpipe,
 * rmalloc, group, lend. N: descriptors, or bytes, that are left then. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strait_rpipe.h>
#include <sys/resource.h>
#include <unistd.h>

enum { MESSAGE = 3000, LENT = 1 << 20 };

#define CHECK(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "rank %d, line %d: %s: errno %d: %s\n", rank, __LINE__, #what, errno, rerror()); \
			exit(1); \
		} \
	} while (0)

static int rank;
static char kind[16], step[16];
static long left;
static struct rlimit before;
static int held;
static int faults;

static int which(void)
{
	if (!strcmp(kind, "nofile"))
		return RLIMIT_NOFILE;
	if (!strcmp(kind, "fsize"))
		return RLIMIT_FSIZE;
	if (!strcmp(kind, "memlock"))
		return RLIMIT_MEMLOCK;
	return RLIMIT_AS;
}

/* The number that a limit of descriptors has to have for `left` more of them. */
static rlim_t descriptors(void)
{
	static int fds[4096];
	rlim_t most = 0;

	for (long n = 0; n <= left; n++) {
		fds[n] = dup(0);
		most = (rlim_t)fds[n];
	}
	for (long n = 0; n <= left; n++)
		close(fds[n]);
	return most;
}

static rlim_t mapped(void)
{
	unsigned long pages = 0;
	FILE *statm = fopen("/proc/self/statm", "r");

	CHECK(statm && fscanf(statm, "%lu", &pages) == 1);
	fclose(statm);
	return (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE);
}

static void limit(const char *now)
{
	struct rlimit to;

	static int done;

	if (rank != 1 || done || strcmp(step, now) || !strcmp(kind, "none"))
		return;
	done = 1;
	CHECK(getrlimit(which(), &before) == 0);
	to = before;
	to.rlim_cur = (rlim_t)left;
	if (which() == RLIMIT_NOFILE)
		to.rlim_cur = descriptors();
	if (which() == RLIMIT_AS)
		to.rlim_cur += mapped();
	CHECK(setrlimit(which(), &to) == 0);
	held = 1;
}

static void lift(void)
{
	if (held)
		CHECK(setrlimit(which(), &before) == 0);
	held = 0;
}

/* Whether a call has worked; if not, whether it is one of the errors that it may end with. */
static int worked(int code, const char *what)
{
	const char *names = !strcmp(kind, "nofile") ? "RLIMIT_NOFILE" : !strcmp(kind, "fsize") ? "RLIMIT_FSIZE" : "";

	if (code == 0)
		return 1;
	printf("rank %d: %s: errno %d: %s\n", rank, what, -code, rerror());
	faults++;
	if (code == -EPIPE && (rank == 0 || faults > 1))
		return 0;
	if (rank == 1 && held && code == -ENOMEM && strstr(rerror(), names))
		return 0;
	printf("rank %d: that is another error than it should be\n", rank);
	exit(1);
}

static int allocated(rpipe_t rp, raddr_t *addr)
{
	errno = 0;
	*addr = rmalloc(rp, MESSAGE);
	return worked(*addr == RADDR_NULL ? -errno : 0, "rmalloc");
}

/* Each sends one message and reads the other's, twice; whether all of it worked. */
static int pipes(int may_fail)
{
	rpipe_t rp;
	raddr_t addr;
	int peer = 1 - rank, well = 0;

	if (!worked(rpipe(rp, peer, 0, MESSAGE, FD_PIPE), "rpipe")) {
		/* It counts for no peer: this is the one that the other has made. */
		lift();
		CHECK(rpipe(rp, peer, 0, MESSAGE, FD_PIPE) == 0);
		CHECK(rpipe_close(rp) == 0);
		return 0;
	}
	limit("rmalloc");
	for (int turn = 0; turn < 2; turn++) {
		if (!allocated(rp, &addr))
			goto out;
		memset(rmem(rp, addr), rank + 1, MESSAGE);
		if (!worked(rwrite(rp, addr), "rwrite") || !worked(rread(rp, addr, MESSAGE), "rread"))
			goto out;
		for (int at = 0; at < MESSAGE; at++)
			CHECK(((char *)rmem(rp, addr))[at] == peer + 1);
		CHECK(rfree(addr) == 0);
	}
	well = 1;
out:
	CHECK(well || may_fail);
	/* What was limited may be needed for it, too. */
	worked(rpipe_close(rp), "rpipe_close");
	return well;
}

static void groups(int may_fail)
{
	rpipe_group_t group;
	int ranks[] = {0, 1}, value = rank == 0 ? 77 : 0, well = 0;

	CHECK(rpipe_group_open(&group, ranks, 2) == 0);
	limit("group");
	if (worked(rpipe_bcast(group, 0, &value, sizeof(value)), "rpipe_bcast")) {
		struct rpipe_neighbor other = {1 - rank, &rank, sizeof(rank), &value, sizeof(value), 0};

		CHECK(value == 77);
		if (worked(rpipe_neighbor_exchange(group, &other, 1), "rpipe_neighbor_exchange")) {
			CHECK(value == 1 - rank);
			well = 1;
		}
	}
	CHECK(well || may_fail);
	worked(rpipe_group_close(group), "rpipe_group_close");
}

/* Rank 1 borrows of rank 0; whether it did. */
static void lend(int may_fail)
{
	char bytes[64] = {0};

	if (rank == 0) {
		rlent_t lent;

		CHECK(rlend(&lent, 1, LENT, RPIPE_FOREVER) == 0);
		CHECK(rlend_wait(lent, RPIPE_FOREVER) == 0);
		CHECK(rlend_close(lent) == 0);
	} else {
		rborrowed_t borrowed;
		rborrow_addr_t block;

		limit("lend");
		if (!worked(rborrow(&borrowed, 0, 0, RPIPE_FOREVER), "rborrow")) {
			CHECK(may_fail);
			lift();
			CHECK(rborrow(&borrowed, 0, 0, RPIPE_FOREVER) == 0);
		}
		block = rborrow_malloc(borrowed, 64);
		CHECK(block != RADDR_NULL);
		CHECK(rborrow_write(borrowed, block, 0, "lent", 5, RPIPE_FOREVER) == 0);
		CHECK(rborrow_read(borrowed, block, 0, bytes, 5, RPIPE_FOREVER) == 0);
		CHECK(!strcmp(bytes, "lent"));
		CHECK(rborrow_close(borrowed) == 0);
	}
}

int main(void)
{
	const char *mine = getenv("STRAIT_RPIPE_RANK"), *limited = getenv("STRAIT_RPIPE_TEST_LIMIT");

	if (!mine || !limited || sscanf(limited, "%15s %15s %ld", kind, step, &left) != 3) {
		fprintf(stderr, "STRAIT_RPIPE_TEST_LIMIT=\"KIND STEP N\"\n");
		return 2;
	}
	rank = atoi(mine);
	limit("rinit");
	while (!worked(rinit(NULL, NULL), "rinit"))
		lift();
	limit("rpipe");
	pipes(1);
	groups(1);
	lend(1);
	lift();
	pipes(0);
	groups(0);
	CHECK(rfinalize() == 0);
	printf("rank %d: ok\n", rank);
	return 0;
}
