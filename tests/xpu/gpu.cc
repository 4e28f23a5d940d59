/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The device library on GPUs: order and contents, time, bandwidth, commands. CUDA's driver alone is needed.
 *
 *     gpu KERNELS.cubin FROM-TO PART [ROUNDS]     FROM and TO are GPUs, 0-1 or 0-0
 *
 * PART: litmus, latency, bandwidth, ring, drain, ladder, placement, crossing, matvec. Prints one line a result. Exits 1 if something was wrong. */
#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <memory>

#include "machine.h"
#include "host_drain.h"
#include "strait_xpu.h"

static int failures;

static void fail(const std::string &what)
{
	failures++;
	printf("FAILED %s\n", what.c_str());
}

static const char *scopes[] = {"thread", "warp", "block"};
static const unsigned threads_of[] = {1, 32, 256};

/* ---- Order and contents ---- */

static void litmus(machine &m, u64 rounds)
{
	static const char *modes[] = {"put_signal", "put_signal_add", "packets", "put_signal_crc", "mailbox", "put_signal_8"};
	for (int mode = 0; mode < MODES; mode++)
		for (int scope = 0; scope < 3; scope++) {
			const unsigned blocks = mode == MODE_MAIL ? 32 : BLOCKS_MOST;
			const u64 each = std::max<u64>(1, rounds / (mode == MODE_CRC || scope == 0 ? 8 : 1) / blocks);
			/* Packets have several under way in a thread when they are long. */
			const u64 most = scope == 0 ? 64 : mode != MODE_PACKETS ? 2048 : scope == 1 ? 4096 : 12000;
			m.clear();
			for (int r = 1; r >= 0; r--)
				m.launch(r, m.stream[r], (std::string("litmus_") + scopes[scope]).c_str(), blocks, threads_of[scope],
					 {m.tables[r], (u64)mode, each, 12345, most, (u64)m.out[r], m.stats[r]});
			m.wait_both();
			u64 done = 0, bad = 0;
			int rc = 0;
			for (unsigned b = 0; b < blocks; b++)
				for (int r = 0; r < 2; r++) {
					done += r ? m.out[r][3 * b] : 0;
					bad += m.out[r][3 * b + 1];
					rc = rc ? rc : (int)m.out[r][3 * b + 2];
				}
			u64 crc[3] = {0, 0, 0};
			m.enter(1);
			cu("cuMemcpyDtoH_v2", (void *)crc, m.stats[1], sizeof crc);
			printf("litmus %-15s %-6s %11" PRIu64 " rounds, %" PRIu64 " wrong", modes[mode], scopes[scope], (uint64_t)done, (uint64_t)bad);
			if (mode == MODE_CRC)
				printf(", CRCs: %" PRIu64 " checked, %" PRIu64 " read again, %" PRIu64 " failed", (uint64_t)crc[0], (uint64_t)crc[1], (uint64_t)crc[2]);
			printf("\n");
			if (bad || rc || done != each * blocks)
				fail(std::string("litmus ") + modes[mode] + " " + scopes[scope] + ": code " + std::to_string(rc));
		}
	m.clear();
	for (int r = 1; r >= 0; r--)
		m.launch(r, m.stream[r], "litmus_words", 16, 1, {m.tables[r], rounds / 16, (u64)m.out[r]});
	m.wait_both();
	u64 seen = 0, bad = 0, rc = 0;
	for (unsigned b = 0; b < 16; b++) {
		seen += m.out[1][3 * b];
		bad += m.out[1][3 * b + 1];
		rc |= m.out[0][3 * b + 2] | m.out[1][3 * b + 2];
	}
	printf("litmus words of 16 bytes  %11" PRIu64 " stored, %" PRIu64 " seen, %" PRIu64 " wrong\n", (uint64_t)(rounds / 16 * 16), (uint64_t)seen, (uint64_t)bad);
	if (bad || rc)
		fail("litmus words");
}

/* ---- Time one way ---- */

#define NAME_OF(name, kind) #name,
static const char *kinds[] = {PINGS_OF(NAME_OF)};
#undef NAME_OF

/* The median of several runs, in microseconds one way, or below 0. */
static double one_way(machine &m, int mode, int scope, u64 n, u64 rounds)
{
	std::vector<double> times;
	for (int repeat = 0; repeat < 5; repeat++) {
		m.clear();
		for (int r = 1; r >= 0; r--)
			m.launch(r, m.stream[r], (std::string("latency_") + scopes[scope] + "_" + kinds[mode]).c_str(), 1, threads_of[scope],
				 {m.tables[r], n, rounds, 1, (u64)m.out[r]});
		m.wait_both();
		if (m.out[0][1] || m.out[1][1]) {
			fail("latency mode " + std::to_string(mode) + " " + scopes[scope] + " " + std::to_string(n) + " bytes: code " +
			     std::to_string((int)m.out[0][1]) + " " + std::to_string((int)m.out[1][1]));
			return -1;
		}
		times.push_back((double)m.out[0][0] / (double)rounds / 2000.0);
	}
	std::sort(times.begin(), times.end());
	return times[2];
}

static void latency(machine &m, u64 rounds)
{
	/* Of each scope: a block's has its barrier. */
	double bares[3];
	for (int scope = 0; scope < 3; scope++) {
		bares[scope] = one_way(m, PING_BARE, scope, 0, rounds);
		printf("latency bare flag            %-6s            %8.3f us\n", scopes[scope], bares[scope]);
	}
	struct series {
		int mode;
		const char *name;
		bool sized;
		u64 most;
	};
	static const series all[] = {{PING_SIGNAL_WEAK, "signal weak", false, 0}, {PING_SIGNAL, "signal strong", false, 0},
				     {PING_WORD, "word with signal", false, 0},   {PING_FUSED, "put_signal 8 B fused", false, 0},
				     {PING_PACKETS, "packets", true, 16384},	  {PING_MAIL, "mailbox", true, 8192},
				     {PING_PUT, "put_signal", true, 1048576}};
	static const u64 sizes[] = {8, 64, 256, 1024, 4096, 8192, 16384, 65536, 262144, 1048576};
	for (const series &s : all)
		for (int scope = 0; scope < 3; scope++) {
			const double bare = bares[scope];
			if (!s.sized) {
				const double t = one_way(m, s.mode, scope, 8, rounds);
				printf("latency %-20s %-6s        8 B %8.3f us  %5.2f of a bare flag\n", s.name, scopes[scope], t, t / bare);
				continue;
			}
			for (u64 n : sizes) {
				/* One thread or warp with much data says nothing. */
				if (n > s.most || n > (scope == 0 ? 1024u : scope == 1 ? 65536u : s.most))
					continue;
				/* Region 0 has its own places for as much as an area. */
				if (s.mode == PING_PUT && n > AREA / 2 - 4096 && n + AREA / 2 > m.length[0])
					continue;
				const double t = one_way(m, s.mode, scope, n, n > 65536 ? rounds / 8 : rounds);
				printf("latency %-20s %-6s %8" PRIu64 " B %8.3f us  %5.2f of a bare flag\n", s.name, scopes[scope], (uint64_t)n, t, t / bare);
			}
		}
}

/* ---- Bandwidth ---- */

static double timed(machine &m, void (*body)(machine &, u64, u64, u64), u64 n, u64 rounds, u64 what)
{
	void *begin, *end;
	float ms = 0;
	m.enter(0);
	cu("cuEventCreate", &begin, 0u);
	cu("cuEventCreate", &end, 0u);
	body(m, n, 2, what);
	m.enter(0);
	cu("cuEventRecord", begin, m.stream[0]);
	body(m, n, rounds, what);
	m.enter(0);
	cu("cuEventRecord", end, m.stream[0]);
	m.wait(m.stream[0]);
	cu("cuEventElapsedTime", &ms, begin, end);
	cu("cuEventDestroy_v2", begin);
	cu("cuEventDestroy_v2", end);
	return (double)n * (double)rounds / ms / 1e6;
}

static void by_engine(machine &m, u64 n, u64 rounds, u64)
{
	for (u64 i = 0; i < rounds; i++)
		cu("cuMemcpyDtoDAsync_v2", m.memory[1][2], m.memory[0][2], (size_t)n, m.stream[0]);
}

static void by_kernel(machine &m, u64 n, u64 rounds, u64 what)
{
	m.launch(0, m.stream[0], "bandwidth", (unsigned)(what >> 1), 512, {m.tables[0], n, rounds, what & 1, (u64)m.out[0]});
}

static void bandwidth(machine &m, u64)
{
	static const unsigned blocks[] = {1, 2, 4, 8, 16, 32, 64, 128};
	for (u64 n = 65536; n <= 268435456; n *= 4) {
		const u64 rounds = std::max<u64>(8, std::min<u64>(200, (2ULL << 30) / n));
		const double engine = timed(m, by_engine, n, rounds, 0);
		printf("bandwidth %10" PRIu64 " B  copy engine      %8.2f GB/s\n", (uint64_t)n, engine);
		for (int gets = 0; gets < 2; gets++)
			for (unsigned b : blocks) {
				const double rate = timed(m, by_kernel, n, b < 4 ? std::max<u64>(2, rounds / 4) : rounds, (u64)b << 1 | (u64)gets);
				bool bad = false;
				for (unsigned i = 0; i < b; i++)
					bad |= m.out[0][i] != 0;
				if (bad)
					fail("bandwidth with " + std::to_string(b) + " blocks");
				printf("bandwidth %10" PRIu64 " B  %s %3u blocks  %8.2f GB/s  %5.2f of the copy engine\n", (uint64_t)n,
				       gets ? "get" : "put", b, rate, rate / engine);
			}
	}
}

#include "gpu_commands.h"
#include "gpu_crossing.h"

static void matvec(machine &m, u64)
{
	const unsigned blocks = 60, threads = 256;
	const dptr matrix = m.memory[1][0], in = m.memory[1][2], product = m.memory[1][3];
	std::vector<float> values(VECTOR * VECTOR), vectors, back;
	for (size_t i = 0; i < values.size(); i++)
		values[i] = (float)(i % 7) - 3;
	for (u64 n = 480; n <= 15360; n *= 2) {
		m.clear();
		m.enter(1);
		cu("cuMemcpyHtoD_v2", matrix, (const void *)values.data(), values.size() * 4);
		vectors.resize(n * VECTOR);
		for (size_t i = 0; i < vectors.size(); i++)
			vectors[i] = (float)(i * 2654435761u >> 20 & 15);
		m.enter(0);
		cu("cuMemcpyHtoD_v2", m.memory[0][2], (const void *)vectors.data(), vectors.size() * 4);
		cu("cuMemsetD8_v2", m.memory[0][3], (unsigned char)0, (size_t)(n * VECTOR * 4));
		cu("cuCtxSynchronize");
		const u64 rounds = 2000;
		m.launch(1, m.stream[1], "matvec_server", blocks, threads, {m.tables[1], matrix, n, rounds, (u64)m.out[1]});
		m.launch(0, m.stream[0], "matvec_client", blocks, threads, {m.tables[0], n, rounds, (u64)m.out[0]});
		m.wait_both();
		u64 slowest = 1;
		bool bad = false;
		for (unsigned b = 0; b < blocks; b++) {
			slowest = std::max(slowest, m.out[0][2 * b]);
			bad |= m.out[0][2 * b + 1] || m.out[1][b];
		}
		back.resize(n * VECTOR);
		m.enter(0);
		cu("cuMemcpyDtoH_v2", (void *)back.data(), m.memory[0][3], back.size() * 4);
		for (size_t v = 0; v < n && !bad; v++)
			for (int row = 0; row < VECTOR; row++) {
				float sum = 0;
				for (int k = 0; k < VECTOR; k++)
					sum += values[(size_t)(row * VECTOR + k)] * vectors[v * VECTOR + (size_t)k];
				bad |= sum != back[v * VECTOR + (size_t)row];
			}
		if (bad)
			fail("matvec, " + std::to_string(n) + " vectors");
		const double device = (double)n * (double)rounds / (double)slowest * 1000;
		/* By the CPU: copy there, launch, copy back, each batch to its end. */
		const u64 few = 300;
		auto begin = std::chrono::steady_clock::now();
		for (u64 i = 0; i < few + 20; i++) {
			if (i == 20)
				begin = std::chrono::steady_clock::now();
			m.enter(0);
			cu("cuMemcpyDtoDAsync_v2", in, m.memory[0][2], (size_t)(n * VECTOR * 4), m.stream[0]);
			m.wait(m.stream[0]);
			m.launch(1, m.stream[1], "matvec_kernel", blocks, threads, {matrix, in, product, n});
			m.wait(m.stream[1]);
			m.enter(1);
			cu("cuMemcpyDtoDAsync_v2", m.memory[0][3], product, (size_t)(n * VECTOR * 4), m.stream[1]);
			m.wait(m.stream[1]);
		}
		const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
		const double host = (double)n * (double)few / s / 1e6;
		printf("matvec %6" PRIu64 " vectors  GPU-driven %8.2f M/s  CPU-driven %8.2f M/s  %5.2f times\n", (uint64_t)n, device, host, device / host);
	}
}

int main(int argc, char **argv)
{
	if (argc < 4) {
		fprintf(stderr, "gpu KERNELS.cubin FROM-TO litmus|latency|bandwidth|ring|drain|ladder|placement|crossing|matvec [ROUNDS]\n");
		return 2;
	}
	setenv("CUDA_MODULE_LOADING", "EAGER", 1);
	setvbuf(stdout, nullptr, _IOLBF, 0);
	const std::string part = argv[3];
	const u64 rounds = argc > 4 ? strtoull(argv[4], nullptr, 10) : 0;
	try {
		cu("cuInit", 0u);
		const std::string cubin = file_of(argv[1]);
		machine m(argv[2][0] - '0', argv[2][2] - '0', cubin);
		printf("# %s, GPUs %s: %s, %s\n", part.c_str(), argv[2], machine::name_of(m.gpu[0]).c_str(), machine::name_of(m.gpu[1]).c_str());
		if (part == "litmus")
			litmus(m, rounds ? rounds : 400000);
		else if (part == "latency")
			latency(m, rounds ? rounds : 2000);
		else if (part == "bandwidth")
			bandwidth(m, rounds);
		else if (part == "ring")
			ring_part(m, rounds ? rounds : 5000);
		else if (part == "ladder")
			ladder_part(m, rounds ? rounds : 20000);
		else if (part == "placement")
			placement_part(m, rounds ? rounds : 3000);
		else if (part == "crossing")
			crossing(m, rounds);
		else if (part == "drain")
			drain_part(m, rounds ? rounds : 5000);
		else if (part == "matvec")
			matvec(m, rounds);
		else
			fail("no such part: " + part);
	} catch (const std::exception &wrong) {
		fail(part + ": " + wrong.what());
	}
	fflush(stdout);
	_Exit(failures ? 1 : 0);
}
