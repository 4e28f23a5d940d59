/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * Two processes exchange messages and access each other's memory through UCP, and check what
 * arrives.  Only what libucp has exported since 1.13 is used.
 *
 *   client [-e] [-w] [test...]     default: every test
 *     -e   endpoints in peer error mode
 *     -w   sleep in the worker's event descriptor instead of polling
 *
 * tests: tag am put get atomic user user-atomic core, and by name only: death (one is killed; with -e)
 * UCX has no atomics in peer error mode since 1.16.
 *
 * The last line of a test that went well is "ok NAME".
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

#define LENGTH(a) (sizeof(a) / sizeof(*(a)))

static int me;              /* 0 or 1 */
static int out_of_band;     /* a socket to the other one */
static int error_mode, wakeup;
static ucp_context_h context;
static ucp_worker_h worker;
static ucp_ep_h ep;
static volatile int ep_error;

static void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "client %d: ", me);
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

static void connect_ep(void) {
    ucp_address_t *address;
    size_t length, theirs;
    void *other;
    ucp_ep_params_t p = {0};

    check(ucp_worker_get_address(worker, &address, &length), "ucp_worker_get_address");
    whole(1, &length, sizeof(length));
    whole(1, address, length);
    whole(0, &theirs, sizeof(theirs));
    other = malloc(theirs);
    whole(0, other, theirs);
    p.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    p.address = other;
    if (error_mode) {
        p.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
        p.err_mode = UCP_ERR_HANDLING_MODE_PEER;
        p.err_handler.cb = failed;
    }
    check(ucp_ep_create(worker, &p, &ep), "ucp_ep_create");
    ucp_worker_release_address(worker, address);
    free(other);
}

static void start(void) {
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
    connect_ep();
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

static const size_t sizes[] = {0, 1, 7, 8, 40, 44, 48, 52, 64, 100, 511, 512, 520, 1000, 4096, 8000, 8150, 8184,
    8192, 8200, 10000, 16384, 30000, 65536, 100001, 262144, 1000000, 4194304};

/* Tagged messages of all sizes: expected, unexpected, and many at once. */
static void test_tag(void) {
    ucp_request_param_t p = {0};
    unsigned char *out = malloc(4194304), *in = malloc(4194304);
    for (int round = 0; round < 2; round++) {
        for (size_t k = 0; k < LENGTH(sizes); k++) {
            size_t n = sizes[k];
            ucs_status_ptr_t r = NULL, s = NULL;
            fill(out, n, k + me);
            memset(in, 0, n);
            if (round == 0) r = ucp_tag_recv_nbx(worker, in, n, k, ~0ull, &p);
            meet();
            s = ucp_tag_send_nbx(ep, out, n, k, &p);
            if (round == 1) {
                double until = now() + 0.002;
                while (now() < until) ucp_worker_progress(worker);
                r = ucp_tag_recv_nbx(worker, in, n, k, ~0ull, &p);
            }
            check(finish(s, "send"), "send");
            check(finish(r, "receive"), "receive");
            expect(in, n, k + !me, round ? "unexpected" : "expected");
        }
    }
    /* More than a ring has room for, before the other one receives anything. */
    enum { MANY = 5000, SIZE = 700 };
    ucs_status_ptr_t *all = calloc(MANY, sizeof(*all));
    meet();
    for (int i = 0; i < MANY; i++) {
        fill(out + (i % 1000) * SIZE, SIZE, i % 1000);
        all[i] = ucp_tag_send_nbx(ep, out + (i % 1000) * SIZE, SIZE - i % 600, 1000 + i, &p);
        if (UCS_PTR_IS_ERR(all[i])) die("send %d: %s", i, ucs_status_string(UCS_PTR_STATUS(all[i])));
    }
    for (int i = 0; i < MANY; i++) {
        memset(in, 0, SIZE);
        check(finish(ucp_tag_recv_nbx(worker, in, SIZE, 1000 + i, ~0ull, &p), "receive"), "receive");
        expect(in, SIZE - i % 600, i % 1000, "flood");
    }
    for (int i = 0; i < MANY; i++) check(finish(all[i], "send"), "send");
    free(all);
    free(out);
    free(in);
}

static size_t am_got, am_bytes;
static unsigned char *am_data;
static ucs_status_ptr_t am_rndv;

static ucs_status_t am_arrived(void *arg, const void *header, size_t header_length, void *data, size_t length,
                               const ucp_am_recv_param_t *param) {
    size_t n = *(const size_t *)header;
    (void)arg;
    if (header_length != 48 || n != length) die("an active message of %zu bytes says %zu", length, n);
    am_bytes = n;
    if (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) {
        ucp_request_param_t p = {0};
        am_rndv = ucp_am_recv_data_nbx(worker, data, am_data, n, &p);
        am_got++;
        return UCS_INPROGRESS;
    }
    memcpy(am_data, data, n);
    am_got++;
    return UCS_OK;
}

static void test_am(void) {
    ucp_am_handler_param_t h = {0};
    ucp_request_param_t p = {0};
    unsigned char *out = malloc(4194304);
    am_data = malloc(4194304);
    h.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB;
    h.id = 5;
    h.cb = am_arrived;
    check(ucp_worker_set_am_recv_handler(worker, &h), "handler");
    meet();
    for (size_t k = 0; k < LENGTH(sizes); k++) {
        size_t n = sizes[k], header[6] = {n, 2, 3, 4, 5, 6};
        size_t before = am_got;
        ucs_status_ptr_t s;
        fill(out, n, k + me);
        meet();
        s = ucp_am_send_nbx(ep, 5, header, sizeof(header), out, n, &p);
        while (am_got == before) step();
        check(finish(am_rndv, "fetch"), "fetch");
        am_rndv = NULL;
        check(finish(s, "send"), "send");
        if (am_bytes != n) die("%zu bytes instead of %zu", am_bytes, n);
        expect(am_data, n, k + !me, "active message");
        meet();
    }
    free(out);
    free(am_data);
}

/* A window of either side, by UCP or by the user. */
struct window {
    unsigned char *memory;
    size_t size;
    ucp_mem_h memh;
    uint64_t remote;
    ucp_rkey_h rkey;
};

static void open_window(struct window *w, size_t size, int user) {
    ucp_mem_map_params_t m = {0};
    ucp_mem_attr_t attr = {0};
    void *packed, *theirs;
    size_t length;
    uint64_t address;

    m.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH;
    m.length = w->size = size;
    if (user) {
        void *place = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        m.field_mask |= UCP_MEM_MAP_PARAM_FIELD_ADDRESS;
        m.address = place;
    } else {
        m.field_mask |= UCP_MEM_MAP_PARAM_FIELD_FLAGS;
        m.flags = UCP_MEM_MAP_ALLOCATE;
    }
    check(ucp_mem_map(context, &m, &w->memh), "ucp_mem_map");
    attr.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
    check(ucp_mem_query(w->memh, &attr), "ucp_mem_query");
    w->memory = attr.address;
    memset(w->memory, 0, size);
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

static void close_window(struct window *w, int user) {
    flush();
    meet();
    ucp_rkey_destroy(w->rkey);
    meet();
    check(ucp_mem_unmap(context, w->memh), "ucp_mem_unmap");
    if (user) munmap(w->memory, w->size);
}

static void put_get(int user, int puts) {
    ucp_request_param_t p = {0};
    struct window w;
    unsigned char *local = malloc(4194304);
    open_window(&w, 8 << 20, user);
    for (int round = 0; round < 2; round++) {
        for (size_t k = 0; k < LENGTH(sizes); k++) {
            size_t n = sizes[k], off = round ? 4097 : 0;
            if (puts) {
                fill(local, n, k + me);
                check(finish(ucp_put_nbx(ep, local, n, w.remote + off, w.rkey, &p), "put"), "put");
                flush();
                meet();
                expect(w.memory + off, n, k + !me, "put");
            } else {
                fill(w.memory + off, n, k + me);
                meet();
                memset(local, 0, n);
                check(finish(ucp_get_nbx(ep, local, n, w.remote + off, w.rkey, &p), "get"), "get");
                expect(local, n, k + !me, "get");
            }
            meet();
        }
    }
    close_window(&w, user);
    free(local);
}

static void test_put(void) { put_get(0, 1); }
static void test_get(void) { put_get(0, 0); }

static uint64_t fetch(struct window *w, ucp_atomic_op_t op, uint64_t value, uint64_t swap, size_t size, size_t at) {
    ucp_request_param_t p = {0};
    uint64_t reply = swap;
    p.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_REPLY_BUFFER;
    p.datatype = ucp_dt_make_contig(size);
    p.reply_buffer = &reply;
    check(finish(ucp_atomic_op_nbx(ep, op, &value, 1, w->remote + at, w->rkey, &p), "atomic"), "atomic");
    return size == 4 ? (uint32_t)reply : reply;
}

static void post(struct window *w, ucp_atomic_op_t op, uint64_t value, size_t size, size_t at) {
    ucp_request_param_t p = {0};
    p.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE;
    p.datatype = ucp_dt_make_contig(size);
    check(finish(ucp_atomic_op_nbx(ep, op, &value, 1, w->remote + at, w->rkey, &p), "post"), "post");
}

static void equal(uint64_t have, uint64_t want, const char *what) {
    if (have != want) die("%s: %llu, not %llu", what, (unsigned long long)have, (unsigned long long)want);
}

static void atomics(int user) {
    struct window w;
    open_window(&w, 8192, user);
    for (size_t size = 4; size <= 8; size += 4) {
        size_t at = size * 8;
        equal(fetch(&w, UCP_ATOMIC_OP_ADD, 5, 0, size, at), 0, "fetch-add");
        equal(fetch(&w, UCP_ATOMIC_OP_ADD, 7, 0, size, at), 5, "fetch-add");
        equal(fetch(&w, UCP_ATOMIC_OP_OR, 3, 0, size, at), 12, "fetch-or");
        equal(fetch(&w, UCP_ATOMIC_OP_AND, 7, 0, size, at), 15, "fetch-and");
        equal(fetch(&w, UCP_ATOMIC_OP_XOR, 5, 0, size, at), 7, "fetch-xor");
        equal(fetch(&w, UCP_ATOMIC_OP_SWAP, 9, 0, size, at), 2, "swap");
        equal(fetch(&w, UCP_ATOMIC_OP_CSWAP, 8, 1, size, at), 9, "cswap, other");
        equal(fetch(&w, UCP_ATOMIC_OP_CSWAP, 9, 1, size, at), 9, "cswap, same");
        post(&w, UCP_ATOMIC_OP_ADD, 6, size, at);
        post(&w, UCP_ATOMIC_OP_XOR, 2, size, at);
        flush();
        equal(fetch(&w, UCP_ATOMIC_OP_ADD, 0, 0, size, at), 5, "post");
    }
    /* Both add to the same word, the other one's; and, by way of loads and stores, see it there. */
    meet();
    for (int i = 0; i < 5000; i++) post(&w, UCP_ATOMIC_OP_ADD, 1, 8, 4096);
    flush();
    meet();
    equal(*(volatile uint64_t *)(w.memory + 4096), 5000, "sum");
    close_window(&w, user);
}

static void test_atomic(void) { atomics(0); }

/* Memory that the user allocated. */
static void test_user(void) {
    put_get(1, 1);
    put_get(1, 0);
}

static void test_user_atomic(void) { atomics(1); }

/* Both have one core: who waits has to let the other one work, or every message takes two slices of
 * the scheduler, several milliseconds.  That would not end in time. */
static void test_core(void) {
    ucp_request_param_t p = {0};
    double limit;
    uint64_t n, in;
    cpu_set_t all, one;
    int core = 0;
    if (sched_getaffinity(0, sizeof(all), &all) != 0) die("sched_getaffinity");
    while (!CPU_ISSET(core, &all)) core++;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    if (sched_setaffinity(0, sizeof(one), &one) != 0) die("sched_setaffinity");
    meet();
    limit = now() + 20;
    for (n = 0; n < 8000; n++) {
        for (int turn = 0; turn < 2; turn++) {
            if (turn == me) {
                check(finish(ucp_tag_send_nbx(ep, &n, sizeof(n), 7, &p), "send"), "send");
            } else {
                check(finish(ucp_tag_recv_nbx(worker, &in, sizeof(in), 7, ~0ull, &p), "receive"), "receive");
                if (in != n) die("message %llu came as %llu", (unsigned long long)in, (unsigned long long)n);
            }
        }
        if (now() > limit) die("only %llu messages came in time", (unsigned long long)n);
    }
}

/* The other one is killed: an error comes, nothing hangs, and the memory can be taken back. */
static void test_death(void) {
    ucp_request_param_t p = {0};
    char buffer[64] = {0};
    struct window w;
    ucs_status_ptr_t r;
    double limit;
    if (!error_mode) die("death needs -e");
    open_window(&w, 65536, 1);
    r = ucp_tag_recv_nbx(worker, buffer, sizeof(buffer), 1, ~0ull, &p);
    check(finish(ucp_put_nbx(ep, buffer, 8, w.remote, w.rkey, &p), "put"), "put");
    flush();
    meet();
    if (me == 1) {
        signal(SIGKILL, SIG_DFL);
        kill(getpid(), SIGKILL);
    }
    limit = now() + 10;
    while (!ep_error) {
        step();
        if (now() > limit) die("no error after 10 s");
    }
    printf("error: %s\n", ucs_status_string(ep_error));
    p.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    p.flags = UCP_EP_CLOSE_FLAG_FORCE;
    ucp_request_cancel(worker, r);
    (void)finish(r, "cancelled receive");
    ucp_rkey_destroy(w.rkey);
    (void)finish(ucp_ep_close_nbx(ep, &p), "close");
    check(ucp_mem_unmap(context, w.memh), "ucp_mem_unmap");
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
}

static const struct {
    const char *name;
    void (*run)(void);
    int extra;
} tests[] = {
    {"tag", test_tag, 0}, {"am", test_am, 0}, {"put", test_put, 0}, {"get", test_get, 0},
    {"atomic", test_atomic, 0}, {"user", test_user, 0}, {"user-atomic", test_user_atomic, 0},
    {"core", test_core, 0}, {"death", test_death, 1},
};

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
            printf("%s %s\n", bad ? "FAILED" : "ok", name);
            return bad;
        }
    }
    alarm(120);
    start();
    body();
    if (!dies) stop();
    fflush(stdout);
    _exit(0);
}

int main(int argc, char **argv) {
    int option, bad = 0, any = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    while ((option = getopt(argc, argv, "ew")) != -1) {
        if (option == 'e') error_mode = 1;
        else if (option == 'w') wakeup = 1;
        else return 2;
    }
    for (size_t t = 0; t < LENGTH(tests); t++) {
        int wanted = optind == argc && !tests[t].extra;
        for (int i = optind; i < argc; i++) wanted |= strcmp(argv[i], tests[t].name) == 0;
        if (wanted) {
            any = 1;
            bad |= run(tests[t].name, tests[t].run, tests[t].extra);
        }
    }
    if (!any) fprintf(stderr, "no such test\n");
    return bad || !any;
}
