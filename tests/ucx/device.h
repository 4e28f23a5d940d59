/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * Device memory for the tests beside this, by CUDA's driver or by what stands in for it: found when the
 * program runs, so that nothing of CUDA is needed to build it.
 */
#include "pair.h"
#include <dlfcn.h>

typedef unsigned long long ptr_t;

static void *driver;
static int second_device;

/* A function of the driver's: NAME(result type is int) by its name. */
#define CALL(name, ...) cu_check(((int (*)())function(#name))(__VA_ARGS__), #name)

static void *function(const char *name) {
    void *f = dlsym(driver, name);
    if (f == NULL) die("the driver has no %s", name);
    return f;
}

static void cu_check(int code, const char *what) {
    if (code != 0) die("%s: %d", what, code);
}

static void start_device(void) {
    int device = 0, count = 0;
    void *ctx;
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (driver == NULL) die("%s", dlerror());
    CALL(cuInit, 0);
    CALL(cuDeviceGetCount, &count);
    if (me == 1 && second_device && count > 1) device = 1;
    CALL(cuDevicePrimaryCtxRetain, &ctx, device);
    CALL(cuCtxSetCurrent, ctx);
}

/* How often the stand-in was called like this; -1 if it is the driver. */
static long calls(const char *name) {
    unsigned long long (*f)(const char *) = (unsigned long long (*)(const char *))dlsym(driver, "stand_in_calls");
    return f == NULL ? -1 : (long)f(name);
}

static void fail(const char *name, unsigned long long nth, int code) {
    void (*f)(const char *, unsigned long long, int) =
        (void (*)(const char *, unsigned long long, int))dlsym(driver, "stand_in_fail");
    if (f == NULL) die("this test needs the stand-in for the driver");
    f(name, nth, code);
}

enum sort { PLAIN, MAPPED, POOL, MANAGED, SORTS };
static const char *const sorts[] = {"plain", "mapped", "pool"};
enum { PIECE = 2 << 20 };

struct memory {
    enum sort sort;
    ptr_t at;
    size_t size;
    ptr_t pool;
};

static struct memory make(enum sort sort, size_t size) {
    struct memory m = {.sort = sort, .size = size};
    int device;
    CALL(cuCtxGetDevice, &device);
    if (sort == PLAIN) {
        CALL(cuMemAlloc_v2, &m.at, size);
    } else if (sort == MANAGED) {
        CALL(cuMemAllocManaged, &m.at, size, 1u);
    } else if (sort == POOL) {
        /* CUmemPoolProps: pinned, POSIX descriptors, on a device. */
        int props[26] = {1, 1, 1, device};
        CALL(cuMemPoolCreate, &m.pool, props);
        CALL(cuMemAllocFromPoolAsync, &m.at, size, m.pool, NULL);
        CALL(cuCtxSynchronize);
    } else {
        /* CUmemAllocationProp: as CUmemPoolProps; CUmemAccessDesc: to read and to write. */
        int prop[8] = {1, 1, 1, device}, access[3] = {1, device, 3};
        m.size = (size + PIECE - 1) / PIECE * PIECE;
        CALL(cuMemAddressReserve, &m.at, m.size, (size_t)0, (ptr_t)0, 0ull);
        for (size_t off = 0; off < m.size; off += PIECE) {
            ptr_t handle;
            CALL(cuMemCreate, &handle, (size_t)PIECE, prop, 0ull);
            CALL(cuMemMap, m.at + off, (size_t)PIECE, (size_t)0, handle, 0ull);
            CALL(cuMemRelease, handle);
        }
        CALL(cuMemSetAccess, m.at, m.size, access, (size_t)1);
    }
    return m;
}

static void unmake(struct memory *m) {
    if (m->sort == MAPPED) {
        CALL(cuMemUnmap, m->at, m->size);
        CALL(cuMemAddressFree, m->at, m->size);
    } else if (m->sort == POOL) {
        CALL(cuMemFreeAsync, m->at, NULL);
        CALL(cuCtxSynchronize);
        CALL(cuMemPoolDestroy, m->pool);
    } else {
        CALL(cuMemFree_v2, m->at);
    }
}

/* The pattern of pair.h, by way of host memory. */
static unsigned char *staging;

static void cu_fill(ptr_t at, size_t n, size_t seed) {
    if (n == 0) return;
    fill(staging, n, seed);
    CALL(cuMemcpyHtoD_v2, at, staging, n);
    CALL(cuCtxSynchronize);
}

static void cu_clear(ptr_t at, size_t n) {
    if (n == 0) return;
    memset(staging, 0, n);
    CALL(cuMemcpyHtoD_v2, at, staging, n);
    CALL(cuCtxSynchronize);
}

static void cu_expect(ptr_t at, size_t n, size_t seed, const char *what) {
    if (n == 0) return;
    memset(staging, 0, n);
    CALL(cuMemcpyDtoH_v2, staging, at, n);
    expect(staging, n, seed, what);
}

static void cu_window(struct window *w, struct memory *m) {
    ucp_mem_map_params_t p = {0};
    p.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
    p.length = m->size;
    p.address = (void *)m->at;
    p.memory_type = m->sort == MANAGED ? UCS_MEMORY_TYPE_CUDA_MANAGED : UCS_MEMORY_TYPE_CUDA;
    w->memory = (void *)m->at;
    share_window(w, &p);
}
