// SPDX-License-Identifier: GPL-2.0-only
/*
 * For tests alone: registration of dma-bufs with soft RoCE (rxe), built into the kernel's driver by ci/suite/guest rdma-dmabuf.
 *
 * An adapter reads and writes what the exporter has mapped for it. This driver has no adapter: the exporter maps for the PCI function
 * of its network device, or for that of the parameter dmabuf_dev, and the processor copies at the addresses that the exporter gives.
 * So what the exporter refuses to that function is refused here, as for an adapter. A mapping that the exporter takes back ends the
 * registration: each access from then on is an error.
 */
#include <linux/dma-buf.h>
#include <linux/dma-direct.h>
#include <linux/dma-resv.h>
#include <linux/io.h>
#include <linux/iommu.h>
#include <linux/mm.h>
#include <linux/moduleparam.h>
#include <linux/pci.h>

#include "rxe.h"
#include "rxe_loc.h"

static char *dmabuf_dev;
module_param(dmabuf_dev, charp, 0644);
MODULE_PARM_DESC(dmabuf_dev, "the PCI function that dma-bufs are mapped for, if the network device has none");
MODULE_IMPORT_NS("DMA_BUF");

/* A page of the buffer: of memory that the kernel maps, or of a device's. */
struct rxe_dmabuf_page {
	void *va;
	void __iomem *io;
};

struct rxe_dmabuf {
	struct rxe_mr *mr;
	struct device *dev;
	struct dma_buf_attachment *attach;
	struct sg_table *sgt;
	/* Where the registration begins in the buffer. */
	u64 offset;
	/* Of is_mapped: no copy is under way once it was taken by what cleared that. */
	spinlock_t lock;
	bool is_mapped;
	u64 count;
	struct rxe_dmabuf_page *pages;
};

static struct device *rxe_dmabuf_function(struct rxe_dev *rxe)
{
	struct net_device *ndev = ib_device_get_netdev(&rxe->ib_dev, 1);
	unsigned int domain, bus, slot, function;
	struct device *dev = NULL;
	struct pci_dev *pci;

	if (ndev) {
		for (dev = ndev->dev.parent; dev && !dev_is_pci(dev); dev = dev->parent)
			;
		if (dev)
			get_device(dev);
		dev_put(ndev);
	}
	if (!dev && dmabuf_dev && sscanf(dmabuf_dev, "%x:%x:%x.%x", &domain, &bus, &slot, &function) == 4) {
		pci = pci_get_domain_bus_and_slot(domain, bus, PCI_DEVFN(slot, function));
		dev = pci ? &pci->dev : NULL;
	}
	return dev;
}

/*
 * What the processor finds at an address that is the function's. One that its IOMMU does not know is the bus's, which is the
 * processor's too in a guest of QEMU's.
 */
static phys_addr_t rxe_dmabuf_phys(struct rxe_dmabuf *buf, struct scatterlist *sg, dma_addr_t addr)
{
	struct iommu_domain *domain = iommu_get_domain_for_dev(buf->dev);

	phys_addr_t phys;

	if (sg_dma_is_bus_address(sg))
		return addr;
	phys = domain ? iommu_iova_to_phys(domain, addr) : dma_to_phys(buf->dev, addr);
	return phys ? phys : addr;
}

static void rxe_dmabuf_unmap(struct rxe_dmabuf *buf)
{
	u64 i;

	dma_resv_assert_held(buf->attach->dmabuf->resv);
	spin_lock_bh(&buf->lock);
	buf->is_mapped = false;
	spin_unlock_bh(&buf->lock);
	buf->mr->state = RXE_MR_STATE_INVALID;
	for (i = 0; i < buf->count; i++)
		if (buf->pages[i].io)
			iounmap(buf->pages[i].io);
	buf->count = 0;
	if (buf->sgt)
		dma_buf_unmap_attachment(buf->attach, buf->sgt, DMA_BIDIRECTIONAL);
	buf->sgt = NULL;
}

static int rxe_dmabuf_map(struct rxe_dmabuf *buf)
{
	struct dma_buf *dmabuf = buf->attach->dmabuf;
	struct scatterlist *sg;
	struct sg_table *sgt;
	unsigned int at;
	int i;

	dma_resv_assert_held(dmabuf->resv);
	sgt = dma_buf_map_attachment(buf->attach, DMA_BIDIRECTIONAL);
	if (IS_ERR(sgt))
		return PTR_ERR(sgt);
	buf->sgt = sgt;
	dma_resv_wait_timeout(dmabuf->resv, DMA_RESV_USAGE_KERNEL, false, MAX_SCHEDULE_TIMEOUT);
	for_each_sgtable_dma_sg(sgt, sg, i) {
		for (at = 0; at < sg_dma_len(sg) && buf->count < dmabuf->size >> PAGE_SHIFT; at += PAGE_SIZE) {
			phys_addr_t phys = rxe_dmabuf_phys(buf, sg, sg_dma_address(sg) + at);
			struct rxe_dmabuf_page *page = &buf->pages[buf->count];

			page->va = NULL;
			page->io = NULL;
			if (phys && pfn_valid(PHYS_PFN(phys)))
				page->va = phys_to_virt(phys);
			else if (phys)
				page->io = ioremap(phys, PAGE_SIZE);
			if (!page->va && !page->io)
				goto fail;
			buf->count++;
		}
	}
	if (buf->count < dmabuf->size >> PAGE_SHIFT)
		goto fail;
	pr_info("dma-buf of %s for %s: %llu pages in %u pieces, the first at %pad%s\n", dmabuf->exp_name, dev_name(buf->dev), buf->count,
		sgt->nents, &sg_dma_address(sgt->sgl), buf->pages[0].io ? ", a device's" : "");
	spin_lock_bh(&buf->lock);
	buf->is_mapped = true;
	spin_unlock_bh(&buf->lock);
	return 0;
fail:
	rxe_dmabuf_unmap(buf);
	return -EFAULT;
}

static void rxe_dmabuf_invalidate(struct dma_buf_attachment *attach)
{
	struct rxe_dmabuf *buf = attach->importer_priv;

	if (buf->sgt)
		pr_info("the exporter takes its mapping for %s back\n", dev_name(buf->dev));
	rxe_dmabuf_unmap(buf);
}

static const struct dma_buf_attach_ops rxe_dmabuf_attach_ops = {
	.allow_peer2peer = true,
	.invalidate_mappings = rxe_dmabuf_invalidate,
};

void rxe_dmabuf_release(struct rxe_mr *mr)
{
	struct rxe_dmabuf *buf = mr->dmabuf;
	struct dma_buf *dmabuf;

	if (!buf)
		return;
	dmabuf = buf->attach->dmabuf;
	dma_resv_lock(dmabuf->resv, NULL);
	rxe_dmabuf_unmap(buf);
	dma_resv_unlock(dmabuf->resv);
	dma_buf_detach(dmabuf, buf->attach);
	dma_buf_put(dmabuf);
	put_device(buf->dev);
	kvfree(buf->pages);
	kfree(buf);
	mr->dmabuf = NULL;
}

/* mr->dmabuf is there also if this fails, but where nothing is attached yet. */
static int rxe_dmabuf_get(struct rxe_dev *rxe, struct rxe_mr *mr, u64 offset, u64 length, int fd)
{
	struct dma_buf *dmabuf = dma_buf_get(fd);
	struct rxe_dmabuf *buf;
	u64 end;
	int err;

	if (IS_ERR(dmabuf))
		return PTR_ERR(dmabuf);
	err = -EINVAL;
	if (!length || check_add_overflow(offset, length, &end) || end > dmabuf->size || dmabuf->size & ~PAGE_MASK)
		goto put;
	err = -ENOMEM;
	buf = kzalloc(sizeof(*buf), GFP_KERNEL);
	if (!buf)
		goto put;
	buf->pages = kvcalloc(dmabuf->size >> PAGE_SHIFT, sizeof(*buf->pages), GFP_KERNEL);
	if (!buf->pages)
		goto free;
	err = -EOPNOTSUPP;
	buf->dev = rxe_dmabuf_function(rxe);
	if (!buf->dev)
		goto free;
	spin_lock_init(&buf->lock);
	buf->mr = mr;
	buf->offset = offset;
	buf->attach = dma_buf_dynamic_attach(dmabuf, buf->dev, &rxe_dmabuf_attach_ops, buf);
	if (IS_ERR(buf->attach)) {
		err = PTR_ERR(buf->attach);
		put_device(buf->dev);
		goto free;
	}
	mr->dmabuf = buf;
	dma_resv_lock(dmabuf->resv, NULL);
	err = rxe_dmabuf_map(buf);
	if (!err)
		mr->state = RXE_MR_STATE_VALID;
	dma_resv_unlock(dmabuf->resv);
	return err;
free:
	kvfree(buf->pages);
	kfree(buf);
put:
	dma_buf_put(dmabuf);
	return err;
}

struct ib_mr *rxe_reg_user_mr_dmabuf(struct ib_pd *ibpd, u64 offset, u64 length, u64 iova, int fd, int access, struct ib_dmah *dmah,
				     struct uverbs_attr_bundle *attrs)
{
	struct rxe_dev *rxe = to_rdev(ibpd->device);
	struct rxe_mr *mr;
	int err;

	if (dmah || access & ~RXE_ACCESS_SUPPORTED_MR)
		return ERR_PTR(-EOPNOTSUPP);
	mr = kzalloc(sizeof(*mr), GFP_KERNEL);
	if (!mr)
		return ERR_PTR(-ENOMEM);
	err = rxe_add_to_pool(&rxe->mr_pool, mr);
	if (err) {
		kfree(mr);
		return ERR_PTR(err);
	}
	rxe_get(to_rpd(ibpd));
	mr->ibmr.pd = ibpd;
	mr->ibmr.device = ibpd->device;
	rxe_mr_init(access, mr);
	mr->ibmr.type = IB_MR_TYPE_USER;
	mr->ibmr.iova = iova;
	mr->ibmr.length = length;
	err = rxe_dmabuf_get(rxe, mr, offset, length, fd);
	if (err) {
		rxe_cleanup(mr);
		kfree(mr);
		return ERR_PTR(err);
	}
	rxe_finalize(mr);
	return &mr->ibmr;
}

/* The page that has this address of the registration, in which the range was found to be, and where in it. */
static struct rxe_dmabuf_page *rxe_dmabuf_page(struct rxe_mr *mr, u64 iova, unsigned int *in_page)
{
	u64 at = mr->dmabuf->offset + (iova - mr->ibmr.iova);

	*in_page = at & ~PAGE_MASK;
	return &mr->dmabuf->pages[at >> PAGE_SHIFT];
}

int rxe_dmabuf_copy(struct rxe_mr *mr, u64 iova, void *addr, unsigned int length, enum rxe_mr_copy_dir dir)
{
	struct rxe_dmabuf *buf = mr->dmabuf;

	while (length) {
		unsigned int in_page, bytes;
		struct rxe_dmabuf_page *page = rxe_dmabuf_page(mr, iova, &in_page);

		bytes = min_t(unsigned int, length, PAGE_SIZE - in_page);
		spin_lock_bh(&buf->lock);
		if (!buf->is_mapped) {
			spin_unlock_bh(&buf->lock);
			return -EFAULT;
		}
		if (page->va && dir == RXE_FROM_MR_OBJ)
			memcpy(addr, page->va + in_page, bytes);
		else if (page->va)
			memcpy(page->va + in_page, addr, bytes);
		else if (dir == RXE_FROM_MR_OBJ)
			memcpy_fromio(addr, page->io + in_page, bytes);
		else
			memcpy_toio(page->io + in_page, addr, bytes);
		spin_unlock_bh(&buf->lock);
		addr += bytes;
		iova += bytes;
		length -= bytes;
	}
	return 0;
}

/* An atomic; where `original` is NULL, an atomic write. */
enum resp_states rxe_dmabuf_atomic(struct rxe_mr *mr, u64 iova, int opcode, u64 compare, u64 operand, u64 *original)
{
	struct rxe_dmabuf *buf = mr->dmabuf;
	struct rxe_dmabuf_page *page;
	unsigned int in_page;
	u64 value, next = operand;

	if (mr_check_range(mr, iova, sizeof(value)))
		return RESPST_ERR_RKEY_VIOLATION;
	page = rxe_dmabuf_page(mr, iova, &in_page);
	if (in_page & 7)
		return RESPST_ERR_MISALIGNED_ATOMIC;
	spin_lock_bh(&buf->lock);
	if (!buf->is_mapped) {
		spin_unlock_bh(&buf->lock);
		return RESPST_ERR_RKEY_VIOLATION;
	}
	value = page->va ? READ_ONCE(*(u64 *)(page->va + in_page)) : readq(page->io + in_page);
	if (original) {
		*original = value;
		if (opcode == IB_OPCODE_RC_COMPARE_SWAP)
			next = value == compare ? operand : value;
		else
			next = value + operand;
	}
	if (page->va)
		smp_store_release((u64 *)(page->va + in_page), next);
	else
		writeq(next, page->io + in_page);
	spin_unlock_bh(&buf->lock);
	return RESPST_NONE;
}
