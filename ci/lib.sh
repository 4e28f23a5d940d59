# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Helpers shared by the scripts in ci/.  Source it:  . "$(dirname "$0")/lib.sh"
# shellcheck shell=bash
set -euo pipefail

REPO=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
WORK=${STRAIT_WORK:-$REPO/target/ci}
STRAIT_LIB_DIR=${STRAIT_LIB_DIR:-$REPO/target/strait}   # holds libstrait-fi.so
LIBFABRIC_VERSION=2.1.0
LIBFABRIC=$WORK/libfabric-$LIBFABRIC_VERSION            # made by ci/get/libfabric
CLIENTS=$WORK/clients                                   # made by ci/get/clients
UCX=$WORK/ucx                                           # made by ci/get/ucx
export REPO WORK STRAIT_LIB_DIR LIBFABRIC CLIENTS UCX
mkdir -p "$WORK"

log()  { printf '[%s] %s\n' "$(date +%H:%M:%S)" "$*" >&2; }
die()  { log "error: $*"; exit 1; }

# command... | has PATTERN: grep -q over all of its input. With pipefail a `| grep -q` or `| head` that has seen enough ends
# the command before it with SIGPIPE, and the whole pipeline fails now and then.
has() { [ -n "$(grep "$@")" ]; }

# retry N command...: run a command up to N times with a growing pause.
retry() {
    local n=$1 i; shift
    for ((i = 1; ; i++)); do
        "$@" && return 0
        ((i < n)) || return 1
        log "attempt $i of $n failed: $1"
        sleep $((i * 3))
    done
}

# hmem_provider DIR: builds a provider of libfabric's that offers FI_HMEM over the stand-in for CUDA, for tests.
hmem_provider() {
    mkdir -p "$1"
    quiet "$WORK/log/hmem-provider.log" gcc -std=gnu11 -O1 -Wall -Wextra -Werror -shared -fPIC -fvisibility=hidden \
        -I"$LIBFABRIC/include" -o "$1/libhmem-fi.so" "$REPO/tests/ofi/hmem.c" -L"$LIBFABRIC/lib" -lfabric -lpthread -ldl
}

# quiet LOGFILE command...: keep a command's output in a file, show its tail if the command fails.
quiet() {
    local f=$1; shift
    mkdir -p "$(dirname "$f")"
    if ! "$@" >"$f" 2>&1; then
        tail -n 40 "$f" >&2
        log "failed: $* (whole log: $f)"
        return 1
    fi
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

apt_updated=
apt_update() {
    [ -z "$apt_updated" ] || return 0
    # One of this tree at a time: apt-get does not wait for its lists.
    retry 4 as_root flock -o "$WORK/apt.lock" apt-get -qq update >&2
    apt_updated=1
}

have_pkg() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# need_apt package...: install those that are missing, touch nothing otherwise.
need_apt() {
    local p missing=()
    for p; do have_pkg "$p" || missing+=("$p"); done
    ((${#missing[@]})) || return 0
    log "apt: ${missing[*]}"
    apt_update
    retry 3 quiet "$WORK/log/apt.log" as_root env DEBIAN_FRONTEND=noninteractive \
        flock -o "$WORK/apt.lock" apt-get install -y --no-install-recommends "${missing[@]}"
}

# in_ns command...: run a command in private pid, mount (with its own /proc and an empty /dev/shm)
# and ipc namespaces.  The network stays the machine's.  fabtests "cleans up" by killing every
# process whose name starts with fi_; in here it can only hit its own, and whatever the command
# leaves behind (daemons, shared memory files) goes away with it.
# NS_TIMEOUT=seconds kills the whole namespace after that time (status 137).
# NS_NET=1 adds a private network with only a loopback interface (to run two suites side by side).
ns_flags() {
    local f=(--fork --kill-child --pid --mount --ipc --mount-proc)
    [ "${NS_NET:-0}" = 0 ] || f+=(--net)
    if ! unshare "${f[@]}" true 2>/dev/null; then
        f=(--user --map-root-user "${f[@]}")
        unshare "${f[@]}" true 2>/dev/null || return 1
    fi
    echo "${f[@]}"
}
in_ns() {
    local flags t=()
    # KILL, because pid 1 of a namespace ignores softer signals; --kill-child takes it down.
    [ -z "${NS_TIMEOUT:-}" ] || t=(timeout -s KILL "$NS_TIMEOUT")
    if ! flags=$(ns_flags); then
        log "no private namespaces on this machine; running in the open"
        "${t[@]}" "$@"
        return
    fi
    # shellcheck disable=SC2086
    "${t[@]}" unshare $flags bash -c '
        mount -t tmpfs -o mode=1777 strait-shm /dev/shm || exit 125
        [ "${NS_NET:-0}" = 0 ] || ip link set lo up
        "$@"
        exit $?' in_ns "$@"
}

# need_provider: fail early, and clearly, when the provider has not been built.
need_provider() {
    [ -e "$STRAIT_LIB_DIR/libstrait-fi.so" ] ||
        die "no libstrait-fi.so in $STRAIT_LIB_DIR (build it first, or set STRAIT_LIB_DIR)"
}
