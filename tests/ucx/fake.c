/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * A libuct that no release is like, for tests/ucx/unknown.c:
 *
 *   -DKIND=0   it has a list of components and a way to register, and nothing that identifies a release
 *   -DKIND=1   it has what identifies 1.13, but not all that a transport calls
 *   -DKIND=2   it has all that identifies 1.22 and all that a transport calls, but its components are laid out
 *              in a way of their own
 *
 * It counts what is registered with it.
 */
#include <stddef.h>

static int registered;

struct link {
    struct link *previous, *next;
};

struct component {
    char name[16];
    char other[1000];
    struct link list;
    char more[1000];
};

static struct component posix = {.name = "posix"}, tcp = {.name = "tcp"}, self = {.name = "self"};
struct link uct_components_list = {&self.list, &posix.list};

static void __attribute__((constructor)) join(void) {
    struct link *links[] = {&uct_components_list, &posix.list, &tcp.list, &self.list};
    for (int i = 0; i < 4; i++) {
        links[i]->next = links[(i + 1) % 4];
        links[(i + 1) % 4]->previous = links[i];
    }
}

int fake_registered(void) { return registered; }

void uct_component_register(void *component) {
    (void)component;
    registered++;
}

/* Three components, at no address that anybody should look at. */
int uct_query_components(void **components, unsigned *count) {
    *components = NULL;
    *count = 3;
    return 0;
}

#define FUNCTION(name) int name(void) { return -22; }
#if KIND >= 1
FUNCTION(uct_ep_invalidate)
FUNCTION(uct_iface_estimate_perf)
FUNCTION(uct_ep_query)
#endif
#if KIND >= 2
FUNCTION(uct_ep_put_sgl_zcopy)
FUNCTION(uct_md_query_single_md_resource)
FUNCTION(uct_single_device_resource)
FUNCTION(uct_base_iface_t_init)
FUNCTION(uct_base_iface_query)
FUNCTION(uct_base_iface_estimate_perf)
FUNCTION(uct_base_iface_progress_enable)
FUNCTION(uct_base_iface_progress_disable)
FUNCTION(uct_iface_handle_ep_err)
FUNCTION(ucs_class_call_cleanup_chain)
char uct_base_iface_t_class[64], uct_iface_config_table[256], uct_md_config_table[256];

void uct_tl_register(void *component, void *tl) {
    (void)component, (void)tl;
    registered++;
}
#endif
