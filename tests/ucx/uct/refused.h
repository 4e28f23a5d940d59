/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * CMA that is refused when it has worked: what was posted before goes by requests, of which no more wait for a peer than
 * otherwise. For the tests of uct.c; no CMA works in this process from then on.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static void refuse_cma(void) {
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {.len = sizeof(program) / sizeof(*program), .filter = program};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) die("no new privileges: %s", strerror(errno));
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) die("seccomp: %s", strerror(errno));
}

/* Many large gets are in flight when CMA is refused, and the other one makes no progress. */
static void gets_refused(char *to, size_t size, const struct remote *r) {
    enum { MANY = 4000, MOST = 256 << 10 };
    uct_completion_t comp = {.func = got, .count = MANY + 1, .status = UCS_OK};
    uct_iov_t iov = {.buffer = to, .length = size, .count = 1};
    double limit = now() + 60;
    size_t before, after;
    ucs_status_t status;
    int done = 0;
    for (int k = 0; k < MANY; k++) {
        status = uct_ep_get_zcopy(ep, &iov, 1, r->addr, r->key.rkey, &comp);
        if (status != UCS_INPROGRESS) check(status, "get");
        done += status == UCS_OK;
    }
    before = heap();
    refuse_cma();
    for (int k = 0; k < 2 * MANY; k++) progress();
    after = heap();
    printf("%d gets in flight, %zu bytes more\n", MANY - done, after > before ? after - before : 0);
    if (after > before + MOST) die("requests for one peer take %zu bytes", after - before);
    memset(to, 0, size);
    meet_idle();
    while (comp.count + done > 1) {
        progress();
        if (now() > limit) die("%d gets do not end", comp.count + done - 1);
    }
    check(comp.status, "get");
    for (size_t i = 0; i < size; i++) {
        if (to[i] != 5) die("byte %zu is %d", i, to[i]);
    }
}

/* A short get has no completion: what cannot be done in the call is not begun. */
static void short_get_refused(const struct remote *r) {
    char c = 9;
    ucs_status_t status;
    refuse_cma();
    status = uct_ep_get_short(ep, &c, 1, r->addr, r->key.rkey);
    if (status != UCS_ERR_UNSUPPORTED) die("a short get without CMA: %s", ucs_status_string(status));
    meet_idle();
    for (int k = 0; k < 1000; k++) progress();
    if (c != 9) die("a short get that was refused is done");
}

static void test_refused(void) {
    enum { SIZE = 16 << 10 };
    char *from = malloc(SIZE), *to = malloc(SIZE), c;
    ucs_status_t status;
    struct remote r;
    uct_mem_h memh;
    memset(from, 5, SIZE);
    open_pair(0, 0);
    check(uct_md_mem_reg(md, from, SIZE, UCT_MD_MEM_ACCESS_ALL, &memh), "reg");
    send_key(memh, from);
    hear_key(&r);
    /* By CMA. */
    while ((status = uct_ep_get_short(ep, &c, 1, r.addr, r.key.rkey)) == UCS_ERR_NO_RESOURCE) progress();
    check(status, "a short get");
    for (int turn = 0; turn < 2; turn++) {
        meet();
        if (me != turn) {
            meet_idle();
        } else if (me == 0) {
            gets_refused(to, SIZE, &r);
        } else {
            short_get_refused(&r);
        }
        meet();
    }
    check(uct_rkey_release(component, &r.key), "release");
    meet();
    check(uct_md_mem_dereg(md, memh), "dereg");
    close_pair();
    free(from);
    free(to);
}
