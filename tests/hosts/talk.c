/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Two processes on two hosts that share a directory, in which they leave their names.
 *
 *   talk ROLE DIR exchange [SECONDS [FILE]]
 *                                      messages, RMA and atomics, contents checked; again for so long, or until FILE is in DIR
 *   talk ROLE DIR soak GIB [FILE]      messages of many lengths both ways, contents checked, until so many GiB have gone, since
 *                                      FILE was in DIR
 *   talk ROLE DIR stream SECONDS       0 sends and 1 receives until that ends with an error, within so long
 *   talk ROLE DIR reads SECONDS        0 reads memory of 1, which does nothing, until that ends with an error, within so long
 *   talk ROLE DIR refused SECONDS      0 sends, which is to be refused (FI_EACCES) while 1 goes on
 *   talk ROLE DIR filtered SECONDS     the same, and what 0 sends has no answer (FI_ETIMEDOUT)
 *
 * ROLE is 0 or 1.
 */
#include "../faults/fab.h"

/* The longest message and access, and a byte; LONGEST sets another one. */
static size_t longest = 9u << 20;

struct card {
	struct name name;
	uint64_t addr, key;
};

static int role;
static const char *dir;

static void say(const char *what, const char *text)
{
	char path[512];
	FILE *f;

	snprintf(path, sizeof path, "%s/%s.%d", dir, what, role);
	f = fopen(path, "w");
	CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0, "%s", path);
}

static struct card exchange_cards(const struct card *own)
{
	char path[512], done[512];
	struct card other;
	FILE *f = NULL;
	uint64_t start = now_ns();

	snprintf(path, sizeof path, "%s/new.%d", dir, role);
	snprintf(done, sizeof done, "%s/card.%d", dir, role);
	f = fopen(path, "wb");
	CHECK(f && fwrite(own, sizeof *own, 1, f) == 1 && fclose(f) == 0 && rename(path, done) == 0, "%s", done);
	snprintf(path, sizeof path, "%s/card.%d", dir, 1 - role);
	while (!(f = fopen(path, "rb"))) {
		usleep(10000);
		CHECK(now_ns() - start < 20000000000u, "the other side does not start");
	}
	CHECK(fread(&other, sizeof other, 1, f) == 1, "%s", path);
	fclose(f);
	return other;
}

static unsigned char *out, *in, *window;
static struct fid_mr *mr;

static size_t length(size_t wanted) { return wanted < longest ? wanted : longest - 1; }

static void message(struct fab *f, fi_addr_t to, size_t len, unsigned round)
{
	struct op send, recv;

	fill(out, len, 2 * round + (unsigned)role);
	memset(in, 0xee, len + 1);
	POST(f, &recv, fi_trecv(f->ep, in, len, NULL, to, round, 0, &recv));
	POST(f, &send, fi_tsend(f->ep, out, len, NULL, to, round, &send));
	await(f, &send, "a send");
	await(f, &recv, "a receive");
	CHECK(recv.len == len && in[len] == 0xee, "%zu bytes for %zu", recv.len, len);
	CHECK(differs(in, len, 2 * round + 1 - (unsigned)role) == len, "%zu bytes: wrong contents", len);
}

/* Each writes its half of the other's window, with data of the round, reads it back, and adds to the word at its end; and checks
 * what the other has written here. */
static void window_of(struct fab *f, fi_addr_t to, const struct card *card, size_t len, unsigned round)
{
	uint64_t half = card->addr + role * longest, word = card->addr + 2 * longest, one = 1, old = 0, start = now_ns();
	struct op op;

	fill(out, len, round + 5);
	POST(f, &op, fi_write(f->ep, out, len, NULL, to, half, card->key, &op));
	await(f, &op, "a write");
	fill(out, len, round + 6 + (unsigned)role);
	POST(f, &op, fi_writedata(f->ep, out, len, NULL, round + 1, to, half, card->key, &op));
	await(f, &op, "a write with data");
	memset(in, 0, len);
	POST(f, &op, fi_read(f->ep, in, len, NULL, to, half, card->key, &op));
	await(f, &op, "a read");
	CHECK(differs(in, len, round + 6 + (unsigned)role) == len, "%zu bytes read back: wrong contents", len);
	while (f->reports <= round) {
		if (!fab_poll(f))
			sched_yield();
		CHECK(now_ns() - start < 20000000000u, "no report of remote CQ data in round %u", round);
	}
	CHECK(f->reports == round + 1 && f->reported == round + 1, "remote CQ data %lu in round %u", (unsigned long)f->reported, round);
	CHECK(differs(window + (1 - role) * longest, len, round + 7 - (unsigned)role) == len, "%zu bytes written here: wrong contents", len);
	POST(f, &op, fi_fetch_atomic(f->ep, &one, 1, NULL, &old, NULL, to, word, card->key, FI_UINT64, FI_SUM, &op));
	await(f, &op, "an atomic");
	CHECK(old == round, "the word has %lu in round %u", (unsigned long)old, round);
}

static int is_there(const char *file)
{
	char path[512];

	snprintf(path, sizeof path, "%s/%s", dir, file);
	return access(path, F_OK) == 0;
}

/* Both go on until both have had enough. */
static int both_go_on(struct fab *f, fi_addr_t to, unsigned char more)
{
	struct op send, recv;
	unsigned char theirs;

	POST(f, &recv, fi_trecv(f->ep, &theirs, 1, NULL, to, 1u << 30, 0, &recv));
	POST(f, &send, fi_tsend(f->ep, &more, 1, NULL, to, 1u << 30, &send));
	await(f, &send, "a send");
	await(f, &recv, "a receive");
	return more | theirs;
}

static void exchange(struct fab *f, fi_addr_t to, const struct card *card, int seconds, const char *until)
{
	static const size_t lengths[] = {0, 1, 8, 200, 4096, 40000, 100000, 1 << 20, SIZE_MAX};
	uint64_t start = now_ns();
	unsigned round = 0;
	int more;

	do {
		size_t len = length(lengths[round % (sizeof lengths / sizeof *lengths)]);

		message(f, to, len, 2 * round);
		window_of(f, to, card, len ? len : 3, round);
		more = round < 20 || (now_ns() - start < (uint64_t)seconds * 1000000000u && !(until && is_there(until)));
		message(f, to, 1, 2 * round + 1);
		round++;
	} while (both_go_on(f, to, more));
	printf("ok: %u rounds\n", round);
}

static void soak(struct fab *f, fi_addr_t to, uint64_t most, const char *since)
{
	static const size_t lengths[] = {1 << 20, 65536, 3 << 20, 200000, SIZE_MAX, 8, 262145, 20000};
	uint64_t bytes = 0;
	unsigned round = 0;

	do {
		size_t len = length(lengths[round % (sizeof lengths / sizeof *lengths)]);

		message(f, to, len, round++);
		if (!since || is_there(since))
			bytes += 2 * len;
	} while (both_go_on(f, to, bytes < most));
	printf("ok: %u rounds, %.1f GiB\n", round, (double)bytes / (1 << 30));
}

/* One operation after the other: messages, or reads of this memory. */
static void until_error(struct fab *f, fi_addr_t to, const struct card *card, int seconds, int expected)
{
	struct op op;
	uint64_t n = 0, start = now_ns(), limit = (uint64_t)seconds * 1000000000u;

	for (;;) {
		long ret;

		begin(&op);
		do {
			if (card)
				ret = fi_read(f->ep, in, longest, NULL, to, card->addr, card->key, &op);
			else
				ret = role == 0 ? fi_tsend(f->ep, out, 200000, NULL, to, 7, &op)
						: fi_trecv(f->ep, in, 200000, NULL, to, 7, 0, &op);
			if (ret == -FI_EAGAIN)
				fab_poll(f);
			CHECK(now_ns() - start < limit, "no error in %d s", seconds);
		} while (ret == -FI_EAGAIN);
		end_post(&op, ret);
		while (op.state == PENDING) {
			if (!fab_poll(f))
				sched_yield();
			CHECK(now_ns() - start < limit, "no error in %d s", seconds);
		}
		if (op.state == FAILED)
			break;
		if (++n == 20)
			say("going", "");
	}
	printf("%lu operations, then: %s\n", (unsigned long)n, fi_strerror(op.err));
	CHECK(!expected || op.err == expected, "not the error that was to come");
	if (expected)
		say("ended", "");
}

/* Until the other side has its error. */
static void until_ended(struct fab *f, int seconds)
{
	uint64_t start = now_ns();

	while (!is_there("ended.0")) {
		fab_poll(f);
		CHECK(now_ns() - start < (uint64_t)seconds * 1000000000u, "the other side has no error");
	}
}

int main(int argc, char **argv)
{
	struct fab f;
	struct card own = {0}, other;
	fi_addr_t to;
	int seconds = argc > 4 ? atoi(argv[4]) : 0;
	const char *file = argc > 5 ? argv[5] : NULL;
	char port[16];

	CHECK(argc > 3, "usage: talk ROLE DIR exchange|soak|stream|reads|refused|filtered [SECONDS|GIB [FILE]]");
	role = atoi(argv[1]);
	dir = argv[2];
	if (getenv("LONGEST"))
		longest = strtoul(getenv("LONGEST"), NULL, 10);
	CHECK(longest > 200000 && longest % 8 == 0, "LONGEST is too small, or no multiple of 8");
	fab_role = role ? "talk 1" : "talk 0";
	setvbuf(stdout, NULL, _IOLBF, 0);
	fab_open(&f, (struct fab_options){.progress = FI_PROGRESS_AUTO});
	out = malloc(longest + 1);
	in = malloc(longest + 1);
	window = calloc(1, 2 * longest + 8);
	CHECK(out && in && window, "no memory");
	OK(fi_mr_reg(f.domain, window, 2 * longest + 8, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &mr, NULL));
	own.name = f.name;
	own.key = fi_mr_key(mr);
	own.addr = f.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)(uintptr_t)window : 0;
	snprintf(port, sizeof port, "%u", (unsigned char)f.name.bytes[2] << 8 | (unsigned char)f.name.bytes[3]);
	say("port", port);
	other = exchange_cards(&own);
	to = fab_insert(&f, &other.name);
	if (!strcmp(argv[3], "exchange"))
		exchange(&f, to, &other, seconds, file);
	else if (!strcmp(argv[3], "soak"))
		soak(&f, to, (uint64_t)(argc > 4 ? atof(argv[4]) * (1 << 30) : 0), file);
	else if (!strcmp(argv[3], "stream"))
		until_error(&f, to, NULL, seconds, 0);
	else if (!strcmp(argv[3], "reads") && role == 0)
		until_error(&f, to, &other, seconds, 0);
	else if (!strcmp(argv[3], "reads"))
		until_ended(&f, seconds);
	else if (role == 0)
		until_error(&f, to, NULL, seconds, strcmp(argv[3], "filtered") ? FI_EACCES : FI_ETIMEDOUT);
	else
		until_ended(&f, seconds);
	OK(fi_close(&mr->fid));
	fab_close(&f);
	return 0;
}
