/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Of random.c: buffers for several messages, threads, and processes. */

static struct slot multis[2 * EPS];

static void post_multi(struct fid_ep *ep, struct slot *s)
{
	struct iovec iov = {s->buf, MULTI};
	struct fi_msg m = {.msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = s};
	ssize_t ret;

	memset(s->buf, 0xee, MULTI);
	s->is_multi = 1, s->seq++;
	while ((ret = fi_recvmsg(ep, &m, FI_MULTI_RECV | FI_COMPLETION)) == -FI_EAGAIN)
		poll_queue();
	CHECK(!ret, "a buffer for several messages: %s", fi_strerror((int)-ret));
}

/* Where untagged messages came to: those of one sender in one buffer lie there in order. They may complete in any. */
struct place {
	struct slot *of;
	uint64_t turn;
	unsigned char *at;
};
static struct place *places[PROCS * EPS][EPS];
static uint64_t multi_all;

static void note_place(int src, int dst, uint64_t seq, struct arrival *x)
{
	struct place **all = &places[src][dst % endpoints], *p;

	if (!*all)
		*all = calloc(most, sizeof **all);
	CHECK(*all && seq < most, "untagged message %lu from %d", seq, src);
	p = &(*all)[seq];
	CHECK(!p->of, "untagged message %lu from %d twice", seq, src);
	*p = (struct place){x->of, x->of->seq, x->at};
	for (struct place *q = *all; q < p; q++)
		CHECK(q->of != p->of || q->turn != p->turn || q->at < p->at, "untagged message %lu from %d lies before an earlier one", seq, src);
	for (struct place *q = p + 1; q < *all + most; q++)
		CHECK(q->of != p->of || q->turn != p->turn || q->at > p->at, "untagged message %lu from %d lies behind a later one", seq, src);
}

static int take_multi(int peers)
{
	int n = 0;

	while (arrived_taken != arrived) {
		struct arrival x = arrivals[arrived_taken % 4096];

		__sync_synchronize();
		arrived_taken++;
		n++;
		if (x.flags & FI_RECV && x.len) {
			uint64_t tag, seq;
			int src, dst;
			struct what w;

			memcpy(&tag, x.at, 8);
			src = src_of(tag), dst = (int)(tag >> 32 & 0xfff);
			CHECK(src < peers && dst / endpoints == me, "an untagged message with %lx in it, %zu bytes", tag, x.len);
			seq = tag & 0xffffffff;
			note_place(src, dst, seq, &x);
			w = draw(0, src, dst, seq);
			w.len = w.len < 8 ? 8 : w.len > 60000 ? 60000 : w.len;
			CHECK(x.len == w.len, "untagged message %lu from %d: %zu bytes, not %zu", seq, src, x.len, w.len);
			for (size_t i = 0; i < w.len; i += 8) {
				uint64_t v = mixed(w.key + i);
				size_t k = w.len - i < 8 ? w.len - i : 8;

				CHECK(!i || !memcmp(x.at + i, &v, k), "untagged message %lu of %zu bytes from %d, call %d: wrong at %zu", seq, w.len, src, w.call, i);
			}
			CHECK(!!(x.flags & FI_REMOTE_CQ_DATA) == w.data && (!w.data || x.data == mixed(tag)), "untagged message %lu from %d: data", seq, src);
			multi_all++;
			__sync_fetch_and_add(&sh->messages, 1);
		}
		if (x.flags & FI_MULTI_RECV)
			post_multi(srx ? srx : eps[(x.of - multis) / 2], x.of);
	}
	return n;
}

static void *run(void *arg)
{
	struct actor *all = arg;
	int peers = procs * endpoints, t = all[0].t, left = 1;
	uint64_t start = now_ns();
	enum style style = style_of(t);

	while (left && !sh->failed) {
		int n = 0;

		left = 0;
		for (int e = 0; e < endpoints; e++) {
			struct actor *a = &all[e];

			for (int k = 0; k < 4; k++) {
				int dst = (int)at_random(&a->rnd, (unsigned)peers);

				for (int burst = at_random(&a->rnd, 4) ? 1 : 20; burst > 0 && send_one(a, dst); burst--)
					n++;
			}
			for (int p = 0; p < peers; p++) {
				left |= a->sent[p] < most;
				for (int k = 0; k < WINDOW; k++)
					left |= a->out[p * WINDOW + k].state == PENDING;
			}
			if (style == EXACT || style == OF_ONE) {
				for (int p = 0; p < peers; p++) {
					n += take_in_order(a, p, style);
					left |= a->taken[p] < most;
				}
			} else if (style == OF_ANY) {
				n += take_of_any(a, peers);
				left |= a->all_taken < most * (uint64_t)peers || a->in_first < a->in_last;
			} else if (style == PEEKS) {
				n += peek_one(a, peers);
				left |= a->all_taken < most * (uint64_t)peers || a->peek.state != FREE;
			}
		}
		if (style == UNTAGGED) {
			n += take_multi(peers);
			left |= multi_all < most * (uint64_t)(peers * endpoints);
		}
		n += poll_queue();
		if (n)
			start = now_ns();
		else
			sched_yield();
		if (!at_random(&all[0].rnd, 20000))
			usleep(1100000 * (at_random(&all[0].rnd, 3) == 0));
		if (now_ns() - start > 100000000000u) {
			sh->failed = 1;
			for (int e = 0; e < endpoints; e++)
				for (int p = 0; p < peers; p++)
					fprintf(stderr, "%d.%d thread %d style %d: peer %d sent %lu posted %lu taken %lu next %lu; all %lu\n", me, e, t, style, p, all[e].sent[p],
						all[e].posted[p], all[e].taken[p], all[e].next[p], all[e].all_taken);
			CHECK(0, "nothing for 100 s, seed %lu", seed);
		}
	}
	return NULL;
}

/* A peer that does not get the processor may be inside an access: FI_EBUSY. */
static void close_endpoint(struct fid_ep *ep)
{
	uint64_t start = now_ns();
	int ret;

	while ((ret = fi_close(&ep->fid)) == -FI_EBUSY && now_ns() - start < 100000000000u)
		usleep(1000);
	CHECK(!ret, "fi_close of an endpoint: %s", fi_strerror(-ret));
}

static void process(int slot)
{
	static char role[32];
	static struct actor actors[THREADS][EPS];
	struct fab_options o = {.threading = FI_THREAD_SAFE, .caps = FI_MSG | FI_TAGGED | FI_DIRECTED_RECV | FI_TAGGED_DIRECTED_RECV | FI_SOURCE | FI_MULTI_RECV,
				.sleeps = sleeps, .progress = is_auto ? FI_PROGRESS_AUTO : FI_PROGRESS_MANUAL, .tx_size = (size_t)tx_size, .cq_size = (size_t)cq_size};
	int peers = procs * endpoints;
	pthread_t ids[THREADS];

	me = slot;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	snprintf(role, sizeof role, "seed %lu, process %d", seed, me);
	fab_role = role;
	if (threads == 1 && !is_auto)
		o.threading = FI_THREAD_DOMAIN;
	fab_open(&f, o);
	eps[0] = f.ep;
	if (is_shared) {
		struct fi_rx_attr attr = *f.info->rx_attr;

		/* The endpoint that fab_open made has a context of its own. */
		OK(fi_close(&f.ep->fid));
		OK(fi_srx_context(f.domain, &attr, &srx, NULL));
		f.info->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
	}
	for (int e = is_shared ? 0 : 1; e < endpoints; e++) {
		OK(fi_endpoint(f.domain, f.info, &eps[e], NULL));
		OK(fi_ep_bind(eps[e], &f.av->fid, 0));
		OK(fi_ep_bind(eps[e], &f.cq->fid, FI_TRANSMIT | FI_RECV));
		if (srx)
			OK(fi_ep_bind(eps[e], &srx->fid, 0));
		OK(fi_enable(eps[e]));
	}
	for (int e = 0; e < endpoints; e++) {
		struct name *n = &sh->names[me * endpoints + e];

		n->len = sizeof n->bytes;
		OK(fi_getname(&eps[e]->fid, n->bytes, &n->len));
	}
	__sync_fetch_and_add(&sh->ready, 1);
	while (sh->ready < procs)
		usleep(1000);
	for (int p = 0; p < peers; p++)
		addrs[p] = fab_insert(&f, &sh->names[p]);
	for (int e = 0; style_of(0) == UNTAGGED && e < (srx ? 1 : endpoints); e++)
		for (int k = 0; k < 2; k++) {
			size_t least = 65536;

			multis[2 * e + k].buf = malloc(MULTI);
			OK(fi_setopt(srx ? &srx->fid : &eps[e]->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof least));
			post_multi(srx ? srx : eps[e], &multis[2 * e + k]);
		}
	for (int t = 0; t < threads; t++) {
		for (int e = 0; e < endpoints; e++) {
			struct actor *a = &actors[t][e];

			a->t = t, a->e = e, a->id = me * endpoints + e, a->rnd = mixed(seed + (uint64_t)(t * 1000 + a->id));
			a->out = calloc((size_t)peers * WINDOW, sizeof *a->out);
			a->in = calloc((size_t)peers * WINDOW, sizeof *a->in);
			CHECK(a->out && a->in, "memory");
		}
		CHECK(!pthread_create(&ids[t], NULL, run, actors[t]), "pthread_create");
	}
	for (int t = 0; t < threads; t++)
		pthread_join(ids[t], NULL);
	/* Peers may still need progress here. */
	__sync_fetch_and_add(&sh->done, 1);
	while (sh->done < procs && !sh->failed)
		if (!poll_queue())
			usleep(100);
	for (int e = 0; e < endpoints; e++)
		close_endpoint(eps[e]);
	if (srx)
		OK(fi_close(&srx->fid));
	f.ep = NULL;
	fab_close(&f);
	exit(sh->failed);
}

static int value(const char *arg, const char *name, int *to)
{
	size_t n = strlen(name);

	if (strncmp(arg, name, n) || arg[n] != '=')
		return 0;
	*to = atoi(arg + n + 1);
	return 1;
}

int main(int argc, char **argv)
{
	int status, bad = 0;

	CHECK(argc > 2, "random SEED MESSAGES [...]");
	seed = strtoull(argv[1], NULL, 0), most = strtoull(argv[2], NULL, 0);
	for (int i = 3; i < argc; i++) {
		is_auto |= !strcmp(argv[i], "auto"), sleeps |= !strcmp(argv[i], "sleep"), is_shared |= !strcmp(argv[i], "shared");
		(void)(value(argv[i], "processes", &procs) || value(argv[i], "endpoints", &endpoints) || value(argv[i], "threads", &threads) ||
		       value(argv[i], "tx", &tx_size) || value(argv[i], "cq", &cq_size));
	}
	CHECK(procs <= PROCS && endpoints <= EPS && threads <= THREADS, "too many");
	sh = shared_memory(sizeof *sh);
	for (int p = 0; p < procs; p++)
		if (!fork())
			process(p);
	while (wait(&status) > 0)
		if (status) {
			bad = 1;
			sh->failed = 1;
		}
	if (bad)
		printf("random FAILED, seed %lu\n", seed);
	else
		printf("random ok: seed %lu, %lu messages, FI_EAGAIN %lu times, %lu receives cancelled\n", seed, sh->messages, sh->again, sh->cancelled);
	return bad;
}
