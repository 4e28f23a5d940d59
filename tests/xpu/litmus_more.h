/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The rest of litmus.cc: copies, CRCs, notifications, atomic operations, the ends of waits. */

/* Every alignment of either side, to the byte. */
template <scope S> static void copy_all()
{
	static u8 from[600], to[600];
	for (u64 i = 0; i < 220; i++) {
		const u64 a = random_of(seed + i) % 40, b = random_of(i * 3) % 40, n = random_of(i * 7) % 500;
		hw::sync<S>();
		if (hw::rank<S>() == 0) {
			memset(to, 0xee, sizeof to);
			for (u64 j = 0; j < sizeof from; j++)
				from[j] = pattern(i, j);
		}
		hw::sync<S>();
		if (i % 2)
			detail::copy_out<S>(to + a, from + b, n);
		else
			detail::copy_in<S>(to + a, from + b, n);
		hw::sync<S>();
		for (u64 j = 0; j < sizeof to; j++)
			CHECK(to[j] == (j < a || j >= a + n ? 0xee : pattern(i, j - a + b)));
	}
}

static void copies()
{
	hw::launch(1, threads, seed, [](unsigned) {
		if (hw::thread_of_block() == 0)
			copy_all<scope::thread>();
	});
	hw::launch(1, STRAIT_XPU_WARP, seed, [](unsigned) { copy_all<scope::warp>(); });
	hw::launch(1, threads, seed, [](unsigned) { copy_all<scope::block>(); });
}

static u32 crc_by_bits(const u8 *p, u64 n, u32 poly)
{
	u32 s = ~0u;
	for (u64 i = 0; i < n; i++) {
		s ^= p[i];
		for (int b = 0; b < 8; b++)
			s = s & 1 ? s >> 1 ^ poly : s >> 1;
	}
	return ~s;
}

static void crcs()
{
	/* The check values of both, from the literature. */
	const char *digits = "123456789";
	CHECK(crc<scope::thread>(digits, 9) == 0xcbf43926u);
	CHECK(crc<scope::thread>(digits, 9, crc_kind::castagnoli) == 0xe3069283u);
	static u8 bytes[50000];
	for (u64 j = 0; j < sizeof bytes; j++)
		bytes[j] = pattern(seed, j);
	static crc_stats stats;
	hw::launch(1, threads, seed, [](unsigned) {
		for (u64 i = 0; i < 30; i++) {
			const u64 a = random_of(i) % 9, n = i < 26 ? random_of(seed * i) % 400 : 16384 + random_of(i) % 30000;
			for (crc_kind kind : {crc_kind::zlib, crc_kind::castagnoli}) {
				const u32 right = crc_by_bits(bytes + a, n, (u32)kind);
				CHECK(crc<scope::warp>(bytes + a, n, kind) == right);
				CHECK(crc<scope::block>(bytes + a, n, kind) == right);
				CHECK(crc<scope::thread>(bytes + a, n, kind) == right);
				CHECK(crc_check<scope::block>(bytes + a, n, right, kind, 2, &stats) == ok);
				CHECK(crc_check<scope::warp>(bytes + a, n, right ^ 1, kind, 2) == err_io);
			}
		}
	});
	CHECK(stats.checked == 60 && stats.retried == 0 && stats.failed == 0);
	CHECK(crc_check<scope::thread>(bytes, 77, 5, crc_kind::zlib, 3, &stats) == err_io);
	CHECK(stats.checked == 61 && stats.retried == 3 && stats.failed == 1);
	world w(true);
	window to;
	CHECK(open(&to, &w.ctx[0], 1, 0) == ok);
	memcpy(w.at(0, 0, 0), bytes, 1000);
	CHECK(put_signal_crc<scope::thread>(to, 4096, w.at(0, 0, 0), 1000, 8, 16, 5) == ok);
	CHECK(wait_crc<scope::thread>(&w.ctx[1], w.word(1, 0, 16), cmp::eq, 5, w.at(1, 0, 4096), 1000, w.word(1, 0, 8), &stats) == ok);
	*w.at(1, 0, 4500) ^= 1;
	CHECK(wait_crc<scope::thread>(&w.ctx[1], w.word(1, 0, 16), cmp::eq, 5, w.at(1, 0, 4096), 1000, w.word(1, 0, 8), &stats) == err_io);
}

/* A line of which one half is there is not there: either half of each line of a header and of a payload, on every lap. */
static void half_lines()
{
	world w(true);
	mailbox to, from;
	CHECK(open_mailbox(&to, &w.ctx[0], 1, 1, 0, 4) == ok && open_mailbox(&from, &w.ctx[1], 0, 1, 0, 4) == ok);
	const u64 n = 24, lines = detail::mail_header + n / 8;
	pair64 *ring = detail::lines_of(to.theirs);
	for (u64 i = 0; i < 2 * lines * 3; i++) {
		const u64 line = i / 2 % lines, first = *(u64 *)&to.ours->tail;
		pair64 *at = ring + detail::slot_of(to, first + line);
		u64 *half = i % 2 ? &at->hi : &at->lo;
		const u64 was = *half;
		fill<scope::thread>(w.at(0, 0, 0), i, n);
		CHECK(mail_put<scope::thread>(to, 0, 64, w.at(0, 0, 0), n, 0, 8, i + 1) == ok);
		hw::bring_out_all();
		const u64 now = *half;
		*half = was;
		CHECK(mail_take<scope::thread>(from, 1000000) == (line < detail::mail_header ? err_again : err_timedout));
		CHECK(*w.word(1, 0, 8) == i);
		*half = now;
		CHECK(mail_take<scope::thread>(from) == ok);
		compare<scope::thread>(w.at(1, 0, 64), i, n);
		CHECK(*w.word(1, 0, 8) == i + 1);
	}
}

/* Notifications in any order; each is taken once, and what came before it is there. */
template <scope S> static void notify_by(bool mapped)
{
	world w(mapped);
	drain host(w, 0);
	const u32 count = 30;
	hw::launch(2, threads, seed, [&](unsigned block) {
		if (!takes_part<S>())
			return;
		window to;
		CHECK(open(&to, &w.ctx[block], 1 - block, 0) == ok);
		const u64 bytes = 40;
		for (u32 i = 0; i < count && block == 0; i++) {
			const u32 id = i * 7 % count;
			fill<S>(w.at(0, 0, 8192 + id * bytes), id, bytes);
			CHECK(put_notify<S>(to, 4096 + id * bytes, w.at(0, 0, 8192 + id * bytes), bytes, to, 0, id, id + 1) == ok);
		}
		for (u32 i = 0, id = ~0u; i < count && block == 1; i++) {
			CHECK(notify_waitsome<S>(&w.ctx[1], (u32 *)w.at(1, 0, 0), 0, count, &id) == ok);
			CHECK(id < count);
			compare<S>(w.at(1, 0, 4096 + id * bytes), id, bytes);
			hw::sync<S>();
			if (hw::rank<S>() == 0)
				CHECK(notify_reset((u32 *)w.at(1, 0, 0), id) == id + 1);
			hw::sync<S>();
		}
		if (block == 0)
			CHECK(quiet<S>(to) == ok);
		u32 none = 77;
		if (block == 1)
			CHECK(notify_waitsome<S>(&w.ctx[1], (u32 *)w.at(1, 0, 0), 0, count, &none, 0) == err_timedout && none == 77);
	});
}

static void notifications()
{
	notify_by<scope::thread>(true);
	notify_by<scope::warp>(true);
	notify_by<scope::block>(true);
	world w(true);
	window to;
	CHECK(open(&to, &w.ctx[0], 1, 0) == ok);
	CHECK(notify<scope::thread>(to, 0, 3, 0) == err_inval);
	CHECK(notify<scope::thread>(to, 0, world::bytes / 4, 1) == err_inval);
}

static void atomics_by(bool mapped)
{
	world w(mapped);
	drain host(w, 0);
	hw::launch(1, threads, seed, [&](unsigned) {
		window to;
		CHECK(open(&to, &w.ctx[0], 1, 0) == ok);
		u64 *old = w.word(0, 0, 1024 + 8 * hw::thread_of_block());
		for (int i = 0; i < 10; i++) {
			int rc;
			while ((rc = atomic_fetch_add(to, 0, 1, old)) == err_again)
				;
			CHECK(rc == ok && *old < 10 * threads);
			while ((rc = atomic_add(to, 8, *old)) == err_again)
				;
			CHECK(rc == ok);
			while ((rc = atomic_compare_swap(to, 16, ~0ULL, 1, old)) == err_again)
				;
			CHECK(rc == ok && *old == 0);
		}
		CHECK(quiet<scope::thread>(to) == ok);
	});
	const u64 n = 10 * threads;
	CHECK(*w.word(1, 0, 0) == n && *w.word(1, 0, 8) == n * (n - 1) / 2 && *w.word(1, 0, 16) == 0);
}

static void atomics()
{
	atomics_by(true);
	atomics_by(false);
	world w(true);
	window to;
	u64 old = 0;
	CHECK(open(&to, &w.ctx[0], 1, 0) == ok);
	*w.word(1, 0, 0) = 12;
	CHECK(atomic_fetch_and(to, 0, 6, &old) == ok && old == 12 && *w.word(1, 0, 0) == 4);
	CHECK(atomic_fetch_or(to, 0, 3, &old) == ok && old == 4 && *w.word(1, 0, 0) == 7);
	CHECK(atomic_fetch_xor(to, 0, 5, &old) == ok && old == 7 && *w.word(1, 0, 0) == 2);
	CHECK(atomic_swap(to, 0, 9, &old) == ok && old == 2 && *w.word(1, 0, 0) == 9);
	CHECK(atomic_compare_swap(to, 0, 9, 11, &old) == ok && old == 9 && *w.word(1, 0, 0) == 11);
	CHECK(atomic_add(to, 4, 1) == err_inval && atomic_add(to, world::bytes, 1) == err_inval);
	CHECK(get_word(to, &old, 0) == ok && old == 11);
}

/* Each wait has an end, and each wrong argument an error. */
static void ends()
{
	world w(true), far(false);
	window to, by;
	u64 word = 0;
	u32 code = 0, ticket = 0;
	CHECK(open(&to, &w.ctx[0], 2, 0) == err_inval && open(&to, &w.ctx[0], 1, 2) == err_inval);
	CHECK(open(&to, &w.ctx[0], 1, 0) == ok && open(&by, &far.ctx[0], 1, 0) == ok);
	CHECK(put<scope::thread>(to, world::bytes - 8, &word, 9) == err_inval);
	CHECK(put<scope::thread>(to, ~0ULL, &word, 8) == err_inval);
	CHECK(signal<scope::thread>(to, 4, 1) == err_inval);
	CHECK(put<scope::thread>(by, 0, &w, 100) == err_inval); /* memory of no region */
	CHECK(put_word_signal(by, 0, 1, 1) == err_nosys && put_packets<scope::thread>(by, 0, &word, 8, 1) == err_nosys);
	CHECK(wait_until<scope::thread>(&w.ctx[0], &word, cmp::eq, 1, 0) == err_timedout);
	CHECK(wait_until<scope::thread>(&w.ctx[0], &word, cmp::eq, 1, 20000000) == err_timedout);
	CHECK(take_packets<scope::thread>(&w.ctx[0], w.at(0, 0, 0), &word, 8, 1, 20000000) == err_timedout);
	w.lost[0][1] = 107;
	CHECK(wait_until<scope::thread>(&w.ctx[0], &word, cmp::eq, 1, default_timeout, 1) == err_canceled);
	CHECK(quiet<scope::thread>(to) == err_canceled);
	CHECK(last_error(to, &code, &ticket) && code == 107);
	/* No drain: the ring fills, and what waits for it ends. */
	for (unsigned i = 0; i < 1u << world::log2_slots; i++)
		CHECK(put<scope::thread>(by, 0, &word, 8) == ok);
	CHECK(put<scope::thread>(by, 0, &word, 8) == err_again);
	CHECK(quiet<scope::thread>(by, 20000000) == err_timedout);
	CHECK(flush<scope::thread>(by, 20000000) == err_timedout);
	far.ring[0].beat_ns = 1000000;
	CHECK(open(&by, &far.ctx[0], 1, 0) == ok);
	CHECK(quiet<scope::thread>(by) == err_canceled);
	far.status[0].error = STRAIT_XPU_ERROR_ENDED | 5 | 3ULL << 32;
	CHECK(put<scope::thread>(by, 0, &word, 8) == err_canceled);
	CHECK(last_error(by, &code, &ticket) && code == 5 && ticket == 3);
	/* A mailbox that is not taken fills, too; and a place outside all regions is refused by the reader. */
	world mail(true);
	mailbox m, back;
	CHECK(open_mailbox(&m, &mail.ctx[0], 1, 1, 0, 4) == ok && open_mailbox(&back, &mail.ctx[1], 0, 1, 0, 4) == ok);
	CHECK(mail_put<scope::thread>(m, 0, world::bytes - 8, &word, 16, 0, 0, 1) == ok);
	CHECK(mail_put<scope::thread>(m, 9, 0, &word, 16, 0, 0, 1) == ok);
	CHECK(mail_put<scope::thread>(m, 0, 0, &word, 16, 0, 0, 1) == err_again);
	CHECK(mail_quiet<scope::thread>(m, 20000000) == err_timedout);
	CHECK(mail_take<scope::thread>(back) == err_inval && mail_take<scope::thread>(back) == err_inval);
	CHECK(mail_take<scope::thread>(back) == ok); /* what mail_quiet sent */
	CHECK(mail_take<scope::thread>(back) == err_again && *mail.word(1, 0, 0) == 0);
	CHECK(mail_wait<scope::thread>(back, mail.word(1, 0, 0), cmp::eq, 1, 20000000) == err_timedout);
	/* Just before the region, by going around the end of all offsets. */
	CHECK(open_mailbox(&m, &mail.ctx[0], 0, 1, ~0ULL << 4, 4) == err_inval);
	/* Longer than a command says: not what is left of the length. */
	world huge(false);
	huge.own[0][0].length = huge.peers[0][world::regions].length = 1ULL << 41;
	CHECK(open(&by, &huge.ctx[0], 1, 0) == ok);
	void *src = huge.at(0, 0, 0);
	CHECK(put<scope::thread>(by, 0, src, (1ULL << 40) + 16) == err_msgsize);
	CHECK(get<scope::thread>(by, src, 0, (1ULL << 40) + 16) == err_msgsize);
	CHECK(put_signal<scope::thread>(by, 0, src, (1ULL << 40) + 16, 1ULL << 40, 1) == err_msgsize);
	CHECK(put<scope::thread>(by, 0, src, 16) == ok && huge.produced[0].reserved == 1);
}

/* Two threads have one `ring`, with room for one more command: whenever the second comes, one of them gets it. */
static ring shared;
static unsigned steps;
static int second;

static void ring_shared()
{
	static const strait_xpu_command nop = {STRAIT_XPU_OP_NOP, 0, STRAIT_XPU_ANY, STRAIT_XPU_NO_REGION, 0, 0, 0, 0, 0, 0, 0};
	const u64 slots = 1u << world::log2_slots;
	for (unsigned at = 1; at < 16; at++) {
		world w(false);
		CHECK(open_ring(&shared, &w.ring[0]) == ok);
		for (u64 i = 0; i < slots; i++)
			CHECK(post<scope::thread>(shared, nop) == ok);
		w.status[0].consumed = 1;
		steps = at;
		second = err_again;
		between = [] {
			if (steps && --steps == 0)
				second = post<scope::thread>(shared, nop);
		};
		const int first = post<scope::thread>(shared, nop);
		between = nullptr;
		CHECK((first == ok) != (second == ok) && w.produced[0].reserved == slots + 1);
		CHECK(post<scope::thread>(shared, nop) == err_again);
		hw::fence();
	}
}

/* A wait's first look is held back by the ring's lead, which it gets from how those before came: `look` is the one before which
 * the host reports. */
static unsigned look, look_of_host;
static u64 *reported;

static u64 waited(world &w, ring &r, u32 lead, unsigned when)
{
	static const strait_xpu_command nop = {STRAIT_XPU_OP_NOP, 0, STRAIT_XPU_ANY, STRAIT_XPU_NO_REGION, 0, 0, 0, 0, 0, 0, 0};
	u64 ticket = 0;
	w.status[0].consumed = w.status[0].done;
	CHECK(post<scope::thread>(r, nop, &ticket) == ok);
	reported = &w.status[0].done;
	look = 0;
	look_of_host = when;
	r.lead = lead;
	between = [] {
		if (++look == look_of_host)
			__atomic_fetch_add(reported, 1, __ATOMIC_RELEASE);
	};
	CHECK(wait_ticket(r, ticket) == ok);
	between = nullptr;
	return hw::ticks() - r.written;
}

static void lead()
{
	world w(false);
	ring r;
	const u32 long_lead = 30000000;
	CHECK(open_ring(&r, &w.ring[0]) == ok && r.lead == 0);
	/* One that is not held, since the wait began later than that, teaches nothing. */
	for (unsigned i = 0; i < 50 && (i == 0 || r.lead == long_lead); i++)
		CHECK(waited(w, r, long_lead, 1) >= long_lead);
	CHECK(r.lead < long_lead);
	waited(w, r, 0, 1);
	CHECK(r.lead == 0);
	waited(w, r, 0, 2);
	CHECK(r.lead == detail::lead_step);
	waited(w, r, 640, 3);
	CHECK(r.lead == 640 + detail::lead_step);
	waited(w, r, 640, 4);
	CHECK(r.lead == 640);
	waited(w, r, detail::most_lead, 2);
	CHECK(r.lead == detail::most_lead);
	/* Long after the command it is not held, and teaches nothing. */
	usleep(1000);
	w.status[0].consumed = w.status[0].done;
	CHECK(wait_ticket(r, w.status[0].done - 1) == ok && r.lead == detail::most_lead);
	/* Time 0 looks at once. */
	waited(w, r, 0, 1);
	r.written = hw::ticks();
	r.lead = 3000000000u;
	CHECK(wait_ticket(r, w.status[0].done, 0) == err_timedout && hw::ticks() - r.written < r.lead);
}

/* An error of another operation, and one from before, are distinguished from one's own. */
static void errors()
{
	world w(false);
	drain d(w, 0);
	window to, refused;
	CHECK(open(&to, &w.ctx[0], 1, 0) == ok && open(&refused, &w.ctx[0], 1, 0) == ok);
	refused.key = drain::bad_key;
	u64 *old = w.word(0, 0, 64), ticket = 0;
	*old = 99;
	CHECK(atomic_fetch_add(refused, 0, 1, old) == -13 && *old == 99 && *w.word(1, 0, 0) == 0);
	/* The ring keeps its first error; what succeeds after it has. */
	CHECK(atomic_fetch_add(to, 0, 5, old) == ok && *old == 0 && *w.word(1, 0, 0) == 5);
	CHECK(atomic_compare_swap(to, 0, 5, 6, old) == ok && *old == 5);
	CHECK(atomic_fetch_add(refused, 0, 1, old) == err_io && *w.word(1, 0, 0) == 6);
	CHECK(quiet<scope::thread>(to) == -13);
	strait_xpu_command c = detail::command(to, STRAIT_XPU_OP_NOP, 0, 0, 0);
	CHECK(post<scope::thread>(to.ring, c, &ticket) == ok && wait_ticket(to.ring, ticket) == ok);
	strait_xpu_counter counter = {};
	const u64 before = read_counter_errors(&counter);
	counter.host.timeout_ns = 20000000;
	CHECK(wait_counter(&counter, 1) == err_timedout);
	counter.host.errors = 1;
	CHECK(wait_counter(&counter, 1) == err_timedout);
	CHECK(wait_counter(&counter, 1, default_timeout, before) == err_io);
	counter.host.value = 1;
	CHECK(wait_counter(&counter, 1, default_timeout, before) == ok);
	CHECK(wait_counter(&counter, 2, default_timeout, read_counter_errors(&counter)) == err_timedout);
	counter.host.error = STRAIT_XPU_ERROR_ENDED | 125;
	CHECK(wait_counter(&counter, 2) == err_canceled);
}

/* Packets of each length around what a thread has under way at once, to and from each alignment. */
template <scope S> static void packets_of(unsigned lanes)
{
	const u64 at_once = 12 * lanes;
	const u64 sizes[] = {0, 1, 8, at_once - 4, at_once, at_once + 1, 2 * at_once, 2 * at_once + 3, 4 * at_once, 9 * at_once + 5, 383, 384, 385, 513};
	world w(true);
	hw::launch(2, lanes, seed, [&](unsigned block) {
		window to;
		CHECK(open(&to, &w.ctx[block], 1 - block, 0) == ok);
		u32 epoch = 0;
		for (u64 n : sizes)
			for (u64 skew : {0, 8, 3}) {
				epoch++;
				if (block == 0) {
					fill<S>(w.at(0, 0, skew), epoch, n);
					hw::sync<S>();
					CHECK(put_packets<S>(to, 8192, w.at(0, 0, skew), n, epoch) == ok);
					CHECK(wait_until<S>(&w.ctx[0], w.word(0, 0, 4096), cmp::ge, epoch) == ok);
				} else {
					u8 *dst = w.at(1, 0, skew);
					if (hw::rank<S>() == 0)
						dst[n] = 0x5a;
					hw::sync<S>();
					CHECK(take_packets<S>(&w.ctx[1], w.at(1, 0, 8192), dst, n, epoch) == ok);
					for (u64 j = 0; j < n; j++)
						CHECK(dst[j] == pattern(epoch, j));
					CHECK(dst[n] == 0x5a && (epoch > 1 || *w.word(1, 0, 8192 + packets_size(n)) == 0));
					CHECK(signal<S>(to, 4096, epoch) == ok);
				}
			}
	});
}

static void packets_long()
{
	packets_of<scope::thread>(1);
	packets_of<scope::warp>(STRAIT_XPU_WARP);
	packets_of<scope::block>(2 * STRAIT_XPU_WARP);
	CHECK(packets_size(0) == 0 && packets_size(1) == 16 && packets_size(9) == 48 && packets_size(128) == 512);
	CHECK(packets_size(129) == 512 && packets_size(384) == 512 && packets_size(385) == 528 && packets_size(~0ULL) > ~0ULL / 4);
}

/* All threads of a scope get the same result, whatever is written meanwhile by the host and by the peer. */
static void same()
{
	world w(true), far(false);
	bool stop = false;
	far.ring[0].log2_slots = 1;
	far.produced[0].reserved = 2;
	const u64 lines[2] = {4, 12};
	detail::mailbox_words *box = (detail::mailbox_words *)w.at(1, 1, 0);
	std::thread writer([&] {
		for (u64 i = 0; !__atomic_load_n(&stop, __ATOMIC_ACQUIRE); i++) {
			__atomic_store_n(&w.lost[0][1], i % 2, __ATOMIC_RELAXED);
			__atomic_store_n(&far.status[0].error, i % 2 ? STRAIT_XPU_ERROR_ENDED | 5 : 0, __ATOMIC_RELAXED);
			/* A header of two messages by turns, in the lap that the reader is in. */
			const u64 head = __atomic_load_n(&box->head, __ATOMIC_RELAXED);
			for (u64 l = head; l < head + 16; l++) {
				const u64 place = l == head + 1 ? (i % 2) << 40 : l == head ? lines[i % 2] * 2 : 0;
				const pair64 p = detail::packet(place, (u32)(l >> 4) + 1);
				u64 *to = (u64 *)(detail::lines_of(box) + l % 16);
				__atomic_store_n(to, p.lo, __ATOMIC_RELAXED);
				__atomic_store_n(to + 1, p.hi, __ATOMIC_RELAXED);
			}
			fuzz();
		}
	});
	hw::launch(1, threads, seed, [&](unsigned) {
		window to, by;
		mailbox back;
		CHECK(open(&to, &w.ctx[0], 1, 0) == ok && open(&by, &far.ctx[0], 1, 0) == ok);
		CHECK(open_mailbox(&back, &w.ctx[1], 0, 1, 0, 4) == ok);
		const strait_xpu_command c = detail::command(by, STRAIT_XPU_OP_PUT, 0, 8, 0);
		for (unsigned i = 0; i < 200; i++)
			for (const int rc : {quiet<scope::block>(to), post<scope::block>(by.ring, c), mail_take<scope::block>(back)}) {
				const u64 first = hw::broadcast<scope::warp>((u64)rc);
				CHECK(first == (u64)rc);
			}
		/* Two would have room, four not even in an empty ring. */
		CHECK(post_each(by.ring, c, true) == err_msgsize);
	});
	__atomic_store_n(&stop, true, __ATOMIC_RELEASE);
	writer.join();
}
