/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Programs that use an endpoint otherwise than it is meant, and ends at awkward moments: part of streams.cc. */
#include <sys/prctl.h>
#include <sys/resource.h>

/* The blob of the peer; it does not connect. */
static size_t swap_blobs(strait_stream *s, char (&theirs)[16384])
{
	char mine[16384];
	size_t len = sizeof mine;
	OK(strait_stream_blob(s, mine, &len));
	CHECK(send(sock, &len, sizeof len, 0) == sizeof len && send(sock, mine, len, 0) == (ssize_t)len);
	CHECK(recv(sock, &len, sizeof len, MSG_WAITALL) == sizeof len && len <= sizeof theirs);
	CHECK(recv(sock, theirs, len, MSG_WAITALL) == (ssize_t)len);
	return len;
}

static strait_stream *with_key(const char *key, uint64_t timeout_ns)
{
	strait_stream_options options = {};
	strait_stream *s = nullptr;
	options.size = sizeof options;
	options.flags = STRAIT_STREAM_BY_AGENT;
	options.key = key;
	options.timeout_ns = timeout_ns;
	OK(strait_stream_open(&options, &s));
	return s;
}

/* Fails for the peer, too, and stays failed. */
static void fails(strait_stream *s, int code)
{
	for (const double begin = now(); failed(s).code == 0; usleep(100))
		CHECK(now() - begin < limit_s);
	CHECK(failed(s).code == code);
}

/* One list by a stream and the CPU; nodes and registrations that cannot be. */
static void edges_of_calls(gpu &g, bool leads)
{
	strait_stream_list *l = nullptr;
	strait_stream *s = open_endpoint(0, 4000000000);
	char theirs[16384];
	const size_t len = swap_blobs(s, theirs);
	uint32_t region = 0;
	REFUSED(EPERM, strait_stream_register(s, (void *)g.in, size, &region));
	REFUSED(EINVAL, strait_stream_register(s, (void *)g.in, size, nullptr));
	OK(strait_stream_connect(s, theirs, len));
	REFUSED(EPERM, strait_stream_connect(s, theirs, len));
	g.clear();
	/* A length that no message has is refused before it is made into operations. */
	REFUSED(EINVAL, strait_stream_send(s, g.stream, g.at(g.out, 0), (size_t)1 << 46));
	REFUSED(EINVAL, strait_stream_receive(s, g.stream, g.at(g.in, 0), (size_t)1 << 62));
	OK(strait_stream_list_open(s, SIZE_MAX, &l));
	REFUSED(EINVAL, strait_stream_list_send(l, g.at(g.out, 0), (size_t)1 << 46));
	OK(strait_stream_list_close(l));
	OK(strait_stream_list_open(s, 2, &l));
	if (leads) {
		void *last = nullptr;
		g.make(0);
		OK(strait_stream_list_send(l, g.at(g.out, 0), size));
		REFUSED(EINVAL, strait_stream_list_add_to_graph(l, l, (void **)l, SIZE_MAX / 2, &last));
		together();
		OK(strait_stream_list_run(l, g.stream));
		/* A signal alone takes no registration. */
		strait_stream_transfer t = {};
		t.size = sizeof t;
		t.region = 9;
		t.signal = 3;
		OK(strait_stream_put(s, g.stream, &t));
	} else {
		OK(strait_stream_list_receive(l, g.at(g.in, 0), size));
		OK(strait_stream_list_run(l, g.stream));
		REFUSED(EBUSY, strait_stream_list_run_on_cpu(l));
		together();
		OK(strait_stream_wait(s, g.stream, 3));
	}
	g.end_of_stream();
	CHECK(leads || g.words(g.in, size)[1] == g.words(g.in, size)[0] + 1);
	OK(strait_stream_list_close(l));
	CHECK(failed(s).code == 0);
	together();
	OK(strait_stream_close(s));
}

/* Messages that end elsewhere than their receives, where a slot ends: slots that one block of the kernel copies, and several. */
static void edges_of_slots(gpu &g, bool leads, size_t slot)
{
	dptr big = 0;
	cu("cuMemAlloc_v2", &big, 3 * slot);
	for (unsigned by_cpu = 0; by_cpu < 2; by_cpu++) {
		strait_stream *s = open_endpoint(0, 0, 4, slot);
		strait_stream_list *l = nullptr;
		meet(s);
		cu("cuMemsetD8_v2", big, (unsigned char)(leads ? 0x5a : 0xee), 3 * slot);
		cu("cuCtxSynchronize");
		OK(strait_stream_list_open(s, 4, &l));
		if (leads) {
			OK(strait_stream_list_send(l, (void *)big, 2 * slot));
			OK(strait_stream_list_send(l, (void *)big, slot));
		} else {
			OK(strait_stream_list_receive(l, (void *)big, slot));
			OK(strait_stream_list_receive(l, (void *)(big + slot), 2 * slot));
		}
		/* The first slot's message goes on, and the receive does not. */
		if (by_cpu)
			strait_stream_list_run_on_cpu(l);
		else
			OK(strait_stream_list_run(l, g.stream));
		g.end_of_stream();
		fails(s, EMSGSIZE);
		CHECK(leads || g.untouched(big, 3 * slot));
		OK(strait_stream_list_close(l));
		together();
		OK(strait_stream_close(s));
	}
	cu("cuMemFree_v2", big);
}

/* A connect that fails has ended the endpoint for both; another endpoint's is not taken for the peer's. */
static void edges_of_connect(gpu &g, bool leads)
{
	char theirs[16384];
	strait_stream *s = open_endpoint(0, 300000000);
	size_t len = swap_blobs(s, theirs);
	if (leads) {
		REFUSED(ETIMEDOUT, strait_stream_connect(s, theirs, len));
		REFUSED(EPERM, strait_stream_connect(s, theirs, len));
		together();
		together();
	} else {
		together();
		/* An agent may bring the failure behind the choice of slots. */
		CHECK(strait_stream_connect(s, theirs, len) == -ETIMEDOUT || by_agent);
		fails(s, ETIMEDOUT);
		CHECK(strait_stream_send(s, g.stream, g.at(g.out, 0), size) < 0);
		together();
	}
	OK(strait_stream_close(s));

	/* It closes meanwhile, or has closed before, and does not connect. */
	for (bool before : {false, true}) {
		together();
		s = open_endpoint(0, 8000000000);
		len = swap_blobs(s, theirs);
		if (leads) {
			usleep(before ? 0 : 300000);
			OK(strait_stream_close(s));
			if (before)
				together();
		} else {
			if (before)
				together();
			/* Of another host's the end of the connection is seen, and not why. */
			const int rc = strait_stream_connect(s, theirs, len);
			CHECK(rc == -EPIPE || (rc == -ECONNRESET && on_hosts()));
			OK(strait_stream_close(s));
		}
		together();
	}

	/* A third endpoint has the blob as well. */
	if (!by_agent) {
		s = open_endpoint(0, 20000000000);
		strait_stream *other = open_endpoint(0, 20000000000);
		len = swap_blobs(s, theirs);
		char again[16384];
		swap_blobs(other, again);
		if (leads) {
			OK(strait_stream_connect(s, theirs, len));
		} else {
			OK(strait_stream_connect(s, theirs, len));
			REFUSED(EINVAL, strait_stream_connect(other, theirs, len));
		}
		g.clear();
		together();
		if (leads) {
			g.make(0);
			OK(strait_stream_send(s, g.stream, g.at(g.out, 0), size));
		} else {
			OK(strait_stream_receive(s, g.stream, g.at(g.in, 0), size));
		}
		g.end_of_stream();
		CHECK(failed(s).code == 0 && (leads || !g.untouched(g.in, 4)));
		together();
		OK(strait_stream_close(other));
		OK(strait_stream_close(s));
	}
}

/* Too few descriptors and threads for a connect. */
static void edges_of_limits(gpu &g, bool leads)
{
	char theirs[16384];
	rlimit all = {}, few = {};
	strait_stream *s = open_endpoint(0, 1000000000);
	size_t len = swap_blobs(s, theirs);
	if (leads && !by_agent) {
		CHECK(getrlimit(RLIMIT_NOFILE, &all) == 0);
		few = all;
		few.rlim_cur = 3;
		CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
		const int code = strait_stream_connect(s, theirs, len);
		CHECK(setrlimit(RLIMIT_NOFILE, &all) == 0);
		CHECK(code < 0 && code != -EHOSTUNREACH);
		strait_stream *none = nullptr;
		CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
		const int opened = strait_stream_open(nullptr, &none);
		CHECK(setrlimit(RLIMIT_NOFILE, &all) == 0);
		CHECK(opened == -EMFILE);
	}
	together();
	OK(strait_stream_close(s));
	/* No thread for the watchdog: there is no peer then, and no wait that nothing ends. */
	fflush(stdout);
	if (geteuid() == 0 && !by_agent && leads) {
		int status = 0;
		const pid_t child = fork();
		if (child == 0) {
			CHECK(setgid(65534) == 0 && setuid(65534) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0);
			int pair[2];
			CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
			const pid_t peer = fork();
			sock = pair[peer == 0];
			strait_stream *one = open_endpoint(0, 500000000);
			len = swap_blobs(one, theirs);
			if (peer == 0) {
				CHECK(strait_stream_connect(one, theirs, len) < 0);
				_exit(0);
			}
			rlimit none = {1, 1};
			CHECK(setrlimit(RLIMIT_NPROC, &none) == 0);
			REFUSED(EAGAIN, strait_stream_connect(one, theirs, len));
			strait_stream_list *l = nullptr;
			REFUSED(EPERM, strait_stream_list_open(one, 1, &l));
			CHECK(waitpid(peer, &status, 0) == peer);
			_exit(status != 0);
		}
		CHECK(waitpid(child, &status, 0) == child && status == 0);
	}
	(void)g;
	together();
}

/* A peer whose process has ended before it connects; the time limit is not waited for. */
static void edges_of_ends()
{
	char theirs[16384];
	size_t len = sizeof theirs;
	int to[2], status = 0;
	CHECK(pipe(to) == 0);
	fflush(stdout);
	const pid_t child = fork();
	if (child == 0) {
		OK(strait_stream_blob(open_endpoint(), theirs, &len));
		CHECK(write(to[1], theirs, len) == (ssize_t)len);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	const ssize_t came = read(to[0], theirs, sizeof theirs);
	close(to[0]);
	close(to[1]);
	strait_stream *s = open_endpoint(0, 60000000000);
	REFUSED(ECONNRESET, strait_stream_connect(s, theirs, (size_t)came));
	OK(strait_stream_close(s));
}

/* Both processes are stopped for longer than the time limit while one waits, and then go on. */
static void edges_of_stops(gpu &g, bool leads)
{
	strait_stream *s = open_endpoint(0, 2000000000);
	meet(s);
	g.clear();
	if (!leads)
		OK(strait_stream_receive(s, g.stream, g.at(g.in, 0), size));
	together();
	if (leads) {
		const pid_t both[] = {getpid(), other_process};
		int status = 0;
		fflush(stdout);
		const pid_t child = fork();
		if (child == 0) {
			/* The watchdog has seen the wait by then. */
			usleep(100000);
			for (pid_t one : both)
				kill(one, SIGSTOP);
			usleep(2500000);
			for (pid_t one : both)
				kill(one, SIGCONT);
			_exit(0);
		}
		CHECK(waitpid(child, &status, 0) == child && status == 0);
		g.make(0);
		OK(strait_stream_send(s, g.stream, g.at(g.out, 0), size));
	}
	g.end_of_stream();
	CHECK(failed(s).code == 0 && (leads || !g.untouched(g.in, size)));
	together();
	OK(strait_stream_close(s));
}

/* Keys that differ, and one that is none; a close directly behind what was sent. */
static void edges_of_agents(gpu &g, bool leads)
{
	char theirs[16384];
	strait_stream_options empty = {};
	strait_stream *s = nullptr;
	empty.size = sizeof empty;
	empty.key = "";
	REFUSED(EINVAL, strait_stream_open(&empty, &s));
	s = with_key(leads ? "one" : "two", 2000000000);
	size_t len = swap_blobs(s, theirs);
	REFUSED(EACCES, strait_stream_connect(s, theirs, len));
	together();
	OK(strait_stream_close(s));
	for (unsigned round = 0; round < 60; round++) {
		static uint32_t out[4 * threads], in[4 * threads];
		strait_stream_list *l = nullptr;
		s = open_endpoint(0, 20000000000);
		meet(s);
		OK(strait_stream_list_open(s, 4, &l));
		for (unsigned n = 0; n < 4; n++)
			OK(leads ? strait_stream_list_send(l, out + n * threads, size)
				 : strait_stream_list_receive(l, in + n * threads, size));
		for (uint32_t &word : out)
			word = round + 1;
		memset(in, 0, sizeof in);
		/* The receiver has waited for longer than a peer's last words are waited for. */
		if (leads)
			usleep(15000 + round * 50);
		OK(strait_stream_list_run_on_cpu(l));
		OK(strait_stream_list_close(l));
		for (uint32_t word : in)
			CHECK(leads || word == round + 1);
		OK(strait_stream_close(s));
		together();
	}
	(void)g;
}

static void edges(bool leads)
{
	gpu g;
	g.open();
	edges_of_calls(g, leads);
	for (size_t slot : {65536, 262144})
		edges_of_slots(g, leads, slot);
	edges_of_connect(g, leads);
	if (leads && !on_hosts())
		edges_of_ends();
	edges_of_limits(g, leads);
	edges_of_stops(g, leads);
	if (by_agent)
		edges_of_agents(g, leads);
	if (leads)
		printf("ok streams%s edges\n", by_agent ? " agent" : "");
}

/* Processes of two users, neither of which is root: refused, with what to do, unless both have a key and reach each other by TCP. */
static void users(bool leads)
{
	static uint32_t out[threads], in[threads];
	char theirs[16384];
	const uid_t user = leads ? 65533 : 65534;
	if (geteuid() != 0) {
		if (leads)
			printf("-  streams users: takes root\n");
		return;
	}
	CHECK(setgid(user) == 0 && setuid(user) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0);
	for (const char *key : {(const char *)nullptr, "a key of both"}) {
		strait_stream_options options = {};
		strait_stream *s = nullptr;
		options.size = sizeof options;
		options.key = key;
		OK(strait_stream_open(&options, &s));
		const size_t len = swap_blobs(s, theirs);
		REFUSED(EACCES, strait_stream_connect(s, theirs, len));
		CHECK(strstr(strait_stream_error(), "another user") && strstr(strait_stream_error(), "FI_STRAIT_LINKS=tcp"));
		together();
		OK(strait_stream_close(s));
	}

	CHECK(setenv("FI_STRAIT_LINKS", "tcp", 1) == 0);
	for (bool same : {false, true}) {
		strait_stream_options options = {};
		strait_stream_path path = {};
		strait_stream *s = nullptr;
		strait_stream_list *l = nullptr;
		options.size = sizeof options;
		options.key = same || leads ? "a key of both" : "a key of one";
		OK(strait_stream_open(&options, &s));
		const size_t len = swap_blobs(s, theirs);
		if (!same) {
			REFUSED(EACCES, strait_stream_connect(s, theirs, len));
			together();
			OK(strait_stream_close(s));
			continue;
		}
		OK(strait_stream_connect(s, theirs, len));
		path.size = sizeof path;
		OK(strait_stream_query(s, &path));
		CHECK(path.path == STRAIT_STREAM_AGENT && strstr(path.why, "another user"));
		for (unsigned i = 0; i < threads; i++)
			out[i] = i + user;
		OK(strait_stream_list_open(s, 2, &l));
		OK(strait_stream_list_send(l, out, sizeof out));
		OK(strait_stream_list_receive(l, in, sizeof in));
		OK(strait_stream_list_run_on_cpu(l));
		for (unsigned i = 0; i < threads; i++)
			CHECK(in[i] == i + (leads ? 65534 : 65533));
		OK(strait_stream_list_close(l));
		together();
		OK(strait_stream_close(s));
	}
	if (leads)
		printf("ok streams users\n");
}

/* The driver refuses a launch in the middle of a list (CUDA_STAND_IN_FAIL, in one process of the two). While the stream is not
 * there, all is busy; once it is, all can be closed. */
static void cut(bool leads)
{
	if (leads)
		setenv("CUDA_STAND_IN_FAIL", "cuLaunchKernel@2=2", 1);
	gpu g;
	g.open();
	void *host = nullptr;
	cu("cuMemHostAlloc", &host, (size_t)4096, 0u);
	strait_stream *s = open_endpoint();
	strait_stream_list *l = nullptr;
	meet(s);
	together();
	if (leads) {
		OK(strait_stream_list_open(s, 2, &l));
		OK(strait_stream_list_send(l, g.at(g.out, 0), size));
		OK(strait_stream_list_send(l, g.at(g.out, 1), size));
		uint64_t *word = (uint64_t *)host;
		*word = 0;
		cu("cuStreamWaitValue64_v2", g.stream, (dptr)word, (uint64_t)1, 0u);
		REFUSED(ENOMEM, strait_stream_list_run(l, g.stream));
		CHECK(failed(s).code == ENOMEM);
		REFUSED(EBUSY, strait_stream_list_close(l));
		__atomic_store_n(word, (uint64_t)1, __ATOMIC_SEQ_CST);
		g.end_of_stream();
		OK(strait_stream_list_close(l));
	} else {
		fails(s, ENOMEM);
	}
	together();
	OK(strait_stream_close(s));
	if (leads)
		printf("ok streams%s cut\n", by_agent ? " agent" : "");
}
