/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The rest of litmus.cc: GASPI's names. */

/* The slide's program: one rank writes and notifies, the other computes and answers. */
static void gaspi()
{
	world w(true);
	hw::launch(2, threads, seed, [&](unsigned block) {
		const gpu_gaspi g = {&w.ctx[block], 1, 64};
		const u32 other = 1 - block;
		u32 id = 0, value = 0;
		for (u32 i = 0; i < 20; i++) {
			if (block == 0) {
				fill<scope::block>(w.at(0, 0, 0), i, 128);
				hw::sync<scope::block>();
				CHECK(gpu_gaspi_write_notify(g, 0, 0, other, 0, 256, 128, i % 8, i + 1, 0) == GPU_GASPI_SUCCESS);
			}
			CHECK(gpu_gaspi_notify_waitsome(g, 0, 0, 64, &id, GPU_GASPI_BLOCK) == GPU_GASPI_SUCCESS && id == i % 8);
			hw::sync<scope::block>();
			if (hw::thread_of_block() == 0)
				CHECK(gpu_gaspi_notify_reset(g, 0, id, &value) == GPU_GASPI_SUCCESS && value == i + 1);
			if (block == 1) {
				for (u64 j = hw::thread_of_block(); j < 128; j += threads)
					w.at(1, 0, 0)[j] = (u8)(w.at(1, 0, 256)[j] + 1);
				hw::sync<scope::block>();
				CHECK(gpu_gaspi_write_notify(g, 0, 0, other, 0, 512, 128, i % 8, i + 1, 0) == GPU_GASPI_SUCCESS);
			} else {
				for (u64 j = hw::thread_of_block(); j < 128; j += threads)
					CHECK(w.at(0, 0, 512)[j] == (u8)(pattern(i, j) + 1));
			}
			CHECK(gpu_gaspi_wait(g, 0, GPU_GASPI_BLOCK) == GPU_GASPI_SUCCESS);
		}
		CHECK(gpu_gaspi_notify_waitsome(g, 0, 0, 64, &id, GPU_GASPI_TEST) == GPU_GASPI_TIMEOUT);
		CHECK(gpu_gaspi_notify(g, 0, other, 64, 1, 0) == GPU_GASPI_ERROR);
	});
}

/* The same by links: what is looked up once. Notifications by turns, so that the one before is reset meanwhile. */
static void gaspi_links()
{
	world w(true);
	hw::launch(2, threads, seed, [&](unsigned block) {
		const gpu_gaspi g = {&w.ctx[block], 1, 64};
		gpu_gaspi_link l;
		u32 id = 0, old = 0;
		const u64 mine = 128 + 128 * block, theirs = 256 - 128 * block;
		CHECK(gpu_gaspi_link_open(&l, g, 9, 1 - block, 0, 0) == GPU_GASPI_ERROR);
		CHECK(gpu_gaspi_link_open(&l, g, 0, 5, 0, 0) == GPU_GASPI_ERROR);
		CHECK(gpu_gaspi_link_open(&l, g, 0, 1 - block, 0, 0) == GPU_GASPI_SUCCESS);
		CHECK(gpu_gaspi_link_write_notify(l, world::bytes - 8, 0, 16, 0, 1) == GPU_GASPI_ERROR);
		CHECK(gpu_gaspi_link_write_notify(l, 0, 0, ~0ULL, 0, 1) == GPU_GASPI_ERROR);
		CHECK(gpu_gaspi_link_write_notify(l, 0, 0, 8, 64, 1) == GPU_GASPI_ERROR);
		CHECK(gpu_gaspi_link_waitsome(l, 60, 5, &id, GPU_GASPI_TEST) == GPU_GASPI_ERROR);
		CHECK(gpu_gaspi_link_waitsome(l, 60, 4, &id, GPU_GASPI_TEST) == GPU_GASPI_TIMEOUT);
		CHECK(gpu_gaspi_link_reset(l, 64, &old) == GPU_GASPI_ERROR);
		for (u32 i = 0; i < 30; i++) {
			if (block == 1) {
				CHECK(gpu_gaspi_link_waitsome(l, i & 1, 1, &id, GPU_GASPI_BLOCK) == GPU_GASPI_SUCCESS && id == (i & 1));
				for (u64 j = hw::thread_of_block(); j < 128; j += threads)
					w.at(1, 0, mine)[j] = (u8)(w.at(1, 0, theirs)[j] + 1);
				hw::sync<scope::block>();
			} else {
				fill<scope::block>(w.at(0, 0, mine), i, 128);
			}
			CHECK(gpu_gaspi_link_write_notify(l, mine, mine, 128, i & 1, i + 1) == GPU_GASPI_SUCCESS);
			if (hw::thread_of_block() == 0 && (block == 1 || i > 0))
				CHECK(gpu_gaspi_link_reset(l, (i & 1) ^ (block == 0), &old) == GPU_GASPI_SUCCESS && old == (block ? i + 1 : i));
			if (block == 0) {
				CHECK(gpu_gaspi_link_waitsome(l, i & 1, 1, &id, GPU_GASPI_BLOCK) == GPU_GASPI_SUCCESS);
				for (u64 j = hw::thread_of_block(); j < 128; j += threads)
					CHECK(w.at(0, 0, theirs)[j] == (u8)(pattern(i, j) + 1));
				hw::sync<scope::block>();
			}
		}
	});
}
