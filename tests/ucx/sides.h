/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * What two processes that test each other share: which of them this one is, a way to give up, the time.
 */
#ifndef SIDES_H
#define SIDES_H

#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
#include <ucs/type/status.h>

static int me;          /* 0 or 1 */
static int out_of_band; /* a socket to the other one */

static void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "process %d: ", me);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    _exit(1);
}

static void check(ucs_status_t status, const char *what) {
    if (status != UCS_OK) die("%s: %s", what, ucs_status_string(status));
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

#endif
