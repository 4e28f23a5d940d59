/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Everything at once, at random microseconds.
 *
 *   storm SECONDS [SEED] [PROCESSES] [auto] [without=WORD,WORD...] [host=NAME...]
 *
 * Processes talk all to all: messages of every protocol, reads, writes (plain, fenced, ordered, to regions
 * with counters) and atomics.  Meanwhile each of them
 *
 *   kill     is killed
 *   exec     becomes another program in the middle of whatever it does, which has canaries where the
 *            first had its buffers
 *   stop     is stopped and continued
 *   fork     forks a child that holds copies of all descriptors for a while
 *   close    closes everything with operations under way, fills all its buffers with canaries or unmaps
 *            them, and begins anew
 *   cancel   cancels receives and sends
 *   dereg    closes a region and fills it with canaries at once, or unmaps it
 *
 * The first of them is never killed and seldom closes, so that an operation which does not end is noticed.
 * `without=` leaves some of these out, also: directed (receives from one peer), rma, atomic, munmap. `host=` names a network
 * namespace of ip-netns(8): with several of them the processes are spread over these.
 *
 * Messages have to have arrived. Counted, and each has to be zero at the end:
 *
 *   wrong     a completion without error whose bytes are not those of that message or region, a message that
 *             came twice
 *   touched   canaries written: memory whose operation had ended, was closed, cancelled or deregistered
 *   foreign   bytes written in another program
 *   hangs     an operation or a call that did not end within 8 s
 *   blamed    an operation that failed although its peer and the region lived on
 *   lost      a message that did not arrive at a process that lives, though its send had completed: see storm_ledger.h
 *   crashes   a process that ended otherwise
 *
 * The numbers drawn depend on the seed alone; when they meet does not.
 */
#include "parts/storm_work.h"
#include "parts/storm_ledger.h"
#include "parts/storm_moves.h"
#include "parts/storm_process.h"

#undef PART
#define PART 0

/*
 * The driver.
 */
static pid_t pids[MOST];
static uint64_t stopped[MOST], started[MOST];

static void start(int k)
{
	fflush(NULL);
	started[k] = now_ns();
	stopped[k] = 0;
	sh->slots[k].beat = started[k];
	pids[k] = fork();
	CHECK(pids[k] >= 0, "fork: %s", strerror(errno));
	if (!pids[k])
		process(k);
}

/* Takes in processes that have ended; returns how many run. */
static int reap(int restart)
{
	int status, n = 0;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		for (int k = 0; k < procs; k++) {
			if (pids[k] != pid)
				continue;
			pids[k] = 0;
			if (status && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)) {
				me = k, gen = sh->slots[k].doomed + 1;
				FOUND(crashes, "status 0x%x, last at %s:%d", status, parts[sh->slots[k].where / 10000],
				      sh->slots[k].where % 10000);
			}
			if (sh->slots[k].gen > sh->slots[k].doomed)
				sh->slots[k].doomed = sh->slots[k].gen;
			if (restart)
				start(k);
		}
	for (int k = 0; k < procs; k++)
		n += pids[k] != 0;
	return n;
}

/* Prints what the threads of a process do: their states, system calls, nanoseconds on a processor and in wait for one, and stacks. */
static void describe(pid_t pid)
{
	char line[400];

	snprintf(line, sizeof line,
		 "for t in /proc/%d/task/*; do echo \"$t: $(grep State $t/status), in $(cat $t/wchan), system call $(cat $t/syscall), "
		 "ran and waited $(cat $t/schedstat)\"; done >&2; command -v gdb >/dev/null && "
		 "timeout 60 gdb -p %d -batch -ex 'set print frame-arguments none' -ex 'thread apply all bt 12' 2>/dev/null </dev/null | "
		 "grep -E '^(Thread|#)' | cut -c 1-160 >&2",
		 (int)pid, (int)pid);
	(void)!system(line);
}

/* Nanoseconds that the threads of a process have waited for a processor. */
static uint64_t waited(pid_t pid)
{
	char path[300];
	struct dirent *at;
	uint64_t all = 0;
	DIR *dir;

	snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
	dir = opendir(path);
	while (dir && (at = readdir(dir))) {
		uint64_t ran, delay;
		FILE *file;

		snprintf(path, sizeof path, "/proc/%d/task/%s/schedstat", (int)pid, at->d_name);
		file = at->d_name[0] == '.' ? NULL : fopen(path, "r");
		if (file && fscanf(file, "%lu %lu", &ran, &delay) == 2)
			all += delay;
		if (file)
			fclose(file);
	}
	if (dir)
		closedir(dir);
	return all;
}

/* Whether a call has taken too long. Time in which other programs had the processors is not the call's, within bounds. */
static int hangs(int k, uint64_t now)
{
	static uint64_t beats[MOST], delays[MOST];
	uint64_t beat = sh->slots[k].beat, took = now > beat ? now - beat : 0, delay;

	if (beats[k] != beat) {
		beats[k] = beat;
		delays[k] = waited(pids[k]);
	}
	if (took <= WATCHDOG + 1000000000u)
		return 0;
	delay = waited(pids[k]) - delays[k];
	return took > 4 * (uint64_t)WATCHDOG || took > delay + WATCHDOG;
}

/* Continues processes that were stopped for long enough, and finds those that make no progress. */
static void tend(int all)
{
	static uint64_t last;
	uint64_t now = now_ns(), slept = last ? now - last : 0;

	last = now;
	/* All of the machine was paused, or this process did not run: that is no call's time. */
	if (slept > 1000000000u) {
		fprintf(stderr, "the driver did not run for %lu ms\n", slept / 1000000);
		for (int k = 0; k < procs; k++)
			sh->slots[k].beat = now;
	}
	for (int k = 0; k < procs; k++) {
		if (!pids[k])
			continue;
		if (stopped[k] && (all || now > stopped[k])) {
			kill(pids[k], SIGCONT);
			stopped[k] = 0;
			sh->slots[k].beat = now;
		}
		if (!stopped[k] && hangs(k, now)) {
			me = k, gen = sh->slots[k].doomed + 1;
			FOUND(hangs, "in a call of %s:%d for %lu s", parts[sh->slots[k].where / 10000],
			      sh->slots[k].where % 10000, (now - sh->slots[k].beat) / 1000000000);
			describe(pids[k]);
			sh->slots[k].doomed = sh->slots[k].gen;
			kill(pids[k], SIGKILL);
			sh->slots[k].beat = now;
		}
	}
}

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 10;
	uint64_t end, bad;

	if (argc > 5 && !strcmp(argv[1], "--canary"))
		return canary_program(argv);
	seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
	for (int i = 3; i < argc; i++) {
		if (!strcmp(argv[i], "auto"))
			progress_auto = 1;
		else if (!strncmp(argv[i], "without=", 8))
			for (unsigned d = 0; d < sizeof deeds / sizeof *deeds; d++)
				without |= strstr(argv[i] + 8, deeds[d]) ? 1u << d : 0;
		else if (!strncmp(argv[i], "host=", 5)) {
			char path[80];

			snprintf(path, sizeof path, "/run/netns/%s", argv[i] + 5);
			CHECK(host_count < MOST, "up to %d hosts", MOST);
			host_fds[host_count] = open(path, O_RDONLY | O_CLOEXEC);
			CHECK(host_fds[host_count++] >= 0, "%s: %s", path, strerror(errno));
		} else
			procs = atoi(argv[i]);
	}
	CHECK(procs >= 2 && procs <= MOST, "2 to %d processes", MOST);
	rnd = mix(seed, 99, 99);
	sh_fd = memfd_create("storm", 0);
	CHECK(sh_fd >= 0 && !ftruncate(sh_fd, sizeof *sh), "memfd: %s", strerror(errno));
	sh = mmap(NULL, sizeof *sh, PROT_READ | PROT_WRITE, MAP_SHARED, sh_fd, 0);
	CHECK(sh != MAP_FAILED, "mmap: %s", strerror(errno));
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	for (int k = 0; k < procs; k++)
		start(k);
	end = now_ns() + (uint64_t)(seconds * 1e9);
	while (now_ns() < end) {
		int k = (int)draw((uint64_t)procs), what = (int)draw(100);

		usleep((useconds_t)draw(40000));
		reap(1);
		tend(0);
		/* Time to open first, mostly. */
		if (!pids[k] || now_ns() - started[k] < 20000000 + draw(200000000))
			continue;
		if (what < 20 && has(KILL) && k) {
			sh->slots[k].doomed = sh->slots[k].gen;
			COUNT(kills, 1);
			kill(pids[k], SIGKILL);
			started[k] = now_ns();
		} else if (what < 40 && has(EXEC) && k) {
			if (stopped[k] || sh->slots[k].gen <= sh->slots[k].doomed)
				continue;
			sh->slots[k].doomed = sh->slots[k].gen;
			COUNT(execs, 1);
			kill(pids[k], SIGUSR1);
			started[k] = now_ns();
		} else if (what < 75 && has(STOP)) {
			if (stopped[k])
				continue;
			COUNT(stops, 1);
			kill(pids[k], SIGSTOP);
			stopped[k] = now_ns() + draw(draw(3) ? 5000000 : 200000000);
		} else if (what < 90 && has(FORK)) {
			if (sh->slots[k].gen <= sh->slots[k].doomed)
				continue;
			COUNT(forks, 1);
			kill(pids[k], SIGUSR2);
		}
	}
	sh->stop = 1;
	for (end = now_ns() + 5 * (uint64_t)WATCHDOG; reap(0);) {
		tend(1);
		usleep(1000);
		if (now_ns() < end)
			continue;
		for (int k = 0; k < procs; k++)
			if (pids[k]) {
				FOUND(hangs, "process %d does not end", k);
				kill(pids[k], SIGKILL);
			}
		end = now_ns() + WATCHDOG;
	}
	printf("storm: seed %lu, %d processes, %.0f s: %lu messages, %lu MiB, %lu writes, %lu reads, %lu atomics; %lu operations failed\n", seed,
	       procs, seconds, sh->messages, sh->bytes >> 20, sh->writes, sh->reads, sh->atomics, sh->failed);
	printf("%lu kills, %lu execs, %lu stops, %lu forks, %lu closes, %lu cancels, %lu regions closed; busy %lu times\n", sh->kills, sh->execs,
	       sh->stops, sh->forks, sh->closes, sh->cancels, sh->deregs, sh->busy);
	for (int e = 0; e < 512; e++)
		if (sh->errs[e])
			printf("  %lu: %s\n", sh->errs[e], fi_strerror(e));
	printf("wrong %lu, touched %lu, foreign %lu, hangs %lu, blamed %lu, lost %lu, crashes %lu\n", sh->wrong, sh->touched, sh->foreign, sh->hangs,
	       sh->blamed, sh->lost, sh->crashes);
	bad = sh->wrong + sh->touched + sh->foreign + sh->hangs + sh->blamed + sh->lost + sh->crashes;
	if (!sh->messages) {
		puts("no message arrived");
		bad = 1;
	}
	if (bad)
		printf("storm FAILED, seed %lu\n", seed);
	else
		puts("storm ok");
	return bad != 0;
}
