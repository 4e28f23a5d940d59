/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The device library beside NVSHMEM's, in turns, between the same two GPUs and in the same symmetric memory, which NVSHMEM
 * maps; and NVSHMEM's own puts over whatever transport it was set to take. Two processes, each of
 *
 *     nvshmem RANK UIDFILE compare|probe|proxy        probe: of compare what is short, times of few ways
 *
 * Prints lines "latency WAY SCOPE BYTES us", "bandwidth WAY BLOCKS BYTES GB/s", "proxy ..."; exits 1 if a byte was wrong. */
#include <cuda_runtime.h>
#include <nvshmem.h>
#include <nvshmemx.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <unistd.h>

#include "../kernels.cu"
#include "ways.cuh"

static int rank_, failures;

#define CUDA(call)                                                                                                 \
	do {                                                                                                       \
		const cudaError_t code = (call);                                                                   \
		if (code != cudaSuccess) {                                                                         \
			fprintf(stderr, "FAILED %s: %s\n", #call, cudaGetErrorString(code));                       \
			_exit(1);                                                                                  \
		}                                                                                                  \
	} while (0)

static void fail(const std::string &what)
{
	failures++;
	printf("FAILED rank %d: %s\n", rank_, what.c_str());
}

/* ---- Both ranks' memory ---- */

struct machine {
	enum : unsigned { regions = 3 };
	size_t length[regions] = {BLOCKS_MOST * AREA, 1u << 20, 64u << 20};
	u8 *memory[regions];
	strait_xpu_context *table;
	u64 *out; /* page-locked */

	/* `mapped`: NVSHMEM gives the peer's addresses, and there is a context over them. */
	explicit machine(bool mapped)
	{
		CUDA(cudaHostAlloc((void **)&out, 65536, cudaHostAllocMapped | cudaHostAllocPortable));
		CUDA(cudaMalloc((void **)&table, 65536));
		for (unsigned g = 0; g < regions; g++) {
			memory[g] = (u8 *)nvshmem_malloc(length[g]);
			if (!memory[g])
				_exit((fail("no symmetric memory"), 1));
		}
		if (!mapped)
			return;
		std::vector<char> bytes(65536);
		auto *ctx = (strait_xpu_context *)bytes.data();
		ctx->version = STRAIT_XPU_VERSION;
		ctx->rank = (u32)rank_;
		ctx->peer_count = 2;
		ctx->region_count = regions;
		ctx->peers = (u64)table + 1024;
		ctx->regions = (u64)table + 2048;
		ctx->timeout_ns = 3000000000ULL;
		for (unsigned g = 0; g < regions; g++) {
			((strait_xpu_region *)(bytes.data() + 2048))[g] = strait_xpu_region{(u64)memory[g], length[g], 0, 0};
			for (int p = 0; p < 2; p++) {
				const u64 at = p == rank_ ? (u64)memory[g] : (u64)nvshmem_ptr(memory[g], p);
				if (!at)
					_exit((fail("NVSHMEM has not mapped the peer's memory"), 1));
				((strait_xpu_peer *)(bytes.data() + 1024))[(unsigned)p * regions + g] =
					strait_xpu_peer{at, at, 0, length[g]};
			}
		}
		CUDA(cudaMemcpy(table, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
	}

	void clear()
	{
		for (unsigned g = 0; g < 2; g++)
			CUDA(cudaMemset(memory[g], 0, length[g]));
		memset(out, 0x5a, 4096);
		CUDA(cudaDeviceSynchronize());
		nvshmem_barrier_all();
	}
};

static double median(std::vector<double> v)
{
	std::sort(v.begin(), v.end());
	return v.empty() ? 0 : v[v.size() / 2];
}

/* ---- Time one way ---- */

struct way {
	const char *name;
	int ours; /* of kernels.cu's, or -1 */
	int other; /* of ways.cuh's */
	u64 most;
	bool sized, probed; /* `probed`: of the short form, too */
	bool scoped() const { return ours >= 0 || other != WAY_LINES; } /* a thread has it */
};

static const way ways[] = {
	{"bare", PING_BARE, 0, 8, false, true},
	{"signal", PING_SIGNAL, 0, 8, false, false},
	{"nvshmem_signal", -1, WAY_NVSHMEM_SIGNAL, 8, false, false},
	{"fused", PING_FUSED, 0, 8, false, false},
	{"word", PING_WORD, 0, 8, false, false},
	{"packets", PING_PACKETS, 0, 16384, true, true},
	{"packets_of_words", -1, WAY_WORDS, 16384, true, true},
	{"lines", -1, WAY_LINES, 16384, true, true},
	{"mailbox", PING_MAIL, 0, 8192, true, false},
	{"put_signal", PING_PUT, 0, 1u << 20, true, true},
	{"put_signal_fences", -1, WAY_FENCES, 1u << 20, true, false},
	{"nvshmem_put_signal", -1, WAY_NVSHMEM_PUT, 1u << 20, true, true},
};

static double one_way(machine &m, const way &w, int s, u64 n, u64 rounds)
{
	static u64 first = 1;
	const unsigned threads = s == 0 ? 1 : s == 1 ? 32 : 256u << (s - 2);
	m.clear();
	if (w.ours >= 0) {
		auto *kernel = s == 0 ? latency_thread : s == 1 ? latency_warp : latency_block;
		kernel<<<1, threads>>>(m.table, (u64)w.ours, n, rounds, first, m.out);
	} else {
		auto *kernel = s == 0 ? ways_thread : s == 1 ? ways_warp : ways_block;
		kernel<<<1, threads>>>(m.table, (u64)w.other, n, rounds, first, m.out);
	}
	CUDA(cudaGetLastError());
	CUDA(cudaDeviceSynchronize());
	first += rounds + 100;
	if (m.out[1])
		fail(std::string(w.name) + " " + std::to_string(n) + " bytes: code " + std::to_string((int)m.out[1]));
	return (double)m.out[0] / (double)rounds / 2000.0;
}

static void latency(machine &m, bool probe)
{
	/* The last has 512 threads. */
	static const char *scopes[] = {"thread", "warp", "block", "block512"};
	static const u64 sizes[] = {8, 64, 256, 1024, 2048, 4096, 8192, 16384, 65536, 262144, 1048576};
	const size_t count = sizeof ways / sizeof *ways;
	for (u64 n : sizes)
		for (int s = 3; s >= 0; s--) {
			if (n > (s == 0 ? 8u : s == 1 ? 16384u : s == 2 ? ~0u : 16384u) || (s > 2 && n < 2048) || (probe && (s == 0 || n > 16384 || n == 64)))
				continue;
			std::vector<double> times[count];
			for (int repeat = 0; repeat < 5; repeat++)
				for (size_t i = 0; i < count; i++)
					if ((n <= ways[i].most || i == 0) && (!probe || ways[i].probed) && (s > 0 || ways[i].scoped()) &&
					    (s < 3 || ways[i].probed))
						times[i].push_back(one_way(m, ways[i], s, n, n > 16384 ? 200 : 1000));
			for (size_t i = 0; i < count && rank_ == 0; i++)
				if (!times[i].empty())
					printf("latency %-20s %-9s %8llu %8.3f\n", ways[i].name, scopes[s], n, median(times[i]));
		}
}

/* ---- Bandwidth: rank 0 alone, rank 1 waits ---- */

static double rate(machine &m, int how, unsigned blocks, u64 n, u64 rounds)
{
	cudaEvent_t begin, end;
	float ms = 0;
	CUDA(cudaEventCreate(&begin));
	CUDA(cudaEventCreate(&end));
	for (u64 r : {(u64)2, rounds}) {
		CUDA(cudaEventRecord(begin));
		if (how == 0)
			for (u64 i = 0; i < r; i++)
				CUDA(cudaMemcpyAsync(nvshmem_ptr(m.memory[2], 1), m.memory[2], n, cudaMemcpyDeviceToDevice));
		else if (how == 1)
			bandwidth<<<blocks, 512>>>(m.table, n, r, 0, m.out);
		else
			nvshmem_bandwidth<<<blocks, 512>>>(m.memory[2], n, r);
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
	static const char *names[] = {"copy_engine", "put", "nvshmem_put"};
	nvshmem_barrier_all();
	for (u64 n = 1u << 20; n <= m.length[2] && rank_ == 0; n *= 4)
		for (unsigned blocks : {1u, 4u, 8u, 16u, 32u, 64u, 128u}) {
			std::vector<double> rates[3];
			const u64 rounds = std::max<u64>(8, std::min<u64>(100, ((blocks < 8 ? 256ULL : 2048ULL) << 20) / n));
			for (int repeat = 0; repeat < 3; repeat++)
				for (int how = blocks == 1 ? 0 : 1; how < 3; how++)
					rates[how].push_back(rate(m, how, blocks, n, rounds));
			for (int how = 0; how < 3; how++)
				if (!rates[how].empty())
					printf("bandwidth %-12s %3u %10llu %8.2f\n", names[how], how ? blocks : 0, n, median(rates[how]));
		}
	nvshmem_barrier_all();
}

/* ---- NVSHMEM over its transport ---- */

static void proxy(machine &m)
{
	const bool mapped = nvshmem_ptr(m.memory[0], 1 - rank_) != nullptr;
	if (rank_ == 0)
		printf("proxy peer's memory mapped: %s\n", mapped ? "yes (NVSHMEM_DISABLE_P2P is not set)" : "no");
	for (u64 n : {8ULL, 1000ULL, 4096ULL, 65536ULL, 1ULL << 20, 3ULL << 20}) {
		m.clear();
		proxy_put<<<1, 256>>>(m.memory[0], n, 40 + n, m.out);
		CUDA(cudaGetLastError());
		CUDA(cudaDeviceSynchronize());
		if (rank_ == 1)
			printf("proxy put_signal %8llu bytes: %s\n", n, m.out[1] ? "signal never came" : m.out[0] ? "WRONG" : "right");
		if (m.out[1] || m.out[0])
			fail("put_signal over the transport, " + std::to_string(n) + " bytes");
		nvshmem_barrier_all();
	}
	m.clear();
	proxy_more<<<1, 1>>>(m.memory[0], m.out);
	CUDA(cudaDeviceSynchronize());
	if (rank_ == 0)
		printf("proxy get and atomic add: %s\n", m.out[0] ? "WRONG" : "right");
	if (m.out[0])
		fail("get or atomic over the transport");
	for (u64 n : {0ULL, 8ULL, 64ULL, 4096ULL}) {
		std::vector<double> times;
		for (int repeat = 0; repeat < 5; repeat++) {
			m.clear();
			proxy_ping<<<1, 1>>>(m.memory[0], n, 300, m.out);
			CUDA(cudaDeviceSynchronize());
			times.push_back((double)m.out[0] / 300 / 2000.0);
			if (m.out[1])
				fail("ping-pong over the transport");
		}
		if (rank_ == 0)
			printf("proxy latency %s thread %llu %8.3f\n", n ? "put_signal" : "signal", n, median(times));
	}
	for (u64 n : {65536ULL, 1ULL << 20, 3ULL << 20}) {
		m.clear();
		if (rank_ == 0) {
			proxy_stream<<<1, 256>>>(m.memory[0], n, 20, m.out);
			CUDA(cudaDeviceSynchronize());
			printf("proxy bandwidth put %8llu %8.3f\n", n, (double)n * 20 / (double)m.out[0]);
		}
		nvshmem_barrier_all();
	}
}

/* The unique identifier, through a file that rank 0 renames into place. */
static nvshmemx_uniqueid_t uid(const std::string &path)
{
	nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
	if (rank_ == 0) {
		if (nvshmemx_get_uniqueid(&id))
			_exit((fail("no unique identifier"), 1));
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
	if (argc != 4 || (strcmp(argv[3], "compare") && strcmp(argv[3], "probe") && strcmp(argv[3], "proxy"))) {
		fprintf(stderr, "nvshmem RANK UIDFILE compare|probe|proxy\n");
		return 2;
	}
	rank_ = atoi(argv[1]);
	setvbuf(stdout, nullptr, _IOLBF, 0);
	int gpus = 0;
	CUDA(cudaGetDeviceCount(&gpus));
	CUDA(cudaSetDevice(rank_ % gpus));
	nvshmemx_uniqueid_t id = uid(argv[2]);
	nvshmemx_init_attr_t attr = NVSHMEMX_INIT_ATTR_INITIALIZER;
	nvshmemx_set_attr_uniqueid_args(rank_, 2, &id, &attr);
	if (nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attr))
		_exit((fail("nvshmemx_init_attr"), 1));
	const bool probe = !strcmp(argv[3], "probe"), mapped = probe || !strcmp(argv[3], "compare");
	machine m(mapped);
	if (mapped) {
		latency(m, probe);
		if (!probe)
			bandwidths(m);
	} else {
		proxy(m);
	}
	nvshmem_barrier_all();
	fflush(stdout);
	/* What it would free is the process's; some of its transports wait long for each other. */
	_exit(failures ? 1 : 0);
}
