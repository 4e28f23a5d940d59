/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * What a fence and a flush say of operations that are pending, for the tests of uct.c.
 */

/* An atomic swap, or a put, of one word. */
struct word {
    uct_pending_req_t req;
    const struct remote *to;
    int put;
    uint64_t value, before;
    uct_completion_t comp;
    int done;
};

static void word_done(uct_completion_t *comp) {
    struct word *w = (struct word *)((char *)comp - offsetof(struct word, comp));
    check(comp->status, "an operation");
    w->done = 1;
}

static ucs_status_t post_word(struct word *w) {
    if (w->put) return uct_ep_put_short(ep, &w->value, sizeof(w->value), w->to->addr, w->to->key.rkey);
    return uct_ep_atomic64_fetch(ep, UCT_ATOMIC_OP_SWAP, w->value, &w->before, w->to->addr, w->to->key.rkey, &w->comp);
}

/* Of a pending request: whether it is no longer one. */
static ucs_status_t post_pending(uct_pending_req_t *req) {
    struct word *w = (struct word *)req;
    ucs_status_t status = post_word(w);
    if (status == UCS_ERR_NO_RESOURCE) return status;
    if (status == UCS_OK) w->done = 1;
    if (status != UCS_OK && status != UCS_INPROGRESS) die("a pending operation: %s", ucs_status_string(status));
    return UCS_OK;
}

/* As UCP does: what finds no resource is pending. */
static void post(struct word *w) {
    for (;;) {
        ucs_status_t status = post_word(w);
        if (status == UCS_OK) w->done = 1;
        if (status == UCS_OK || status == UCS_INPROGRESS) return;
        if (status != UCS_ERR_NO_RESOURCE) die("an operation: %s", ucs_status_string(status));
        status = uct_ep_pending_add(ep, &w->req, 0);
        if (status == UCS_OK) return;
        if (status != UCS_ERR_BUSY) die("pending_add: %s", ucs_status_string(status));
        progress();
    }
}

static void flushed(uct_completion_t *comp) { (void)comp; }

/* A swap is asked of the peer's progress here, and a put needs none. The first swap finds no resource, as the
 * peer has not answered yet; then a fence, and the put. And the same with a swap that is under way. */
static void test_order(void) {
    enum { ROUNDS = 20 };
    uint64_t *memory = calloc(2, 4096);
    for (int round = 0; round < ROUNDS; round++) {
        uct_mem_h memh;
        struct remote r;
        open_pair(0, 0);
        memory[0] = 5;
        check(uct_md_mem_reg(md, memory, 4096, UCT_MD_MEM_ACCESS_ALL, &memh), "reg");
        send_key(memh, memory);
        hear_key(&r);
        /* Nothing was sent yet: the first swap begins the connection, and is pending until the target has answered. */
        meet_idle();
        if (me == 0) {
            double limit = now() + 60;
            for (uint64_t step = 0; step < 2; step++) {
                struct word words[2];
                uct_completion_t comp = {.func = flushed, .count = 1, .status = UCS_OK};
                memset(words, 0, sizeof(words));
                for (int k = 0; k < 2; k++) {
                    words[k].req.func = post_pending;
                    words[k].comp.func = word_done;
                    words[k].comp.count = 1;
                    words[k].to = &r;
                    words[k].put = k;
                    words[k].value = 10 * step + 10 + k;
                }
                post(&words[0]);
                check(uct_ep_fence(ep, 0), "fence");
                post(&words[1]);
                /* A flush finds no resource either, so that UCP queues it behind the pending put. */
                if (!words[1].done && uct_ep_flush(ep, 0, &comp) != UCS_ERR_NO_RESOURCE) die("a flush passes what is pending");
                while (!words[0].done || !words[1].done) {
                    progress();
                    if (now() > limit) die("step %lu: %d and %d done", (unsigned long)step, words[0].done, words[1].done);
                }
                if (words[0].before != (step == 0 ? 5 : 11))
                    die("step %lu: the swap found %lu", (unsigned long)step, (unsigned long)words[0].before);
            }
        }
        meet();
        if (me == 1 && memory[0] != 21) die("%lu is there: a fence was passed", (unsigned long)memory[0]);
        check(uct_rkey_release(component, &r.key), "release");
        meet();
        check(uct_md_mem_dereg(md, memh), "dereg");
        close_pair();
    }
    free(memory);
}
