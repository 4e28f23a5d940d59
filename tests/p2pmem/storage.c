/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * strait_storage.h, with memory of a publisher or the host's:  storage FILE [PUBLISHER [PATH]]
 *
 * Says which path was taken; with PATH (direct, bounce, cached) that is the one that has to be.
 */
#include "peer.h"

#include <strait_storage.h>

#define LEN ((size_t)6 << 20)
#define PART ((size_t)96 << 10)

static const char *const names[] = { "none", "direct", "cufile", "bounce", "cached" };

static unsigned char byte_of(size_t i) { return (unsigned char)(i * 7 + (i >> 8) * 13 + (i >> 16)); }

static void is(const unsigned char *at, size_t len, size_t from)
{
	for (size_t i = 0; i < len; i++)
		MUST(at[i] == byte_of(from + i), "byte %zu of %zu, from %zu: %d", i, len, from, at[i]);
}

static struct strait_storage_info query(struct strait_storage *file)
{
	struct strait_storage_info info = { .size = sizeof info };

	GIVES(strait_storage_query(file, &info), 0);
	return info;
}

/* While the program does something else; and what a request says before and after. */
static void submitted(struct strait_storage *file, unsigned char *at)
{
	struct strait_storage_op ops[] = { { .addr = at, .len = PART }, { .addr = at + PART, .len = PART, .offset = 4096 }, { .len = 1 } };
	struct strait_storage_request *request;
	int done;

	memset(at, 0, 2 * PART);
	GIVES(strait_storage_submit(file, ops, 3, &request), 0);
	while (!(done = strait_storage_poll(request)))
		;
	MUST(done == 1 && strait_storage_poll(request) == 1, "%d", done);
	GIVES(strait_storage_wait(request, 0), 0);
	MUST(ops[0].result == (int64_t)PART && ops[1].result == (int64_t)PART, "%lld", (long long)ops[0].result);
	MUST(ops[2].result == -EINVAL, "%lld", (long long)ops[2].result);
	is(at, PART, 0);
	is(at + PART, PART, 4096);
	GIVES(strait_storage_release(request), 0);
	/* Released before it is done: it is waited for. */
	GIVES(strait_storage_submit(file, ops, 2, &request), 0);
	GIVES(strait_storage_release(request), 0);
	GIVES(strait_storage_submit(file, NULL, 0, &request), 0);
	GIVES(strait_storage_wait(request, -1), 0);
	GIVES(strait_storage_release(request), 0);
	GIVES(strait_storage_submit(file, NULL, 1, &request), -EINVAL);
	GIVES(strait_storage_submit(file, ops, 1, NULL), -EINVAL);
	GIVES(strait_storage_submit(NULL, ops, 1, &request), -EINVAL);
	/* No CUDA is in this process. */
	GIVES(strait_storage_submit_on_stream(file, ops, 1, NULL, &request), -EOPNOTSUPP);
	MUST(strstr(strait_storage_error(), "libcuda"), "%s", strait_storage_error());
	GIVES(strait_storage_poll(NULL), -EINVAL);
	GIVES(strait_storage_wait(NULL, 0), -EINVAL);
	GIVES(strait_storage_release(NULL), 0);
}

/* Two files at once: the one that `file` is of, and a new one beside it. */
static void of_several(struct strait_storage *file, const char *path, unsigned char *at)
{
	char name[4096];
	struct strait_storage *files[2] = { file, NULL };
	struct strait_storage_op ops[] = { { .addr = at, .len = PART }, { .addr = at, .len = PART, .offset = 4096, .write = 1 } };
	struct strait_storage_request *request;

	snprintf(name, sizeof name, "%s.second", path);
	GIVES(strait_storage_submit_files(files, ops, 2, &request), -EINVAL);
	GIVES(strait_storage_submit_files(NULL, ops, 2, &request), -EINVAL);
	GIVES(strait_storage_submit_files(files, ops, 1, NULL), -EINVAL);
	GIVES(strait_storage_submit_files(NULL, NULL, 0, &request), 0);
	GIVES(strait_storage_wait(request, -1), 0);
	GIVES(strait_storage_release(request), 0);
	memset(at, 0, PART);
	GIVES(strait_storage_submit_files(files, ops, 1, &request), 0);
	GIVES(strait_storage_wait(request, -1), 0);
	GIVES(strait_storage_release(request), 0);
	MUST(ops[0].result == (int64_t)PART, "%lld", (long long)ops[0].result);
	is(at, PART, 0);
	GIVES(strait_storage_open(name, STRAIT_STORAGE_WRITE | STRAIT_STORAGE_CREATE, &files[1]), 0);
	ops[0].addr = at + PART;
	GIVES(strait_storage_submit_files(files, ops, 2, &request), 0);
	/* They stay open for what was submitted. */
	GIVES(strait_storage_close(files[1]), 0);
	GIVES(strait_storage_wait(request, -1), 0);
	GIVES(strait_storage_release(request), 0);
	MUST(ops[0].result == (int64_t)PART && ops[1].result == (int64_t)PART, "%lld", (long long)ops[1].result);
	is(at + PART, PART, 0);
	/* A file that may not be written: the error has its name. */
	GIVES(strait_storage_open(name, 0, &files[1]), 0);
	GIVES(strait_storage_submit_files(files, ops, 2, &request), 0);
	GIVES(strait_storage_wait(request, -1), 0);
	MUST(ops[0].result == (int64_t)PART && ops[1].result == -EBADF, "%lld", (long long)ops[1].result);
	MUST(strstr(strait_storage_error(), name), "%s", strait_storage_error());
	GIVES(strait_storage_release(request), 0);
	GIVES(strait_storage_close(files[1]), 0);
	MUST(unlink(name) == 0, "%s: %d", name, errno);
}

/* The words are those of this failure, and not of an earlier one. */
#define WORDS(what, words)                                                                             \
	do {                                                                                           \
		MUST(strait_storage_open("/none/such", 0, &file) == -ENOENT, "it is there");           \
		GIVES(what, -EINVAL);                                                                  \
		MUST(strstr(strait_storage_error(), words), "%s: %s", #what, strait_storage_error());  \
	} while (0)

static void words(const char *path)
{
	struct strait_storage_op op = { .write = 2 };
	struct strait_storage_request *request;
	struct strait_storage *file, *open, *none = NULL;
	unsigned char byte;

	GIVES(strait_storage_open(path, 0, &open), 0);
	WORDS(strait_storage_open(NULL, 0, &file), "NULL");
	WORDS(strait_storage_open(path, 16, &file), "flags");
	WORDS(strait_storage_read(NULL, &byte, 1, 0), "NULL");
	WORDS(strait_storage_write(NULL, &byte, 1, 0), "NULL");
	WORDS(strait_storage_batch(NULL, &op, 1), "NULL");
	WORDS(strait_storage_batch(open, NULL, 1), "NULL");
	WORDS(strait_storage_batch(open, &op, 1), "neither 0 nor 1");
	WORDS(strait_storage_submit(open, &op, 1, NULL), "NULL");
	WORDS(strait_storage_submit_files(NULL, &op, 1, &request), "NULL");
	op.write = 0;
	WORDS(strait_storage_submit_files(&none, &op, 1, &request), "NULL");
	WORDS(strait_storage_poll(NULL), "NULL");
	WORDS(strait_storage_wait(NULL, 0), "NULL");
	WORDS(strait_storage_query(open, NULL), "NULL");
	WORDS(strait_storage_open("/dev/null", 0, &file), "a character device");
	GIVES(strait_storage_close(open), 0);
}

/* A path is bytes. */
static void any_path(const char *path)
{
	struct strait_storage *file;
	char name[4096];

	snprintf(name, sizeof name, "%s-\xff\xfe", path);
	GIVES(strait_storage_open(name, STRAIT_STORAGE_WRITE | STRAIT_STORAGE_CREATE, &file), 0);
	GIVES(strait_storage_close(file), 0);
	MUST(unlink(name) == 0, "%s: %d", name, errno);
}

static void mistakes(const char *path)
{
	struct strait_storage_info info = { .size = 8 };
	struct strait_storage_op op = { .len = 0 };
	struct strait_storage_request *request;
	struct strait_storage *file;
	unsigned char byte;

	GIVES(strait_storage_open(NULL, 0, &file), -EINVAL);
	GIVES(strait_storage_open(path, 16, &file), -EINVAL);
	GIVES(strait_storage_open(path, 0, NULL), -EINVAL);
	GIVES(strait_storage_open("/none/such", 0, &file), -ENOENT);
	MUST(strstr(strait_storage_error(), "/none/such"), "%s", strait_storage_error());
	GIVES(strait_storage_open(path, 0, &file), 0);
	GIVES(strait_storage_write(file, &byte, 1, 0), -EBADF);
	GIVES(strait_storage_read(NULL, &byte, 1, 0), -EINVAL);
	GIVES(strait_storage_read(file, NULL, 1, 0), -EINVAL);
	GIVES(strait_storage_query(file, &info), -EINVAL);
	GIVES(strait_storage_batch(file, NULL, 1), -EINVAL);
	GIVES(strait_storage_batch(file, NULL, 0), 0);
	/* No array is so long. */
	GIVES(strait_storage_batch(file, &op, SIZE_MAX), -EINVAL);
	GIVES(strait_storage_batch(file, &op, SIZE_MAX / 2 / sizeof op + 1), -EINVAL);
	GIVES(strait_storage_submit(file, &op, SIZE_MAX / sizeof op + 2, &request), -EINVAL);
	GIVES(strait_storage_submit(file, &op, 1, NULL), -EINVAL);
	GIVES(strait_storage_submit(file, NULL, 0, &request), 0);
	GIVES(strait_storage_poll(request), 1);
	GIVES(strait_storage_release(request), 0);
	MUST(query(file).path == STRAIT_STORAGE_PATH_NONE, "%u", query(file).path);
	GIVES(strait_storage_close(file), 0);
	GIVES(strait_storage_close(NULL), 0);
}

int main(int argc, char **argv)
{
	struct strait_storage_op ops[LEN / PART] = { 0 };
	struct strait_storage_info info;
	struct strait_storage *file;
	struct peer peer = { .len = LEN };

	MUST(argc >= 2, "usage: storage FILE [PUBLISHER [PATH]]");
	if (argc > 2)
		peer_alloc(&peer, argv[2], LEN);
	else
		peer.at = aligned_alloc(4096, LEN);
	GIVES(strait_storage_open(argv[1], STRAIT_STORAGE_WRITE | STRAIT_STORAGE_CREATE, &file), 0);
	for (size_t i = 0; i < LEN; i++)
		peer.at[i] = byte_of(i);
	GIVES(strait_storage_write(file, peer.at, LEN, 0), LEN);
	memset(peer.at, 0, LEN);
	GIVES(strait_storage_read(file, peer.at, LEN, 0), LEN);
	info = query(file);
	is(peer.at, LEN, 0);
	printf("%s; direct %llu, bounce %llu, cached %llu bytes %s\n", names[info.path], (unsigned long long)info.direct,
	       (unsigned long long)info.bounce, (unsigned long long)info.cached, info.why);
	MUST(info.direct + info.cufile + info.bounce + info.cached == 2 * LEN, "the bytes are not all");
	MUST(argc < 4 || !strcmp(names[info.path], argv[3]), "%s, not %s", names[info.path], argv[3]);
	MUST((info.path == STRAIT_STORAGE_PATH_DIRECT) == !info.why[0], "%s", info.why);
	/* Parts, backwards, and one that is not aligned. */
	memset(peer.at, 0, LEN);
	for (size_t n = 0; n < LEN / PART; n++)
		ops[n] = (struct strait_storage_op){ .addr = peer.at + n * PART, .len = PART, .offset = LEN - (n + 1) * PART };
	GIVES(strait_storage_batch(file, ops, LEN / PART), 0);
	for (size_t n = 0; n < LEN / PART; n++) {
		MUST(ops[n].result == (int64_t)PART, "part %zu: %lld", n, (long long)ops[n].result);
		is(peer.at + n * PART, PART, LEN - (n + 1) * PART);
	}
	GIVES(strait_storage_read(file, peer.at + 1, 10001, 77), 10001);
	is(peer.at + 1, 10001, 77);
	submitted(file, peer.at);
	of_several(file, argv[1], peer.at);
	GIVES(strait_storage_close(file), 0);
	mistakes(argv[1]);
	words(argv[1]);
	any_path(argv[1]);
	if (argc > 2)
		peer_free(&peer);
	else
		free(peer.at);
	return 0;
}
