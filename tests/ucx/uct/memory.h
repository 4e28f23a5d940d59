/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * A receiver that may have no more memory for a while: messages wait, and come in order with all bytes once it may.
 */
#ifndef MEMORY_H
#define MEMORY_H

#include <sys/resource.h>

enum { MESSAGES = 3000 };

static struct {
    unsigned count;
    void *desc[MESSAGES];
} held;

static size_t length_of(unsigned n) {
    static const size_t lengths[] = {100, 3000, 40, 700, 1500, 8000};
    return lengths[n % 6];
}

static size_t pack_numbered(void *dest, void *arg) {
    unsigned n = *(unsigned *)arg;
    memset(dest, n % 251, length_of(n));
    memcpy(dest, &n, sizeof(n));
    return length_of(n);
}

/* Keeps what may be kept, as UCP does with messages that no receive is for. */
static ucs_status_t hold(void *arg, void *data, size_t length, unsigned flags) {
    unsigned n = held.count++;
    const unsigned char *bytes = data;
    (void)arg;
    if (memcmp(data, &n, sizeof(n)) != 0) die("message %u is not the next", n);
    if (length != length_of(n)) die("message %u has %zu bytes", n, length);
    for (size_t k = sizeof(n); k < length; k++) {
        if (bytes[k] != n % 251) die("wrong bytes in message %u", n);
    }
    if (!(flags & UCT_CB_PARAM_FLAG_DESC)) return UCS_OK;
    held.desc[n] = (char *)data - 24;
    return UCS_INPROGRESS;
}

static void limit_memory(rlim_t most) {
    struct rlimit limit = {most, RLIM_INFINITY};
    if (setrlimit(RLIMIT_AS, &limit) != 0) die("setrlimit");
}

static rlim_t memory_used(void) {
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%lu", &pages) != 1) die("statm");
    fclose(file);
    return pages * 4096;
}

/* Makes progress until there have been so many messages, and for a while no more. */
static void settle(unsigned least) {
    double begin = now(), last = begin;
    unsigned count = held.count;
    while (held.count < least || now() < last + 0.2) {
        progress();
        if (held.count != count) last = now();
        count = held.count;
        if (now() > begin + 60) die("%u messages had room, not %u", count, least);
    }
}

static void test_memory(void) {
    open_pair(0, 0);
    held.count = 0;
    check(uct_iface_set_am_handler(iface, 3, hold, NULL, 0), "handler");
    unsigned first = 0;
    ssize_t got;
    if (me == 0) {
        while ((got = uct_ep_am_bcopy(ep, 3, pack_numbered, &first, 0)) == UCS_ERR_NO_RESOURCE) progress();
    } else {
        while (held.count < 1) progress();
    }
    meet();
    if (me == 0) {
        for (unsigned n = 1; n < MESSAGES; n++) {
            while ((got = uct_ep_am_bcopy(ep, 3, pack_numbered, &n, 0)) == UCS_ERR_NO_RESOURCE) progress();
            if (got < 0) die("message %u: %zd", n, got);
        }
    } else {
        limit_memory(memory_used() + (1 << 20));
        settle(10);
        unsigned before = held.count;
        /* What UCP gives back is enough for others. */
        for (unsigned n = 0; n < before; n++) {
            if (held.desc[n] != NULL) uct_iface_release_desc(held.desc[n]);
        }
        settle(before + 10);
        unsigned then = held.count;
        limit_memory(RLIM_INFINITY);
        if (then >= MESSAGES) die("all messages had room");
        double start = now();
        while (held.count < MESSAGES) {
            progress();
            if (now() > start + 60) die("message %u does not come", held.count);
        }
        for (unsigned n = before; n < MESSAGES; n++) {
            if (held.desc[n] != NULL) uct_iface_release_desc(held.desc[n]);
        }
    }
    meet();
    close_pair();
}

#endif
