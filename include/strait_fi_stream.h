/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Counters of the strait provider that GPU streams and kernels raise and wait for. docs/streams.md has a loop.
 *
 *     struct fi_strait_ops_cntr *ops;
 *     fi_open_ops(&cntr->fid, FI_STRAIT_CNTR_OPS, 0, (void **) &ops, NULL);
 *
 * A write-back word has the counter's value in its low 48 bits, the failures in the 7 bits above them (127: as many or more),
 * and bit 63 set. A stream waits by cuStreamWaitValue64(stream, word, fi_strait_cntr_until(n), CU_STREAM_WAIT_VALUE_GEQ). The
 * wait passes when the counter is n or more, when anything has failed, and when the counter is closed: it never depends on
 * a peer that is gone. The program then looks at fi_strait_cntr_wb_readerr, fi_cntr_readerr or fi_cq_readerr.
 */

#ifndef STRAIT_FI_STREAM_H
#define STRAIT_FI_STREAM_H

#include <stddef.h>
#include <stdint.h>
#define FI_STRAIT_CNTR_OPS "strait_cntr_ops_v2"

#define FI_STRAIT_CNTR_SUCCESS_MAX ((1ULL << 48) - 1)
#define FI_STRAIT_CNTR_FAILURE_MAX ((1ULL << 7) - 1)

struct fid;

/* The value of a write-back word. */
static inline uint64_t fi_strait_cntr_wb_read(uint64_t word)
{
    return word & FI_STRAIT_CNTR_SUCCESS_MAX;
}

/* The failures of a write-back word. */
static inline uint64_t fi_strait_cntr_wb_readerr(uint64_t word)
{
    return (word >> 48) & FI_STRAIT_CNTR_FAILURE_MAX;
}

/* The word of a counter that has reached the value, at most FI_STRAIT_CNTR_SUCCESS_MAX, without a failure. */
static inline uint64_t fi_strait_cntr_until(uint64_t value)
{
    return (1ULL << 63) | value;
}


/*
 Of a counter of the strait provider, by fi_open_ops(&cntr->fid, FI_STRAIT_CNTR_OPS, 0, &ops, NULL). The
 first two members are those of the cxi provider's table. The first call for a counter that was opened
 without a context of fi_xpu(3) starts the thread that polls for streams; a domain of FI_THREAD_DOMAIN has
 none (-FI_EOPNOTSUPP).
 */
struct fi_strait_ops_cntr {
    /*
     Has the provider write the write-back word to `buf`, too, from now on; it has the word when the call
     returns. `buf` has at least 8 bytes, aligned to 8, of host or device memory (-FI_EINVAL), and stays
     until another buffer is set or the counter is closed. NULL: no buffer.
     */
    int (*set_wb_buffer)(struct fid *fid, void *buf, size_t len);
    /*
     Where the device raises the counter: the first word has what the device has added in all, and the
     second, 8 bytes behind it, the failures. A stream stores the sum (1, 2, 3, ...) and a kernel adds.
     Valid until the domain is closed.
     */
    int (*get_mmio_addr)(struct fid *fid, void **addr, size_t *len);
    /*
     The counter's own write-back word, for programs that set no buffer, in host memory that the device
     maps. Valid until the domain is closed.
     */
    int (*get_wb_addr)(struct fid *fid, void **addr, size_t *len);
    /*
     A stream waits for `value`, and is to wait no longer once nothing has changed in the counter for
     `timeout_ns`, looked at every 25 ms. Then the counter has a failure, and what it was to count ends
     with FI_ETIMEDOUT: deferred work that has not started; all that waits for the counter, or for another
     one in which such work was to count, whatever else counts there; receives without a message; sends
     whose bytes are still here. The limit ends when the counter has reached `value` or has a failure, also
     one from before (fi_cntr_seterr clears it); it takes the place of the one before. `timeout_ns` 0: no
     limit, as at first.
     */
    int (*set_limit)(struct fid *fid, uint64_t value, uint64_t timeout_ns);
};

#endif  /* STRAIT_FI_STREAM_H */
