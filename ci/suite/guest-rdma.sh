# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# shellcheck shell=bash disable=SC2034,SC2154
# Of ci/suite/guest: one guest with soft RDMA (rxe). Its root is the unpacked Debian 13 (rdma-core, libfabric with verbs, Open MPI), which it
# mounts from this host by 9P and does not write. Programs of this host's compiler, and of ci/get/libfabric, lie at /strait.

share=$out/rdma/strait
# Those that begin with far_ are made by two guests.
checks=${CHECKS:-provider ways exchange fabtests kill remove mpi many verbs verbs_on_demand verbs_late verbs_fabtests verbs_kill verbs_down verbs_remove far_verbs far_mpi}

# Soft iWARP, which Debian's kernel has not: its driver is built here, by root, and this check alone needs it.
put_iwarp() {
    [ "$(id -u)" = 0 ] || die "CHECKS=iwarp: its driver is built by root alone"
    . "$REPO/ci/suite/guest-kbuild.sh"
    get_kbuild
    rm -rf "$built/siw"
    cp -r "$built/driver/siw" "$built/siw"
    build_module siw siw CONFIG_RDMA_SIW
    cp "$built/siw/siw.ko" "$share/"
}

# What a Debian that is unpacked, not installed, lacks.
put_names() {
    mkdir -p "$root/strait" "$root/meet"
    printf '127.0.0.1 localhost\n10.9.0.1 guest guest0\n10.9.0.2 guest1\n' > "$root/etc/hosts"
    printf 'passwd: files\ngroup: files\nhosts: files\n' > "$root/etc/nsswitch.conf"
    echo 'root:x:0:0:root:/tmp:/bin/bash' > "$root/etc/passwd"
    echo 'root:x:0:' > "$root/etc/group"
    unpacked usr/sbin/depmod -b "$root" "$kernel"
}

# build NAME SOURCE compiler flag...: a program of the guest's, whose libraries are its root's.
build() {
    local name=$1 source=$2; shift 2
    quiet "$WORK/log/guest-rdma-$name.log" env -u LD_LIBRARY_PATH "$@" -o "$share/bin/$name" "$REPO/tests/$source" "${last[@]}"
}

put_share() {
    local last=()
    rm -rf "$share"
    mkdir -p "$share/bin"
    cp "$REPO/tests/guest/rdma.sh" "$share/run"
    chmod 755 "$share/run"
    cp "$STRAIT_LIB_DIR/libstrait-fi.so" "$share/"
    cp "$LIBFABRIC"/bin/fi_{rdm,rma,multi,cq}_* "$share/bin/"
    last=(-L"$LIBFABRIC/lib" -lfabric)
    build talk hosts/talk.c gcc -std=gnu11 -O2 -g -Wall -Wextra -Werror -I"$LIBFABRIC/include"
    build ends rdma/ends.c gcc -std=gnu11 -O2 -g -Wall -Wextra -Werror -I"$LIBFABRIC/include"
    build peers perf/peers.c gcc -std=gnu11 -O2 -g -Wall -Wextra -Werror -I"$LIBFABRIC/include"
    last=(-libverbs)
    build ways rdma/ways.c gcc -std=gnu11 -O2 -g -Wall -Wextra -Werror
    build ends_verbs rdma/ends_verbs.c gcc -std=gnu11 -O2 -g -Wall -Wextra -Werror
    build many rdma/many.c gcc -std=gnu11 -O2 -g -Wall -Wextra -Werror
    last=(-lucp -lucs)
    build ends_ucp rdma/ends_ucp.c gcc -std=gnu11 -O2 -g -Wall -Wextra -Werror
    build peers_ucp rdma/peers_ucp.c gcc -std=gnu11 -O2 -g -Wall -Wextra -Werror
    last=()
    build exchange mpi/exchange.c mpicc.openmpi -O1 -Wall
}

# An initramfs that mounts the root, and goes on there.
put_initramfs() {
    local first=$out/rdma/first file name
    rm -rf "$first"
    mkdir -p "$first"/{bin,proc,sys,dev,new,modules}
    cp "$root/usr/bin/busybox" "$first/bin/busybox"
    for name in virtio_pci 9p 9pnet_virtio; do
        unpacked usr/sbin/modprobe -d "$root" -S "$kernel" --show-depends "$name"
    done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | while read -r file; do
        name=$(basename "${file%.xz}")
        if [ -e "$first/modules/$name" ]; then continue; fi
        case $file in *.xz) xz -dc "$file" ;; *) cat "$file" ;; esac > "$first/modules/$name"
        echo "$name" >> "$first/modules/order"
    done
    cat > "$first/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
while read -r module; do insmod "/modules/$module"; done < /modules/order
options=trans=virtio,version=9p2000.L,msize=524288,cache=loose,ro
mount -t 9p -o $options root /new
mount -t 9p -o $options strait /new/strait
case $(cat /proc/cmdline) in *far=*) mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288,cache=none meet /new/meet ;; esac
for at in proc sys dev; do mount --move /$at /new/$at; done
exec switch_root /new /strait/run
INIT
    chmod 755 "$first/init"
    (cd "$first" && find . | "$root/usr/bin/busybox" cpio -o -H newc 2>/dev/null | gzip -1) > "$out/initramfs.gz"
}

[ -e "$LIBFABRIC/bin/fi_rdm_pingpong" ] || die "no fabtests in $LIBFABRIC (run ci/get/libfabric first)"
need_apt xz-utils gcc libc6-dev libibverbs-dev libucx-dev libopenmpi-dev valgrind
mkdir -p "$out/rdma"
get_root
kernel=$(cat "$root/.done")
put_names
put_share
put_initramfs
case " $checks " in *" iwarp "*) put_iwarp ;; esac
# shared TAG PATH [OPTION]: a directory of this host's that the guest mounts.
shared() {
    devices+=(-fsdev "local,id=$1,path=$2,security_model=none${3:-,readonly=on}" -device "virtio-9p-pci,fsdev=$1,mount_tag=$1")
}

begin_rdma() {
    devices=()
    shared root "$root"
    shared strait "$share"
}

# Two guests at once, with a cable between their network cards, and a directory in which their processes meet.
boot_both() {
    local cable one two
    cable=$(mktemp -d)
    mkdir "$cable/meet"
    for role in 0 1; do
        begin_rdma
        shared meet "$cable/meet" ,readonly=off
        devices+=(-netdev "stream,id=net,addr.type=unix,addr.path=$cable/socket,$([ $role = 0 ] && echo server=on || echo server=off,reconnect-ms=300)"
            -device "virtio-net-pci,netdev=net,mac=52:54:00:00:77:0$role,romfile=")
        boot "rdma$role" max mitigations=off far=$role -- "$@" > "$out/rdma$role.out" &
        if [ $role = 0 ]; then one=$!; else two=$!; fi
    done
    wait $one $two
    cat "$out/rdma0.out" "$out/rdma1.out"
    if grep -q '^FAILED ' "$out/rdma0.out" "$out/rdma1.out"; then bad=1; fi
    rm -rf "$cable"
}

alone=() both=()
for word in $checks; do
    case $word in far_*) both+=("$word") ;; *) alone+=("$word") ;; esac
done
if ((${#alone[@]})); then
    memory=4G
    # Each of 1000 endpoints has 2.5 MiB of receives, those of verbs;ofi_rxm more.
    [[ " ${alone[*]} " != *' peers_1000 '* ]] || memory=14G
    # An instruction is 4 ns. The clock of an idle guest goes as the host's, which may be reading a file for it.
    [ "${CLOCK:-}" != counted ] || emulation=(-accel "tcg,thread=single" -icount "shift=2,sleep=on")
    begin_rdma
    boot rdma max mitigations=off -- "${alone[@]}"
fi
# Two that wait for each other have one clock, the host's.
if ((${#both[@]})); then
    memory=1536M
    emulation=(-accel "tcg,thread=multi")
    boot_both "${both[@]}"
fi
