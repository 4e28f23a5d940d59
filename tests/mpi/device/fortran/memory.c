/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Device memory for the Fortran programs; the host's with MEM=host. */
#include "../../../gpu/driver.h"

static int on_host(void)
{
	const char *mem = getenv("MEM");

	return mem && !strcmp(mem, "host");
}

void *device_take(int n)
{
	void *at = NULL;

	if (on_host())
		return malloc((size_t)n);
	if (!cuda)
		cuda_begin(0);
	CU(cuMemAlloc_v2, (void **, size_t), &at, (size_t)n);
	return at;
}

void device_put(void *at, const void *from, int n)
{
	if (on_host())
		memcpy(at, from, (size_t)n);
	else
		CU(cuMemcpy, (uint64_t, uint64_t, size_t), (uint64_t)at, (uint64_t)from, (size_t)n);
}

void device_get(void *to, const void *at, int n) { device_put(to, at, n); }
