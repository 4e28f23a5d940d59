/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * A random MPI program, checked against a model.
 *
 *   random SEED ROUNDS [idle] [threads] [no...]
 *
 * All ranks draw the same plan of each round from the seed: which messages go from whom to whom, with which communicator, tag, length,
 * way to send and layout, and by which way each rank receives: receives posted before, or late, with or without a source and a tag, by
 * probes, or posted at random, cancelled and posted anew. Rounds are not separated, but for a barrier after three; between them are collectives,
 * windows, new communicators. Each byte received is compared, also those around the buffers and between the pieces of a layout, and each
 * receive has to have got the first message of its sender that it fits and that no earlier one has got.
 *
 *   idle      ranks pause for more than a second now and then, all or one
 *   threads   MPI_THREAD_MULTIPLE is asked for
 *   no...     norma, nocancel, notrunc, noself, nopieces, nomprobe, nossend, nobsend: what is left out, for faults of clients
 *
 * When nothing ends for 200 s, each rank says where it is. Rank 0 prints "random ok" at the end.
 */
#include <mpi.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GROUPS = 3, PER_GROUP = 2, MOST = 64, GUARD = 64, BSEND = 6 << 20 };
enum style { PREPOSTED, LATE, PROBES, CHAOS, STYLES };
enum want { SPECIFIC, ANY_FROM, ANY_TAG_OF, ANY_AT_ALL, WANTS };
enum way { ISEND, SEND, ISSEND, SSEND, IBSEND, BSEND_, PERSISTENT, RSEND, SSEND_INIT, WAYS };

static int rank, size, rounds, round_now, with_idle, no_rma, no_cancel, no_trunc, no_self, no_pieces, no_mprobe, no_ssend, no_bsend;
static uint64_t seed, plan, own, total, total_bytes;
static const char *stage = "start";
static MPI_Comm comms[GROUPS * PER_GROUP];

#define CHECK(cond, ...)                                                                                            \
	do {                                                                                                        \
		if (!(cond)) {                                                                                      \
			fprintf(stderr, "random: seed %lu, round %d, rank %d, %s, line %d: ", seed, round_now, rank, stage, __LINE__); \
			fprintf(stderr, __VA_ARGS__);                                                               \
			fputc('\n', stderr);                                                                        \
			fflush(stderr);                                                                             \
			MPI_Abort(MPI_COMM_WORLD, 1);                                                               \
		}                                                                                                   \
	} while (0)

static void ok_at(int line, int ret)
{
	char text[MPI_MAX_ERROR_STRING] = "";
	int len;

	if (ret != MPI_SUCCESS)
		MPI_Error_string(ret, text, &len);
	CHECK(ret == MPI_SUCCESS, "at %d: %s", line, text);
}
#define OK(call) ok_at(__LINE__, call)

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static int draw(uint64_t *state, int n) { return (int)(mix(*state += 0x9e3779b97f4a7c15u) % (uint64_t)n); }

struct message {
	int src, dst, comm, tag, len, way, pieces, number, taken;
};

struct receive {
	MPI_Request req;
	MPI_Message msg;
	unsigned char *room; /* with guards */
	size_t span;
	int cap, piece, stride, comm, src, tag; /* asked for; -1 is any */
	int from, got, count, done, cancelled, cut;
};

struct send {
	MPI_Request req;
	unsigned char *buf;
	size_t span;
	int persistent;
	const struct message *m;
};

static struct message *messages;
static int count, longest, in_order;
static enum style styles[MOST];
static enum want wants[MOST][PER_GROUP];
static int rs_ok; /* all ranks that post before have done so before any message of the round */
static unsigned char *scratch;
static struct receive *receives;
static int received, most_receives;
static struct send *sends;
static int sent;
static const struct message *send_awaited;
static char *bsend_room;
static size_t bsend_used;

static int in_comm(int comm, int world) { return comm % 2 ? size - 1 - world : world; }

/* A length near one at which ways change, or any. */
static int length(int most)
{
	static const int edges[] = {0, 1, 8, 24, 64, 128, 192, 256, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576};
	int n = edges[draw(&plan, sizeof edges / sizeof *edges)];

	if (draw(&plan, 3))
		n += draw(&plan, 2) ? draw(&plan, 5) - 2 : draw(&plan, 120) - 60;
	if (n < 0 || n > most || !draw(&plan, 4))
		n = draw(&plan, most + 1);
	return n;
}

static void draw_round(void)
{
	static const int lens[] = {100, 5000, 20000, 140000, 1050000}, pers[] = {60, 30, 12, 4, 2};
	int class = draw(&plan, 14), traffic = draw(&plan, 7), hot = draw(&plan, size), run = 0, src = 0, dst = 0, tags = 1 + draw(&plan, 4);
	int styled = draw(&plan, 3);

	class = class < 4 ? 0 : class < 8 ? 1 : class < 11 ? 2 : class < 13 ? 3 : 4;
	longest = lens[class];
	count = 1 + draw(&plan, size * pers[class]);
	in_order = draw(&plan, 2);
	rs_ok = !draw(&plan, 4);
	for (int r = 0; r < size; r++) {
		styles[r] = styled ? draw(&plan, STYLES) : LATE;
		if (no_cancel && styles[r] == CHAOS)
			styles[r] = PROBES;
		for (int c = 0; c < PER_GROUP; c++)
			wants[r][c] = draw(&plan, WANTS);
	}
	for (int i = 0; i < count; i++) {
		struct message *m = &messages[i];

		do {
			if (!(traffic == 5 && run-- > 0)) {
				src = draw(&plan, size), dst = draw(&plan, size), run = draw(&plan, 50);
				if (traffic == 1)
					dst = hot;
				else if (traffic == 2)
					src = hot;
				else if (traffic == 3)
					dst = (src + (draw(&plan, 2) ? 1 : size - 1)) % size;
				else if (traffic == 4)
					dst = (src ^ 1) < size ? src ^ 1 : src;
				else if (traffic == 6)
					dst = (src + hot + 1) % size;
			}
		} while (no_self && src == dst && (traffic = 0, run = 0, 1));
		*m = (struct message){.src = src, .dst = dst, .len = length(longest), .number = i};
		m->comm = round_now % GROUPS * PER_GROUP + draw(&plan, PER_GROUP);
		m->tag = draw(&plan, tags);
		m->way = draw(&plan, 2) ? ISEND : draw(&plan, WAYS);
		m->pieces = draw(&plan, 8) ? 1 : 2 + draw(&plan, 40);
	}
}

static unsigned char *at_byte(unsigned char *buf, int piece, int stride, int i) { return buf + (size_t)(i / piece) * stride + i % piece; }

static void content(unsigned char *to, const struct message *m)
{
	uint64_t key = mix(seed * 1000003 + (uint64_t)round_now * 100003 + (uint64_t)m->number), word;

	for (int i = 0; i < m->len; i += 8) {
		word = mix(key + (uint64_t)i) | 1;
		memcpy(to + i, &word, m->len - i < 8 ? m->len - i : 8);
	}
}

/* A layout of so many bytes in pieces. */
static MPI_Datatype layout(int len, int piece, int stride)
{
	int n = (len + piece - 1) / piece, *lens = malloc(sizeof(int) * (n + 1));
	MPI_Aint *offs = malloc(sizeof(MPI_Aint) * (n + 1));
	MPI_Datatype type;

	for (int i = 0; i < n; i++) {
		lens[i] = len - i * piece < piece ? len - i * piece : piece;
		offs[i] = (MPI_Aint)i * stride;
	}
	OK(MPI_Type_create_hindexed(n, lens, offs, MPI_BYTE, &type));
	OK(MPI_Type_commit(&type));
	free(lens), free(offs);
	return type;
}

static void shape(int len, int pieces, int *piece, int *stride, size_t *span)
{
	*piece = pieces > 1 && len >= pieces ? (len + pieces - 1) / pieces : len > 0 ? len : 1;
	*stride = pieces > 1 && len >= pieces ? *piece + 1 + (len + pieces) % 29 : *piece;
	*span = (size_t)((len + *piece - 1) / *piece) * *stride + 1;
}

static void send_one(const struct message *m)
{
	struct send *s = &sends[sent++];
	int to = in_comm(m->comm, m->dst), piece, stride, way = m->way, n = m->len;
	MPI_Comm comm = comms[m->comm];
	MPI_Datatype type = MPI_BYTE;

	shape(m->len, m->pieces, &piece, &stride, &s->span);
	s->buf = malloc(s->span);
	s->req = MPI_REQUEST_NULL, s->persistent = 0, s->m = m;
	if (stride != piece) {
		content(scratch, m);
		for (int i = 0; i < m->len; i++)
			*at_byte(s->buf, piece, stride, i) = scratch[i];
		type = layout(m->len, piece, stride), n = 1;
	} else {
		content(s->buf, m);
	}
	if (no_ssend && (way == ISSEND || way == SSEND || way == SSEND_INIT))
		way = ISEND;
	/* What blocks needs a receive that is posted whatever happens. */
	if ((way == SEND || way == SSEND) && (styles[m->dst] != PREPOSTED || m->dst == rank))
		way -= 1;
	if (way == RSEND && (!rs_ok || styles[m->dst] != PREPOSTED))
		way = ISEND;
	if (way == IBSEND || way == BSEND_) {
		if (no_bsend || m->len > 9000 || bsend_used + m->len + MPI_BSEND_OVERHEAD + 256 > BSEND)
			way = ISEND;
		else
			bsend_used += m->len + MPI_BSEND_OVERHEAD + 256;
	}
	switch ((enum way)way) {
	case SEND: OK(MPI_Send(s->buf, n, type, to, m->tag, comm)); break;
	case SSEND: OK(MPI_Ssend(s->buf, n, type, to, m->tag, comm)); break;
	case BSEND_: OK(MPI_Bsend(s->buf, n, type, to, m->tag, comm)); break;
	case IBSEND: OK(MPI_Ibsend(s->buf, n, type, to, m->tag, comm, &s->req)); break;
	case ISSEND: OK(MPI_Issend(s->buf, n, type, to, m->tag, comm, &s->req)); break;
	case RSEND: OK(MPI_Irsend(s->buf, n, type, to, m->tag, comm, &s->req)); break;
	case PERSISTENT: OK(MPI_Send_init(s->buf, n, type, to, m->tag, comm, &s->req)), s->persistent = 1; break;
	case SSEND_INIT: OK(MPI_Ssend_init(s->buf, n, type, to, m->tag, comm, &s->req)), s->persistent = 1; break;
	default: OK(MPI_Isend(s->buf, n, type, to, m->tag, comm, &s->req));
	}
	if (s->persistent)
		OK(MPI_Start(&s->req));
	if (type != MPI_BYTE)
		OK(MPI_Type_free(&type));
	if (s->req == MPI_REQUEST_NULL)
		memset(s->buf, 0xdd, s->span);
	total++;
	total_bytes += (uint64_t)m->len;
}

/* Messages of this round go out in the plan's order; now and then others get the processor. */
static void send_all(void)
{
	stage = "sends";
	for (int i = 0; i < count; i++)
		if (messages[i].src == rank) {
			send_one(&messages[i]);
			if (!draw(&own, 200))
				usleep(500);
		}
}

static void end_sends(void)
{
	stage = "end of sends";
	for (int i = 0; i < sent; i++) {
		send_awaited = sends[i].m;
		OK(MPI_Wait(&sends[i].req, MPI_STATUS_IGNORE));
		memset(sends[i].buf, 0xdd, sends[i].span);
		if (sends[i].persistent)
			OK(MPI_Request_free(&sends[i].req));
		free(sends[i].buf);
	}
	sent = 0;
}

static struct receive *new_receive(int comm, int src, int tag, int cap)
{
	struct receive *r;

	if (received == most_receives) {
		struct receive *more = realloc(receives, sizeof *more * (size_t)(most_receives = most_receives * 2 + 4096));

		CHECK(more, "memory");
		receives = more;
	}
	r = &receives[received++];
	*r = (struct receive){.req = MPI_REQUEST_NULL, .comm = comm, .src = src, .tag = tag, .cap = cap};
	shape(cap, no_pieces || draw(&own, 8) ? 1 : 2 + draw(&own, 40), &r->piece, &r->stride, &r->span);
	r->room = malloc(r->span + 2 * GUARD);
	CHECK(r->room, "memory");
	memset(r->room, 0xee, r->span + 2 * GUARD);
	return r;
}

static MPI_Datatype type_of(struct receive *r, int *n)
{
	if (r->stride == r->piece) {
		*n = r->cap;
		return MPI_BYTE;
	}
	*n = 1;
	return layout(r->cap, r->piece, r->stride);
}

/* What a call that ended a receive, or a probe, has said. */
static void note(struct receive *r, MPI_Status *st, int ret)
{
	int class = MPI_SUCCESS, flag = 0;

	r->done = 1;
	if (ret != MPI_SUCCESS)
		MPI_Error_class(ret, &class);
	if (class == MPI_ERR_TRUNCATE) {
		r->cut = 1, r->from = r->src, r->got = r->tag;
		return;
	}
	OK(ret);
	OK(MPI_Test_cancelled(st, &flag));
	if ((r->cancelled = flag))
		return;
	r->from = in_comm(r->comm, st->MPI_SOURCE), r->got = st->MPI_TAG;
	OK(MPI_Get_elements(st, MPI_BYTE, &r->count));
}

static void post(struct receive *r, int blocking)
{
	MPI_Status st;
	int n, ret, src = r->src < 0 ? MPI_ANY_SOURCE : in_comm(r->comm, r->src), tag = r->tag < 0 ? MPI_ANY_TAG : r->tag;
	MPI_Datatype type = type_of(r, &n);

	if (blocking) {
		ret = MPI_Recv(r->room + GUARD, n, type, src, tag, comms[r->comm], &st);
		note(r, &st, ret);
	} else {
		OK(MPI_Irecv(r->room + GUARD, n, type, src, tag, comms[r->comm], &r->req));
	}
	if (type != MPI_BYTE)
		OK(MPI_Type_free(&type));
}

/* The first message that is to come to this rank, in the order of its sender, and fits. */
static struct message *first(int comm, int src, int tag, int taken)
{
	for (int i = 0; i < count; i++) {
		struct message *m = &messages[i];

		if (m->dst == rank && m->taken <= taken && m->comm == comm && m->src == src && (tag < 0 || m->tag == tag))
			return m;
	}
	return NULL;
}

static void check_receive(struct receive *r)
{
	struct message *m;
	unsigned char *buf = r->room + GUARD, *end = buf + r->span;
	int len;

	if (!r->cancelled) {
		m = first(r->comm, r->from, r->tag, 1);
		CHECK(m, "a message from %d, tag %d, of %d bytes that none has sent", r->from, r->got, r->count);
		CHECK(m->tag == r->got, "from %d: tag %d, not %d (message %d of %d bytes; asked for %d, tag %d)", r->from, r->got, m->tag, m->number, m->len,
		      r->src, r->tag);
		if (m->len > r->cap)
			CHECK(r->cut, "message %d of %d bytes from %d in %d bytes without an error", m->number, m->len, r->from, r->cap);
		else
			CHECK(!r->cut && r->count == m->len, "from %d, tag %d: %d bytes (cut %d), message %d has %d", r->from, r->got, r->count, r->cut, m->number,
			      m->len);
		m->taken = 2;
		len = r->cut ? 0 : m->len;
		content(scratch, m);
		if (r->stride == r->piece && memcmp(buf, scratch, (size_t)len)) {
			int i = 0;

			while (buf[i] == scratch[i])
				i++;
			CHECK(0, "message %d of %d bytes from %d, tag %d, way %d: wrong at %d: %02x, not %02x", m->number, len, r->from, r->got, m->way, i, buf[i],
			      scratch[i]);
		} else if (r->stride != r->piece) {
			for (int i = 0; i < len; i++) {
				unsigned char *b = at_byte(buf, r->piece, r->stride, i);

				CHECK(*b == scratch[i], "message %d of %d bytes from %d, in pieces of %d: wrong at %d", m->number, len, r->from, r->piece, i);
				*b = 0xee;
			}
		}
		if (r->stride == r->piece && !r->cut)
			buf += len;
		if (r->cut) /* as much as there was room for */
			for (int i = 0; i < r->cap; i++)
				*at_byte(buf, r->piece, r->stride, i) = 0xee;
	}
	for (unsigned char *b = r->room; b < r->room + GUARD; b++)
		CHECK(*b == 0xee, "written before a buffer");
	for (unsigned char *b = buf; b < end + GUARD; b++)
		CHECK(*b == 0xee, "written %zd behind the message, %d bytes from %d (cancelled %d, cut %d)", b - buf, r->count, r->from, r->cancelled, r->cut);
	free(r->room);
}

#include "random_ways.h"
#include "random_between.h"

static void on_alarm(int sig)
{
	char text[200];
	int n = snprintf(text, sizeof text, "random: seed %lu, rank %d hangs in round %d, %s (%d received, %d sent; awaited %d bytes to %d, way %d)\n", seed, rank, round_now,
			 stage, received, sent, send_awaited ? send_awaited->len : -1, send_awaited ? send_awaited->dst : -1, send_awaited ? send_awaited->way : -1);

	(void)!write(2, text, (size_t)n);
	signal(sig, SIG_DFL);
	sleep(2);
	_exit(3);
}

int main(int argc, char **argv)
{
	int threads = 0, have;
	uint64_t sum[2], all[2];

	if (argc < 3)
		return 2;
	seed = strtoull(argv[1], NULL, 0), rounds = atoi(argv[2]);
	for (int i = 3; i < argc; i++) {
		with_idle |= !strcmp(argv[i], "idle"), threads |= !strcmp(argv[i], "threads"), no_rma |= !strcmp(argv[i], "norma");
		no_cancel |= !strcmp(argv[i], "nocancel"), no_trunc |= !strcmp(argv[i], "notrunc"), no_self |= !strcmp(argv[i], "noself");
		no_pieces |= !strcmp(argv[i], "nopieces"), no_mprobe |= !strcmp(argv[i], "nomprobe");
		no_ssend |= !strcmp(argv[i], "nossend"), no_bsend |= !strcmp(argv[i], "nobsend");
	}
	MPI_Init_thread(&argc, &argv, threads ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &have);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
	CHECK(size <= MOST, "at most %d ranks", MOST);
	signal(SIGALRM, on_alarm);
	plan = mix(seed), own = mix(seed + (uint64_t)rank * 7919 + 1);
	messages = malloc(sizeof *messages * (size_t)(size * 60 + 1));
	sends = malloc(sizeof *sends * (size_t)(size * 60 + 1));
	scratch = malloc(1100000), bsend_room = malloc(BSEND);
	OK(MPI_Buffer_attach(bsend_room, BSEND));
	for (int g = 0; g < GROUPS; g++)
		open_comms(g);
	for (round_now = 0; round_now < rounds; round_now++) {
		alarm(200);
		draw_round();
		if (with_idle && !draw(&plan, 12)) {
			int who = draw(&plan, size + 1);

			stage = "idle";
			if (who == size || who == rank)
				usleep(1200000);
		}
		round_of_messages();
		if (round_now % GROUPS == GROUPS - 1)
			between();
	}
	alarm(200);
	stage = "end";
	{
		void *at;
		int n;

		OK(MPI_Buffer_detach(&at, &n));
	}
	for (int c = 0; c < GROUPS * PER_GROUP; c++)
		OK(MPI_Comm_free(&comms[c]));
	sum[0] = total, sum[1] = total_bytes;
	OK(MPI_Reduce(sum, all, 2, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD));
	MPI_Finalize();
	if (!rank)
		printf("random ok: seed %lu, %d ranks, %d rounds, %lu messages, %lu bytes\n", seed, size, rounds, all[0], all[1]);
	return 0;
}
