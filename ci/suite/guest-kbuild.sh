# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# shellcheck shell=bash disable=SC2034,SC2154
# Of ci/suite/guest: drivers of soft RDMA that are built from Debian's source of the guest's kernel, by root alone.

built=$out/kbuild
drivers=(rxe siw)

# What builds a module of that kernel: a root of its own.
get_kbuild() {
    local deb source=linux-source-${kernel%.*}
    if [ "$(cat "$built/.done" 2>/dev/null)" = "$kernel ${drivers[*]}" ]; then return 0; fi
    rm -rf "$built"
    mkdir -p "$built/driver" "$out/apt/cache/archives/partial"
    log "the source and the headers of Linux $kernel"
    retry 3 quiet "$WORK/log/guest-apt.log" private_apt apt-get -qq update
    retry 3 quiet "$WORK/log/guest-apt.log" private_apt apt-get -y --download-only install "linux-headers-$kernel" "$source" \
        bash coreutils dash findutils grep make mawk sed
    for deb in "$out"/apt/cache/archives/*.deb; do dpkg-deb -x "$deb" "$built"; done
    rm -rf "$out/apt/cache"
    tar -xJf "$built/usr/src/$source.tar.xz" -C "$built/driver" --strip-components=4 "${drivers[@]/#/$source/drivers/infiniband/sw/}"
    rm "$built/usr/src/$source.tar.xz"
    for deb in "$built"/usr/bin/x86_64-linux-gnu-*; do
        source=${deb##*/x86_64-linux-gnu-}
        [ -e "$built/usr/bin/$source" ] || ln -s "${deb##*/}" "$built/usr/bin/$source"
    done
    ln -sf mawk "$built/usr/bin/awk"
    echo "$kernel ${drivers[*]}" > "$built/.done"
}

# build_module DRIVER MODULE VARIABLE: $built/DRIVER/MODULE.ko, of what lies there.
build_module() {
    # shellcheck disable=SC2016
    quiet "$WORK/log/guest-driver-$1.log" unshare --mount bash -c '
        mount -t proc proc "$0/proc" && mount --bind /dev "$0/dev"
        exec chroot "$0" /usr/bin/env -i PATH=/usr/bin sh -ec "
            make -j2 -C /usr/src/linux-headers-$1 M=/$2 $4=m CONFIG_DEBUG_INFO_BTF_MODULES= KCFLAGS=-Werror modules
            strip --strip-debug /$2/$3.ko"' "$built" "$kernel" "$@"
}
