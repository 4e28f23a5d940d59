/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The multi matrix-vector product of the seed's slide 42 with a CPU that drives: two ranks of a GASPI, GPI-2 with -DGPI2. Rank 0 sends a
 * batch with gaspi_write_notify and waits for the products; rank 1's CPU waits for the batch, starts the kernel and sends.
 *
 *     matvec KERNELS.cubin|lanes MEMORY     prints a line a batch size, and "ok matvec"
 *
 * MEMORY, of rank 1's segments: mapped (page-locked, which the kernel reaches), copied (page-locked, and copies to and from the device),
 * device. With `lanes` the product is this CPU's own. */
#ifdef GPI2
#include <GASPI.h>
#else
#include "gaspi/stand_in.h"
#endif

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "driver.h"
#include "gaspi/ranks.h"
#include "gpu.h"

static unsigned rank_here;
#define CHECK_FORMAT "rank %u: "
#define CHECK_ARGS rank_here
#include "check.h"

enum : unsigned { ranks = 2, rounds = 300, warm = 20, least = 480, most = 15360, blocks = 60, threads = 256 };
enum : size_t { vector_bytes = 4 * VECTOR, segment_size = 2u << 20 };
static_assert(most * vector_bytes <= segment_size, "a batch fits");
enum : gaspi_segment_id_t { vectors_segment, products_segment };

static float matrix_at(size_t i) { return (float)(i % 7) - 3; }
static float vector_at(size_t i) { return (float)((unsigned)i * 2654435761u >> 20 & 15); }

static void barrier() { CHECK(gaspi_barrier(GASPI_GROUP_ALL, GASPI_BLOCK) == GASPI_SUCCESS); }

/* A batch, with its notification, to the other rank. */
static void send(gaspi_segment_id_t segment, size_t bytes, unsigned round, gaspi_queue_id_t queue)
{
	gaspi_return_t rc;
	do {
		rc = gaspi_write_notify(segment, 0, (gaspi_rank_t)!rank_here, segment, 0, bytes, round & 1, round + 1, queue, GASPI_BLOCK);
		if (rc == GASPI_QUEUE_FULL)
			CHECK(gaspi_wait(queue, GASPI_BLOCK) == GASPI_SUCCESS);
	} while (rc == GASPI_QUEUE_FULL || rc == GASPI_TIMEOUT);
	CHECK(rc == GASPI_SUCCESS);
	while ((rc = gaspi_wait(queue, GASPI_BLOCK)) == GASPI_TIMEOUT)
		;
	CHECK(rc == GASPI_SUCCESS);
}

static void receive(gaspi_segment_id_t segment, unsigned round)
{
	gaspi_notification_id_t which = 0;
	gaspi_notification_t value = 0;
	gaspi_return_t rc;
	while ((rc = gaspi_notify_waitsome(segment, round & 1, 1, &which, GASPI_BLOCK)) == GASPI_TIMEOUT)
		;
	CHECK(rc == GASPI_SUCCESS && gaspi_notify_reset(segment, which, &value) == GASPI_SUCCESS && value == round + 1);
}

/* What multiplies batches: a GPU, or with lanes this thread. */
class multiplier {
public:
	multiplier(const std::string &code, const std::string &kind) : kind(kind), lanes(code == "lanes"), values(VECTOR * VECTOR)
	{
		for (size_t i = 0; i < values.size(); i++)
			values[i] = matrix_at(i);
		if (lanes)
			return;
		std::ifstream file(code, std::ios::binary);
		const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
		void *context = nullptr, *module = nullptr;
		cu("cuInit", 0u);
		cu("cuDevicePrimaryCtxRetain", &context, 0);
		cu("cuCtxSetCurrent", context);
		cu("cuModuleLoadData", &module, (const void *)text.data());
		cu("cuModuleGetFunction", &kernel, module, "matvec_kernel");
		cu("cuStreamCreate", &stream, 1u);
		cu("cuMemAlloc_v2", &matrix, values.size() * 4);
		cu("cuMemcpyHtoD_v2", matrix, (const void *)values.data(), values.size() * 4);
		for (dptr &p : staged)
			cu("cuMemAlloc_v2", &p, (size_t)segment_size);
	}
	void *memory([[maybe_unused]] gaspi_segment_id_t segment)
	{
		void *p = nullptr;
		if (lanes) {
#ifdef GPI2
			p = aligned_alloc(4096, segment_size);
#else
			p = stand_in::me().f->data[rank_here][segment];
#endif
		} else if (kind == "device") {
			cu("cuMemAlloc_v2", (dptr *)&p, (size_t)segment_size);
			cu("cuMemsetD8_v2", (dptr)p, (unsigned char)0, (size_t)segment_size);
			cu("cuCtxSynchronize");
			return p;
		} else {
			cu("cuMemHostAlloc", &p, (size_t)segment_size, 3u);
		}
		return memset(p, 0, segment_size);
	}
	void multiply(void *in, void *to, uint64_t vectors)
	{
		if (lanes) {
			for (size_t v = 0; v < vectors; v++)
				product((const float *)in + v * VECTOR, (float *)to + v * VECTOR);
			return;
		}
		const bool copies = kind == "copied";
		dptr from = copies ? staged[0] : (dptr)in, result = copies ? staged[1] : (dptr)to;
		if (copies)
			cu("cuMemcpyHtoDAsync_v2", from, (const void *)in, (size_t)vectors * vector_bytes, stream);
		void *args[] = {&matrix, &from, &result, &vectors};
		cu("cuLaunchKernel", kernel, (unsigned)blocks, 1u, 1u, (unsigned)threads, 1u, 1u, 0u, stream, args, (void **)nullptr);
		if (copies)
			cu("cuMemcpyDtoHAsync_v2", to, result, (size_t)vectors * vector_bytes, stream);
		while (!stream_ended(stream))
			;
	}
	void product(const float *in, float *to) const
	{
		for (int row = 0; row < VECTOR; row++) {
			float sum = 0;
			for (int k = 0; k < VECTOR; k++)
				sum += values[(size_t)(row * VECTOR + k)] * in[k];
			to[row] = sum;
		}
	}

private:
	std::string kind;
	bool lanes;
	std::vector<float> values;
	void *kernel = nullptr, *stream = nullptr;
	dptr matrix = 0, staged[2] = {};
};

static void play(const std::string &code, const std::string &kind)
{
#ifdef GPI2
	CHECK(configure_ranks() == GASPI_SUCCESS);
#endif
	rank_here = (unsigned)atoi(getenv("GASPI_RANK"));
	/* Before GASPI, so that a provider finds the driver. Rank 0 is the CPU's node. */
	multiplier m(rank_here ? code : "lanes", kind);
	CHECK(gaspi_proc_init(GASPI_BLOCK) == GASPI_SUCCESS);
	void *memory[] = {m.memory(vectors_segment), m.memory(products_segment)};
	for (gaspi_segment_id_t s : {vectors_segment, products_segment})
		CHECK(gaspi_segment_use(s, memory[s], segment_size, GASPI_GROUP_ALL, GASPI_BLOCK, 0) == GASPI_SUCCESS);
	gaspi_queue_id_t queue = 0;
	for (unsigned n = least; n <= most; n *= 2, queue++) {
		auto begin = std::chrono::steady_clock::now();
		if (rank_here == 0) {
			for (size_t i = 0; i < (size_t)n * VECTOR; i++)
				((float *)memory[0])[i] = vector_at(i + n);
			memset(memory[1], 0, segment_size);
		}
		barrier();
		for (unsigned i = 0; i < rounds + warm; i++) {
			if (i == warm)
				begin = std::chrono::steady_clock::now();
			if (rank_here == 0) {
				send(vectors_segment, n * vector_bytes, i, queue);
				receive(products_segment, i);
			} else {
				receive(vectors_segment, i);
				m.multiply(memory[0], memory[1], n);
				send(products_segment, n * vector_bytes, i, queue);
			}
		}
		const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
		if (rank_here == 0) {
			for (size_t v = 0; v < n; v++) {
				float wanted[VECTOR];
				m.product((float *)memory[0] + v * VECTOR, wanted);
				CHECK(!memcmp(wanted, (float *)memory[1] + v * VECTOR, sizeof wanted));
			}
			printf("matvec-gaspi %s %6u vectors %8.2f M/s\n", kind.c_str(), n, (double)n * rounds / s / 1e6);
			fflush(stdout);
		}
		barrier();
	}
	/* GASPI's own end is not what is measured. */
	_exit(0);
}

int main(int argc, char **argv)
{
	const std::string kind = argc > 2 ? argv[2] : "";
	if (argc != 3 || (kind != "mapped" && kind != "copied" && kind != "device")) {
		fprintf(stderr, "matvec KERNELS.cubin|lanes mapped|copied|device\n");
		return 2;
	}
	try {
		if (getenv("GASPI_RANK"))
			play(argv[1], kind);
	} catch (const std::exception &wrong) {
		fprintf(stderr, "%s\n", wrong.what());
		_exit(1);
	}
	const int failed = run_ranks(argv, ranks, -1);
	if (!failed)
		puts("ok matvec");
	return failed;
}
