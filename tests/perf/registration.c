/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * What it costs to register memory for peers: fi_mr_regattr and fi_close of a provider, or, compiled with -DUCX,
 * ucp_mem_map and ucp_mem_unmap of the transports in UCX_TLS.
 *
 *   registration PROVIDER KIND BYTES [ROUNDS]        PROVIDER is a name for the output alone with -DUCX
 *     KIND   host     anonymous memory that has been written
 *            client   memory of a client of libstrait.so.0 that is in a memfd
 *            p2pmem   memory that libstrait.so.0 gives from a published memfd
 *            cuda, vmm, pool
 *                     cuMemAlloc; cuMemCreate and cuMemMap; cuMemAllocFromPoolAsync, of libcuda.so.1
 *
 * Prints "KIND BYTES PROVIDER FIRST AGAIN CLOSE", nanoseconds: of memory that was never registered, of the same after that was
 * closed, and to close that. Each is the median of ROUNDS (15) rounds, a round the mean of 64 buffers (16 of a device's). Ends with 77
 * if the kind is not here, or the provider refuses it.
 *
 * tests/perf/registration.sh builds both and prints the table of docs/measurements/registration.md. On a host with a GPU, its rows:
 *
 *   KINDS='cuda vmm pool' tests/perf/registration.sh
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <strait.h>
#include <strait_p2pmem.h>

#include "../gpu/driver.h"

enum { MOST = 64, OF_A_DEVICE = 16, ROUNDS = 15, MOST_ROUNDS = 1000 };

typedef unsigned long long dptr;

static const char *kind;
static size_t bytes, room;
static int count = MOST;
static void *at[MOST];

static void refuse(const char *what, const char *why)
{
	fprintf(stderr, "registration: %s: %s\n", what, why);
	exit(77);
}

static void must(int good, const char *what)
{
	if (!good) {
		perror(what);
		exit(1);
	}
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

/* ---- libstrait.so.0, as a program finds it that does not link with it ---- */

static void *strait_symbol(const char *name)
{
	static void *library;
	void *found;

	if (!library && !(library = dlopen("libstrait.so.0", RTLD_NOW)))
		refuse("libstrait.so.0", dlerror());
	if (!(found = dlsym(library, name)))
		refuse(name, "not in libstrait.so.0");
	return found;
}

#define STRAIT(name) ((__typeof__(&name))strait_symbol(#name))

/* A client, whose memory no CPU reaches by its address. */
static struct {
	int fd;
	char *at;
	size_t len;
	uint64_t names[4 * MOST];
	int named;
	struct strait_client *client;
} device;

static int acquire(void *arg, uint64_t addr, size_t len, void **context)
{
	(void)arg;
	(void)len;
	if (addr - (uintptr_t)device.at >= device.len)
		return 0;
	*context = (void *)(uintptr_t)(addr - (uintptr_t)device.at);
	return 1;
}

static int get_pages(void *context, uint64_t addr, size_t len, int write, struct strait_sg_table *sgt, uint64_t core)
{
	(void)addr;
	(void)write;
	if (device.named < (int)(sizeof device.names / sizeof *device.names))
		device.names[device.named++] = core;
	sgt->count = 1;
	sgt->sg[0] = (struct strait_sg){ .len = len, .kind = STRAIT_SG_FD, .fd = device.fd, .addr = (uintptr_t)context };
	return 0;
}

static int dma_map(void *context, const struct strait_importer *importer, struct strait_sg_table *sgt)
{
	(void)context;
	(void)importer;
	(void)sgt;
	return 0;
}

static int dma_unmap(void *context, const struct strait_importer *importer, struct strait_sg_table *sgt)
{
	return dma_map(context, importer, sgt);
}

static void put_pages(void *context, struct strait_sg_table *sgt)
{
	(void)context;
	(void)sgt;
}

static void release(void *context)
{
	(void)context;
}

static int sealed_file(size_t len)
{
	int fd = memfd_create("registration", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	must(fd >= 0 && !ftruncate(fd, len) && !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), "memfd");
	return fd;
}

static void client_begin(void)
{
	struct strait_peer_memory_client c = {
		.size = sizeof c, .name = "registration", .acquire = acquire, .get_pages = get_pages,
		.dma_map = dma_map, .dma_unmap = dma_unmap, .put_pages = put_pages, .release = release };

	device.len = room * MOST;
	device.fd = sealed_file(device.len);
	device.at = mmap(NULL, device.len, PROT_NONE, MAP_SHARED, device.fd, 0);
	must(device.at != MAP_FAILED, "mmap");
	must(!STRAIT(strait_register_peer_memory_client)(&c, &device.client), "strait_register_peer_memory_client");
}

/* What a client does when its memory is freed. */
static void client_free(void)
{
	for (int i = 0; i < device.named; i++)
		STRAIT(strait_invalidate)(device.client, device.names[i]);
	device.named = 0;
}

static struct strait_p2pmem *p2pmem;
static struct strait_p2pmem_buffer *buffers[MOST];

static void p2pmem_begin(void)
{
	struct strait_p2pmem_options options = { .size = sizeof options };
	int fd = sealed_file(room * MOST);

	must(!STRAIT(strait_p2pmem_open)(&options, &p2pmem), "strait_p2pmem_open");
	must(!STRAIT(strait_p2pmem_publish_file)(p2pmem, "file:registration", NULL, fd, 0, room * MOST), STRAIT(strait_p2pmem_error)());
	close(fd);
}

static void *p2pmem_get(int n)
{
	struct strait_p2pmem_request request = { .size = sizeof request, .len = room, .flags = STRAIT_P2PMEM_NO_HOST };
	struct strait_p2pmem_segment segment;

	must(!STRAIT(strait_p2pmem_alloc)(p2pmem, &request, &buffers[n]), STRAIT(strait_p2pmem_error)());
	must(!STRAIT(strait_p2pmem_segment_at)(buffers[n], 0, &segment), STRAIT(strait_p2pmem_error)());
	return segment.addr;
}

/* ---- a device's memory ---- */

enum { PIECE = 2 << 20 };
static int gpu;

static void *cuda_get(void)
{
	dptr d = 0;

	CU(cuMemAlloc_v2, (dptr *, size_t), &d, bytes);
	return (void *)(uintptr_t)d;
}

static void *pool_get(void)
{
	static void *pool;
	dptr d = 0;

	if (!pool) {
		struct {
			int type, handles, where, id;
			void *security;
			size_t most;
			unsigned char reserved[64];
		} props = { 1, 1, 1, gpu, NULL, 0, { 0 } };
		CU(cuMemPoolCreate, (void **, void *), &pool, &props);
	}
	CU(cuMemAllocFromPoolAsync, (dptr *, size_t, void *, void *), &d, bytes, pool, NULL);
	CU(cuCtxSynchronize, (void));
	return (void *)(uintptr_t)d;
}

static size_t pieces(void)
{
	return (bytes + PIECE - 1) / PIECE * PIECE;
}

static void *vmm_get(void)
{
	struct {
		int type, handles, where, id;
		void *meta;
		unsigned char flags[8];
	} prop = { 1, 1, 1, gpu, NULL, { 0 } };
	struct {
		int where, id, flags;
	} access = { 1, gpu, 3 };
	unsigned long long handle;
	dptr d = 0;

	CU(cuMemAddressReserve, (dptr *, size_t, size_t, dptr, unsigned long long), &d, pieces(), 0, 0, 0);
	for (size_t off = 0; off < pieces(); off += PIECE) {
		CU(cuMemCreate, (unsigned long long *, size_t, void *, unsigned long long), &handle, PIECE, &prop, 0);
		CU(cuMemMap, (dptr, size_t, size_t, unsigned long long, unsigned long long), d + off, PIECE, 0, handle, 0);
		CU(cuMemRelease, (unsigned long long), handle);
	}
	CU(cuMemSetAccess, (dptr, size_t, void *, size_t), d, pieces(), &access, 1);
	return (void *)(uintptr_t)d;
}

static void vmm_free(dptr d)
{
	for (size_t off = 0; off < pieces(); off += PIECE)
		CU(cuMemUnmap, (dptr, size_t), d + off, PIECE);
	CU(cuMemAddressFree, (dptr, size_t), d, pieces());
}

/* ---- all kinds ---- */

static int is(const char *name)
{
	return !strcmp(kind, name);
}

static int is_device(void)
{
	return is("cuda") || is("vmm") || is("pool");
}

static void begin(void)
{
	room = (bytes + 4095) / 4096 * 4096;
	if (is_device()) {
		gpu = cuda_begin(0);
		count = OF_A_DEVICE;
	} else if (is("client")) {
		client_begin();
	} else if (is("p2pmem")) {
		p2pmem_begin();
	} else if (!is("host")) {
		refuse(kind, "no such kind");
	}
}

static void get_all(void)
{
	for (int n = 0; n < count; n++) {
		if (is("host")) {
			at[n] = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			must(at[n] != MAP_FAILED, "mmap");
			memset(at[n], 1, room);
		} else {
			at[n] = is("client") ? device.at + n * room : is("p2pmem") ? p2pmem_get(n)
				: is("cuda") ? cuda_get() : is("pool") ? pool_get() : vmm_get();
		}
	}
}

static void free_all(void)
{
	if (is("client"))
		client_free();
	for (int n = 0; n < count; n++) {
		dptr d = (uintptr_t)at[n];

		if (is("host"))
			munmap(at[n], room);
		else if (is("p2pmem"))
			STRAIT(strait_p2pmem_free)(buffers[n]);
		else if (is("cuda"))
			CU(cuMemFree_v2, (dptr), d);
		else if (is("pool"))
			CU(cuMemFreeAsync, (dptr, void *), d, NULL);
		else if (is("vmm"))
			vmm_free(d);
	}
}

/* ---- what registers ---- */

#ifdef UCX
#include <ucp/api/ucp.h>

static ucp_context_h context;
static ucp_mem_h handles[MOST];

static void door_open(const char *provider)
{
	ucp_params_t params = { .field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_RMA | UCP_FEATURE_TAG };
	ucp_worker_params_t worker_params = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE };
	ucp_context_attr_t attr = { .field_mask = UCP_ATTR_FIELD_MEMORY_TYPES };
	ucp_worker_h worker;
	ucs_status_t status = ucp_init(&params, NULL, &context);

	if (status == UCS_OK)
		status = ucp_worker_create(context, &worker_params, &worker);
	if (status == UCS_OK)
		status = ucp_context_query(context, &attr);
	if (status != UCS_OK)
		refuse(provider, ucs_status_string(status));
	/* It would register the address as the host's. */
	if (is_device() && !(attr.memory_types & (1 << UCS_MEMORY_TYPE_CUDA)))
		refuse(provider, "these transports do not know CUDA's memory");
}

static void open_one(int n)
{
	ucp_mem_map_params_t params = {
		.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH, .address = at[n], .length = bytes };
	ucs_status_t status = ucp_mem_map(context, &params, &handles[n]);

	if (status != UCS_OK)
		refuse("ucp_mem_map", ucs_status_string(status));
}

static void close_one(int n)
{
	ucs_status_t status = ucp_mem_unmap(context, handles[n]);

	if (status != UCS_OK)
		refuse("ucp_mem_unmap", ucs_status_string(status));
}
#else
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_errno.h>

static struct fid_domain *domain;
static struct fid_mr *handles[MOST];

static void check(int rc, const char *what)
{
	if (rc)
		refuse(what, fi_strerror(-rc));
}

static void door_open(const char *provider)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fid_fabric *fabric;

	hints->caps = FI_MSG | FI_RMA | (is_device() ? FI_HMEM : 0);
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | (is_device() ? FI_MR_HMEM : 0);
	hints->fabric_attr->prov_name = strdup(provider);
	check(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info), "fi_getinfo");
	check(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
	check(fi_domain(fabric, info, &domain, NULL), "fi_domain");
}

static void open_one(int n)
{
	static uint64_t key;
	struct iovec iov = { at[n], bytes };
	struct fi_mr_attr attr = {
		.mr_iov = &iov, .iov_count = 1, .requested_key = ++key,
		.access = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE,
		.iface = is_device() ? FI_HMEM_CUDA : FI_HMEM_SYSTEM };

	check(fi_mr_regattr(domain, &attr, 0, &handles[n]), "fi_mr_regattr");
}

static void close_one(int n)
{
	check(fi_close(&handles[n]->fid), "fi_close");
}
#endif

/* Nanoseconds for one, of all buffers in turn. */
static double each(void (*body)(int))
{
	double start = now();

	for (int n = 0; n < count; n++)
		body(n);
	return (now() - start) / count;
}

static int above(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	static double first[MOST_ROUNDS], again[MOST_ROUNDS], closing[MOST_ROUNDS];
	int rounds = argc > 4 ? atoi(argv[4]) : ROUNDS;

	if (argc < 4 || argc > 5 || rounds < 1 || rounds > MOST_ROUNDS || !(bytes = strtoull(argv[3], NULL, 0))) {
		fprintf(stderr, "usage: %s PROVIDER host|client|p2pmem|cuda|vmm|pool BYTES [ROUNDS]\n", argv[0]);
		return 2;
	}
	kind = argv[2];
	begin();
	door_open(argv[1]);
	/* What a process does once. */
	get_all();
	each(open_one);
	each(close_one);
	free_all();
	for (int i = 0; i < rounds; i++) {
		get_all();
		first[i] = each(open_one);
		each(close_one);
		again[i] = each(open_one);
		closing[i] = each(close_one);
		free_all();
	}
	qsort(first, rounds, sizeof *first, above);
	qsort(again, rounds, sizeof *again, above);
	qsort(closing, rounds, sizeof *closing, above);
	printf("%s %zu %s %.0f %.0f %.0f\n", kind, bytes, argv[1], first[rounds / 2], again[rounds / 2], closing[rounds / 2]);
	return 0;
}
