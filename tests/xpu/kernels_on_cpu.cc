/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The kernels of kernels.cu with threads as lanes: that they come to their end, and to the right one, before they are run
 * on a GPU. Prints "ok kernels". */
#define STRAIT_XPU_WARP 32
#define WORLD_REGIONS 4
#define WORLD_BYTES (1u << 19)
#define random_of random_of_world
#define pattern pattern_of_world
#include "world.h"
#undef random_of
#undef pattern

/* The words of CUDA that the kernels use. */
struct dimension {
	unsigned x;
};
static unsigned grid = 1;
#define __global__ static
#define __launch_bounds__(threads)
#define __device__ static inline
#define __shared__ static
#define blockIdx (dimension{hw::me().block})
#define threadIdx (dimension{hw::me().thread})
#define blockDim (dimension{hw::me().threads})
#define gridDim (dimension{grid})
#define __syncthreads() hw::sync<scope::block>()
static inline float __shfl_sync(unsigned, float v, int from)
{
	u32 bits;
	memcpy(&bits, &v, 4);
	bits = (u32)hw::shuffle(bits, (unsigned)from);
	memcpy(&v, &bits, 4);
	return v;
}
/* fi_program.cc runs those of fi_xpu(3). */
#define KERNEL [[maybe_unused]] static void
#include "kernels.cu"

static u64 out[2][1024];

/* For both ranks at once; what each says is checked by the caller. */
template <class F> static void both(unsigned blocks, unsigned threads, F kernel)
{
	grid = blocks;
	memset(out, 0x5a, sizeof out);
	std::thread first([&] { hw::launch(blocks, threads, 1, [&](unsigned) { kernel(0); }); });
	hw::launch(blocks, threads, 2, [&](unsigned) { kernel(1); });
	first.join();
}

static void litmus_all()
{
	for (u64 mode = 0; mode < MODES; mode++)
		for (int s = 0; s < 3; s++) {
			world w(true);
			crc_stats stats = {};
			const unsigned threads = s == 0 ? 1 : s == 1 ? 32 : 64;
			const u64 rounds = 12;
			both(2, threads, [&](int r) {
				(s == 0 ? litmus_thread : s == 1 ? litmus_warp : litmus_block)(&w.ctx[r], mode, rounds, 12345, 300, out[r], &stats);
			});
			for (int r = 0; r < 2; r++)
				for (int b = 0; b < 2; b++)
					CHECK(out[r][3 * b] == rounds && out[r][3 * b + 1] == 0 && out[r][3 * b + 2] == 0);
			CHECK(mode != MODE_CRC || (stats.checked == 2 * rounds && stats.failed == 0));
		}
	world w(true);
	both(2, 1, [&](int r) { litmus_words(&w.ctx[r], 200, out[r]); });
	CHECK(out[1][1] == 0 && out[1][2] == 0 && out[0][2] == 0 && out[1][3 + 1] == 0);
}

typedef void latency_kernel(const strait_xpu_context *, u64, u64, u64, u64 *);
#define THREAD_OF(name, kind) latency_thread_##name,
#define WARP_OF(name, kind) latency_warp_##name,
#define BLOCK_OF(name, kind) latency_block_##name,

static void latency_all()
{
	static latency_kernel *const all[3][PINGS] = {{PINGS_OF(THREAD_OF)}, {PINGS_OF(WARP_OF)}, {PINGS_OF(BLOCK_OF)}};
	for (int kind = PING_BARE; kind < PINGS; kind++)
		for (int s = 0; s < 3; s++) {
			world w(true);
			both(1, s == 0 ? 1 : 32 * (unsigned)s, [&](int r) { all[s][kind](&w.ctx[r], 264, 5, 1, out[r]); });
			CHECK(out[0][1] == 0 && out[1][1] == 0);
		}
}

static void commands_all()
{
	for (u64 warp = 0; warp < 2; warp++) {
		world w(false);
		drain host(w, 0);
		hw::launch(1, warp ? 32 : 1, 3, [&](unsigned) { command_round_trip(&w.ctx[0], 10, warp, out[0]); });
		CHECK(out[0][1] == 0);
	}
	for (u64 step = LADDER_NAIVE; step < LADDER_WARP; step++) {
		world w(false, STRAIT_XPU_RING_BELL);
		drain host(w, 0);
		hw::launch(2, 64, 4, [&](unsigned) { ladder(&w.ctx[0], 1, step, 64, out[0]); });
		CHECK(out[0][1] == 0 && out[0][3] == 0 && out[0][5] == 0 && out[0][7] == 0);
	}
	world w(false);
	w.ring[1] = w.ring[0];
	std::thread card([&] { hw::launch(1, 32, 5, [&](unsigned) { soft_card(&w.ctx[1], 60, out[1]); }); });
	hw::launch(1, 32, 6, [&](unsigned) { command_round_trip(&w.ctx[0], 10, 1, out[0]); });
	card.join();
	CHECK(out[0][1] == 0 && out[1][0] == 0);
}

static void crossing_all()
{
	u64 far[100] = {}, near[100], took[2];
	for (u64 i = 0; i < 100; i++)
		near[i] = i + 1;
	/* Place 16 times the rounds, less the length as often as it fits. */
	hw::launch(1, 1, 11, [&](unsigned) { crossing(far, near, 100, 5, CROSS_LOAD, took); });
	CHECK(took[1] == 16 * 25 % 100);
	hw::launch(1, 1, 12, [&](unsigned) { crossing(far, near, 100, 5, CROSS_STORE, took); });
	CHECK(far[16 * 24 % 100] == 24 && took[1] == 16 * 25 % 100);
	hw::launch(1, 64, 13, [&](unsigned) { crossing(far, near, 100, 2, CROSS_WRITE, took); });
	CHECK(!memcmp(far, near, sizeof far));
	memset(near, 0, sizeof near);
	hw::launch(1, 64, 14, [&](unsigned) { crossing(far, near, 100, 2, CROSS_READ, took); });
	CHECK(!memcmp(far, near, sizeof far));
}

static void matvec_all()
{
	world w(true);
	float *matrix = (float *)w.at(1, 0, 0), *vectors = (float *)w.at(0, 2, 0), *back = (float *)w.at(0, 3, 0);
	for (int i = 0; i < VECTOR * VECTOR; i++)
		matrix[i] = (float)(i % 7) - 3;
	for (int i = 0; i < 10 * VECTOR; i++)
		vectors[i] = (float)(i % 13);
	both(1, 64, [&](int r) {
		if (r == 0)
			matvec_client(&w.ctx[0], 10, 3, out[0]);
		else
			matvec_server(&w.ctx[1], matrix, 10, 3, out[1]);
	});
	CHECK(out[0][1] == 0 && out[1][0] == 0);
	for (int v = 0; v < 10; v++)
		for (int row = 0; row < VECTOR; row++) {
			float sum = 0;
			for (int k = 0; k < VECTOR; k++)
				sum += matrix[row * VECTOR + k] * vectors[v * VECTOR + k];
			CHECK(back[v * VECTOR + row] == sum);
		}
	hw::launch(1, 64, 7, [&](unsigned) { matvec_kernel(matrix, vectors, back, 10); });
	hw::launch(1, 64, 8, [&](unsigned) { bandwidth(&w.ctx[0], 5000, 2, 0, out[0]); });
	CHECK(out[0][0] == 0 && !memcmp(w.at(1, 2, 0), vectors, 10 * 4 * VECTOR));
	u64 words[2] = {0, 50 + 3};
	hw::launch(1, 1, 9, [&](unsigned) {
		/* The answer to the last alone is there. */
		bare_round_trip(&words[0], &words[0], 3, out[0]);
	});
	CHECK(words[0] == 53 && out[0][1] == 0);
	crossing_all();
}

int main()
{
	litmus_all();
	latency_all();
	commands_all();
	matvec_all();
	puts("ok kernels");
	return 0;
}
