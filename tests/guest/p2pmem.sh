#!/bin/busybox sh
# shellcheck shell=dash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# The guest of ci/suite/guest p2pmem: its first process. Which checks it makes is in the kernel's command line, strait=WORD,WORD...
/bin/busybox mkdir -p /usr/bin /usr/sbin /sbin
/bin/busybox --install -s /bin
export PATH=/bin:/sbin:/strait/bin LD_LIBRARY_PATH=/strait
export FI_PROVIDER=strait FI_PROVIDER_PATH=/strait
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mkdir -p /dev/shm
mount -t tmpfs none /dev/shm
ip link set lo up
echo "guest: $(uname -r), up for $(cut -d' ' -f1 /proc/uptime) s"

# check NAME SECONDS command...: one check
check() {
    local name=$1 limit=$2 status=0; shift 2
    timeout -s KILL "$limit" "$@" > /tmp/log 2>&1 < /dev/null || status=$?
    sed 's/^/    /' /tmp/log | tail -n 60
    if [ $status = 0 ]; then
        echo "ok $name"
    else
        echo "FAILED $name (status $status)"
        dmesg | tail -n 8 | sed 's/^/    kernel: /'
    fi
}

pci=/sys/bus/pci/devices

# The function of a controller whose serial number is $1, and its disk.
function_of() {
    local n
    for n in /sys/class/nvme/*; do
        if [ "$(tr -d ' ' < "$n/serial")" = "$1" ]; then basename "$(readlink -f "$n/device")"; fi
    done
}
disk_of() {
    local n
    for n in /sys/class/nvme/*; do
        if [ "$(tr -d ' ' < "$n/serial")" = "$1" ]; then basename "$n"n1; fi
    done
}

# All that publishers have, is it free?
available() { cat $pci/*/p2pmem/available | tr '\n' ' '; }

# What the kernel's NVMe target makes of memory of a function for a disk: yes or no.
nvmet=/sys/kernel/config/nvmet/subsystems/strait/namespaces/1
kernel_says() {
    echo "/dev/$2" > $nvmet/device_path
    echo "$1" > $nvmet/p2pmem
    if echo 1 > $nvmet/enable; then
        echo yes
        echo 0 > $nvmet/enable
    else
        echo no
    fi 2> /dev/null
}

check_topology() {
    local publisher client
    check "strait topo" 20 strait topo
    modprobe nvmet
    mount -t configfs none /sys/kernel/config
    mkdir -p $nvmet
    for publisher in near nested ported other; do
        for client in near neardisk nested nesteddisk ported porteddisk other; do
            echo "$(function_of $publisher) $(disk_of $client) $(kernel_says "$(function_of $publisher)" "$(disk_of $client)")"
        done
    done > /tmp/pairs
    echo 0 > $nvmet/p2pmem
    check "each pair as the kernel judges it, and as transfers show" 120 real pairs /tmp/pairs
    {
        echo "$(disk_of neardisk) $(function_of near)"
        echo "$(disk_of nesteddisk) $(function_of nested)"
        echo "$(function_of ported) $(function_of ported)"
        echo "$(disk_of nesteddisk) $(function_of nested) $(function_of nested)"
        # 4 and 6 from one, 6 and 4 and 6 from the other.
        echo "$(disk_of neardisk) $(disk_of near) $(disk_of nesteddisk) $(function_of near)"
    } > /tmp/closest
    check "the closest publisher" 20 real closest /tmp/closest
    rmdir $nvmet
    rmdir /sys/kernel/config/nvmet/subsystems/strait
}

# What a process has that is killed comes back.
killed() {
    local before pid
    before=$(available)
    real hold "$(function_of near)" 4194304 > /tmp/held &
    pid=$!
    for _ in $(seq 100); do grep -q held /tmp/held && break; sleep 0.1; done
    [ "$(available)" != "$before" ] || return 1
    kill -KILL $pid
    wait $pid
    for _ in $(seq 50); do [ "$(available)" = "$before" ] && return 0; sleep 0.1; done
    echo "available: $(available), before: $before"
    return 2
}

daemon() {
    local pid status=0
    echo "pin publisher=$(function_of near)" > /tmp/rules
    strait p2pmemd --host 1MiB --rules /tmp/rules > /tmp/daemon &
    pid=$!
    for _ in $(seq 100); do grep -q listens /tmp/daemon && break; sleep 0.1; done
    cat /tmp/daemon
    real daemon "$(function_of near)" || status=$?
    # Twice, since what a client that is killed had comes back too.
    real daemon "$(function_of near)" || status=$?
    kill $pid
    return $status
}

check_memory() {
    local before
    before=$(available)
    check "allocation on the near device" 60 real alloc "$(function_of near)"
    check "allocation on the nested device" 60 real alloc "$(function_of nested)"
    check "a disk's blocks through the memory of a device to another disk" 60 \
        real direct "$(function_of near)" "$(disk_of neardisk)" "$(disk_of nesteddisk)"
    check "the same disk's own memory" 60 real direct "$(function_of near)" "$(disk_of near)" "$(disk_of neardisk)"
    call "a process that is killed gives its memory back" killed
    call "the daemon" daemon
    [ "$(available)" = "$before" ] && echo "ok all memory is back" || echo "FAILED all memory is back: $(available), not $before"
}

# call NAME FUNCTION ARGUMENT...: as check, of a function of this script.
call() {
    local name=$1 status=0; shift
    "$@" > /tmp/log 2>&1 || status=$?
    sed 's/^/    /' /tmp/log | tail -n 40
    if [ $status = 0 ]; then echo "ok $name"; else echo "FAILED $name (status $status)"; fi
}

# Files straight into memory of devices: disks that reach it, and a file system that has no O_DIRECT into it.
check_storage() {
    check "storage: a disk below the same switch" 60 storage "/dev/$(disk_of neardisk)" "$(function_of near)" direct
    check "storage: a disk below another switch" 60 storage "/dev/$(disk_of nesteddisk)" "$(function_of near)" direct
    check "storage: a disk on another root port" 60 storage "/dev/$(disk_of porteddisk)" "$(function_of near)" "$1"
    check "storage: host memory" 60 storage "/dev/$(disk_of neardisk)"
}
check_reaches() { check_storage direct; }
check_bounces() { check_storage bounce; }

check_exchange() {
    local before near nested
    before=$(available) near=$(function_of near) nested=$(function_of nested)
    check "libfabric: messages, RMA and atomics in the memory of two devices" 180 exchange "$near" "$nested"
    check "libfabric: without CMA" 180 env FI_STRAIT_CMA=no exchange "$near" "$near"
    check "UCX: messages, put, get and atomics in the memory of a device" 180 env UCX_TLS=strait UCX_WARN_UNUSED_ENV_VARS=n \
        UCX_ALLOC_PRIO=md:strait,thp,md:*,mmap,heap LD_PRELOAD=/strait/ucx/libuct_strait.so.0 ucp "$near"
    [ "$(available)" = "$before" ] && echo "ok all memory is back" || echo "FAILED all memory is back: $(available), not $before"
}

# The device of the first process goes, and comes back.
check_vanish() {
    local other ported
    other=$(function_of other) ported=$(function_of ported)
    check "a device that goes away" 30 real gone "$other"
    echo "$other" > /sys/bus/pci/drivers/nvme/bind
    for _ in $(seq 100); do [ -e "$pci/$other/p2pmem" ] && break; sleep 0.1; done
    check "a device that comes back" 60 real alloc "$other"
    check "libfabric: the device of a process goes away" 180 exchange "$ported" "$(function_of near)" gone
}

# A soft RDMA device on an interface, whose packets hold a page and their headers.
rdma_on() {
    modprobe -a rdma_rxe ib_uverbs
    ip link set "$1" mtu 4500
    ip link set "$1" up
    check "soft RDMA on $1" 20 direct link "$1"
}

check_demand() {
    modprobe dummy
    ip link show dummy0 > /dev/null 2>&1 || ip link add dummy0 type dummy
    ip addr add 10.9.88.1/24 dev dummy0
    rdma_on dummy0
    check "soft RDMA: registration on demand" 100 demand "$(function_of near)"
    two "$(function_of near)" "$(function_of nested)"
}

# Two processes, whose memory is of these functions.
two() {
    timeout -s KILL 100 direct 0 10.9.88.1 "sysfs:$1" > /tmp/direct &
    check "soft RDMA of two processes straight into the memory of two devices" 100 direct 1 10.9.88.1 "sysfs:$2"
    wait $! && grep '^RDMA ' /tmp/direct || echo "FAILED the other process"
}

# The network card.
card() {
    modprobe virtio_net
    for _ in $(seq 100); do [ -e /sys/class/net/eth0 ] && break; sleep 0.1; done
    ip addr add "10.9.77.$(($(of_kernel far) + 1))/24" dev eth0
    ip link set eth0 up
}

# One of two guests: messages, RMA and atomics in the memory of a device of each, by TCP.
check_far() {
    local role before
    role=$(of_kernel far) before=$(available)
    card
    call "two guests by tcp: messages, RMA and atomics in the memory of a device of each, process $role" far
    rdma_on eth0
    check "two guests by soft RDMA, straight into the memory of a device of each, process $role" 200 direct "$role" 10.9.77.1 "sysfs:$(function_of near)"
    [ "$(available)" = "$before" ] && echo "ok all memory is back" || echo "FAILED all memory is back: $(available), not $before"
}
far() {
    timeout -s KILL 240 env FI_LOG_LEVEL=info exchange far "$(function_of near)" "$(of_kernel far)" 10.9.77.1 > /tmp/far 2>&1 || { tail -n 30 /tmp/far; return 1; }
    grep 'tcp connected' /tmp/far | head -n 2
    # By shared memory it would be another test.
    grep -q 'tcp connected' /tmp/far
}

# The two devices whose BARs VFIO is to have.
bars() {
    local f
    for f in "$pci"/*; do [ "$(cat "$f/vendor" "$f/device")" = "0x1af4
0x1110" ] && basename "$f"; done
}
vfio() {
    local f
    modprobe vfio_iommu_type1 allow_unsafe_interrupts=1
    modprobe vfio_pci
    for f in $(bars); do
        echo vfio-pci > "$pci/$f/driver_override"
        echo "$f" > /sys/bus/pci/drivers_probe
    done
}

# pair_of LIMIT MEMORY MEMORY [revoke]: two processes, by dma-bufs.
pair_of() {
    local limit=$1 status=0; shift
    timeout -s KILL "$limit" env LD_PRELOAD=/lib/dmabuf_ioctl.so direct 0 10.9.77.1 "$1" $3 > /tmp/direct 2>&1 &
    timeout -s KILL "$limit" env LD_PRELOAD=/lib/dmabuf_ioctl.so direct 1 10.9.77.1 "$2" $3 2>&1 || status=$?
    wait $! || status=$?
    cat /tmp/direct
    return $status
}
pair() { call "soft RDMA of two processes with dma-bufs: $*" pair_of 60 "$@"; }

# of_link MEMORY MEMORY [revoke|kill]: processes over the link verbs, whose registrations name dma-bufs (FI_MR_DMABUF). The device carries
# what each writes, reads and sends; frames have what comes before the keys do, of which one message is long.
of_link() {
    local status=0
    LD_PRELOAD=/lib/dmabuf_ioctl.so FI_STRAIT_LINKS=verbs FI_STRAIT_TCP_TIMEOUT=10000 FI_STRAIT_LOG=info FI_STRAIT_REPORT=yes NODE=10.9.77.1 \
        timeout -s KILL 120 given "$@" > /tmp/given 2>&1 || status=$?
    grep -v 'strait\[' /tmp/given
    grep -E 'memory is (not )?registered|memory of .* is not registered|second queue pair' /tmp/given | sed 's/.*info: //' | sort | uniq -c
    grep -q "memory is registered: System for peers by the program's dma-buf" /tmp/given || status=3
    grep -Eq '^strait:   network RMA +out +[0-9]+ +[0-9.]+ MiB' /tmp/given || status=4
    if grep -Eq '^strait:   network +out +[0-9]+ +[0-9.]+ MiB' /tmp/given; then status=5; fi
    return $status
}
link_verbs() { call "the link verbs, with dma-bufs that a program names: $*" of_link "$@"; }

# In place of the kernel's driver the one that takes dma-bufs.
patched() {
    vfio
    bar=$(bars | head -n 1)
    card
    rdma_on eth0
    for memory in $1; do
        check "the driver of Linux: $memory" 20 direct refused "$memory"
        check "the driver of Linux, by the kernel's interface: $memory" 20 env LD_PRELOAD=/lib/dmabuf_ioctl.so direct refused "$memory"
    done
    rmmod rdma_rxe
    insmod /patched.ko
    rdma_on eth0
}

# What the driver of Linux says of each, and what the one that takes dma-bufs does.
check_dmabuf() {
    local near memory bar
    near=sysfs:$(function_of near)
    patched "heap udmabuf vfio:$(bars | head -n 1)"
    pair heap udmabuf
    pair udmabuf "vfio:$bar"
    pair "vfio:$bar" "vfio:$(bars | tail -n 1)"
    pair "$near" "vfio:$bar"
    pair heap "vfio:$bar" revoke
    check_dmabuf_links
    dmesg | grep -E 'rdma_rxe: (dma-buf|the exporter)' | sed 's/^/    kernel: /'
}

check_dmabuf_links() {
    link_verbs heap udmabuf
    link_verbs udmabuf "vfio:$bar"
    link_verbs "vfio:$bar" "vfio:$(bars | tail -n 1)"
    link_verbs heap "vfio:$bar" revoke
    link_verbs heap udmabuf kill
}

# The last part of that alone.
check_dmabuf_link() {
    local memory bar
    patched ""
    check_dmabuf_links
}

# A processor whose host bridge passes nothing on: the BAR is none for the adapter.
check_dmabuf_apart() {
    local memory bar
    patched ""
    check "a BAR that the adapter does not reach" 20 env LD_PRELOAD=/lib/dmabuf_ioctl.so direct refused "vfio:$bar"
    pair heap udmabuf
}

# One of two guests, whose memory is a BAR.
check_dmabuf_far() {
    local memory bar role
    role=$(of_kernel far)
    patched ""
    check "two guests by soft RDMA, straight into the BAR of a device of each, process $role" 200 \
        env LD_PRELOAD=/lib/dmabuf_ioctl.so direct "$role" 10.9.77.1 "vfio:$bar"
}

# A word of the kernel's command line.
of_kernel() { sed -n "s/.*\b$1=\([^ ]*\).*/\1/p" /proc/cmdline; }

main() {
    local word
    modprobe nvme
    for word in $(seq 100); do
        [ "$(ls -d /dev/nvme*n1 2> /dev/null | wc -l)" = "$(of_kernel disks)" ] && break
        sleep 0.1
    done
    for word in $(of_kernel strait | tr , ' '); do
        echo "guest: $word at $(cut -d' ' -f1 /proc/uptime) s"
        "check_$word"
    done
    echo "guest: end"
}
main
sync
poweroff -f
