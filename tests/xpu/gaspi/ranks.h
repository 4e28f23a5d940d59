/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Ranks of a GASPI on one host, started without a launcher: what the environment has of them is GPI-2's, and the stand-in's. */
#ifndef STRAIT_TEST_GASPI_RANKS_H
#define STRAIT_TEST_GASPI_RANKS_H

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

/* Runs this program once for each rank, with GASPI_RANK; 0 if all have ended well, the victim by SIGKILL. */
inline int run_ranks(char **argv, unsigned ranks, int victim)
{
	char name[] = "/tmp/gaspi_ranks.XXXXXX";
	const int fd = mkstemp(name);
	if (fd < 0)
		return perror("mkstemp"), 1;
#ifdef GPI2
	for (unsigned i = 0; i < ranks; i++)
		if (write(fd, "localhost\n", 10) != 10)
			return perror("write"), 1;
#endif
	close(fd);
	setenv("GASPI_MFILE", name, 1);
	setenv("GASPI_NRANKS", std::to_string(ranks).c_str(), 1);
	setenv("GASPI_TEST_PORT", std::to_string(20000 + getpid() % 20000).c_str(), 1);
	std::vector<pid_t> pids(ranks);
	for (unsigned i = 0; i < ranks; i++) {
		pids[i] = fork();
		if (pids[i] == 0) {
			setenv("GASPI_RANK", std::to_string(i).c_str(), 1);
			setenv("GASPI_SOCKET", std::to_string(i).c_str(), 1);
			execv("/proc/self/exe", argv);
			_exit(127);
		}
	}
	int failed = 0;
	for (unsigned left = ranks; left; left--) {
		int state = 0;
		const pid_t ended = wait(&state);
		const bool killed = victim >= 0 && ended == pids[(unsigned)victim] && WIFSIGNALED(state) && WTERMSIG(state) == SIGKILL;
		if (state != 0 && !killed) {
			fprintf(stderr, "process %d: status %x\n", (int)ended, state);
			failed = 1;
			for (pid_t p : pids)
				kill(p, SIGKILL);
		}
	}
	unlink(name);
	return failed;
}

#ifdef GPI2
/* GPI-2's configuration for such ranks; to be called before gaspi_proc_init. */
inline gaspi_return_t configure_ranks()
{
	gaspi_config_t config;
	gaspi_return_t rc = gaspi_config_get(&config);
	if (rc != GASPI_SUCCESS)
		return rc;
	config.sn_port = (gaspi_uint)atoi(getenv("GASPI_TEST_PORT"));
	/* Of its life: GPI-2's OFI device never reads what notifications leave in a queue's completion queue. */
	config.queue_size_max = 4096;
	/* Ranks of one host, too, over the provider that FI_PROVIDER names. */
	config.dev_config.params.ofi.use_shm = 0;
	config.dev_config.params.tcp.port = config.sn_port + 64;
	return gaspi_config_set(config);
}
#endif

#endif
