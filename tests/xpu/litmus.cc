/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The device library with threads as lanes: order of what is put and of its signal, rings, mailboxes and their laps.
 *
 *     litmus NAME [SEED]      "ok NAME", or what is wrong; litmus alone lists the names
 *
 * Under ThreadSanitizer: payload is no atomic, so that an order which is not there is a race. */
#include "world.h"

static u64 seed;
enum : unsigned { threads = 2 * STRAIT_XPU_WARP };

template <scope S> static bool takes_part()
{
	return S == scope::block || (S == scope::warp && hw::thread_of_block() < STRAIT_XPU_WARP) ||
	       (S == scope::thread && hw::thread_of_block() == 0);
}

template <scope S> static void fill(u8 *to, u64 i, u64 n)
{
	for (u64 j = hw::rank<S>(); j < n; j += hw::size<S>())
		to[j] = pattern(i, j);
	hw::sync<S>();
}

template <scope S> static void compare(const u8 *from, u64 i, u64 n)
{
	for (u64 j = hw::rank<S>(); j < n; j += hw::size<S>())
		CHECK(from[j] == pattern(i, j));
}

/* Rank 0 puts and signals, rank 1 waits, looks, and says that it is done. */
template <scope S> static void put_and_signal(bool mapped, u64 count, u32 flags)
{
	world w(mapped);
	drain first(w, 0), second(w, 1);
	hw::launch(2, threads, seed, [&](unsigned block) {
		if (!takes_part<S>())
			return;
		const unsigned other = 1 - block;
		window to;
		CHECK(open(&to, &w.ctx[block], other, 0) == ok);
		for (u64 i = 0; i < count; i++) {
			/* 8 bytes and less with a weak signal are no release: nothing but the signal comes before. */
			const u64 n = (flags & weak ? 9 : 1) + random_of(seed + i) % 190, at = 4096 + random_of(i) % 32, from = 8192 + random_of(i + 7) % 32;
			const u64 expected = flags & add ? (i + 1) * 3 : i + 1;
			if (block == 0) {
				fill<S>(w.at(0, 0, from), i, n);
				CHECK(put_signal<S>(to, at, w.at(0, 0, from), n, 16, flags & add ? 3 : i + 1, flags) == ok);
				CHECK(wait_until<S>(&w.ctx[0], w.word(0, 0, 24), cmp::ge, i + 1) == ok);
			} else {
				CHECK(wait_until<S>(&w.ctx[1], w.word(1, 0, 16), cmp::ge, expected) == ok);
				compare<S>(w.at(1, 0, at), i, n);
				CHECK(signal<S>(to, 24, i + 1) == ok);
			}
		}
		CHECK(quiet<S>(to) == ok);
	});
}

static void put_signal_mapped()
{
	put_and_signal<scope::thread>(true, 150, strong);
	put_and_signal<scope::warp>(true, 100, weak);
	put_and_signal<scope::block>(true, 60, add);
}

static void put_signal_commands()
{
	put_and_signal<scope::thread>(false, 100, weak);
	put_and_signal<scope::warp>(false, 60, strong);
	put_and_signal<scope::block>(false, 40, add);
}

/* 16 bytes are whole: whatever signal is seen, the word beside it is its own. */
static void words()
{
	world w(true);
	const u64 count = 2000;
	hw::launch(2, STRAIT_XPU_WARP, seed, [&](unsigned block) {
		if (hw::thread_of_block() != 0)
			return;
		window to;
		CHECK(open(&to, &w.ctx[block], 1 - block, 0) == ok);
		for (u64 i = 1, word = 0, have = 0; i <= count && have < count; i++) {
			if (block == 0) {
				CHECK(put_word_signal(to, 32, random_of(i), i) == ok);
				continue;
			}
			CHECK(wait_word(&w.ctx[1], (pair64 *)w.at(1, 0, 32), cmp::gt, have, &word) == ok);
			while (random_of(++have) != word)
				CHECK(have < count);
		}
	});
}

static void packets()
{
	world w(true);
	hw::launch(2, threads, seed, [&](unsigned block) {
		const scope S = scope::warp;
		if (!takes_part<S>())
			return;
		window to;
		CHECK(open(&to, &w.ctx[block], 1 - block, 0) == ok);
		for (u64 i = 0; i < 150; i++) {
			const u64 n = 1 + random_of(seed + i) % 300;
			if (block == 0) {
				fill<S>(w.at(0, 0, 8192), i, n);
				CHECK(put_packets<S>(to, 1024, w.at(0, 0, 8192), n, (u32)i + 1) == ok);
				CHECK(wait_until<S>(&w.ctx[0], w.word(0, 0, 0), cmp::eq, i + 1) == ok);
			} else {
				CHECK(take_packets<S>(&w.ctx[1], w.at(1, 0, 1024), w.at(1, 0, 9001), n, (u32)i + 1) == ok);
				compare<S>(w.at(1, 0, 9001), i, n);
				CHECK(signal<S>(to, 0, i + 1) == ok);
			}
		}
	});
}

/* Two warps put into one mailbox of 32 lines, which so is lapped many times; two warps take. */
static void mailboxes()
{
	world w(true);
	const u64 count = 80, place = 48;
	hw::launch(2, threads, seed, [&](unsigned block) {
		const scope S = scope::warp;
		const unsigned warp = hw::thread_of_block() / STRAIT_XPU_WARP;
		mailbox m;
		CHECK(open_mailbox(&m, &w.ctx[block], 1 - block, 1, 0, 5) == ok);
		CHECK(mail_put<S>(m, 0, 0, nullptr, mail_most(m) + 1, 0, 0, 1) == err_msgsize);
		if (block == 1) {
			CHECK(mail_wait<S>(m, w.word(1, 0, 0), cmp::eq, 2 * count) == ok);
			for (u64 i = 0; i < 2 * count; i++)
				compare<S>(w.at(1, 0, 64 + i * place), i, 1 + random_of(i) % place);
			CHECK(mail_wait<S>(m, w.word(1, 0, 8), cmp::eq, 2) == ok);
			return;
		}
		u8 *from = w.at(0, 0, 4096 * (warp + 1));
		auto send = [&](u64 at, u64 n, u64 word) {
			int rc;
			while ((rc = mail_put<S>(m, 0, at, from, n, 0, word, 1, add)) == err_again)
				hw::sync<S>();
			CHECK(rc == ok);
		};
		for (u64 i = warp; i < 2 * count; i += 2) {
			fill<S>(from, i, 1 + random_of(i) % place);
			send(64 + i * place, 1 + random_of(i) % place, 0);
			hw::sync<S>();
		}
		CHECK(mail_quiet<S>(m) == ok);
		CHECK(hw::load_acquire(w.word(1, 0, 0)) >= count);
		send(0, 0, 8);
	});
}

/* Four warps post into a ring of 16 slots in all ways there are; a drain lets it be lapped many times. */
static void rings(u32 flags)
{
	world w(false, flags);
	drain host(w, 0);
	const u64 count = 40, place = 24;
	hw::launch(2, threads, seed, [&](unsigned block) {
		const unsigned warp = block * 2 + hw::thread_of_block() / STRAIT_XPU_WARP, lane = hw::thread_of_block() % STRAIT_XPU_WARP;
		window to;
		CHECK(open(&to, &w.ctx[0], 1, 0) == ok);
		for (u64 i = 0; i < count; i++) {
			/* A ring that has no room any more is reported, as one whose wait has no end. */
			const u64 begin = hw::now_ns();
			auto again = [&](int rc) {
				CHECK(rc == ok || (rc == err_again && hw::now_ns() - begin < WORLD_TIMEOUT_NS));
				return rc != ok;
			};
			const u64 k = (warp * count + i) * STRAIT_XPU_WARP, at = 4096 + (k + lane) * place;
			fill<scope::thread>(w.at(0, 0, at), k + lane, place);
			if (i % 3 == 0) {
				while (again(put<scope::thread>(to, at, w.at(0, 0, at), place)))
					;
			} else if (i % 3 == 1) {
				hw::sync<scope::warp>();
				while (again(put_signal<scope::warp>(to, at - lane * place, w.at(0, 0, at - lane * place),
								     place * STRAIT_XPU_WARP, 8, 1, add)))
					;
			} else {
				strait_xpu_command c = detail::command(to, STRAIT_XPU_OP_PUT, at, place, 0);
				const bool has = lane != i % STRAIT_XPU_WARP;
				CHECK(detail::source<scope::thread>(to, &c, w.at(0, 0, at), place, 0) == ok);
				while (again(post_each(to.ring, c, has)))
					;
				while (!has && again(put<scope::thread>(to, at, w.at(0, 0, at), place, untouched)))
					;
			}
			hw::sync<scope::warp>();
		}
		CHECK(quiet<scope::warp>(to) == ok);
	});
	CHECK(*w.word(1, 0, 8) == 4 * ((count + 1) / 3));
	for (u64 k = 0; k < 4 * count * STRAIT_XPU_WARP; k++)
		compare<scope::thread>(w.at(1, 0, 4096 + k * place), k, place);
}
static void ring_plain() { rings(0); }
static void ring_bell() { rings(STRAIT_XPU_RING_BELL); }

#include "litmus_more.h"
#include "litmus_gaspi.h"

struct test {
	const char *name;
	void (*run)();
};
static const test tests[] = {
	{"put_signal", put_signal_mapped}, {"put_signal_commands", put_signal_commands},
	{"words", words}, {"packets", packets}, {"mailboxes", mailboxes}, {"half_lines", half_lines}, {"ring", ring_plain}, {"ring_bell", ring_bell}, {"ring_shared", ring_shared}, {"lead", lead},
	{"copies", copies}, {"crc", crcs}, {"notify", notifications}, {"atomics", atomics}, {"ends", ends},
	{"errors", errors}, {"packets_long", packets_long}, {"same", same}, {"gaspi", gaspi}, {"gaspi_links", gaspi_links},
};

int main(int argc, char **argv)
{
	seed = argc > 2 ? strtoull(argv[2], nullptr, 10) : 1;
	for (const test &t : tests) {
		if (argc < 2) {
			puts(t.name);
		} else if (!strcmp(argv[1], t.name)) {
			t.run();
			printf("ok %s\n", t.name);
			return 0;
		}
	}
	return argc < 2 ? 0 : 2;
}
