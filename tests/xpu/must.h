/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* MUST(call): a call that returns anything but 0 ends the process. The time, and the CPUs' time of this process and of the library's
 * threads in it, in seconds. */
#ifndef STRAIT_TEST_XPU_MUST_H
#define STRAIT_TEST_XPU_MUST_H

#include <dirent.h>
#include <sys/resource.h>

#include <cstdlib>
#include <cstring>
#include <ctime>

#include "check.h"

#define MUST(call)                                                                                                       \
	do {                                                                                                             \
		const long long rc_ = (long long)(call);                                                                 \
		if (rc_) {                                                                                               \
			fprintf(stderr, CHECK_FORMAT "line %d: %s: %lld\n", CHECK_ARGS, __LINE__, #call, rc_);           \
			_exit(1);                                                                                        \
		}                                                                                                        \
	} while (0)

static inline double now()
{
	timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static inline double cpu_seconds()
{
	rusage u;
	getrusage(RUSAGE_SELF, &u);
	return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

/* Of the threads whose names begin with "strait": those that have not ended. */
static inline double library_seconds()
{
	unsigned long long sum = 0;
	if (DIR *tasks = opendir("/proc/self/task")) {
		while (const dirent *task = readdir(tasks)) {
			char path[300], name[32] = "";
			unsigned long long ns = 0;
			snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
			if (FILE *f = fopen(path, "r")) {
				if (!fgets(name, sizeof name, f))
					name[0] = 0;
				fclose(f);
			}
			snprintf(path, sizeof path, "/proc/self/task/%s/schedstat", task->d_name);
			if (strncmp(name, "strait", 6))
				continue;
			if (FILE *f = fopen(path, "r")) {
				if (fscanf(f, "%llu", &ns) == 1)
					sum += ns;
				fclose(f);
			}
		}
		closedir(tasks);
	}
	return sum * 1e-9;
}

#endif
