/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * Keys of memory that is to be invalidated, and its invalidation, with what is in UCX's uct_v2.h; that is not installed.
 */
#define LIMIT 20.0 /* seconds that nothing may take */

struct dereg_params {
    uint64_t field_mask;
    unsigned flags;
    uct_mem_h memh;
    uct_completion_t *comp;
};
struct pack_params {
    uint64_t field_mask;
    unsigned flags;
};

static void *find(const char *name) {
    void *f = dlsym(RTLD_DEFAULT, name);
    if (f == NULL) die("this UCX has no %s", name);
    return f;
}

/* A key of memory that is to be invalidated. */
static void send_guarded_key(uct_mem_h memh, void *addr, size_t length) {
    struct pack_params p = {.field_mask = 1, .flags = 3};
    char key[512] = {0};
    uint64_t at = (uintptr_t)addr;
    void *pack = find("uct_md_mkey_pack_v2");
    if (dlsym(RTLD_DEFAULT, "uct_rkey_compare") == NULL) {
        ucs_status_t (*old)(uct_md_h, uct_mem_h, const void *, void *) = pack;
        check(old(md, memh, &p, key), "pack");
    } else {
        ucs_status_t (*new)(uct_md_h, uct_mem_h, void *, size_t, const void *, void *) = pack;
        check(new(md, memh, addr, length, &p, key), "pack");
    }
    whole(1, &at, sizeof(at));
    whole(1, key, sizeof(key));
}

static volatile unsigned completed;

static void complete(uct_completion_t *comp) {
    (void)comp;
    completed++;
}

/* Invalidates memory, and returns when that is complete. */
static void invalidate(uct_mem_h memh) {
    uct_completion_t comp = {.func = complete, .count = 1, .status = UCS_OK};
    struct dereg_params p = {.field_mask = 7, .flags = 1, .memh = memh, .comp = &comp};
    ucs_status_t (*dereg)(uct_md_h, const void *) = find("uct_md_mem_dereg_v2");
    double limit = now() + LIMIT;
    completed = 0;
    check(dereg(md, &p), "dereg");
    while (!completed) {
        progress();
        if (now() > limit) die("an invalidation does not end");
    }
}
