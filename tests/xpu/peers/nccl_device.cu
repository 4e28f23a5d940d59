/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The device library beside NCCL's device API (LSA: windows whose peers' memory kernels load and store), in turns, between the
 * same two GPUs and in the same symmetric window of NCCL's. Two processes, each of
 *
 *     nccl_device RANK UIDFILE
 *
 * Prints lines "latency WAY SCOPE BYTES us" and "bandwidth WAY BLOCKS BYTES GB/s"; exits 1 if a byte was wrong. */
#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <unistd.h>

#include "../kernels.cu"
#include "nccl_ways.cuh"

static int rank_, failures;

#define CHECK(call, word)                                                                                          \
	do {                                                                                                       \
		const auto code = (call);                                                                          \
		if (code != 0) {                                                                                   \
			printf("FAILED rank %d: %s: %s\n", rank_, #call, word(code));                               \
			fflush(stdout);                                                                            \
			_exit(1);                                                                                  \
		}                                                                                                  \
	} while (0)
#define CUDA(call) CHECK(call, cudaGetErrorString)
#define NCCL(call) CHECK(call, ncclGetErrorString)

static void fail(const std::string &what)
{
	failures++;
	printf("FAILED rank %d: %s\n", rank_, what.c_str());
}

/* ---- Both ranks' memory ---- */

struct machine {
	enum : unsigned { regions = 3 };
	const size_t length[regions] = {BLOCKS_MOST * AREA, 1u << 20, 64u << 20};
	size_t whole = 0;
	ncclComm_t comm;
	ncclWindow_t window;
	ncclDevComm device;
	ncclLLA2AHandle packets;
	u8 *memory, *peer;
	strait_xpu_context *table;
	u64 *out; /* page-locked */
	int *word;

	explicit machine(const ncclUniqueId &id)
	{
		NCCL(ncclCommInitRank(&comm, 2, id, rank_));
		for (size_t n : length)
			whole += n;
		CUDA(cudaHostAlloc((void **)&out, 65536, cudaHostAllocMapped));
		CUDA(cudaMalloc((void **)&table, 65536));
		CUDA(cudaMalloc((void **)&word, 4));
		NCCL(ncclMemAlloc((void **)&memory, whole));
		NCCL(ncclCommWindowRegister(comm, memory, whole, &window, NCCL_WIN_COLL_SYMMETRIC));
		if (!window)
			_exit((fail("NCCL registers no symmetric window"), 1));
		ncclDevResourceRequirements resources = {};
#ifdef NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER
		ncclDevCommRequirements wanted = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#else
		ncclDevCommRequirements wanted = {};
#endif
		NCCL(ncclLLA2ACreateRequirement(1, NCCL_SLOTS, &packets, &resources));
		wanted.resourceRequirementsList = &resources;
		wanted.lsaBarrierCount = 1;
		NCCL(ncclDevCommCreate(comm, &wanted, &device));
		if (device.lsaSize != 2)
			_exit((fail("NCCL has not mapped the peer's memory"), 1));
		peer_address<<<1, 1>>>(window, 1 - rank_, out);
		CUDA(cudaDeviceSynchronize());
		peer = (u8 *)out[0];
		std::vector<char> bytes(65536);
		auto *ctx = (strait_xpu_context *)bytes.data();
		ctx->version = STRAIT_XPU_VERSION;
		ctx->rank = (u32)rank_;
		ctx->peer_count = 2;
		ctx->region_count = regions;
		ctx->peers = (u64)table + 1024;
		ctx->regions = (u64)table + 2048;
		ctx->timeout_ns = 3000000000ULL;
		for (size_t g = 0, at = 0; g < regions; at += length[g++]) {
			((strait_xpu_region *)(bytes.data() + 2048))[g] = strait_xpu_region{(u64)memory + at, length[g], 0, 0};
			for (int p = 0; p < 2; p++) {
				const u64 there = (u64)(p == rank_ ? memory : peer) + at;
				((strait_xpu_peer *)(bytes.data() + 1024))[(unsigned)p * regions + g] =
					strait_xpu_peer{there, there, 0, length[g]};
			}
		}
		CUDA(cudaMemcpy(table, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
	}

	void meet()
	{
		NCCL(ncclAllReduce(word, word, 1, ncclInt, ncclSum, comm, 0));
		CUDA(cudaDeviceSynchronize());
	}

	/* All that kernels write, and a pattern to be put. */
	void clear()
	{
		CUDA(cudaMemset(memory, 0, length[0] + length[1]));
		CUDA(cudaMemset(memory + AREA / 2, PATTERN, AREA / 4));
		memset(out, 0x5a, 4096);
		meet();
	}
};

static double median(std::vector<double> v)
{
	std::sort(v.begin(), v.end());
	return v.empty() ? 0 : v[v.size() / 2];
}

/* ---- Time one way ---- */

enum { PING, BOTH, NCCL_PING, NCCL_BOTH }; /* of kernels.cu, and of nccl_ways.cuh */

struct way {
	const char *name;
	int kind, number;
	u64 most;
	u64 to; /* where the bytes arrive, if there are any */
	bool by_nccl() const { return kind >= NCCL_PING; }
	/* Bytes go to and fro, or both ways at once. */
	bool at_once() const { return kind == BOTH || kind == NCCL_BOTH; }
};

static const way ways[] = {
	{"bare", PING, PING_BARE, 8, 0},
	{"word", PING, PING_WORD, 8, 0},
	{"packets", PING, PING_PACKETS, 16384, 3 * (AREA / 4)},
	{"nccl_ll", NCCL_PING, NCCL_LL, 16384, 3 * (AREA / 4)},
	{"both_bare", BOTH, BOTH_BARE, 8, 0},
	{"both_signal_weak", BOTH, BOTH_WEAK, 8, 0},
	{"both_nccl_relaxed", NCCL_BOTH, NCCL_RELAXED, 8, 0},
	{"both_signal", BOTH, BOTH_SIGNAL, 8, 0},
	{"both_nccl_barrier", NCCL_BOTH, NCCL_BARRIER, 8, 0},
	{"both_put_signal", BOTH, BOTH_PUT, 1u << 20, 4096},
	{"both_nccl_put", NCCL_BOTH, NCCL_PUT, 1u << 20, 4096},
};

static double one_way(machine &m, const way &w, int s, u64 n, u64 rounds)
{
	static u64 first = 1;
	const unsigned threads = s == 0 ? 1 : s == 1 ? 32 : 256;
	m.clear();
	if (w.by_nccl()) {
		auto *kernel = s == 0 ? nccl_thread : s == 1 ? nccl_warp : nccl_block;
		kernel<<<1, threads>>>(m.device, m.window, m.packets, w.number, n, rounds, first, m.out);
	} else if (w.at_once()) {
		auto *kernel = s == 0 ? both_thread : s == 1 ? both_warp : both_block;
		kernel<<<1, threads>>>(m.table, w.number, n, rounds, first, m.out);
	} else {
		auto *kernel = s == 0 ? latency_thread : s == 1 ? latency_warp : latency_block;
		kernel<<<1, threads>>>(m.table, (u64)w.number, n, rounds, first, m.out);
	}
	CUDA(cudaGetLastError());
	CUDA(cudaDeviceSynchronize());
	first += rounds + 100;
	bool right = !m.out[1];
	/* Longer ones overlap what they are put from. The LL session's first element has the round in it, which its reader checks. */
	if (right && w.to && n <= AREA / 4) {
		std::vector<u8> bytes(n);
		CUDA(cudaMemcpy(bytes.data(), m.memory + w.to, n, cudaMemcpyDeviceToHost));
		const size_t skip = w.kind == NCCL_PING ? 8 : 0;
		right = std::all_of(bytes.begin() + (long)skip, bytes.end(), [](u8 b) { return b == PATTERN; });
	}
	if (!right)
		fail(std::string(w.name) + " " + std::to_string(n) + " bytes: " + std::to_string((int)m.out[1]));
	return (double)m.out[0] / (double)rounds / (w.at_once() ? 1000.0 : 2000.0);
}

static void latency(machine &m)
{
	static const char *scopes[] = {"thread", "warp", "block"};
	const size_t count = sizeof ways / sizeof *ways;
	for (u64 n : {8ULL, 256ULL, 1024ULL, 4096ULL, 8192ULL, 16384ULL, 65536ULL, 1ULL << 20})
		for (int s = 2; s >= 0; s--) {
			if (n > (s == 0 ? 8u : s == 1 ? 16384u : ~0u))
				continue;
			std::vector<double> times[count];
			for (int repeat = 0; repeat < 5; repeat++)
				for (size_t i = 0; i < count; i++)
					if (n <= ways[i].most || i == 0)
						times[i].push_back(one_way(m, ways[i], s, n, n > 16384 ? 200 : 1000));
			for (size_t i = 0; i < count && rank_ == 0; i++)
				if (!times[i].empty())
					printf("latency %-20s %-9s %8llu %8.3f\n", ways[i].name, scopes[s], n, median(times[i]));
		}
}

/* ---- Bandwidth: rank 0 alone, rank 1 waits ---- */

static double rate(machine &m, int how, unsigned blocks, u64 n, u64 rounds)
{
	const size_t at = m.length[0] + m.length[1];
	cudaEvent_t begin, end;
	float ms = 0;
	CUDA(cudaEventCreate(&begin));
	CUDA(cudaEventCreate(&end));
	for (u64 r : {(u64)2, rounds}) {
		CUDA(cudaEventRecord(begin));
		if (how == 0)
			for (u64 i = 0; i < r; i++)
				CUDA(cudaMemcpyAsync(m.peer + at, m.memory + at, n, cudaMemcpyDeviceToDevice));
		else if (how == 1)
			bandwidth<<<blocks, 512>>>(m.table, n, r, 0, m.out);
		else
			nccl_bandwidth<<<blocks, 512>>>(m.window, at, n, r);
		CUDA(cudaEventRecord(end));
		CUDA(cudaDeviceSynchronize());
	}
	CUDA(cudaEventElapsedTime(&ms, begin, end));
	CUDA(cudaEventDestroy(begin));
	CUDA(cudaEventDestroy(end));
	return (double)n * (double)rounds / ms / 1e6;
}

static void bandwidths(machine &m)
{
	static const char *names[] = {"copy_engine", "put", "nccl_put"};
	for (u64 n = 1u << 20; n <= m.length[2] && rank_ == 0; n *= 4)
		for (unsigned blocks : {1u, 16u, 128u}) {
			std::vector<double> rates[3];
			const u64 rounds = std::max<u64>(8, std::min<u64>(100, ((blocks < 8 ? 256ULL : 2048ULL) << 20) / n));
			for (int repeat = 0; repeat < 3; repeat++)
				for (int how = blocks == 1 ? 0 : 1; how < 3; how++)
					rates[how].push_back(rate(m, how, blocks, n, rounds));
			for (int how = 0; how < 3; how++)
				if (!rates[how].empty())
					printf("bandwidth %-12s %3u %10llu %8.2f\n", names[how], how ? blocks : 0, n, median(rates[how]));
		}
	m.meet();
}

/* The unique identifier, through a file that rank 0 renames into place. */
static ncclUniqueId uid(const std::string &path)
{
	ncclUniqueId id;
	if (rank_ == 0) {
		NCCL(ncclGetUniqueId(&id));
		FILE *f = fopen((path + ".new").c_str(), "wb");
		if (!f || fwrite(&id, sizeof id, 1, f) != 1 || fclose(f) || rename((path + ".new").c_str(), path.c_str()))
			_exit((fail("cannot write " + path), 1));
		return id;
	}
	for (;;) {
		if (FILE *f = fopen(path.c_str(), "rb")) {
			const size_t n = fread(&id, sizeof id, 1, f);
			fclose(f);
			if (n == 1)
				return id;
		}
		usleep(1000);
	}
}

int main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "nccl_device RANK UIDFILE\n");
		return 2;
	}
	rank_ = atoi(argv[1]);
	setvbuf(stdout, nullptr, _IOLBF, 0);
	int gpus = 0, version = 0;
	CUDA(cudaGetDeviceCount(&gpus));
	CUDA(cudaSetDevice(rank_ % gpus));
	NCCL(ncclGetVersion(&version));
	if (rank_ == 0)
		printf("# NCCL %d, headers of %d\n", version, NCCL_VERSION_CODE);
	machine m(uid(argv[2]));
	latency(m);
	bandwidths(m);
	fflush(stdout);
	_exit(failures ? 1 : 0);
}
