/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A processing element as Sandia OpenSHMEM makes it: see shmem.c. Its attributes, its order of calls, and its routines. */
#ifndef SHMEM_PE_H
#define SHMEM_PE_H

#include "../faults/fab.h"
#include <fcntl.h>

enum { PES = 16, HEAP = 8 << 20, LIMIT = 20000 };

struct card {
	struct name name;
	uint64_t heap, data, heap_key, data_key;
};

/* What every process has at the same place: of the heap, which is allocated, and of the data segment, which is linked. */
static struct heap {
	unsigned char in[PES][HEAP / 2 / PES];
	unsigned char out[HEAP / 4];
	uint64_t many[PES][500];
	unsigned char delivered[PES][40000];
	int64_t summed[PES];
	int64_t sum, swap;
	int32_t masked, lock;
	double real;
	uint64_t rounds[8];
} *heap;
static uint64_t arrived[PES];

/* Of how OpenSHMEM was built, and set: registrations without modes, automatic progress, a counter of the target's, one endpoint. */
static int me, pes, scalable, automatic, counts, single;
static struct card cards[PES];
static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_ep *target, *ep;
static struct fid_cq *target_cq, *cq;
static struct fid_cntr *arrivals, *written, *fetched;
static struct fid_mr *heap_mr, *data_mr;
static uint64_t posted_puts, posted_gets, buffered;

/* The place at another process that this one has at `at`. */
static uint64_t place(const void *at, int pe, uint64_t *key)
{
	const char *p = at, *start = (const char *)arrived;

	if (p >= start && p < start + sizeof arrived) {
		*key = cards[pe].data_key;
		return cards[pe].data + (uint64_t)(p - start);
	}
	*key = cards[pe].heap_key;
	return cards[pe].heap + (uint64_t)(p - (const char *)heap);
}

static void take_errors(void)
{
	struct fi_cq_err_entry e = {0};

	if (fi_cq_readerr(cq, &e, 0) == 1)
		fab_die(__LINE__, "an operation ended with %s", fi_strerror(e.err));
}

/* Gives buffers back whose contents have left. */
static void drain(void)
{
	struct fi_cq_entry e;
	ssize_t n = fi_cq_read(cq, &e, 1);

	if (n == 1)
		buffered--, free(e.op_context);
	else if (n == -FI_EAVAIL)
		take_errors();
	else
		CHECK(n == -FI_EAGAIN, "fi_cq_read: %zd", n);
}

/* What moves on a process without automatic progress: of one endpoint's queue, which has entries for drain(), none is taken. */
static void probe(void)
{
	struct fi_cq_entry e;
	ssize_t n = fi_cq_read(target_cq, &e, single ? 0 : 1);

	CHECK(n == -FI_EAGAIN || (single && n == 0), "fi_cq_read: %zd, and what others do here has no completion", n);
}

/* Posts until there is room. */
#define AGAIN(call)                                                                             \
	do {                                                                                    \
		long again;                                                                     \
		while ((again = (call)) == -FI_EAGAIN)                                          \
			drain(), probe();                                                       \
		CHECK(!again, "%s: %ld (%s)", #call, again, fi_strerror((int)-again));          \
	} while (0)

/* As many looks as it takes by default, and then a sleep. */
static void wait_for(struct fid_cntr *cntr, uint64_t n)
{
	uint64_t start = now_ns();

	for (int i = 0; counts ? i < 1000 : 1; i++) {
		if (fi_cntr_read(cntr) >= n)
			return;
		if (fi_cntr_readerr(cntr))
			take_errors();
		probe();
		CHECK(now_ns() - start < LIMIT * 1000000ull, "%lu of %lu are done", (unsigned long)fi_cntr_read(cntr), (unsigned long)n);
	}
	OK(fi_cntr_wait(cntr, n, LIMIT));
}

static void quiet(void)
{
	while (buffered)
		drain();
	wait_for(written, posted_puts);
}

static void put(int pe, void *at, const void *from, size_t n)
{
	uint64_t key, to = place(at, pe, &key);

	posted_puts++;
	if (n <= info->tx_attr->inject_size)
		AGAIN(fi_inject_write(ep, from, n, (fi_addr_t)pe, to, key));
	else
		AGAIN(fi_write(ep, from, n, NULL, (fi_addr_t)pe, to, key, NULL));
}

/* Out of a buffer of the library's, whose completion gives it back. */
static void put_buffered(int pe, void *at, const void *from, size_t n)
{
	uint64_t key, to = place(at, pe, &key);
	void *copy = malloc(n);
	struct iovec iov = {copy, n};
	struct fi_rma_iov rma = {to, n, 0};
	struct fi_msg_rma msg = {&iov, NULL, 1, (fi_addr_t)pe, &rma, 1, copy, 0};

	memcpy(copy, from, n);
	rma.key = key;
	posted_puts++;
	buffered++;
	AGAIN(fi_writemsg(ep, &msg, FI_COMPLETION | FI_DELIVERY_COMPLETE));
}

static void get(int pe, void *into, const void *at, size_t n)
{
	uint64_t key, from = place(at, pe, &key);

	AGAIN(fi_read(ep, into, n, NULL, (fi_addr_t)pe, from, key, NULL));
	wait_for(fetched, ++posted_gets);
}

static void atomic(int pe, void *at, const void *operand, enum fi_datatype type, enum fi_op op)
{
	uint64_t key, to = place(at, pe, &key);

	posted_puts++;
	AGAIN(fi_inject_atomic(ep, operand, 1, (fi_addr_t)pe, to, key, type, op));
}

static void fetch(int pe, void *at, const void *operand, void *old, enum fi_datatype type, enum fi_op op)
{
	uint64_t key, to = place(at, pe, &key);

	AGAIN(fi_fetch_atomic(ep, operand, 1, NULL, old, NULL, (fi_addr_t)pe, to, key, type, op, NULL));
	wait_for(fetched, ++posted_gets);
}

static void compare(int pe, void *at, const void *operand, const void *with, void *old, enum fi_datatype type, enum fi_op op)
{
	uint64_t key, to = place(at, pe, &key);

	AGAIN(fi_compare_atomic(ep, operand, 1, NULL, with, NULL, old, NULL, (fi_addr_t)pe, to, key, type, op, NULL));
	wait_for(fetched, ++posted_gets);
}

/* Until the word here has at least this value: asleep until something arrives, where arrivals are counted. */
static void wait_until(volatile uint64_t *word, uint64_t least)
{
	uint64_t start = now_ns();

	while (*word < least) {
		uint64_t n = counts ? fi_cntr_read(arrivals) : 0;

		if (*word >= least)
			break;
		if (counts)
			OK(fi_cntr_wait(arrivals, n + 1, LIMIT));
		else
			probe();
		CHECK(now_ns() - start < LIMIT * 1000000ull, "a word stays at %lu, and %lu is waited for", (unsigned long)*word, (unsigned long)least);
	}
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
}

/* Words beside the job, which all processes have in memory whatever network they have. */
static struct posted {
	volatile uint64_t put[PES][PES];
} *posted;

static void map_posted(const char *dir)
{
	char path[512];

	snprintf(path, sizeof path, "%s/puts", dir);
	int fd = open(path, O_RDWR | O_CREAT, 0600);
	CHECK(fd >= 0 && ftruncate(fd, sizeof *posted) == 0, "%s", path);
	posted = mmap(NULL, sizeof *posted, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(posted != MAP_FAILED, "%s", path);
	close(fd);
}

/* The dissemination algorithm: in each round one atomic to a process that is twice as far as in the last one. */
static void barrier(void)
{
	static uint64_t times;
	uint64_t one = 1;

	quiet();
	times++;
	for (int round = 0, off = 1; off < pes; round++, off *= 2) {
		atomic((me + off) % pes, &heap->rounds[round], &one, FI_UINT64, FI_SUM);
		wait_until(&heap->rounds[round], times);
	}
}

static void exchange_cards(const char *dir, const struct card *own)
{
	char path[512], done[512];
	uint64_t start = now_ns();

	snprintf(path, sizeof path, "%s/new.%d", dir, me);
	snprintf(done, sizeof done, "%s/card.%d", dir, me);
	FILE *f = fopen(path, "wb");
	CHECK(f && fwrite(own, sizeof *own, 1, f) == 1 && fclose(f) == 0 && rename(path, done) == 0, "%s", done);
	for (int pe = 0; pe < pes; pe++) {
		snprintf(path, sizeof path, "%s/card.%d", dir, pe);
		while (!(f = fopen(path, "rb"))) {
			usleep(10000);
			CHECK(now_ns() - start < LIMIT * 1000000ull, "process %d does not start", pe);
		}
		CHECK(fread(&cards[pe], sizeof cards[pe], 1, f) == 1, "%s", path);
		fclose(f);
	}
}

static struct fid_mr *registered(void *at, size_t n, uint64_t key)
{
	struct fid_mr *mr;

	OK(fi_mr_reg(domain, at, n, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, key, 0, &mr, NULL));
	if (counts)
		OK(fi_mr_bind(mr, &arrivals->fid, FI_REMOTE_WRITE));
	if (info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
		OK(fi_mr_bind(mr, &target->fid, FI_REMOTE_WRITE));
		OK(fi_mr_enable(mr));
	}
	return mr;
}

static struct fid_cntr *counter(enum fi_wait_obj wait)
{
	struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = wait};
	struct fid_cntr *cntr;

	OK(fi_cntr_open(domain, &attr, &cntr, NULL));
	return cntr;
}

static struct fid_ep *endpoint(struct fid_cq **queue, struct fi_cq_attr attr)
{
	struct fid_ep *made;

	OK(fi_endpoint(domain, info, &made, NULL));
	OK(fi_ep_bind(made, &av->fid, 0));
	OK(fi_cq_open(domain, &attr, queue, NULL));
	OK(fi_ep_bind(made, &(*queue)->fid, FI_SELECTIVE_COMPLETION | FI_TRANSMIT | FI_RECV));
	return made;
}

static void start(const char *dir)
{
	struct fi_info hints = {.addr_format = FI_FORMAT_UNSPEC};
	struct fi_tx_attr tx = {.op_flags = FI_DELIVERY_COMPLETE, .inject_size = sizeof(long double)};
	struct fi_domain_attr of_domain = {.resource_mgmt = FI_RM_ENABLED, .threading = FI_THREAD_DOMAIN, .mr_key_size = 1};
	struct fi_fabric_attr of_fabric = {.prov_name = "strait"};
	struct fi_ep_attr of_ep = {.type = FI_EP_RDM};
	struct fi_av_attr of_av = {.type = FI_AV_TABLE, .count = (size_t)pes};
	struct card own = {0};
	char names[PES * NAME_MAX_LEN];

	of_domain.data_progress = automatic ? FI_PROGRESS_AUTO : FI_PROGRESS_MANUAL;
	of_domain.mr_mode = scalable ? 0 : FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
	hints.caps = FI_RMA | FI_ATOMIC | (counts ? FI_RMA_EVENT : 0);
	hints.tx_attr = &tx;
	hints.domain_attr = &of_domain;
	hints.fabric_attr = &of_fabric;
	hints.ep_attr = &of_ep;
	OK(fi_getinfo(FI_VERSION(1, 5), NULL, NULL, 0, &hints, &info));
	CHECK(info->tx_attr->inject_size >= sizeof(long double), "%zu bytes can be injected", info->tx_attr->inject_size);
	CHECK(!info->domain_attr->max_ep_stx_ctx, "it has shared contexts, which this does not use");
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	OK(fi_av_open(domain, &of_av, &av, NULL));

	info->ep_attr->tx_ctx_cnt = 0;
	info->caps = FI_RMA | FI_ATOMIC | FI_REMOTE_READ | FI_REMOTE_WRITE;
	info->caps |= single ? FI_WRITE | FI_READ | FI_RECV : 0;
	info->caps |= counts ? FI_RMA_EVENT : 0;
	info->mode = info->tx_attr->mode = info->rx_attr->mode = 0;
	info->tx_attr->op_flags = 0;
	info->tx_attr->caps = FI_RMA | FI_ATOMIC;
	info->rx_attr->caps = info->caps;
	target = endpoint(&target_cq, (struct fi_cq_attr){0});
	OK(fi_enable(target));
	if (counts)
		arrivals = counter(FI_WAIT_UNSPEC);
	heap = shared_memory(HEAP);
	CHECK(sizeof *heap <= HEAP, "the heap has %d bytes", HEAP);
	heap_mr = registered(heap, HEAP, 1);
	data_mr = registered(arrived, sizeof arrived, 0);
	written = counter(counts ? FI_WAIT_UNSPEC : FI_WAIT_NONE);
	fetched = counter(counts ? FI_WAIT_UNSPEC : FI_WAIT_NONE);
	if (single) {
		ep = target;
		cq = target_cq;
	} else {
		info->caps = FI_RMA | FI_WRITE | FI_READ | FI_ATOMIC | FI_RECV;
		info->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
		info->tx_attr->caps = info->caps;
		info->rx_attr->caps = FI_RECV;
		ep = endpoint(&cq, (struct fi_cq_attr){.format = FI_CQ_FORMAT_CONTEXT});
	}
	OK(fi_ep_bind(ep, &written->fid, FI_WRITE));
	OK(fi_ep_bind(ep, &fetched->fid, FI_READ));
	if (!single)
		OK(fi_enable(ep));

	own.name.len = sizeof own.name.bytes;
	OK(fi_getname(&target->fid, own.name.bytes, &own.name.len));
	own.heap_key = fi_mr_key(heap_mr);
	own.data_key = fi_mr_key(data_mr);
	if (info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) {
		own.heap = (uint64_t)(uintptr_t)heap;
		own.data = (uint64_t)(uintptr_t)arrived;
	} else {
		CHECK(scalable && own.heap_key == 1 && own.data_key == 0, "keys of the program's own");
	}
	heap->swap = 77;
	exchange_cards(dir, &own);
	for (int pe = 0; pe < pes; pe++)
		memcpy(names + (size_t)pe * own.name.len, cards[pe].name.bytes, own.name.len);
	CHECK(fi_av_insert(av, names, (size_t)pes, NULL, 0, NULL) == pes, "fi_av_insert");
}

#endif
