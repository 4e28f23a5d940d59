/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Blocking point-to-point calls: each way to send, each way to receive, from below the eager limits to above them. */
#include "types.h"

enum way { SEND, SSEND, BSEND, RSEND, ISEND, ISSEND, IBSEND, IRSEND, SEND_C, WAYS };
enum take_way { RECV, IRECV, MRECV, IMRECV, RECV_C, TAKES };
static const int lengths[] = { 0, 1, 13, 4096, 70000, 300000 };

static void attach(int yes)
{
	static char room[1 << 20];
	void *at;
	int len;

	if (yes)
		OK(MPI_Buffer_attach(room, sizeof room));
	else
		OK(MPI_Buffer_detach(&at, &len));
}

static void send_by(enum way way, const void *at, int n, MPI_Datatype type, int to, int tag)
{
	MPI_Request q = MPI_REQUEST_NULL;
	int (*f)() = optional("MPI_Send_c");

	switch (way) {
	case SEND: OK(MPI_Send(at, n, type, to, tag, MPI_COMM_WORLD)); break;
	case SSEND: OK(MPI_Ssend(at, n, type, to, tag, MPI_COMM_WORLD)); break;
	case BSEND: OK(MPI_Bsend(at, n, type, to, tag, MPI_COMM_WORLD)); break;
	/* The receiver has posted its receive, and said so. */
	case RSEND: OK(MPI_Rsend(at, n, type, to, tag, MPI_COMM_WORLD)); break;
	case ISEND: OK(MPI_Isend(at, n, type, to, tag, MPI_COMM_WORLD, &q)); break;
	case ISSEND: OK(MPI_Issend(at, n, type, to, tag, MPI_COMM_WORLD, &q)); break;
	case IBSEND: OK(MPI_Ibsend(at, n, type, to, tag, MPI_COMM_WORLD, &q)); break;
	case IRSEND: OK(MPI_Irsend(at, n, type, to, tag, MPI_COMM_WORLD, &q)); break;
	default:
		if (f)
			OK(f(at, (MPI_Count)n, type, to, tag, MPI_COMM_WORLD));
		else
			OK(MPI_Send(at, n, type, to, tag, MPI_COMM_WORLD));
	}
	if (way >= ISEND && way <= IRSEND)
		OK(MPI_Wait(&q, MPI_STATUS_IGNORE));
}

static void recv_by(enum take_way way, int ready, void *at, int n, MPI_Datatype type, int from, int tag, int sent)
{
	MPI_Request q = MPI_REQUEST_NULL;
	MPI_Message message;
	MPI_Status status;
	int (*f)() = optional("MPI_Recv_c"), got = -1;

	if (ready)
		way = IRECV;
	switch (way) {
	case RECV: OK(MPI_Recv(at, n, type, from, tag, MPI_COMM_WORLD, &status)); break;
	case IRECV: OK(MPI_Irecv(at, n, type, from, tag, MPI_COMM_WORLD, &q)); break;
	case MRECV:
	case IMRECV:
		OK(MPI_Mprobe(from, tag, MPI_COMM_WORLD, &message, &status));
		if (way == MRECV)
			OK(MPI_Mrecv(at, n, type, &message, &status));
		else
			OK(MPI_Imrecv(at, n, type, &message, &q));
		break;
	default:
		if (f)
			OK(f(at, (MPI_Count)n, type, MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, &status));
		else
			OK(MPI_Recv(at, n, type, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status));
	}
	if (ready)
		OK(MPI_Send(NULL, 0, MPI_INT, from, 999, MPI_COMM_WORLD));
	if (q != MPI_REQUEST_NULL)
		OK(MPI_Wait(&q, &status));
	CHECK(status.MPI_SOURCE == from && status.MPI_TAG == tag);
	OK(MPI_Get_count(&status, type, &got));
	CHECK(got == sent);
}

/* Rank 2i sends to rank 2i+1, whose buffer has more room than is sent. */
static void one(enum way way, enum take_way taken, int n)
{
	int ready = way == RSEND || way == IRSEND, other = me ^ 1;

	if (openmpi4_mtl && (way == SSEND || way == ISSEND) && (taken == MRECV || taken == IMRECV))
		taken = RECV;
	begin("send %d recv %d length %d", way, taken, n);
	struct buffer *b = take((size_t)n + (me % 2 ? 100 : 0), !(me % 2) ? UNCHANGED : n > 3 ? CHANGED : ANY);

	if (other < ranks)
		SIDES {
			if (me % 2) {
				recv_by(taken, ready, P(b), n + 100, MPI_BYTE, other, 7, n);
				has_first(b, side, 0, (size_t)n, other, 0, 0);
			} else {
				if (ready)
					OK(MPI_Recv(NULL, 0, MPI_INT, other, 999, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
				send_by(way, P(b), n, MPI_BYTE, other, 7);
			}
		}
	else
		b->change = UNCHANGED;
	end();
}

static void ways(void)
{
	attach(1);
	for (enum way way = 0; way < WAYS; way++)
		for (int i = 0; i < COUNT(lengths); i++)
			one(way, (enum take_way)((way + i) % TAKES), lengths[i]);
	attach(0);
}

/* Around a ring, to a process itself too. */
static void sendrecv(void)
{
	for (int i = 0; i < 2 * COUNT(lengths); i++) {
		int n = lengths[i / 2] / 4, self = i % 2, to = self ? me : (me + 1) % ranks, from = self ? me : (me + ranks - 1) % ranks;
		int (*f)() = optional("MPI_Isendrecv"), (*g)() = optional("MPI_Isendrecv_replace"),
		    (*c)() = optional("MPI_Sendrecv_replace_c");

		begin("Sendrecv %d of %d ints", self, n);
		struct buffer *s = take(4 * (size_t)n, UNCHANGED), *r = take(4 * (size_t)n, n ? CHANGED : ANY),
			      *x = take(4 * (size_t)n, n && to != me ? CHANGED : ANY), *y = take(4 * (size_t)n, ANY),
			      *z = take(4 * (size_t)n, ANY);

		SIDES {
			MPI_Status status;
			MPI_Request q[2];

			OK(MPI_Sendrecv(P(s), n, MPI_INT, to, 1, P(r), n, MPI_INT, from, 1, MPI_COMM_WORLD, &status));
			CHECK(status.MPI_SOURCE == from);
			has_first(r, side, 0, 4 * (size_t)n, from, 0, 0);
			OK(MPI_Sendrecv_replace(P(x), n, MPI_INT, to, 2, from, 2, MPI_COMM_WORLD, &status));
			has_first(x, side, 0, 4 * (size_t)n, from, 2, 0);
			/* One neighbour is none: half of it happens. */
			OK(MPI_Sendrecv(P(s), n, MPI_INT, MPI_PROC_NULL, 1, P(x), n, MPI_INT, MPI_PROC_NULL, 1, MPI_COMM_WORLD, &status));
			if (c)
				OK(c(P(y), (MPI_Count)n, MPI_INT, to, 3, from, 3, MPI_COMM_WORLD, &status));
			if (f && g) {
				OK(f(P(s), n, MPI_INT, to, 4, P(z), n, MPI_INT, from, 4, MPI_COMM_WORLD, &q[0]));
				OK(MPI_Wait(&q[0], MPI_STATUS_IGNORE));
				OK(g(P(y), n, MPI_INT, to, 5, from, 5, MPI_COMM_WORLD, &q[0]));
				OK(MPI_Wait(&q[0], MPI_STATUS_IGNORE));
			}
		}
		end();
	}
}

/* Datatypes with gaps, sent as one and received as another of the same signature. */
static void pairs(void)
{
	for (int i = 0; i < FIXED_PAIRS; i++)
		for (int k = 0; k < 3; k++) {
			static const int counts[] = { 1, 9, 1500 };
			struct pair p = fixed_pair(i);
			int other = me ^ 1, n = counts[k];

			begin("pair %s, %d elements", p.name, n);
			struct buffer *s = take_typed(n, 0, p.send, UNCHANGED), *r = take_typed(n, 2, p.recv, ANY),
				      *x = take_typed(n, 0, p.send, ANY);

			if (other < ranks)
				SIDES {
					MPI_Status status;
					int got;

					OK(MPI_Sendrecv(P(s), n, p.send, other, 1, P(r), n + 2, p.recv, other, 1, MPI_COMM_WORLD, &status));
					OK(MPI_Get_count(&status, p.recv, &got));
					CHECK(got == n);
					OK(MPI_Sendrecv_replace(P(x), n, p.send, other, 2, other, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
					/* Less than the receive has room for, not a whole element. */
					OK(MPI_Sendrecv(P(s), n, p.send, MPI_PROC_NULL, 0, P(r), n, p.recv, MPI_PROC_NULL, 0,
							MPI_COMM_WORLD, MPI_STATUS_IGNORE));
				}
			end();
			free_pair(&p);
		}
}

/* Addresses of the address space's begin: absolute displacements, from MPI_Get_address. */
static void bottom(void)
{
	int other = me ^ 1;

	begin("MPI_BOTTOM");
	struct buffer *a = take(400, ANY), *b = take_of(HOST, 100, ANY), *c = take(64, ANY);

	if (other < ranks)
		SIDES {
			int lens[] = { 10, 20, 7 };
			MPI_Aint at[3];
			MPI_Datatype of[] = { MPI_INT, MPI_CHAR, MPI_CHAR }, type;

			OK(MPI_Get_address((char *)P(a) + 40, &at[0]));
			OK(MPI_Get_address((char *)P(b) + 5, &at[1]));
			OK(MPI_Get_address((char *)P(c) + 50, &at[2]));
			OK(MPI_Type_create_struct(3, lens, at, of, &type));
			OK(MPI_Type_commit(&type));
			if (me % 2) {
				OK(MPI_Send(MPI_BOTTOM, 1, type, other, 3, MPI_COMM_WORLD));
				OK(MPI_Recv(MPI_BOTTOM, 1, type, other, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
			} else {
				MPI_Request q;
				char packed[67];

				OK(MPI_Recv(packed, 67, MPI_BYTE, other, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
				OK(MPI_Isend(MPI_BOTTOM, 1, type, other, 3, MPI_COMM_WORLD, &q));
				OK(MPI_Wait(&q, MPI_STATUS_IGNORE));
			}
			OK(MPI_Type_free(&type));
		}
	end();
}

/* One buffer of a device from one end to the other of many messages: parts of it are sent and received at once. */
static void parts(void)
{
	begin("parts of one buffer");
	struct buffer *b = take(64 * 1000, ANY);
	int other = me ^ 1;

	if (other < ranks)
		SIDES {
			MPI_Request q[64];

			for (int i = 0; i < 64; i++) {
				char *at = (char *)P(b) + 1000 * i;

				if ((i + me) % 2)
					OK(MPI_Isend(at, 1000, MPI_BYTE, other, i, MPI_COMM_WORLD, &q[i]));
				else
					OK(MPI_Irecv(at, 1000, MPI_BYTE, other, i, MPI_COMM_WORLD, &q[i]));
			}
			OK(MPI_Waitall(64, q, MPI_STATUSES_IGNORE));
			for (int i = 0; i < 64; i++)
				has_first(b, side, 1000 * (size_t)i, 1000, (i + me) % 2 ? me : other, 0, 1000 * (size_t)i);
		}
	end();
}

int main(int argc, char **argv)
{
	static const struct subject all[] = {
		{ "ways", ways }, { "sendrecv", sendrecv }, { "pairs", pairs }, { "bottom", bottom }, { "parts", parts },
	};

	return run_subjects("p2p", argc, argv, all, COUNT(all), MPI_THREAD_SINGLE);
}
