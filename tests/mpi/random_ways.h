/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Of random.c: the ways in which a rank receives a round's messages. */

/* Receives of the messages that this rank is to get, as `want` has them. */
static void plan_receive(struct message *m, int blocking)
{
	enum want want = wants[rank][m->comm % PER_GROUP];
	int src = want == SPECIFIC || want == ANY_TAG_OF ? m->src : -1, tag = want == SPECIFIC || want == ANY_FROM ? m->tag : -1;
	int cap = longest;

	if (want == SPECIFIC) {
		/* The first of its like is the one that it gets. */
		m = first(m->comm, m->src, m->tag, 0);
		m->taken = 1;
		cap = draw(&own, 3) ? m->len : m->len + draw(&own, 200);
		if (m->len > 0 && !no_trunc && !draw(&own, 20))
			cap = draw(&own, 2) ? m->len - 1 : draw(&own, m->len);
	}
	post(new_receive(m->comm, src, tag, cap), blocking);
}

static int *my_messages(int *n)
{
	int *all = malloc(sizeof(int) * (size_t)(count + 1));

	*n = 0;
	for (int i = 0; i < count; i++)
		if (messages[i].dst == rank)
			all[(*n)++] = i;
	for (int i = *n - 1; i > 0 && !in_order; i--) {
		int k = draw(&own, i + 1), t = all[i];

		all[i] = all[k], all[k] = t;
	}
	return all;
}

/* Ends all receives from `from` on. */
static void end_receives(int from)
{
	int n = received - from, way = draw(&own, 5), left = n, which, some, flag, ret;
	MPI_Request *reqs = malloc(sizeof *reqs * (size_t)(n + 1));
	MPI_Status *sts = malloc(sizeof *sts * (size_t)(n + 1));
	int *index = malloc(sizeof(int) * (size_t)(n + 1));

	stage = "end of receives";
	for (int i = 0; i < n; i++) {
		reqs[i] = receives[from + i].req;
		if (receives[from + i].tag >= 0 && receives[from + i].src >= 0 && !no_trunc)
			way = 0; /* may be cut, and other calls do not always report of which receive */
	}
	switch (way) {
	case 0:
		for (int i = n - 1; i >= 0; i--) {
			ret = MPI_Wait(&reqs[i], &sts[i]);
			note(&receives[from + i], &sts[i], ret);
		}
		break;
	case 1:
		for (; left; left--) {
			which = MPI_UNDEFINED;
			ret = MPI_Waitany(n, reqs, &which, sts);
			CHECK(which >= 0 && which < n, "waitany: %d", which);
			note(&receives[from + which], sts, ret);
		}
		break;
	case 2:
		while (left) {
			OK(draw(&own, 2) ? MPI_Waitsome(n, reqs, &some, index, sts) : MPI_Testsome(n, reqs, &some, index, sts));
			CHECK(some >= 0 && some <= left, "waitsome: %d", some);
			for (int i = 0; i < some; i++)
				note(&receives[from + index[i]], &sts[i], MPI_SUCCESS);
			left -= some;
		}
		break;
	case 3:
		for (flag = 0; !flag;)
			OK(MPI_Testall(n, reqs, &flag, sts));
		for (int i = 0; i < n; i++)
			note(&receives[from + i], &sts[i], MPI_SUCCESS);
		break;
	default:
		OK(MPI_Waitall(n, reqs, sts));
		for (int i = 0; i < n; i++)
			note(&receives[from + i], &sts[i], MPI_SUCCESS);
	}
	free(reqs), free(sts), free(index);
}

static void preposted(void)
{
	int n, *all = my_messages(&n);

	stage = "receives posted before";
	for (int i = 0; i < n; i++)
		plan_receive(&messages[all[i]], 0);
	free(all);
	if (rs_ok)
		OK(MPI_Barrier(MPI_COMM_WORLD));
	send_all();
	if (draw(&own, 2))
		end_sends();
	end_receives(0);
}

static void late(void)
{
	int n, *all = my_messages(&n), window = draw(&own, 3) ? 1 : 1 + draw(&own, 30), blocking = draw(&own, 2);

	if (rs_ok)
		OK(MPI_Barrier(MPI_COMM_WORLD));
	send_all();
	if (!draw(&own, 6))
		usleep(3000);
	stage = "late receives";
	for (int i = 0; i < n;) {
		int from = received;

		for (int k = 0; k < window && i < n; k++, i++)
			plan_receive(&messages[all[i]], blocking);
		if (!blocking)
			end_receives(from);
	}
	free(all);
}

static void probes(void)
{
	int left = 0;

	for (int i = 0; i < count; i++)
		left += messages[i].dst == rank;
	if (rs_ok)
		OK(MPI_Barrier(MPI_COMM_WORLD));
	send_all();
	stage = "probes";
	while (left) {
		struct message *m = NULL;
		struct receive *r;
		MPI_Message msg;
		MPI_Status st;
		int how = draw(&own, 4), src, tag, flag = 1, n, comm, got, skip = draw(&own, left), from;

		if (no_mprobe)
			how &= 2;
		for (int i = 0; i < count && !(m && skip-- <= 0); i++)
			if (messages[i].dst == rank && !messages[i].taken)
				m = &messages[i];
		comm = m->comm;
		src = draw(&own, 2) ? m->src : -1, tag = draw(&own, 2) ? m->tag : -1;
		{
			int s = src < 0 ? MPI_ANY_SOURCE : in_comm(comm, src), t = tag < 0 ? MPI_ANY_TAG : tag;

			if (how == 0)
				OK(MPI_Probe(s, t, comms[comm], &st));
			else if (how == 1)
				OK(MPI_Mprobe(s, t, comms[comm], &msg, &st));
			else if (how == 2)
				OK(MPI_Iprobe(s, t, comms[comm], &flag, &st));
			else
				OK(MPI_Improbe(s, t, comms[comm], &flag, &msg, &st));
		}
		if (!flag)
			continue;
		OK(MPI_Get_elements(&st, MPI_BYTE, &n));
		from = in_comm(comm, st.MPI_SOURCE), got = st.MPI_TAG;
		CHECK((src < 0 || src == from) && (tag < 0 || tag == got), "a probe for %d, tag %d found %d, tag %d", src, tag, from, got);
		m = first(comm, from, tag, 0);
		CHECK(m && m->tag == got && m->len == n, "a probe for %d, tag %d: %d bytes from %d, tag %d; there should be %d bytes, tag %d", src, tag, n, from, got,
		      m ? m->len : -1, m ? m->tag : -1);
		m->taken = 1;
		r = new_receive(comm, from, how % 2 ? tag : got, n + draw(&own, 20));
		if (how % 2) {
			MPI_Datatype type = type_of(r, &n);

			if (draw(&own, 2)) {
				OK(MPI_Mrecv(r->room + GUARD, n, type, &msg, &st));
			} else {
				OK(MPI_Imrecv(r->room + GUARD, n, type, &msg, &r->req));
				OK(MPI_Wait(&r->req, &st));
			}
			if (type != MPI_BYTE)
				OK(MPI_Type_free(&type));
			note(r, &st, MPI_SUCCESS);
		} else {
			post(r, 1);
		}
		left--;
	}
}

/* Receives at random, some of which none may be for: these are cancelled in the end, or before. */
static void chaos(void)
{
	int n, *all = my_messages(&n), got = 0, under_way = 0, turns = 0;

	free(all);
	if (rs_ok)
		OK(MPI_Barrier(MPI_COMM_WORLD));
	send_all();
	stage = "receives that are cancelled";
	while (got < n) {
		/* After a while none but such that fit anything. */
		int wild = ++turns > 200;
		struct receive *r;

		if (under_way < 1 + draw(&own, 20) && got + under_way < n + (wild ? 0 : 3)) {
			struct message *m = &messages[draw(&own, count)];
			int any = wild || !draw(&own, 3), comm = wild ? round_now % GROUPS * PER_GROUP + draw(&own, PER_GROUP) : m->comm;

			post(new_receive(comm, any || draw(&own, 2) ? -1 : m->src, any || draw(&own, 2) ? -1 : m->tag, longest), 0);
			under_way++;
		}
		for (int k = 0; k < received; k++) {
			int flag, ret;
			MPI_Status st;

			r = &receives[k];
			if (r->done)
				continue;
			ret = MPI_Test(&r->req, &flag, &st);
			if (!flag && !draw(&own, wild ? 4 : 40)) {
				OK(MPI_Cancel(&r->req));
				ret = MPI_Wait(&r->req, &st);
				flag = 1;
			}
			if (!flag)
				continue;
			note(r, &st, ret);
			under_way--;
			got += !r->cancelled;
		}
	}
	for (int k = 0; k < received; k++)
		if (!receives[k].done) {
			MPI_Status st;

			OK(MPI_Cancel(&receives[k].req));
			note(&receives[k], &st, MPI_Wait(&receives[k].req, &st));
			CHECK(receives[k].cancelled, "one message more than were sent");
		}
}

static void round_of_messages(void)
{
	received = 0;
	switch (styles[rank]) {
	case PREPOSTED: preposted(); break;
	case LATE: late(); break;
	case PROBES: probes(); break;
	default: chaos();
	}
	end_sends();
	stage = "comparison";
	for (int i = 0; i < received; i++)
		check_receive(&receives[i]);
	for (int i = 0; i < count; i++)
		CHECK(messages[i].dst != rank || messages[i].taken == 2, "message %d of %d bytes from %d did not come", i, messages[i].len, messages[i].src);
}
