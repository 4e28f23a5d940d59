/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* kernels.cu with threads as lanes, beside a thread that announces messages as a writer's copies do: bytes, then the two halves of a number, in either
 * order. For ThreadSanitizer: the bytes are no atomics. Prints "ok kernels". */
#include <stdlib.h>
#include <string.h>

#include <cstdio>
#include <thread>
#include <vector>

#define KERNEL static void
#include "strait_rpipe.h"
#include "kernels.cu"

using xpu::hw::load_acquire;
using xpu::hw::store_release;
typedef rpipe::u64 u64;

enum { SLOTS = 4, GRANULE = 64, HEAP = 1 << 16, MESSAGES = 200, THREADS = 8 };

#define CHECK(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "line %d: not so: %s\n", __LINE__, #what); \
			exit(1); \
		} \
	} while (0)

static unsigned char bytes[HEAP];
static u64 numbers[2 * SLOTS], sums[MESSAGES], done;

static void announce(u64 n, u64 size, u64 place)
{
	u64 *at = numbers + (n - 1) % SLOTS * 2;
	const u64 half[2] = {size | n << 32, place | n << 32};

	for (int i = 0; i < 2; i++)
		store_release(at + (n + i) % 2, half[(n + i) % 2]);
}

static u64 launch(u64 first, u64 count, long long timeout, size_t slots = SLOTS)
{
	struct rpipe_device of = {sizeof of, bytes, HEAP, GRANULE, slots ? (const struct rpipe_number *)numbers : nullptr, SLOTS, first, 0};
	const rpipe::heap heap = rpipe::heap_of(of);

	memset(sums, 0, sizeof sums);
	store_release(&done, (u64)0);
	xpu::hw::launch(1, THREADS, 1, [&](unsigned) { take(heap, first, count, timeout, sums, &done); });
	return sums[0];
}

int main()
{
	std::vector<u64> expected(MESSAGES);
	const u64 error = (u64)1 << 63;

	CHECK(launch(1, 1, 1000000) == (error | 110));
	CHECK(launch(1, 1, -1) == (error | 110));
	CHECK(launch(0, 1, 1000000) == (error | 22));
	CHECK(launch(1, 1, 1000000, 0) == (error | 22));
	/* Half a number. */
	store_release(numbers, (u64)8 | (u64)1 << 32);
	CHECK(launch(1, 1, 1000000) == (error | 110));
	announce(1, 65, HEAP / GRANULE - 1);
	CHECK(launch(1, 1, 1000000) == (error | 5));
	announce(1, 1, 0xffffffff);
	CHECK(launch(1, 1, 1000000) == (error | 5));

	memset(numbers, 0, sizeof numbers);
	/* What the kernel that failed has said of its end is no message of these. */
	store_release(&done, (u64)0);
	std::thread writer([&] {
		for (u64 n = 1; n <= MESSAGES; n++) {
			const u64 size = n * 37 % 900, place = (n - 1) % SLOTS * (HEAP / SLOTS / GRANULE) + n % 3;

			/* As many as there are slots are not freed. */
			while (load_acquire(&done) + SLOTS < n)
				std::this_thread::yield();
			for (u64 i = 0; i < size; i++) {
				bytes[place * GRANULE + i] = (unsigned char)(n * 31 + i * 7);
				expected[n - 1] += (u64)(unsigned char)(n * 31 + i * 7) * (i % 251 + 1);
			}
			announce(n, size, place);
		}
	});
	launch(1, MESSAGES, 600000000000);
	writer.join();
	CHECK(load_acquire(&done) == MESSAGES);
	for (int n = 0; n < MESSAGES; n++)
		CHECK(sums[n] == expected[n]);
	printf("ok kernels\n");
	return 0;
}
