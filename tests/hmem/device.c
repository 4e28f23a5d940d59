/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Device memory of ROCm's and Level Zero's runtimes under libfabric, between two processes, over
 * whatever library of that name the linker finds: in CI a stand-in.
 *
 *   device rocr|ze [most]       most: longest message (default 3 MiB)
 */
#include "fab.h"

#include <dlfcn.h>
#include <stdatomic.h>

#include <rdma/fi_domain.h>
#include <strait_hmem.h>

static void *lib;

static void *sym(const char *name)
{
	void *at = dlsym(lib, name);

	CHECK(at, "no %s", name);
	return at;
}

/* Calls that are never refused. */
#define RT(name, types, ...)                                          \
	do {                                                          \
		int (*rt_f) types = (int (*) types)sym(#name);        \
		int rt_code = rt_f(__VA_ARGS__);                      \
		CHECK(!rt_code, #name ": %#x", rt_code);              \
	} while (0)

static struct runtime {
	const char *name, *library;
	enum fi_hmem_iface iface;
	void (*start)(void);
	void *(*alloc)(size_t len);
	void *(*alloc_host)(size_t len);
	void (*release)(void *at);
	void (*copy)(void *to, const void *from, size_t len);
} *rt;

static int me;

static void hsa_start(void) { RT(hsa_init, (void)); }
static void *hsa_pool(uint64_t pool, size_t len)
{
	void *at;

	RT(hsa_amd_memory_pool_allocate, (uint64_t, size_t, uint32_t, void **), pool, len, 0, &at);
	return at;
}
/* Pools of the stand-in: 1 is the host's, 2 and 3 are the devices'. */
static void *hsa_alloc(size_t len) { return hsa_pool(2 + me, len); }
static void *hsa_alloc_host(size_t len) { return hsa_pool(1, len); }
static void hsa_release(void *at) { RT(hsa_amd_memory_pool_free, (void *), at); }
static void hsa_copy(void *to, const void *from, size_t len)
{
	RT(hsa_memory_copy, (void *, const void *, size_t), to, from, len);
}

static void *ze_ctx, *ze_list, *ze_devices[2];

static void ze_start(void)
{
	struct { uint32_t stype; void *next; uint32_t flags; } desc = {0xd, NULL, 0};
	struct { uint32_t stype; void *next; uint32_t ordinal, index, flags, mode, priority; } queue = {
		0xe, NULL, 0, 0, 0, 1, 0};
	uint32_t n = 1;
	void *driver;

	RT(zeInit, (uint32_t), 0);
	RT(zeDriverGet, (uint32_t *, void **), &n, &driver);
	RT(zeContextCreate, (void *, void *, void **), driver, &desc, &ze_ctx);
	n = 2;
	RT(zeDeviceGet, (void *, uint32_t *, void **), driver, &n, ze_devices);
	RT(zeCommandListCreateImmediate, (void *, void *, void *, void **), ze_ctx, ze_devices[n - 1], &queue, &ze_list);
}
static void *ze_alloc(size_t len)
{
	struct { uint32_t stype; void *next; uint32_t flags, ordinal; } desc = {0x15, NULL, 0, 0};
	void *at;

	RT(zeMemAllocDevice, (void *, void *, size_t, size_t, void *, void **), ze_ctx, &desc, len, 64, ze_devices[me], &at);
	return at;
}
static void *ze_alloc_host(size_t len)
{
	struct { uint32_t stype; void *next; uint32_t flags; } desc = {0x16, NULL, 0};
	void *at;

	RT(zeMemAllocHost, (void *, void *, size_t, size_t, void **), ze_ctx, &desc, len, 64, &at);
	return at;
}
static void ze_release(void *at) { RT(zeMemFree, (void *, void *), ze_ctx, at); }
static void ze_copy(void *to, const void *from, size_t len)
{
	RT(zeCommandListAppendMemoryCopy, (void *, void *, const void *, size_t, void *, uint32_t, void *), ze_list, to, from,
	   len, NULL, 0, NULL);
}

static struct runtime runtimes[] = {
	{"rocr", "libhsa-runtime64.so.1", FI_HMEM_ROCR, hsa_start, hsa_alloc, hsa_alloc_host, hsa_release, hsa_copy},
	{"ze", "libze_loader.so.1", FI_HMEM_ZE, ze_start, ze_alloc, ze_alloc_host, ze_release, ze_copy},
};

static struct shared {
	struct name names[2];
	_Atomic int step[2];
	uint64_t key, addr;
} *shared;
static struct fab fab;
static fi_addr_t peer;
static unsigned char *dev, *pinned, *host, *scratch;
static size_t most = (size_t)3 << 20;

#define SPAN (most + 4096)

static void meet(void)
{
	uint64_t begin = now_ns();
	int n = ++shared->step[me];

	while (shared->step[!me] < n) {
		fab_poll(&fab);
		sched_yield();
		CHECK(now_ns() - begin < 60000000000u, "the other one does not come");
	}
}

static void put(unsigned char *to, size_t len, unsigned seed)
{
	fill(scratch, len, seed);
	rt->copy(to, scratch, len);
}

static size_t wrong(const unsigned char *from, size_t len, unsigned seed)
{
	memset(scratch, 0x5a, len);
	rt->copy(scratch, from, len);
	return differs(scratch, len, seed);
}

static void message(unsigned char *from, unsigned char *to, size_t off, size_t len, unsigned seed)
{
	struct op op = {0};

	if (me == 0) {
		put(from + off, len, seed);
		POST(&fab, &op, fi_tsend(fab.ep, from + off, len, NULL, peer, seed, &op));
		await(&fab, &op, "send");
		return;
	}
	put(to + off, len + 8, seed + 1);
	POST(&fab, &op, fi_trecv(fab.ep, to + off + 3, len, NULL, peer, seed, 0, &op));
	await(&fab, &op, "receive");
	CHECK(op.len == len, "%zu bytes of %zu", op.len, len);
	CHECK(wrong(to + off + 3, len, seed) == len, "%zu bytes are wrong from %zu on", len, wrong(to + off + 3, len, seed));
	CHECK(wrong(to + off, 3, seed + 1) == 3, "written before");
}

static struct fid_mr *register_mr(unsigned char *at, size_t len, uint64_t key)
{
	struct iovec iov = {at, len};
	struct fi_mr_attr attr = {.mr_iov = &iov, .iov_count = 1, .access = FI_REMOTE_READ | FI_REMOTE_WRITE,
				  .requested_key = key, .iface = rt->iface};
	struct fid_mr *mr;

	OK(fi_mr_regattr(fab.domain, &attr, 0, &mr));
	return mr;
}

static void one_sided(void)
{
	struct fi_strait_ops_hmem *ops;
	struct fi_strait_path path = {.size = sizeof path};
	struct iovec iov = {host, 64};
	struct fi_mr_attr attr = {.mr_iov = &iov, .iov_count = 1, .access = FI_SEND, .iface = rt->iface, .requested_key = 5};
	struct fid_mr *mr = NULL;
	uint64_t one = 1, old = 0;
	struct op op = {0};

	CHECK(fi_mr_regattr(fab.domain, &attr, 0, &mr) == -FI_EINVAL, "host memory was registered as a device's");
	if (me == 1) {
		mr = register_mr(dev, most, 1);
		OK(fi_open_ops(&fab.domain->fid, FI_STRAIT_HMEM_OPS, 0, (void **)&ops, NULL));
		OK(ops->mr_query_path(mr, &path));
		printf("device: path %u %s\n", path.path, path.why);
		shared->key = fi_mr_key(mr);
		shared->addr = (uintptr_t)dev;
		memset(scratch, 0, 64);
		rt->copy(dev, scratch, 64);
	}
	meet();
	if (me == 0)
		for (size_t len = 1; len < most - 8; len = len * 9 + 1) {
			put(dev, len, 5);
			POST(&fab, &op, fi_write(fab.ep, dev, len, NULL, peer, shared->addr + 8, shared->key, &op));
			await(&fab, &op, "write");
			put(dev, len, 6);
			POST(&fab, &op, fi_read(fab.ep, dev, len, NULL, peer, shared->addr + 8, shared->key, &op));
			await(&fab, &op, "read");
			CHECK(wrong(dev, len, 5) == len, "read: %zu bytes", len);
			POST(&fab, &op, fi_read(fab.ep, host, len, NULL, peer, shared->addr + 8, shared->key, &op));
			await(&fab, &op, "read to the host");
			CHECK(differs(host, len, 5) == len, "read to the host: %zu bytes", len);
		}
	for (int i = 0; i < 3 && me == 0; i++) {
		POST(&fab, &op, fi_fetch_atomic(fab.ep, &one, 1, NULL, &old, NULL, peer, shared->addr, shared->key, FI_UINT64,
						FI_SUM, &op));
		await(&fab, &op, "atomic");
		CHECK(old == (uint64_t)i, "an atomic fetched %lu", (unsigned long)old);
	}
	meet();
	if (mr)
		OK(fi_close(&mr->fid));
}

static void run(void)
{
	static const size_t lens[] = {1, 100, 4096, 16385, 70000, 1 << 20, (size_t)3 << 20};
	struct fab_options o = {.threading = FI_THREAD_SAFE, .progress = FI_PROGRESS_MANUAL, .caps = FAB_CAPS | FI_HMEM};
	unsigned char *kinds[3];
	unsigned seed = 1;

	lib = dlopen(rt->library, RTLD_NOW | RTLD_LOCAL);
	CHECK(lib, "%s", dlerror());
	rt->start();
	fab_open(&fab, o);
	CHECK(fab.info->caps & FI_HMEM, "FI_HMEM was not granted");
	shared->names[me] = fab.name;
	atomic_fetch_add(&shared->step[me], 1);
	while (shared->step[!me] < 1)
		sched_yield();
	peer = fab_insert(&fab, &shared->names[!me]);
	scratch = malloc(SPAN);
	kinds[0] = dev = rt->alloc(SPAN);
	kinds[1] = pinned = rt->alloc_host(SPAN);
	kinds[2] = host = malloc(SPAN);
	for (size_t i = 0; i < sizeof lens / sizeof *lens; i++)
		for (int from = 0; from < 3 && lens[i] <= most; from++)
			for (int to = 0; to < 3; to++)
				message(kinds[from], kinds[to], i * 7 + 1, lens[i], seed += 2);
	meet();
	one_sided();
	/* An address that is freed and comes again is not taken for what was there. */
	for (int i = 0; i < 20; i++) {
		rt->release(dev);
		dev = rt->alloc(SPAN);
		message(dev, dev, 0, 50000, seed += 2);
	}
	meet();
	if (me == 0)
		printf("device: %s, %u messages, ok\n", rt->name, seed / 2);
	fflush(stdout);
	_exit(0);
}

int main(int argc, char **argv)
{
	int status, bad = 0;
	pid_t pids[2];

	for (size_t i = 0; i < 2; i++)
		if (argc > 1 && !strcmp(argv[1], runtimes[i].name))
			rt = &runtimes[i];
	if (!rt) {
		fprintf(stderr, "usage: device rocr|ze [most]\n");
		return 2;
	}
	if (argc > 2)
		most = strtoul(argv[2], NULL, 0);
	shared = shared_memory(sizeof *shared);
	for (me = 0; me < 2; me++)
		if (!(pids[me] = fork())) {
			fab_role = me ? "one" : "zero";
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			run();
		}
	while (wait(&status) > 0)
		if (status && !bad++)
			for (me = 0; me < 2; me++)
				kill(pids[me], SIGTERM);
	return bad != 0;
}
