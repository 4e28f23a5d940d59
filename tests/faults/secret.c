/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Memory that the processor reads and writes and that process_vm_readv(2) cannot reach (memfd_secret(2)):
 * messages from and to it, and RMA with it on either side, go through the ring and arrive.  So do those
 * with other memory before and after.  One process, which talks to itself.  Exits 77 where the kernel has
 * no such memory.
 */
#include "fab.h"

#include <sys/syscall.h>

#ifndef SYS_memfd_secret
#define SYS_memfd_secret 447
#endif

enum { MOST = 3 << 20 };

static struct fab me;
static fi_addr_t self;
static struct op in, out;
static unsigned seed;

static void message(unsigned char *from, unsigned char *to, size_t len, const char *what)
{
	fill(from, len, ++seed);
	memset(to, 0, len);
	POST(&me, &in, fi_trecv(me.ep, to, len, NULL, self, 1, 0, &in));
	POST(&me, &out, fi_tsend(me.ep, from, len, NULL, self, 1, &out));
	await(&me, &in, what);
	await(&me, &out, what);
	CHECK(!in.err && !out.err, "%s, %zu bytes: %s, %s", what, len, fi_strerror(in.err), fi_strerror(out.err));
	CHECK(differs(to, len, seed) == len, "%s, %zu bytes: wrong at %zu", what, len, differs(to, len, seed));
}

/* A write to, and a read from registered memory. */
static void rma(unsigned char *here, unsigned char *there, size_t len, const char *what)
{
	struct fid_mr *mr;
	uint64_t at;

	OK(fi_mr_reg(me.domain, there, len, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 7, 0, &mr, NULL));
	at = me.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)there : 0;
	for (int get = 0; get < 2; get++) {
		unsigned char *from = get ? there : here, *to = get ? here : there;

		fill(from, len, ++seed);
		memset(to, 0, len);
		if (get)
			POST(&me, &out, fi_read(me.ep, here, len, NULL, self, at, fi_mr_key(mr), &out));
		else
			POST(&me, &out, fi_write(me.ep, here, len, NULL, self, at, fi_mr_key(mr), &out));
		await(&me, &out, what);
		CHECK(!out.err, "%s, %zu bytes, %s: %s", what, len, get ? "read" : "written", fi_strerror(out.err));
		/* A write is complete when its bytes are on their way, so what is behind it is waited for. */
		for (uint64_t end = now_ns() + 8000000000u; differs(to, len, seed) < len && now_ns() < end;)
			fab_poll(&me);
		CHECK(differs(to, len, seed) == len, "%s, %zu bytes, %s: wrong at %zu", what, len,
		      get ? "read" : "written", differs(to, len, seed));
	}
	OK(fi_close(&mr->fid));
}

int main(void)
{
	static unsigned char plain[2][MOST];
	const size_t lens[] = {100, 20000, 60000, 300000, MOST};
	unsigned char *secret[2];
	int fd = (int)syscall(SYS_memfd_secret, 0);

	if (fd < 0 || ftruncate(fd, 2 * MOST)) {
		printf("skipped: memfd_secret: %s\n", strerror(errno));
		return 77;
	}
	secret[0] = mmap(NULL, 2 * MOST, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (secret[0] == MAP_FAILED) {
		printf("skipped: memfd_secret: %s\n", strerror(errno));
		return 77;
	}
	secret[1] = secret[0] + MOST;
	fab_open(&me, (struct fab_options){.threading = FI_THREAD_DOMAIN});
	self = fab_insert(&me, &me.name);
	for (int round = 0; round < 3; round++)
		for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
			message(plain[0], plain[1], lens[i], "plain to plain");
			message(secret[0], plain[1], lens[i], "secret to plain");
			message(plain[0], secret[1], lens[i], "plain to secret");
			message(secret[0], secret[1], lens[i], "secret to secret");
			rma(plain[0], plain[1], lens[i], "plain and plain");
			rma(secret[0], plain[1], lens[i], "secret here");
			rma(plain[0], secret[1], lens[i], "secret there");
			rma(secret[0], secret[1], lens[i], "secret on both sides");
		}
	fab_close(&me);
	printf("secret ok\n");
	return 0;
}
