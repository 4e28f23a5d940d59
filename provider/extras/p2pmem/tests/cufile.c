/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * In place of cuFile, over the stand-in for CUDA's driver. With cufile_stand_in_fail calls fail: 1 with an errno, 2 with a code of cuFile's,
 * 3 what is queued when it is queued, 4 registration.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

typedef struct { int err, cu_err; } status;
struct descriptor { int type; union { int fd; void *handle; } handle; const void *ops; };

int cufile_stand_in_fail, cufile_stand_in_calls, cufile_stand_in_open;

static void *symbol(const char *name)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);

	return cuda ? dlsym(cuda, name) : NULL;
}

static int copy(const char *name, uint64_t a, uint64_t b, size_t len)
{
	int (*f)(uint64_t, uint64_t, size_t) = (int (*)(uint64_t, uint64_t, size_t))symbol(name);

	return f ? f(a, b, len) : -1;
}

/* cuFile calls what may wait for the device, which ends a capture into a graph. */
static void wait_for_device(void)
{
	int (*f)(void *) = (int (*)(void *))symbol("cuEventQuery");

	if (f)
		f(NULL);
}

status cuFileDriverOpen(void)
{
	wait_for_device();
	return (status){ 0, 0 };
}

status cuFileHandleRegister(void **handle, struct descriptor *d)
{
	char path[32];
	int fd;

	if (d->type != 1 || d->ops)
		return (status){ 5022, 0 };
	if (cufile_stand_in_fail == 4)
		return (status){ 5027, 0 };
	/* Any address and offset will do, as with cuFile: not by O_DIRECT. */
	snprintf(path, sizeof path, "/proc/self/fd/%d", d->handle.fd);
	fd = open(path, fcntl(d->handle.fd, F_GETFL) & O_ACCMODE);
	if (fd < 0)
		return (status){ 5031, 0 };
	cufile_stand_in_open++;
	*handle = (void *)(intptr_t)(fd + 1000);
	return (status){ 0, 0 };
}

void cuFileHandleDeregister(void *handle)
{
	close((int)((intptr_t)handle - 1000));
	cufile_stand_in_open -= (intptr_t)handle >= 1000;
}

static ssize_t move(void *handle, uint64_t addr, size_t len, off_t at, int write)
{
	void *bytes = aligned_alloc(4096, (len + 8191) / 4096 * 4096);
	int fd = (int)((intptr_t)handle - 1000);
	ssize_t n = -1;

	cufile_stand_in_calls++;
	wait_for_device();
	if (cufile_stand_in_fail == 2) {
		n = -5007;
	} else if (cufile_stand_in_fail == 1) {
		errno = ENOSPC;
	} else if (!write) {
		n = pread(fd, bytes, len, at);
		if (n > 0 && copy("cuMemcpyHtoD_v2", addr, (uintptr_t)bytes, n))
			n = -5010;
	} else if (!copy("cuMemcpyDtoH_v2", (uintptr_t)bytes, addr, len)) {
		n = pwrite(fd, bytes, len, at);
	}
	free(bytes);
	return n;
}

ssize_t cuFileRead(void *h, void *base, size_t len, off_t at, off_t in) { return move(h, (uintptr_t)base + in, len, at, 0); }
ssize_t cuFileWrite(void *h, const void *base, size_t len, off_t at, off_t in) { return move(h, (uintptr_t)base + in, len, at, 1); }

/* On a stream: what is behind the pointers is looked at when its turn comes. */
struct queued {
	int fd, write;
	unsigned char *bytes;
	size_t *len;
	off_t *at, *skip;
	ssize_t *done;
};

static void in_turn(void *arg)
{
	struct queued *q = arg;

	if (cufile_stand_in_fail == 2)
		*q->done = -5044;
	else
		*q->done = q->write ? pwrite(q->fd, q->bytes, *q->len, *q->at) : pread(q->fd, q->bytes, *q->len, *q->at);
}

static void at_last(void *arg)
{
	struct queued *q = arg;

	free(q->bytes);
	free(q);
}

static status queue(void *h, uint64_t addr, size_t *len, off_t *at, off_t *skip, ssize_t *done, void *stream, int write)
{
	int (*call)(void *, void (*)(void *), void *) = (int (*)(void *, void (*)(void *), void *))symbol("cuLaunchHostFunc");
	int (*move_later)(uint64_t, uint64_t, size_t, void *) = (int (*)(uint64_t, uint64_t, size_t, void *))symbol("cuMemcpyAsync");
	struct queued *q = malloc(sizeof *q);

	cufile_stand_in_calls++;
	wait_for_device();
	if (cufile_stand_in_fail == 3)
		return (status){ 5038, 0 };
	*q = (struct queued){ (int)((intptr_t)h - 1000), write, aligned_alloc(4096, (*len + 8191) / 4096 * 4096), len, at, skip, done };
	if (write ? move_later((uintptr_t)q->bytes, addr + *skip, *len, stream) || call(stream, in_turn, q) :
		    call(stream, in_turn, q) || move_later(addr + *skip, (uintptr_t)q->bytes, *len, stream))
		return (status){ 5011, 999 };
	return (status){ call(stream, at_last, q) ? 5011 : 0, 0 };
}

status cuFileReadAsync(void *h, void *base, size_t *len, off_t *at, off_t *skip, ssize_t *done, void *stream)
{
	return queue(h, (uintptr_t)base, len, at, skip, done, stream, 0);
}

status cuFileWriteAsync(void *h, void *base, size_t *len, off_t *at, off_t *skip, ssize_t *done, void *stream)
{
	return queue(h, (uintptr_t)base, len, at, skip, done, stream, 1);
}
