/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 *   two [-m] FIRST SECOND     libraries made of tests/ucx/side.c, each with a UCX of its own
 *     -m   the second one in a namespace of its own (dlmopen)
 *
 * A process like this one, and this one, have both libraries loaded and a worker of each at the same time.
 * Each exchanges messages and accesses memory with its like, in turns; every byte is compared.  This
 * program itself has no UCX.  "ok two" at the end.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIDES 2

struct side {
    void (*open)(int which, int fd);
    void (*work)(void);
    void (*close)(void);
};

static void *symbol(void *library, const char *name) {
    void *address = dlsym(library, name);
    if (address == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        _exit(1);
    }
    return address;
}

static struct side load(const char *path, int apart) {
    void *library = dlmopen(apart ? LM_ID_NEWLM : LM_ID_BASE, path, RTLD_NOW | RTLD_LOCAL);
    struct side s;
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        _exit(1);
    }
    s.open = symbol(library, "side_open");
    s.work = symbol(library, "side_work");
    s.close = symbol(library, "side_close");
    return s;
}

static void both(int which, int fd, char **paths, int apart) {
    struct side sides[SIDES];
    alarm(120);
    /* The second copy appears when the first one is served already, as it does under Python. */
    for (int i = 0; i < SIDES; i++) {
        sides[i] = load(paths[i], apart && i > 0);
        sides[i].open(which, fd);
    }
    for (int i = 0; i < SIDES; i++) sides[i].work();
    sides[0].close();
    sides[1].work();
    sides[1].close();
}

int main(int argc, char **argv) {
    int fds[2], status, apart = argc > 1 && strcmp(argv[1], "-m") == 0;
    pid_t child;
    if (argc != 1 + apart + SIDES || socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    child = fork();
    close(fds[child != 0]);
    both(child == 0, fds[child == 0], argv + 1 + apart, apart);
    if (child == 0) {
        fflush(stdout);
        _exit(0);
    }
    if (waitpid(child, &status, 0) != child || status != 0) return 1;
    puts("ok two");
    return 0;
}
