/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * The first bytes of a file, read into this process's memory:  storage FILE
 *
 *    cc storage.c -o storage $(pkg-config --cflags --libs libstrait)
 */
#include <stdio.h>
#include <stdlib.h>
#include <strait_storage.h>

int main(int argc, char **argv)
{
    enum { LEN = 1 << 20 };
    struct strait_storage *file;
    int64_t n;
    void *memory = aligned_alloc(4096, LEN);

    if (argc != 2 || !memory) {
        fprintf(stderr, "usage: storage FILE\n");
        return 2;
    }
    if (strait_storage_open(argv[1], 0, &file)) {
        fprintf(stderr, "storage: %s\n", strait_storage_error());
        return 1;
    }
    n = strait_storage_read(file, memory, LEN, 0);
    if (n < 0)
        fprintf(stderr, "storage: %s\n", strait_storage_error());
    else
        printf("%lld bytes\n", (long long)n);
    strait_storage_close(file);
    free(memory);
    return n < 0;
}
