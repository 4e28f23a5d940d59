/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * Two processes, an interface of strait's in each, and no UCP, for the tests beside this.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <uct/api/uct.h>

#include "sides.h"

static ucs_async_context_t *async;
static uct_worker_h worker;
static uct_md_h md;
static uct_component_h component;
static uct_iface_h iface;
static uct_ep_h ep;
/* Called for endpoints that fail. */
static uct_error_handler_t on_error;
static void *peer_device, *peer_iface;

/* By the worker, as UCP does it; its header has that inline, for the releases before 1.16. */
static void progress(void) {
    static int old = -1;
    if (old < 0) old = dlsym(RTLD_DEFAULT, "uct_rkey_compare") == NULL;
    if (old) {
        uct_worker_progress(worker);
    } else {
        uct_iface_progress(iface);
    }
}

/* Hands `length` bytes over, making progress meanwhile if there is an interface. */
static void whole(int out, void *buffer, size_t length) {
    char *at = buffer;
    double limit = now() + 60;
    while (length > 0) {
        ssize_t n = out ? write(out_of_band, at, length) : recv(out_of_band, at, length, MSG_DONTWAIT);
        if (n > 0) {
            at += n;
            length -= n;
        } else if (n == 0) {
            die("the other one is gone");
        } else {
            if (iface != NULL) progress();
            if (now() > limit) die("the other one does not come");
        }
    }
}

static void meet(void) {
    char c = 'x';
    whole(1, &c, 1);
    whole(0, &c, 1);
}

/* Waits for the other one without making progress. */
__attribute__((unused)) static void meet_idle(void) {
    char c = 'x';
    if (write(out_of_band, &c, 1) != 1 || read(out_of_band, &c, 1) != 1) die("the other one is gone");
}

static void open_md(void) {
    uct_component_h *components;
    unsigned count;
    check(ucs_async_context_create(UCS_ASYNC_MODE_THREAD_SPINLOCK, &async), "async");
    check(uct_worker_create(async, UCS_THREAD_MODE_SINGLE, &worker), "worker");
    check(uct_query_components(&components, &count), "components");
    for (unsigned i = 0; i < count; i++) {
        uct_component_attr_t attr = {.field_mask = UCT_COMPONENT_ATTR_FIELD_NAME};
        check(uct_component_query(components[i], &attr), "component");
        if (strcmp(attr.name, "strait") == 0) component = components[i];
    }
    if (component == NULL) die("there is no strait");
    uct_md_config_t *config;
    check(uct_md_config_read(component, NULL, NULL, &config), "md config");
    check(uct_md_open(component, "strait", config, &md), "md");
    uct_config_release(config);
    uct_release_component_list(components);
}

static ucs_status_t open_iface(size_t alignment, size_t offset, uct_iface_h *out) {
    uct_iface_params_t p = {0};
    uct_iface_config_t *config;
    ucs_status_t status;
    p.field_mask = UCT_IFACE_PARAM_FIELD_OPEN_MODE | UCT_IFACE_PARAM_FIELD_DEVICE |
        UCT_IFACE_PARAM_FIELD_RX_HEADROOM;
    p.open_mode = UCT_IFACE_OPEN_MODE_DEVICE;
    p.mode.device.tl_name = "strait";
    p.mode.device.dev_name = "host";
    p.rx_headroom = 24;
    if (on_error != NULL) {
        p.field_mask |= UCT_IFACE_PARAM_FIELD_ERR_HANDLER;
        p.err_handler = on_error;
    }
    if (alignment != 0) {
        p.field_mask |= UCT_IFACE_PARAM_FIELD_AM_ALIGNMENT | UCT_IFACE_PARAM_FIELD_AM_ALIGN_OFFSET;
        p.am_alignment = alignment;
        p.am_align_offset = offset;
    }
    check(uct_md_iface_config_read(md, "strait", NULL, NULL, &config), "iface config");
    status = uct_iface_open(md, worker, &p, config, out);
    uct_config_release(config);
    if (status == UCS_OK) uct_iface_progress_enable(*out, UCT_PROGRESS_SEND | UCT_PROGRESS_RECV);
    return status;
}

static uct_ep_h connect_ep(void) {
    uct_ep_params_t p = {0};
    uct_ep_h made;
    p.field_mask = UCT_EP_PARAM_FIELD_IFACE | UCT_EP_PARAM_FIELD_DEV_ADDR | UCT_EP_PARAM_FIELD_IFACE_ADDR;
    p.iface = iface;
    p.dev_addr = peer_device;
    p.iface_addr = peer_iface;
    check(uct_ep_create(&p, &made), "ep");
    return made;
}

/* An interface in each process, and an endpoint from each to the other. */
__attribute__((unused)) static void open_pair(size_t alignment, size_t offset) {
    uct_iface_attr_t attr;
    uct_iface_h made;
    iface = NULL;
    check(open_iface(alignment, offset, &made), "iface");
    check(uct_iface_query(made, &attr), "query");
    char *mine = calloc(2, 256);
    check(uct_iface_get_device_address(made, (void *)mine), "device address");
    check(uct_iface_get_address(made, (void *)(mine + 256)), "iface address");
    whole(1, mine, 512);
    char *theirs = malloc(512);
    whole(0, theirs, 512);
    peer_device = theirs;
    peer_iface = theirs + 256;
    iface = made;
    ep = connect_ep();
    free(mine);
}

__attribute__((unused)) static void close_pair(void) {
    meet();
    uct_ep_destroy(ep);
    meet();
    uct_iface_close(iface);
    iface = NULL;
    free(peer_device);
}

/* The memory of the other one. */
struct remote {
    uint64_t addr;
    uct_rkey_bundle_t key;
};

__attribute__((unused)) static void send_key(uct_mem_h memh, void *addr) {
    char key[512] = {0};
    uint64_t at = (uintptr_t)addr;
    check(uct_md_mkey_pack(md, memh, key), "pack");
    whole(1, &at, sizeof(at));
    whole(1, key, sizeof(key));
}

static void hear_key(struct remote *r) {
    char key[512];
    whole(0, &r->addr, sizeof(r->addr));
    whole(0, key, sizeof(key));
    check(uct_rkey_unpack(component, key, &r->key), "unpack");
}
