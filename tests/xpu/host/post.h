/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The kernel's side of a ring, by a thread. CHECK is defined before. */
#ifndef STRAIT_TEST_XPU_POST_H
#define STRAIT_TEST_XPU_POST_H

#include <stdint.h>
#include <time.h>

#include <strait_xpu_layout.h>

#define LIMIT_S 60

typedef strait_xpu_u64 u64;

static u64 load(u64 address) { return __atomic_load_n((u64 *)(uintptr_t)address, __ATOMIC_ACQUIRE); }
static void store(u64 address, u64 value) { __atomic_store_n((u64 *)(uintptr_t)address, value, __ATOMIC_RELEASE); }

static int late(time_t begin) { return time(NULL) - begin > LIMIT_S; }

/* Writes a command into the ring; its ticket. */
static u64 post(const struct strait_xpu_ring *ring, const struct strait_xpu_command *command) {
    struct strait_xpu_produced *produced = (void *)(uintptr_t)ring->produced;
    struct strait_xpu_status *status = (void *)(uintptr_t)ring->status;
    u64 words[STRAIT_XPU_SLOT_WORDS], ticket = produced->reserved++;
    struct strait_xpu_slot *slot =
        (struct strait_xpu_slot *)(uintptr_t)ring->slots + (ticket & ((1ull << ring->log2_slots) - 1));
    time_t begin = time(NULL);
    while (ticket - load((u64)(uintptr_t)&status->consumed) >= 1ull << ring->log2_slots) CHECK(!late(begin));
    strait_xpu_pack(command, ticket, ring->log2_slots, words);
    for (int i = STRAIT_XPU_SLOT_WORDS - 1; i >= 0; i--) store((u64)(uintptr_t)&slot->word[i], words[i]);
    return ticket;
}

#endif
