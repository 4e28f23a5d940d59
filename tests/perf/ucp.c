/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * Speed of two processes over UCP, measured as `strait perf` does it, for whichever libucp is loaded
 * and whatever UCX_TLS says.  Only what libucp has exported since 1.13 is used.
 *
 *   ucp BYTES [test...]     lat: tagged ping-pong, microseconds for half a round trip
 *                           bw: tagged messages one way, 64 under way; 10^6 bytes a second
 *                           rate: the same in 10^6 messages a second
 *                           put-lat: put and flush, microseconds
 *                           put-ping: puts back and forth that the target polls for, microseconds one way
 *
 * Prints "test bytes value" for each.  The two run on the first two cores that are allowed.  PAUSE=64: lat with
 * pauses, see pause.h.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <ucp/api/ucp.h>

#include "pause.h"

#define WINDOW 64

static int me, out_of_band;
static ucp_context_h context;
static ucp_worker_h worker;
static ucp_ep_h ep;
static char *buffer, *window;
static uint64_t there;
static ucp_rkey_h rkey;

static void die(const char *what, ucs_status_t status) {
    fprintf(stderr, "ucp: %s: %s\n", what, ucs_status_string(status));
    _exit(1);
}

static void check(const char *what, ucs_status_t status) {
    if (status != UCS_OK) die(what, status);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void swap(const void *mine, size_t length, void *theirs, size_t room, size_t *got) {
    if (write(out_of_band, &length, sizeof length) != sizeof length ||
        write(out_of_band, mine, length) != (ssize_t)length) die("socket", UCS_ERR_IO_ERROR);
    size_t n, done = 0;
    if (read(out_of_band, &n, sizeof n) != sizeof n || n > room) die("socket", UCS_ERR_IO_ERROR);
    while (done < n) {
        ssize_t k = read(out_of_band, (char *)theirs + done, n - done);
        if (k <= 0) die("socket", UCS_ERR_IO_ERROR);
        done += k;
    }
    if (got) *got = n;
}

static void meet(void) {
    char c = 0;
    swap(&c, 1, &c, 1, NULL);
}

static void finish(ucs_status_ptr_t request, const char *what) {
    if (!request) return;
    if (UCS_PTR_IS_ERR(request)) die(what, UCS_PTR_STATUS(request));
    while (ucp_request_check_status(request) == UCS_INPROGRESS) ucp_worker_progress(worker);
    check(what, ucp_request_check_status(request));
    ucp_request_free(request);
}

static ucs_status_ptr_t post_send(size_t bytes) {
    ucp_request_param_t none = {0};
    return ucp_tag_send_nbx(ep, buffer, bytes, 1, &none);
}

static ucs_status_ptr_t post_receive(size_t bytes) {
    ucp_request_param_t none = {0};
    return ucp_tag_recv_nbx(worker, buffer, bytes, 1, (ucp_tag_t)-1, &none);
}

static void ping_pong(size_t bytes, int n) {
    while (n--) {
        if (me) finish(post_receive(bytes), "receive");
        pause_a_little();
        finish(post_send(bytes), "send");
        if (!me) finish(post_receive(bytes), "receive");
    }
}

static void one_way(size_t bytes, int n) {
    ucs_status_ptr_t requests[WINDOW];
    for (int done = 0; done < n; done += WINDOW) {
        for (int i = 0; i < WINDOW; i++) requests[i] = me ? post_receive(bytes) : post_send(bytes);
        for (int i = 0; i < WINDOW; i++) finish(requests[i], "window");
        /* The other side's go-ahead. */
        finish(me ? post_send(0) : post_receive(0), "go-ahead");
    }
}

static void flush(void) {
    ucp_request_param_t none = {0};
    finish(ucp_ep_flush_nbx(ep, &none), "flush");
}

static void puts_flushed(size_t bytes, int n) {
    ucp_request_param_t none = {0};
    for (int i = 0; i < n && !me; i++) {
        finish(ucp_put_nbx(ep, buffer, bytes, there, rkey, &none), "put");
        flush();
    }
    if (!me) finish(post_send(0), "end");
    else finish(post_receive(0), "end");
}

static void put_ping(size_t bytes, int n) {
    static unsigned char turn;
    ucp_request_param_t none = {0};
    volatile unsigned char *last = (unsigned char *)window + bytes - 1;
    while (n--) {
        turn = turn % 250 + 1;
        if (me) while (*last != turn) ucp_worker_progress(worker);
        buffer[bytes - 1] = turn;
        finish(ucp_put_nbx(ep, buffer, bytes, there, rkey, &none), "put");
        if (!me) while (*last != turn) ucp_worker_progress(worker);
    }
}

static void run(const char *name, size_t bytes) {
    void (*what)(size_t, int) = !strcmp(name, "lat") ? ping_pong : !strcmp(name, "put-lat") ? puts_flushed :
        !strcmp(name, "put-ping") ? put_ping : one_way;
    int n = bytes < 16384 ? 20000 : bytes < 262144 ? 3000 : bytes < (4 << 20) ? 640 : 128;
    n = (n + WINDOW - 1) / WINDOW * WINDOW;
    what(bytes, n / 4 / WINDOW * WINDOW + WINDOW);
    meet();
    double begin = now();
    what(bytes, n);
    double each = (now() - begin) / n;
    meet();
    if (me) return;
    double value = !strcmp(name, "bw") ? bytes / each / 1e6 : !strcmp(name, "rate") ? 1 / each / 1e6 :
        !strcmp(name, "put-lat") ? each * 1e6 : each * 1e6 / 2;
    printf("%s %zu %.4g\n", name, bytes, value);
}

int main(int argc, char **argv) {
    size_t bytes = argc > 1 ? strtoul(argv[1], NULL, 0) : 0;
    int pair[2];
    if (bytes < 1 || bytes > 64 << 20 || argc < 3) {
        fprintf(stderr, "usage: ucp BYTES (at most 64 Mi) lat|bw|rate|put-lat|put-ping...\n");
        return 2;
    }
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) return 1;
    pid_t child = fork();
    me = child == 0;
    out_of_band = pair[me];
    close(pair[!me]);
    cpu_set_t allowed, core;
    sched_getaffinity(0, sizeof allowed, &allowed);
    CPU_ZERO(&core);
    for (int cpu = 0, n = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed) && n++ == me) CPU_SET(cpu, &core);
    sched_setaffinity(0, sizeof core, &core);

    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG | UCP_FEATURE_RMA};
    check("ucp_init", ucp_init(&params, NULL, &context));
    ucp_worker_params_t single = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE};
    check("worker", ucp_worker_create(context, &single, &worker));
    static char address[65536];
    ucp_address_t *mine;
    size_t length;
    check("address", ucp_worker_get_address(worker, &mine, &length));
    swap(mine, length, address, sizeof address, NULL);
    ucp_ep_params_t to = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = (ucp_address_t *)address};
    check("endpoint", ucp_ep_create(worker, &to, &ep));

    buffer = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    memset(buffer, 1, bytes);
    ucp_mem_map_params_t window_params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS,
        .length = bytes, .flags = UCP_MEM_MAP_ALLOCATE};
    ucp_mem_h memory;
    check("window", ucp_mem_map(context, &window_params, &memory));
    ucp_mem_attr_t attr = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS};
    check("window", ucp_mem_query(memory, &attr));
    window = attr.address;
    memset(window, 0, bytes);
    void *packed;
    check("key", ucp_rkey_pack(context, memory, &packed, &length));
    static char key[4096];
    swap(packed, length, key, sizeof key, NULL);
    uint64_t base = (uintptr_t)window;
    swap(&base, sizeof base, &there, sizeof there, NULL);
    check("key", ucp_ep_rkey_unpack(ep, key, &rkey));

    for (int i = 2; i < argc; i++) run(argv[i], bytes);
    fflush(stdout);
    flush();
    meet();
    int status = 0;
    if (!me) {
        waitpid(child, &status, 0);
        return status != 0;
    }
    _exit(0);
}
