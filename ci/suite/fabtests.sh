#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Run libfabric's own test-suite, fabtests 2.1.0, over the provider.
#
#   ci/suite/fabtests.sh [set...]          default: quick ubertest-quick extra
#
# Sets: those of runfabtests.sh (unit, functional, short, standard, regression, multinode, and
# quick = unit + functional + short), ubertest-quick, ubertest-verify, ubertest-all, ubertest-short (of
# ubertest-quick's atomics those of FI_INT64 and FI_LONG_DOUBLE), extra (the programs in
# tests/fabtests/extra.list), and all = everything of these but ubertest-all.
#
#   PROVIDER=shm|tcp|...             run a peer instead (validates this script; never strict)
#   STRAIT_LIB_DIR=dir               where libstrait-fi.so is
#   TEST_TIMEOUT=120 SET_TIMEOUT=...  seconds for one test and for one set
#   ONLY=regex                       of `extra`, only the lines that match
#   NS_NET=1                         use a private loopback network
#
# Results: $WORK/fabtests/<provider>/<set>.{log,results}, or in FABTESTS_OUT.  Exits 1 if anything failed.
. "$(dirname "$0")/../lib.sh"
. "$REPO/ci/suite/fabtests-server.sh"

PROVIDER=${PROVIDER:-strait}
TEST_TIMEOUT=${TEST_TIMEOUT:-120}
bin=$LIBFABRIC/bin
configs=$LIBFABRIC/share/fabtests/test_configs
[ -e "$LIBFABRIC/.done" ] || die "run ci/get/libfabric first"

(($#)) || set -- quick ubertest-quick extra
if [ "$*" = all ]; then
    set -- quick standard regression multinode ubertest-quick ubertest-verify extra
fi

# All servers listen on the same port: a second suite on this machine gets a private network, and a
# result directory of its own.
if [ "${1:-}" != --extra-inside ]; then
    export FABTESTS_OUT=${FABTESTS_OUT:-$WORK/fabtests/${PROVIDER//;/+}}
    exec 9>"$WORK/fabtests.lock"
    if ! flock -n 9; then
        export NS_NET=1 FABTESTS_OUT=$FABTESTS_OUT.$$
        log "another suite is running; using a private loopback network, results in $FABTESTS_OUT"
    fi
fi
out=$FABTESTS_OUT
mkdir -p "$out"
# runfabtests.sh wants to be in a directory with test_configs/, and leaves its scratch files there.
run=$out/run
mkdir -p "$run"
ln -sfn "$configs" "$run/test_configs"
[ "${1:-}" = --extra-inside ] || patient "$bin/runfabtests.sh" "$run/runfabtests.sh" || die "$bin/runfabtests.sh is not as expected"

if [ "$PROVIDER" = strait ]; then
    need_provider
    export FI_PROVIDER_PATH=$STRAIT_LIB_DIR
    # Strict: what is not excluded has to pass, "not supported" does not count.
    opts=(-S -f "$REPO/tests/fabtests/strait.exclude")
    # The configurations of the closest peer, with its name replaced.
    mkdir -p "$run/uber"
    for kind in quick all verify; do
        sed 's/\bshm\b/strait/g' "$configs/shm/$kind.test" > "$run/uber/$kind.test"
    done
    # What atomics of the other types do is in fi_rdm_atomic -o all, with their values.
    sed -E '/^\s*FI_(INT8|INT16|INT32|INT128|FLOAT|DOUBLE_COMPLEX),$/d' "$run/uber/quick.test" > "$run/uber/short.test"
else
    # A peer: its own exclusion list and configurations.  shm and sm2 fail the negative unit tests.
    opts=(-N)
fi

# The programs in extra.list, in the format of `runfabtests.sh -v`.
extra() {
    local kind cmd result s_ret c_ret begin s_pid file=
    while read -r kind cmd; do
        case $kind in ''|'#'*) continue ;; esac
        [[ "$kind $cmd" =~ ${ONLY:-.} ]] || continue
        begin=$(date +%s) s_ret=0 c_ret=0 file=
        : > "$run/s"; : > "$run/c"
        if [ "$kind" = stress ]; then
            file="-u $configs/rdm_stress/$cmd"
            # Its server has many threads, and would promise not to.
            cmd="fi_rdm_stress --timeout 20 --threading safe"
        fi
        local args="${cmd#* } -p $PROVIDER"; [ "$cmd" != "${cmd#* }" ] || args="-p $PROVIDER"
        local prog=$bin/${cmd%% *}
        # shellcheck disable=SC2086
        if [ "$kind" = one ]; then
            timeout -k 5 "$TEST_TIMEOUT" "$prog" $args > "$run/c" 2>&1 || c_ret=$?
        else
            timeout -k 5 $((TEST_TIMEOUT + 5)) "$prog" $args -s 127.0.0.1 > "$run/s" 2>&1 &
            s_pid=$!
            await_server $s_pid
            timeout -k 5 "$TEST_TIMEOUT" "$prog" $args $file \
                -s 127.0.0.1 127.0.0.1 > "$run/c" 2>&1 || c_ret=$?
            if [ "$kind" = stress ]; then
                kill -0 $s_pid 2>/dev/null || { echo "the server went away" >> "$run/s"; s_ret=99; }
                children=$(children $s_pid)
                kill -9 -- $children $s_pid 2>/dev/null || true
                wait $s_pid 2>/dev/null || true
                # Its port is free only when it is really gone.
                for p in $children; do
                    for _ in $(seq 100); do
                        # Alive, or a leader whose threads are still on their way out.
                        { grep -q '^State:.[^Z]' /proc/$p/task/*/status; } 2>/dev/null || break
                        sleep 0.1
                    done
                done
            else
                # a failed client leaves its server waiting
                [ $c_ret = 0 ] || { sleep 1; kill $s_pid 2>/dev/null || true; }
                wait $s_pid || s_ret=$?
            fi
        fi
        result=Fail
        if [ $s_ret = 0 ] && [ $c_ret = 0 ]; then
            result=Pass
        elif [ "$PROVIDER" != strait ] && [[ $c_ret =~ ^(61|38|195|218)$ ]]; then
            result=Notrun       # ENODATA, ENOSYS, as exit status with either sign
        fi
        printf -- '- name:   %s\n  result: %s\n  time:   %s\n' \
            "$cmd${file:+ ${file##*/}}" "$result" $(($(date +%s) - begin))
        if [ $result = Fail ]; then
            printf '  server_stdout (status %s): |\n' $s_ret; tail -n 30 "$run/s" | sed 's/^/    /'
            printf '  client_stdout (status %s): |\n' $c_ret; tail -n 30 "$run/c" | sed 's/^/    /'
        fi
    done < "$REPO/tests/fabtests/extra.list"
}

if [ "${1:-}" = --extra-inside ]; then     # started below, inside the namespaces
    extra
    exit 0
fi

total_fail=0
for set; do
    sopts=("${opts[@]}") limit=1800 tlimit=$TEST_TIMEOUT
    case $set in
        extra)            limit=2400 ;;
        quick|unit|functional|short|regression) sopts+=(-t "$set") ;;
        standard)         sopts+=(-t standard); limit=3600 tlimit=$((TEST_TIMEOUT * 4)) ;;
        multinode)        sopts+=(-t multinode); tlimit=500 ;;
        ubertest-quick)   kind=quick ;;
        ubertest-short)   kind=short ;;
        ubertest-verify)  kind=verify ;;
        ubertest-all)     kind=all ;;
        *)                die "unknown set: $set" ;;
    esac
    if [[ $set == ubertest-* ]]; then
        sopts+=(-t complex) tlimit=1700
        if [ "$PROVIDER" = strait ]; then
            sopts+=(-u "$run/uber/$kind.test")
        else
            f=$configs/$PROVIDER/$kind.test
            [ -e "$f" ] || { log "$PROVIDER has no $kind.test; $set skipped"; continue; }
            sopts+=(-u "$f")
        fi
    fi
    limit=${SET_TIMEOUT:-$limit}
    name=$out/$set
    rm -f "$name.log" "$name.results"
    log "fabtests $set over $PROVIDER"
    begin=$SECONDS timed_out=0
    if [ "$set" = extra ]; then
        cmd=("$REPO/ci/suite/fabtests.sh" --extra-inside)
    else
        cmd=("$run/runfabtests.sh" -v -p "$bin" -T "$tlimit" "${sopts[@]}" "$PROVIDER")
    fi
    status=0
    (cd "$run" && NS_TIMEOUT=$limit in_ns "${cmd[@]}") > "$name.log" 2>&1 9>&- || status=$?
    [ $status != 137 ] || timed_out=1

    # "result<TAB>name", one line for each test.  ubertest counts its permutations in brackets;
    # one that was skipped is a failure where the run is strict.
    awk -v strict="$([ "$PROVIDER" = strait ] && echo 1 || echo 0)" '
        /^- name: /   { sub(/^- name: +/, ""); sub(/ -p "[^"]*"$/, ""); name = $0 }
        /^  result: / { r = $2; d = ""
                        if (match($0, /\[.*\]/)) { d = substr($0, RSTART, RLENGTH)
                            split(substr(d, 2), n, /[\/\]]/)
                            if (strict && r == "Pass" && n[1] != n[2]) r = "Fail" }
                        print r "\t" name (d ? " " d : "") }' "$name.log" > "$name.results"
    count() { grep -c "^$1" "$name.results" || true; }
    pass=$(count Pass) fail=$(count Fail) notrun=$(($(count Notrun) + $(count Excluded)))
    if [ $timed_out = 1 ]; then
        log "$set: stopped after $limit s; the last test that finished: $(tail -n 1 "$name.results")"
        fail=$((fail + 1))
    elif ((pass + fail == 0)); then
        log "$set: nothing ran (log: $name.log)"
        tail -n 5 "$name.log" >&2
        fail=1
    fi
    printf '%-16s pass %3d  fail %3d  notrun %3d  %4d s\n' "$set" "$pass" "$fail" "$notrun" $((SECONDS - begin))
    grep -F '[' "$name.results" || true
    sed -n 's/^Fail\t/    FAILED: /p' "$name.results"
    total_fail=$((total_fail + fail))
done
rm -f "$run"/fabtests.*_outp*
[ $total_fail = 0 ] || { echo "fabtests over $PROVIDER: $total_fail failed (logs: $out)"; exit 1; }
echo "fabtests over $PROVIDER: all passed"
