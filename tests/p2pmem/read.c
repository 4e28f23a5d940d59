/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * A file into memory near some devices, while the program does something else:  read SYSFS FILE BYTES DEVICE...
 */
#include <stdio.h>
#include <stdlib.h>

#include <strait_p2pmem.h>
#include <strait_storage.h>

#define CHECK(call) do { if ((call) < 0) { fprintf(stderr, "%s: %s\n", #call, strait_p2pmem_error()); return 1; } } while (0)

int main(int argc, char **argv)
{
	struct strait_p2pmem_options options = { .size = sizeof options, .sysfs = argv[1], .host = 1 << 20 };
	struct strait_p2pmem_request near = { .size = sizeof near, .segments = 1 };
	struct strait_storage_info info = { .size = sizeof info };
	struct strait_storage_op op = { 0 };
	struct strait_p2pmem *p2pmem;
	struct strait_p2pmem_buffer *buffer;
	struct strait_p2pmem_segment segment;
	struct strait_storage *file;
	struct strait_storage_request *request;
	unsigned long turns = 0;

	if (argc < 4)
		return 2;
	near.len = strtoull(argv[3], NULL, 0);
	near.clients = (const char *const *)argv + 4;
	near.client_count = argc - 4;
	CHECK(strait_p2pmem_open(&options, &p2pmem));
	CHECK(strait_p2pmem_alloc(p2pmem, &near, &buffer));
	CHECK(strait_p2pmem_segment_at(buffer, 0, &segment));
	CHECK(strait_storage_open(argv[2], 0, &file));
	op.addr = segment.addr;
	op.len = near.len;
	CHECK(strait_storage_submit(file, &op, 1, &request));
	while (!strait_storage_poll(request))
		turns++;
	CHECK(strait_storage_release(request));
	CHECK(op.result);
	CHECK(strait_storage_query(file, &info));
	printf("%lld bytes, the last one %d; path %u %s\n", (long long)op.result,
	       op.result ? ((volatile unsigned char *)segment.addr)[op.result - 1] : -1, info.path, info.why);
	CHECK(strait_storage_close(file));
	CHECK(strait_p2pmem_free(buffer));
	CHECK(strait_p2pmem_close(p2pmem));
	return 0;
}
