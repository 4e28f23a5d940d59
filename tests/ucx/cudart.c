/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * What UCX's modules call of CUDA's runtime library, on top of the stand-in for the driver: the real one
 * does not start on that.  Preloaded under the name of the wheel's own (ci/suite/ucx.sh).
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long ptr_t;
enum { INVALID_VALUE = 1 };

int cuInit(unsigned);
int cuDeviceGetCount(int *);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxGetCurrent(void **);
int cuCtxSetCurrent(void *);
int cuCtxSynchronize(void);
int cuMemAlloc_v2(ptr_t *, size_t);
int cuMemAllocManaged(ptr_t *, size_t, unsigned);
int cuMemFree_v2(ptr_t);
int cuMemcpy(ptr_t, ptr_t, size_t);
int cuMemcpyAsync(ptr_t, ptr_t, size_t, void *);
int cuMemsetD8_v2(ptr_t, unsigned char, size_t);
int cuMemHostRegister_v2(void *, size_t, unsigned);
int cuMemHostUnregister(void *);
int cuStreamCreate(void **, unsigned);
int cuStreamDestroy_v2(void *);
int cuStreamSynchronize(void *);
int cuEventCreate(void **, unsigned);
int cuEventDestroy_v2(void *);
int cuEventQuery(void *);
int cuEventRecord(void *, void *);

int cudaGetDeviceCount(int *count) {
    int code = cuInit(0);
    return code != 0 ? code : cuDeviceGetCount(count);
}

int cudaSetDevice(int device) {
    void *ctx;
    int code = cuInit(0);
    if (code == 0) code = cuDevicePrimaryCtxRetain(&ctx, device);
    return code != 0 ? code : cuCtxSetCurrent(ctx);
}

/* The runtime makes device 0's context current in a thread that has none. */
static int enter(void) {
    void *ctx = NULL;
    if (cuCtxGetCurrent(&ctx) == 0 && ctx != NULL) return 0;
    return cudaSetDevice(0);
}

#define ENTER                    \
    do {                         \
        int code_ = enter();     \
        if (code_ != 0) return code_; \
    } while (0)

int cudaMalloc(void **at, size_t n) {
    ptr_t p = 0;
    int code;
    ENTER;
    code = cuMemAlloc_v2(&p, n);
    *at = (void *)p;
    return code;
}

int cudaMallocManaged(void **at, size_t n, unsigned flags) {
    ptr_t p = 0;
    int code;
    ENTER;
    code = cuMemAllocManaged(&p, n, flags);
    *at = (void *)p;
    return code;
}

int cudaFree(void *at) {
    ENTER;
    return at == NULL ? 0 : cuMemFree_v2((ptr_t)at);
}

int cudaMemcpy(void *to, const void *from, size_t n, int kind) {
    (void)kind;
    ENTER;
    return cuMemcpy((ptr_t)to, (ptr_t)from, n);
}

int cudaMemcpyAsync(void *to, const void *from, size_t n, int kind, void *stream) {
    if (stream == NULL) return cudaMemcpy(to, from, n, kind);
    ENTER;
    return cuMemcpyAsync((ptr_t)to, (ptr_t)from, n, stream);
}

int cudaMemset(void *at, int value, size_t n) {
    ENTER;
    return cuMemsetD8_v2((ptr_t)at, (unsigned char)value, n);
}

int cudaDeviceSynchronize(void) {
    ENTER;
    return cuCtxSynchronize();
}

int cudaHostRegister(void *at, size_t n, unsigned flags) {
    ENTER;
    return cuMemHostRegister_v2(at, n, flags);
}

int cudaHostUnregister(void *at) {
    ENTER;
    return cuMemHostUnregister(at);
}

int cudaStreamCreateWithFlags(void **stream, unsigned flags) {
    ENTER;
    return cuStreamCreate(stream, flags);
}

int cudaStreamDestroy(void *stream) { return cuStreamDestroy_v2(stream); }

int cudaStreamSynchronize(void *stream) {
    ENTER;
    return stream == NULL ? cuCtxSynchronize() : cuStreamSynchronize(stream);
}

int cudaEventCreateWithFlags(void **event, unsigned flags) {
    ENTER;
    return cuEventCreate(event, flags);
}

int cudaEventDestroy(void *event) { return cuEventDestroy_v2(event); }
int cudaEventQuery(void *event) { return cuEventQuery(event); }

int cudaEventRecord(void *event, void *stream) {
    ENTER;
    return cuEventRecord(event, stream);
}

int cudaGetLastError(void) { return 0; }

const char *cudaGetErrorString(int code) {
    (void)code;
    return "an error of the stand-in";
}

int cudaGetSymbolSize(size_t *size, const void *symbol) {
    (void)symbol;
    *size = 0;
    return INVALID_VALUE;
}

/* Of kernels, which are not started here: enough to load what has some. */
void **__cudaRegisterFatBinary(void *binary) {
    static void *handle;
    (void)binary;
    return &handle;
}
void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
void __cudaRegisterFunction(void) {}
void __cudaRegisterVar(void) {}
int __cudaPopCallConfiguration(void) { return INVALID_VALUE; }
int __cudaPushCallConfiguration(void) { return INVALID_VALUE; }
int __cudaGetKernel(void) { return INVALID_VALUE; }
int __cudaLaunchKernel(void) { return INVALID_VALUE; }
int cudaLaunchKernel(void) { return INVALID_VALUE; }
int cudaHostAlloc(void) { return INVALID_VALUE; }
int cudaFreeHost(void) { return INVALID_VALUE; }
int cudaHostGetDevicePointer(void) { return INVALID_VALUE; }
