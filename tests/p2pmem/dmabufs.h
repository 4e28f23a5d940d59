/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * What dma-bufs are made of in ci/suite/guest: a dma-heap, udmabuf, and a device that VFIO has. The file that includes this has a macro
 * MUST.
 */
#ifndef DMABUFS_H
#define DMABUFS_H

#include <fcntl.h>
#include <linux/dma-heap.h>
#include <linux/udmabuf.h>
#include <linux/vfio.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

static inline int of_heap(size_t len)
{
	struct dma_heap_allocation_data ask = { .len = len, .fd_flags = O_RDWR | O_CLOEXEC };
	int heap = open("/dev/dma_heap/system", O_RDWR | O_CLOEXEC);

	MUST(heap >= 0 && !ioctl(heap, DMA_HEAP_IOCTL_ALLOC, &ask), "/dev/dma_heap/system: %s", strerror(errno));
	close(heap);
	return (int)ask.fd;
}

static inline int of_memfd(size_t len)
{
	int memory = memfd_create("dma-buf", MFD_ALLOW_SEALING);

	MUST(memory >= 0 && !ftruncate(memory, (off_t)len) && !fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK), "memfd: %s", strerror(errno));
	return memory;
}

static inline int of_udmabuf(size_t len)
{
	int memory = of_memfd(len), maker = open("/dev/udmabuf", O_RDWR | O_CLOEXEC), fd;
	struct udmabuf_create ask = { .memfd = (unsigned)memory, .flags = UDMABUF_FLAGS_CLOEXEC, .size = len };

	MUST(maker >= 0, "/dev/udmabuf: %s", strerror(errno));
	MUST((fd = ioctl(maker, UDMABUF_CREATE, &ask)) >= 0, "UDMABUF_CREATE: %s", strerror(errno));
	close(memory);
	close(maker);
	return fd;
}

/* A device that is bound to vfio-pci. */
static inline int of_vfio(const char *function)
{
	struct vfio_group_status status = { .argsz = sizeof status };
	char link[128], group[128];
	ssize_t n;
	int container = open("/dev/vfio/vfio", O_RDWR | O_CLOEXEC), opened, device;

	snprintf(link, sizeof link, "/sys/bus/pci/devices/%s/iommu_group", function);
	n = readlink(link, group, sizeof group - 1);
	MUST(n > 0, "%s: %s", link, strerror(errno));
	group[n] = 0;
	snprintf(link, sizeof link, "/dev/vfio/%s", strrchr(group, '/') + 1);
	opened = open(link, O_RDWR | O_CLOEXEC);
	MUST(container >= 0 && opened >= 0, "%s: %s", link, strerror(errno));
	MUST(!ioctl(opened, VFIO_GROUP_GET_STATUS, &status) && status.flags & VFIO_GROUP_FLAGS_VIABLE, "%s is not viable", link);
	MUST(!ioctl(opened, VFIO_GROUP_SET_CONTAINER, &container), "VFIO_GROUP_SET_CONTAINER: %s", strerror(errno));
	MUST(!ioctl(container, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU), "VFIO_SET_IOMMU: %s", strerror(errno));
	device = ioctl(opened, VFIO_GROUP_GET_DEVICE_FD, function);
	MUST(device >= 0, "VFIO_GROUP_GET_DEVICE_FD: %s", strerror(errno));
	return device;
}

#endif
