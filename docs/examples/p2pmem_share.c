/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Memory of one process in others, by the daemon `strait p2pmemd`:
 *
 *    p2pmem_share DAEMON publish NAME FUNCTION BYTES    publishes, until the standard input ends
 *    p2pmem_share DAEMON use BYTES DEVICE...            has memory of the closest, until its publisher ends
 *    p2pmem_share DAEMON join TOKEN                     has the same memory as the process that printed TOKEN
 *
 *    cc p2pmem_share.c -o p2pmem_share $(pkg-config --cflags --libs libstrait)
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <strait_p2pmem.h>

#define CHECK(call) do { if (call) { fprintf(stderr, "%s: %s\n", #call, strait_p2pmem_error()); return 1; } } while (0)

static int publish(struct strait_p2pmem *p2pmem, char **argv)
{
	size_t len = strtoull(argv[2], NULL, 0);
	/* Stands for memory of a device: a dma-buf's descriptor takes the same way. */
	int fd = memfd_create(argv[0], MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0 || ftruncate(fd, len))
		return 1;
	CHECK(strait_p2pmem_publish_file(p2pmem, argv[0], argv[1], fd, 0, len));
	puts("published");
	fflush(stdout);
	while (getchar() != EOF)
		;
	return 0;
}

static void revoked(void *arg, const char *why)
{
	(void)arg;
	printf("revoked: %s\n", why);
	exit(0);
}

static int use(struct strait_p2pmem *p2pmem, char **argv, int argc)
{
	struct strait_p2pmem_request request = { .size = sizeof request, .len = strtoull(argv[0], NULL, 0),
						 .clients = (const char *const *)argv + 1, .client_count = argc - 1 };
	struct strait_p2pmem_publisher list[64] = { { .size = sizeof list[0] } };
	struct strait_p2pmem_segment segment;
	struct strait_p2pmem_buffer *buffer;
	struct strait_p2pmem_token token;
	size_t count = 64;

	CHECK(strait_p2pmem_list(p2pmem, request.clients, request.client_count, list, &count));
	for (size_t n = 0; n < count && n < 64; n++)
		printf("%s (%s): %u steps, %llu bytes\n", list[n].name, list[n].kind, list[n].distance, (unsigned long long)list[n].available);
	CHECK(strait_p2pmem_alloc(p2pmem, &request, &buffer));
	CHECK(strait_p2pmem_segment_at(buffer, 0, &segment));
	strcpy(segment.addr, "written by the first user");
	CHECK(strait_p2pmem_get_token(buffer, &token));
	printf("token ");
	for (size_t n = 0; n < sizeof token.bytes; n++)
		printf("%02x", token.bytes[n]);
	puts("");
	fflush(stdout);
	CHECK(strait_p2pmem_on_revoke(buffer, revoked, NULL));
	for (;;)
		pause();
}

static int join(struct strait_p2pmem *p2pmem, const char *text)
{
	struct strait_p2pmem_segment segment;
	struct strait_p2pmem_buffer *buffer;
	struct strait_p2pmem_token token;

	for (size_t n = 0; n < sizeof token.bytes; n++)
		if (sscanf(text + 2 * n, "%2hhx", &token.bytes[n]) != 1)
			return 2;
	CHECK(strait_p2pmem_join(p2pmem, &token, &buffer));
	CHECK(strait_p2pmem_segment_at(buffer, 0, &segment));
	puts(segment.addr);
	CHECK(strait_p2pmem_free(buffer));
	return 0;
}

int main(int argc, char **argv)
{
	struct strait_p2pmem_options options = { .size = sizeof options, .daemon = argv[1] };
	struct strait_p2pmem *p2pmem;

	if (argc < 4)
		return 2;
	CHECK(strait_p2pmem_open(&options, &p2pmem));
	if (!strcmp(argv[2], "publish") && argc == 6)
		return publish(p2pmem, argv + 3);
	if (!strcmp(argv[2], "use"))
		return use(p2pmem, argv + 3, argc - 3);
	if (!strcmp(argv[2], "join") && strlen(argv[3]) == 32)
		return join(p2pmem, argv[3]);
	return 2;
}
