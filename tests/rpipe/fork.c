/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A forked child of a process of the job: its calls fail, whatever it ends with the parent keeps, and the pipes go on. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <strait_rpipe.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MESSAGES = 5 };

#define CHECK(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, rerror()); \
			exit(1); \
		} \
	} while (0)

static void send_one(rpipe_t rp, int value)
{
	raddr_t addr = rmalloc(rp, sizeof(int));

	CHECK(addr != RADDR_NULL);
	*(int *)rmem(rp, addr) = value;
	CHECK(rwrite(rp, addr) == 0);
}

static void in_child(rpipe_t rp, raddr_t held)
{
	CHECK(rmalloc(rp, 8) == RADDR_NULL && errno == EINVAL);
	CHECK(rwrite(rp, held) == -EINVAL);
	CHECK(rfree(held) == -EINVAL);
	CHECK(rpipe_close(rp) == -EINVAL);
	CHECK(rcount() == -EINVAL);
	CHECK(rfinalize() == -EINVAL);
	exit(0);
}

int main(void)
{
	int rank, status;
	rpipe_t rp;
	raddr_t addr;

	CHECK(rinit(&rank, NULL) == 0);
	CHECK(rpipe(rp, 1 - rank, rank == 0, 8, HD_PIPE) == 0);
	for (int n = 0; n < MESSAGES && rank == 0; n++) {
		pid_t child;

		send_one(rp, n);
		addr = rmalloc(rp, 8);
		CHECK(addr != RADDR_NULL);
		child = fork();
		CHECK(child >= 0);
		if (child == 0)
			in_child(rp, addr);
		CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
		CHECK(rfree(addr) == 0);
	}
	for (int n = 0; n < MESSAGES && rank == 1; n++) {
		CHECK(rread(rp, addr, 8) == 0);
		CHECK(*(int *)rmem(rp, addr) == n);
		CHECK(rfree(addr) == 0);
	}
	CHECK(rfinalize() == 0);
	printf("rank %d: ok\n", rank);
	return 0;
}
