/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Two ranks on two GPUs, or on one: memory, contexts, streams, and kernels that run on both. */
#ifndef STRAIT_TEST_XPU_MACHINE_H
#define STRAIT_TEST_XPU_MACHINE_H

#include <chrono>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "driver.h"
#include "gpu.h"
#include "strait_xpu_layout.h"

typedef strait_xpu_u64 u64;
typedef strait_xpu_u32 u32;

enum : unsigned { regions = 4, hosts_words = 4096 };

struct machine {
	int gpu[2], gpus = 0;
	void *context[2], *stream[2], *other[2], *module[2];
	dptr memory[2][regions], tables[2], stats[2];
	u64 length[regions] = {BLOCKS_MOST * AREA, 16u << 20, 256u << 20, 64u << 20};
	u64 *out[2]; /* page-locked, of each rank */

	void enter(int rank) { cu("cuCtxSetCurrent", context[rank]); }

	static std::string name_of(int device)
	{
		char name[128] = "";
		cu("cuDeviceGetName", (char *)name, 127, device);
		return name;
	}

	/* Rank 0 on GPU a, rank 1 on GPU b. */
	machine(int a, int b, const std::string &cubin)
	{
		gpu[0] = a;
		gpu[1] = b;
		for (int r = 0; r < 2; r++) {
			cu("cuDevicePrimaryCtxRetain", &context[r], gpu[r]);
			enter(r);
			cu("cuModuleLoadData", &module[r], (const void *)cubin.data());
			cu("cuStreamCreate", &stream[r], 1u);
			cu("cuStreamCreate", &other[r], 1u);
			for (unsigned g = 0; g < regions; g++)
				cu("cuMemAlloc_v2", &memory[r][g], (size_t)length[g]);
			cu("cuMemAlloc_v2", &tables[r], (size_t)65536);
			cu("cuMemAlloc_v2", &stats[r], (size_t)4096);
			cu("cuMemHostAlloc", (void **)&out[r], (size_t)hosts_words * 8, 3u);
		}
		for (int r = 0; r < 2 && a != b; r++) {
			enter(r);
			cu("cuCtxEnablePeerAccess", context[1 - r], 0u);
		}
		for (int r = 0; r < 2; r++)
			fill_tables(r, {});
	}

	/* A rank's context, at the start of its table; peers, regions and rings behind it. */
	void fill_tables(int r, const std::vector<strait_xpu_ring> &rings)
	{
		std::vector<char> bytes(65536);
		auto *ctx = (strait_xpu_context *)bytes.data();
		ctx->version = STRAIT_XPU_VERSION;
		ctx->rank = (u32)r;
		ctx->peer_count = 2;
		ctx->region_count = regions;
		ctx->ring_count = (u32)rings.size();
		ctx->peers = tables[r] + 1024;
		ctx->regions = tables[r] + 2048;
		ctx->rings = tables[r] + 4096;
		ctx->timeout_ns = 10000000000ULL;
		auto *peers = (strait_xpu_peer *)(bytes.data() + 1024);
		auto *own = (strait_xpu_region *)(bytes.data() + 2048);
		for (unsigned g = 0; g < regions; g++) {
			own[g] = strait_xpu_region{memory[r][g], length[g], 0, 0};
			for (unsigned p = 0; p < 2; p++)
				peers[p * regions + g] = strait_xpu_peer{memory[p][g], memory[p][g], 0, length[g]};
		}
		if (!rings.empty())
			memcpy(bytes.data() + 4096, rings.data(), rings.size() * sizeof(strait_xpu_ring));
		enter(r);
		cu("cuMemcpyHtoD_v2", tables[r], (const void *)bytes.data(), bytes.size());
	}

	void clear()
	{
		for (int r = 0; r < 2; r++) {
			enter(r);
			for (unsigned g = 0; g < 2; g++)
				cu("cuMemsetD8_v2", memory[r][g], (unsigned char)0, (size_t)length[g]);
			cu("cuMemsetD8_v2", stats[r], (unsigned char)0, (size_t)4096);
			cu("cuCtxSynchronize");
			memset(out[r], 0x5a, hosts_words * 8);
		}
	}

	void launch(int r, void *on, const char *kernel, unsigned blocks, unsigned threads, std::initializer_list<u64> args)
	{
		std::vector<u64> values(args);
		std::vector<void *> places;
		for (u64 &v : values)
			places.push_back(&v);
		void *function = nullptr;
		enter(r);
		cu("cuModuleGetFunction", &function, module[r], kernel);
		cu("cuLaunchKernel", function, blocks, 1u, 1u, threads, 1u, 1u, 0u, on, places.data(), (void **)nullptr);
	}

	/* A kernel cannot be stopped: one that does not end ends the program, so that the next one can run. */
	void wait(void *on, int seconds = 250)
	{
		const auto begin = std::chrono::steady_clock::now();
		while (!stream_ended(on)) {
			if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(seconds)) {
				printf("FAILED a kernel does not end\n");
				fflush(stdout);
				_Exit(3);
			}
			std::this_thread::yield();
		}
	}
	void wait_both()
	{
		wait(stream[1]);
		wait(stream[0]);
	}
};

inline std::string file_of(const char *path)
{
	std::ifstream in(path, std::ios::binary);
	return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
}

#endif
