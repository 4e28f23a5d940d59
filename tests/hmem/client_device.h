/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The memory of client.c, and its client of libstrait.so. */
#include "fab.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

#include <strait.h>
#include <strait_hmem.h>

#define DEVICE_LEN ((size_t)16 << 20)
#define GUARD ((size_t)1 << 16)
#define MOST ((size_t)3 << 20)
#define REGS 1024

enum way { WAY_FD, WAY_COPY, WAY_CPU };

/* One registration, and how far its callbacks have come. */
struct reg {
	enum { NONE, ACQUIRED, PINNED, MAPPED } state;
	uint64_t addr;
	size_t len;
	uint64_t core;
};

static struct device {
	enum way way;
	int fd;
	unsigned char *at;    /* what the program has: out of the CPU's reach, as are the guards around it */
	unsigned char *alias; /* what the client has */
	pthread_mutex_t lock;
	struct reg regs[REGS];
	int acquired, released, pinned, copies;
	int refuse_acquire, refuse_pages;
	struct strait_client *client;
} dev = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void device_make(enum way way)
{
	unsigned char *room;

	dev.way = way;
	dev.fd = memfd_create("device", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	CHECK(dev.fd >= 0 && !ftruncate(dev.fd, DEVICE_LEN), "memfd: %s", strerror(errno));
	CHECK(!fcntl(dev.fd, F_ADD_SEALS, F_SEAL_SHRINK), "seal: %s", strerror(errno));
	room = mmap(NULL, DEVICE_LEN + 2 * GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(room != MAP_FAILED, "mmap: %s", strerror(errno));
	dev.at = mmap(room + GUARD, DEVICE_LEN, PROT_NONE, MAP_SHARED | MAP_FIXED, dev.fd, 0);
	dev.alias = mmap(NULL, DEVICE_LEN, PROT_READ | PROT_WRITE, MAP_SHARED, dev.fd, 0);
	CHECK(dev.at == room + GUARD && dev.alias != MAP_FAILED, "mmap: %s", strerror(errno));
}

static struct reg *step(void *context, int from, int to)
{
	struct reg *r = context;

	pthread_mutex_lock(&dev.lock);
	CHECK((int)r->state == from, "a callback out of order: %d, not %d", (int)r->state, from);
	r->state = to;
	pthread_mutex_unlock(&dev.lock);
	return r;
}

static int acquire(void *arg, uint64_t addr, size_t len, void **context)
{
	struct device *d = arg;
	size_t i;

	if (addr - (uintptr_t)d->at >= DEVICE_LEN)
		return 0;
	if (d->refuse_acquire)
		return d->refuse_acquire;
	CHECK(strait_invalidate(d->client, 1) == -EDEADLK || !d->client, "invalidate inside a callback");
	pthread_mutex_lock(&d->lock);
	for (i = 0; i < REGS && d->regs[i].state; i++)
		;
	CHECK(i < REGS, "too many registrations at once");
	d->regs[i] = (struct reg){ACQUIRED, addr, len, 0};
	d->acquired++;
	pthread_mutex_unlock(&d->lock);
	*context = &d->regs[i];
	return 1;
}

static int get_pages(void *context, uint64_t addr, size_t len, int write, struct strait_sg_table *sgt, uint64_t core)
{
	/* In three pieces, and only when there is room for 20: others have more. */
	struct reg *r = context;
	size_t off = addr - (uintptr_t)dev.at, third = len / 3;
	size_t lens[3] = {third, third, len - 2 * third};

	(void)write;
	CHECK(r->addr == addr && r->len == len && sgt->size == sizeof *sgt, "get_pages of something else");
	if (dev.refuse_pages)
		return dev.refuse_pages;
	if (off + len > DEVICE_LEN)
		return -EINVAL;
	if (sgt->room < 20) {
		sgt->count = 20;
		return -ENOSPC;
	}
	step(r, ACQUIRED, PINNED);
	r->core = core;
	dev.pinned++;
	sgt->count = third ? 3 : 1;
	for (uint32_t i = 0; i < sgt->count; i++) {
		size_t n = third ? lens[i] : len;
		struct strait_sg sg = {.len = n, .kind = STRAIT_SG_FD, .fd = dev.fd, .addr = off};
		if (dev.way == WAY_CPU)
			sg = (struct strait_sg){n, STRAIT_SG_CPU, -1, (uintptr_t)dev.alias + off};
		if (dev.way == WAY_COPY)
			sg = (struct strait_sg){n, STRAIT_SG_OPAQUE, -1, 0};
		sgt->sg[i] = sg;
		off += n;
	}
	return 0;
}

static int dma_map(void *context, const struct strait_importer *importer, struct strait_sg_table *sgt)
{
	(void)sgt;
	CHECK(importer->kind == STRAIT_IMPORTER_PROCESS, "another importer");
	step(context, PINNED, MAPPED);
	return 0;
}

static int dma_unmap(void *context, const struct strait_importer *importer, struct strait_sg_table *sgt)
{
	(void)importer;
	(void)sgt;
	step(context, MAPPED, PINNED);
	return 0;
}

static void put_pages(void *context, struct strait_sg_table *sgt)
{
	(void)sgt;
	step(context, PINNED, ACQUIRED);
}

static void release(void *context)
{
	step(context, ACQUIRED, NONE);
	dev.released++;
}

static int copy(void *context, uint64_t addr, void *host, size_t len, int to_host)
{
	struct reg *r = context;
	unsigned char *at = dev.alias + (addr - (uintptr_t)dev.at);

	CHECK(r->state == MAPPED && addr >= r->addr && addr + len <= r->addr + r->len, "a copy outside");
	dev.copies++;
	memcpy(to_host ? host : at, to_host ? at : host, len);
	return 0;
}

/* The library, as a plugin would load it: no other object sees its symbols. */
static int (*reg_client)(const struct strait_peer_memory_client *, struct strait_client **);
static int (*unreg_client)(struct strait_client *);
static int (*invalidate)(struct strait_client *, uint64_t);
static int (*query)(const void *, size_t, struct strait_memory *);
static const char *(*text)(int);
int strait_invalidate(struct strait_client *c, uint64_t core) { return invalidate(c, core); }

static void device_register(void)
{
	struct strait_peer_memory_client c = {
		.size = sizeof c, .name = "test device", .arg = &dev, .acquire = acquire,
		.get_pages = get_pages, .dma_map = dma_map, .dma_unmap = dma_unmap, .put_pages = put_pages,
		.release = release, .copy = dev.way == WAY_COPY ? copy : NULL};
	struct strait_memory m = {.size = sizeof m};
	void *lib = dlopen("libstrait.so.0", RTLD_NOW | RTLD_LOCAL);

	CHECK(lib, "%s", dlerror());
	*(void **)&reg_client = dlsym(lib, "strait_register_peer_memory_client");
	*(void **)&unreg_client = dlsym(lib, "strait_unregister_peer_memory_client");
	*(void **)&invalidate = dlsym(lib, "strait_invalidate");
	*(void **)&query = dlsym(lib, "strait_query_memory");
	*(void **)&text = dlsym(lib, "strait_strerror");
	CHECK(reg_client && unreg_client && invalidate && query && text, "a symbol is missing");
	/* What a careless program gets. */
	CHECK(reg_client(NULL, &dev.client) == -EINVAL && reg_client(&c, NULL) == -EINVAL, "NULL");
	c.size = 8;
	CHECK(reg_client(&c, &dev.client) == -EINVAL, "too small");
	c.size = sizeof c;
	c.release = NULL;
	CHECK(reg_client(&c, &dev.client) == -EINVAL, "no release");
	c.release = release;
	c.flags = 2;
	CHECK(reg_client(&c, &dev.client) == -ENOSYS, "a flag that there is not");
	c.flags = 0;
	CHECK(strlen(text(-ESTALE)) > 10 && strlen(text(-ENOMEM)) > 3, "strait_strerror");
	/* As a program that was compiled before there were flags. */
	c.size = offsetof(struct strait_peer_memory_client, flags);
	OK(reg_client(&c, &dev.client));
	OK(query(dev.at, DEVICE_LEN, &m));
	CHECK(m.kind == STRAIT_MEMORY_CLIENT, "its kind is %u", m.kind);
	CHECK((m.path == FI_STRAIT_PATH_PEER_MAP) == (dev.way == WAY_FD), "its path is %u: %s", m.path, m.why);
	CHECK(query(&m, sizeof m, &m) == 0 && m.kind == STRAIT_MEMORY_SYSTEM, "the stack");
}

/* All that is pinned is taken away: what a device does when it is reset. */
static int invalidate_all(void)
{
	int n = 0;

	for (size_t i = 0; i < REGS; i++)
		if (dev.regs[i].state == MAPPED) {
			OK(invalidate(dev.client, dev.regs[i].core));
			CHECK(dev.regs[i].state == NONE, "invalidated, and not given back");
			n++;
		}
	return n;
}
