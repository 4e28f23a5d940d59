#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Peers that die or lie, and resources that run out: the programs in tests/faults over the provider,
# with libfabric 2.1.0.
#
#   ci/faults.sh [part...]           default: all of them; ci/faults.sh --list names them
#
#   LONG=1                           the long forms (an hour or two)
#   STRAIT_LIB_DIR=dir               where libstrait-fi.so is
#
# The programs run in namespaces of their own with an empty /dev/shm and /tmp, in which nothing may be
# left.  One line for each check, "ok NAME" or "FAILED NAME"; logs in $WORK/faults.  Exits 1 if
# anything failed.
. "$(dirname "$0")/lib.sh"

parts='kill errors hostile'
out=$WORK/faults
bin=$out/bin
long=${LONG:-0}

# pick SHORT LONG: what this run takes.
pick() { if [ "$long" = 0 ]; then echo "$1"; else echo "$2"; fi; }

compile() {
    local name
    mkdir -p "$bin"
    for name; do
        gcc -std=gnu11 -O2 -g -Wall -Wextra -Werror -I"$LIBFABRIC/include" -o "$bin/$name" \
            "$REPO/tests/faults/$name.c" -L"$LIBFABRIC/lib" -lfabric -Wl,-rpath,"$LIBFABRIC/lib"
    done
}

# clean command...: run it, and say what it left in /dev/shm and /tmp.  Runs inside in_ns.
clean() {
    local left
    "$@" || return 1
    left=$(find /dev/shm /tmp -mindepth 1 2>/dev/null | head)
    [ -z "$left" ] || { echo "left behind: $left"; return 1; }
}

# report NAME STATUS LOG BEGIN: its line, and what it had to say.
report() {
    if [ "$2" = 0 ]; then
        echo "ok $1 ($((SECONDS - $4)) s)"
    else
        echo "FAILED $1 (status $2, $3)"
        bad=1
    fi
    tail -n 30 "$3" | sed 's/^/    /'
}

# check NAME SECONDS command...: one check, in namespaces of its own.
check() {
    local name=$1 limit=$2 status=0 begin=$SECONDS log=$out/${1//[^a-z0-9-]/_}.log; shift 2
    NS_TIMEOUT=$limit in_ns "$REPO/ci/faults.sh" --inside "$@" >"$log" 2>&1 </dev/null || status=$?
    [ $status != 137 ] || echo "stopped after $limit s" >>"$log"
    report "$name" $status "$log" "$begin"
}

part_kill() {
    local mode cma n
    n=$(pick 1 20)
    compile kill
    for mode in poll sread auto; do
        for cma in 1 0; do
            check "kill $mode cma=$cma" "$(pick 240 3600)" env FI_STRAIT_CMA=$cma "$bin/kill" "$mode" "$n" $RANDOM
        done
    done
}

part_errors() {
    compile errors
    check errors 120 "$bin/errors"
}

# A hostile process at the real link, from several seeds.
part_hostile() {
    local seed name begin log status
    for seed in $(seq "$(pick 2 20)"); do
        name="hostile $seed" begin=$SECONDS log=$out/hostile-$seed.log status=0
        STRAIT_HOSTILE_SEED=$seed STRAIT_HOSTILE_SECONDS=$(pick 3 60) timeout -k 5 "$(pick 200 300)" \
            cargo test --manifest-path "$REPO/Cargo.toml" --release --locked -p strait-link --lib \
            hostile_tests::a_hostile_peer -- --nocapture >"$log" 2>&1 </dev/null || status=$?
        grep -q ' 1 passed' "$log" || status=1
        report "$name" $status "$log" "$begin"
    done
}

main() {
    local part
    case ${1:-} in
        --list) for part in $parts; do echo "$part"; done; exit 0 ;;
        --inside)
            shift
            # What is built may be below /tmp; then it stays visible, and only /dev/shm is empty.
            case $REPO/$out/$STRAIT_LIB_DIR in */tmp/*) ;; *) mount -t tmpfs -o mode=1777 strait-tmp /tmp ;; esac
            clean "$@"
            exit ;;
    esac
    need_provider
    [ -e "$LIBFABRIC/.done" ] || die "run ci/get-libfabric first"
    # Namespaces see the library only by this path.
    export FI_PROVIDER_PATH=$STRAIT_LIB_DIR FI_PROVIDER=strait,shm
    mkdir -p "$out"
    bad=0
    # shellcheck disable=SC2086
    (($#)) || set -- $parts
    for part; do
        [[ " $parts " == *" $part "* ]] || die "no such part: $part (ci/faults.sh --list)"
        "part_$part"
    done
    exit $bad
}
main "$@"
