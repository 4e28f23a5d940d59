#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# What it costs to register memory (registration.c), as the table of docs/measurements/registration.md: strait beside libfabric's shm and
# tcp, and UCX's ucp_mem_map. Wants a compiler, and libfabric's and UCX's headers; without those of UCX its rows are left out.
#
#   registration.sh                              host memory, that of a client, and that of a published file
#   KINDS='cuda vmm pool' registration.sh        on a host with a GPU; with STAND_IN=libcuda_stand_in.so over that, and marked so
#
#   STRAIT_LIB_DIR=dir     libstrait-fi.so, libstrait.so.0 and ucx/libuct_strait.so.0 (target/strait, which ci/build makes)
#   SIZES='4096 1048576'   bytes of a buffer
#   TURNS=5                how often each program runs, in turns with the others; medians are printed
#   LIBFABRIC=dir          libfabric's include and lib, if not the system's
set -eu
here=$(cd "$(dirname "$0")" && pwd)
lib=${STRAIT_LIB_DIR:-$here/../../target/strait}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
[ -e "$lib/libstrait-fi.so" ] || { echo "no libstrait-fi.so in $lib: ci/build" >&2; exit 1; }
where=()
[ -z "${LIBFABRIC:-}" ] || where=(-I"$LIBFABRIC/include" -L"$LIBFABRIC/lib" "-Wl,-rpath,$LIBFABRIC/lib")
gcc -std=gnu11 -O2 -Wall -I"$here/../../include" "${where[@]}" -o "$tmp/fi" "$here/registration.c" -lfabric -ldl
gcc -std=gnu11 -O2 -Wall -DUCX -I"$here/../../include" -o "$tmp/ucp" "$here/registration.c" -lucp -lucs -ldl 2>"$tmp/cc-ucp" ||
    echo "without UCX: $(head -n 1 "$tmp/cc-ucp")" >&2
export UCX_LOG_LEVEL=error UCX_WARN_UNUSED_ENV_VARS=n
export FI_PROVIDER_PATH=$lib LD_LIBRARY_PATH=$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
mark=
if [ -n "${STAND_IN:-}" ]; then
    mkdir "$tmp/cuda"
    cp "$STAND_IN" "$tmp/cuda/libcuda.so.1"
    LD_LIBRARY_PATH=$tmp/cuda:$LD_LIBRARY_PATH
    mark=' (stand-in)'
fi

# What can be run for a kind of memory: a name, and how.
peers() {
    case $1 in
        client|p2pmem) echo strait ;;
        host)          echo 'strait shm tcp;ofi_rxm ucx-strait ucx-posix ucx-tcp' ;;
        *)             echo 'strait shm ucx-cuda' ;;
    esac
}

# one PEER KIND BYTES: a line of registration.c's, or none where the kind or the peer is not here.
one() {
    local tls=${1#ucx-} status=0
    case $1 in
        ucx-strait) [ -x "$tmp/ucp" ] && [ -e "$lib/ucx/libuct_strait.so.0" ] || return 0
                    UCX_TLS=strait,self LD_PRELOAD=$lib/ucx/libuct_strait.so.0 "$tmp/ucp" "$@" ;;
        ucx-cuda)   [ -x "$tmp/ucp" ] || return 0
                    UCX_TLS=posix,cuda,self "$tmp/ucp" "$@" ;;
        ucx-*)      [ -x "$tmp/ucp" ] || return 0
                    UCX_TLS=$tls,self "$tmp/ucp" "$@" ;;
        *)          "$tmp/fi" "$@" ;;
    esac 2>"$tmp/error" || status=$?
    [ $status = 0 ] || echo "$*: status $status: $(tail -n 1 "$tmp/error")" >&2
}

for ((turn = 0; turn < ${TURNS:-5}; turn++)); do
    for kind in ${KINDS:-host client p2pmem}; do
        for bytes in ${SIZES:-4096 1048576}; do
            for peer in $(peers "$kind"); do
                one "$peer" "$kind" "$bytes"
            done
        done
    done
done >"$tmp/values"

echo '| memory | bytes | by | first | again | close |'
echo '|---|---|---|---|---|---|'
awk '{print $1, $2, $3}' "$tmp/values" | awk '!seen[$0]++' | while read -r kind bytes peer; do
    printf '| %s%s | %s | %s |' "$kind" "$mark" "$bytes" "$peer"
    for column in 4 5 6; do
        awk -v k="$kind" -v b="$bytes" -v p="$peer" -v c=$column '$1 == k && $2 == b && $3 == p {print $c}' "$tmp/values" | sort -n |
            awk '{v[NR] = $1} END {printf " %.2f |", v[int((NR + 1) / 2)] / 1000}'
    done
    echo
done
