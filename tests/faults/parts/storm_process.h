/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A process of storm.c from its start to its end, and the program that it becomes by exec. */
#undef PART
#define PART 3

static void open_all(void)
{
	struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP};
	struct fab_options o = {.threading = FI_THREAD_DOMAIN, .cq_size = 1024, .caps = FAB_CAPS | FI_RMA_EVENT};

	opened = now_ns();
	ordered = !draw(3);
	if (ordered)
		o.order = FI_ORDER_RAW | FI_ORDER_WAR | FI_ORDER_WAW;
	if (progress_auto || !draw(4))
		o.threading = FI_THREAD_SAFE;
	if (progress_auto)
		o.progress = FI_PROGRESS_AUTO;
	gen = sh->slots[me].doomed + 1;
	HERE();
	fab_open(&f, o);
	memset(ARENA(me), CANARY, arena_len);
	lay_out(me);
	for (int k = 0; k < MOST; k++) {
		uint64_t *seen = peers[k].seen;

		peers[k] = (struct peer){.seen = seen ? seen : calloc(1, SEEN / 8)};
		CHECK(peers[k].seen, "memory");
	}
	for (int r = 0; r < REGIONS; r++) {
		OK(fi_cntr_open(f.domain, &attr, &regions[r].cntr, NULL));
		expose(r);
	}
	publish(1);
}

/* Closes all with whatever is under way, and looks at the buffers for a while. */
static void close_all(void)
{
	uint64_t since = now_ns(), until;
	size_t bad;
	int unmap = has(MUNMAP) && !draw(3);

	sh->slots[me].doomed = gen;
	COUNT(closes, 1);
	while (busy_close(&f.ep->fid, since, "the endpoint"))
		fi_cq_read(f.cq, &(struct fi_cq_tagged_entry){0}, 1);
	close_ledgers();
	for (int r = 0; r < REGIONS; r++) {
		struct region *g = &regions[r];

		if (g->state == OPEN || g->state == CLOSING)
			while (busy_close(&g->mr->fid, since, "a region"))
				usleep(100);
		else if (g->state == UNMAPPED)
			map_at(REGION(me, r), REGION_LEN);
		g->state = CLOSED;
		OK(fi_close(&g->cntr->fid));
	}
	{
		struct fid *rest[] = {&f.av->fid, &f.cq->fid, &f.domain->fid, &f.fabric->fid};

		for (int i = 0; i < 4; i++)
			while (busy_close(rest[i], since, "the rest"))
				usleep(100);
	}
	fi_freeinfo(f.info);
	if (unmap) {
		munmap(ARENA(me), arena_len);
		for (int r = 0; r < REGIONS; r++)
			munmap(REGION(me, r), REGION_LEN);
		usleep((useconds_t)draw(20000));
		HERE();
		map_at(ARENA(me), arena_len);
		for (int r = 0; r < REGIONS; r++)
			map_at(REGION(me, r), REGION_LEN);
		return;
	}
	memset(ARENA(me), CANARY, arena_len);
	for (int r = 0; r < REGIONS; r++)
		memset(REGION(me, r), CANARY, REGION_LEN);
	for (until = now_ns() + draw(60000000); now_ns() < until;) {
		usleep(2000);
		HERE();
	}
	bad = not_canary(ARENA(me), arena_len);
	if (bad)
		FOUND(touched, "%zu bytes of buffers after everything was closed", bad);
	for (int r = 0; r < REGIONS; r++)
		if ((bad = not_canary(REGION(me, r), REGION_LEN)))
			FOUND(touched, "%zu bytes of a region after everything was closed", bad);
}

static char exec_fd[16], exec_slot[16], exec_gen[24], exec_seed[24];
static char *exec_argv[] = {"storm", "--canary", exec_fd, exec_slot, exec_gen, exec_seed, NULL};

static void on_exec(int sig)
{
	sigset_t none;

	(void)sig;
	/* Not blocked in the new program. */
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	execv("/proc/self/exe", exec_argv);
	_exit(9);
}

static void on_fork(int sig)
{
	int err = errno;

	(void)sig;
	/* Not the library's fork: nothing of ours is to run in it. */
	if (!syscall(SYS_fork)) {
		struct timespec t = {0, 300000000};

		nanosleep(&t, NULL);
		_exit(0);
	}
	errno = err;
}

/* Its peers are not to blame. */
static void on_crash(int sig)
{
	sh->slots[me].doomed = gen;
	signal(sig, SIG_DFL);
	raise(sig);
}

/* The processes are spread over the hosts. */
static void enter_host(void)
{
	int fd = host_count ? host_fds[me % host_count] : -1;

	if (fd >= 0)
		CHECK(!setns(fd, CLONE_NEWNET), "setns: %s", strerror(errno));
	for (int i = 0; i < host_count; i++)
		close(host_fds[i]);
}

static uint64_t next_close(void)
{
	return now_ns() + (me ? draw(1000000000) : 10000000000 + draw(10000000000));
}

static void process(int slot)
{
	static char role[24];
	struct sigaction act = {.sa_handler = on_exec};
	uint64_t looked = 0, closing;

	me = slot;
	enter_host();
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	snprintf(role, sizeof role, "process %d", me);
	fab_role = role;
	rnd = mix(seed, (uint64_t)me, sh->slots[me].doomed);
	snprintf(exec_fd, sizeof exec_fd, "%d", sh_fd);
	snprintf(exec_slot, sizeof exec_slot, "%d", me);
	snprintf(exec_gen, sizeof exec_gen, "%lu", sh->slots[me].doomed + 1);
	snprintf(exec_seed, sizeof exec_seed, "%lu", seed);
	arena_len = lay_out(me);
	map_at(ARENA(me), arena_len);
	for (int r = 0; r < REGIONS; r++)
		map_at(REGION(me, r), REGION_LEN);
	signal(SIGCHLD, SIG_IGN);
	sigaction(SIGUSR1, &act, NULL);
	signal(SIGSEGV, on_crash);
	signal(SIGBUS, on_crash);
	signal(SIGABRT, on_crash);
	act.sa_handler = on_fork;
	act.sa_flags = draw(2) ? SA_RESTART : 0;
	sigaction(SIGUSR2, &act, NULL);
	open_all();
	closing = next_close();
	while (!sh->stop) {
		int n = 0;

		for (int i = 0; i < SLOTS; i++)
			if (!recvs[i].busy)
				recv_one(&recvs[i]);
		for (int i = 0; i < 4; i++) {
			int k = (int)draw((uint64_t)procs);

			if (k == me)
				continue;
			meet(k);
			if (!peers[k].gen || peers[k].gen <= sh->slots[k].doomed)
				continue; /* posted to what is gone all the same, now and then */
			send_one(k);
			if (has(RMA))
				rma_one(k);
		}
		for (int i = 0; i < 4; i++)
			n += poll_once();
		for (int r = 0; r < REGIONS; r++)
			turn_region(r);
		if (has(CANCEL) && !draw(20))
			cancel_one();
		if (!n)
			sched_yield();
		if (now_ns() - looked > 100000000) {
			looked = now_ns();
			look_for_hangs();
			look_for_lost();
		}
		if (has(CLOSE) && now_ns() > closing) {
			close_all();
			if (me && draw(2))
				exit(0);
			snprintf(exec_gen, sizeof exec_gen, "%lu", sh->slots[me].doomed + 1);
			open_all();
			closing = next_close();
		}
	}
	close_all();
	exit(0);
}

/* What a process becomes by exec. */
static int canary_program(char **argv)
{
	unsigned char *places[1 + REGIONS];
	size_t lens[1 + REGIONS], bad;
	uint64_t until;

	sh = mmap(NULL, sizeof *sh, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(argv[2]), 0);
	CHECK(sh != MAP_FAILED, "mmap: %s", strerror(errno));
	me = atoi(argv[3]);
	gen = strtoull(argv[4], NULL, 0);
	seed = strtoull(argv[5], NULL, 0);
	rnd = mix(seed, gen, 77);
	places[0] = ARENA(me);
	lens[0] = lay_out(me);
	for (int r = 0; r < REGIONS; r++) {
		places[1 + r] = REGION(me, r);
		lens[1 + r] = REGION_LEN;
	}
	for (int i = 0; i < 1 + REGIONS; i++) {
		map_at(places[i], lens[i]);
		memset(places[i], CANARY, lens[i]);
	}
	for (until = now_ns() + 10000000 + draw(90000000); now_ns() < until;) {
		usleep(2000);
		HERE();
	}
	for (int i = 0; i < 1 + REGIONS; i++)
		if ((bad = not_canary(places[i], lens[i])))
			FOUND(foreign, "%zu bytes were written in another program", bad);
	return 0;
}
