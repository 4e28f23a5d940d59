/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * Large gets by CMA, which are in flight until progress copies them: what flush, fence, an armed descriptor and the end of an
 * endpoint say of them. For the tests of uct.c.
 */
#include <sys/resource.h>

enum { GET = 64 << 10, GETS = 40 };

static char *there, *here;
static struct remote source;

static void get_done(uct_completion_t *comp) { (void)comp; }

static ucs_status_t get_large(int k, uct_completion_t *comp) {
    uct_iov_t iov = {.buffer = here + k * GET, .length = GET, .count = 1};
    double limit = now() + 60;
    ucs_status_t status;
    while ((status = uct_ep_get_zcopy(ep, &iov, 1, source.addr + k * GET, source.key.rkey, comp)) ==
           UCS_ERR_NO_RESOURCE) {
        progress();
        if (now() > limit) die("a get finds no resource without end");
    }
    if (status != UCS_OK && status != UCS_INPROGRESS) die("a get: %s", ucs_status_string(status));
    return status;
}

static void has_come(int k, char want) {
    for (int i = 0; i < GET; i++) {
        if (here[k * GET + i] != want) die("byte %d of get %d is %d, not %d", i, k, here[k * GET + i], want);
    }
}

static uct_completion_t waiting_for(int n) {
    return (uct_completion_t){.func = get_done, .count = n, .status = UCS_OK};
}

/* Each flush says that gets are under way until they have come. */
static void gets_flushed(int of_iface) {
    uct_completion_t comp = waiting_for(GETS + 1), flushed = waiting_for(2);
    ucs_status_t status = UCS_INPROGRESS;
    double limit = now() + 60;
    int done = 0, asked = 0;
    memset(here, 0, GETS * GET);
    for (int k = 0; k < GETS; k++) done += get_large(k, &comp) == UCS_OK;
    while (status == UCS_INPROGRESS && flushed.count == 2) {
        if (of_iface) {
            status = uct_iface_flush(iface, 0, NULL);
        } else if (!asked) {
            status = uct_ep_flush(ep, 0, &flushed);
            asked = 1;
        }
        if (status == UCS_INPROGRESS && flushed.count == 2) progress();
        if (now() > limit) die("a flush has no end");
    }
    if (status != UCS_INPROGRESS) check(status, "flush");
    check(flushed.status, "flush");
    if (comp.count + done != 1) die("a flush is done, and %d gets are not", comp.count + done - 1);
    for (int k = 0; k < GETS; k++) has_come(k, 5);
}

/* What is put behind a fence is not what the get before it brings. */
static void gets_fenced(int of_iface) {
    uct_completion_t comp = waiting_for(2);
    char other = 6, before = 5;
    double limit = now() + 60;
    int done = get_large(1, &comp) == UCS_OK;
    check(of_iface ? uct_iface_fence(iface, 0) : uct_ep_fence(ep, 0), "fence");
    for (int round = 0; round < 2; round++) {
        ucs_status_t status;
        char *value = round == 0 ? &other : &before;
        while ((status = uct_ep_put_short(ep, value, 1, source.addr + GET + 100, source.key.rkey)) ==
               UCS_ERR_NO_RESOURCE) {
            progress();
            if (now() > limit) die("a put behind a fence never starts");
        }
        check(status, "put");
    }
    while (comp.count + done > 1) progress();
    has_come(1, 5);
}

/* A message finds that its channel cannot be opened now. */
static void find_no_descriptor(uct_ep_h to) {
    struct rlimit before, none;
    if (getrlimit(RLIMIT_NOFILE, &before) != 0) die("getrlimit");
    none = before;
    none.rlim_cur = 0;
    if (setrlimit(RLIMIT_NOFILE, &none) != 0) die("setrlimit");
    if (uct_ep_am_short(to, 3, 7, NULL, 0) != UCS_ERR_NO_RESOURCE) die("a channel without a descriptor");
    if (setrlimit(RLIMIT_NOFILE, &before) != 0) die("setrlimit");
}

/* After the descriptor was armed UCX may sleep, and it reports no copy that is left to progress: none is, of those posted
 * before and after. `busy`: an endpoint that has no channel yet. */
static void gets_of_a_sleeper(uct_ep_h busy) {
    double limit = now() + 60;
    for (int k = 0; k < GETS; k++) {
        uct_completion_t comp = waiting_for(2), before = waiting_for(2);
        int waits = get_large(k, &before) == UCS_INPROGRESS;
        ucs_status_t status;
        while ((status = uct_iface_event_arm(iface, UCT_EVENT_SEND_COMP | UCT_EVENT_RECV)) == UCS_ERR_BUSY) {
            progress();
            if (now() > limit) die("it cannot be armed");
        }
        check(status, "event_arm");
        if (waits && before.count > 1) die("it is armed, and get %d waits for progress", k);
        if (busy != NULL) find_no_descriptor(busy);
        memset(here + k * GET, 0, GET);
        if (get_large(k, &comp) != UCS_OK) die("get %d waits for progress, which no descriptor reports", k);
        has_come(k, 5);
    }
}

/* The same while a channel to another interface waits to be opened. */
static void gets_of_a_sleeper_that_connects(void) {
    char *address = calloc(1, 256), *theirs = peer_iface;
    uct_iface_h other;
    uct_ep_h busy;
    check(open_iface(0, 0, &other), "iface");
    check(uct_iface_get_address(other, (void *)address), "iface address");
    peer_iface = address;
    busy = connect_ep();
    peer_iface = theirs;
    gets_of_a_sleeper(busy);
    uct_ep_destroy(busy);
    uct_iface_close(other);
    free(address);
}

/* Nothing is accessed once the endpoint is gone, or its operations are cancelled. */
static void gets_ended(int cancelled) {
    uct_completion_t comp = waiting_for(GETS + 1);
    int under_way = 0;
    for (int k = 0; k < GETS; k++) under_way += get_large(k, &comp) == UCS_INPROGRESS;
    if (cancelled) {
        ucs_status_t status = uct_ep_flush(ep, UCT_FLUSH_FLAG_CANCEL, NULL);
        while (status == UCS_INPROGRESS) {
            progress();
            status = uct_ep_flush(ep, 0, NULL);
        }
        check(status, "flush");
        if (comp.count != GETS + 1 - under_way) die("%d are left of %d", comp.count, under_way);
        if (under_way > 0 && comp.status != UCS_ERR_CANCELED) die("it is %s", ucs_status_string(comp.status));
    } else {
        uct_ep_destroy(ep);
    }
    memset(here, 0, GETS * GET);
    for (int k = 0; k < 100; k++) progress();
    for (int k = 0; k < GETS; k++) has_come(k, 0);
    if (!cancelled) ep = connect_ep();
}

static void test_gets(void) {
    uct_mem_h memh;
    there = malloc(GETS * GET);
    here = malloc(GETS * GET);
    memset(there, 5, GETS * GET);
    open_pair(0, 0);
    check(uct_md_mem_reg(md, there, GETS * GET, UCT_MD_MEM_ACCESS_ALL, &memh), "reg");
    send_key(memh, there);
    hear_key(&source);
    meet();
    for (int turn = 0; turn < 2; turn++) {
        /* The other one makes progress meanwhile, and may help. */
        if (me == turn) {
            gets_flushed(0);
            gets_flushed(1);
            gets_fenced(0);
            gets_fenced(1);
            gets_of_a_sleeper(NULL);
            gets_of_a_sleeper_that_connects();
            gets_ended(0);
            gets_ended(1);
            gets_flushed(0);
        }
        meet();
    }
    check(uct_rkey_release(component, &source.key), "release");
    meet();
    check(uct_md_mem_dereg(md, memh), "dereg");
    close_pair();
    free(there);
    free(here);
}
