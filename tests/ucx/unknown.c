/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 *   unknown WANT [STRAIT]
 *
 * A program over the libuct of tests/ucx/fake.c asks it for its components, twice, with Strait preloaded
 * or, if STRAIT names its file, loaded as UCX loads a module.  It gets that libuct's own answer, and WANT
 * things have been registered.  "ok unknown" at the end.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int uct_query_components(void **components, unsigned *count);
int fake_registered(void);

static int module(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    int (*init)(void);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return -1;
    }
    init = (int (*)(void))dlsym(library, "ucs_module_global_init");
    return init == NULL ? -1 : init();
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    for (int i = 0; i < 2; i++) {
        void *components = &components;
        unsigned count = 0;
        if (argc > 2 && module(argv[2]) != 0) return 1;
        if (uct_query_components(&components, &count) != 0 || components != NULL || count != 3) {
            fprintf(stderr, "that was not its own answer\n");
            return 1;
        }
    }
    if (fake_registered() != atoi(argv[1])) {
        fprintf(stderr, "%d things registered, not %s\n", fake_registered(), argv[1]);
        return 1;
    }
    puts("ok unknown");
    return 0;
}
