/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* One side of the loop of 128 bytes in batches of 20 with a kernel between: a GPU's stream, its kernels and buffers, what they have to
 * contain: of streams.cc and of the programs of hosted.h. */
#ifndef STRAIT_TEST_XPU_STREAMS_GPU_H
#define STRAIT_TEST_XPU_STREAMS_GPU_H

#include <unistd.h>

#include <cstring>
#include <vector>

#include "../driver.h"

static const char *role = "first";
#define CHECK_FORMAT "%s: "
#define CHECK_ARGS role
#include "../must.h"

enum { size = 128, batch = 20, threads = size / 4, limit_s = 60, step = 64 };

/* fill: thread i stores *base + i in word i. answer: thread i stores the complement of word i. next: *base += 64. */
static const char kernel_text[] = R"(.version 6.0
.target sm_50
.address_size 64
.visible .entry fill(.param .u64 to, .param .u64 base)
{
	.reg .b32 %r<4>;
	.reg .b64 %d<4>;
	ld.param.u64 %d0, [to];
	ld.param.u64 %d1, [base];
	ld.global.u32 %r1, [%d1+0];
	mov.u32 %r0, %tid.x;
	add.u32 %r1, %r1, %r0;
	mov.u32 %r2, 4;
	mul.wide.u32 %d2, %r0, %r2;
	add.u64 %d3, %d0, %d2;
	st.global.u32 [%d3+0], %r1;
	ret;
}
.visible .entry answer(.param .u64 to, .param .u64 from)
{
	.reg .b32 %r<4>;
	.reg .b64 %d<5>;
	ld.param.u64 %d0, [to];
	ld.param.u64 %d1, [from];
	mov.u32 %r0, %tid.x;
	mov.u32 %r2, 4;
	mul.wide.u32 %d2, %r0, %r2;
	add.u64 %d3, %d0, %d2;
	add.u64 %d4, %d1, %d2;
	ld.global.u32 %r1, [%d4+0];
	not.b32 %r1, %r1;
	st.global.u32 [%d3+0], %r1;
	ret;
}
.visible .entry next(.param .u64 base, .param .u64 by)
{
	.reg .b32 %r<3>;
	.reg .b64 %d<2>;
	ld.param.u64 %d0, [base];
	ld.param.u64 %d1, [by];
	cvt.u32.u64 %r1, %d1;
	ld.global.u32 %r0, [%d0+0];
	add.u32 %r0, %r0, %r1;
	st.global.u32 [%d0+0], %r0;
	ret;
}
)";

/* A GPU's stream, kernels and memory. */
struct gpu {
	void *stream = nullptr, *fill = nullptr, *answer = nullptr, *next = nullptr;
	dptr out = 0, in = 0, base = 0; /* `batch` messages each, in the GPU's memory; the number of the next one */

	void open(int number = -1)
	{
		void *ctx = nullptr, *module = nullptr;
		int gpus = 0;
		cu("cuInit", 0u);
		cu("cuDeviceGetCount", &gpus);
		/* The second process has the second GPU, where there is one. */
		cu("cuDevicePrimaryCtxRetain", &ctx, gpus > 1 ? number < 0 ? !strcmp(role, "second") : number : 0);
		cu("cuCtxSetCurrent", ctx);
		cu("cuStreamCreate", &stream, 1u);
		cu("cuModuleLoadData", &module, (const char *)kernel_text);
		cu("cuModuleGetFunction", &fill, module, (const char *)"fill");
		cu("cuModuleGetFunction", &answer, module, (const char *)"answer");
		cu("cuModuleGetFunction", &next, module, (const char *)"next");
		cu("cuMemAlloc_v2", &out, (size_t)size * batch);
		cu("cuMemAlloc_v2", &in, (size_t)size * batch);
		cu("cuMemAlloc_v2", &base, (size_t)8);
		cu("cuMemsetD8_v2", base, (unsigned char)0, (size_t)8);
		clear();
	}

	/* What is left of an earlier message is not taken for a later one. */
	void clear()
	{
		cu("cuMemsetD8_v2", in, (unsigned char)0xee, (size_t)size * batch);
		/* It may return before it is done, and the peer's next message comes by another stream, or by the peer itself. */
		cu("cuCtxSynchronize");
	}

	void launch(void *kernel, unsigned count, uint64_t a, uint64_t b)
	{
		void *args[] = {&a, &b};
		cu("cuLaunchKernel", kernel, 1u, 1u, 1u, count, 1u, 1u, 0u, stream, (void **)args, (void **)nullptr);
	}

	void *at(dptr of, unsigned n) { return (void *)(of + (dptr)n * size); }

	void make(unsigned n)
	{
		launch(fill, threads, out + (dptr)n * size, base);
		launch(next, 1, base, step);
	}

	void reply(unsigned n) { launch(answer, threads, out + (dptr)n * size, in + (dptr)n * size); }

	void end_of_stream()
	{
		const double begin = now();
		while (!stream_ended(stream)) {
			CHECK(now() - begin < limit_s);
			usleep(20);
		}
	}

	std::vector<uint32_t> words(dptr of, size_t bytes)
	{
		std::vector<uint32_t> all(bytes / 4);
		cu("cuMemcpyDtoH_v2", (void *)all.data(), of, bytes);
		return all;
	}

	/* All messages of a batch, `mask` being what a reply is combined with. */
	void check(uint64_t first, uint32_t mask)
	{
		const std::vector<uint32_t> all = words(in, (size_t)size * batch);
		for (unsigned n = 0; n < batch * threads; n++)
			CHECK(all[n] == (((uint32_t)(first + n / threads) * step + n % threads) ^ mask));
	}

	bool untouched(dptr of, size_t bytes)
	{
		for (uint32_t word : words(of, bytes))
			if (word != 0xeeeeeeee)
				return false;
		return true;
	}
};

#endif
