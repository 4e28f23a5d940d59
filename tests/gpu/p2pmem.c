/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Memory of GPUs, published and given by the orchestrator (ci/gpu/storage):  p2pmem FILE
 *
 * Two processes, each with a GPU (or both with the one there is), publish memory of it and have buffers of it allocated; FI_PROVIDER=strait carries
 * messages, RMA and atomics between these. Then the first one writes its buffer to FILE, and the second reads it, on streams. Contents are
 * checked on the GPU's side.
 */
#include "driver.h"
#include "fab.h"

#include <stdatomic.h>

#include <strait_p2pmem.h>
#include <strait_storage.h>

#define MOST ((size_t)16 << 20)
#define MUST(call)                                                                                      \
	do {                                                                                            \
		long must_ret = (call);                                                                 \
		CHECK(must_ret >= 0, "%s: %ld: %s", #call, must_ret, strait_p2pmem_error());            \
	} while (0)

static struct shared {
	struct name names[2];
	_Atomic int step[2];
	uint64_t key, addr;
} *shared;
static int me;
static struct fab fab;
static fi_addr_t other;
static unsigned char *device, *host;
static struct strait_p2pmem *p2pmem;
static struct strait_p2pmem_buffer *buffer;
static uint64_t memory;

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
	fill(host, len, seed);
	CU(cuMemcpyHtoD_v2, (uint64_t, const void *, size_t), (uintptr_t)to, host, len);
}

static void is(const unsigned char *from, size_t len, unsigned seed, const char *what)
{
	memset(host, 0, len);
	CU(cuMemcpyDtoH_v2, (void *, uint64_t, size_t), host, (uintptr_t)from, len);
	CHECK(differs(host, len, seed) == len, "%s of %zu bytes: wrong at %zu", what, len, differs(host, len, seed));
}

/* Publishes memory of the GPU, and has a buffer of it allocated by rule. */
static void allocate(int gpu)
{
	struct strait_p2pmem_options options = { .size = sizeof options, .rules = "pin publisher=kind:cuda" };
	struct strait_p2pmem_request request = { .size = sizeof request, .len = 2 * MOST, .segments = 1,
						 .flags = STRAIT_P2PMEM_NO_HOST };
	struct strait_p2pmem_info info = { .size = sizeof info };
	struct strait_p2pmem_segment segment;
	char name[16], function[32];

	snprintf(name, sizeof name, "gpu%d", me);
	cuda_function(gpu, function);
	CU(cuMemAlloc_v2, (uint64_t *, size_t), &memory, 4 * MOST);
	MUST(strait_p2pmem_open(&options, &p2pmem));
	MUST(strait_p2pmem_publish_memory(p2pmem, name, function[0] ? function : NULL, (void *)(uintptr_t)memory, 4 * MOST));
	MUST(strait_p2pmem_alloc(p2pmem, &request, &buffer));
	MUST(strait_p2pmem_query(buffer, &info));
	CHECK(!strcmp(info.publisher, name) && !strcmp(info.kind, "cuda"), "%s, %s", info.publisher, info.kind);
	MUST(strait_p2pmem_segment_at(buffer, 0, &segment));
	device = segment.addr;
	CHECK((uintptr_t)device >= memory && (uintptr_t)device + 2 * MOST <= memory + 4 * MOST, "%p", (void *)device);
	printf("published and allocated: %s (%s), PCI function %s\n", info.publisher, info.kind, function[0] ? function : "not in sysfs");
}

static void messages(void)
{
	unsigned seed = 1;

	for (size_t len = 1; len <= MOST; len = len * 5 + 3, seed++) {
		struct op op = {0};

		/* There and back. */
		for (int from = 0; from < 2; from++, seed++) {
			if (me == from) {
				put(device + 3, len, seed);
				POST(&fab, &op, fi_tsend(fab.ep, device + 3, len, NULL, other, seed, &op));
				await(&fab, &op, "send");
			} else {
				POST(&fab, &op, fi_trecv(fab.ep, device + 5, len, NULL, other, seed, 0, &op));
				await(&fab, &op, "receive");
				is(device + 5, len, seed, "a message");
			}
			memset(&op, 0, sizeof op);
		}
	}
	meet();
}

static void one_sided(int target)
{
	struct fid_mr *mr = NULL;
	uint64_t one = 1, old = 0;

	if (me == target) {
		OK(fi_mr_reg(fab.domain, device, MOST, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &mr, NULL));
		shared->key = fi_mr_key(mr);
		shared->addr = (uintptr_t)device;
		CU(cuMemsetD8_v2, (uint64_t, unsigned char, size_t), (uintptr_t)device, 0, MOST);
		CU(cuCtxSynchronize, (void));
	}
	meet();
	for (size_t len = 1; me != target && len < MOST; len = len * 13 + 1) {
		struct op put_op = {0}, get_op = {0};

		put(device, len, 77);
		POST(&fab, &put_op, fi_write(fab.ep, device, len, NULL, other, shared->addr + 8, shared->key, &put_op));
		await(&fab, &put_op, "write");
		POST(&fab, &get_op, fi_read(fab.ep, device + MOST, len, NULL, other, shared->addr + 8, shared->key, &get_op));
		await(&fab, &get_op, "read");
		is(device + MOST, len, 77, "what was written and read back");
	}
	for (uint64_t i = 0; me != target && i < 5; i++) {
		struct op op = {0};

		POST(&fab, &op, fi_fetch_atomic(fab.ep, &one, 1, NULL, &old, NULL, other, shared->addr, shared->key, FI_UINT64,
						FI_SUM, &op));
		await(&fab, &op, "atomic");
		CHECK(old == i, "an atomic fetched %lu, not %lu", (unsigned long)old, (unsigned long)i);
	}
	meet();
	if (mr)
		OK(fi_close(&mr->fid));
	meet();
}

/* One process writes the file, the other one reads it; each on a stream behind a copy. */
static void files(const char *path, uint32_t flags, size_t len, uint64_t offset)
{
	struct strait_storage_op op = { .addr = device, .len = len, .offset = offset, .write = me == 0 };
	struct strait_storage_info info = { .size = sizeof info };
	struct strait_storage_request *request;
	struct strait_storage *file;
	void *stream = NULL;

	if (me == 1)
		meet();
	CU(cuStreamCreate, (void **, unsigned), &stream, 1);
	MUST(strait_storage_open(path, STRAIT_STORAGE_WRITE | STRAIT_STORAGE_CREATE | flags, &file));
	if (me == 0)
		put(device + MOST, MOST, 99);
	else
		CU(cuMemsetD8_v2, (uint64_t, unsigned char, size_t), (uintptr_t)device, 0, 2 * MOST);
	CU(cuCtxSynchronize, (void));
	if (me == 0)
		CU(cuMemcpyDtoDAsync_v2, (uint64_t, uint64_t, size_t, void *), (uintptr_t)device, (uintptr_t)device + MOST, MOST, stream);
	MUST(strait_storage_submit_on_stream(file, &op, 1, stream, &request));
	if (me == 1)
		CU(cuMemcpyDtoDAsync_v2, (uint64_t, uint64_t, size_t, void *), (uintptr_t)device + MOST, (uintptr_t)device, MOST, stream);
	MUST(strait_storage_wait(request, 60000));
	CHECK(op.result == (int64_t)op.len, "%lld: %s", (long long)op.result, strait_storage_error());
	MUST(strait_storage_query(file, &info));
	printf("%s on a stream: path %u; %s\n", me ? "read" : "written", info.path, info.why);
	CU(cuStreamSynchronize, (void *), stream);
	if (me == 1)
		is(device + MOST, op.len, 99, "what was read and copied behind");
	MUST(strait_storage_release(request));
	MUST(strait_storage_close(file));
	CU(cuStreamDestroy_v2, (void *), stream);
	if (me == 0)
		meet();
	meet();
}

static void run(const char *path)
{
	struct fab_options o = {.threading = FI_THREAD_SAFE, .progress = FI_PROGRESS_MANUAL};

	setvbuf(stdout, NULL, _IOLBF, 0);
	host = malloc(2 * MOST);
	allocate(cuda_begin(me));
	fab_open(&fab, o);
	shared->names[me] = fab.name;
	atomic_fetch_add(&shared->step[me], 1);
	while (shared->step[!me] < 1)
		sched_yield();
	other = fab_insert(&fab, &shared->names[!me]);
	messages();
	one_sided(0);
	one_sided(1);
	files(path, STRAIT_STORAGE_NO_CUFILE, MOST - 77, 33);
	files(path, 0, MOST - 4096, 8192);
	fab_close(&fab);
	MUST(strait_p2pmem_free(buffer));
	MUST(strait_p2pmem_close(p2pmem));
	CU(cuMemFree_v2, (uint64_t), memory);
	printf("process %d: ok\n", me);
	exit(0);
}

int main(int argc, char **argv)
{
	int status, worst = 0;
	pid_t pids[2];

	if (argc != 2) {
		fprintf(stderr, "usage: p2pmem FILE\n");
		return 2;
	}
	shared = shared_memory(sizeof *shared);
	for (me = 0; me < 2; me++)
		if (!(pids[me] = fork())) {
			fab_role = me ? "one" : "zero";
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			run(argv[1]);
		}
	while (wait(&status) > 0)
		if (status && !worst) {
			worst = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
			for (me = 0; me < 2; me++)
				kill(pids[me], SIGTERM);
		}
	return worst;
}
