/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * Two processes exchange device memory through UCP, and check what arrives: on CUDA's driver, or on a
 * library that stands in for it.
 *
 *   cuda [-e] [-w] [-d] [test...]     default: every test
 *     -e   endpoints in peer error mode
 *     -w   sleep in the worker's event descriptor instead of polling
 *     -d   the second process uses device 1, if there is one
 *
 * tests: tag am put get many again pieces host refused
 *
 * "refused" needs the stand-in. The last line of a test that went well is "ok NAME", and before that one side
 * says how many allocations of the other one it has opened, of each kind; -1 where that is not known.
 */
#include "device.h"
enum { LARGEST = 5 << 20 };
static const size_t sizes[] = {1, 8, 100, 1000, 4096, 8193, 30001, 65536, 262145, 1000000, 2097152, 4194304, LARGEST - 8192};

static ucs_status_ptr_t send_tag(ptr_t at, size_t n, size_t tag) {
    ucp_request_param_t p = {0};
    return ucp_tag_send_nbx(ep, (void *)at, n, tag, &p);
}

static ucs_status_ptr_t receive_tag(ptr_t at, size_t n, size_t tag) {
    ucp_request_param_t p = {0};
    return ucp_tag_recv_nbx(worker, (void *)at, n, tag, ~0ull, &p);
}

/* One message either way, between places `off` bytes into memory of either kind. */
static void exchange(struct memory *out, struct memory *in, size_t n, size_t off, size_t tag, int late) {
    ucs_status_ptr_t r = NULL, s;
    const char *what = late ? "unexpected" : "expected";
    cu_fill(out->at + off, n, tag + me);
    cu_clear(in->at + off, n);
    if (!late) r = receive_tag(in->at + off, n, tag);
    meet();
    s = send_tag(out->at + off, n, tag);
    if (late) {
        double until = now() + 0.002;
        while (now() < until) ucp_worker_progress(worker);
        r = receive_tag(in->at + off, n, tag);
    }
    check(finish(s, "send"), "send");
    check(finish(r, "receive"), "receive");
    cu_expect(in->at + off, n, tag + !me, what);
}

static void test_tag(void) {
    for (int from = 0; from < SORTS; from++) {
        for (int to = 0; to < SORTS; to++) {
            struct memory out = make(from, LARGEST), in = make(to, LARGEST);
            for (size_t k = 0; k < LENGTH(sizes); k++)
                exchange(&out, &in, sizes[k], k % 3 * 1234 + k % 2, 100 * (from * SORTS + to) + k, k % 2);
            meet();
            unmake(&out);
            unmake(&in);
        }
    }
}

static size_t am_got;
static ptr_t am_to;
static size_t am_length;
static ucs_status_ptr_t am_rndv;

static ucs_status_t am_arrived(void *arg, const void *header, size_t header_length, void *data, size_t length,
                               const ucp_am_recv_param_t *param) {
    ucp_request_param_t p = {0};
    (void)arg, (void)header, (void)header_length;
    am_length = length;
    am_got++;
    if (!(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
        CALL(cuMemcpyHtoD_v2, am_to, data, length);
        return UCS_OK;
    }
    am_rndv = ucp_am_recv_data_nbx(worker, data, (void *)am_to, length, &p);
    return UCS_INPROGRESS;
}

static void test_am(void) {
    ucp_am_handler_param_t h = {0};
    struct memory out = make(PLAIN, LARGEST), in = make(PLAIN, LARGEST);
    h.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB;
    h.id = 5;
    h.cb = am_arrived;
    check(ucp_worker_set_am_recv_handler(worker, &h), "handler");
    meet();
    for (size_t k = 0; k < LENGTH(sizes); k++) {
        ucp_request_param_t p = {0};
        ucs_status_ptr_t s;
        size_t before = am_got, n = sizes[k];
        am_to = in.at + 3;
        cu_clear(am_to, n);
        cu_fill(out.at + 5, n, k + me);
        meet();
        s = ucp_am_send_nbx(ep, 5, NULL, 0, (void *)(out.at + 5), n, &p);
        while (am_got == before) step();
        check(finish(am_rndv, "fetch"), "fetch");
        am_rndv = NULL;
        check(finish(s, "send"), "send");
        if (am_length != n) die("%zu bytes instead of %zu", am_length, n);
        cu_expect(am_to, n, k + !me, "active message");
        meet();
    }
    unmake(&out);
    unmake(&in);
}

static void put_get(int puts) {
    ucp_request_param_t p = {0};
    for (int sort = 0; sort < SORTS; sort++) {
        struct memory m = make(sort, LARGEST), local = make(sort, LARGEST);
        struct window w = {0};
        cu_window(&w, &m);
        for (size_t k = 0; k < LENGTH(sizes); k++) {
            size_t n = sizes[k], off = k % 2 * 4097, at = k % 3;
            if (puts) {
                cu_fill(local.at + at, n, k + me);
                check(finish(ucp_put_nbx(ep, (void *)(local.at + at), n, w.remote + off, w.rkey, &p), "put"), "put");
                flush();
                meet();
                cu_expect(m.at + off, n, k + !me, "put");
            } else {
                cu_fill(m.at + off, n, k + me);
                meet();
                cu_clear(local.at + at, n);
                check(finish(ucp_get_nbx(ep, (void *)(local.at + at), n, w.remote + off, w.rkey, &p), "get"), "get");
                cu_expect(local.at + at, n, k + !me, "get");
            }
            meet();
        }
        unshare_window(&w);
        unmake(&m);
        unmake(&local);
    }
}

static void test_put(void) { put_get(1); }
static void test_get(void) { put_get(0); }

/* Many at once, of different lengths, either way. */
static void test_many(void) {
    enum { MANY = 64, EACH = 100000 };
    struct memory out = make(PLAIN, MANY * EACH), in = make(MAPPED, MANY * EACH);
    ucs_status_ptr_t s[MANY], r[MANY];
    staging = realloc(staging, MANY * EACH);
    for (int round = 0; round < 3; round++) {
        cu_clear(in.at, MANY * EACH);
        for (int i = 0; i < MANY; i++) cu_fill(out.at + i * EACH, EACH, i + me);
        meet();
        for (int i = 0; i < MANY; i++) r[i] = receive_tag(in.at + i * EACH, EACH - i * 7, i);
        for (int i = 0; i < MANY; i++) s[i] = send_tag(out.at + i * EACH, EACH - i * 7, i);
        for (int i = 0; i < MANY; i++) check(finish(s[i], "send"), "send");
        for (int i = 0; i < MANY; i++) check(finish(r[i], "receive"), "receive");
        for (int i = 0; i < MANY; i++) cu_expect(in.at + i * EACH, EACH - i * 7, i + !me, "one of many");
        meet();
    }
    unmake(&out);
    unmake(&in);
}

/* Memory that is freed, and comes again at the same address as another allocation. */
static void test_again(void) {
    ptr_t last = 0;
    int same = 0;
    for (int sort = 0; sort < SORTS; sort++) {
        for (int round = 0; round < 8; round++) {
            struct memory out = make(sort, 1 << 20), in = make(sort, 1 << 20);
            same += out.at == last;
            last = out.at;
            exchange(&out, &in, 1000000, round, 10 * sort + round, 0);
            meet();
            unmake(&in);
            unmake(&out);
        }
    }
    printf("%d times at the same address\n", same);
    if (same == 0 && calls("cuInit") >= 0) die("no address came again");
}

/* Memory mapped by hand in pieces that are not those of the other side. */
static void test_pieces(void) {
    struct memory out = make(MAPPED, 12 << 20), in = make(MAPPED, 12 << 20);
    staging = realloc(staging, 12 << 20);
    for (size_t k = 0; k < 6; k++) exchange(&out, &in, (11 << 20) - k * 1000, k * 100001, k, k % 2);
    meet();
    unmake(&out);
    unmake(&in);
}

/* Between host and device memory. */
static void test_host(void) {
    struct memory m = make(PLAIN, LARGEST);
    unsigned char *host = malloc(LARGEST);
    for (size_t k = 0; k < LENGTH(sizes); k++) {
        size_t n = sizes[k];
        ucs_status_ptr_t s, r;
        for (int turn = 0; turn < 2; turn++) {
            /* One sends from its host memory, the other one from its device's. */
            int from_host = turn == me;
            memset(host, 0, n);
            cu_clear(m.at, n);
            if (from_host) fill(host, n, k + me);
            else cu_fill(m.at, n, k + me);
            meet();
            if (me == 0) {
                s = from_host ? send_tag((ptr_t)host, n, k) : send_tag(m.at, n, k);
                check(finish(s, "send"), "send");
            } else {
                r = from_host ? receive_tag((ptr_t)host, n, k) : receive_tag(m.at, n, k);
                check(finish(r, "receive"), "receive");
                if (from_host) expect(host, n, k, "to the host");
                else cu_expect(m.at, n, k, "to the device");
            }
            meet();
        }
    }
    unmake(&m);
    free(host);
}

/* The driver does not open, or make, handles, from the first one on or later: what UCP does then has to
 * arrive all the same. */
static void test_refused(void) {
    static const char *const calls_of[] = {"cuIpcOpenMemHandle_v2", "cuIpcGetMemHandle"};
    for (size_t round = 0; round < 2 * LENGTH(calls_of); round++) {
        const char *call = calls_of[round % LENGTH(calls_of)];
        struct memory before = make(PLAIN, LARGEST), after = make(PLAIN, LARGEST), out, in;
        if (round >= LENGTH(calls_of)) exchange(&before, &after, 100000, 0, 1000 * round, 0);
        meet();
        out = make(PLAIN, LARGEST), in = make(PLAIN, LARGEST);
        fail(call, 0, 800);
        for (size_t k = 0; k < LENGTH(sizes); k++) exchange(&out, &in, sizes[k], k % 2, 1000 * round + 1 + k, k % 2);
        meet();
        fail(call, 0, 0);
        unmake(&out);
        unmake(&in);
        unmake(&before);
        unmake(&after);
        meet();
    }
}

static void (*body)(void);

static void with_device(void) {
    static const char *const ways[] = {"cuIpcOpenMemHandle_v2", "cuMemImportFromShareableHandle", "cuMemPoolImportPointer"};
    staging = malloc(LARGEST);
    body();
    meet();
    for (int sort = 0; me == 0 && sort < MANAGED; sort++) printf("opened %s %ld\n", sorts[sort], calls(ways[sort]));
    free(staging);
}

static const struct {
    const char *name;
    void (*run)(void);
} tests[] = {
    {"tag", test_tag}, {"am", test_am}, {"put", test_put}, {"get", test_get}, {"many", test_many},
    {"again", test_again}, {"pieces", test_pieces}, {"host", test_host}, {"refused", test_refused},
};

int main(int argc, char **argv) {
    int option, bad = 0, any = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    while ((option = getopt(argc, argv, "ewd")) != -1) {
        if (option == 'e') error_mode = 1;
        else if (option == 'w') wakeup = 1;
        else if (option == 'd') second_device = 1;
        else return 2;
    }
    before_start = start_device;
    for (size_t t = 0; t < LENGTH(tests); t++) {
        int wanted = optind == argc;
        for (int i = optind; i < argc; i++) wanted |= strcmp(argv[i], tests[t].name) == 0;
        if (wanted) {
            any = 1;
            body = tests[t].run;
            bad |= run(tests[t].name, with_device, 0);
        }
    }
    if (!any) fprintf(stderr, "no such test\n");
    return bad || !any;
}
