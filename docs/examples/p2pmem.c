/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Memory near some devices:  p2pmem SYSFS BYTES DEVICE...   (SYSFS is /sys on a real machine)
 *
 *    cc p2pmem.c -o p2pmem $(pkg-config --cflags --libs libstrait)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <strait_p2pmem.h>

#define CHECK(call) do { if (call) { fprintf(stderr, "%s: %s\n", #call, strait_p2pmem_error()); return 1; } } while (0)

int main(int argc, char **argv)
{
	struct strait_p2pmem_options options = { .size = sizeof options, .sysfs = argv[1], .host = 1 << 20 };
	struct strait_p2pmem_request request = { .size = sizeof request, .segments = 4 };
	struct strait_p2pmem_info info = { .size = sizeof info };
	struct strait_p2pmem *p2pmem;
	struct strait_p2pmem_buffer *buffer;
	struct strait_p2pmem_segment segment;

	if (argc < 3)
		return 2;
	request.len = strtoull(argv[2], NULL, 0);
	request.clients = (const char *const *)argv + 3;
	request.client_count = argc - 3;
	CHECK(strait_p2pmem_open(&options, &p2pmem));
	CHECK(strait_p2pmem_alloc(p2pmem, &request, &buffer));
	CHECK(strait_p2pmem_query(buffer, &info));
	CHECK(strait_p2pmem_segment_at(buffer, 0, &segment));
	memset(segment.addr, 1, segment.len);
	printf("%llu bytes of %s (%s)\n", (unsigned long long)info.len, info.publisher, info.kind);
	CHECK(strait_p2pmem_free(buffer));
	CHECK(strait_p2pmem_close(p2pmem));
	return 0;
}
