/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * One of two processes is killed while the other one has operations with it under way.  Every one of
 * these must end, the endpoint's error handler must be called, what is started afterwards must be
 * refused, and all must be torn down as usual.
 *
 *   death [-w] [-d] [-n rounds] [operation...]     default: every operation, 4 rounds
 *     -w   sleep in the worker's event descriptor instead of polling
 *     -d   with device memory; put and get then are to what the user allocated
 *
 * operations: idle never tag rndv inside receive am put get user-put user-get flush
 * inside: the victim dies while it reads the memory of a large message, which is then taken back.
 *
 * In odd rounds the victim makes progress until it is killed, in even ones it stands still.  The last
 * line of an operation that went well is "ok death-NAME"; before it stands how long it took, after
 * the kill, until the error was reported, until everything had ended, and until all was torn down.  What
 * takes longer than LIMIT hangs, and is a failure.
 */
#include "device.h"

#define FLIGHT 64
#define BIG (1 << 20)
#define LARGE (FLIGHT * BIG)
#define LIMIT 20.0 /* seconds; on a machine that does nothing else it is far less than one */

enum kind { IDLE, NEVER, TAG, RNDV, INSIDE, RECEIVE, AM, PUT, GET, USER_PUT, USER_GET, FLUSH };

static enum kind kind;
static int lively;
static volatile double *killed_at;
static ucs_status_ptr_t flight[FLIGHT];
static struct window w;
static char *buffer;

static int on_device;
static struct memory device_buffer, device_window;

static int remote_memory(void) { return kind >= PUT; }

static void fall(int signal) {
    (void)signal;
    *killed_at = now();
    kill(getpid(), SIGKILL);
}

/* One more operation of this kind. */
static ucs_status_ptr_t post(int i) {
    ucp_request_param_t p = {0};
    size_t header = 1;
    ucs_status_ptr_t put;
    char *place = buffer + (size_t)i * BIG;
    switch (kind) {
    case TAG:      return ucp_tag_send_nbx(ep, place, 700, 1, &p);
    case INSIDE:   return i > 0 ? NULL : ucp_tag_send_nbx(ep, buffer, LARGE, 1, &p);
    case RNDV:     return ucp_tag_send_nbx(ep, place, BIG, 1, &p);
    case RECEIVE:  return ucp_tag_recv_nbx(worker, place, BIG, 1, ~0ull, &p);
    case AM:       return ucp_am_send_nbx(ep, 5, &header, sizeof(header), place, 3000, &p);
    case PUT:
    case USER_PUT: return ucp_put_nbx(ep, place, BIG, w.remote, w.rkey, &p);
    case GET:
    case USER_GET: return ucp_get_nbx(ep, place, BIG, w.remote, w.rkey, &p);
    case FLUSH:
        put = ucp_put_nbx(ep, place, 8, w.remote, w.rkey, &p);
        if (UCS_PTR_IS_PTR(put)) ucp_request_free(put);
        return ucp_ep_flush_nbx(ep, &p);
    default:       return NULL;
    }
}

/* Takes in what has ended; how many are still under way. */
static int reap(void) {
    int left = 0;
    for (int i = 0; i < FLIGHT; i++) {
        if (flight[i] == NULL) continue;
        if (ucp_request_check_status(flight[i]) == UCS_INPROGRESS) {
            left++;
        } else {
            ucp_request_free(flight[i]);
            flight[i] = NULL;
        }
    }
    return left;
}

static ucs_status_t ignore(void *arg, const void *header, size_t header_length, void *data, size_t length,
                           const ucp_am_recv_param_t *param) {
    (void)arg, (void)header, (void)header_length, (void)data, (void)length, (void)param;
    return UCS_OK;
}

static void victim(unsigned delay) {
    ucp_request_param_t p = {0};
    ucs_status_ptr_t out[4] = {0};
    signal(SIGALRM, fall);
    ualarm(delay, 0);
    for (;;) {
        if (!lively) {
            pause();
            continue;
        }
        ucp_worker_progress(worker);
        for (int i = 0; i < 4; i++) {
            if (out[i] != NULL && ucp_request_check_status(out[i]) == UCS_INPROGRESS) continue;
            if (out[i] != NULL) ucp_request_free(out[i]);
            out[i] = NULL;
            /* The other one receives; or what it sends is received. */
            if (kind == RECEIVE) out[i] = ucp_tag_send_nbx(ep, buffer, BIG, 1, &p);
            if (kind == INSIDE && i == 0) out[i] = ucp_tag_recv_nbx(worker, buffer, LARGE, 1, ~0ull, &p);
            if (kind == TAG || kind == RNDV) out[i] = ucp_tag_recv_nbx(worker, buffer, BIG, 1, ~0ull, &p);
            if (UCS_PTR_IS_ERR(out[i])) out[i] = NULL;
        }
    }
}

static void survivor(void) {
    ucp_request_param_t p = {0};
    double limit = now() + 10, reported, ended, down;
    ucs_status_ptr_t r;
    while (!ep_error) {
        for (int i = 0; i < FLIGHT && !ep_error; i++) {
            if (flight[i] != NULL) continue;
            r = post(i);
            if (!UCS_PTR_IS_ERR(r)) flight[i] = r;
            ucp_worker_progress(worker);
        }
        if (kind == NEVER) ucp_worker_progress(worker); else step();
        reap();
        if (now() > limit) die("no error after 10 s");
    }
    reported = now();
    /* The application takes back what was not matched. */
    for (int i = 0; i < FLIGHT && kind == RECEIVE; i++) {
        if (flight[i] != NULL && ucp_request_check_status(flight[i]) == UCS_INPROGRESS) {
            ucp_request_cancel(worker, flight[i]);
        }
    }
    while (reap() > 0) {
        ucp_worker_progress(worker);
        if (now() > limit) die("%d operations do not end", reap());
    }
    ended = now();
    if (kind != RECEIVE && kind != IDLE && kind != NEVER) {
        r = post(0);
        if (r == NULL || (!UCS_PTR_IS_ERR(r) && finish(r, "a late operation") == UCS_OK)) die("a late operation succeeds");
    }
    if (remote_memory()) ucp_rkey_destroy(w.rkey);
    p.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    p.flags = UCP_EP_CLOSE_FLAG_FORCE;
    (void)finish(ucp_ep_close_nbx(ep, &p), "close");
    if (remote_memory()) check(ucp_mem_unmap(context, w.memh), "ucp_mem_unmap");
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
    down = now();
    printf("  %s: reported after %.1f ms, all ended after %.1f ms, down after %.1f ms (%s)\n", lively ? "lively" : "still",
           1e3 * (reported - *killed_at), 1e3 * (ended - *killed_at), 1e3 * (down - *killed_at), ucs_status_string(ep_error));
    if (down - *killed_at > LIMIT) die("that is too long");
}

static unsigned delay;

static void body(void) {
    ucp_am_handler_param_t h = {0};
    if (on_device) {
        device_buffer = make(PLAIN, LARGE);
        device_window = make(PLAIN, BIG);
        buffer = (char *)device_buffer.at;
    } else {
        buffer = calloc(FLIGHT, BIG);
    }
    h.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB;
    h.id = 5;
    h.cb = ignore;
    check(ucp_worker_set_am_recv_handler(worker, &h), "handler");
    if (remote_memory() && on_device) cu_window(&w, &device_window);
    else if (remote_memory()) open_window(&w, BIG, kind != PUT && kind != GET);
    if (kind != NEVER) {
        /* Both have heard of each other. */
        ucp_request_param_t p = {0};
        char c = 0, d;
        ucs_status_ptr_t r = ucp_tag_recv_nbx(worker, &d, 1, 9, ~0ull, &p);
        check(finish(ucp_tag_send_nbx(ep, &c, 1, 9, &p), "send"), "send");
        check(finish(r, "receive"), "receive");
    }
    meet();
    if (me == 1) victim(delay);
    survivor();
}

static const char *const names[] = {
    "idle", "never", "tag", "rndv", "inside", "receive", "am", "put", "get", "user-put", "user-get", "flush",
};

int main(int argc, char **argv) {
    int option, rounds = 4, bad = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    error_mode = 1;
    /* UCP asks after peers that were never sent to every 20 s. */
    setenv("UCX_KEEPALIVE_INTERVAL", "100ms", 0);
    while ((option = getopt(argc, argv, "dwn:")) != -1) {
        if (option == 'w') wakeup = 1;
        else if (option == 'd') on_device = 1;
        else if (option == 'n') rounds = atoi(optarg);
        else return 2;
    }
    killed_at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    srand(time(NULL));
    if (on_device) before_start = start_device;
    for (size_t t = 0; t < LENGTH(names); t++) {
        int wanted = optind == argc;
        char name[64];
        for (int i = optind; i < argc; i++) wanted |= strcmp(argv[i], names[t]) == 0;
        snprintf(name, sizeof(name), "death-%s", names[t]);
        kind = t;
        for (int k = 0; k < rounds && wanted; k++) {
            lively = k % 2;
            delay = 1000 + rand() % 20000;
            if (run(k + 1 < rounds ? NULL : name, body, 1)) {
                printf("FAILED %s, round %d\n", name, k);
                bad = 1;
                break;
            }
        }
    }
    return bad;
}
