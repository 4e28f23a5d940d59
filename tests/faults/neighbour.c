/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * A user of this host that calls a process of another one over TCP.
 *
 *   neighbour PROGRAM name        under the name of that process's peer
 *   neighbour PROGRAM own         under a name of its own
 *
 * PROGRAM is provider/base/wire/examples/intruder.rs. Two processes of one user talk. A third process becomes `nobody`, finds the
 * port of the first one in /proc/net/tcp, and runs PROGRAM, with the job's key: FI_STRAIT_JOB_KEY, or what the provider takes
 * in its place. It has to be refused, and nothing of it may arrive: no message under the name of the peer, no byte of the peer's
 * memory, no end of what the two have between them.
 *
 * With FI_STRAIT_LINKS=tcp the two talk over TCP themselves. Exits with 77 if this machine cannot do it.
 */
#include "fab.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/syscall.h>

enum { NOBODY = 65534, OWNER = 1001, LEN = 20000, KEY = 5, REFUSED = 0, LET_IN = 3 };

static struct shared {
	struct name names[2];
	uint64_t key, at, private_at;
	volatile int ready, over, done, forged;
} *sh;

static struct fab f;

static void become(uid_t uid)
{
	CHECK(!setgroups(0, NULL) && !setresgid(uid, uid, uid) && !setresuid(uid, uid, uid), "setuid: %s", strerror(errno));
	/* As a program has it that was started by that user. */
	prctl(PR_SET_DUMPABLE, 1);
}

static void wait_for(volatile int *count, int n, const char *what)
{
	uint64_t start = now_ns();

	while (*count < n) {
		if (f.cq)
			fab_poll(&f);
		usleep(200);
		CHECK(now_ns() - start < 60000000000u, "waited for %s", what);
	}
}

static void say(fi_addr_t to, const char *text, uint64_t tag)
{
	struct op op = {0};

	POST(&f, &op, fi_tsend(f.ep, text, 8, NULL, to, tag, &op));
	await(&f, &op, "a message of ours");
}

/* The first of the two, which is called: one message of its peer has tag 1, and comes when the third process is over. */
static void first(void)
{
	unsigned char *region = malloc(LEN), word[2][8] = {{0}};
	struct op got = {0}, begun = {0};
	struct fid_mr *mr;
	fi_addr_t peer;

	fab_role = "first";
	memset(region, 0x11, LEN);
	fab_open(&f, (struct fab_options){0});
	OK(fi_mr_reg(f.domain, region, LEN, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, KEY, 0, &mr, NULL));
	sh->key = fi_mr_key(mr);
	sh->at = f.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)region : 0;
	sh->names[0] = f.name;
	__sync_fetch_and_add(&sh->ready, 1);
	wait_for(&sh->ready, 2, "the second");
	peer = fab_insert(&f, &sh->names[1]);
	POST(&f, &begun, fi_trecv(f.ep, word[0], 8, NULL, peer, 2, 0, &begun));
	await(&f, &begun, "the first message");
	POST(&f, &got, fi_trecv(f.ep, word[1], 8, NULL, peer, 1, 0, &got));
	say(peer, "answered", 2);
	__sync_fetch_and_add(&sh->ready, 1);
	while (!sh->over)
		fab_poll(&f);
	if (got.state != PENDING) {
		fprintf(stderr, "first: from its peer, which sent nothing: %s \"%.8s\"\n",
			got.state == DONE ? "a message," : fi_strerror(got.err), (char *)word[1]);
		sh->forged = 1;
	}
	for (int i = 0; i < LEN; i++)
		if (region[i] != 0x11) {
			fprintf(stderr, "first: byte %d of its region was written%s\n", i, region[i] == 0x5a ? ": with memory of its peer" : "");
			sh->forged = 1;
			break;
		}
	__sync_fetch_and_add(&sh->done, 1);
	if (!sh->forged)
		await(&f, &got, "a message of the peer afterwards");
	CHECK(sh->forged || !memcmp(word[1], "the last", 8), "received \"%.8s\"", (char *)word[1]);
	say(peer, "well met", 3);
	OK(fi_close(&mr->fid));
	fab_close(&f);
	exit(sh->forged);
}

/* Its peer, which registers nothing. */
static void second(void)
{
	unsigned char *private = malloc(LEN), word[2][8] = {{0}};
	struct op answered = {0}, last = {0};
	fi_addr_t peer;

	fab_role = "second";
	memset(private, 0x5a, LEN);
	sh->private_at = (uintptr_t)private;
	fab_open(&f, (struct fab_options){0});
	sh->names[1] = f.name;
	__sync_fetch_and_add(&sh->ready, 1);
	wait_for(&sh->ready, 2, "the first");
	peer = fab_insert(&f, &sh->names[0]);
	POST(&f, &answered, fi_trecv(f.ep, word[0], 8, NULL, peer, 2, 0, &answered));
	POST(&f, &last, fi_trecv(f.ep, word[1], 8, NULL, peer, 3, 0, &last));
	say(peer, "here I a", 2);
	await(&f, &answered, "an answer");
	__sync_fetch_and_add(&sh->ready, 1);
	wait_for(&sh->over, 1, "the third");
	wait_for(&sh->done, 1, "the first");
	CHECK(last.state == PENDING, "lost its peer: %s", fi_strerror(last.err));
	say(peer, "the last", 1);
	await(&f, &last, "a message of the peer afterwards");
	for (int i = 0; i < LEN; i++)
		CHECK(private[i] == 0x5a, "its memory was written");
	fab_close(&f);
	exit(0);
}

static const char *text_of(const struct name *name, char *text, size_t room)
{
	const struct sockaddr_in *inet = (const void *)name->bytes;
	char host[INET_ADDRSTRLEN];

	CHECK(inet->sin_family == AF_INET, "a name of family %d", inet->sin_family);
	CHECK(inet_ntop(AF_INET, &inet->sin_addr, host, sizeof host), "inet_ntop");
	snprintf(text, room, "%s:%d", host, ntohs(inet->sin_port));
	return text;
}

/* Whether a socket of that user's listens at this name's port. */
static int listens(const struct name *name)
{
	const struct sockaddr_in *inet = (const void *)name->bytes;
	FILE *in = fopen("/proc/net/tcp", "r");
	char line[512];
	unsigned port, state, uid;
	int found = 0;

	CHECK(in, "/proc/net/tcp");
	while (fgets(line, sizeof line, in))
		if (sscanf(line, " %*d: %*x:%x %*x:%*x %x %*s %*s %*s %u", &port, &state, &uid) == 3 && state == 10 && uid == OWNER &&
		    port == ntohs(inet->sin_port))
			found = 1;
	fclose(in);
	return found;
}

static void third(int program, const char *mode)
{
	char user[16], victim[32], peer[32], numbers[4][24];
	const char *secret = getenv("FI_STRAIT_JOB_KEY");
	char *argv[] = {"intruder", user,	secret ? (char *)secret : "", victim,	  strcmp(mode, "own") ? peer : "own",
			numbers[0], numbers[1], numbers[2],		      numbers[3], NULL};

	fab_role = "third";
	become(NOBODY);
	if (!listens(&sh->names[0])) {
		puts("third: no port of the first one's to call");
		exit(REFUSED);
	}
	snprintf(user, sizeof user, "%d", OWNER);
	text_of(&sh->names[0], victim, sizeof victim);
	text_of(&sh->names[1], peer, sizeof peer);
	snprintf(numbers[0], sizeof *numbers, "%lu", sh->key);
	snprintf(numbers[1], sizeof *numbers, "%lu", sh->at);
	snprintf(numbers[2], sizeof *numbers, "%lu", sh->private_at);
	snprintf(numbers[3], sizeof *numbers, "%d", LEN);
	/* Where the file is may be nobody's business. */
	syscall(SYS_execveat, program, "", argv, environ, AT_EMPTY_PATH);
	fab_die(__LINE__, "execveat: %s", strerror(errno));
}

int main(int argc, char **argv)
{
	pid_t pids[3];
	int program, failed = 0, let_in = 0;

	CHECK(argc == 3 && (!strcmp(argv[2], "name") || !strcmp(argv[2], "own")), "neighbour PROGRAM name|own");
	if (getuid()) {
		puts("only root can do this");
		return 77;
	}
	program = open(argv[1], O_RDONLY);
	CHECK(program >= 0, "%s: %s", argv[1], strerror(errno));
	sh = shared_memory(sizeof *sh);
	for (int i = 0; i < 3; i++) {
		if (i == 2)
			wait_for(&sh->ready, 4, "the two to meet");
		fflush(NULL);
		pids[i] = fork();
		CHECK(pids[i] >= 0, "fork: %s", strerror(errno));
		if (pids[i])
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (i == 2)
			third(program, argv[2]);
		close(program);
		become(OWNER);
		/* Setting the user takes that back. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		(i ? second : first)();
	}
	for (int i = 2; i >= 0; i--) {
		int status;

		CHECK(waitpid(pids[i], &status, 0) == pids[i], "waitpid");
		if (i == 2) {
			let_in = WIFEXITED(status) && WEXITSTATUS(status) == LET_IN;
			failed |= !let_in && status != REFUSED;
			sh->over = 1;
		} else {
			failed |= status != 0;
		}
		if (status)
			fprintf(stderr, "process %d: status %x\n", i, status);
	}
	CHECK(!let_in, "another user was let in %s", strcmp(argv[2], "own") ? "under the name of a peer" : "under a name of its own");
	CHECK(!sh->forged, "what another user sent was taken for the peer's");
	CHECK(!failed, "a process failed");
	printf("neighbour %s ok\n", argv[2]);
	return 0;
}
