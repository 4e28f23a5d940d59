/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What a process of storm.c does: sends, receives, writes, and looks at what came of them. */
#undef PART
#define PART 2

static void verify_message(struct work *w, size_t len)
{
	uint64_t h[6];
	size_t bad;
	struct peer *p;

	memcpy(h, w->buf, sizeof h);
	if (len < sizeof h || h[0] != MAGIC || h[1] >= (uint64_t)procs || len != h[5]) {
		FOUND(wrong, "received %zu bytes that are no message, class %d: %016lx %016lx", len, w->class, h[0], h[1]);
		return;
	}
	if (h[3] != gen) {
		FOUND(wrong, "a message for incarnation %lu", h[3]);
		return;
	}
	bad = unlike(w->buf, sizeof h, len, mix(h[1], h[2], h[4]));
	if (bad != len) {
		FOUND(wrong, "message %lu from %lu.%lu: wrong at %zu of %zu, canaries in it %d", h[4], h[1], h[2], bad, len,
		      has_canary(w->buf, len));
		return;
	}
	p = &peers[h[1]];
	if (p->seen_gen != h[2]) {
		p->seen_gen = h[2];
		memset(p->seen, 0, SEEN / 8);
	}
	if (h[4] < SEEN) {
		if (p->seen[h[4] / 64] >> h[4] % 64 & 1)
			FOUND(wrong, "message %lu from %lu.%lu came twice", h[4], h[1], h[2]);
		p->seen[h[4] / 64] |= (uint64_t)1 << h[4] % 64;
	}
	note_received((int)h[1], h[2], h[4]);
	COUNT(messages, 1);
	COUNT(bytes, len);
}

/* An operation has ended. */
static void ended(struct work *w, int err, size_t len)
{
	struct peer *p = &peers[w->peer];
	struct slot *s = &sh->slots[w->peer];
	int lives = w->gen > s->doomed, r = w->region;

	if (!w->busy) {
		FOUND(wrong, "a completion for no operation");
		return;
	}
	if (err) {
		COUNT(failed, 1);
		COUNT(errs[err & 511], 1);
		if (w->kind == RECVS) {
			if (w->directed && lives && err != FI_ECANCELED && has(CANCEL) == 0)
				FOUND(blamed, "a receive from %d.%lu, which lives: %s", w->peer, w->gen, fi_strerror(err));
		} else if (lives && !w->cancelled && (w->kind == SENDS || w->epoch > s->epochs_over[r])) {
			FOUND(blamed, "kind %d, %zu bytes to %d.%lu, which lives: %s", w->kind, w->len, w->peer, w->gen, fi_strerror(err));
		}
	}
	switch (w->kind) {
	case RECVS:
		if (!err)
			verify_message(w, len);
		break;
	case SENDS:
		if (!err)
			note_sent(w->peer, w->gen, w->key, (int)w->checked);
		break;
	case WRITES:
		COUNT(writes, 1);
		if (p->gen != w->gen || p->epoch[r] != w->epoch || !w->checked)
			break;
		if (err) {
			p->tainted[r] = 1;
		} else {
			p->wkey[r] = w->key;
			p->wlen[r] = w->len;
		}
		break;
	case READS: {
		uint64_t fresh = mix((uint64_t)w->peer + 100, w->epoch, 0);
		size_t at = (size_t)me * SUB + (w->checked ? 0 : SUB / 2), bad;

		COUNT(reads, 1);
		if (err)
			break;
		if (has_canary(w->buf, w->len)) {
			FOUND(wrong, "a read of %zu bytes from %d.%lu has canaries", w->len, w->peer, w->gen);
			break;
		}
		if (!w->checked || p->gen != w->gen || p->epoch[r] != w->epoch || p->tainted[r])
			break;
		/* What was written last, and what has been there from the beginning behind it. */
		bad = w->len;
		if (p->wlen[r])
			bad = unlike(w->buf, 0, w->len < p->wlen[r] ? w->len : p->wlen[r], p->wkey[r]);
		else
			for (size_t i = 0; i + 8 <= w->len && bad == w->len; i += 8) {
				uint64_t want = word_at(fresh, (at + i) / 8);

				if (memcmp(w->buf + i, &want, 8))
					bad = i;
			}
		if (bad < w->len && bad < (p->wlen[r] ? p->wlen[r] : w->len))
			FOUND(wrong, "a read of %zu bytes from %d.%lu: wrong at %zu (%zu written)", w->len, w->peer, w->gen, bad, p->wlen[r]);
		break;
	}
	case FETCHES:
		COUNT(atomics, 1);
		if (p->gen != w->gen || p->epoch[r] != w->epoch)
			break;
		if (err) {
			p->sum_known[r] = 0;
		} else {
			uint64_t old;

			memcpy(&old, w->buf, 8);
			if (p->sum_known[r] && old != p->sum[r])
				FOUND(wrong, "a fetching atomic at %d.%lu: %lu, not %lu", w->peer, w->gen, old, p->sum[r]);
			p->sum[r] = old + 1;
			p->sum_known[r] = !p->older[r];
		}
	}
	give_back(w);
}

static int poll_once(void)
{
	struct fi_cq_tagged_entry e[8];
	ssize_t n;

	HERE();
	n = fi_cq_read(f.cq, e, 8);
	if (n == -FI_EAGAIN)
		return 0;
	if (n == -FI_EAVAIL) {
		struct fi_cq_err_entry err = {0};

		if (fi_cq_readerr(f.cq, &err, 0) == 1 && err.op_context)
			ended(err.op_context, err.err, err.len);
		/* Without a context: a write of which no completion was asked for. */
		return 1;
	}
	if (n < 0) {
		FOUND(wrong, "fi_cq_read: %s", fi_strerror((int)-n));
		return 0;
	}
	for (ssize_t i = 0; i < n; i++)
		if (e[i].op_context)
			ended(e[i].op_context, 0, e[i].len);
	return (int)n;
}

/* What was posted: kept, or its buffer is ours again. */
static void posted(struct work *w, struct peer *p, ssize_t ret)
{
	if (!ret) {
		if (p)
			p->again = 0;
		return;
	}
	if (ret == -FI_EAGAIN) {
		if (p && !p->again)
			p->again = now_ns();
		if (p && p->again && now_ns() - p->again > WATCHDOG && p->gen > sh->slots[w->peer].doomed) {
			FOUND(hangs, "%d.%lu takes nothing for 8 s", w->peer, p->gen);
			p->again = now_ns();
		}
		give_back(w);
	} else {
		ended(w, (int)-ret, 0);
	}
}

static int take_region(int k, int r)
{
	return sh->slots[k].epoch[r] == peers[k].epoch[r];
}

/* Learns what a peer is now. */
static void meet(int k)
{
	struct slot *s = &sh->slots[k];
	struct peer *p = &peers[k];
	uint64_t v = s->version, g, key[REGIONS], at[REGIONS], epoch[REGIONS], born[REGIONS];
	struct name name;

	if (v & 1)
		return;
	__sync_synchronize();
	g = s->gen;
	name = s->name;
	for (int r = 0; r < REGIONS; r++) {
		key[r] = s->key[r];
		at[r] = s->at[r];
		epoch[r] = s->epoch[r];
		born[r] = s->born[r];
	}
	__sync_synchronize();
	if (s->version != v || !g)
		return;
	if (p->gen != g) {
		int idle = p->gen != 0;

		for (int i = 0; i < SLOTS; i++)
			idle &= !(sends[i].busy && sends[i].peer == k) && !(recvs[i].busy && recvs[i].directed && recvs[i].peer == k);
		for (int r = 0; r < REGIONS; r++)
			idle &= !rmas[k][r].busy;
		HERE();
		if (idle)
			OK(fi_av_remove(f.av, &p->addr, 1, 0));
		p->addr = fab_insert(&f, &name);
		p->gen = g;
		p->seq = 0;
		open_ledger(k, g);
		p->again = 0;
	}
	for (int r = 0; r < REGIONS; r++)
		if (p->epoch[r] != epoch[r]) {
			p->epoch[r] = epoch[r];
			p->keys[r] = key[r];
			p->at[r] = at[r];
			p->wlen[r] = 0;
			p->older[r] = born[r] < opened;
			p->tainted[r] = rmas[k][r].busy || p->older[r];
			p->sum[r] = 0;
			p->sum_known[r] = !rmas[k][r].busy && !p->older[r];
		}
}

/* A send of which a completion comes. */
static ssize_t send_kept(struct work *w, const struct peer *p)
{
	struct iovec iov = {w->buf, w->len};
	struct fi_msg m = {.msg_iov = &iov, .iov_count = 1, .addr = p->addr, .context = w};
	struct fi_msg_tagged t = {.msg_iov = &iov, .iov_count = 1, .addr = p->addr, .tag = (uint64_t)w->class, .context = w};
	uint64_t flags = FI_COMPLETION | (draw(8) ? 0 : FI_FENCE);

	w->checked = draw(2);
	if (w->checked)
		flags |= FI_DELIVERY_COMPLETE;
	return w->class == 3 ? fi_sendmsg(f.ep, &m, flags) : fi_tsendmsg(f.ep, &t, flags);
}

static void send_one(int k)
{
	struct peer *p = &peers[k];
	struct work *w = &sends[draw(SLOTS)];
	uint64_t h[6] = {MAGIC, (uint64_t)me, gen, p->gen, p->seq, 0};
	int inject;
	ssize_t ret;

	if (w->busy)
		return;
	check_canaries(w);
	w->len = sizeof h + draw(draw(4) ? w->room_len - sizeof h : w->room_len < 4000 ? w->room_len - sizeof h : 4000);
	if (w->len > w->room_len)
		w->len = w->room_len;
	h[5] = w->len;
	paint(w->buf, sizeof h, w->len, mix(h[1], h[2], h[4]));
	memcpy(w->buf, h, sizeof h);
	w->peer = k, w->gen = p->gen, w->posted = now_ns(), w->cancelled = 0, w->busy = 1;
	w->key = p->seq, w->checked = 0;
	inject = w->len <= f.info->tx_attr->inject_size && !draw(3);
	HERE();
	if (inject) {
		ret = w->class == 3 ? fi_inject(f.ep, w->buf, w->len, p->addr) : fi_tinject(f.ep, w->buf, w->len, p->addr, (uint64_t)w->class);
		if (!ret) {
			note_sent(k, p->gen, w->key, 0);
			p->seq++;
			p->again = 0;
			give_back(w);
			return;
		}
	} else {
		ret = send_kept(w, p);
	}
	if (!ret)
		p->seq++;
	posted(w, p, ret);
}

static void recv_one(struct work *w)
{
	struct peer *p = NULL;
	fi_addr_t from = FI_ADDR_UNSPEC;
	ssize_t ret;

	check_canaries(w);
	w->peer = me, w->gen = gen;
	if (w->directed) {
		int k = (int)draw((uint64_t)procs);

		p = &peers[k];
		if (!has(DIRECTED) || k == me || !p->gen)
			return;
		from = p->addr;
		w->peer = k, w->gen = p->gen;
	}
	w->posted = now_ns(), w->cancelled = 0, w->len = w->room_len, w->busy = 1;
	HERE();
	if (w->class == 3)
		ret = fi_recv(f.ep, w->buf, w->room_len, NULL, from, w);
	else
		ret = fi_trecv(f.ep, w->buf, w->room_len, NULL, from, (uint64_t)w->class, 0, w);
	posted(w, p, ret);
}

static void rma_one(int k)
{
	struct peer *p = &peers[k];
	int r = (int)draw(REGIONS), what = (int)draw(10);
	struct work *w = &rmas[k][r];
	uint64_t part = p->at[r] + (uint64_t)me * SUB, flags = FI_COMPLETION;
	struct iovec iov;
	struct fi_rma_iov there;
	struct fi_msg_rma m;
	ssize_t ret;

	if (w->busy || !p->keys[r] || !take_region(k, r))
		return;
	check_canaries(w);
	w->gen = p->gen, w->epoch = p->epoch[r], w->posted = now_ns(), w->cancelled = 0, w->busy = 1, w->checked = 1;
	if (what < 2 && has(ATOMIC)) {
		struct fi_ioc one = {w->buf + 64, 1}, old = {w->buf, 1};
		struct fi_rma_ioc at = {p->at[r] + (uint64_t)MOST * SUB + (uint64_t)me * WORDS, 1, p->keys[r]};
		struct fi_msg_atomic a = {.msg_iov = &one, .iov_count = 1, .addr = p->addr, .rma_iov = &at, .rma_iov_count = 1,
					  .datatype = FI_UINT64, .op = FI_SUM, .context = w};

		w->kind = FETCHES;
		w->len = 8;
		memcpy(w->buf + 64, &(uint64_t){1}, 8);
		HERE();
		posted(w, p, fi_fetch_atomicmsg(f.ep, &a, &old, NULL, 1, flags));
		return;
	}
	w->len = 8 + (draw(2) ? draw(SUB / 2 - 8) : draw(9000));
	if (what == 2 && w->len <= f.info->tx_attr->inject_size) {
		/* It has no completion. */
		paint(w->buf, 0, w->len, rnd);
		HERE();
		(void)!fi_inject_write(f.ep, w->buf, w->len, p->addr, part + SUB / 2, p->keys[r]);
		give_back(w);
		return;
	}
	w->checked = draw(3) != 0;
	w->kind = what < 6 ? WRITES : READS;
	w->key = mix((uint64_t)me + 200, gen, next_random(&rnd));
	if (w->kind == WRITES)
		paint(w->buf, 0, w->len, w->key);
	iov = (struct iovec){w->buf, w->len};
	there = (struct fi_rma_iov){part + (w->checked ? 0 : SUB / 2), w->len, p->keys[r]};
	m = (struct fi_msg_rma){.msg_iov = &iov, .iov_count = 1, .addr = p->addr, .rma_iov = &there, .rma_iov_count = 1, .context = w};
	if (!draw(4))
		flags |= FI_FENCE;
	HERE();
	if (w->kind == WRITES)
		ret = fi_writemsg(f.ep, &m, flags | (w->checked || draw(2) ? FI_DELIVERY_COMPLETE : 0));
	else
		ret = fi_readmsg(f.ep, &m, flags);
	posted(w, p, ret);
}

/* What we expose has changed. */
static void publish(int whole)
{
	struct slot *s = &sh->slots[me];

	s->version++;
	__sync_synchronize();
	if (whole) {
		s->gen = gen;
		s->name = f.name;
	}
	for (int r = 0; r < REGIONS; r++) {
		s->key[r] = regions[r].state == OPEN ? fi_mr_key(regions[r].mr) : 0;
		s->at[r] = f.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)REGION(me, r) : 0;
		s->epoch[r] = regions[r].epoch;
		s->born[r] = regions[r].born;
	}
	__sync_synchronize();
	s->version++;
}

static void expose(int r)
{
	static uint64_t epochs;
	struct region *g = &regions[r];

	g->epoch = (gen << 24) + ++epochs;
	paint(REGION(me, r), 0, (size_t)MOST * SUB, mix((uint64_t)me + 100, g->epoch, 0));
	memset(REGION(me, r) + (size_t)MOST * SUB, 0, (size_t)MOST * WORDS);
	HERE();
	OK(fi_mr_reg(f.domain, REGION(me, r), REGION_LEN, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, (uint64_t)r, r ? FI_RMA_EVENT : 0, &g->mr,
		     NULL));
	if (r)
		OK(fi_mr_bind(g->mr, &g->cntr->fid, FI_REMOTE_READ | FI_REMOTE_WRITE));
	g->state = OPEN;
	g->born = now_ns();
	g->until = g->born + draw(120000000);
}

static int busy_close(struct fid *fid, uint64_t since, const char *what)
{
	int ret;

	HERE();
	ret = fi_close(fid);
	if (now_ns() - since > WATCHDOG)
		FOUND(hangs, "closing %s: %lu ms, %s", what, (now_ns() - since) / 1000000, fi_strerror(-ret));
	if (ret == -FI_EBUSY) {
		COUNT(busy, 1);
		return now_ns() - since < 2 * WATCHDOG;
	}
	CHECK(!ret, "closing %s: %s", what, fi_strerror(-ret));
	return 0;
}

/* The next step of what a region goes through. */
static void turn_region(int r)
{
	struct region *g = &regions[r];
	size_t bad;

	switch (g->state) {
	case CLOSED:
		break;
	case OPEN:
		if (!has(DEREG) || now_ns() < g->until)
			break;
		g->since = now_ns();
		sh->slots[me].epochs_over[r] = g->epoch;
		g->state = CLOSING;
		/* fallthrough */
	case CLOSING:
		if (busy_close(&g->mr->fid, g->since, "a region"))
			break;
		COUNT(deregs, 1);
		g->state = has(MUNMAP) && draw(2) ? UNMAPPED : WATCHED;
		if (g->state == UNMAPPED)
			munmap(REGION(me, r), REGION_LEN);
		else
			memset(REGION(me, r), CANARY, REGION_LEN);
		g->until = now_ns() + draw(30000000);
		publish(0);
		break;
	case WATCHED:
	case UNMAPPED:
		if (now_ns() < g->until)
			break;
		if (g->state == UNMAPPED)
			map_at(REGION(me, r), REGION_LEN);
		else if ((bad = not_canary(REGION(me, r), REGION_LEN)))
			FOUND(touched, "%zu bytes of a region that was closed", bad);
		expose(r);
		publish(0);
	}
}

/* Every operation ends. */
static void look_for_hangs(void)
{
	uint64_t now = now_ns();

	for (int i = 0; i < 2 * SLOTS + MOST * REGIONS; i++) {
		struct work *w = i < SLOTS ? &sends[i] : i < 2 * SLOTS ? &recvs[i - SLOTS] : &rmas[(i - 2 * SLOTS) / REGIONS][i % REGIONS];
		int waits = w->kind == RECVS && !w->cancelled && (!w->directed || w->gen > sh->slots[w->peer].doomed);

		if (waits)
			w->posted = now; /* a receive may wait for as long as there is a peer to send */
		if (w->busy && !w->reported && now - w->posted > WATCHDOG) {
			FOUND(hangs, "kind %d, %zu bytes, peer %d.%lu (%s), posted %lu ms ago, cancelled %d", w->kind, w->len, w->peer,
			      w->gen, w->gen > sh->slots[w->peer].doomed ? "lives" : "is gone", (now - w->posted) / 1000000, w->cancelled);
			w->reported = 1;
		}
	}
}

static void cancel_one(void)
{
	struct work *w = draw(2) ? &recvs[draw(SLOTS)] : &sends[draw(SLOTS)];

	if (!w->busy || w->cancelled)
		return;
	HERE();
	if (!fi_cancel(&f.ep->fid, w)) {
		COUNT(cancels, 1);
		w->cancelled = 1;
		w->posted = now_ns();
	}
}
