# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# shellcheck shell=bash disable=SC2034,SC2154
# Of ci/suite/guest: soft RDMA (rxe) that registers dma-bufs. The driver of the guest's kernel is built from Debian's source of it with the
# addition of tests/rdma/rxe-dmabuf, which is for tests alone and under the driver's licence (GPL-2.0). By hand: no stage runs it.

patch=$REPO/tests/rdma/rxe-dmabuf
. "$REPO/ci/suite/guest-kbuild.sh"
modules+=' vfio_pci vfio_iommu_type1'

# The driver with the addition: $built/rxe/rdma_rxe.ko.
build_driver() {
    rm -rf "$built/rxe"
    cp -r "$built/driver/rxe" "$built/rxe"
    quiet "$WORK/log/guest-patch.log" patch -d "$built/rxe" -p1 --fuzz=0 -i "$patch/rxe.patch"
    cp "$patch/rxe_dmabuf.c" "$built/rxe/"
    build_module rxe rdma_rxe CONFIG_RDMA_RXE
}

# An adapter's place, two devices whose BARs VFIO is to have, and one that publishes memory. dmabuf_devices NETDEV
dmabuf_devices() {
    local n
    devices+=(-device intel-iommu)
    for n in 0 1; do
        port pcie-root-port "bar$n" pcie.0 "$((n + 1))" "$((n + 2)).0"
        devices+=(-object "memory-backend-ram,id=memory$n,size=1M,share=on" -device "ivshmem-plain,memdev=memory$n,bus=bar$n")
    done
    port pcie-root-port root0 pcie.0 3 4.0
    nvme near root0 16
    port pcie-root-port net0 pcie.0 4 5.0
    devices+=(-netdev "$1" -device "virtio-net-pci,netdev=net,mac=52:54:00:00:77:0${2:-0},bus=net0,romfile=")
}

machine=q35,kernel-irqchip=split
get_kbuild
build_driver
make_tree
cp "$built/rxe/rdma_rxe.ko" "$tree/patched.ko"
pack_tree

if [ "${CHECKS:-}" != far ]; then
    begin dmabuf; dmabuf_devices user,id=net,restrict=on
    # shellcheck disable=SC2086
    boot dmabuf EPYC-v4 intel_iommu=on disks=1 -- ${CHECKS:-dmabuf}
fi
if [ -z "${CHECKS:-}" ]; then
    begin dmabuf-apart; dmabuf_devices user,id=net,restrict=on
    boot dmabuf-apart max intel_iommu=on disks=1 -- dmabuf_apart
fi
if [ "${CHECKS:-far}" = far ]; then
    # Two guests, whose adapters have a cable.
    cable=$(mktemp -d)
    begin dmabuf0; dmabuf_devices "stream,id=net,addr.type=unix,addr.path=$cable/socket,server=on" 0
    boot dmabuf0 EPYC-v4 intel_iommu=on disks=1 far=0 -- dmabuf_far > "$out/dmabuf0.out" & one=$!
    begin dmabuf1; dmabuf_devices "stream,id=net,addr.type=unix,addr.path=$cable/socket,server=off,reconnect-ms=300" 1
    boot dmabuf1 EPYC-v4 intel_iommu=on disks=1 far=1 -- dmabuf_far > "$out/dmabuf1.out" & two=$!
    wait $one $two
    cat "$out/dmabuf0.out" "$out/dmabuf1.out"
    if grep -q '^FAILED ' "$out/dmabuf0.out" "$out/dmabuf1.out"; then bad=1; fi
    rm -rf "$cable"
fi
