/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A client of libstrait.so for given.c: a memfd that the program has mapped, which an adapter gets as a dma-buf. */
#include <pthread.h>
#include <strait.h>

enum { MOST_REGS = 256 };

static struct {
	pthread_mutex_t lock;
	unsigned char *at;
	int fd;
	struct reg {
		enum { NONE, ACQUIRED, PINNED, MAPPED } state;
		uint64_t addr, core;
		int is_device;
	} regs[MOST_REGS];
	int device_maps, device_unmaps, taken_back;
	struct strait_client *client;
	int (*invalidate)(struct strait_client *, uint64_t);
} own = { .lock = PTHREAD_MUTEX_INITIALIZER };

static struct reg *own_step(void *context, int from, int to)
{
	struct reg *r = context;

	pthread_mutex_lock(&own.lock);
	MUST((int)r->state == from, "a callback out of order: %d, not %d", (int)r->state, from);
	r->state = to;
	pthread_mutex_unlock(&own.lock);
	return r;
}

static int own_acquire(void *arg, uint64_t addr, size_t len, void **context)
{
	int i;

	(void)arg;
	(void)len;
	if (addr - (uintptr_t)own.at >= LEN)
		return 0;
	pthread_mutex_lock(&own.lock);
	if (own.taken_back) {
		pthread_mutex_unlock(&own.lock);
		return -EAGAIN;
	}
	for (i = 0; i < MOST_REGS && own.regs[i].state; i++)
		;
	MUST(i < MOST_REGS, "too many registrations at once");
	own.regs[i] = (struct reg){ .state = ACQUIRED, .addr = addr };
	pthread_mutex_unlock(&own.lock);
	*context = &own.regs[i];
	return 1;
}

static int own_get_pages(void *context, uint64_t addr, size_t len, int write, struct strait_sg_table *sgt, uint64_t core)
{
	(void)write;
	if (addr - (uintptr_t)own.at + len > LEN)
		return -EINVAL;
	own_step(context, ACQUIRED, PINNED)->core = core;
	sgt->sg[0] = (struct strait_sg){ .len = len, .kind = STRAIT_SG_CPU, .fd = -1, .addr = addr };
	sgt->count = 1;
	return 0;
}

static int own_dma_map(void *context, const struct strait_importer *importer, struct strait_sg_table *sgt)
{
	struct reg *r = own_step(context, PINNED, MAPPED);

	if (importer->kind != STRAIT_IMPORTER_DEVICE)
		return 0;
	r->is_device = 1;
	own.device_maps++;
	sgt->sg[0].kind = STRAIT_SG_FD;
	sgt->sg[0].fd = own.fd;
	sgt->sg[0].addr = r->addr - (uintptr_t)own.at;
	return 0;
}

static int own_dma_unmap(void *context, const struct strait_importer *importer, struct strait_sg_table *sgt)
{
	(void)sgt;
	own.device_unmaps += importer->kind == STRAIT_IMPORTER_DEVICE;
	own_step(context, MAPPED, PINNED);
	return 0;
}

static void own_put_pages(void *context, struct strait_sg_table *sgt)
{
	(void)sgt;
	own_step(context, PINNED, ACQUIRED);
}

static void own_release(void *context)
{
	own_step(context, ACQUIRED, NONE);
}

/* Memory of LEN bytes is the client's from now on. */
static void own_register(unsigned char *at, int fd)
{
	int (*reg)(const struct strait_peer_memory_client *, struct strait_client **);
	struct strait_peer_memory_client c = { .size = sizeof c, .name = "given", .acquire = own_acquire, .get_pages = own_get_pages,
					       .dma_map = own_dma_map, .dma_unmap = own_dma_unmap, .put_pages = own_put_pages,
					       .release = own_release, .flags = STRAIT_CLIENT_DEVICES };
	void *lib = dlopen("libstrait.so.0", RTLD_NOW | RTLD_LOCAL);

	MUST(lib, "%s", dlerror());
	own.at = at;
	own.fd = fd;
	*(void **)&reg = dlsym(lib, "strait_register_peer_memory_client");
	*(void **)&own.invalidate = dlsym(lib, "strait_invalidate");
	MUST(reg && own.invalidate, "a symbol is missing");
	OK(reg(&c, &own.client));
}

/* The client takes all of it back, and none is acquired until the last registration of it has been. */
static void own_take_back(void)
{
	int maps = own.device_maps - own.device_unmaps;

	MUST(maps > 0, "no adapter has the memory");
	pthread_mutex_lock(&own.lock);
	own.taken_back = 1;
	for (int i = 0; i < MOST_REGS; i++)
		if (own.regs[i].state == MAPPED) {
			uint64_t core = own.regs[i].core;

			/* Its callbacks take the lock. */
			pthread_mutex_unlock(&own.lock);
			OK(own.invalidate(own.client, core));
			pthread_mutex_lock(&own.lock);
			MUST(own.regs[i].state == NONE, "invalidated, and not given back");
		}
	own.taken_back = 0;
	pthread_mutex_unlock(&own.lock);
	MUST(own.device_maps == own.device_unmaps, "an adapter has the memory");
}
