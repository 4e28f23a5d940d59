/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * What an application gets for using objects in wrong ways, and for atomics and registrations that do
 * not fit; after each, the endpoint carries on.  One process, which talks to itself.
 */
#include "fab.h"

static struct fab me;
static fi_addr_t self;
static int checks;

/* The call has to fail with one of these. */
#define FAILS(call, one, other)                                                                              \
	do {                                                                                                 \
		long ret_ = (call);                                                                          \
		CHECK(ret_ == -(one) || ret_ == -(other), "%s: %ld (%s), not %s", #call, ret_,                \
		      fi_strerror((int)-ret_), fi_strerror(one));                                            \
		checks++;                                                                                    \
	} while (0)

static void fine(const char *what)
{
	static struct op in, out;
	static uint64_t a = 1, b;

	a++;
	POST(&me, &in, fi_trecv(me.ep, &b, 8, NULL, self, 1, 0, &in));
	POST(&me, &out, fi_tsend(me.ep, &a, 8, NULL, self, 1, &out));
	await(&me, &in, what);
	await(&me, &out, what);
	CHECK(a == b, "%s: %lu, not %lu", what, b, a);
	checks++;
}

static void getinfo(void)
{
	struct fi_info *hints = fi_allocinfo(), *got = NULL;

	hints->fabric_attr->prov_name = strdup("strait");
	hints->ep_attr->type = FI_EP_DGRAM;
	FAILS(fi_getinfo(FI_VERSION(1, 20), NULL, NULL, 0, hints, &got), FI_ENODATA, FI_ENODATA);
	hints->ep_attr->type = FI_EP_RDM;
	hints->tx_attr->inject_size = SIZE_MAX;
	FAILS(fi_getinfo(FI_VERSION(1, 20), NULL, NULL, 0, hints, &got), FI_ENODATA, FI_ENODATA);
	hints->tx_attr->inject_size = 0;
	hints->tx_attr->iov_limit = 1000;
	FAILS(fi_getinfo(FI_VERSION(1, 20), NULL, NULL, 0, hints, &got), FI_ENODATA, FI_ENODATA);
	hints->tx_attr->iov_limit = 0;
	hints->domain_attr->resource_mgmt = FI_RM_ENABLED + 1;
	FAILS(fi_getinfo(FI_VERSION(1, 20), NULL, NULL, 0, hints, &got), FI_ENODATA, FI_ENODATA);
	hints->domain_attr->resource_mgmt = FI_RM_UNSPEC;
	/* An address of documentation is no host's. */
	FAILS(fi_getinfo(FI_VERSION(1, 20), "192.0.2.1", NULL, FI_SOURCE, hints, &got), FI_ENODATA, FI_ENODATA);
	hints->caps = FI_SEND;
	OK(fi_getinfo(FI_VERSION(1, 20), "127.0.0.1", NULL, FI_SOURCE, hints, &got));
	CHECK((got->caps & FI_SEND) && (got->caps & FI_TAGGED), "a sender can do nothing: %#lx", (long)got->caps);
	fi_freeinfo(got);
	fi_freeinfo(hints);
}

/* Endpoints that lack something, and what they lack of the wrong sort. */
static void setup(void)
{
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED};
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
	struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_NONE};
	static struct op op;
	struct fid_domain *other;
	struct fid_cq *cq;
	struct fid_eq *eq;
	struct fid_av *av;
	struct fid_ep *ep;
	uint64_t word;
	size_t len;

	OK(fi_endpoint(me.domain, me.info, &ep, NULL));
	FAILS(fi_send(ep, &word, 8, NULL, 0, &op), FI_EOPBADSTATE, FI_EOPBADSTATE);
	FAILS(fi_recv(ep, &word, 8, NULL, 0, &op), FI_EOPBADSTATE, FI_EOPBADSTATE);
	FAILS(fi_enable(ep), FI_ENOAV, FI_ENOCQ);
	OK(fi_ep_bind(ep, &me.av->fid, 0));
	FAILS(fi_enable(ep), FI_ENOCQ, FI_ENOCQ);
	FAILS(fi_ep_bind(ep, &me.domain->fid, 0), FI_EINVAL, FI_ENOSYS);
	FAILS(fi_ep_bind(ep, NULL, 0), FI_EINVAL, FI_EINVAL);
	FAILS(fi_ep_bind(ep, &me.cq->fid, 0), FI_EINVAL, FI_EBADFLAGS);
	FAILS(fi_ep_bind(ep, &me.cq->fid, FI_TRANSMIT | FI_REMOTE_WRITE), FI_EINVAL, FI_EBADFLAGS);
	OK(fi_domain(me.fabric, me.info, &other, NULL));
	OK(fi_cq_open(other, &cq_attr, &cq, NULL));
	FAILS(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV), FI_EINVAL, FI_EINVAL);
	FAILS(fi_close(&other->fid), FI_EBUSY, FI_EBUSY);
	OK(fi_close(&cq->fid));
	OK(fi_close(&other->fid));
	OK(fi_ep_bind(ep, &me.cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_enable(ep));
	len = 3;
	FAILS(fi_getname(&ep->fid, &word, &len), FI_ETOOSMALL, FI_ETOOSMALL);
	CHECK(len == me.name.len, "the name takes %zu", len);
	OK(fi_close(&ep->fid));

	cq_attr.format = 77;
	FAILS(fi_cq_open(me.domain, &cq_attr, &cq, NULL), FI_EINVAL, FI_ENOSYS);
	cq_attr.format = FI_CQ_FORMAT_TAGGED;
	cq_attr.wait_obj = 77;
	FAILS(fi_cq_open(me.domain, &cq_attr, &cq, NULL), FI_EINVAL, FI_ENOSYS);
	cq_attr.wait_obj = FI_WAIT_NONE;
	/* A queue that another provider is to fill. */
	cq_attr.flags = eq_attr.flags = FI_PEER;
	FAILS(fi_cq_open(me.domain, &cq_attr, &cq, NULL), FI_EBADFLAGS, FI_EBADFLAGS);
	FAILS(fi_eq_open(me.fabric, &eq_attr, &eq, NULL), FI_EBADFLAGS, FI_EBADFLAGS);
	av_attr.type = 77;
	FAILS(fi_av_open(me.domain, &av_attr, &av, NULL), FI_EINVAL, FI_ENOSYS);
	FAILS(fi_close(&me.domain->fid), FI_EBUSY, FI_EBUSY);
	FAILS(fi_close(&me.fabric->fid), FI_EBUSY, FI_EBUSY);
	FAILS(fi_close(&me.cq->fid), FI_EBUSY, FI_EBUSY);
	FAILS(fi_close(&me.av->fid), FI_EBUSY, FI_EBUSY);
	fine("after objects in disorder");
}

static void queues(void)
{
	struct fi_cq_err_entry err = {0};
	struct fi_cq_tagged_entry e;
	static const char zeros[64];
	char name[64];
	fi_addr_t at = 5;
	size_t len = 64;
	int option;

	FAILS(fi_cq_readerr(me.cq, &err, 0), FI_EAGAIN, FI_EAGAIN);
	FAILS(fi_cq_read(me.cq, &e, 1), FI_EAGAIN, FI_EAGAIN);
	CHECK(fi_av_insert(me.av, zeros, 1, &at, 0, NULL) <= 0 && at == FI_ADDR_NOTAVAIL, "an address of zeros");
	FAILS(fi_av_lookup(me.av, 4711, name, &len), FI_EINVAL, FI_ENOENT);
	FAILS(fi_getopt(&me.ep->fid, FI_OPT_ENDPOINT, 4711, &option, &len), FI_ENOPROTOOPT, FI_ENOPROTOOPT);
	FAILS(fi_setopt(&me.ep->fid, FI_OPT_ENDPOINT, 4711, &option, sizeof option), FI_ENOPROTOOPT, FI_ENOPROTOOPT);
	len = 1;
	FAILS(fi_getopt(&me.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &option, &len), FI_ETOOSMALL, FI_ETOOSMALL);
	fine("after wrong questions");
}

/* What the target has to refuse, and the end of it by completion; or what the call refuses. */
static void refused(long posted, struct op *op, int one, int other, const char *what)
{
	if (!posted) {
		for (uint64_t start = now_ns(); op->state == PENDING && now_ns() - start < 20000000000u;)
			fab_poll(&me);
		CHECK(op->state == FAILED, "%s: state %d", what, op->state);
		posted = -op->err;
	}
	op->state = FREE;
	CHECK(posted == -one || posted == -other, "%s: %s, not %s", what, fi_strerror((int)-posted), fi_strerror(one));
	checks++;
}

static void memory(void)
{
	static uint64_t words[512], operand = 1, old = 7;
	uint64_t all = FI_REMOTE_READ | FI_REMOTE_WRITE, base, key, ro_key;
	struct fid_mr *mr, *ro, *none;
	static struct op op;
	struct iovec iov = {words, 16};
	struct fi_rma_iov there;
	struct fi_msg_rma m = {.msg_iov = &iov, .iov_count = 1, .addr = self, .rma_iov = &there, .rma_iov_count = 1,
			       .context = &op};
	size_t count;
	int dup_ok = me.info->domain_attr->mr_mode & FI_MR_PROV_KEY;

	OK(fi_mr_reg(me.domain, words, sizeof words, all, 0, 5, 0, &mr, NULL));
	OK(fi_mr_reg(me.domain, words, sizeof words, FI_REMOTE_READ, 0, 6, 0, &ro, NULL));
	if (!dup_ok)
		FAILS(fi_mr_reg(me.domain, words, 8, all, 0, 5, 0, &none, NULL), FI_ENOKEY, FI_ENOKEY);
	FAILS(fi_mr_reg(me.domain, words, SIZE_MAX, all, 0, 7, 0, &none, NULL), FI_EINVAL, FI_EINVAL);
	key = fi_mr_key(mr), ro_key = fi_mr_key(ro);
	base = me.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)words : 0;

#define ATOMIC(at, key) fi_atomic(me.ep, &operand, 1, NULL, self, at, key, FI_UINT64, FI_SUM, begin(&op))
#define FETCH(at, key) fi_fetch_atomic(me.ep, &operand, 1, NULL, &old, NULL, self, at, key, FI_UINT64, FI_SUM, begin(&op))
	refused(FETCH(base, 999), &op, FI_ENOKEY, FI_EKEYREJECTED, "a fetch by an unknown key");
	refused(FETCH(base, ro_key), &op, FI_EACCES, FI_EACCES, "a fetch from read-only memory");
	refused(FETCH(base + sizeof words, key), &op, FI_EINVAL, FI_EACCES, "a fetch from behind");
	refused(FETCH(base + sizeof words - 4, key), &op, FI_EINVAL, FI_EACCES, "a fetch half from behind");
	CHECK(old == 7 && !words[0] && !words[511], "a refused atomic took place");
	/* Whether anybody waits for the target's word or not. */
	refused(ATOMIC(base, 999), &op, FI_ENOKEY, FI_EKEYREJECTED, "an atomic by an unknown key");

	OK(fi_atomicvalid(me.ep, FI_UINT64, FI_SUM, &count));
	FAILS(fi_atomic(me.ep, words, count + 1, NULL, self, base, key, FI_UINT64, FI_SUM, &op), FI_EINVAL, FI_EMSGSIZE);
	FAILS(fi_atomic(me.ep, words, 1, NULL, self, base, key, FI_FLOAT, FI_BXOR, &op), FI_EOPNOTSUPP, FI_EINVAL);
	FAILS(fi_atomic(me.ep, words, 1, NULL, self, base, key, 77, FI_SUM, &op), FI_EOPNOTSUPP, FI_EINVAL);
	FAILS(fi_atomic(me.ep, words, 1, NULL, self, base, key, FI_UINT64, 77, &op), FI_EOPNOTSUPP, FI_EINVAL);
	FAILS(fi_atomic(me.ep, words, 0, NULL, self, base, key, FI_UINT64, FI_SUM, &op), FI_EINVAL, FI_EINVAL);

	there = (struct fi_rma_iov){base, 8, key};
	FAILS(fi_writemsg(me.ep, &m, 0), FI_EINVAL, FI_EINVAL);
	FAILS(fi_readmsg(me.ep, &m, 0), FI_EINVAL, FI_EINVAL);
	there.len = 16;
	FAILS(fi_writemsg(me.ep, &m, FI_COMMIT_COMPLETE), FI_EBADFLAGS, FI_EBADFLAGS);
	FAILS(fi_readmsg(me.ep, &m, FI_COMMIT_COMPLETE), FI_EBADFLAGS, FI_EBADFLAGS);
	m.rma_iov_count = 100;
	FAILS(fi_writemsg(me.ep, &m, 0), FI_EINVAL, FI_EINVAL);
	FAILS(fi_inject_write(me.ep, words, me.info->tx_attr->inject_size + 1, self, base, key), FI_EMSGSIZE, FI_EMSGSIZE);

	/* A key is good as long as its registration. */
	OK(fi_close(&mr->fid));
	refused(fi_read(me.ep, words, 8, NULL, self, base, key, begin(&op)), &op, FI_ENOKEY, FI_EKEYREJECTED, "a key of before");
	OK(fi_mr_reg(me.domain, words, 64, all, 0, 5, 0, &mr, NULL));
	refused(fi_read(me.ep, words + 8, 72, NULL, self, base, fi_mr_key(mr), begin(&op)), &op, FI_EINVAL, FI_EACCES,
		"more than the registration there is now");
	OK(fi_close(&mr->fid));
	OK(fi_close(&ro->fid));
	fine("after bad accesses");
}

int main(void)
{
	fab_open(&me, (struct fab_options){.threading = FI_THREAD_DOMAIN});
	self = fab_insert(&me, &me.name);
	fine("the first word");
	getinfo();
	setup();
	queues();
	memory();
	fab_close(&me);
	printf("mistakes ok, %d checks\n", checks);
	return 0;
}
