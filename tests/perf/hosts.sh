#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# The tcp link beside libfabric's own tcp providers and a socket with nothing around it, in turns, by tests/perf/hosts.c.
# Each line has a pattern, its bytes, and for each of the others the best figure of all rounds (microseconds, or MB/s) and
# the processors' time that went with the least.
#
#   hosts.sh                         over loopback
#   VETH=1 hosts.sh                  between two network namespaces (as root)
#   VETH=2 RATE=1gbit hosts.sh       with two cables between them, each of that rate by tc-tbf(8), or as quick as they are
#   VETH=2 RATE=1gbit,100mbit hosts.sh   with two of unlike rates
#
#   ROUNDS=5  CASES="ping 8,stream 65536"  WITH="raw,strait,tcp,tcp;ofi_rxm"  AS="chrt -f 1"
#
# WITH may have strait=DIR for another build of the provider, and strait@2 or strait=DIR@2 for FI_STRAIT_TCP_RAILS=2.
. "$(cd "$(dirname "$0")/../.." && pwd)/ci/lib.sh"

rounds=${ROUNDS:-5}
cases=${CASES:-ping 8,ping 1024,stream 65536,stream 262144,stream 1048576,stream 4194304,stream 16777216,write 65536,write 1048576,write 4194304,read 65536,read 1048576,read 4194304,sleep 1048576}
IFS=, read -ra with <<<"${WITH:-raw,strait,tcp,tcp;ofi_rxm}"
IFS=, read -ra cases <<<"$cases"
tmp=$(mktemp -d)
cleanup() {
    rm -rf "$tmp"
    [ -z "${NAMESPACES:-}" ] || { ip netns del "straitp1"; ip netns del "straitp2"; } 2>/dev/null || true
}
trap cleanup EXIT

gcc -O2 -Wall -I"$LIBFABRIC/include" -o "$tmp/hosts" "$REPO/tests/perf/hosts.c" -L"$LIBFABRIC/lib" -lfabric \
    -Wl,-rpath,"$LIBFABRIC/lib"
if [ "${VETH:-0}" != 0 ]; then
    ip netns add straitp1
    export NAMESPACES=straitp1,straitp2
    ip netns add straitp2
    IFS=, read -ra rates <<<"${RATE:-}"
    for ((cable = 0; cable < VETH; cable++)); do
        ip link add eth$cable netns straitp1 type veth peer name eth$cable netns straitp2
        for n in 1 2; do
            ip -n straitp$n addr add 10.9.$((78 + cable)).$n/24 dev eth$cable
            ip -n straitp$n link set eth$cable up
            rate=${rates[cable]:-${rates[0]:-}}
            [ -z "$rate" ] || tc -n straitp$n qdisc add dev eth$cable root tbf rate "$rate" burst 256k latency 20ms
        done
    done
    for n in 1 2; do ip -n straitp$n link set lo up; done
fi

# one NAME PATTERN BYTES: the figure and the time.
one() {
    local dir=$STRAIT_LIB_DIR name=$1 rails=1
    case $name in *@*) rails=${name##*@} name=${name%@*} ;; esac
    case $name in strait=*) dir=${name#*=} name=strait ;; esac
    # shellcheck disable=SC2086
    FI_PROVIDER_PATH=$dir FI_PROVIDER=${name%%;*} FI_STRAIT_LINKS=${LINKS:-tcp} FI_STRAIT_TCP_RAILS=$rails timeout 120 ${AS:-} "$tmp/hosts" "$name" "$2" "$3" |
        awk '{ print $3, $4 }'
}

printf '%-18s' case; printf ' %22s' "${with[@]}"; echo
for case in "${cases[@]}"; do
    read -r pattern bytes <<<"$case"
    for ((i = 0; i < rounds; i++)); do
        for name in "${with[@]}"; do
            case $name/$pattern in raw/read | raw/write) continue ;; esac
            one "$name" "$pattern" "$bytes" >> "$tmp/${name//\//_}.$pattern.$bytes" || echo "$name $case: failed" >&2
        done
    done
    printf '%-18s' "$case"
    for name in "${with[@]}"; do
        figures="$tmp/${name//\//_}.$pattern.$bytes"
        [ -s "$figures" ] || { printf ' %22s' -; continue; }
        best=$(awk '{ print $1 }' "$figures" | if [ "$pattern" = ping ]; then sort -g; else sort -gr; fi | sed -n 1p)
        printf ' %12s %9s' "$best" "$(awk '{ print $2 }' "$figures" | sort -g | sed -n 1p)"
    done
    echo
done
