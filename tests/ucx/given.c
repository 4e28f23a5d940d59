/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * Memory given back: nothing of Strait's reads or writes it any more, whatever was under way.  Two
 * processes, an interface in each, no UCP: the owner of the memory and its peer.
 *
 *   given [-n rounds] [case...]     default: every case
 *
 *   dereg    the owner invalidates registered memory at random microseconds, while its peer puts or gets
 *   stop     the same, with a peer that is stopped in the middle of 64 MiB
 *   cancel   a put or get of 32 MiB is cancelled (a flush with UCT_FLUSH_FLAG_CANCEL), the other side of which is
 *            stopped while it copies its part: the local memory is given back when the operation is complete
 *   exec     the owner becomes another program, which has other memory at the same address, while its peer puts
 *
 * A line for each, "ok given-NAME" or "FAILED given-NAME: why"; before it, what was seen.  Memory that was given back is
 * full of canaries, and looked at for a while.
 */
#include "ifaces.h"
#include "v2.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>

enum { OWNER, PEER };
enum { CANARY = 0xc5, FIRST = 0x11, WATCH_US = 3000 };
#define LARGE ((size_t)64 << 20)
#define CANCELLED ((size_t)32 << 20)
#define PLACE ((void *)0x100000000000) /* the same address before and after exec */

static struct shared {
    volatile pid_t pids[2];
    volatile int step, over, failed;
    volatile unsigned count[2];
} *sh;
static int sh_fd;
/* A local buffer that the other process sees. */
static unsigned char *seen;
static int rounds = 100;

/* What one case is. */
struct what {
    const char *name;
    size_t length;
    int put;
};

#define WRONG(...) (sh->failed = 1, sh->over = 1, die(__VA_ARGS__))

static size_t not_canary(const unsigned char *b, size_t n) {
    size_t bad = 0;
    for (size_t i = 0; i < n; i++) bad += b[i] != CANARY;
    return bad;
}

/* From the end, where a copy comes last. */
static void put_canaries(unsigned char *b, size_t n) {
    while (n > 0) {
        size_t part = n < 1 << 20 ? n : 1 << 20;
        n -= part;
        memset(b + n, CANARY, part);
    }
}

static void watch(const unsigned char *b, size_t n, const char *what) {
    double end = now() + WATCH_US * 1e-6;
    do {
        progress();
        size_t bad = not_canary(b, n);
        if (bad) WRONG("%s: %zu of %zu bytes were written after they were given back", what, bad, n);
    } while (now() < end);
}

static unsigned char *map(void *at, size_t length) {
    int fixed = at != NULL ? MAP_FIXED_NOREPLACE : 0;
    void *got = mmap(at, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
    if (got == MAP_FAILED || (at != NULL && got != at)) WRONG("mmap: %s", strerror(errno));
    return got;
}

static void for_micros(unsigned us) {
    double end = now() + us * 1e-6;
    while (now() < end) progress();
}

static void until_step(int n) {
    double limit = now() + LIMIT;
    while (sh->step < n && !sh->over) {
        progress();
        if (now() > limit) WRONG("step %d does not come", n);
    }
}

static uct_completion_t comp;

/* Posts; UCS_OK if it is done, UCS_INPROGRESS if `comp` is to come. */
static ucs_status_t post(const struct what *w, void *buffer, const struct remote *r) {
    uct_iov_t iov = {.buffer = buffer, .length = w->length, .count = 1};
    double limit = now() + LIMIT;
    ucs_status_t status;
    comp = (uct_completion_t){.func = complete, .count = 1, .status = UCS_OK};
    completed = 0;
    do {
        status = w->put ? uct_ep_put_zcopy(ep, &iov, 1, r->addr, r->key.rkey, &comp)
                        : uct_ep_get_zcopy(ep, &iov, 1, r->addr, r->key.rkey, &comp);
        if (status != UCS_ERR_NO_RESOURCE) return status;
        progress();
    } while (now() < limit);
    WRONG("%s cannot be posted", w->name);
    return status;
}

static ucs_status_t finish(ucs_status_t status, const char *what) {
    double limit = now() + LIMIT;
    if (status != UCS_INPROGRESS) return status;
    while (!completed) {
        progress();
        if (now() > limit) WRONG("%s does not end", what);
    }
    return comp.status;
}

/* dereg */

static void dereg_owner(const struct what *w) {
    unsigned char *at = map(NULL, w->length);
    uct_mem_h memh, again;
    open_pair(0, 0);
    for (int round = 1; round <= rounds; round++) {
        memset(at, FIRST, w->length);
        check(uct_md_mem_reg(md, at, w->length, UCT_MD_MEM_ACCESS_ALL, &memh), "reg");
        send_guarded_key(memh, at, w->length);
        meet();
        for_micros(rand() % (300 + w->length / 1000));
        invalidate(memh);
        /* The key of before is not good for what is registered there now. */
        check(uct_md_mem_reg(md, at, w->length, UCT_MD_MEM_ACCESS_ALL, &again), "reg");
        put_canaries(at, w->length);
        watch(at, w->length, w->put ? "put" : "get");
        meet();
        check(uct_md_mem_dereg(md, again), "dereg");
    }
    close_pair();
}

static void dereg_peer(const struct what *w) {
    unsigned char *buffer = map(NULL, w->length);
    unsigned good = 0, late = 0;
    struct remote r;
    open_pair(0, 0);
    memset(buffer, w->put ? 0x22 : 0, w->length);
    for (int round = 1; round <= rounds; round++) {
        double limit = now() + LIMIT;
        hear_key(&r);
        meet();
        for (;;) {
            ucs_status_t status = post(w, buffer, &r);
            late += status == UCS_INPROGRESS;
            status = finish(status, w->name);
            if (!w->put && memchr(buffer, CANARY, w->length) != NULL)
                WRONG("memory was read after it was given back (%s)", ucs_status_string(status));
            if (status != UCS_OK) break;
            good++;
            if (now() > limit) WRONG("%s of memory that was invalidated goes on", w->name);
        }
        meet();
        check(uct_rkey_release(component, &r.key), "release");
    }
    printf("  %s of %zu bytes: %u were good, %u were waited for\n", w->put ? "puts" : "gets", w->length, good, late);
    close_pair();
}

/* stop */

static void *let_go_on(void *arg) {
    (void)arg;
    /* Longer than any wait with a bound. */
    usleep(2500000);
    sh->step = 2;
    kill(sh->pids[PEER], SIGCONT);
    return NULL;
}

static void stop_owner(const struct what *w) {
    unsigned char *at = map(NULL, w->length);
    volatile unsigned char *there = (w->put ? at : seen) + w->length / 4;
    double limit;
    uct_mem_h memh;
    pthread_t thread;
    open_pair(0, 0);
    memset(at, FIRST, w->length);
    check(uct_md_mem_reg(md, at, w->length, UCT_MD_MEM_ACCESS_ALL, &memh), "reg");
    send_guarded_key(memh, at, w->length);
    meet();
    meet();
    limit = now() + LIMIT;
    while (*there == (w->put ? FIRST : 0)) {
        if (now() > limit) WRONG("the peer copies nothing");
    }
    kill(sh->pids[PEER], SIGSTOP);
    pthread_create(&thread, NULL, let_go_on, NULL);
    invalidate(memh);
    put_canaries(at, w->length);
    pthread_join(thread, NULL);
    watch(at, w->length, "a peer that was stopped");
    until_step(3);
    watch(at, w->length, "a peer that was stopped");
    meet();
    close_pair();
}

static void stop_peer(const struct what *w) {
    struct what first = {.name = "a first one", .length = 4096, .put = w->put};
    struct remote r;
    open_pair(0, 0);
    memset(seen, w->put ? 0x22 : 0, w->length);
    hear_key(&r);
    meet();
    /* After it memory is reached directly. */
    check(finish(post(&first, seen, &r), "a first one"), "a first one");
    if (w->put) memset(seen, 0x22, w->length);
    meet();
    finish(post(w, seen, &r), w->name);
    if (!w->put && memchr(seen, CANARY, w->length) != NULL) WRONG("memory was read after it was given back");
    if (sh->step < 2) WRONG("it was done before it could be stopped");
    sh->step = 3;
    meet();
    check(uct_rkey_release(component, &r.key), "release");
    close_pair();
}

/* cancel: the initiator is the owner here, of the local memory. */

static volatile unsigned stop_after;

static void *stop_other(void *arg) {
    (void)arg;
    for (volatile unsigned *go = &stop_after; *go == 0;) sched_yield();
    usleep(stop_after);
    kill(sh->pids[PEER], SIGSTOP);
    return NULL;
}

static void cancel_owner(const struct what *w) {
    unsigned char *local = seen;
    struct what first = {.name = "a first one", .length = 4096, .put = w->put};
    unsigned inside = 0, tries = 0;
    double end = now() + 2 * LIMIT;
    struct remote r;
    open_pair(0, 0);
    hear_key(&r);
    meet();
    check(finish(post(&first, local, &r), "a first one"), "a first one");
    /* Until the other side was inside its part twice; the last time it is killed there. */
    while (inside < 2) {
        pthread_t thread;
        ucs_status_t status, flushed;
        double limit;
        tries++;
        if (now() > end) WRONG("the other side was never stopped inside a copy");
        memset(local, FIRST, w->length);
        stop_after = 0;
        pthread_create(&thread, NULL, stop_other, NULL);
        whole(1, "g", 1);
        stop_after = 1 + rand() % 4000;
        status = post(w, local, &r);
        /* A large get begins with the next call of progress. */
        if (status == UCS_INPROGRESS) progress();
        pthread_join(thread, NULL);
        flushed = uct_ep_flush(ep, UCT_FLUSH_FLAG_CANCEL, NULL);
        if (flushed != UCS_OK && flushed != UCS_INPROGRESS) check(flushed, "flush");
        if (flushed == UCS_INPROGRESS) {
            /* The other side is stopped inside: it may touch the memory yet. */
            inside++;
            for_micros(20000);
            if (completed) WRONG("complete, although the other side is stopped inside a copy");
            kill(sh->pids[PEER], inside == 2 ? SIGKILL : SIGCONT);
        } else if (status == UCS_INPROGRESS && !completed) {
            WRONG("a cancelled operation is not complete, and the flush is");
        }
        finish(status, "a cancelled operation");
        put_canaries(local, w->length);
        kill(sh->pids[PEER], SIGCONT);
        if (w->put) {
            for_micros(WATCH_US);
        } else {
            watch(local, w->length, "a get that was cancelled");
        }
        if (inside == 2) break;
        limit = now() + LIMIT;
        while (uct_ep_flush(ep, 0, NULL) == UCS_INPROGRESS) {
            progress();
            if (now() > limit) WRONG("a flush does not end");
        }
        /* What came of it there. */
        whole(1, "d", 1);
        char answer;
        whole(0, &answer, 1);
    }
    printf("  a %s, cancelled %u times: %u times the other side was stopped inside a copy\n", w->name, tries, inside);
    check(uct_rkey_release(component, &r.key), "release");
    uct_ep_destroy(ep);
    uct_iface_close(iface);
}

static void cancel_peer(const struct what *w) {
    unsigned char *at = map(NULL, w->length);
    uct_mem_h memh;
    char c;
    open_pair(0, 0);
    memset(at, 0, w->length);
    check(uct_md_mem_reg(md, at, w->length, UCT_MD_MEM_ACCESS_ALL, &memh), "reg");
    send_guarded_key(memh, at, w->length);
    meet();
    for (;;) {
        whole(0, &c, 1);
        whole(0, &c, 1);
        if (w->put && memchr(at, CANARY, w->length) != NULL) WRONG("local memory was read after it was given back");
        memset(at, 0, w->length);
        whole(1, &c, 1);
    }
}

/* exec */

/* The other program. */
static int other_program(char **argv) {
    size_t length = strtoull(argv[3], NULL, 0), bad = 0;
    double limit = now() + LIMIT;
    unsigned char *at;
    sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED, atoi(argv[2]), 0);
    if (sh == MAP_FAILED) return 1;
    at = map(PLACE, length);
    memset(at, CANARY, length);
    sh->step = 2;
    while (!bad && !sh->over && now() < limit) bad = not_canary(at, length);
    bad += not_canary(at, length);
    if (bad) WRONG("%zu of %zu bytes were written in another program", bad, length);
    return 0;
}

static void exec_owner(const struct what *w) {
    char fd[16], length[32], *argv[] = {"given", "--other", fd, length, NULL};
    unsigned char *at = map(PLACE, w->length);
    uct_mem_h memh;
    open_pair(0, 0);
    memset(at, FIRST, w->length);
    check(uct_md_mem_reg(md, at, w->length, UCT_MD_MEM_ACCESS_ALL, &memh), "reg");
    send_key(memh, at);
    meet();
    snprintf(fd, sizeof(fd), "%d", sh_fd);
    snprintf(length, sizeof(length), "%zu", w->length);
    for_micros(rand() % (300 + w->length / 1000));
    execv("/proc/self/exe", argv);
    WRONG("exec: %s", strerror(errno));
}

static void exec_peer(const struct what *w) {
    unsigned char *buffer = map(NULL, w->length);
    double limit = now() + LIMIT, end = 0;
    struct remote r;
    open_pair(0, 0);
    memset(buffer, 0x22, w->length);
    hear_key(&r);
    meet();
    while (end == 0 || now() < end) {
        int gone = sh->step == 2;
        if (gone && end == 0) end = now() + 0.03;
        if (finish(post(w, buffer, &r), w->name) == UCS_OK && gone)
            WRONG("a put to a process that runs another program was ok");
        if (now() > limit) WRONG("the other program does not start");
    }
    sh->over = 1;
    uct_ep_destroy(ep);
    uct_iface_close(iface);
}

static ucs_status_t failed(void *arg, uct_ep_h of, ucs_status_t status) {
    (void)arg, (void)of, (void)status;
    return UCS_OK;
}

typedef void side(const struct what *);

/* Runs both sides; whether it went well. `killed`: the peer is. */
static int run(const struct what *w, side *owner, side *peer, int killed) {
    side *sides[2] = {owner, peer};
    pid_t pids[2];
    int pair[2], bad = 0;
    fflush(stdout);
    memset(sh, 0, sizeof(*sh));
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return 0;
    for (int i = 0; i < 2; i++) {
        pids[i] = fork();
        if (pids[i] != 0) continue;
        me = i;
        out_of_band = pair[i];
        close(pair[!i]);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(100);
        signal(SIGPIPE, SIG_IGN);
        srand(getpid());
        sh->pids[i] = getpid();
        on_error = failed;
        open_md();
        sides[i](w);
        fflush(stdout);
        _exit(0);
    }
    close(pair[0]);
    close(pair[1]);
    for (int left = 2; left > 0; left--) {
        int status;
        pid_t pid = wait(&status);
        if (pid == pids[PEER] && killed && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && !sh->failed) continue;
        if (status == 0) continue;
        if (!sh->failed) fprintf(stderr, "process %d: status 0x%x\n", pid == pids[PEER], status);
        bad = 1;
        sh->over = sh->failed = 1;
        for (int i = 0; i < 2 && left > 1; i++) {
            if (pids[i] != pid) kill(pids[i], SIGKILL);
        }
    }
    return !bad;
}

static int chosen(int argc, char **argv, const char *name) {
    for (int i = optind; i < argc; i++) {
        if (strcmp(argv[i], name) == 0) return 1;
    }
    return optind == argc;
}

int main(int argc, char **argv) {
    static const size_t lengths[] = {8, 4096, 65536, 1 << 20, 8 << 20};
    static const char *const names[] = {"get", "put"};
    int option, bad = 0, times;
    if (argc > 3 && strcmp(argv[1], "--other") == 0) return other_program(argv);
    while ((option = getopt(argc, argv, "n:")) != -1) {
        if (option != 'n') return 2;
        rounds = atoi(optarg);
    }
    times = rounds;
    sh_fd = memfd_create("given", 0);
    if (sh_fd < 0 || ftruncate(sh_fd, sizeof(*sh)) != 0) return 1;
    sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED, sh_fd, 0);
    seen = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (sh == MAP_FAILED || seen == MAP_FAILED) return 1;
    if (chosen(argc, argv, "dereg")) {
        int good = 1;
        for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths) && good; i++) {
            rounds = lengths[i] > 100000 ? times / 4 + 1 : times;
            for (int put = 0; put < 2 && good; put++)
                good = run(&(struct what){names[put], lengths[i], put}, dereg_owner, dereg_peer, 0);
        }
        printf("%s given-dereg\n", good ? "ok" : "FAILED");
        bad |= !good;
    }
    if (chosen(argc, argv, "stop")) {
        int good = 1;
        for (int put = 0; put < 2 && good; put++)
            good = run(&(struct what){names[put], LARGE, put}, stop_owner, stop_peer, 0);
        printf("%s given-stop\n", good ? "ok" : "FAILED");
        bad |= !good;
    }
    if (chosen(argc, argv, "cancel")) {
        int good = 1;
        for (int put = 0; put < 2 && good; put++)
            good = run(&(struct what){names[put], CANCELLED, put}, cancel_owner, cancel_peer, 1);
        printf("%s given-cancel\n", good ? "ok" : "FAILED");
        bad |= !good;
    }
    if (chosen(argc, argv, "exec")) {
        int good = 1;
        for (int k = 0; k < times / 4 + 1; k++) {
            for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths) && good; i++)
                good = run(&(struct what){"put", lengths[i], 1}, exec_owner, exec_peer, 0);
        }
        printf("%s given-exec\n", good ? "ok" : "FAILED");
        bad |= !good;
    }
    return bad;
}
