/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* gpu.cc's part `crossing`: the terms of docs/measurements/p2pmem-model.md that need a device. */

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

static double now_us()
{
	return (double)std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count() / 1000;
}

/* Median microseconds of a thing that is done 31 times, after 5. */
template <class F> double median_of(F &&body)
{
	std::vector<double> took;
	for (int i = 0; i < 36; i++) {
		const double begin = now_us();
		body();
		if (i >= 5)
			took.push_back(now_us() - begin);
	}
	std::sort(took.begin(), took.end());
	return took[took.size() / 2];
}

static void crossed(const char *how, const char *where, size_t bytes, double us)
{
	printf("crossing %-28s %-34s %8zu B %9.3f us %8.2f GB/s\n", how, where, bytes, us, (double)bytes / us / 1000);
}

/* By a kernel on the first GPU. */
static void by_a_kernel(machine &m, const char *where, u64 far, u64 near)
{
	static const struct {
		const char *how;
		u64 what;
		size_t bytes;
		unsigned threads;
		u64 rounds;
	} all[] = {{"a thread's load", CROSS_LOAD, 8, 1, 2000},	       {"a thread's store, fence", CROSS_STORE, 8, 1, 2000},
		   {"a block's read", CROSS_READ, 4096, 512, 500},     {"a block's write, fence", CROSS_WRITE, 4096, 512, 500},
		   {"a block's read", CROSS_READ, 65536, 1024, 200},   {"a block's write, fence", CROSS_WRITE, 65536, 1024, 200},
		   {"a block's read", CROSS_READ, 1048576, 1024, 20}, {"a block's write, fence", CROSS_WRITE, 1048576, 1024, 20}};
	for (auto &a : all) {
		std::vector<double> took;
		for (int i = 0; i < 5; i++) {
			/* Loads and stores go through 1 MiB, which no cache line of is used again soon. */
			m.launch(0, m.stream[0], "crossing", 1, a.threads,
				 {far, near, a.bytes == 8 ? 131072 : a.bytes / 8, a.rounds, a.what, (u64)m.out[0]});
			m.wait(m.stream[0]);
			took.push_back((double)m.out[0][0] / (double)a.rounds / 1000);
		}
		std::sort(took.begin(), took.end());
		crossed(a.how, where, a.bytes, took[2]);
		if (a.what == CROSS_STORE) {
			m.enter(0);
			cu("cuMemsetD8_v2", near, (unsigned char)0, (size_t)1 << 20);
		}
	}
}

static const size_t crossing_sizes[] = {64, 4096, 65536, 1048576, 4194304};

/* By a copy engine: one copy until it is known to be done, and each of many in a row. */
template <class F> void by_an_engine(machine &m, const char *where, F &&copy)
{
	void *begin, *end;
	m.enter(0);
	cu("cuEventCreate", &begin, 0u);
	cu("cuEventCreate", &end, 0u);
	for (size_t n : crossing_sizes) {
		crossed("copy engine, until done", where, n, median_of([&] {
			copy(n);
			m.wait(m.stream[0]);
		}));
		const int many = n > 65536 ? 50 : 400;
		float ms = 0;
		cu("cuEventRecord", begin, m.stream[0]);
		for (int i = 0; i < many; i++)
			copy(n);
		cu("cuEventRecord", end, m.stream[0]);
		m.wait(m.stream[0]);
		cu("cuEventElapsedTime", &ms, begin, end);
		crossed("copy engine, in a row", where, n, ms * 1000 / (float)many);
	}
	cu("cuEventDestroy_v2", begin);
	cu("cuEventDestroy_v2", end);
}

/* The kernel's buffers: a file in the page cache, beside page-locked memory and the driver's own bounce buffer. */
static void by_the_page_cache(machine &m, char *locked, dptr a, dptr b)
{
	char name[] = "/tmp/strait-crossing.XXXXXX";
	const int fd = mkstemp(name);
	const size_t most = 4194304;
	if (fd < 0 || ftruncate(fd, (off_t)most))
		throw std::runtime_error("no file for the page cache");
	unlink(name);
	memset(locked, 7, most);
	if (pwrite(fd, locked, most, 0) != (ssize_t)most)
		throw std::runtime_error("pwrite");
	std::vector<char> pageable(most + 4096);
	void *const pages = (void *)(((u64)pageable.data() + 4095) & ~4095ULL);
	m.enter(0);
	for (size_t n : crossing_sizes) {
		bool whole = true;
		auto in = [&] { whole &= pread(fd, locked, n, 0) == (ssize_t)n; };
		auto out = [&] { whole &= pwrite(fd, locked, n, 0) == (ssize_t)n; };
		auto down = [&] { cu("cuMemcpyDtoH_v2", (void *)locked, a, n); };
		auto up = [&] { cu("cuMemcpyHtoD_v2", b, (const void *)locked, n); };
		crossed("pread alone", "page cache, host memory", n, median_of(in));
		crossed("cuMemcpyDtoH", "device, page-locked memory", n, median_of(down));
		crossed("cuMemcpyHtoD", "page-locked memory, device", n, median_of(up));
		crossed("pread, cuMemcpyHtoD", "page cache, page-locked, device", n, median_of([&] { in(); up(); }));
		crossed("cuMemcpyDtoH, pwrite", "device, page-locked, page cache", n, median_of([&] { down(); out(); }));
		crossed("cuMemcpyHtoD", "pageable memory, device", n, median_of([&] { cu("cuMemcpyHtoD_v2", b, (const void *)pages, n); }));
		crossed("DtoH, HtoD", "device, page-locked, device", n, median_of([&] { down(); up(); }));
		crossed("DtoH, pwrite, pread, HtoD", "device, page cache, device", n, median_of([&] { down(); out(); in(); up(); }));
		if (n >= 4096)
			crossed("cuMemHostRegister, Unregister", "pages of the host", n, median_of([&] {
				cu("cuMemHostRegister_v2", pages, n, 0u);
				cu("cuMemHostUnregister", pages);
			}));
		if (!whole)
			fail("crossing: the page cache is short");
	}
	close(fd);
}

/* The CPU's loads and stores of the GPU's memory, through its BAR: a dma-buf that is mapped, if the driver lets that be. */
static void by_the_cpu(machine &m)
{
	const size_t n = 2u << 20;
	for (unsigned long long flags = 0; flags < 2; flags++) {
		const char *what = flags ? "dma-buf by PCIe" : "dma-buf";
		int fd = -1;
		try {
			m.enter(0);
			cu("cuMemGetHandleForAddressRange", (void *)&fd, m.memory[0][2], n, 1, flags);
		} catch (const std::exception &wrong) {
			printf("crossing %s: not measured: %s\n", what, wrong.what());
			continue;
		}
		void *at = mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (at == MAP_FAILED) {
			printf("crossing %s: not measured: mmap(2): %s\n", what, strerror(errno));
			close(fd);
			continue;
		}
		volatile u64 *words = (volatile u64 *)at;
		const int loads = 1000;
		double begin = now_us();
		u64 sum = 0;
		for (int i = 0; i < loads; i++)
			sum += words[sum % 2 + (u64)i * 16 % 4096];
		crossed("the CPU's load", what, 8, (now_us() - begin) / loads);
		begin = now_us();
		for (int i = 0; i < loads; i++)
			words[(u64)i * 16 % 4096] = sum;
		sum += words[0];
		crossed("the CPU's store", what, 8, (now_us() - begin) / loads);
		munmap(at, n);
		close(fd);
	}
}

static void crossing(machine &m, u64)
{
	const bool two = m.gpu[0] != m.gpu[1];
	const size_t most = 4194304;
	char *locked;
	m.clear();
	m.enter(0);
	/* 1: portable, 2: in the device's space. */
	cu("cuMemHostAlloc", (void **)&locked, most, 3u);
	memset(locked, 0, most);
	const dptr a = m.memory[0][2], b = m.memory[two][2];
	for (int r = 0; r < 2; r++) {
		m.enter(r);
		cu("cuMemsetD8_v2", m.memory[r][2], (unsigned char)0, (size_t)m.length[2]);
		cu("cuCtxSynchronize");
	}
	by_a_kernel(m, "own memory", a, m.memory[0][1]);
	by_a_kernel(m, "host memory, page-locked", (u64)locked, m.memory[0][1]);
	if (two)
		by_a_kernel(m, "other GPU's memory", b, m.memory[0][1]);
	m.enter(0);
	by_an_engine(m, "device, page-locked memory", [&](size_t n) { cu("cuMemcpyDtoHAsync_v2", (void *)locked, a, n, m.stream[0]); });
	by_an_engine(m, "page-locked memory, device", [&](size_t n) { cu("cuMemcpyHtoDAsync_v2", a, (const void *)locked, n, m.stream[0]); });
	auto peer = [&](size_t n) { cu("cuMemcpyPeerAsync", b, m.context[1], a, m.context[0], n, m.stream[0]); };
	if (two) {
		by_an_engine(m, "device, device, peer access", peer);
		for (int r = 0; r < 2; r++) {
			m.enter(r);
			cu("cuCtxDisablePeerAccess", m.context[1 - r]);
		}
		by_an_engine(m, "device, device, no peer access", peer);
		for (int r = 0; r < 2; r++) {
			m.enter(r);
			cu("cuCtxEnablePeerAccess", m.context[1 - r], 0u);
		}
	} else {
		by_an_engine(m, "device, device, one GPU", [&](size_t n) { cu("cuMemcpyDtoDAsync_v2", a + most, a, n, m.stream[0]); });
	}
	by_the_page_cache(m, locked, a, two ? b : a + most);
	by_the_cpu(m);
	cu("cuMemFreeHost", (void *)locked);
}
