/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * What the programs of ci/suite/guest share: memory of one publisher, through strait_p2pmem.h.
 */
#ifndef PEER_H
#define PEER_H

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <strait.h>
#include <strait_p2pmem.h>

#define MUST(what, ...)                                                                       \
	do {                                                                                  \
		if (!(what)) {                                                                \
			fprintf(stderr, "%s:%d (pid %d): %s: ", __FILE__, __LINE__, (int)getpid(), #what); \
			fprintf(stderr, __VA_ARGS__);                                         \
			fprintf(stderr, " (strait: %s)\n", strait_p2pmem_error());            \
			exit(1);                                                              \
		}                                                                             \
	} while (0)
#define GIVES(call, code) do { int gives_got = (call); MUST(gives_got == (code), "%d", gives_got); } while (0)

struct peer {
	struct strait_p2pmem *p2pmem;
	struct strait_p2pmem_buffer *buffer;
	unsigned char *at;
	size_t len;
};

/* Publishers of this process. Requests are served by this one alone. */
static inline struct strait_p2pmem *peer_open(const char *publisher)
{
	char rules[128] = "";
	struct strait_p2pmem_options options = { .size = sizeof options, .rules = rules, .host = 1 << 24 };
	struct strait_p2pmem *p2pmem;

	if (publisher)
		snprintf(rules, sizeof rules, "pin publisher=%s\n", publisher);
	GIVES(strait_p2pmem_open(&options, &p2pmem), 0);
	return p2pmem;
}

static inline int peer_try(struct strait_p2pmem *p2pmem, size_t len, unsigned segments, struct strait_p2pmem_buffer **buffer)
{
	struct strait_p2pmem_request request = { .size = sizeof request, .len = len, .segments = segments,
						 .flags = STRAIT_P2PMEM_NO_HOST };

	return strait_p2pmem_alloc(p2pmem, &request, buffer);
}

static inline unsigned char *peer_at(struct strait_p2pmem_buffer *buffer)
{
	struct strait_p2pmem_segment segment;

	GIVES(strait_p2pmem_segment_at(buffer, 0, &segment), 0);
	return segment.addr;
}

static inline void peer_alloc(struct peer *peer, const char *publisher, size_t len)
{
	struct strait_p2pmem_info info = { .size = sizeof info };

	peer->p2pmem = peer_open(publisher);
	peer->len = len;
	GIVES(peer_try(peer->p2pmem, len, 1, &peer->buffer), 0);
	GIVES(strait_p2pmem_query(peer->buffer, &info), 0);
	MUST(!strcmp(info.publisher, publisher) && !strcmp(info.kind, "sysfs"), "%s %s", info.publisher, info.kind);
	peer->at = peer_at(peer->buffer);
}

static inline void peer_free(struct peer *peer)
{
	GIVES(strait_p2pmem_free(peer->buffer), 0);
	GIVES(strait_p2pmem_close(peer->p2pmem), 0);
}

/* What the kernel says of a publisher: "available", "size". */
static inline unsigned long long peer_says(const char *publisher, const char *what)
{
	char path[128];
	unsigned long long n = 0;
	FILE *file;

	snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/p2pmem/%s", publisher, what);
	file = fopen(path, "r");
	MUST(file && fscanf(file, "%llu", &n) == 1, "%s: %s", path, strerror(errno));
	fclose(file);
	return n;
}

/* Takes the driver from a device: its memory goes. */
static inline void peer_unbind(const char *publisher)
{
	int fd = open("/sys/bus/pci/drivers/nvme/unbind", O_WRONLY);

	MUST(fd >= 0 && write(fd, publisher, strlen(publisher)) == (ssize_t)strlen(publisher), "unbind: %s", strerror(errno));
	close(fd);
}

/* A connection of the two processes of a test: role 0 is called at its address, for 150 s. */
static inline int peer_connect(int role, const char *address, unsigned short port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };
	int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1, called;

	MUST(fd >= 0 && inet_pton(AF_INET, address, &at.sin_addr) == 1, "%s is no address", address);
	if (role == 0) {
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
		MUST(!bind(fd, (struct sockaddr *)&at, sizeof at) && !listen(fd, 1), "%s: %s", address, strerror(errno));
		called = accept(fd, NULL, NULL);
		MUST(called >= 0, "accept: %s", strerror(errno));
		close(fd);
		return called;
	}
	for (int i = 0; connect(fd, (struct sockaddr *)&at, sizeof at); i++) {
		MUST(i < 750, "%s: %s", address, strerror(errno));
		close(fd);
		usleep(200000);
		fd = socket(AF_INET, SOCK_STREAM, 0);
	}
	return fd;
}

#endif
