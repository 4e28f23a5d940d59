/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * To be preloaded: a process that may read others' memory, but not write it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/uio.h>

ssize_t process_vm_writev(pid_t pid, const struct iovec *local, unsigned long local_count, const struct iovec *remote,
                          unsigned long remote_count, unsigned long flags) {
    (void)pid, (void)local, (void)local_count, (void)remote, (void)remote_count, (void)flags;
    errno = EPERM;
    return -1;
}
