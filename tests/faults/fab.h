/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * What the programs in this directory share: an endpoint with all that belongs to it, a table of
 * operations under way, and memory that several processes look at.
 */
#ifndef FAB_H
#define FAB_H

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

static const char *fab_role = "main";

static inline void fab_die(int line, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fprintf(stderr, "%s (pid %d), line %d: ", fab_role, (int)getpid(), line);
	vfprintf(stderr, fmt, ap);
	fputc('\n', stderr);
	va_end(ap);
	exit(1);
}

#define CHECK(cond, ...)                                   \
	do {                                               \
		if (!(cond))                               \
			fab_die(__LINE__, __VA_ARGS__);    \
	} while (0)
/* A libfabric call that has to return 0. */
#define OK(call)                                                                        \
	do {                                                                            \
		long ok_ret = (call);                                                   \
		if (ok_ret)                                                             \
			fab_die(__LINE__, "%s: %ld (%s)", #call, ok_ret, fi_strerror((int)-ok_ret)); \
	} while (0)

static inline uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Content that depends on a seed and the position. */
static inline unsigned char byte_at(unsigned seed, size_t i)
{
	return (unsigned char)(seed * 37 + i * 7 + (i >> 8) * 13 + (i >> 16));
}

static inline void fill(unsigned char *b, size_t n, unsigned seed)
{
	for (size_t i = 0; i < n; i++)
		b[i] = byte_at(seed, i);
}

/* Where it differs first, or n. */
static inline size_t differs(const unsigned char *b, size_t n, unsigned seed)
{
	size_t i = 0;

	while (i < n && b[i] == byte_at(seed, i))
		i++;
	return i;
}

static inline uint64_t next_random(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return *state >> 33;
}

static inline void *shared_memory(size_t n)
{
	void *at = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(at != MAP_FAILED, "mmap: %s", strerror(errno));
	return at;
}

static inline int descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	CHECK(dir, "/proc/self/fd: %s", strerror(errno));
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

#define NAME_MAX_LEN 64

struct name {
	size_t len;
	char bytes[NAME_MAX_LEN];
};

enum op_state { FREE, PENDING, DONE, FAILED };

/* One operation: its address is its context. */
struct op {
	struct fi_context2 room;
	volatile enum op_state state;
	int err;
	size_t len;
	uint64_t tag, data;
	fi_addr_t src;
	uint64_t when;
};

struct fab {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
	struct name name;
	int sleeps;
	/* Reports of remote CQ data, and the last one's. */
	unsigned reports;
	uint64_t reported;
};

struct fab_options {
	const char *provider;
	enum fi_progress progress;
	enum fi_threading threading;
	size_t cq_size, tx_size;
	int sleeps; /* sread instead of read */
	uint64_t caps;
	uint64_t order;
};

#define FAB_CAPS (FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_DIRECTED_RECV | FI_SOURCE)

static inline int fab_try_open(struct fab *f, struct fab_options o)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED,
				     .size = o.cq_size,
				     .wait_obj = o.sleeps ? FI_WAIT_UNSPEC : FI_WAIT_NONE};
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
	int ret;

	memset(f, 0, sizeof *f);
	f->sleeps = o.sleeps;
	hints->caps = o.caps ? o.caps : FAB_CAPS;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->addr_format = FI_FORMAT_UNSPEC;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->domain_attr->data_progress = o.progress;
	hints->domain_attr->threading = o.threading;
	hints->domain_attr->av_type = FI_AV_TABLE;
	if (getenv("AUTH_KEY")) {
		/* fi_freeinfo(3) frees it. */
		hints->domain_attr->auth_key = (uint8_t *)strdup(getenv("AUTH_KEY"));
		hints->domain_attr->auth_key_size = strlen(getenv("AUTH_KEY"));
	}
	hints->tx_attr->size = o.tx_size;
	hints->tx_attr->msg_order = hints->rx_attr->msg_order = o.order;
	hints->fabric_attr->prov_name = strdup(o.provider ? o.provider : "strait");
	ret = fi_getinfo(FI_VERSION(1, 20), getenv("NODE"), NULL, getenv("NODE") ? FI_SOURCE : 0, hints, &f->info);
	fi_freeinfo(hints);
	if (ret)
		return ret;
	if ((ret = fi_fabric(f->info->fabric_attr, &f->fabric, NULL)) ||
	    (ret = fi_domain(f->fabric, f->info, &f->domain, NULL)) ||
	    (ret = fi_av_open(f->domain, &av_attr, &f->av, NULL)) ||
	    (ret = fi_cq_open(f->domain, &cq_attr, &f->cq, NULL)) ||
	    (ret = fi_endpoint(f->domain, f->info, &f->ep, NULL)) ||
	    (ret = fi_ep_bind(f->ep, &f->av->fid, 0)) ||
	    (ret = fi_ep_bind(f->ep, &f->cq->fid, FI_TRANSMIT | FI_RECV)) ||
	    (ret = fi_enable(f->ep)))
		return ret;
	f->name.len = sizeof f->name.bytes;
	return fi_getname(&f->ep->fid, f->name.bytes, &f->name.len);
}

static inline void fab_open(struct fab *f, struct fab_options o)
{
	OK(fab_try_open(f, o));
}

/* Closes what is open; each close has to work. */
static inline void fab_close(struct fab *f)
{
	struct fid *all[] = {f->ep ? &f->ep->fid : NULL,     f->cq ? &f->cq->fid : NULL,
			     f->av ? &f->av->fid : NULL,     f->domain ? &f->domain->fid : NULL,
			     f->fabric ? &f->fabric->fid : NULL};

	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (all[i])
			OK(fi_close(all[i]));
	if (f->info)
		fi_freeinfo(f->info);
	memset(f, 0, sizeof *f);
}

static inline fi_addr_t fab_insert(struct fab *f, const struct name *name)
{
	fi_addr_t at = FI_ADDR_UNSPEC;

	CHECK(fi_av_insert(f->av, name->bytes, 1, &at, 0, NULL) == 1, "fi_av_insert");
	return at;
}

static inline void *begin(struct op *op)
{
	op->state = PENDING;
	op->err = 0;
	return op;
}

/* The post was refused: the operation has failed at once. */
static inline void end_post(struct op *op, long ret)
{
	if (ret && op->state == PENDING) {
		op->err = (int)-ret;
		op->when = now_ns();
		op->state = FAILED;
	}
}

/* Takes in completions; returns how many. */
static inline int fab_poll(struct fab *f)
{
	struct fi_cq_tagged_entry e[8];
	fi_addr_t src[8];
	ssize_t n = f->sleeps ? fi_cq_sreadfrom(f->cq, e, 8, src, NULL, 20) : fi_cq_readfrom(f->cq, e, 8, src);

	if (n == -FI_EAGAIN || n == -FI_EINTR)
		return 0;
	if (n == -FI_EAVAIL) {
		struct fi_cq_err_entry err = {0};
		struct op *op;

		CHECK(fi_cq_readerr(f->cq, &err, 0) == 1, "fi_cq_readerr");
		op = err.op_context;
		CHECK(op && op->state == PENDING, "an error for no operation: %s", fi_strerror(err.err));
		op->err = err.err;
		op->len = err.len;
		op->tag = err.tag;
		op->when = now_ns();
		op->state = FAILED;
		return 1;
	}
	CHECK(n > 0, "fi_cq_read: %zd (%s)", n, fi_strerror((int)-n));
	for (ssize_t i = 0; i < n; i++) {
		struct op *op = e[i].op_context;

		if (!op) { /* remote CQ data */
			f->reports++;
			f->reported = e[i].data;
			continue;
		}
		CHECK(op->state == PENDING, "a completion for no operation");
		op->len = e[i].len;
		op->tag = e[i].tag;
		op->data = e[i].data;
		op->src = src[i];
		op->when = now_ns();
		op->state = DONE;
	}
	return (int)n;
}

/* Repeats a post while it returns -FI_EAGAIN; other failures are the operation's. */
#define POST(f, op, call)                                              \
	do {                                                           \
		long post_ret;                                         \
		begin(op);                                             \
		while ((post_ret = (call)) == -FI_EAGAIN)              \
			fab_poll(f);                                   \
		end_post(op, post_ret);                                \
	} while (0)

static inline void await(struct fab *f, struct op *op, const char *what)
{
	uint64_t start = now_ns();

	while (op->state == PENDING) {
		if (!fab_poll(f))
			sched_yield();
		CHECK(now_ns() - start < 20000000000u, "%s: nothing for 20 s", what);
	}
	CHECK(op->state == DONE, "%s: %s", what, fi_strerror(op->err));
}

#endif
