/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * All of strait_p2pmem.h:  api SYSFS DAEMON
 *
 * SYSFS has the tree switches-intel; a daemon with host memory listens at DAEMON.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <strait.h>
#include <strait_p2pmem.h>

#define CHECK(what, ...)                                                       \
	do {                                                                   \
		if (!(what)) {                                                 \
			fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #what); \
			fprintf(stderr, __VA_ARGS__);                          \
			fprintf(stderr, " (%s)\n", strait_p2pmem_error());     \
			exit(1);                                               \
		}                                                              \
	} while (0)
#define IS(call, code) do { int is_got = (call); CHECK(is_got == (code), "%d", is_got); } while (0)

static const char *const near_by[] = { "mlx5_0", "0000:07:00.0" };
static const char *const far_off[] = { "eth0" };
static const char *const nowhere[] = { "mlx5_9" };
static const char *const null_name[] = { NULL };

static struct strait_p2pmem_request request(size_t len, const char *const *clients, size_t count)
{
	return (struct strait_p2pmem_request){
		.size = sizeof(struct strait_p2pmem_request), .len = len, .clients = clients, .client_count = count };
}

static void is_of(struct strait_p2pmem_buffer *buffer, const char *publisher, size_t len, unsigned revoked)
{
	struct strait_p2pmem_info info = { .size = sizeof info };

	IS(strait_p2pmem_query(buffer, &info), 0);
	CHECK(!strcmp(info.publisher, publisher), "%s", info.publisher);
	CHECK(info.len == len && info.segments == 1 && info.revoked == revoked, "%zu %u", (size_t)info.len, info.revoked);
}

static char *address(struct strait_p2pmem_buffer *buffer)
{
	struct strait_p2pmem_segment segment;

	IS(strait_p2pmem_segment_at(buffer, 1, &segment), -ENOENT);
	IS(strait_p2pmem_segment_at(buffer, 0, &segment), 0);
	return segment.addr;
}

static int notices;

static void notice(void *arg, const char *why)
{
	CHECK(arg == &notices && strstr(why, "unpublished"), "%s", why);
	notices++;
}

static void windows(const char *sysfs)
{
	struct strait_p2pmem_options options = { .size = sizeof options, .sysfs = sysfs, .host = 1 << 20,
						 .rules = "# none\nquota 1MiB\n" };
	struct strait_p2pmem_request asked = request(5000, near_by, 2);
	struct strait_p2pmem_route route = { .size = sizeof route };
	struct strait_memory memory = { .size = sizeof memory };
	struct strait_p2pmem_buffer *buffer, *more;
	struct strait_p2pmem *p2pmem;
	uint64_t offset;
	int fd;

	IS(strait_p2pmem_open(&options, &p2pmem), 0);
	IS(strait_p2pmem_query_route(p2pmem, "0000:03:00.0", "mlx5_0", &route), 0);
	CHECK(route.map == STRAIT_P2PMEM_MAP_BUS_ADDRESS && route.distance == 4, "%u", route.distance);
	IS(strait_p2pmem_query_route(p2pmem, "0000:03:00.0", "eth0", &route), 0);
	CHECK(route.map == STRAIT_P2PMEM_MAP_NOT_SUPPORTED && strstr(route.why, "8086:29c0"), "%s", route.why);
	IS(strait_p2pmem_query_route(p2pmem, "nothing", "eth0", &route), -ENOENT);
	IS(strait_p2pmem_alloc(p2pmem, &asked, &buffer), 0);
	is_of(buffer, "0000:03:00.0", 8192, 0);
	memset(address(buffer), 7, 8192);
	/* It is a kind of memory of its own, as long as it is there. */
	IS(strait_query_memory(address(buffer), 8192, &memory), 0);
	CHECK(memory.kind == STRAIT_MEMORY_CLIENT, "%u", memory.kind);
	IS(strait_p2pmem_dmabuf(buffer, 0, &fd, &offset), -EOPNOTSUPP);
	IS(strait_p2pmem_share(p2pmem, buffer, far_off, 1, &more), -ENOMEM);
	CHECK(strstr(strait_p2pmem_error(), "cannot reach it"), "words");
	IS(strait_p2pmem_share(p2pmem, buffer, near_by, 1, &more), 0);
	CHECK(address(more) == address(buffer), "another place");
	IS(strait_p2pmem_unpublish(p2pmem, "0000:03:00.0", STRAIT_P2PMEM_IF_IDLE), -EBUSY);
	/* A buffer's notices end with it, whatever shares the memory. */
	IS(strait_p2pmem_on_revoke(buffer, notice, NULL), 0);
	IS(strait_p2pmem_free(buffer), 0);
	CHECK(address(more)[8191] == 7, "gone");
	IS(strait_p2pmem_on_revoke(more, notice, &notices), 0);
	IS(strait_p2pmem_unpublish(p2pmem, "0000:03:00.0", 1), -EBUSY);
	IS(strait_p2pmem_unpublish(p2pmem, "0000:03:00.0", STRAIT_P2PMEM_REVOKE), 0);
	CHECK(notices == 1, "%d", notices);
	is_of(more, "0000:03:00.0", 8192, 1);
	IS(strait_p2pmem_free(more), 0);
	/* The last resort, and a request that does not want it. */
	IS(strait_p2pmem_alloc(p2pmem, &asked, &buffer), 0);
	is_of(buffer, "host", 8192, 0);
	asked.flags = STRAIT_P2PMEM_NO_HOST;
	IS(strait_p2pmem_alloc(p2pmem, &asked, &more), -ENOMEM);
	IS(strait_p2pmem_free(buffer), 0);
	asked = request(2 << 20, near_by, 2);
	IS(strait_p2pmem_alloc(p2pmem, &asked, &buffer), -ENOMEM);
	CHECK(strstr(strait_p2pmem_error(), "quota 1MiB"), "words");
	asked = request(1, nowhere, 1);
	IS(strait_p2pmem_alloc(p2pmem, &asked, &buffer), -ENODEV);
	IS(strait_p2pmem_close(p2pmem), 0);
}

static void given(const char *sysfs)
{
	struct strait_p2pmem_options options = { .size = sizeof options, .sysfs = sysfs };
	struct strait_p2pmem_request asked = request(4096, near_by, 2);
	struct strait_p2pmem_buffer *buffer;
	struct strait_p2pmem *p2pmem;
	int file = memfd_create("window", 0), fd;
	void *own = aligned_alloc(4096, 8192);
	uint64_t offset;

	CHECK(own && file >= 0 && !ftruncate(file, 12288), "%d", errno);
	IS(strait_p2pmem_open(&options, &p2pmem), 0);
	IS(strait_p2pmem_publish_file(p2pmem, "card", "0000:07:00.0", file, 4096, 8192), 0);
	IS(strait_p2pmem_publish_file(p2pmem, "card", "0000:07:00.0", file, 4096, 8192), -EINVAL);
	IS(strait_p2pmem_publish_file(p2pmem, "bad", "0000:07:00.0", -1, 0, 8192), -EBADF);
	/* An access behind its end would be SIGBUS. */
	IS(strait_p2pmem_publish_file(p2pmem, "short", "0000:07:00.0", file, 4096, 12288), -EINVAL);
	CHECK(strstr(strait_p2pmem_error(), "12288 bytes"), "words");
	IS(strait_p2pmem_publish_memory(p2pmem, "own", "0000:07:00.0", own, 8192), 0);
	IS(strait_p2pmem_publish_memory(p2pmem, "bad", "07", own, 8192), -EINVAL);
	IS(strait_p2pmem_add_rule(p2pmem, "deny publisher"), -EINVAL);
	CHECK(strstr(strait_p2pmem_error(), "key=value"), "words");
	IS(strait_p2pmem_add_rule(p2pmem, "pin publisher=card uid=4294967295"), 0);
	IS(strait_p2pmem_add_rule(p2pmem, "deny publisher=own"), 0);
	IS(strait_p2pmem_add_rule(p2pmem, "deny publisher=kind:sysfs"), 0);
	IS(strait_p2pmem_alloc(p2pmem, &asked, &buffer), 0);
	is_of(buffer, "card", 4096, 0);
	strcpy(address(buffer), "peer");
	IS(strait_p2pmem_dmabuf(buffer, 0, &fd, &offset), 0);
	char text[5] = "";
	CHECK(pread(fd, text, 5, offset) == 5 && !strcmp(text, "peer") && offset == 4096, "%s", text);
	close(fd);
	close(file);
	/* It outlives what it came from. */
	IS(strait_p2pmem_close(p2pmem), 0);
	CHECK(!strcmp(address(buffer), "peer"), "gone");
	IS(strait_p2pmem_free(buffer), 0);
	free(own);
}

static void remote(const char *name)
{
	struct strait_p2pmem_options options = { .size = sizeof options, .daemon = name };
	struct strait_p2pmem_request asked = request(100, near_by, 2);
	struct strait_p2pmem_buffer *buffer, *more;
	struct strait_p2pmem *p2pmem;

	IS(strait_p2pmem_open(&options, &p2pmem), 0);
	IS(strait_p2pmem_alloc(p2pmem, &asked, &buffer), 0);
	is_of(buffer, "host", 4096, 0);
	address(buffer)[0] = 1;
	IS(strait_p2pmem_share(p2pmem, buffer, far_off, 1, &more), 0);
	CHECK(address(more)[0] == 1, "not the same");
	IS(strait_p2pmem_add_rule(p2pmem, "deny publisher=none"), 0);
	IS(strait_p2pmem_unpublish(p2pmem, "host", STRAIT_P2PMEM_REVOKE), 0);
	is_of(buffer, "host", 4096, 1);
	is_of(more, "host", 4096, 1);
	is_of(buffer, "host", 4096, 1);
	IS(strait_p2pmem_free(buffer), 0);
	IS(strait_p2pmem_alloc(p2pmem, &asked, &buffer), -ENOMEM);
	IS(strait_p2pmem_close(p2pmem), 0);
	IS(strait_p2pmem_free(more), 0);
	options.daemon = "strait-p2pmem-test/no-daemon";
	IS(strait_p2pmem_open(&options, &p2pmem), -ECONNREFUSED);
}

static void mistakes(const char *sysfs)
{
	struct strait_p2pmem_options options = { .size = 3, .sysfs = sysfs };
	struct strait_p2pmem_request asked = request(1, null_name, 1);
	struct strait_p2pmem_buffer *buffer;
	struct strait_p2pmem *p2pmem;

	IS(strait_p2pmem_open(&options, &p2pmem), -EINVAL);
	IS(strait_p2pmem_open(NULL, &p2pmem), -EINVAL);
	options.size = sizeof options;
	IS(strait_p2pmem_open(&options, NULL), -EINVAL);
	options.rules = "ok\n";
	IS(strait_p2pmem_open(&options, &p2pmem), -EINVAL);
	CHECK(strstr(strait_p2pmem_error(), "line 1"), "words");
	options.rules = NULL;
	IS(strait_p2pmem_open(&options, &p2pmem), 0);
	IS(strait_p2pmem_alloc(p2pmem, &asked, &buffer), -EINVAL);
	asked = request(0, NULL, 0);
	IS(strait_p2pmem_alloc(p2pmem, &asked, &buffer), -EINVAL);
	asked = request(1, NULL, 1);
	IS(strait_p2pmem_alloc(p2pmem, &asked, &buffer), -EINVAL);
	asked = request(1, NULL, 0);
	asked.flags = 4;
	IS(strait_p2pmem_alloc(p2pmem, &asked, &buffer), -EINVAL);
	IS(strait_p2pmem_alloc(NULL, &asked, &buffer), -EINVAL);
	IS(strait_p2pmem_free(NULL), 0);
	IS(strait_p2pmem_query(NULL, NULL), -EINVAL);
	IS(strait_p2pmem_unpublish(p2pmem, NULL, 0), -EINVAL);
	IS(strait_p2pmem_unpublish(p2pmem, "host", -5), -EINVAL);
	IS(strait_p2pmem_close(p2pmem), 0);
	IS(strait_p2pmem_close(NULL), 0);
}

int main(int argc, char **argv)
{
	CHECK(argc == 3, "usage: api SYSFS DAEMON");
	windows(argv[1]);
	given(argv[1]);
	remote(argv[2]);
	mistakes(argv[1]);
	return 0;
}
