/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * What UCT's headers demand of a transport and UCP seldom or never asks for: two processes, an interface
 * of strait's in each, and no UCP.
 *
 *   uct [test...]     zero align fixed pending order gets replies descriptors refused memory; default: all
 *
 * The last line of a test that went well is "ok NAME".
 */
#include "ifaces.h"
#include "uct/gets.h"
#include "uct/order.h"

#include <malloc.h>
#include <sys/resource.h>

static unsigned arrived;
static size_t lengths[8];

static ucs_status_t count_am(void *arg, void *data, size_t length, unsigned flags) {
    (void)arg, (void)data, (void)flags;
    if (arrived < 8) lengths[arrived] = length;
    arrived++;
    return UCS_OK;
}

static size_t pack_none(void *dest, void *arg) {
    (void)dest, (void)arg;
    return 0;
}

static unsigned unpacked;

static void unpack_none(void *arg, const void *data, size_t length) {
    (void)arg, (void)data;
    unpacked += length == 0 ? 1 : 1000;
}

/* Nothing is moved, nothing is touched: neither a buffer, nor a key, nor the peer's memory. */
static void test_zero(void) {
    static char memory[4096];
    uct_completion_t comp = {.count = 1, .status = UCS_OK};
    uct_iov_t none = {0}, two[2] = {{0}};
    uct_mem_h memh;
    struct remote r;
    open_pair(0, 0);
    two[0].buffer = memory, two[0].length = 64, two[0].count = 0;
    two[1].buffer = memory, two[1].length = 0, two[1].count = 1;
    check(uct_md_mem_reg(md, memory, sizeof(memory), UCT_MD_MEM_ACCESS_ALL, &memh), "reg");
    send_key(memh, memory);
    hear_key(&r);
    check(uct_iface_set_am_handler(iface, 3, count_am, NULL, 0), "handler");
    meet();
    uct_rkey_t keys[] = {UCT_INVALID_RKEY, r.key.rkey};
    for (int k = 0; k < 2; k++) {
        uct_rkey_t key = keys[k];
        /* At no address, and at one behind the memory. */
        for (uint64_t at = 0; at <= r.addr + 8192; at += r.addr + 8192) {
            check(uct_ep_put_short(ep, NULL, 0, at, key), "put_short of nothing");
            ssize_t n;
            /* That it is nothing is known when it is packed, which it may be when it can go. */
            while ((n = uct_ep_put_bcopy(ep, pack_none, NULL, at, key)) == UCS_ERR_NO_RESOURCE) progress();
            if (n != 0) die("put_bcopy of nothing: %zd", n);
            check(uct_ep_put_zcopy(ep, NULL, 0, at, key, &comp), "put_zcopy of no parts");
            check(uct_ep_put_zcopy(ep, &none, 1, at, key, &comp), "put_zcopy of nothing");
            check(uct_ep_put_zcopy(ep, two, 2, at, key, NULL), "put_zcopy of two times nothing");
            check(uct_ep_get_short(ep, NULL, 0, at, key), "get_short of nothing");
            check(uct_ep_get_bcopy(ep, unpack_none, NULL, 0, at, key, &comp), "get_bcopy of nothing");
            check(uct_ep_get_zcopy(ep, NULL, 0, at, key, &comp), "get_zcopy of no parts");
            check(uct_ep_get_zcopy(ep, two, 2, at, key, &comp), "get_zcopy of nothing");
        }
    }
    if (unpacked != 4 || comp.count != 1) die("unpacked %u times, %d to go", unpacked, comp.count);
    /* A key is needed for what is not nothing. */
    if (uct_ep_put_short(ep, memory, 1, r.addr, UCT_INVALID_RKEY) != UCS_ERR_INVALID_PARAM)
        die("a put without a key is not refused");
    check(uct_ep_flush(ep, 0, NULL), "flush");
    check(uct_ep_am_short(ep, 3, 7, NULL, 0), "am_short");
    check(uct_ep_am_short_iov(ep, 3, NULL, 0), "am_short_iov");
    if (uct_ep_am_bcopy(ep, 3, pack_none, NULL, 0) != 0) die("am_bcopy of nothing");
    check(uct_ep_am_zcopy(ep, 3, NULL, 0, NULL, 0, 0, &comp), "am_zcopy");
    check(uct_ep_am_zcopy(ep, 3, NULL, 0, two, 2, 0, &comp), "am_zcopy of two times nothing");
    while (arrived < 5) progress();
    if (lengths[0] != 8 || lengths[1] + lengths[2] + lengths[3] + lengths[4] != 0) die("not empty");
    check(uct_rkey_release(component, &r.key), "release");
    meet();
    check(uct_md_mem_dereg(md, memh), "dereg");
    close_pair();
}

static size_t align, align_at;
static unsigned with_desc;
static void *kept;

static ucs_status_t check_alignment(void *arg, void *data, size_t length, unsigned flags) {
    (void)arg;
    arrived++;
    if (length > 8 && ((char *)data)[length - 1] != 5) die("wrong bytes");
    if (!(flags & UCT_CB_PARAM_FLAG_DESC)) return UCS_OK;
    with_desc++;
    if (kept != NULL) uct_iface_release_desc(kept);
    kept = NULL;
    if (((uintptr_t)data + align_at) % align != 0) die("%p + %zu is not aligned to %zu", data, align_at, align);
    /* The headroom is the receiver's. */
    memset((char *)data - 24, 9, 24);
    if (with_desc % 3) return UCS_OK;
    kept = (char *)data - 24;
    return UCS_INPROGRESS;
}

static size_t pack_some(void *dest, void *arg) {
    memset(dest, 5, *(size_t *)arg);
    return *(size_t *)arg;
}

/* Active messages in descriptors are aligned as the interface's parameters say. */
static void test_align(void) {
    static const size_t ways[][2] = {{1, 0}, {4, 8}, {8, 5}, {64, 0}, {64, 8}, {128, 24}, {4096, 0}, {4096, 16}, {65536, 1}};
    static const size_t bad[][2] = {{3, 0}, {48, 0}, {SIZE_MAX / 2 + 1, 0}};
    for (size_t k = 0; k < sizeof(ways) / sizeof(*ways); k++) {
        align = ways[k][0], align_at = ways[k][1];
        open_pair(align, align_at);
        check(uct_iface_set_am_handler(iface, 3, check_alignment, NULL, 0), "handler");
        arrived = with_desc = 0;
        meet();
        unsigned sent = 0;
        for (size_t n = 0; n <= 8000; n += n < 600 ? 100 : 900) {
            ssize_t got;
            while ((got = uct_ep_am_bcopy(ep, 3, pack_some, &n, 0)) == UCS_ERR_NO_RESOURCE)
                progress();
            if (got != (ssize_t)n) die("am_bcopy: %zd", got);
            sent++;
        }
        while (arrived < sent) progress();
        if (with_desc < 5) die("%u in descriptors only", with_desc);
        if (kept != NULL) uct_iface_release_desc(kept);
        kept = NULL;
        close_pair();
    }
    for (size_t k = 0; k < sizeof(bad) / sizeof(*bad); k++) {
        uct_iface_h made;
        ucs_status_t status = open_iface(bad[k][0], bad[k][1], &made);
        if (status == UCS_OK) die("an alignment to %zu at %zu is taken", bad[k][0], bad[k][1]);
    }
}

/* Memory allocated where something else was: the range is the caller's. */
static void test_fixed(void) {
    enum { PAGE = 4096, LEN = 4 * PAGE };
    char *range = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uct_alloc_method_t method = UCT_ALLOC_METHOD_MD;
    uct_mem_alloc_params_t p = {0};
    union {
        uct_allocated_memory_t memory;
        char room[256];
    } made = {0};
    struct remote r;
    memset(range, 7, LEN);
    open_pair(0, 0);
    p.field_mask = UCT_MEM_ALLOC_PARAM_FIELD_FLAGS | UCT_MEM_ALLOC_PARAM_FIELD_ADDRESS |
        UCT_MEM_ALLOC_PARAM_FIELD_MEM_TYPE | UCT_MEM_ALLOC_PARAM_FIELD_MDS | UCT_MEM_ALLOC_PARAM_FIELD_NAME;
    p.flags = UCT_MD_MEM_FLAG_FIXED | UCT_MD_MEM_ACCESS_ALL;
    p.address = range + PAGE;
    p.mem_type = UCS_MEMORY_TYPE_HOST;
    p.mds.mds = &md;
    p.mds.count = 1;
    p.name = "fixed";
    for (int round = 0; round < 2; round++) {
        check(uct_mem_alloc(2 * PAGE, &method, 1, &p, &made.memory), "alloc");
        if (made.memory.address != range + PAGE || made.memory.length != 2 * PAGE)
            die("%zu bytes at %p, not at %p", made.memory.length, made.memory.address, range + PAGE);
        for (int i = 0; i < LEN; i++) {
            int inside = i >= PAGE && i < 3 * PAGE;
            if (range[i] != (inside ? 0 : 7)) die("byte %d is %d", i, range[i]);
        }
        send_key(made.memory.memh, range + PAGE);
        hear_key(&r);
        /* The first may find that the window is not here yet. */
        ucs_status_t status;
        while ((status = uct_ep_put_short(ep, "abc", 3, r.addr + 5000, r.key.rkey)) == UCS_ERR_NO_RESOURCE)
            progress();
        check(status, "put");
        while ((status = uct_ep_flush(ep, 0, NULL)) == UCS_INPROGRESS) progress();
        check(status, "flush");
        meet();
        if (memcmp(range + PAGE + 5000, "abc", 3) != 0) die("nothing came");
        check(uct_rkey_release(component, &r.key), "release");
        meet();
        check(uct_mem_free(&made.memory), "free");
        /* The second time nothing is there. */
    }
    /* It has to be whole pages. */
    p.address = range + 100;
    if (uct_mem_alloc(PAGE, &method, 1, &p, &made.memory) == UCS_OK) die("taken at an odd address");
    if (range[100] != 7 || range[PAGE - 1] != 7) die("what was refused was overwritten");
    close_pair();
}

/* A request that waits, one of several of an endpoint. */
struct waiting {
    uct_pending_req_t req;
    uct_ep_h ep;
    unsigned *sent;
};

static size_t pending_size = 4000;
static unsigned long calls;
static unsigned total;

static ucs_status_t send_waiting(uct_pending_req_t *req) {
    struct waiting *w = (struct waiting *)req;
    calls++;
    ssize_t n = uct_ep_am_bcopy(w->ep, 3, pack_some, &pending_size, 0);
    if (n == UCS_ERR_NO_RESOURCE) return UCS_ERR_NO_RESOURCE;
    if (n < 0) die("a waiting message: %s", ucs_status_string(n));
    ++*w->sent;
    ++total;
    return UCS_OK;
}

enum { LOOKS = 20 };

/* Microseconds a call of progress takes while `count` endpoints wait, and nothing can be sent. */
static double progress_time(void) {
    double best = 1e9;
    for (int i = 0; i < LOOKS; i++) {
        double begin = now();
        progress();
        double t = (now() - begin) * 1e6;
        if (t < best) best = t;
    }
    return best;
}

/* Many endpoints wait for room: each has its turn, and their number does not make it slower for each. */
static void test_pending(void) {
    enum { MANY = 1024, EACH = 4 };
    static const unsigned counts[] = {64, MANY};
    double each[2];
    for (int k = 0; k < 2; k++) {
        unsigned n = counts[k];
        open_pair(0, 0);
        check(uct_iface_set_am_handler(iface, 3, count_am, NULL, 0), "handler");
        arrived = 0;
        meet_idle();
        if (me == 0) {
            uct_ep_h *eps = calloc(n, sizeof(*eps));
            unsigned *sent = calloc(n, sizeof(*sent)), filled = 0, added = 0, least, most;
            struct waiting *all = calloc(n * EACH, sizeof(*all));
            for (unsigned i = 0; i < n; i++) eps[i] = connect_ep();
            while (uct_ep_am_bcopy(ep, 3, pack_some, &pending_size, 0) >= 0) filled++;
            for (unsigned j = 0; j < EACH; j++) {
                for (unsigned i = 0; i < n; i++) {
                    struct waiting *w = &all[i * EACH + j];
                    w->req.func = send_waiting;
                    w->ep = eps[i];
                    w->sent = &sent[i];
                    check(uct_ep_pending_add(eps[i], &w->req, 0), "pending_add");
                    added++;
                }
            }
            calls = total = 0;
            each[k] = progress_time() / n;
            /* One of them finds that there is no room, for all. */
            if (calls == 0 || calls > 2 * LOOKS || total != 0) die("%lu calls, %u sent", calls, total);
            /* The other one reads on; half of them go. */
            meet_idle();
            double limit = now() + 60;
            while (total < added / 2) {
                progress();
                if (now() > limit) die("%u of %u sent", total, added);
            }
            least = most = sent[0];
            for (unsigned i = 0; i < n; i++) {
                if (sent[i] < least) least = sent[i];
                if (sent[i] > most) most = sent[i];
            }
            if (most > least + 2) die("of %u endpoints one has sent %u and one %u", n, most, least);
            while (total < added) {
                progress();
                if (now() > limit) die("%u of %u sent", total, added);
            }
            /* Destroyed with requests that wait, in any order. */
            unsigned all_sent = filled + added;
            whole(1, &all_sent, sizeof(all_sent));
            meet();
            for (unsigned i = 0; i < n; i++) uct_ep_destroy(eps[(i * 7) % n]);
            free(all);
            free(sent);
            free(eps);
        } else {
            meet_idle();
            unsigned want;
            whole(0, &want, sizeof(want));
            while (arrived < want) progress();
            meet();
        }
        close_pair();
    }
    if (me == 0) {
        printf("%.3f us an endpoint of %u, %.3f of %u\n", each[0], counts[0], each[1], counts[1]);
    }
}

static size_t heap(void) {
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

static void unpack_some(void *arg, const void *data, size_t length) {
    (void)length;
    memcpy(arg, data, 1);
}

static void got(uct_completion_t *comp) { (void)comp; }

/* Reads that the other one's progress has to serve, of a process that does not poll for what comes back. */
static void test_replies(void) {
    enum { TRIES = 20000, SIZE = 8000 };
    char *memory = calloc(1, SIZE), first = 0;
    uct_completion_t comp = {.func = got, .count = 1 << 30, .status = UCS_OK};
    uct_mem_h memh;
    struct remote r;
    if (getenv("STRAIT_UCX_CMA") == NULL) die("STRAIT_UCX_CMA=n is to be set");
    open_pair(0, 0);
    memset(memory, 6, SIZE);
    check(uct_md_mem_reg(md, memory, SIZE, UCT_MD_MEM_ACCESS_ALL, &memh), "reg");
    send_key(memh, memory);
    hear_key(&r);
    meet();
    unsigned asked = 0, refused = 0;
    if (me == 0) {
        /* Without progress. */
        for (unsigned i = 0; i < TRIES; i++) {
            ucs_status_t status = uct_ep_get_bcopy(ep, unpack_some, &first, SIZE, r.addr, r.key.rkey, &comp);
            if (status == UCS_INPROGRESS) {
                asked++;
            } else if (status == UCS_ERR_NO_RESOURCE) {
                refused++;
                usleep(10);
            } else {
                die("get: %s", ucs_status_string(status));
            }
        }
        meet_idle();
        meet();
        while (comp.count > (1 << 30) - (int)asked) progress();
        if (comp.status != UCS_OK || first != 6) die("wrong bytes");
        printf("%u asked for, %u refused\n", asked, refused);
        ucs_status_t status;
        while ((status = uct_ep_flush(ep, 0, NULL)) == UCS_INPROGRESS) progress();
        check(status, "flush");
    } else {
        size_t before = heap(), after;
        char c = 'x';
        double limit = now() + 100;
        while (recv(out_of_band, &c, 1, MSG_DONTWAIT) != 1) {
            progress();
            if (now() > limit) die("the other one does not come");
        }
        after = heap();
        printf("%zu bytes more\n", after > before ? after - before : 0);
        if (after > before + (4 << 20)) die("the replies of one peer take %zu bytes", after - before);
        if (write(out_of_band, &c, 1) != 1) die("the other one is gone");
        meet();
    }
    meet();
    check(uct_rkey_release(component, &r.key), "release");
    check(uct_md_mem_dereg(md, memh), "dereg");
    close_pair();
    free(memory);
}

/* Windows of the other one whose descriptors find no place here: puts go by requests in the end. */
static void test_descriptors(void) {
    enum { WINDOWS = 3, SIZE = 4096 };
    uct_alloc_method_t method = UCT_ALLOC_METHOD_MD;
    uct_mem_alloc_params_t p = {0};
    union {
        uct_allocated_memory_t memory;
        char room[256];
    } made[WINDOWS] = {0};
    struct remote r[WINDOWS];
    struct rlimit before, none;
    ucs_status_t status;
    double limit = now() + 60;
    if (getenv("STRAIT_UCX_CMA") == NULL) die("STRAIT_UCX_CMA=n is to be set");
    open_pair(0, 0);
    check(uct_iface_set_am_handler(iface, 3, count_am, NULL, 0), "handler");
    arrived = 0;
    p.field_mask = UCT_MEM_ALLOC_PARAM_FIELD_FLAGS | UCT_MEM_ALLOC_PARAM_FIELD_MEM_TYPE |
        UCT_MEM_ALLOC_PARAM_FIELD_MDS | UCT_MEM_ALLOC_PARAM_FIELD_NAME;
    p.flags = UCT_MD_MEM_ACCESS_ALL;
    p.mem_type = UCS_MEMORY_TYPE_HOST;
    p.mds.mds = &md;
    p.mds.count = 1;
    p.name = "descriptors";
    for (int i = 0; i < WINDOWS; i++) {
        check(uct_mem_alloc(SIZE, &method, 1, &p, &made[i].memory), "alloc");
        send_key(made[i].memory.memh, made[i].memory.address);
        hear_key(&r[i]);
    }
    /* They are connected. */
    while ((status = uct_ep_am_short(ep, 3, 7, NULL, 0)) == UCS_ERR_NO_RESOURCE) progress();
    check(status, "am_short");
    while (arrived < 1) progress();
    meet();
    if (me == 0) {
        if (getrlimit(RLIMIT_NOFILE, &before) != 0) die("getrlimit");
        none = before;
        none.rlim_cur = 0;
        if (setrlimit(RLIMIT_NOFILE, &none) != 0) die("setrlimit");
        for (int i = 0; i < WINDOWS; i++) {
            while ((status = uct_ep_put_short(ep, "abc", 3, r[i].addr + 100, r[i].key.rkey)) == UCS_ERR_NO_RESOURCE) {
                progress();
                if (now() > limit) die("a put waits for a window without end");
            }
            check(status, "put");
        }
        while ((status = uct_ep_flush(ep, 0, NULL)) == UCS_INPROGRESS) progress();
        check(status, "flush");
        if (setrlimit(RLIMIT_NOFILE, &before) != 0) die("setrlimit");
    }
    meet();
    for (int i = 0; i < WINDOWS; i++) {
        if (me == 1 && memcmp((char *)made[i].memory.address + 100, "abc", 3) != 0) die("nothing came");
        check(uct_rkey_release(component, &r[i].key), "release");
    }
    meet();
    for (int i = 0; i < WINDOWS; i++) check(uct_mem_free(&made[i].memory), "free");
    close_pair();
}

#include "uct/refused.h"
#include "uct/memory.h"

static const struct {
    const char *name;
    void (*run)(void);
} tests[] = {{"zero", test_zero}, {"align", test_align}, {"fixed", test_fixed}, {"pending", test_pending},
    {"order", test_order}, {"gets", test_gets}, {"replies", test_replies}, {"descriptors", test_descriptors},
    {"refused", test_refused}, {"memory", test_memory}};

static int chosen(int argc, char **argv, const char *name) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], name) == 0) return 1;
    }
    return argc < 2;
}

int main(int argc, char **argv) {
    int pair[2], status;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return 1;
    pid_t child = fork();
    me = child == 0;
    out_of_band = pair[me];
    close(pair[!me]);
    open_md();
    for (size_t k = 0; k < sizeof(tests) / sizeof(*tests); k++) {
        if (!chosen(argc, argv, tests[k].name)) continue;
        tests[k].run();
        meet();
        if (me == 0) printf("ok %s\n", tests[k].name), fflush(stdout);
    }
    fflush(stdout);
    if (me == 1) _exit(0);
    if (waitpid(child, &status, 0) != child || status != 0) die("the other one failed");
    return 0;
}
