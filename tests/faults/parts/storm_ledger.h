/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Which messages of storm.c completed at their sender, and which of them were received.
 *
 * A ledger is of one incarnation of a sender and one of a receiver. The sender notes a message in it when the send has completed
 * without error, the receiver when it has the message. The receiver looks for messages that it should have: all that
 * completed, as long as the sender lives, and when it has closed its endpoint; of a sender that was killed or has executed another
 * program those alone that completed with FI_DELIVERY_COMPLETE.
 */
#undef PART
#define PART 4

/* So long a message may be on its way, or wait for a receive. */
#define LATE 5000000000u

static struct ledger *ledger_of(int sender, uint64_t sgen, int receiver, uint64_t rgen)
{
	struct ledger *all = sh->ledgers[sender][receiver];

	for (int i = 0; i < LEDGERS; i++)
		if (all[i].sgen == sgen && all[i].rgen == rgen)
			return &all[i];
	return NULL;
}

/* One for messages to this incarnation of a peer, in place of the oldest. */
static void open_ledger(int k, uint64_t rgen)
{
	struct ledger *l = &sh->ledgers[me][k][sh->turn[me][k]++ % LEDGERS];

	l->sgen = 0;
	__sync_synchronize();
	*l = (struct ledger){.rgen = rgen, .first = -1};
	__sync_synchronize();
	l->sgen = gen;
}

static void note(volatile uint64_t *bits, uint64_t seq) { bits[seq / 64] |= (uint64_t)1 << seq % 64; }

/* A send has completed without error. */
static void note_sent(int k, uint64_t rgen, uint64_t seq, int delivered)
{
	struct ledger *l = ledger_of(me, gen, k, rgen);

	if (!l || seq >= SEQS)
		return;
	if (delivered)
		note(l->delivered, seq);
	note(l->sent, seq);
	__sync_synchronize();
	if (seq >= l->n)
		l->n = seq + 1;
}

static void note_received(int k, uint64_t sgen, uint64_t seq)
{
	struct ledger *l = ledger_of(k, sgen, me, gen);

	if (l && seq < SEQS)
		note(l->got, seq);
}

/* The endpoint is closed, with success. */
static void close_ledgers(void)
{
	for (int k = 0; k < MOST; k++)
		for (int i = 0; i < LEDGERS; i++)
			if (sh->ledgers[me][k][i].sgen == gen)
				sh->ledgers[me][k][i].closed = 1;
}

/* The first message that should be here and is not, or -1. */
static int64_t missing(const struct ledger *l, int all)
{
	for (uint64_t at = 0, n = l->n; at * 64 < n; at++) {
		uint64_t lacks = (all ? l->sent[at] : l->delivered[at]) & ~l->got[at];

		if (lacks)
			return (int64_t)(at * 64 + (uint64_t)__builtin_ctzll(lacks));
	}
	return -1;
}

static void look_for_lost(void)
{
	uint64_t now = now_ns();

	for (int k = 0; k < procs; k++)
		for (int i = 0; i < LEDGERS; i++) {
			struct ledger *l = &sh->ledgers[k][me][i];
			uint64_t sgen = l->sgen;
			int lives = sgen > sh->slots[k].doomed;
			int64_t first;

			if (!sgen || l->rgen != gen)
				continue;
			first = missing(l, lives || l->closed);
			if (first != l->first) {
				l->first = first;
				l->since = now;
			}
			if (first < 0 || now - l->since < LATE)
				continue;
			/* It may have been used again meanwhile. */
			if (l->sgen == sgen)
				FOUND(lost, "message %ld of %lu from %d.%lu, which %s, %s", first, l->n, k, sgen,
				      lives ? "lives" : l->closed ? "closed its endpoint" : "is gone",
				      l->delivered[first / 64] >> first % 64 & 1 ? "was said to be delivered" : "had completed");
			note(l->got, (uint64_t)first);
		}
}
