/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * Two processes exchange messages and access each other's memory through UCP, and check what
 * arrives.
 *
 *   client [-e] [-w] [test...]     default: every test that this mode has
 *     -e   endpoints in peer error mode
 *     -w   sleep in the worker's event descriptor instead of polling
 *
 * tests: tag am put get atomic user user-atomic core flood oneway cancel
 * UCX has no atomics in peer error mode since 1.16; cancel needs that mode.
 *
 * The last line of a test that went well is "ok NAME".
 */
#include "pair.h"

#include <pthread.h>

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

/* Memory that the user allocated, and unmapped while the other side had its key: an access gets an error,
 * and the process that had it goes on. */
static void test_gone(void) {
    ucp_request_param_t p = {0};
    uint64_t one = 1, reply = 0;
    struct window w;
    p.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_REPLY_BUFFER;
    p.datatype = ucp_dt_make_contig(8);
    p.reply_buffer = &reply;
    open_window(&w, 3 * 4096, 1);
    equal(fetch(&w, UCP_ATOMIC_OP_ADD, 5, 0, 8, 4096), 0, "before");
    meet();
    if (mprotect(w.memory + 4096, 4096, PROT_NONE) != 0 || munmap(w.memory + 2 * 4096, 4096) != 0) die("munmap");
    meet();
    for (int i = 0; i < 100; i++) {
        uint64_t at = w.remote + (i % 2 ? 4096 : 2 * 4096);
        ucs_status_t status = finish(ucp_atomic_op_nbx(ep, UCP_ATOMIC_OP_ADD, &one, 1, at, w.rkey, &p), "atomic");
        if (status != UCS_ERR_INVALID_ADDR) die("memory that is gone: %s", ucs_status_string(status));
        equal(fetch(&w, UCP_ATOMIC_OP_ADD, 1, 0, 8, 64), i, "what is there");
    }
    close_window(&w, 1);
}

/* Seconds that this process has had a core. */
static double used(void) {
    struct timespec t;
    if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) != 0) die("clock_gettime");
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Both have one core: the one that waits has to let the other one work, or every message takes two slices of
 * the scheduler, several milliseconds, which the two of them use up.  Time in which others have the core does not count. */
static void test_core(void) {
    ucp_request_param_t p = {0};
    double begin;
    uint64_t n, in;
    cpu_set_t all, one;
    int core = 0;
    if (sched_getaffinity(0, sizeof(all), &all) != 0) die("sched_getaffinity");
    while (!CPU_ISSET(core, &all)) core++;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    if (sched_setaffinity(0, sizeof(one), &one) != 0) die("sched_setaffinity");
    meet();
    begin = used();
    for (n = 0; n < 8000; n++) {
        for (int turn = 0; turn < 2; turn++) {
            if (turn == me) {
                check(finish(ucp_tag_send_nbx(ep, &n, sizeof(n), 7, &p), "send"), "send");
            } else {
                check(finish(ucp_tag_recv_nbx(worker, &in, sizeof(in), 7, ~0ull, &p), "receive"), "receive");
                if (in != n) die("message %llu came as %llu", (unsigned long long)in, (unsigned long long)n);
            }
        }
        if (used() > begin + 5) die("only %llu messages came in 5 s of the core", (unsigned long long)n);
    }
}

/* Bytes of this process's memory that are here. */
static long resident(void) {
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f == NULL || fscanf(f, "%*d %ld", &pages) != 1) die("/proc/self/statm");
    fclose(f);
    return pages * sysconf(_SC_PAGESIZE);
}

/* One side sends `count` messages with one tag to the other, which makes no progress until all are sent.  So most
 * find no room and are kept until there is some; all then arrive in order.  What it costs to keep them
 * is limited, and is not needed a second time. */
static void flood(size_t count, size_t size, double kept) {
    ucp_request_param_t p = {0};
    unsigned char *memory = malloc(count * size);
    ucs_status_ptr_t *all = calloc(count, sizeof(*all));
    long before = 0, grown[2] = {0};
    /* The first bytes of a message are its number: the pattern alone recurs. */
    for (size_t i = 0; i < count; i++) {
        fill(memory + i * size, size, me == 0 ? i : 0);
        if (me == 0) memcpy(memory + i * size, &i, sizeof(i));
    }
    for (int round = 0; round < 2; round++) {
        size_t waits = 0;
        meet();
        if (me == 1) {
            /* A byte that was sent after them, for which no progress is made either. */
            char go;
            if (round == 0 && recv(out_of_band, &go, 1, MSG_WAITALL) != 1) die("the other one is gone");
            for (size_t i = 0; i < count; i++) {
                unsigned char *in = memory + i * size;
                size_t number;
                memset(in, 0, size);
                check(finish(ucp_tag_recv_nbx(worker, in, size, 3, ~0ull, &p), "receive"), "receive");
                memcpy(&number, in, sizeof(number));
                if (number != i) die("message %zu came as %zu", number, i);
                for (size_t k = sizeof(i); k < size; k++)
                    if (in[k] != pattern(k, i)) die("message %zu: byte %zu is wrong", i, k);
            }
        } else {
            if (round == 0) before = resident();
            for (size_t i = 0; i < count; i++) {
                all[i] = ucp_tag_send_nbx(ep, memory + i * size, size, 3, &p);
                if (UCS_PTR_IS_ERR(all[i])) die("send %zu: %s", i, ucs_status_string(UCS_PTR_STATUS(all[i])));
                waits += all[i] != NULL && ucp_request_check_status(all[i]) == UCS_INPROGRESS;
            }
            if (round == 0 && write(out_of_band, "g", 1) != 1) die("the other one is gone");
            if (round == 0 && waits < count * kept) die("only %zu of %zu messages had to wait", waits, count);
            for (size_t i = 0; i < count; i++) check(finish(all[i], "send"), "send");
            grown[round] = resident() - before;
        }
    }
    if (me == 0) {
        long limit = (1 << 20) + 1024 * (long)count;
        printf("%zu messages of %zu bytes: %ld KiB more, then %ld\n", count, size, grown[0] >> 10, grown[1] >> 10);
        if (grown[0] > limit || grown[1] > grown[0] + limit / 8) die("that is too much memory");
    }
    meet();
    free(all);
    free(memory);
}

static void test_flood(void) {
    flood(100000, 24, 0.9);
    flood(200, 65536, 0.9);
}

/* One side moves large things, and the other one has nothing to do but progress: it may help. */
static void test_oneway(void) {
    static const size_t large[] = {32768, 40001, 65536, 100001, 262144, 1000000, 1048576, 1048577, 4194304, 7000000};
    enum { MOST = 8 << 20, TIMES = 3 };
    ucp_request_param_t p = {0};
    struct window w;
    unsigned char *local = malloc(MOST);
    open_window(&w, MOST, 1);
    /* Gets first: a process that may not write to the other one's memory finds that out by helping. */
    for (size_t k = 0; k < 3 * LENGTH(large) * TIMES; k++) {
        enum { GET, PUT, MESSAGE } kind = k / (LENGTH(large) * TIMES);
        size_t n = large[k / TIMES % LENGTH(large)], off = k % 2 ? 1 : 4097;
        for (int active = 0; active < 2; active++) {
            unsigned char *from = kind == GET ? w.memory + off : local, *to = kind == PUT ? w.memory + off : local;
            if (me != (kind == GET ? active : !active)) fill(from, n, k); else memset(to - (kind == PUT), 0, n + 2);
            meet();
            if (kind == MESSAGE && me != active) {
                check(finish(ucp_tag_recv_nbx(worker, local, n, k, ~0ull, &p), "receive"), "receive");
            } else if (me == active) {
                switch (kind) {
                case GET: check(finish(ucp_get_nbx(ep, local, n, w.remote + off, w.rkey, &p), "get"), "get"); break;
                case PUT: check(finish(ucp_put_nbx(ep, local, n, w.remote + off, w.rkey, &p), "put"), "put"); break;
                case MESSAGE: check(finish(ucp_tag_send_nbx(ep, local, n, k, &p), "send"), "send"); break;
                }
                if (kind == PUT) flush();
            }
            meet();
            if (me == (kind == GET ? active : !active)) {
                expect(to, n, k, kind == GET ? "get" : kind == PUT ? "put" : "message");
                if (to[n] != 0 || (kind == PUT && to[-1] != 0)) die("more than %zu bytes were written", n);
            }
            meet();
        }
    }
    close_window(&w, 1);
    free(local);
}

/* The other side, which a thread stops for a while at some moment. */
static struct {
    pid_t pid;
    unsigned after;
} halted;

static void *halt(void *arg) {
    (void)arg;
    usleep(halted.after);
    kill(halted.pid, SIGSTOP);
    usleep(1300000);
    kill(halted.pid, SIGCONT);
    return NULL;
}

/* Gets that are cut off amid a copy, with a peer that lives: their memory is not written to any more once they have ended.
 * Most times the peer has a part of one by then; now and then it is stopped meanwhile. */
static void test_cancel(void) {
    enum { EACH = 1 << 20, GETS = 4, PAGE = 4096, TRIALS = 100, HALT = 20 };
    static unsigned char before[GETS * EACH / PAGE];
    ucp_request_param_t p = {0}, force = {0};
    unsigned char *place = NULL;
    ucp_ep_h first = ep;
    struct window w;
    ucp_mem_map_params_t m = {0};
    void *packed;
    size_t length;
    int late = 0;
    pid_t mine = getpid();

    if (!error_mode) die("this needs endpoints in peer error mode");
    whole(1, &mine, sizeof(mine));
    whole(0, &halted.pid, sizeof(halted.pid));
    open_window(&w, GETS * EACH, 1);
    memset(w.memory, 0x11, w.size);
    check(ucp_rkey_pack(context, w.memh, &packed, &length), "ucp_rkey_pack");
    send_address();
    whole(1, &length, sizeof(length));
    whole(1, packed, length);
    ucp_rkey_buffer_release(packed);
    void *address = receive_address(&length);
    whole(0, &length, sizeof(length));
    packed = malloc(length);
    whole(0, packed, length);
    meet();
    force.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    force.flags = UCP_EP_CLOSE_FLAG_FORCE;
    m.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
    for (int trial = 0; me == 0 && trial < TRIALS; trial++) {
        ucs_status_ptr_t get[GETS], closing;
        int halts = trial % HALT == HALT - 1;
        pthread_t thread;
        ucp_rkey_h rkey;
        ucp_mem_h memh;
        size_t page;
        place = mmap(NULL, w.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(place, 0, w.size);
        m.address = place;
        m.length = w.size;
        check(ucp_mem_map(context, &m, &memh), "ucp_mem_map");
        check(create_ep(address), "ucp_ep_create");
        check(ucp_ep_rkey_unpack(ep, packed, &rkey), "ucp_ep_rkey_unpack");
        /* The first one finds out that it can be done directly. */
        check(finish(ucp_get_nbx(ep, place, EACH, w.remote, rkey, &p), "get"), "get");
        memset(place, 0, EACH);
        halted.after = rand() % 500;
        if (halts && pthread_create(&thread, NULL, halt, NULL) != 0) die("no thread");
        for (int i = 0; i < GETS; i++) get[i] = ucp_get_nbx(ep, place + i * EACH, EACH, w.remote + i * EACH, rkey, &p);
        closing = ucp_ep_close_nbx(ep, &force);
        for (int i = 0; i < GETS; i++) {
            if (UCS_PTR_IS_PTR(get[i])) {
                late++;
                (void)finish(get[i], "a get that was cut off");
            }
        }
        for (page = 0; page < sizeof(before); page++) before[page] = place[page * PAGE + PAGE - 1];
        if (halts) pthread_join(thread, NULL);
        usleep(500);
        for (page = 0; page < sizeof(before); page++) {
            if (before[page] != place[page * PAGE + PAGE - 1]) die("trial %d: page %zu was written late", trial, page);
        }
        (void)finish(closing, "close");
        ucp_rkey_destroy(rkey);
        check(ucp_mem_unmap(context, memh), "ucp_mem_unmap");
        munmap(place, w.size);
    }
    ep = first;
    meet();
    if (me == 0) printf("  %d gets were cut off\n", late);
    free(packed);
    free(address);
    /* Some UCX has the other side's progress send what is got, which goes on when it is not needed any more: the
     * memory has to stay. */
    unshare_window(&w);
}

static const struct {
    const char *name;
    void (*run)(void);
} tests[] = {
    {"tag", test_tag}, {"am", test_am}, {"put", test_put}, {"get", test_get},
    {"atomic", test_atomic}, {"user", test_user}, {"user-atomic", test_user_atomic}, {"gone", test_gone},
    {"core", test_core},
    {"flood", test_flood}, {"oneway", test_oneway}, {"cancel", test_cancel},
};

int main(int argc, char **argv) {
    int option, bad = 0, any = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    while ((option = getopt(argc, argv, "ew")) != -1) {
        if (option == 'e') error_mode = 1;
        else if (option == 'w') wakeup = 1;
        else return 2;
    }
    for (size_t t = 0; t < LENGTH(tests); t++) {
        int wanted = optind == argc && (error_mode || tests[t].run != test_cancel);
        for (int i = optind; i < argc; i++) wanted |= strcmp(argv[i], tests[t].name) == 0;
        if (wanted) {
            any = 1;
            bad |= run(tests[t].name, tests[t].run, 0);
        }
    }
    if (!any) fprintf(stderr, "no such test\n");
    return bad || !any;
}
