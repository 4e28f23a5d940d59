/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Lines (put_lines, take_lines) with threads as lanes, of warps of 16: two lines a store.
 *
 *     lines NAME [SEED]      "ok NAME", or what is wrong; lines alone lists the names */
#define STRAIT_XPU_WARP 16
#include "world.h"

static u64 seed;

/* Every byte of every round, with source and place at any alignment. */
template <scope S> static void rounds(u64 count, u64 most)
{
	world w(true);
	hw::launch(2, S == scope::warp ? STRAIT_XPU_WARP : 2 * STRAIT_XPU_WARP, seed, [&](unsigned block) {
		window to;
		CHECK(open(&to, &w.ctx[block], 1 - block, 0) == ok);
		for (u64 i = 0; i < count; i++) {
			const u64 r = random_of(seed + i), n = r % 7 == 0 ? 240 * (1 + r % 3) : 1 + r % most;
			const u64 from = 16384 + (r >> 20 & 1 ? 0 : r >> 24 & 15), dst = 32768 + (r >> 21 & 1 ? 0 : r >> 32 & 15);
			if (block == 0) {
				for (u64 j = hw::rank<S>(); j < n; j += hw::size<S>())
					*w.at(0, 0, from + j) = pattern(i, j);
				hw::sync<S>();
				CHECK(put_lines<S>(to, 1024, w.at(0, 0, from), n, i + 1) == ok);
				CHECK(wait_until<S>(&w.ctx[0], w.word(0, 0, 0), cmp::eq, i + 1) == ok);
			} else {
				if (hw::rank<S>() == 0)
					*w.at(1, 0, dst + n) = 0x5a;
				hw::sync<S>();
				CHECK(take_lines<S>(&w.ctx[1], w.at(1, 0, 1024), w.at(1, 0, dst), n, i + 1) == ok);
				for (u64 j = hw::rank<S>(); j < n; j += hw::size<S>())
					CHECK(*w.at(1, 0, dst + j) == pattern(i, j));
				CHECK(*w.at(1, 0, dst + n) == 0x5a);
				CHECK(signal<S>(to, 0, i + 1) == ok);
			}
		}
	});
}

static void by_warp() { rounds<scope::warp>(60, 1100); }
static void by_block() { rounds<scope::block>(30, 2500); }

/* What is refused, and that a wait ends. */
static void ends()
{
	world w(true), commands(false);
	hw::launch(1, STRAIT_XPU_WARP, seed, [&](unsigned) {
		const scope S = scope::warp;
		window to, ring;
		u8 *const near = w.at(0, 0, 4096), *const far = w.at(1, 0, 0);
		CHECK(open(&to, &w.ctx[0], 1, 0) == ok);
		CHECK(put_lines<S>(to, 64, near, 8, 1) == err_inval);
		CHECK(put_lines<S>(to, 0, near, 8, 0) == err_inval);
		CHECK(put_lines<S>(to, world::bytes - 128, near, 121, 1) == err_inval);
		CHECK(put_lines<S>(to, 0, near, ~0ULL, 1) == err_msgsize);
		CHECK(put_lines<S>(to, 0, near, 0, 1) == ok);
		CHECK(*w.word(1, 0, 0) == 0 && *w.word(1, 0, 120) == 0);
		CHECK(open(&ring, &commands.ctx[0], 1, 0) == ok);
		CHECK(put_lines<S>(ring, 0, near, 8, 1) == err_nosys);
		CHECK(take_lines<S>(&w.ctx[1], far, near, 0, 1) == ok);
		CHECK(take_lines<S>(&w.ctx[1], far, near, 500, 1, 0) == err_timedout);
		CHECK(take_lines<S>(&w.ctx[1], far, near, 500, 1, 1000000) == err_timedout);
		CHECK(take_lines<S>(&w.ctx[1], far + 8, near, 500, 1) == err_inval);
		/* Nothing but its lines is written. */
		CHECK(put_lines<S>(to, 1024, near, 113, 9) == ok);
		hw::sync<S>();
		CHECK(lines_size(113) == 256 && lines_size(112) == 128 && lines_size(225) == 256 && lines_size(241) == 384);
		CHECK(*w.word(1, 0, 1024 + 248) == 9 && *w.word(1, 0, 1024 + 256 + 120) == 0 && *w.word(1, 0, 1016) == 0);
		hw::sync<S>();
		if (hw::rank<S>() == 0)
			__atomic_store_n(&w.lost[1][0], 104, __ATOMIC_RELEASE);
		hw::sync<S>();
		CHECK(take_lines<S>(&w.ctx[1], far, near, 500, 1, default_timeout, 0) == err_canceled);
	});
}

struct test {
	const char *name;
	void (*run)();
};
static const test tests[] = {{"lines_warp", by_warp}, {"lines_block", by_block}, {"lines_ends", ends}};

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
