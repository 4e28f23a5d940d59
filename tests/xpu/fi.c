/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* fi_xpu(3) by fi_open_ops, through an installed libfabric: a thread of the first process plays the kernel and puts into the
 * second process, which is then killed while the kernel goes on. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#include <strait_fi_xpu.h>
#include <strait_xpu_layout.h>

#define LENGTH 65536
#define ROUNDS 200
#define LIMIT_S 60

typedef strait_xpu_u64 u64;
static const char *role = "kernel";
#define CHECK_FORMAT "%s: "
#define CHECK_ARGS role
#include "check.h"

static char memory[LENGTH] __attribute__((aligned(64)));

/* What the target sends of itself. */
struct card {
    char name[64];
    size_t length;
    u64 key;
};

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_mr *mr;

static u64 load(const void *at) { return __atomic_load_n((const u64 *)at, __ATOMIC_ACQUIRE); }

static void open_domain(void) {
    struct fi_info *hints = fi_allocinfo();
    struct fi_av_attr attr = {.type = FI_AV_TABLE};
    hints->caps = FI_MSG | FI_RMA | FI_ATOMIC;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->threading = FI_THREAD_SAFE;
    hints->fabric_attr->prov_name = strdup("strait");
    CHECK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info) == 0);
    CHECK(fi_fabric(info->fabric_attr, &fabric, NULL) == 0 && fi_domain(fabric, info, &domain, NULL) == 0);
    CHECK(fi_av_open(domain, &attr, &av, NULL) == 0);
    CHECK(fi_mr_reg(domain, memory, LENGTH, FI_REMOTE_READ | FI_REMOTE_WRITE | FI_READ | FI_WRITE, 0, 7, 0, &mr, NULL) == 0);
}

static void target(int sock) {
    struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_CONTEXT};
    struct fid_cq *cq;
    struct fid_ep *ep;
    struct card card = {.length = sizeof card.name};
    struct fi_cq_entry entry;
    role = "target";
    open_domain();
    CHECK(fi_cq_open(domain, &attr, &cq, NULL) == 0 && fi_endpoint(domain, info, &ep, NULL) == 0);
    CHECK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV) == 0 && fi_ep_bind(ep, &av->fid, 0) == 0 && fi_enable(ep) == 0);
    CHECK(fi_getname(&ep->fid, card.name, &card.length) == 0);
    card.key = fi_mr_key(mr);
    CHECK(send(sock, &card, sizeof card, 0) == sizeof card);
    for (u64 n = 1; n <= ROUNDS;) {
        (void)fi_cq_read(cq, &entry, 1);
        if (load(memory + LENGTH - 64) < n) {
            sched_yield();
            continue;
        }
        /* The signal has come, so have the bytes. */
        for (int i = 0; i < 512; i++) CHECK(load(memory + 8 * i) >= n);
        n = load(memory + LENGTH - 64) + 1;
    }
    CHECK(send(sock, "!", 1, 0) == 1);
    for (;;) pause();
}

struct kernel {
    struct fi_strait_xpu_export ep, cq, cntr;
    u64 peer, region, key;
    volatile int stage;
};

static u64 post(const struct strait_xpu_ring *ring, const struct strait_xpu_command *command) {
    struct strait_xpu_produced *produced = (void *)(size_t)ring->produced;
    const struct strait_xpu_status *status = (void *)(size_t)ring->status;
    u64 words[STRAIT_XPU_SLOT_WORDS], ticket = produced->reserved++;
    struct strait_xpu_slot *slot = (struct strait_xpu_slot *)(size_t)ring->slots + (ticket & ((1ull << ring->log2_slots) - 1));
    time_t begin = time(NULL);
    while (ticket - load(&status->consumed) >= 1ull << ring->log2_slots) CHECK(time(NULL) - begin < LIMIT_S);
    strait_xpu_pack(command, ticket, ring->log2_slots, words);
    for (int i = 0; i < STRAIT_XPU_SLOT_WORDS; i++) __atomic_store_n(&slot->word[i], words[i], __ATOMIC_RELEASE);
    return ticket;
}

static void *run(void *arg) {
    struct kernel *k = arg;
    const struct strait_xpu_ring *ring = (void *)(size_t)k->ep.prov_ctx;
    const struct strait_xpu_status *status = (void *)(size_t)ring->status;
    const struct strait_xpu_queue *queue = (void *)(size_t)k->cq.prov_ctx;
    const struct strait_xpu_completion *entries = (void *)(size_t)queue->entries;
    const struct strait_xpu_counter *counter = (void *)(size_t)k->cntr.prov_ctx;
    struct strait_xpu_queue_read *read = (void *)(size_t)queue->read;
    u64 ticket = 0, seen = 0, mask = (1ull << queue->log2_entries) - 1;
    struct strait_xpu_command c = {.op = STRAIT_XPU_OP_PUT, .flags = STRAIT_XPU_COMPLETION, .peer = (strait_xpu_u32)k->peer,
        .region = (strait_xpu_u32)k->region, .local = (u64)(size_t)memory, .key = k->key, .length = 4096, .context = 99};
    struct strait_xpu_command s = {.op = STRAIT_XPU_OP_SIGNAL, .peer = c.peer, .region = STRAIT_XPU_NO_REGION,
        .operand = LENGTH - 64, .context = k->key};
    time_t begin = time(NULL);
    for (u64 n = 1; n <= ROUNDS; n++) {
        for (int i = 0; i < 512; i++) __atomic_store_n((u64 *)memory + i, n, __ATOMIC_RELAXED);
        post(ring, &c);
        s.value = n;
        ticket = post(ring, &s);
        while (load(&status->done) <= ticket) CHECK(time(NULL) - begin < LIMIT_S && load(&status->error) == 0);
        CHECK(load(&entries[seen & mask].commit) == seen + 1 && entries[seen & mask].context == 99);
        __atomic_store_n(&read->read, ++seen, __ATOMIC_RELEASE);
    }
    while (load(&counter->host.value) < 2 * ROUNDS) CHECK(time(NULL) - begin < LIMIT_S);
    CHECK(load(&counter->host.errors) == 0);
    __atomic_store_n(&k->stage, 1, __ATOMIC_RELEASE);
    /* Until the target's end is found. */
    while (load(&status->error) == 0) {
        ticket = post(ring, &s);
        while (load(&status->done) <= ticket) CHECK(time(NULL) - begin < LIMIT_S);
    }
    return NULL;
}

int main(void) {
    struct fi_strait_ops_xpu *ops;
    struct fi_strait_xpu_attr attr = {.iface = FI_HMEM_SYSTEM};
    struct fi_strait_xpu_ctx_attr sizes;
    struct fid_xpu_ctx *ctx;
    struct fid_ep *ep;
    struct fid_cq *cq;
    struct fid_cntr *cntr;
    struct kernel k = {.stage = 0};
    struct card card;
    fi_addr_t addr;
    pthread_t thread;
    size_t length = 8;
    char byte;
    int socks[2];
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, socks) == 0);
    alarm(2 * LIMIT_S);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) target(socks[1]);
    open_domain();
    CHECK(fi_open_ops(&domain->fid, FI_STRAIT_XPU_OPS, 0, (void **)&ops, NULL) == 0 && ops->size >= sizeof *ops);
    CHECK(ops->ctx_open(domain, &attr, &ctx, NULL) == 0 && ops->ctx_query(ctx, &sizes) == 0);
    CHECK(sizes.av_addr_size == 8 && sizes.mr_desc_size == 8);
    CHECK(sizes.caps == (FI_STRAIT_XPU_CAP_EP | FI_STRAIT_XPU_CAP_CQ | FI_STRAIT_XPU_CAP_CNTR));
    CHECK(ops->endpoint(domain, info, ctx, &ep, NULL) == 0 && ops->cq_open(domain, NULL, ctx, &cq, NULL) == 0);
    CHECK(ops->cntr_open(domain, NULL, ctx, &cntr, NULL) == 0);
    CHECK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV) == 0 && fi_ep_bind(ep, &cntr->fid, FI_WRITE) == 0);
    CHECK(fi_ep_bind(ep, &av->fid, 0) == 0 && fi_enable(ep) == 0);
    CHECK(fi_send(ep, memory, 8, NULL, 0, NULL) == -FI_ENOSYS && fi_cq_read(cq, memory, 1) == -FI_ENOSYS);
    CHECK(recv(socks[0], &card, sizeof card, 0) == sizeof card);
    CHECK(fi_av_insert(av, card.name, 1, &addr, 0, NULL) == 1);
    CHECK(ops->av_lookup(av, addr, &k.peer, &length, FI_STRAIT_XPU, ctx) == 0);
    CHECK(ops->mr_desc(mr, &k.region, &length, FI_STRAIT_XPU, ctx) == 0);
    CHECK(ops->ep_export(ep, 0, &k.ep) == 0 && ops->cq_export(cq, 0, &k.cq) == 0 && ops->cntr_export(cntr, 0, &k.cntr) == 0);
    CHECK(k.ep.prov_id == STRAIT_XPU_PROV_ID && k.ep.fclass == FI_CLASS_EP);
    k.key = card.key;
    CHECK(pthread_create(&thread, NULL, run, &k) == 0);
    CHECK(recv(socks[0], &byte, 1, 0) == 1);
    while (!__atomic_load_n(&k.stage, __ATOMIC_ACQUIRE)) sched_yield();
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(fi_close((struct fid *)ctx) == -FI_EBUSY);
    CHECK(fi_close(&ep->fid) == 0 && fi_close(&cq->fid) == 0 && fi_close(&cntr->fid) == 0);
    CHECK(fi_close((struct fid *)ctx) == 0 && fi_close(&mr->fid) == 0 && fi_close(&av->fid) == 0);
    CHECK(fi_close(&domain->fid) == 0 && fi_close(&fabric->fid) == 0);
    return 0;
}
