/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the processes of storm.c share, and what each has under way. */
#undef PART
#define PART 1
#include "../fab.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>

/* A place in this program is printed as a part and a line. */
static const char *const parts[] = {"storm.c", "storm_work.h", "storm_moves.h", "storm_process.h", "storm_ledger.h"};

#define WATCHDOG 8000000000u
enum { MOST = 6, CLASSES = 4, REGIONS = 2, SUB = 512 << 10, WORDS = 64 };
/* Longest message of a class (its tag; the last is untagged), and how many of each a process has under way. */
static const size_t class_len[CLASSES] = {16 << 10, 256 << 10, 2 << 20, 16 << 10};
static const int class_ops[CLASSES] = {16, 4, 2, 8};
enum { SLOTS = 16 + 4 + 2 + 8 };

#define CANARY 0xc5
#define CANARY_WORD 0xc5c5c5c5c5c5c5c5u
#define MAGIC 0x5354524149545354u
/* The same addresses in every program of a slot. */
#define ARENA(slot) ((unsigned char *)0x100000000000 + ((size_t)(slot) << 36))
#define REGION(slot, r) (ARENA(slot) + ((size_t)(1 + (r)) << 32))
/* A part for each peer (what is checked, what is not), and a line for the word of each. */
#define REGION_LEN ((size_t)MOST * SUB + MOST * WORDS)

enum { KILL = 1, EXEC = 2, STOP = 4, FORK = 8, CLOSE = 16, CANCEL = 32, DEREG = 64, DIRECTED = 128, RMA = 256, ATOMIC = 512, MUNMAP = 1024 };
static const char *const deeds[] = {"kill", "exec", "stop", "fork", "close", "cancel", "dereg", "directed", "rma", "atomic", "munmap"};
static unsigned without;
static int procs = 4, progress_auto;
static uint64_t seed;
static int host_fds[MOST], host_count; /* network namespaces */

struct slot {
	volatile uint64_t version; /* odd while the rest changes */
	volatile uint64_t gen, key[REGIONS], at[REGIONS], epoch[REGIONS], born[REGIONS];
	struct name name;
	volatile uint64_t doomed;		   /* the last incarnation that has ended, or is about to */
	volatile uint64_t epochs_over[REGIONS]; /* the same of its regions */
	volatile uint64_t beat;
	volatile int where; /* part and line of the call it is in */
};

/* Of the messages of one incarnation to another one: see storm_ledger.h. */
enum { LEDGERS = 32, SEQS = 1 << 16 };
struct ledger {
	volatile uint64_t sgen, rgen, n;
	volatile int closed; /* the sender's endpoint, which was not cut off */
	int64_t first;	     /* the first one that is missing, for the receiver, and since when */
	uint64_t since;
	volatile uint64_t sent[SEQS / 64], delivered[SEQS / 64], got[SEQS / 64];
};

static struct shared {
	struct slot slots[MOST];
	volatile int stop;
	volatile uint64_t said;
	volatile uint64_t wrong, touched, foreign, hangs, blamed, lost, crashes;
	volatile uint64_t messages, bytes, reads, writes, atomics, failed, kills, execs, stops, forks, closes, cancels, deregs, busy;
	volatile uint64_t errs[512];
	uint64_t turn[MOST][MOST];
	struct ledger ledgers[MOST][MOST][LEDGERS]; /* by sender and receiver */
} *sh;
static int sh_fd;

#define COUNT(what, n) __sync_fetch_and_add(&sh->what, (uint64_t)(n))

static int me;
static uint64_t gen; /* of this endpoint */
static uint64_t rnd;
static struct fab f;

static uint64_t draw(uint64_t n) { return next_random(&rnd) % n; }
static int has(unsigned deed) { return !(without & deed); }

/* Reports a finding, if not too many were reported. */
#define FOUND(counter, ...)                                                                     \
	do {                                                                                    \
		COUNT(counter, 1);                                                              \
		if (COUNT(said, 1) < 40) {                                                      \
			char found_text[240];                                                   \
			snprintf(found_text, sizeof found_text, __VA_ARGS__);                   \
			fprintf(stderr, "seed %lu: %d.%lu (pid %d), %s:%d, " #counter ": %s\n", seed, me, gen, (int)getpid(), \
				parts[PART], __LINE__, found_text);                                          \
		}                                                                               \
	} while (0)

static uint64_t mix(uint64_t a, uint64_t b, uint64_t c)
{
	uint64_t x = a * 0x9e3779b97f4a7c15u ^ b * 0xc2b2ae3d27d4eb4fu ^ c * 0x165667b19e3779f9u;

	x ^= x >> 29;
	return x * 0xbf58476d1ce4e5b9u;
}

static uint64_t word_at(uint64_t key, size_t i) { return (key ^ i * 0x9e3779b97f4a7c15u) & ~(uint64_t)0x80; }

/* Content that depends on a key and the position, and has no canary word. */
static void paint(unsigned char *b, size_t from, size_t to, uint64_t key)
{
	for (size_t i = from / 8; i * 8 < to; i++) {
		uint64_t w = word_at(key, i);

		memcpy(b + i * 8, &w, to - i * 8 < 8 ? to - i * 8 : 8);
	}
}

/* Where it differs first, or `to`. */
static size_t unlike(const unsigned char *b, size_t from, size_t to, uint64_t key)
{
	for (size_t i = from / 8; i * 8 < to; i++) {
		uint64_t w = word_at(key, i);

		if (memcmp(b + i * 8, &w, to - i * 8 < 8 ? to - i * 8 : 8))
			return i * 8;
	}
	return to;
}

/* Bytes that are not canaries. */
static size_t not_canary(const unsigned char *b, size_t n)
{
	size_t bad = 0, i = 0;

	for (; i + 8 <= n; i += 8) {
		uint64_t w;

		memcpy(&w, b + i, 8);
		if (w != CANARY_WORD)
			for (int k = 0; k < 8; k++)
				bad += b[i + k] != CANARY;
	}
	for (; i < n; i++)
		bad += b[i] != CANARY;
	return bad;
}

static int has_canary(const unsigned char *b, size_t n)
{
	for (size_t i = 0; i + 8 <= n; i += 8) {
		uint64_t w;

		memcpy(&w, b + i, 8);
		if (w == CANARY_WORD)
			return 1;
	}
	return 0;
}

static void map_at(unsigned char *at, size_t len)
{
	void *got = mmap(at, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	CHECK(got == at, "mmap: %s", strerror(errno));
}

/*
 * One process.
 */
enum kind { SENDS, RECVS, WRITES, READS, FETCHES };

/* An operation: its address is its context.  While it is not under way its buffer is full of canaries. */
struct work {
	struct fi_context2 room;
	enum kind kind;
	int busy, class, directed, cancelled, reported;
	unsigned char *buf;
	size_t room_len, len;
	int peer, region;
	uint64_t gen, epoch, key, posted; /* of a send `key` is its number */
	uint64_t checked; /* whether what it reads or writes is; of a send, whether its delivery is waited for */
};

/* What is known of a peer. */
struct peer {
	uint64_t gen, keys[REGIONS], at[REGIONS], epoch[REGIONS];
	fi_addr_t addr;
	uint64_t seq, again; /* since when it takes nothing */
	/* What is in our part of its regions. */
	uint64_t wkey[REGIONS], sum[REGIONS];
	size_t wlen[REGIONS];
	int tainted[REGIONS], sum_known[REGIONS], older[REGIONS]; /* than this incarnation of ours, so not checked */
	/* Which of its messages have come. */
	uint64_t seen_gen;
	uint64_t *seen;
};

enum { SEEN = 1 << 18 };

struct region {
	enum { CLOSED, OPEN, CLOSING, WATCHED, UNMAPPED } state;
	struct fid_mr *mr;
	struct fid_cntr *cntr;
	uint64_t epoch, born, since, until; /* when it is closed, or registered again */
};

static struct work sends[SLOTS], recvs[SLOTS], rmas[MOST][REGIONS];
static struct peer peers[MOST];
static struct region regions[REGIONS];
static size_t arena_len;
static int ordered;
static uint64_t opened;

static unsigned char *take(unsigned char **at, size_t n)
{
	unsigned char *b = *at;

	*at += n;
	return b;
}

static size_t lay_out(int slot)
{
	unsigned char *at = ARENA(slot);
	int n = 0;

	for (int c = 0; c < CLASSES; c++)
		for (int i = 0; i < class_ops[c]; i++, n++) {
			sends[n] = (struct work){.kind = SENDS, .class = c, .buf = take(&at, class_len[c]), .room_len = class_len[c]};
			recvs[n] = (struct work){.kind = RECVS, .class = c, .buf = take(&at, class_len[c]), .room_len = class_len[c], .directed = i % 2};
		}
	for (int k = 0; k < MOST; k++)
		for (int r = 0; r < REGIONS; r++)
			rmas[k][r] = (struct work){.buf = take(&at, SUB / 2), .room_len = SUB / 2, .peer = k, .region = r};
	return (size_t)(at - ARENA(slot));
}

/* No operation has the buffer any more. */
static void give_back(struct work *w)
{
	memset(w->buf, CANARY, w->room_len);
	w->busy = w->reported = 0;
}

/* Before a buffer is used again. */
static void check_canaries(struct work *w)
{
	size_t bad = not_canary(w->buf, w->room_len);

	if (bad) {
		FOUND(touched, "%zu of %zu bytes of a buffer whose %s had ended (%zu bytes, peer %d.%lu, cancelled %d)", bad, w->room_len,
		      w->kind == SENDS ? "send" : w->kind == RECVS ? "receive" : w->kind == WRITES ? "write" : "read or atomic", w->len,
		      w->peer, w->gen, w->cancelled);
		memset(w->buf, CANARY, w->room_len);
	}
}

#define HERE() (sh->slots[me].where = PART * 10000 + __LINE__, sh->slots[me].beat = now_ns())
