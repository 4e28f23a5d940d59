/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What a GPU's kernels and the process that runs them share: the layouts of command rings, completion queues, counters
 * and tables of peers. For C11, C++11, CUDA C++ and NVRTC; it includes nothing.
 *
 * Each structure is written by one side alone, in memory of its own cache lines: "host" is a thread of the process,
 * "device" is a kernel, or any code that plays one. The host takes what a device wrote for the words of an untrusted
 * peer. All words are in the byte order of a little-endian machine. strait_xpu(7) has the whole story.
 */
#ifndef STRAIT_XPU_LAYOUT_H
#define STRAIT_XPU_LAYOUT_H

typedef unsigned long long strait_xpu_u64;
typedef unsigned int strait_xpu_u32;

#if defined(__CUDACC__) || defined(__HIPCC__)
#define STRAIT_XPU_INLINE __host__ __device__ static inline
#else
#define STRAIT_XPU_INLINE static inline
#endif

#ifdef __cplusplus
#define STRAIT_XPU_ASSERT(what) static_assert(what, #what)
#else
#define STRAIT_XPU_ASSERT(what) _Static_assert(what, #what)
#endif

/* Of all that is below. It is in each view; a side that finds another one refuses it. */
#define STRAIT_XPU_VERSION 1u

/* fid_xpu.prov_id of what Strait's provider exports, fi_xpu(3). Its prov_ctx is the address of an endpoint's struct
 * strait_xpu_ring, a queue's struct strait_xpu_queue, or a counter's struct strait_xpu_counter. A raw address
 * (fi_av_lookup2) is 8 bytes: the number of the peer in commands. A raw descriptor (fi_mr_get_xpu_desc) is 8 bytes: the
 * number of the local region. */
#define STRAIT_XPU_PROV_ID 0x53545241u

/* ---- Commands ---------------------------------------------------------------------------------------------------
 *
 * A ring has 2^log2_slots slots of 64 bytes. Commands have tickets, from 0 on; that of ticket t is in slot
 * t mod 2^log2_slots. A producer
 *   1. reserves tickets at `reserved`, never beyond `consumed` + 2^log2_slots;
 *   2. if memory that the command reads was written by the kernel: fences at system scope;
 *   3. stores the eight words of the slot in any order, without a fence. Bit 63 of each is the lap bit.
 * The host takes a command when all eight words have the lap bit of its ticket. Zeroed memory has no command in it.
 *
 *   word 0   63 lap; 62..56 bit 63 of words 7..1 (56: of word 1); 55..48 op; 47..32 flags; 31..0 peer
 *   word 1   local address, or with STRAIT_XPU_INLINE_DATA the bytes themselves; fetched value: its place, or 0
 *   word 2   remote address; of messages: the tag
 *   word 3   remote key; of receives: tag bits to ignore
 *   word 4   39..0 length in bytes, of atomics 7..0 datatype and 15..8 operation; 63..40 local region
 *   word 5   remote address of the signal; operand of an atomic; remote CQ data
 *   word 6   value of the signal; of compare-and-swap: the value compared with
 *   word 7   remote key of the signal; else the context that the completion has
 *
 * Bit 63 of words 1 to 7 is the lap bit, and what is to be there is in word 0. */
#define STRAIT_XPU_SLOT_WORDS 8

#define STRAIT_XPU_LAP_BIT 63
#define STRAIT_XPU_HIGH_SHIFT 56
#define STRAIT_XPU_OP_SHIFT 48
#define STRAIT_XPU_FLAGS_SHIFT 32
#define STRAIT_XPU_REGION_SHIFT 40
#define STRAIT_XPU_LENGTH_MASK ((1ULL << STRAIT_XPU_REGION_SHIFT) - 1)
/* A local region that is none. */
#define STRAIT_XPU_NO_REGION 0xffffffu
/* Bytes that a command may have in itself. */
#define STRAIT_XPU_INLINE_MAX 8

/* What a command is. */
#define STRAIT_XPU_OP_NOP 1        /* nothing; it completes when all before it have */
#define STRAIT_XPU_OP_PUT 2        /* local memory to remote memory */
#define STRAIT_XPU_OP_GET 3        /* remote memory to local memory */
#define STRAIT_XPU_OP_PUT_SIGNAL 4 /* a put, and after it the signal */
#define STRAIT_XPU_OP_SIGNAL 5     /* the signal alone */
#define STRAIT_XPU_OP_ATOMIC 6     /* one element; operand in word 5 */
#define STRAIT_XPU_OP_FETCH 7      /* as ATOMIC; the old value goes to word 1 */
#define STRAIT_XPU_OP_COMPARE 8    /* as FETCH, and compares with word 6 */
#define STRAIT_XPU_OP_SEND 9       /* a message */
#define STRAIT_XPU_OP_TSEND 10     /* a tagged message */
#define STRAIT_XPU_OP_RECV 11      /* a receive; peer STRAIT_XPU_ANY: of any */
#define STRAIT_XPU_OP_TRECV 12     /* a tagged receive */
#define STRAIT_XPU_ANY 0xffffffffu

/* Flags of a command. All others are zero. */
#define STRAIT_XPU_INLINE_DATA 0x0001u /* the bytes are word 1, at most STRAIT_XPU_INLINE_MAX; puts and sends */
#define STRAIT_XPU_COMPLETION 0x0002u  /* its completion goes into the ring's queue */
#define STRAIT_XPU_FENCE 0x0004u       /* starts when all of this ring before it, to this peer, have completed; not of NOP, receives */
#define STRAIT_XPU_SIGNAL_ADD 0x0008u  /* the signal is added to, not set */
#define STRAIT_XPU_SIGNAL_32 0x0010u   /* the signal has 4 bytes (a notification of GASPI), not 8 */
#define STRAIT_XPU_SIGNAL_WEAK 0x0020u /* comes after its own put; else after all puts of this ring to this peer */
#define STRAIT_XPU_MORE 0x0040u        /* another command follows at once */
#define STRAIT_XPU_CQ_DATA 0x0080u     /* word 5 is remote CQ data; puts and sends */
#define STRAIT_XPU_FLAGS_ALL 0x00ffu

struct strait_xpu_slot {
    strait_xpu_u64 word[STRAIT_XPU_SLOT_WORDS];
};

/* A command before it is packed into a slot. */
struct strait_xpu_command {
    strait_xpu_u32 op;
    strait_xpu_u32 flags;
    strait_xpu_u32 peer;
    strait_xpu_u32 region;
    strait_xpu_u64 local;
    strait_xpu_u64 remote;
    strait_xpu_u64 key;
    strait_xpu_u64 length;
    strait_xpu_u64 operand;
    strait_xpu_u64 value;
    strait_xpu_u64 context;
};

/* The lap bit of a ticket, 0 or 1. */
STRAIT_XPU_INLINE strait_xpu_u64 strait_xpu_lap(strait_xpu_u64 ticket, strait_xpu_u32 log2_slots) {
    return ((ticket >> log2_slots) & 1) ^ 1;
}

/* The words of the slot of that ticket. */
STRAIT_XPU_INLINE void strait_xpu_pack(const struct strait_xpu_command *from, strait_xpu_u64 ticket,
                                       strait_xpu_u32 log2_slots, strait_xpu_u64 to[STRAIT_XPU_SLOT_WORDS]) {
    strait_xpu_u64 lap = strait_xpu_lap(ticket, log2_slots) << STRAIT_XPU_LAP_BIT;
    strait_xpu_u64 high = 0;
    int i;
    to[1] = from->local;
    to[2] = from->remote;
    to[3] = from->key;
    to[4] = (from->length & STRAIT_XPU_LENGTH_MASK) | ((strait_xpu_u64)from->region << STRAIT_XPU_REGION_SHIFT);
    to[5] = from->operand;
    to[6] = from->value;
    to[7] = from->context;
    for (i = 1; i < STRAIT_XPU_SLOT_WORDS; i++) {
        high |= (to[i] >> 63) << (STRAIT_XPU_HIGH_SHIFT + i - 1);
        to[i] = (to[i] & ~(1ULL << STRAIT_XPU_LAP_BIT)) | lap;
    }
    to[0] = lap | high | ((strait_xpu_u64)(from->op & 0xff) << STRAIT_XPU_OP_SHIFT) |
            ((strait_xpu_u64)(from->flags & 0xffff) << STRAIT_XPU_FLAGS_SHIFT) | from->peer;
}

/* ---- Rings ---------------------------------------------------------------------------------------------------- */

/* Written by the device. */
struct strait_xpu_produced {
    strait_xpu_u64 reserved;      /* the next ticket */
    strait_xpu_u64 bell;          /* of a ring with STRAIT_XPU_RING_BELL: commands below it are written */
    strait_xpu_u64 seen_consumed; /* the device's copy of `consumed`, so that it is read from the host's memory seldom */
    strait_xpu_u64 unused[5];
};

/* Written by the host. Each word only grows, but for `error`. */
struct strait_xpu_status {
    strait_xpu_u64 consumed; /* slots of tickets below it may be written again, 2^log2_slots later */
    strait_xpu_u64 local;    /* the source memory of commands below it may be written again */
    strait_xpu_u64 done;     /* commands below it are complete at the target (sends: have left; receives: are posted), or failed */
    strait_xpu_u64 error;    /* 0, or the first error; see below */
    strait_xpu_u64 failed;   /* commands that have failed */
    strait_xpu_u64 beat;     /* grows at least once in `beat_ns` while the drain runs */
    strait_xpu_u64 unused[2];
};

/* An error word: 31..0 an errno (of libfabric's numbers); 62..32 the ticket; bit 63: nothing more is taken or done. */
#define STRAIT_XPU_ERROR_CODE(word) ((strait_xpu_u32)(word))
#define STRAIT_XPU_ERROR_TICKET(word) ((strait_xpu_u32)((word) >> 32) & 0x7fffffffu)
#define STRAIT_XPU_ERROR_ENDED (1ULL << 63)

/* Of a ring: commands are taken up to `bell` only. Else a slot is taken as soon as it is written. */
#define STRAIT_XPU_RING_BELL 1u

/* What a device has to know of a ring. Written by the host, once. */
struct strait_xpu_ring {
    strait_xpu_u32 version;
    strait_xpu_u32 log2_slots;
    strait_xpu_u32 flags;
    strait_xpu_u32 id;
    strait_xpu_u64 slots;      /* addresses in the device's space: struct strait_xpu_slot[] */
    strait_xpu_u64 produced;   /* struct strait_xpu_produced */
    strait_xpu_u64 status;     /* struct strait_xpu_status */
    strait_xpu_u64 queue;      /* struct strait_xpu_queue, or 0 */
    strait_xpu_u64 timeout_ns; /* of waits that name no time */
    strait_xpu_u64 beat_ns;
};

/* ---- Completion queues and counters ----------------------------------------------------------------------------- */

/* A completion. The host writes `commit` last, with release: the number of the entry, from 1 on. */
struct strait_xpu_completion {
    strait_xpu_u64 context;
    strait_xpu_u64 what;   /* 7..0 op; 15..8: 1 if `data` is remote CQ data; 63..32: 0, or the errno */
    strait_xpu_u64 length; /* bytes of the operation, or received */
    strait_xpu_u64 data;
    strait_xpu_u64 tag;
    strait_xpu_u64 source; /* index of the peer, or STRAIT_XPU_ANY */
    strait_xpu_u64 ticket; /* 47..0 ticket, 63..48 the ring's id; of an op 0: none, a peer's write with CQ data */
    strait_xpu_u64 commit;
};

/* Written by the device: the entries below it have been read. */
struct strait_xpu_queue_read {
    strait_xpu_u64 read;
    strait_xpu_u64 unused[7];
};

/* What a device has to know of a queue. Written by the host; only `error` changes. */
struct strait_xpu_queue {
    strait_xpu_u32 version;
    strait_xpu_u32 log2_entries;
    strait_xpu_u64 entries; /* struct strait_xpu_completion[] */
    strait_xpu_u64 read;    /* struct strait_xpu_queue_read */
    strait_xpu_u64 timeout_ns;
    strait_xpu_u64 error;  /* an error word */
    strait_xpu_u64 format; /* libfabric's number of the entries' format; 0: of none */
    strait_xpu_u64 unused[2];
};

/* Written by the host. A counter's value is value + added, and wraps; the host reads what the device adds. */
struct strait_xpu_counter_host {
    strait_xpu_u64 value;
    strait_xpu_u64 errors;
    strait_xpu_u64 error; /* an error word */
    strait_xpu_u64 timeout_ns;
    strait_xpu_u64 writeback; /* for streams that wait: bit 63, 7 bits of failures, 48 bits of the value */
    strait_xpu_u64 unused[3];
};

/* Written by the device. */
struct strait_xpu_counter_device {
    strait_xpu_u64 added;
    strait_xpu_u64 errors_added;
    strait_xpu_u64 unused[6];
};

struct strait_xpu_counter {
    struct strait_xpu_counter_host host;
    struct strait_xpu_counter_device device;
};

/* ---- Contexts ---------------------------------------------------------------------------------------------------- */

/* A region of a peer, as this device reaches it. `peers` holds regions of peer p from p * regions on. */
struct strait_xpu_peer {
    strait_xpu_u64 mapped; /* its first byte in the device's space; 0: reached by commands alone */
    strait_xpu_u64 remote; /* its first byte in commands */
    strait_xpu_u64 key;
    strait_xpu_u64 length; /* 0: there is no such region */
};

/* A region of this process. */
struct strait_xpu_region {
    strait_xpu_u64 base;
    strait_xpu_u64 length;
    strait_xpu_u64 key;
    strait_xpu_u64 unused;
};

/* What a device has to know of a context. Written by the host, once. */
struct strait_xpu_context {
    strait_xpu_u32 version;
    strait_xpu_u32 rank;
    strait_xpu_u32 peer_count;
    strait_xpu_u32 region_count; /* of this process and of each peer */
    strait_xpu_u32 ring_count;
    strait_xpu_u32 unused0;
    strait_xpu_u64 peers;       /* struct strait_xpu_peer[peer_count * region_count] */
    strait_xpu_u64 regions;     /* struct strait_xpu_region[region_count] */
    strait_xpu_u64 rings;       /* struct strait_xpu_ring[ring_count] */
    strait_xpu_u64 peer_errors; /* error words, one a peer; the host writes one when the peer is lost */
    strait_xpu_u64 timeout_ns;  /* of waits that name no time */
    strait_xpu_u64 unused[8];
};

STRAIT_XPU_ASSERT(sizeof(strait_xpu_u64) == 8);
STRAIT_XPU_ASSERT(sizeof(strait_xpu_u32) == 4);
STRAIT_XPU_ASSERT(sizeof(struct strait_xpu_slot) == 64);
STRAIT_XPU_ASSERT(sizeof(struct strait_xpu_produced) == 64);
STRAIT_XPU_ASSERT(sizeof(struct strait_xpu_status) == 64);
STRAIT_XPU_ASSERT(sizeof(struct strait_xpu_ring) == 64);
STRAIT_XPU_ASSERT(sizeof(struct strait_xpu_completion) == 64);
STRAIT_XPU_ASSERT(sizeof(struct strait_xpu_queue_read) == 64);
STRAIT_XPU_ASSERT(sizeof(struct strait_xpu_queue) == 64);
STRAIT_XPU_ASSERT(sizeof(struct strait_xpu_counter_host) == 64);
STRAIT_XPU_ASSERT(sizeof(struct strait_xpu_counter_device) == 64);
STRAIT_XPU_ASSERT(sizeof(struct strait_xpu_counter) == 128);
STRAIT_XPU_ASSERT(sizeof(struct strait_xpu_peer) == 32);
STRAIT_XPU_ASSERT(sizeof(struct strait_xpu_region) == 32);
STRAIT_XPU_ASSERT(sizeof(struct strait_xpu_context) == 128);

#endif
