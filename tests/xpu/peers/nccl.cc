/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* NCCL's all-reduce of two ranks, over whatever network its environment names: contents first, then time. Two processes, each of
 *
 *     nccl LIBNCCL RANK UIDFILE NAME
 *
 * Prints lines "nccl NAME ..."; exits 1 if an element was wrong. CUDA's driver and NCCL are loaded at run time. */
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "../driver.h"

struct unique_id {
	char bytes[128];
};

static void *library;
static int rank_;
static const char *name;

/* A call of NCCL's; anything but 0 is an exception that names it. */
template <class... A> static void nccl(const char *call, A... args)
{
	auto f = (int (*)(A...))dlsym(library, call);
	if (!f)
		throw std::runtime_error(std::string("NCCL has no ") + call);
	const int code = f(args...);
	if (code == 0)
		return;
	auto word = (const char *(*)(int))dlsym(library, "ncclGetErrorString");
	throw std::runtime_error(std::string(call) + ": " + (word ? word(code) : "?"));
}

/* Through a file that rank 0 renames into place. */
static unique_id identifier(const std::string &path)
{
	unique_id id;
	if (rank_ == 0) {
		nccl("ncclGetUniqueId", &id);
		FILE *f = fopen((path + ".new").c_str(), "wb");
		if (!f || fwrite(&id, sizeof id, 1, f) != 1 || fclose(f) || rename((path + ".new").c_str(), path.c_str()))
			throw std::runtime_error("cannot write " + path);
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

struct reduction {
	void *comm = nullptr, *stream = nullptr;
	dptr from = 0, to = 0;

	void once(size_t count) { nccl("ncclAllReduce", (const void *)from, (void *)to, count, 7 /* float */, 0 /* sum */, comm, stream); }
	void wait()
	{
		while (!stream_ended(stream))
			usleep(20);
	}

	bool right(size_t count)
	{
		std::vector<float> v(count), back(count);
		for (size_t i = 0; i < count; i++)
			v[i] = (float)((i * 2654435761u >> 16) % 1000 + (size_t)rank_);
		cu("cuMemcpyHtoD_v2", from, (const void *)v.data(), count * 4);
		cu("cuMemsetD8_v2", to, (unsigned char)0xff, count * 4);
		cu("cuCtxSynchronize");
		once(count);
		wait();
		cu("cuMemcpyDtoH_v2", (void *)back.data(), to, count * 4);
		for (size_t i = 0; i < count; i++)
			if (back[i] != (float)(2 * ((i * 2654435761u >> 16) % 1000) + 1))
				return false;
		return true;
	}

	/* Two that go on while memory is freed, for which the driver waits until their kernels have ended: a network that needs the
	 * driver's lock meanwhile never ends them. */
	bool right_beside_free(size_t count)
	{
		std::vector<float> ones(count, 1.0f), back(count);
		dptr scratch = 0;
		cu("cuMemAlloc_v2", &scratch, (size_t)4 << 20);
		cu("cuMemcpyHtoD_v2", from, (const void *)ones.data(), count * 4);
		cu("cuMemsetD8_v2", to, (unsigned char)0xff, count * 4);
		cu("cuCtxSynchronize");
		once(count);
		once(count);
		cu("cuMemFree_v2", scratch);
		wait();
		cu("cuMemcpyDtoH_v2", (void *)back.data(), to, count * 4);
		for (float x : back)
			if (x != 2.0f)
				return false;
		return true;
	}

	double seconds(size_t count, int rounds)
	{
		std::vector<double> times;
		for (int repeat = 0; repeat < 3; repeat++) {
			once(count);
			wait();
			const auto begin = std::chrono::steady_clock::now();
			for (int i = 0; i < rounds; i++)
				once(count);
			while (!stream_ended(stream))
				;
			times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / rounds);
		}
		std::sort(times.begin(), times.end());
		return times[1];
	}
};

static int run(const char *uid)
{
	int gpus = 0, failures = 0;
	void *context;
	reduction r;
	cu("cuInit", 0u);
	cu("cuDeviceGetCount", &gpus);
	cu("cuDevicePrimaryCtxRetain", &context, rank_ % gpus);
	cu("cuCtxSetCurrent", context);
	cu("cuStreamCreate", &r.stream, 1u);
	const size_t most = 256u << 20;
	cu("cuMemAlloc_v2", &r.from, most);
	cu("cuMemAlloc_v2", &r.to, most);
	nccl("ncclCommInitRank", &r.comm, 2, identifier(uid), rank_);
	for (size_t count : {(size_t)1, (size_t)1000, (size_t)(1u << 20) + 3, (size_t)16u << 20}) {
		const bool right = r.right(count);
		failures += !right;
		printf("nccl %s rank %d all_reduce of %zu floats: %s\n", name, rank_, count, right ? "right" : "WRONG");
	}
	const bool beside = r.right_beside_free((size_t)16 << 20);
	failures += !beside;
	printf("nccl %s rank %d two all_reduces while memory is freed: %s\n", name, rank_, beside ? "right" : "WRONG");
	struct {
		size_t bytes;
		int rounds;
	} sizes[] = {{8, 100}, {1u << 20, 30}, {16u << 20, 10}, {256u << 20, 3}};
	for (auto s : sizes) {
		const double t = r.seconds(s.bytes / 4, s.rounds);
		if (rank_ == 0)
			printf("nccl %s all_reduce %10zu bytes %10.1f us %8.2f GB/s\n", name, s.bytes, t * 1e6, (double)s.bytes / t / 1e9);
	}
	return failures;
}

int main(int argc, char **argv)
{
	if (argc != 5) {
		fprintf(stderr, "nccl LIBNCCL RANK UIDFILE NAME\n");
		return 2;
	}
	rank_ = atoi(argv[2]);
	name = argv[4];
	setvbuf(stdout, nullptr, _IOLBF, 0);
	int failures = 1;
	try {
		library = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
		if (!library)
			throw std::runtime_error(dlerror());
		failures = run(argv[3]);
	} catch (const std::exception &wrong) {
		printf("FAILED nccl %s rank %d: %s\n", name, rank_, wrong.what());
	}
	fflush(stdout);
	_exit(failures ? 1 : 0);
}
