#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Peers that are killed or write what is wrong, and resources that run out: the programs in tests/faults over the provider,
# with libfabric 2.1.0.
#
#   ci/suite/faults.sh [part...]           default: all of them; ci/suite/faults.sh --list names them
#
#   LONG=1                           the long forms (two or three hours)
#   STORM_SECONDS=n                  how long the storms by shared memory take in all (48), and each of those by other links (24;
#                                    with LONG=1 each 3600)
#   STRAIT_LIB_DIR=dir               where libstrait-fi.so is
#
# The programs run in namespaces of their own with an empty /dev/shm and /tmp, in which nothing may be
# left.  One line for each check, "ok NAME" or "FAILED NAME"; logs in $WORK/faults.  Exits 1 if
# anything failed.
. "$(dirname "$0")/../lib.sh"

parts='kill reopen busy bye errors unmapped given fence group storm farstorm hostile progress crowd users neighbour soak leaks'
out=$WORK/faults
bin=$out/bin
long=${LONG:-0}

# pick SHORT LONG: what this run takes.
pick() { if [ "$long" = 0 ]; then echo "$1"; else echo "$2"; fi; }

compile() {
    local name
    mkdir -p "$bin"
    for name; do
        gcc -std=gnu11 -O2 -g -Wall -Wextra -Werror -I"$LIBFABRIC/include" -I"$REPO/include" -o "$bin/$name" \
            "$REPO/tests/faults/$name.c" -L"$LIBFABRIC/lib" -lfabric -Wl,-rpath,"$LIBFABRIC/lib"
    done
}

# clean PLACES command...: run it, and say what it left in these, which were empty.  Runs inside in_ns.
clean() {
    local left places=$1; shift
    "$@" || return 1
    # shellcheck disable=SC2086
    left=$(find $places -mindepth 1 2>/dev/null)
    [ -z "$left" ] || { echo "left behind: $left"; return 1; }
}

# report NAME STATUS LOG BEGIN: its line, and what it had to say.
report() {
    local lines=30
    if [ "$2" = 0 ]; then
        echo "ok $1 ($((SECONDS - $4)) s)"
    else
        lines=60
        echo "FAILED $1 (status $2, $3)"
        bad=1
    fi
    tail -n $lines "$3" | sed 's/^/    /'
}

# check NAME SECONDS command...: one check, in namespaces of its own.
check() {
    local name=$1 limit=$(($2 * ${SLOWER:-1})) status=0 begin=$SECONDS log=$out/${1//[^a-z0-9-]/_}.log; shift 2
    NS_TIMEOUT=$limit in_ns "$REPO/ci/suite/faults.sh" --inside "$@" >"$log" 2>&1 </dev/null || status=$?
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

# An endpoint that is closed, and another one under its name.
part_reopen() {
    local cma
    compile reopen
    for cma in 1 0; do
        check "reopen cma=$cma" "$(pick 120 600)" env FI_STRAIT_CMA=$cma "$bin/reopen" "$(pick 2 50)"
    done
}

# A program whose every read of its queue finds an entry, over shared memory, sockets and another provider.
part_busy() {
    local links
    compile busy
    for links in shm tcp ofi:tcp; do
        check "busy $links" "$(pick 60 60)" env FI_STRAIT_LINKS=$links "$bin/busy"
    done
}

# A sender that ends when its sends have completed, over sockets and over another provider.
part_bye() {
    compile bye
    check "bye tcp" "$(pick 120 900)" env FI_STRAIT_LINKS=tcp "$bin/bye" "$(pick 1 20)"
    check "bye ofi:tcp" "$(pick 120 900)" env FI_STRAIT_LINKS=ofi:tcp "$bin/bye" "$(pick 1 20)" frames
    check "bye shm" "$(pick 120 900)" env FI_STRAIT_LINKS=shm "$bin/bye" "$(pick 1 20)"
    # The ring is full when the sender ends, and nothing was read.
    check "bye shm late" "$(pick 120 900)" env FI_STRAIT_LINKS=shm "$bin/bye" "$(pick 1 20)" late
}

part_errors() {
    local links
    compile errors mistakes link_ops
    check errors 120 "$bin/errors"
    check mistakes 120 "$bin/mistakes"
    # The path that is reported is what the log has.
    for links in shm shm,tcp; do
        check "link_ops $links" 60 env FI_STRAIT_LINKS=$links FI_LOG_LEVEL=info FI_LOG_PROV=strait bash -c '
            "$1" >/dev/shm/path 2>/dev/shm/log; status=$?
            path=$(cat /dev/shm/path) log=$(cat /dev/shm/log); rm /dev/shm/path /dev/shm/log
            [ $status = 0 ] || { echo "$log"; exit $status; }
            [ -n "$path" ] && grep -qF -- ": $path; up to " <<<"$log" || { echo "not in the log: $path"; echo "$log"; exit 1; }
            echo "$path"' link_ops "$bin/link_ops"
    done
}

# Memory that is registered and not mapped: an error to the peer, and a word about it at the target.
part_unmapped() {
    local handler mode
    compile unmapped
    for handler in 1 0; do
        for mode in manual auto; do
            check "unmapped $mode handler=$handler" 120 env FI_STRAIT_CMA=0 FI_STRAIT_FAULT_HANDLER=$handler bash -c '
                FI_LOG_LEVEL=warn FI_LOG_PROV=strait "$@" >/dev/shm/log 2>&1; status=$?
                n=$(grep -c "registered memory that is not mapped" /dev/shm/log)
                grep -v "registered memory that is not mapped" /dev/shm/log; rm /dev/shm/log
                [ $status = 0 ] || exit $status
                [ "$n" -ge 8 ] || { echo "reported $n times"; exit 1; }' unmapped "$bin/unmapped" frames $mode
        done
    done
    check "unmapped cma" 120 "$bin/unmapped" any
    # Memory that only its own process reaches, where the kernel has such.
    compile secret
    check secret 60 bash -c '"$1" || [ $? = 77 ]' secret "$bin/secret"
}

# direct: whether the kernel lets a process copy from another one that is no child of it.
direct() { grep -qs '^0$' /proc/sys/kernel/yama/ptrace_scope || [ "$(id -u)" = 0 ]; }

# Memory that is given back: by close, cancel, fi_close of a region, exec.
part_given() {
    local mode cma
    compile given
    for cma in 1 0; do
        for mode in close cancel exec dereg; do
            check "given $mode cma=$cma" 300 env FI_STRAIT_CMA=$cma "$bin/given" $mode
        done
    done
    # An initiator that copies by itself.
    if direct; then check "given stop" 300 "$bin/given" stop; fi
}

# Notifications with FI_FENCE, beside processes that compute.
part_fence() {
    local links cma
    compile fence
    for links in shm tcp; do
        for cma in 1 0; do
            check "fence $links cma=$cma" "$(pick 120 900)" env FI_STRAIT_LINKS=$links FI_STRAIT_CMA=$cma "$bin/fence" \
                "$(pick 5 600)" $RANDOM 3
        done
    done
}

# Collective operations, of which a member is killed.
part_group() {
    local links mode n
    n=$(pick 3 50)
    compile group
    for links in shm tcp ofi:tcp; do
        check "group $links" "$(pick 120 1800)" env FI_STRAIT_LINKS=$links "$bin/group" 5 "$n" $RANDOM
    done
    check "group cma=0" "$(pick 120 1800)" env FI_STRAIT_CMA=0 "$bin/group" 8 "$n" $RANDOM
    for mode in auto sread; do
        check "group $mode" "$(pick 120 1800)" "$bin/group" 3 "$n" $RANDOM $mode
    done
    for links in shm tcp; do
        check "group join $links" "$(pick 120 1800)" env FI_STRAIT_LINKS=$links "$bin/group" 5 "$(pick 6 100)" $RANDOM join
        check "group remove $links" "$(pick 120 1800)" env FI_STRAIT_LINKS=$links "$bin/group" 5 "$(pick 6 100)" $RANDOM remove
    done
    check "group lack" "$(pick 120 1800)" env FI_STRAIT_LINKS=shm "$bin/group" 4 "$(pick 2 20)" $RANDOM lack
}

# All of that, kills, stops and forks, at random microseconds.
part_storm() {
    local cma mode seconds
    seconds=$((${STORM_SECONDS:-$(pick 48 3600)} / 4))
    compile storm
    for cma in 1 0; do
        for mode in '' auto; do
            # shellcheck disable=SC2086
            check "storm cma=$cma${mode:+ $mode}" $((seconds + 60)) env FI_STRAIT_CMA=$cma "$bin/storm" $seconds $RANDOM \
                $((RANDOM % 4 + 3)) $mode
        done
    done
}

# The same where no peer is reached by shared memory.
part_farstorm() {
    local links seconds
    seconds=${STORM_SECONDS:-$(pick 24 3600)}
    compile storm
    for links in tcp ofi:tcp; do
        # shellcheck disable=SC2046
        check "storm $links" $((seconds + 60)) env FI_STRAIT_LINKS=$links "$bin/storm" "$seconds" $RANDOM $((RANDOM % 4 + 3)) \
            $([ $((RANDOM % 2)) = 0 ] || echo auto)
    done
}

# A target that makes no call, and peers that go on all the same.
part_progress() {
    compile progress
    check "progress auto" 60 "$bin/progress" auto
    check "progress auto cma=0" 60 env FI_STRAIT_CMA=0 "$bin/progress" auto
    # With manual progress there is no way but the direct one.
    if direct; then
        check "progress manual" 60 "$bin/progress" manual
    fi
}

# More processes than cores, and peers that say nothing: times beside shm's are printed, not judged.
part_crowd() {
    local n mode rounds
    rounds=$(pick 20 500)
    compile crowd
    for mode in poll sread auto spin; do
        check "crowd 16 $mode" 120 "$bin/crowd" all 16 "$rounds" $mode
    done
    check "crowd 64" "$(pick 120 900)" "$bin/crowd" all 64 "$(pick 3 100)" poll
    check "crowd 64 sread" "$(pick 120 900)" "$bin/crowd" all 64 "$(pick 3 100)" sread
    check "crowd 16 large" 120 "$bin/crowd" all 16 "$(pick 3 50)" poll strait 100000
    check "idle peers" 120 "$bin/crowd" idle 64
    for n in 16 64; do
        check "peer: crowd $n over shm" 300 "$bin/crowd" all $n "$(pick 2 20)" poll shm || true
    done
}

# Another user is kept out; where the kernel forbids copies from process to process, all goes by the
# ring, and each of the two says so, once.
part_users() {
    local mode said
    compile users
    for mode in other unmapped-both unmapped-one same unmapped-same seccomp enosys undumpable pidns; do
        case $mode in other|unmapped-*) said='' ;; same) said=0 ;; pidns) said=1 ;; *) said=2 ;; esac
        # Where Yama forbids it, that is what is said.
        if [ "$mode" = same ] && ! grep -qs '^0$' /proc/sys/kernel/yama/ptrace_scope; then
            [ ! -e /proc/sys/kernel/yama/ptrace_scope ] || said=2
        fi
        check "users $mode" 60 bash -c '
            FI_LOG_LEVEL=warn FI_LOG_PROV=strait "$1" "$2" >/dev/shm/log 2>&1; status=$?
            cat /dev/shm/log; n=$(grep -c "frames only" /dev/shm/log); rm /dev/shm/log
            [ $status != 77 ] || { echo "not possible here"; exit 0; }
            [ $status = 0 ] || exit $status
            [ -z "$3" ] || [ "$n" = "$3" ] || { echo "said $n times, not $3"; exit 1; }' users "$bin/users" $mode "$said"
    done
}

# Another user that calls a process over TCP, with the key that each process of the host can make up, or one that it was given.
part_neighbour() {
    local links mode
    intruder=${CARGO_TARGET_DIR:-$REPO/target}/debug/examples/intruder
    quiet "$out/intruder-build.log" cargo build --manifest-path "$REPO/Cargo.toml" --locked -p strait-wire -p strait-link --example intruder
    compile neighbour
    for links in shm,tcp tcp shm,ofi:tcp; do
        for mode in name own; do
            neighbour "$links" $mode FI_STRAIT_LINKS="$links"
        done
        neighbour "$links" name FI_STRAIT_LINKS="$links" FI_STRAIT_JOB_KEY=secret
    done
}

neighbour() {
    check "neighbour $2, $1${4:+, with the key}" 60 env "${@:3}" bash -c '
        "$@" || { [ $? = 77 ] && echo "not possible here"; }' neighbour "$bin/neighbour" "$intruder" "$2"
}

# All kinds of operations at once, with every byte compared; and messages that wait for a receive for a while.
part_soak() {
    local cma mode
    compile soak
    for cma in 1 0; do
        check "soak cma=$cma" "$(pick 240 3600)" env FI_STRAIT_CMA=$cma "$bin/soak" "$(pick 200000 10000000)" $RANDOM
        for mode in flood quiet; do
            check "$mode cma=$cma" 120 env FI_STRAIT_CMA=$cma FI_STRAIT_UNEXPECTED_SIZE=4000000 "$bin/soak" $mode
        done
    done
    check "soak that holds back" 240 env FI_STRAIT_UNEXPECTED_SIZE=10000 "$bin/soak" "$(pick 50000 1000000)" $RANDOM
}

# No leak and no bad access, as valgrind sees it. Threads take turns (--fair-sched): valgrind runs one at a time, and one that
# computes may keep the others from running for 20 s otherwise.
part_leaks() {
    local v="valgrind -q --fair-sched=yes --leak-check=full --errors-for-leak-kinds=definite --error-exitcode=9"
    need_apt valgrind
    compile soak progress mistakes
    # shellcheck disable=SC2086
    {
        check "leaks soak" "$(pick 240 3600)" $v "$bin/soak" "$(pick 3000 200000)" $RANDOM
        check "leaks soak cma=0" "$(pick 240 3600)" env FI_STRAIT_CMA=0 $v "$bin/soak" "$(pick 3000 200000)" $RANDOM
        check "leaks progress" 240 $v "$bin/progress" auto
        check "leaks mistakes" 240 $v "$bin/mistakes"
    }
}

# A hostile process at the real link, from several seeds: as ci/test has built it, or as it is shipped.
part_hostile() {
    local seed name begin log status profile
    profile=$(pick dev release)
    for seed in $(seq "$(pick 2 20)"); do
        name="hostile $seed" begin=$SECONDS log=$out/hostile-$seed.log status=0
        STRAIT_HOSTILE_SEED=$seed STRAIT_HOSTILE_SECONDS=$(pick 6 60) timeout -k 5 $(($(pick 200 300) * ${SLOWER:-1})) \
            cargo test --manifest-path "$REPO/Cargo.toml" --profile "$profile" --locked -p strait-link --lib \
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
            local places=/dev/shm
            case $REPO/$out/$STRAIT_LIB_DIR/ in
                /tmp/*|*//tmp/*) ;;
                *) mount -t tmpfs -o mode=1777 strait-tmp /tmp; places+=' /tmp' ;;
            esac
            clean "$places" "$@"
            exit ;;
    esac
    need_provider
    [ -e "$LIBFABRIC/.done" ] || die "run ci/get/libfabric first"
    # Namespaces see the library only by this path.
    export FI_PROVIDER_PATH=$STRAIT_LIB_DIR FI_PROVIDER=strait,shm
    mkdir -p "$out"
    bad=0
    # shellcheck disable=SC2086
    (($#)) || set -- $parts
    for part; do
        [[ " $parts " == *" $part "* ]] || die "no such part: $part (ci/suite/faults.sh --list)"
        "part_$part"
    done
    exit $bad
}
main "$@"
