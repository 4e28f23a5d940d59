/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* CUDA's driver, opened at run time: CU(name, types, arguments). Without a GPU the program ends with 77. */
#ifndef DRIVER_H
#define DRIVER_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *cuda;

static void *cuda_symbol(const char *name)
{
	void *found = dlsym(cuda, name);

	if (!found) {
		fprintf(stderr, "libcuda.so.1 has no %s\n", name);
		exit(77);
	}
	return found;
}

#define CU(name, types, ...)                                                              \
	do {                                                                              \
		int cu_code = ((int (*)types)cuda_symbol(#name))(__VA_ARGS__);            \
		if (cu_code) {                                                            \
			fprintf(stderr, "%s: %d\n", #name, cu_code);                      \
			exit(!strcmp(#name, "cuInit") ? 77 : 1);                          \
		}                                                                         \
	} while (0)

/* Makes the primary context of device `n`, of as many as there are, current in this thread. */
static inline int cuda_begin(int n)
{
	int count = 0, device = 0;
	void *context = NULL;

	if (!(cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL)))
		exit(77);
	CU(cuInit, (unsigned), 0);
	CU(cuDeviceGetCount, (int *), &count);
	if (!count)
		exit(77);
	CU(cuDeviceGet, (int *, int), &device, n % count);
	CU(cuDevicePrimaryCtxRetain, (void **, int), &context, device);
	CU(cuCtxSetCurrent, (void *), context);
	return device;
}

/* The address of a device's PCI function, if this host's sysfs has it; else "". */
static inline const char *cuda_function(int device, char text[32])
{
	int (*get)(int *, int, int) = (int (*)(int *, int, int))cuda_symbol("cuDeviceGetAttribute");
	int domain = 0, bus = 0, slot = 0;
	char path[64];
	FILE *file;

	text[0] = 0;
	/* CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, _BUS_ID and _DEVICE_ID */
	if (get(&domain, 50, device) || get(&bus, 33, device) || get(&slot, 34, device))
		return text;
	snprintf(text, 32, "%04x:%02x:%02x.0", domain & 0xffff, bus & 0xff, slot & 0x1f);
	snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/vendor", text);
	if ((file = fopen(path, "r")))
		fclose(file);
	else
		text[0] = 0;
	return text;
}

#endif
