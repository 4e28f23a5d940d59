/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * The same calls to an orchestrator of this process and to a daemon, with the same results:  both SYSFS DAEMON
 *
 * SYSFS has the tree switches-intel; a daemon of it, with 1 MiB of host memory, listens at DAEMON.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <strait_p2pmem.h>

static const char *home;

#define CHECK(what, ...)                                                                  \
	do {                                                                              \
		if (!(what)) {                                                            \
			fprintf(stderr, "%s: %s:%d: %s: ", home, __FILE__, __LINE__, #what); \
			fprintf(stderr, __VA_ARGS__);                                     \
			fprintf(stderr, " (%s)\n", strait_p2pmem_error());                \
			exit(1);                                                          \
		}                                                                         \
	} while (0)
#define IS(call, code) do { int is_got = (call); CHECK(is_got == (code), "%d", is_got); } while (0)

static const char *const near_by[] = { "mlx5_0" };
static const char *const far_off[] = { "eth0" };
static const char *const nowhere[] = { "mlx5_9" };

static struct strait_p2pmem_request request(size_t len, unsigned flags)
{
	return (struct strait_p2pmem_request){ .size = sizeof(struct strait_p2pmem_request), .len = len, .clients = near_by,
					       .client_count = 1, .flags = flags };
}

static char *address(struct strait_p2pmem_buffer *buffer)
{
	struct strait_p2pmem_segment segment;

	IS(strait_p2pmem_segment_at(buffer, 0, &segment), 0);
	return segment.addr;
}

static int notices;

static void notice(void *arg, const char *why)
{
	CHECK(arg == &notices && strstr(why, "card was unpublished"), "%s", why);
	__atomic_add_fetch(&notices, 1, __ATOMIC_RELEASE);
}

static int file_of(size_t len, unsigned flags)
{
	int fd = memfd_create("card", flags);

	CHECK(fd >= 0 && !ftruncate(fd, len), "%d", errno);
	return fd;
}

static void lists(struct strait_p2pmem *p2pmem)
{
	struct strait_p2pmem_publisher all[4] = { { .size = sizeof all[0] } };
	size_t count = 4;

	IS(strait_p2pmem_list(p2pmem, near_by, 1, all, &count), 0);
	CHECK(count == 3 && !strcmp(all[0].name, "0000:03:00.0") && !strcmp(all[1].name, "card"), "%zu %s", count, all[0].name);
	CHECK(all[0].distance == 4 && all[0].map == STRAIT_P2PMEM_MAP_BUS_ADDRESS && !all[0].flags, "%u", all[0].flags);
	CHECK(all[1].distance == 6 && all[1].flags == STRAIT_P2PMEM_OWN && all[1].bytes == 65536, "%u", all[1].distance);
	CHECK(!strcmp(all[1].kind, "file") && !strcmp(all[1].pci_function, "0000:07:00.0"), "%s", all[1].pci_function);
	CHECK(!strcmp(all[2].name, "host") && all[2].map == STRAIT_P2PMEM_MAP_HOST_MEMORY, "%s", all[2].name);
	IS(strait_p2pmem_list(p2pmem, far_off, 1, all, &count), 0);
	CHECK(!strcmp(all[0].name, "host") && all[1].map == STRAIT_P2PMEM_MAP_NOT_SUPPORTED && all[1].why[0], "%s", all[0].name);
	/* No room is an answer too. */
	count = 1;
	all[1].name[0] = 0;
	IS(strait_p2pmem_list(p2pmem, NULL, 0, all, &count), 0);
	CHECK(count == 3 && !all[1].name[0], "%zu", count);
	count = 0;
	IS(strait_p2pmem_list(p2pmem, NULL, 0, NULL, &count), 0);
	count = 4;
	IS(strait_p2pmem_list(p2pmem, nowhere, 1, all, &count), -ENODEV);
	IS(strait_p2pmem_list(p2pmem, near_by, 1, NULL, &count), -EINVAL);
	IS(strait_p2pmem_list(p2pmem, near_by, 1, all, NULL), -EINVAL);
	all[0].size = 8;
	IS(strait_p2pmem_list(p2pmem, near_by, 1, all, &count), -EINVAL);
	IS(strait_p2pmem_has_p2pmem(p2pmem, "0000:07:00.0"), 1);
	IS(strait_p2pmem_has_p2pmem(p2pmem, "0000:03:00.0"), 1);
	IS(strait_p2pmem_has_p2pmem(p2pmem, "0000:08:00.0"), 0);
	IS(strait_p2pmem_has_p2pmem(p2pmem, "card"), -EINVAL);
	IS(strait_p2pmem_has_p2pmem(p2pmem, NULL), -EINVAL);
}

static void windows(struct strait_p2pmem *p2pmem)
{
	struct strait_p2pmem_request asked = request(4096, 0);
	struct strait_p2pmem_buffer *buffer;
	struct strait_p2pmem_token token;
	uint64_t offset;
	int fd;

	IS(strait_p2pmem_alloc(p2pmem, &asked, &buffer), 0);
	IS(strait_p2pmem_get_token(buffer, &token), -EOPNOTSUPP);
	IS(strait_p2pmem_dmabuf(buffer, 0, &fd, &offset), -EOPNOTSUPP);
	IS(strait_p2pmem_dmabuf(buffer, 1, &fd, &offset), -EINVAL);
	IS(strait_p2pmem_free(buffer), 0);
}

static void joined(struct strait_p2pmem *p2pmem, struct strait_p2pmem_buffer *buffer)
{
	struct strait_p2pmem_info info = { .size = sizeof info };
	struct strait_p2pmem_buffer *other;
	struct strait_p2pmem_token token, wrong = { { 7 } };
	int more = 0, code;

	IS(strait_p2pmem_get_token(buffer, &token), 0);
	IS(strait_p2pmem_get_token(buffer, NULL), -EINVAL);
	IS(strait_p2pmem_join(p2pmem, &wrong, &other), -ENOENT);
	IS(strait_p2pmem_join(p2pmem, NULL, &other), -EINVAL);
	IS(strait_p2pmem_join(p2pmem, &token, NULL), -EINVAL);
	IS(strait_p2pmem_join(p2pmem, &token, &other), 0);
	strcpy(address(buffer), "joined");
	CHECK(!strcmp(address(other), "joined"), "%s", address(other));
	IS(strait_p2pmem_query(other, &info), 0);
	CHECK(!strcmp(info.publisher, "card") && info.len == 8192, "%s", info.publisher);
	IS(strait_p2pmem_free(other), 0);
	while (!(code = strait_p2pmem_get_token(buffer, &wrong)))
		more++;
	CHECK(code == -EINVAL && more == 15, "%d %d", code, more);
	/* A token ends with the buffer that it is of. */
	IS(strait_p2pmem_free(buffer), 0);
	IS(strait_p2pmem_join(p2pmem, &token, &other), -ENOENT);
}

static void revoked(struct strait_p2pmem *p2pmem, int card)
{
	struct strait_p2pmem_request asked = request(8192, STRAIT_P2PMEM_NO_HOST);
	struct strait_p2pmem_info info = { .size = sizeof info };
	struct strait_p2pmem_buffer *buffer, *other;
	struct strait_p2pmem_segment segment;
	struct strait_p2pmem_token token;
	uint64_t offset;
	char *at;
	int fd;

	notices = 0;
	IS(strait_p2pmem_alloc(p2pmem, &asked, &buffer), 0);
	at = address(buffer);
	IS(strait_p2pmem_get_token(buffer, &token), 0);
	IS(strait_p2pmem_dmabuf(buffer, 0, &fd, &offset), 0);
	CHECK(pwrite(fd, "file", 5, offset) == 5 && !strcmp(at, "file"), "%s", at);
	close(fd);
	IS(strait_p2pmem_on_revoke(buffer, NULL, NULL), -EINVAL);
	IS(strait_p2pmem_on_revoke(buffer, notice, &notices), 0);
	IS(strait_p2pmem_unpublish(p2pmem, "card", STRAIT_P2PMEM_IF_IDLE), -EBUSY);
	IS(strait_p2pmem_unpublish(p2pmem, "card", 20), -EBUSY);
	IS(strait_p2pmem_alloc(p2pmem, &asked, &other), -ENOMEM);
	CHECK(strstr(strait_p2pmem_error(), "being unpublished"), "words");
	IS(strait_p2pmem_unpublish(p2pmem, "card", STRAIT_P2PMEM_REVOKE), 0);
	IS(strait_p2pmem_unpublish(p2pmem, "card", STRAIT_P2PMEM_REVOKE), -ENOENT);
	while (!__atomic_load_n(&notices, __ATOMIC_ACQUIRE))
		usleep(1000);
	IS(strait_p2pmem_query(buffer, &info), 0);
	CHECK(info.revoked == 1 && info.len == 8192 && info.segments == 1, "%u", info.revoked);
	IS(strait_p2pmem_segment_at(buffer, 0, &segment), -ESTALE);
	IS(strait_p2pmem_get_token(buffer, &token), -ESTALE);
	IS(strait_p2pmem_share(p2pmem, buffer, near_by, 1, &other), -ESTALE);
	IS(strait_p2pmem_dmabuf(buffer, 0, &fd, &offset), -ESTALE);
	IS(strait_p2pmem_join(p2pmem, &token, &other), -ESTALE);
	/* Another one of the name is not held up by it. */
	IS(strait_p2pmem_publish_file(p2pmem, "card", "0000:07:00.0", card, 0, 65536), 0);
	IS(strait_p2pmem_unpublish(p2pmem, "card", STRAIT_P2PMEM_IF_IDLE), 0);
	/* It stays mapped until it is freed. */
	CHECK(!strcmp(at, "file") && notices == 1, "%d", notices);
	IS(strait_p2pmem_free(buffer), 0);
}

static void script(struct strait_p2pmem *p2pmem)
{
	struct strait_p2pmem_request asked = request(8192, 0);
	struct strait_p2pmem_route route = { .size = sizeof route };
	struct strait_p2pmem_buffer *buffer;
	int card = file_of(65536, MFD_ALLOW_SEALING);

	IS(strait_p2pmem_publish_file(p2pmem, "card", "0000:07:00.0", card, 0, 65536), 0);
	IS(strait_p2pmem_publish_file(p2pmem, "card", "0000:07:00.0", card, 0, 65536), -EINVAL);
	IS(strait_p2pmem_publish_file(p2pmem, "bad", "0000:07:00.0", -1, 0, 65536), -EBADF);
	IS(strait_p2pmem_publish_file(p2pmem, "bad", "0000:07:00.0", card, 0, 65537), -EINVAL);
	IS(strait_p2pmem_publish_file(p2pmem, "bad", "0000:07:00.0", card, 1, 4096), -EINVAL);
	IS(strait_p2pmem_publish_file(p2pmem, "bad", "0000:07:00.0", card, 0, 0), -EINVAL);
	IS(strait_p2pmem_publish_file(p2pmem, "bad", "07", card, 0, 4096), -EINVAL);
	IS(strait_p2pmem_publish_file(p2pmem, "a b", "0000:07:00.0", card, 0, 4096), -EINVAL);
	IS(strait_p2pmem_publish_file(p2pmem, NULL, "0000:07:00.0", card, 0, 4096), -EINVAL);
	IS(strait_p2pmem_publish_memory(p2pmem, "bad", "0000:07:00.0", NULL, 4096), -EINVAL);
	IS(strait_p2pmem_publish_vfio(p2pmem, "bad", "0000:07:00.0", -1, 0, 0, 4096), -EBADF);
	IS(strait_p2pmem_publish_vfio(p2pmem, "bad", "0000:07:00.0", card, 0, 0, 4096), -ENOTTY);
	lists(p2pmem);
	windows(p2pmem);
	IS(strait_p2pmem_query_route(p2pmem, "card", "mlx5_0", &route), 0);
	CHECK(route.distance == 6 && route.map == STRAIT_P2PMEM_MAP_BUS_ADDRESS && route.why[0], "%u", route.distance);
	IS(strait_p2pmem_query_route(p2pmem, "none", "mlx5_0", &route), -ENOENT);
	IS(strait_p2pmem_query_route(p2pmem, "card", "mlx5_9", &route), -ENODEV);
	IS(strait_p2pmem_query_route(p2pmem, NULL, "mlx5_0", &route), -EINVAL);
	/* A rule of this process's requests. */
	IS(strait_p2pmem_add_rule(p2pmem, "deny publisher"), -EINVAL);
	IS(strait_p2pmem_add_rule(p2pmem, NULL), -EINVAL);
	IS(strait_p2pmem_add_rule(p2pmem, "pin publisher=card job=own"), 0);
	asked.job = "own";
	IS(strait_p2pmem_alloc(p2pmem, &asked, &buffer), 0);
	joined(p2pmem, buffer);
	asked.flags = 8;
	IS(strait_p2pmem_alloc(p2pmem, &asked, &buffer), -EINVAL);
	asked = request(1 << 30, 0);
	IS(strait_p2pmem_alloc(p2pmem, &asked, &buffer), -ENOMEM);
	IS(strait_p2pmem_add_rule(p2pmem, "deny publisher=kind:sysfs"), 0);
	revoked(p2pmem, card);
	close(card);
}

/* The words of a rule that is wrong, and those of the call that fails next. */
#define WORDS(call, code, part)                                                                       \
	do {                                                                                          \
		IS(strait_p2pmem_add_rule(p2pmem, "MARK"), -EINVAL);                                   \
		CHECK(strstr(strait_p2pmem_error(), "MARK"), "words");                                 \
		IS(call, code);                                                                        \
		CHECK(strstr(strait_p2pmem_error(), part), #call);                                     \
	} while (0)

/* Each error has words of its own. */
static void words(struct strait_p2pmem *p2pmem)
{
	struct strait_p2pmem_options options = { .size = sizeof options, .flags = 0x80 };
	struct strait_p2pmem_request request = { .size = sizeof request, .len = 4096 };
	struct strait_p2pmem_buffer *buffer;
	struct strait_p2pmem *other;
	struct strait_p2pmem_segment segment;
	struct strait_p2pmem_token token;
	struct strait_p2pmem_info info = { .size = 8 };
	int fd = file_of(8192, MFD_ALLOW_SEALING);
	char name[66] = "";

	memset(name, 'a', 65);
	IS(strait_p2pmem_alloc(p2pmem, &request, &buffer), 0);
	WORDS(strait_p2pmem_segment_at(buffer, 9, &segment), -ENOENT, "no piece 9");
	WORDS(strait_p2pmem_segment_at(NULL, 0, &segment), -EINVAL, "`buffer` is NULL");
	WORDS(strait_p2pmem_segment_at(buffer, 0, NULL), -EINVAL, "`segment` is NULL");
	WORDS(strait_p2pmem_query(buffer, &info), -EINVAL, "sizeof");
	WORDS(strait_p2pmem_publish_file(p2pmem, "a", NULL, -1, 0, 4096), -EBADF, "descriptor -1");
	WORDS(strait_p2pmem_publish_file(p2pmem, "a", "nosuch", fd, 0, 4096), -EINVAL, "\"nosuch\" is no address");
	WORDS(strait_p2pmem_publish_file(p2pmem, "a", NULL, fd, 1, 4096), -EINVAL, "4096");
	WORDS(strait_p2pmem_publish_file(p2pmem, name, NULL, fd, 0, 4096), -EINVAL, "64");
	WORDS(strait_p2pmem_publish_memory(p2pmem, "a", NULL, (void *)-4096L, 8192), -EINVAL, "last address");
	WORDS(strait_p2pmem_unpublish(p2pmem, "a", -2), -EINVAL, "`drain`");
	WORDS(strait_p2pmem_unpublish(p2pmem, NULL, 0), -EINVAL, "`name` is NULL");
	WORDS(strait_p2pmem_unpublish(NULL, "a", 0), -EINVAL, "`opened` is NULL");
	WORDS(strait_p2pmem_list(p2pmem, NULL, 0, NULL, NULL), -EINVAL, "`count` is NULL");
	WORDS(strait_p2pmem_has_p2pmem(p2pmem, "x"), -EINVAL, "\"x\" is no address");
	WORDS(strait_p2pmem_get_token(buffer, NULL), -EINVAL, "`token` is NULL");
	WORDS(strait_p2pmem_join(p2pmem, NULL, NULL), -EINVAL, "`token` is NULL");
	memset(&token, 1, sizeof token);
	WORDS(strait_p2pmem_join(p2pmem, &token, NULL), -EINVAL, "`buffer` is NULL");
	WORDS(strait_p2pmem_dmabuf(buffer, 0, NULL, NULL), -EINVAL, "`offset` is NULL");
	WORDS(strait_p2pmem_on_revoke(buffer, NULL, NULL), -EINVAL, "`notice` is NULL");
	WORDS(strait_p2pmem_share(p2pmem, buffer, NULL, 1, &buffer), -EINVAL, "`clients` is NULL");
	WORDS(strait_p2pmem_open(&options, &other), -EINVAL, "`flags`");
	WORDS(strait_p2pmem_add_rule(p2pmem, "\xff"), -EINVAL, "UTF-8");
	IS(strait_p2pmem_free(buffer), 0);
	close(fd);
}

int main(int argc, char **argv)
{
	struct strait_p2pmem_options options = { .size = sizeof options, .sysfs = argv[1], .host = 1 << 20 };
	struct strait_p2pmem *p2pmem;

	home = "process";
	CHECK(argc == 3, "usage: both SYSFS DAEMON");
	IS(strait_p2pmem_open(&options, &p2pmem), 0);
	script(p2pmem);
	words(p2pmem);
	IS(strait_p2pmem_close(p2pmem), 0);
	home = "daemon";
	options.daemon = argv[2];
	options.rules = "deny publisher";
	IS(strait_p2pmem_open(&options, &p2pmem), -EINVAL);
	options.rules = "# none\nmax-distance 8\n";
	options.flags = 2;
	IS(strait_p2pmem_open(&options, &p2pmem), -EINVAL);
	options.flags = STRAIT_P2PMEM_FOR_ALL_USERS;
	IS(strait_p2pmem_open(&options, &p2pmem), 0);
	script(p2pmem);
	words(p2pmem);
	/* What is of this process alone, or could become shorter under another one, is not for others. */
	int plain = file_of(4096, 0);
	char *own = aligned_alloc(4096, 4096);
	IS(strait_p2pmem_publish_file(p2pmem, "plain", NULL, plain, 0, 4096), -EOPNOTSUPP);
	IS(strait_p2pmem_publish_memory(p2pmem, "own", NULL, own, 4096), -EOPNOTSUPP);
	CHECK(strstr(strait_p2pmem_error(), "memfd"), "words");
	IS(strait_p2pmem_publish_file(p2pmem, "host", NULL, plain, 0, 4096), -EOPNOTSUPP);
	close(plain);
	free(own);
	IS(strait_p2pmem_close(p2pmem), 0);
	return 0;
}
