#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Peers that die, lie or flood, and resources that run out: the programs in tests/faults over the
# provider, with libfabric 2.1.0.
#
#   ci/faults.sh [part...]           default: all of them; ci/faults.sh --list names them
#
#   LONG=1                           the long forms (most of an hour)
#   STRAIT_LIB_DIR=dir               where libstrait-fi.so is
#
# Each part runs in namespaces of its own with an empty /dev/shm and /tmp, in which nothing may be
# left.  One line for each check, "ok NAME" or "FAILED NAME"; logs in $WORK/faults.  Exits 1 if
# anything failed.
. "$(dirname "$0")/lib.sh"

parts='kill errors users soak crowd'
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

# check NAME SECONDS command...: one check.
check() {
    local name=$1 limit=$2 status=0 begin=$SECONDS log=$out/${1//[^a-z0-9-]/_}.log; shift 2
    NS_TIMEOUT=$limit in_ns "$REPO/ci/faults.sh" --inside "$@" >"$log" 2>&1 </dev/null || status=$?
    if [ $status = 0 ]; then
        echo "ok $name ($((SECONDS - begin)) s)"
        sed -n 's/^/    /p' "$log"
    else
        [ $status != 137 ] || echo "stopped after $limit s" >>"$log"
        echo "FAILED $name ($log)"
        tail -n 30 "$log" | sed 's/^/    /'
        bad=1
    fi
}

part_kill() {
    local mode n
    n=$(pick 1 20)
    compile kill
    for mode in poll sread auto; do
        check "kill $mode" $(pick 120 3600) "$bin/kill" "$mode" "$n" "$RANDOM"
        check "kill $mode frames" $(pick 120 3600) env FI_STRAIT_CMA=0 "$bin/kill" "$mode" "$n" "$RANDOM"
    done
}

part_errors() {
    compile errors
    check errors 120 "$bin/errors"
}

part_users() {
    compile users
    check "users" 120 "$bin/users"
}

part_soak() {
    compile soak
    check "soak small" $(pick 120 3600) "$bin/soak" small $(pick 300000 10000000)
    check "soak mixed" $(pick 120 3600) "$bin/soak" mixed $(pick 3000 300000)
    if command -v valgrind >/dev/null; then
        check "soak valgrind" $(pick 180 1800) "$bin/soak" valgrind $(pick 300 3000)
    else
        echo "no valgrind: its part is left out"
    fi
}

part_crowd() {
    local n p
    compile crowd
    for n in 16 64; do
        for p in strait shm; do
            check "crowd $n $p" $(pick 180 1800) "$bin/crowd" "$p" "$n" $(pick 3 30)
        done
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
