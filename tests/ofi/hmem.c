/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A provider of libfabric's that offers FI_HMEM with FI_MR_HMEM on hosts that have neither adapter nor GPU, for tests alone.
 *
 * It stands over `tcp`, whose objects it hands out with a few calls exchanged. Memory of the stand-in for CUDA cannot be accessed by
 * the CPU at its own address: the stand-in says where an adapter would find it (stand_in_dma), and `tcp` gets that address. What a
 * real provider may rely on ends the process where it does not hold: that a device's memory is registered as such, with the
 * device that it is on, and that it is read into by the name of such a registration alone.
 *
 * hmem_refuse() has it refuse registrations of such memory: with FI_ENOSYS as a provider that was built without CUDA. hmem_refuse_for()
 * does so for one use alone, and hmem_limit() where so many are open.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <rdma/providers/fi_prov.h>

#define BELOW "tcp"
#define VISIBLE __attribute__((visibility("default")))

/* What tests ask for. */
struct hmem_counts {
	uint64_t lent;		/* registrations of a device's memory for peers to read */
	uint64_t lent_bytes;
	uint64_t local;		/* of a device's memory to read into */
	uint64_t open;		/* of either, now */
	uint64_t refused;
	uint64_t read_from;	/* bytes that reads were posted for, from a device's memory of this process */
	uint64_t read_into;	/* and into one's */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct hmem_counts counts;
static int refuse_times, refuse_code, most_open = -1;
static uint64_t refuse_access;

/* A registration of a device's memory. */
struct region {
	struct fi_ops ops;
	struct fi_ops *their_ops;
	struct fid_mr *mr;
	void *desc, *dma;
	char *at;
	size_t len;
	struct region *next;
};
static struct region *regions;

/* Tables of one object, and its own. */
struct fabric {
	struct fi_ops_fabric ops, *theirs;
};
struct domain {
	struct fi_ops_domain ops, *theirs;
	struct fi_ops_mr mr, *their_mr;
};
struct endpoint {
	struct fi_ops_rma rma, *theirs;
};

#define OF(type, member, at) ((struct type *)((char *)(at) - offsetof(struct type, member)))

static void die(const char *why)
{
	fprintf(stderr, "hmem: %s\n", why);
	abort();
}

static void *made(size_t size)
{
	void *at = calloc(1, size);
	if (!at)
		die("no memory");
	return at;
}

/* A table may be shorter than the headers have it. */
#define TAKE(into, from) memcpy(&(into), (from), (from)->size < sizeof(into) ? (from)->size : sizeof(into))

/* ---- the stand-in for CUDA ---- */

static void *cuda(const char *name)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	return driver ? dlsym(driver, name) : NULL;
}

static int attribute(int which, const void *at, size_t size, void *value)
{
	int (*get)(void *, unsigned, unsigned long long) = (int (*)(void *, unsigned, unsigned long long))cuda("cuPointerGetAttribute");
	memset(value, 0, size);
	return get ? get(value, which, (uintptr_t)at) : -1;
}

static int is_device(const void *at)
{
	unsigned type;
	return attribute(2 /* CU_POINTER_ATTRIBUTE_MEMORY_TYPE */, at, sizeof type, &type) == 0 && type == 2;
}

static void *dma(const void *at, size_t len)
{
	void *(*find)(unsigned long long, size_t) = (void *(*)(unsigned long long, size_t))cuda("stand_in_dma");
	return find ? find((uintptr_t)at, len) : NULL;
}

/* ---- registrations ---- */

static int close_region(struct fid *fid)
{
	struct region *r = OF(region, ops, fid->ops), **at;
	int code;

	pthread_mutex_lock(&lock);
	for (at = &regions; *at != r; at = &(*at)->next)
		if (!*at)
			die("a registration that is closed twice");
	*at = r->next;
	counts.open--;
	pthread_mutex_unlock(&lock);
	fid->ops = r->their_ops;
	code = r->their_ops->close(fid);
	free(r);
	return code;
}

static int reg(struct fid *fid, const void *buf, size_t len, uint64_t access, uint64_t offset, uint64_t key, uint64_t flags,
	       struct fid_mr **mr, void *context)
{
	struct domain *d = OF(domain, mr, ((struct fid_domain *)fid)->mr);

	if (is_device(buf))
		die("a device's memory that is registered as the host's");
	return d->their_mr->reg(fid, buf, len, access, offset, key, flags, mr, context);
}

static int regattr(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags, struct fid_mr **mr)
{
	struct domain *d = OF(domain, mr, ((struct fid_domain *)fid)->mr);
	struct fi_mr_attr as_host = *attr;
	struct iovec iov;
	struct region *r;
	int code, device, refuse = 0;

	if (attr->iface != FI_HMEM_CUDA || attr->iov_count != 1)
		die("a registration that is not of CUDA's");
	pthread_mutex_lock(&lock);
	if (refuse_times > 0 && (!refuse_access || refuse_access == attr->access)) {
		refuse_times--;
		refuse = refuse_code;
	} else if (most_open >= 0 && counts.open >= (uint64_t)most_open) {
		refuse = FI_ENOMEM;
	}
	counts.refused += refuse != 0;
	pthread_mutex_unlock(&lock);
	if (refuse)
		return -refuse;
	iov = attr->mr_iov[0];
	if (!is_device(iov.iov_base))
		die("memory that is not CUDA's");
	if (attribute(9 /* CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL */, iov.iov_base, sizeof device, &device) || device != attr->device.cuda)
		die("another device than the memory is on");
	if (iov.iov_len == 0)
		die("a registration of no bytes");
	if (attribute(9, (char *)iov.iov_base + iov.iov_len - 1, sizeof device, &device) || device != attr->device.cuda)
		die("a registration whose end is on another device");
	r = made(sizeof *r);
	r->at = iov.iov_base;
	r->len = iov.iov_len;
	r->dma = dma(iov.iov_base, iov.iov_len);
	if (!r->dma) {
		free(r);
		return -FI_EINVAL;
	}
	iov.iov_base = r->dma;
	as_host.mr_iov = &iov;
	as_host.iface = FI_HMEM_SYSTEM;
	as_host.device.reserved = 0;
	code = d->their_mr->regattr(fid, &as_host, flags, mr);
	if (code) {
		free(r);
		return code;
	}
	r->mr = *mr;
	r->desc = (*mr)->mem_desc;
	(*mr)->mem_desc = r;
	r->their_ops = (*mr)->fid.ops;
	TAKE(r->ops, r->their_ops);
	r->ops.close = close_region;
	(*mr)->fid.ops = &r->ops;
	pthread_mutex_lock(&lock);
	r->next = regions;
	regions = r;
	counts.open++;
	if (attr->access & FI_REMOTE_READ) {
		counts.lent++;
		counts.lent_bytes += r->len;
	} else if (attr->access == FI_READ) {
		counts.local++;
	} else {
		die("a registration for something else");
	}
	pthread_mutex_unlock(&lock);
	return 0;
}

/* ---- reads ---- */

static ssize_t read_(struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t from, uint64_t addr, uint64_t key, void *context)
{
	struct endpoint *e = OF(endpoint, rma, ep->rma);
	struct region *r, *into = NULL, *of = NULL;
	ssize_t code;

	pthread_mutex_lock(&lock);
	for (r = regions; r; r = r->next) {
		if (desc == r && (char *)buf >= r->at && (char *)buf + len <= r->at + r->len)
			into = r;
		if (r->mr->key == key)
			of = r;
	}
	pthread_mutex_unlock(&lock);
	if (is_device(buf) && !into)
		die("a read into a device's memory that is not registered");
	if (into) {
		buf = (char *)into->dma + ((char *)buf - into->at);
		desc = into->desc;
	}
	code = e->theirs->read(ep, buf, len, desc, from, addr, key, context);
	if (code == 0) {
		pthread_mutex_lock(&lock);
		counts.read_into += into ? len : 0;
		counts.read_from += of ? len : 0;
		pthread_mutex_unlock(&lock);
	}
	return code;
}

/* ---- objects ---- */

/* What `tcp` makes of it. */
static struct fi_info *for_tcp(const struct fi_info *info)
{
	struct fi_info *own = info ? fi_dupinfo(info) : fi_allocinfo();

	if (!own)
		die("no memory");
	free(own->fabric_attr->prov_name);
	own->fabric_attr->prov_name = strdup(BELOW);
	own->caps &= ~FI_HMEM;
	own->tx_attr->caps &= ~FI_HMEM;
	own->rx_attr->caps &= ~FI_HMEM;
	own->domain_attr->caps &= ~FI_HMEM;
	own->domain_attr->mr_mode &= ~FI_MR_HMEM;
	return own;
}

static int endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context)
{
	struct domain *d = OF(domain, ops, domain->ops);
	struct fi_info *own = for_tcp(info);
	int code = d->theirs->endpoint(domain, own, ep, context);

	fi_freeinfo(own);
	if (code == 0) {
		struct endpoint *e = made(sizeof *e);
		e->theirs = (*ep)->rma;
		TAKE(e->rma, e->theirs);
		e->rma.read = read_;
		(*ep)->rma = &e->rma;
	}
	return code;
}

static int domain(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain, void *context)
{
	struct fabric *f = OF(fabric, ops, fabric->ops);
	struct fi_info *own = for_tcp(info);
	int code = f->theirs->domain(fabric, own, domain, context);

	fi_freeinfo(own);
	if (code == 0) {
		struct domain *d = made(sizeof *d);
		d->theirs = (*domain)->ops;
		d->their_mr = (*domain)->mr;
		TAKE(d->ops, d->theirs);
		TAKE(d->mr, d->their_mr);
		d->ops.endpoint = endpoint;
		d->mr.reg = reg;
		d->mr.regattr = regattr;
		(*domain)->ops = &d->ops;
		(*domain)->mr = &d->mr;
	}
	return code;
}

static int fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
	struct fi_fabric_attr own = *attr;
	char name[] = BELOW;
	int code;

	own.prov_name = name;
	code = fi_fabric(&own, fabric, context);
	if (code == 0) {
		struct fabric *f = made(sizeof *f);
		f->theirs = (*fabric)->ops;
		TAKE(f->ops, f->theirs);
		f->ops.domain = domain;
		(*fabric)->ops = &f->ops;
	}
	return code;
}

static int getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints,
		   struct fi_info **info)
{
	int hmem = hints && hints->caps & FI_HMEM, code;
	struct fi_info *own, *at;

	if (hmem && !(hints->domain_attr && hints->domain_attr->mr_mode & FI_MR_HMEM))
		return -FI_ENODATA;
	own = for_tcp(hints);
	code = fi_getinfo(version, node, service, flags, own, info);
	fi_freeinfo(own);
	if (code)
		return code;
	for (at = *info; at; at = at->next) {
		/* The core writes the name. */
		free(at->fabric_attr->prov_name);
		at->fabric_attr->prov_name = NULL;
		if (hmem) {
			at->caps |= FI_HMEM;
			at->domain_attr->mr_mode |= FI_MR_HMEM;
		}
	}
	return 0;
}

static void cleanup(void)
{
}

static struct fi_provider provider = {
	.version = FI_VERSION(201, 0),
	.fi_version = FI_VERSION(2, 1),
	.name = "hmem",
	.getinfo = getinfo,
	.fabric = fabric,
	.cleanup = cleanup,
};

VISIBLE struct fi_provider *fi_prov_ini(void)
{
	return &provider;
}

/* ---- for tests ---- */

VISIBLE void hmem_counts(struct hmem_counts *into)
{
	pthread_mutex_lock(&lock);
	*into = counts;
	pthread_mutex_unlock(&lock);
}

/* The next ones, with this error. */
VISIBLE void hmem_refuse(int times, int code)
{
	pthread_mutex_lock(&lock);
	refuse_times = times;
	refuse_code = code;
	refuse_access = 0;
	pthread_mutex_unlock(&lock);
}

/* Those with this access alone. */
VISIBLE void hmem_refuse_for(int times, int code, uint64_t access)
{
	hmem_refuse(times, code);
	pthread_mutex_lock(&lock);
	refuse_access = access;
	pthread_mutex_unlock(&lock);
}

/* No more than so many are open at a time. */
VISIBLE void hmem_limit(int most)
{
	pthread_mutex_lock(&lock);
	most_open = most;
	pthread_mutex_unlock(&lock);
}
