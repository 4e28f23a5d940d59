/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * Two processes with an endpoint to each other, for the tests beside this.  Only what libucp has
 * exported since 1.13 is used.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
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

#include "sides.h"

#define LENGTH(a) (sizeof(a) / sizeof(*(a)))

static int error_mode, wakeup;
static ucp_context_h context;
static ucp_worker_h worker;
static ucp_ep_h ep;
static volatile int ep_error;

/* One step: progress, or a sleep until there is something to do. */
static void step(void) {
    struct pollfd p = {.events = POLLIN};
    ucs_status_t status;
    if (ucp_worker_progress(worker) || !wakeup) return;
    status = ucp_worker_arm(worker);
    if (status == UCS_ERR_BUSY) return;
    check(status, "ucp_worker_arm");
    check(ucp_worker_get_efd(worker, &p.fd), "ucp_worker_get_efd");
    poll(&p, 1, 2000);
}

static ucs_status_t finish(ucs_status_ptr_t request, const char *what) {
    double limit = now() + 30;
    ucs_status_t status;
    if (request == NULL) return UCS_OK;
    if (UCS_PTR_IS_ERR(request)) return UCS_PTR_STATUS(request);
    while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) {
        step();
        if (now() > limit) die("%s does not end", what);
    }
    ucp_request_free(request);
    return status;
}

static void whole(int out, void *buffer, size_t length) {
    char *at = buffer;
    while (length > 0) {
        ssize_t n = out ? write(out_of_band, at, length) : recv(out_of_band, at, length, MSG_DONTWAIT);
        if (n > 0) {
            at += n;
            length -= n;
        } else if (n == 0) {
            die("the other one is gone");
        } else if (!wakeup) {
            ucp_worker_progress(worker);
        } else {
            ucp_worker_progress(worker);
            usleep(50);
        }
    }
}

/* Both are here. */
static void meet(void) {
    char c = 'x';
    whole(1, &c, 1);
    whole(0, &c, 1);
}

static void failed(void *arg, ucp_ep_h failed_ep, ucs_status_t status) {
    (void)arg, (void)failed_ep;
    ep_error = status;
}

static void send_address(void) {
    ucp_address_t *address;
    size_t length;
    check(ucp_worker_get_address(worker, &address, &length), "ucp_worker_get_address");
    whole(1, &length, sizeof(length));
    whole(1, address, length);
    ucp_worker_release_address(worker, address);
}

static void *receive_address(size_t *length) {
    void *address;
    whole(0, length, sizeof(*length));
    address = malloc(*length);
    whole(0, address, *length);
    return address;
}

static ucs_status_t create_ep(void *address) {
    ucp_ep_params_t p = {0};
    p.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    p.address = address;
    if (error_mode) {
        p.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
        p.err_mode = UCP_ERR_HANDLING_MODE_PEER;
        p.err_handler.cb = failed;
    }
    return ucp_ep_create(worker, &p, &ep);
}

static void open_worker(void) {
    ucp_params_t p = {0};
    ucp_worker_params_t w = {0};
    ucp_config_t *config;

    p.field_mask = UCP_PARAM_FIELD_FEATURES;
    p.features = UCP_FEATURE_TAG | UCP_FEATURE_AM | UCP_FEATURE_RMA | UCP_FEATURE_AMO32 | UCP_FEATURE_AMO64;
    if (wakeup) p.features |= UCP_FEATURE_WAKEUP;
    check(ucp_config_read(NULL, NULL, &config), "ucp_config_read");
    check(ucp_init(&p, config, &context), "ucp_init");
    ucp_config_release(config);
    w.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    w.thread_mode = UCS_THREAD_MODE_SINGLE;
    check(ucp_worker_create(context, &w, &worker), "ucp_worker_create");
}

static void start(void) {
    size_t length;
    void *address;
    open_worker();
    send_address();
    address = receive_address(&length);
    check(create_ep(address), "ucp_ep_create");
    free(address);
}

static void flush(void) {
    ucp_request_param_t p = {0};
    check(finish(ucp_ep_flush_nbx(ep, &p), "flush"), "flush");
}

static void stop(void) {
    ucp_request_param_t p = {0};
    double limit;
    flush();
    meet();
    check(finish(ucp_ep_close_nbx(ep, &p), "close"), "close");
    limit = now() + 0.05;
    while (now() < limit) ucp_worker_progress(worker);
    meet();
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
}

static unsigned char pattern(size_t i, size_t seed) { return (unsigned char)(i * 31 + (i >> 8) * 7 + seed * 13 + 1); }

static void fill(unsigned char *b, size_t n, size_t seed) {
    for (size_t i = 0; i < n; i++) b[i] = pattern(i, seed);
}

static void expect(const unsigned char *b, size_t n, size_t seed, const char *what) {
    for (size_t i = 0; i < n; i++)
        if (b[i] != pattern(i, seed)) die("%s: byte %zu of %zu is %d, not %d", what, i, n, b[i], pattern(i, seed));
}

/* A window of either side, by UCP or by the user. */
struct window {
    unsigned char *memory;
    size_t size;
    ucp_mem_h memh;
    uint64_t remote;
    ucp_rkey_h rkey;
};

/* Maps memory as `p` says, and sends it to the other side, which does the same. */
static void share_window(struct window *w, ucp_mem_map_params_t *p) {
    ucp_mem_attr_t attr = {0};
    void *packed, *theirs;
    size_t length;
    uint64_t address;

    w->size = p->length;
    check(ucp_mem_map(context, p, &w->memh), "ucp_mem_map");
    if (w->memory == NULL) {
        attr.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
        check(ucp_mem_query(w->memh, &attr), "ucp_mem_query");
        w->memory = attr.address;
        memset(w->memory, 0, w->size);
    }
    check(ucp_rkey_pack(context, w->memh, &packed, &length), "ucp_rkey_pack");
    address = (uint64_t)w->memory;
    whole(1, &address, sizeof(address));
    whole(1, &length, sizeof(length));
    whole(1, packed, length);
    ucp_rkey_buffer_release(packed);
    whole(0, &w->remote, sizeof(w->remote));
    whole(0, &length, sizeof(length));
    theirs = malloc(length);
    whole(0, theirs, length);
    check(ucp_ep_rkey_unpack(ep, theirs, &w->rkey), "ucp_ep_rkey_unpack");
    free(theirs);
    meet();
}

static void unshare_window(struct window *w) {
    flush();
    meet();
    ucp_rkey_destroy(w->rkey);
    meet();
    check(ucp_mem_unmap(context, w->memh), "ucp_mem_unmap");
}

__attribute__((unused)) static void open_window(struct window *w, size_t size, int user) {
    ucp_mem_map_params_t m = {0};

    w->memory = NULL;
    m.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH;
    m.length = size;
    if (user) {
        void *place = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        m.field_mask |= UCP_MEM_MAP_PARAM_FIELD_ADDRESS;
        m.address = place;
    } else {
        m.field_mask |= UCP_MEM_MAP_PARAM_FIELD_FLAGS;
        m.flags = UCP_MEM_MAP_ALLOCATE;
    }
    share_window(w, &m);
}

__attribute__((unused)) static void close_window(struct window *w, int user) {
    unshare_window(w);
    if (user) munmap(w->memory, w->size);
}

/* What a test does in either process before there is a worker. */
static void (*before_start)(void);

static int run(const char *name, void (*body)(void), int dies) {
    int fds[2], status, bad = 0;
    pid_t child;
    fflush(stdout);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) return 1;
    child = fork();
    me = child == 0;
    out_of_band = fds[me];
    close(fds[!me]);
    if (me == 0) {
        pid_t other = fork();
        /* A third process waits for both, so that neither is special. */
        if (other > 0) {
            close(out_of_band);
            waitpid(other, &status, 0);
            bad |= status != 0;
            waitpid(child, &status, 0);
            bad |= dies ? !WIFSIGNALED(status) : status != 0;
            if (name != NULL) printf("%s %s\n", bad ? "FAILED" : "ok", name);
            return bad;
        }
    }
    alarm(120);
    if (before_start != NULL) before_start();
    start();
    body();
    if (!dies) stop();
    fflush(stdout);
    _exit(0);
}
