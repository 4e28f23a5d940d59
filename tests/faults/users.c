/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Other users, and containers without the permission to copy from process to process.
 *
 *   users other                   another uid cannot talk to an endpoint, nor get at its memory (as root)
 *   users unmapped-both|unmapped-one
 *                                 neither can it if both, or the other alone, are in a user namespace
 *                                 without a mapping, in which every user looks the same (as root)
 *   users same                    two processes of one ordinary user can
 *   users unmapped-same           so can they if each is in such a namespace of its own
 *   users seccomp|enosys|undumpable|pidns
 *                                 the same two, of which the kernel lets neither reach the other: all
 *                                 goes through the ring (pidns as root; the others become `nobody` first)
 *
 * With FI_LOG_LEVEL=warn each process logs once, and only where that is so, that it uses frames only:
 * that is the caller's to count.  Exits with 77 if this machine cannot do it.
 */
#include "fab.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>

enum { NOBODY = 65534, LEN = 3 << 20, KEY = 5 };

static struct shared {
	struct name names[2];
	pid_t pids[2];
	uint64_t key[2], at[2], secret_at;
	volatile int ready, met, stop;
} *sh;

static struct fab f;

static void become(uid_t uid)
{
	if (getuid())
		return;
	CHECK(!setgroups(0, NULL) && !setresgid(uid, uid, uid) && !setresuid(uid, uid, uid), "setuid: %s", strerror(errno));
	/* As a program has it that was started by that user. */
	prctl(PR_SET_DUMPABLE, 1);
}

static void become_nobody(void)
{
	become(NOBODY);
}

/* A user namespace without a mapping. */
static void unmap(void)
{
	if (unshare(CLONE_NEWUSER)) {
		printf("no user namespaces: %s\n", strerror(errno));
		exit(77);
	}
	CHECK(geteuid() == NOBODY, "uid %d", geteuid());
}

/* process_vm_readv(2) and its twin answer with this errno. */
static void forbid(int err)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)err),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {sizeof filter / sizeof *filter, filter};

	CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog), "seccomp: %s",
	      strerror(errno));
}

static void restrict_self(const char *mode)
{
	if (strcmp(mode, "pidns"))
		become_nobody();
	if (!strcmp(mode, "unmapped-same"))
		unmap();
	if (!strcmp(mode, "seccomp"))
		forbid(EPERM);
	if (!strcmp(mode, "enosys"))
		forbid(ENOSYS);
	if (!strcmp(mode, "undumpable"))
		prctl(PR_SET_DUMPABLE, 0);
}

static void meet(volatile int *count, int n)
{
	uint64_t start = now_ns();

	for (__sync_fetch_and_add(count, 1); *count < n;) {
		if (f.cq)
			fab_poll(&f);
		usleep(200);
		CHECK(now_ns() - start < 60000000000u, "waited for the other");
	}
}

/* Messages both ways, a write and a read, all large and small. */
static void pair(int me, const char *mode)
{
	unsigned char *mine = malloc(LEN), *room = malloc(LEN), *memory = malloc(LEN);
	static const size_t lens[] = {8, 5000, 100000, LEN};
	struct fid_mr *mr;
	fi_addr_t to;

	fab_role = me ? "second" : "first";
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	restrict_self(mode);
	CHECK(mine && room && memory, "memory");
	fab_open(&f, (struct fab_options){0});
	OK(fi_mr_reg(f.domain, memory, LEN, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, KEY, 0, &mr, NULL));
	sh->key[me] = fi_mr_key(mr);
	sh->at[me] = f.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)memory : 0;
	sh->names[me] = f.name;
	meet(&sh->ready, 2);
	to = fab_insert(&f, &sh->names[!me]);
	for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
		struct op in = {0}, out = {0}, rma = {0};
		size_t len = lens[i];

		POST(&f, &in, fi_trecv(f.ep, room, len, NULL, to, i, 0, &in));
		fill(mine, len, (unsigned)i + 1);
		POST(&f, &out, fi_tsend(f.ep, mine, len, NULL, to, i, &out));
		await(&f, &in, "a message");
		await(&f, &out, "a message of ours");
		CHECK(in.len == len && differs(room, len, (unsigned)i + 1) == len, "message of %zu", len);
		POST(&f, &rma, fi_write(f.ep, mine, len, NULL, to, sh->at[!me], sh->key[!me], &rma));
		await(&f, &rma, "a write");
		memset(room, 0, len);
		POST(&f, &rma, fi_read(f.ep, room, len, NULL, to, sh->at[!me], sh->key[!me], &rma));
		await(&f, &rma, "a read");
		CHECK(differs(room, len, (unsigned)i + 1) == len, "RMA of %zu", len);
	}
	meet(&sh->met, 2);
	OK(fi_close(&mr->fid));
	fab_close(&f);
	exit(0);
}

static void owner(const char *mode)
{
	unsigned char *memory = malloc(4096);
	struct fid_mr *mr;
	struct op self = {0}, got = {0};
	fi_addr_t to;
	uint64_t word = 1, in = 0;

	fab_role = "owner";
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!strcmp(mode, "unmapped-both")) {
		become(1001);
		unmap();
	} else if (!strcmp(mode, "unmapped-one")) {
		become_nobody();
	}
	fab_open(&f, (struct fab_options){0});
	OK(fi_mr_reg(f.domain, memory, 4096, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, KEY, 0, &mr, NULL));
	memset(memory, 0x5a, 4096);
	sh->key[0] = fi_mr_key(mr);
	sh->at[0] = f.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)memory : 0;
	sh->secret_at = (uintptr_t)memory;
	sh->names[0] = f.name;
	sh->pids[0] = getpid();
	/* A channel to ourselves, so that there is a segment to get at. */
	to = fab_insert(&f, &f.name);
	POST(&f, &got, fi_trecv(f.ep, &in, 8, NULL, FI_ADDR_UNSPEC, 1, 0, &got));
	POST(&f, &self, fi_tsend(f.ep, &word, 8, NULL, to, 1, &self));
	await(&f, &got, "a word to ourselves");
	sh->ready = 1;
	while (!sh->stop)
		fab_poll(&f);
	for (int i = 0; i < 4096; i++)
		CHECK(memory[i] == 0x5a, "another process wrote here");
	OK(fi_close(&mr->fid));
	fab_close(&f);
	exit(0);
}

/* The endpoint's socket takes connections; what it says to a stranger is nothing. */
static void knock(const struct name *name_of)
{
	const struct sockaddr_in *inet = (const void *)name_of->bytes;
	char line[512], port[16];
	FILE *in = fopen("/proc/net/unix", "r");
	int found = 0;

	CHECK(in, "/proc/net/unix");
	snprintf(port, sizeof port, ":%d", ntohs(inet->sin_port));
	while (fgets(line, sizeof line, in)) {
		char *at = strstr(line, "@strait/");
		struct sockaddr_un name = {.sun_family = AF_UNIX};
		struct timeval limit = {.tv_sec = 5};
		char answer[64];
		size_t len;
		int fd;
		ssize_t n;

		if (!at)
			continue;
		at[strcspn(at, "\n")] = 0;
		if (!strrchr(at, ':') || strcmp(strrchr(at, ':'), port))
			continue;
		len = strlen(at + 1);
		memcpy(name.sun_path + 1, at + 1, len);
		fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
		if (connect(fd, (struct sockaddr *)&name, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len))) {
			close(fd); /* the accepted end of one */
			continue;
		}
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
		(void)!send(fd, line, 72, MSG_NOSIGNAL);
		n = recv(fd, answer, sizeof answer, 0);
		CHECK(n <= 0, "a stranger was answered with %zd bytes", n);
		close(fd);
		found++;
	}
	fclose(in);
	CHECK(found, "no socket of an endpoint found");
}

static void stranger(const char *mode)
{
	char path[64], byte;
	struct iovec here = {&byte, 1}, there = {(void *)sh->secret_at, 1};
	struct op op = {0};
	uint64_t word = 1;
	fi_addr_t to;
	int pidfd;

	fab_role = "stranger";
	while (!sh->ready)
		usleep(100);
	if (strcmp(mode, "other")) {
		become(1002);
		unmap();
	} else {
		become_nobody();
	}
	fab_open(&f, (struct fab_options){0});
	to = fab_insert(&f, &sh->names[0]);
	for (int i = 0; i < 2; i++) {
		if (i)
			POST(&f, &op, fi_write(f.ep, &word, 8, NULL, to, sh->at[0], sh->key[0], &op));
		else
			POST(&f, &op, fi_tsend(f.ep, &word, 8, NULL, to, 1, &op));
		while (op.state == PENDING)
			fab_poll(&f);
		CHECK(op.state == FAILED && op.err == FI_EACCES, "talking to another user's endpoint: %s", fi_strerror(op.err));
	}
	knock(&sh->names[0]);
	for (int fd = 0; fd < 64; fd++) {
		snprintf(path, sizeof path, "/proc/%d/fd/%d", sh->pids[0], fd);
		CHECK(open(path, O_RDONLY | O_CLOEXEC) < 0, "%s opens", path);
	}
	CHECK(process_vm_readv(sh->pids[0], &here, 1, &there, 1, 0) < 0, "its memory can be read");
	pidfd = (int)syscall(SYS_pidfd_open, sh->pids[0], 0);
	for (int fd = 0; pidfd >= 0 && fd < 64; fd++)
		CHECK(syscall(SYS_pidfd_getfd, pidfd, fd, 0) < 0, "its descriptor %d can be had", fd);
	fab_close(&f);
	sh->stop = 1;
	exit(0);
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "same";
	int other = !strcmp(mode, "other") || !strcmp(mode, "unmapped-both") || !strcmp(mode, "unmapped-one");
	int pidns = !strcmp(mode, "pidns");
	pid_t pids[2];

	if ((other || pidns) && getuid()) {
		puts("only root can do this");
		return 77;
	}
	sh = shared_memory(sizeof *sh);
	for (int i = 0; i < 2; i++) {
		if (pidns && i && unshare(CLONE_NEWPID)) {
			printf("no pid namespaces: %s\n", strerror(errno));
			kill(pids[0], SIGKILL);
			return 77;
		}
		pids[i] = fork();
		CHECK(pids[i] >= 0, "fork: %s", strerror(errno));
		if (pids[i])
			continue;
		if (other)
			(i ? stranger : owner)(mode);
		pair(i, mode);
	}
	for (int i = 0; i < 2; i++) {
		int status;

		CHECK(waitpid(pids[i], &status, 0) == pids[i], "waitpid");
		if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
			kill(pids[!i], SIGKILL);
			return 77;
		}
		CHECK(!status, "process %d: status %x", i, status);
	}
	printf("users %s ok\n", mode);
	return 0;
}
