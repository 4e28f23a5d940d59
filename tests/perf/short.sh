#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Instructions of one round of short.c's patterns, over the provider in each directory, under callgrind: what two runs
# of different lengths differ by. Wants valgrind, libfabric's headers and a compiler.
#
#   short.sh DIR...
#   CASES="late 8,burst 1024,late 8 10000" short.sh DIR...     pattern, bytes, waiting, senders
set -eu
here=$(cd "$(dirname "$0")" && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
gcc -O2 -Wall -o "$tmp/short" "$here/short.c" -lfabric
all="expected 8,late 8,any 8,mask 8,burst 8,burst 1024,send 8,delivery 8,deliveries 8,write 8,atomic 8,fetch 8"
all+=",late 8 10000,any 8 10000,mask 8 10000,expected 8 10000"

# instructions DIR ROUNDS PATTERN ...
instructions() {
    FI_PROVIDER_PATH=$1 FI_PROVIDER=strait timeout 300 valgrind --tool=callgrind \
        --callgrind-out-file=/dev/null "$tmp/short" strait "$3" "$2" "${@:4}" 2>&1 |
        sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}
IFS=, read -ra cases <<<"${CASES:-$all}"
for case in "${cases[@]}"; do
    IFS=' ' read -ra words <<<"$case"
    printf '%s:' "$case"
    for dir in "$@"; do
        few=$(instructions "$dir" 500 "${words[@]}")
        many=$(instructions "$dir" 1500 "${words[@]}")
        printf ' %d' $(((many - few) / 1000))
    done
    echo
done
