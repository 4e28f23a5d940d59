/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * What an extension module with a UCX of its own is: client.c's tests as a library, which tests/ucx/two.c
 * loads once for each copy of UCX.  All that it keeps is its own.
 */
#define main client_main
#include "client.c"
#undef main

void side_open(int which, int fd);
void side_work(void);
void side_close(void);

void side_open(int which, int fd) {
    unsigned major, minor, release;
    me = which;
    out_of_band = fd;
    /* Four workers that poll would be in each other's way. */
    wakeup = 1;
    start();
    ucp_get_version(&major, &minor, &release);
    if (me == 0) printf("a worker of UCX %u.%u\n", major, minor);
    fflush(stdout);
}

void side_work(void) {
    test_tag();
    put_get(0, 1);
    put_get(1, 0);
}

/* There may be a C library, and a buffer, for each. */
void side_close(void) {
    stop();
    fflush(stdout);
}
