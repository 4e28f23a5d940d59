#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Open MPI between two processes of this host that have TCP alone, over different things below it, in turns, by
# tests/perf/hosts-mpi.c. Each line has a pattern, its bytes, and for each of the others the median of all rounds
# (microseconds, or MB/s) and that of the processors' time.
#
#   ROUNDS=7  CASES="ping 8 stream 65536"  WITH="strait,btl,ucx,tcp;ofi_rxm"  AS="chrt -r 1"  CLIENT=ompi4  hosts-mpi.sh
#
# Of the real-time priorities that of SCHED_RR alone will do: UCX makes connections in a thread of its own, which a rank that polls
# under SCHED_FIFO keeps from the core for good.
#
#   strait        the MTL over Strait's tcp link        btl   Open MPI's own btl tcp
#   strait=DIR    the same, of another build            ucx   UCX with tcp alone
#   any other     the MTL over a provider of libfabric: of 2.1.0 by CLIENT=ompi4 (ci/get/libfabric)
. "$(cd "$(dirname "$0")/../.." && pwd)/ci/lib.sh"
. "$REPO/ci/suite/mpi-env.sh"

rounds=${ROUNDS:-7} client=${CLIENT:-ompi4}
read -ra cases <<<"${CASES:-ping 8 ping 1024 ping 16384 ping 65536 ping 1048576 stream 8 stream 65536 stream 262144 stream 1048576 stream 4194304}"
IFS=, read -ra with <<<"${WITH:-strait,btl,ucx,tcp,tcp;ofi_rxm}"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mpi_setup "$client-mtl" strait
"$MPICC" -O2 -Wall -o "$tmp/hosts-mpi" "$REPO/tests/perf/hosts-mpi.c"

# one NAME: all cases, in a process that ends with them.
one() (
    mpirun=${LAUNCH[0]}
    unset FI_PROVIDER FI_PROVIDER_PATH
    ompi_env
    go=("$mpirun" -np 2 --bind-to core --mca pml cm --mca mtl ofi)
    [ "$client" != ompi4 ] || export LD_LIBRARY_PATH=$LIBFABRIC/lib
    case $1 in
    strait*)
        dir=$STRAIT_LIB_DIR
        case $1 in strait=*) dir=${1#*=} ;; esac
        export FI_PROVIDER_PATH=$dir FI_PROVIDER=strait FI_STRAIT_LINKS=tcp
        go+=(--mca mtl_ofi_provider_include strait --mca opal_common_ofi_provider_include strait)
        ;;
    btl) go=("$mpirun" -np 2 --bind-to core --mca pml ob1 --mca btl "tcp,self") ;;
    ucx)
        go=("$mpirun" -np 2 --bind-to core --mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any)
        ucx_env tcp,self
        ;;
    *) go+=(--mca mtl_ofi_provider_include "$1" --mca opal_common_ofi_provider_include "$1") ;;
    esac
    # shellcheck disable=SC2086
    chrt -f 9 timeout -s KILL 60 ${AS:-} "${go[@]}" "$tmp/hosts-mpi" "${cases[@]}"
)

for ((i = 0; i < rounds; i++)); do
    for name in "${with[@]}"; do
        one "$name" >> "$tmp/${name//\//_}" 2> "$tmp/errors" || { echo "$name: failed" >&2; tail -n 3 "$tmp/errors" >&2; }
    done
done

# median NAME PATTERN BYTES FIELD
median() {
    awk -v p="$2" -v b="$3" -v f="$4" '$1 == p && $2 == b { print $f }' "$tmp/${1//\//_}" | sort -g |
        awk '{ all[NR] = $1 } END { if (NR) print all[int((NR + 1) / 2)]; else print "-" }'
}
printf '%-18s' case; printf ' %22s' "${with[@]}"; echo
for ((c = 0; c < ${#cases[@]}; c += 2)); do
    printf '%-18s' "${cases[c]} ${cases[c + 1]}"
    for name in "${with[@]}"; do
        printf ' %12s %9s' "$(median "$name" "${cases[c]}" "${cases[c + 1]}" 3)" "$(median "$name" "${cases[c]}" "${cases[c + 1]}" 4)"
    done
    echo
done
