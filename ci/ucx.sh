#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Run the UCX transport under every UCX there is (ci/get-ucx), with UCX_TLS=strait and nothing else
# for it to choose from:
#
#   ci/ucx.sh                 everything: the parts below
#   ci/ucx.sh PART...         info client perf mpi shmem wheels
#   UCX_HOSTS="debian 1.22"   only these (default: all that ci/get-ucx gets)
#   FAST=1                    a few sizes, fewer rounds
#
# A line for each check, "ok ..." or "FAILED ..."; logs in $WORK/log/ucx.  The proof that Strait
# carried the bytes: UCX is offered no other transport, and its log must name strait in an endpoint's
# configuration.  Exits 1 if anything failed.
. "$(dirname "$0")/lib.sh"
cd "$REPO"

so=$STRAIT_LIB_DIR/ucx/libuct_strait.so.0
logs=$WORK/log/ucx
mkdir -p "$logs"
bad=0
hosts=${UCX_HOSTS:-debian 1.14 1.15 1.16 1.17 1.18 1.19 1.20 1.21 1.22 cu13-1.22}

report() { # report STATUS NAME
    if [ "$1" = 0 ]; then echo "ok $2"; else echo "FAILED $2"; bad=1; fi
}

# use HOST: how its programs are started, in `run` and `bin`.
use() {
    local dir
    run=(env UCX_TLS=strait UCX_WARN_UNUSED_ENV_VARS=n)
    if [ "$1" = debian ]; then
        bin=/usr/bin
        run+=(LD_PRELOAD="$so")
        return
    fi
    dir=$UCX/$1/libucx
    [ -d "$dir" ] || die "no UCX $1 in $UCX (ci/get-ucx $1)"
    bin=$dir/bin
    run+=(LD_LIBRARY_PATH="$dir/lib")
    # 1.22 and newer look there themselves; older ones have to be helped.
    case $1 in
        *1.2[2-9]) run+=(UCX_PLUGIN_PATH="$STRAIT_LIB_DIR/ucx") ;;
        *)         run+=(LD_PRELOAD="$so") ;;
    esac
}

# carried LOG: UCX says so itself, at its level info.
carried() { grep -q '[_ ]cfg.*(strait/host)' "$1"; }

part_info() {
    local host
    for host in $hosts; do
        use "$host"
        "${run[@]}" "$bin/ucx_info" -d >"$logs/info-$host.log" 2>&1 || true
        grep -q 'Transport: strait' "$logs/info-$host.log"
        report $? "info $host"
    done
}

part_client() {
    local host mode want out
    gcc -O1 -o "$WORK/ucx-client" tests/ucx/client.c -lucp -lucs
    for host in $hosts; do
        use "$host"
        for mode in '' -w -e cma=n; do
            # UCX has no atomics in peer error mode since 1.16.
            case $mode in
                -e)    want="tag am put get user core death" ;;
                -w)    want="tag am put get atomic" ;;
                *)     want="tag am put get atomic user user-atomic core" ;;
            esac
            if [ "${FAST:-0}" != 0 ] && [ "$mode" = -w ]; then continue; fi
            out=$logs/client-$host${mode:+-${mode#-}}.log
            # shellcheck disable=SC2086
            STRAIT_UCX_CMA=$([ "$mode" = cma=n ] && echo n || echo y) UCX_LOG_LEVEL=info \
                timeout -k 5 200 "${run[@]}" "$WORK/ucx-client" ${mode%cma=n} $want >"$out" 2>&1 || true
            [ "$(grep -c '^ok ' "$out")" = "$(wc -w <<<"$want")" ] && carried "$out"
            report $? "client $host${mode:+ $mode}: $want"
        done
    done
}

# perf HOST TEST SIZE N: one run of ucx_perftest; its last line.
perf() {
    local port status=0
    port=$((20000 + RANDOM % 20000))
    timeout -k 5 60 "${run[@]}" "$bin/ucx_perftest" -p $port >"$logs/perf-server.log" 2>&1 &
    sleep 0.3
    timeout -k 5 60 "${run[@]}" "$bin/ucx_perftest" 127.0.0.1 -p $port -t "$2" -s "$3" -n "$4" -w "$(($4 / 10))" -f \
        >"$logs/perf-$1-$2-$3.log" 2>&1 || status=$?
    wait
    tail -n 1 "$logs/perf-$1-$2-$3.log"
    return $status
}

part_perf() {
    local host test size sizes='8 1024 8192 65536 1048576' n status
    if [ "${FAST:-0}" != 0 ]; then sizes='8 65536'; fi
    for host in $hosts; do
        use "$host"
        for test in tag_lat tag_bw ucp_am_lat ucp_am_bw ucp_put_lat ucp_put_bw ucp_get ucp_add ucp_fadd ucp_swap ucp_cswap; do
            status=0
            for size in $sizes; do
                case $test-$size in
                    ucp_add-8|ucp_fadd-8|ucp_swap-8|ucp_cswap-8) ;;
                    ucp_add-*|ucp_fadd-*|ucp_swap-*|ucp_cswap-*) continue ;;
                esac
                n=$((size > 100000 ? 100 : 2000))
                perf "$host" $test $size $n >/dev/null || status=1
            done
            report $status "perf $host $test"
        done
    done
}

# One MPI program (the one of ci/mpi-exchange) and mpi4py's tests over Open MPI 4.1 of Debian.
part_mpi() {
    local status=0 exe=$WORK/ucx-exchange log=$logs/mpi.log
    need_apt openmpi-bin libopenmpi-dev
    mpicc.openmpi -O1 -o "$exe" tests/mpi/exchange.c -lm
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    ompi=(--oversubscribe --bind-to none --mca pml ucx --mca osc ucx --mca pml_ucx_tls any --mca pml_ucx_devices any
          --mca mpi_yield_when_idle 1 -x LD_PRELOAD="$so" -x UCX_TLS=strait -x UCX_LOG_LEVEL=info)
    NS_TIMEOUT=120 in_ns mpirun.openmpi "${ompi[@]}" -np 4 "$exe" >"$log" 2>&1 </dev/null || status=1
    [ $status = 0 ] && carried "$log"
    report $? "mpi ompi4: exchange, 4 ranks, pml and osc ucx"
}

# An OpenSHMEM program of ours: put, get, atomics, locks, collectives.
part_shmem() {
    local status=0 exe=$WORK/ucx-shmem log=$logs/shmem.log
    need_apt openmpi-bin libopenmpi-dev
    oshcc -O1 -o "$exe" tests/ucx/shmem.c
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    NS_TIMEOUT=120 in_ns oshrun --oversubscribe --bind-to none --mca pml ucx --mca osc ucx --mca spml ucx --mca pml_ucx_tls any \
        --mca pml_ucx_devices any --mca mpi_yield_when_idle 1 -x LD_PRELOAD="$so" \
        -x UCX_TLS=strait -x UCX_LOG_LEVEL=info -np 4 "$exe" >"$log" 2>&1 </dev/null || status=1
    # What it says itself; Debian's oshrun has been seen to crash in finalize, without Strait as well.
    [ "$(grep -c '^shmem .*: ok$' "$log")" = 4 ] && carried "$log"
    report $? "shmem ompi4: 4 processing elements, spml ucx"
    [ $status = 0 ] || echo "   oshrun ended with an error after that, see $log"
}

# The UCX inside other wheels: Open MPI 5 and MPICH.
part_wheels() {
    local dir status log exe
    [ -e "$CLIENTS/ompi5/.done" ] && [ -e "$CLIENTS/mpich/.done" ] || ci/get-clients
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    dir=$CLIENTS/ompi5 log=$logs/ompi5.log exe=$WORK/ucx-exchange-ompi5 status=0
    "$dir/bin/mpicc" -O1 -o "$exe" tests/mpi/exchange.c -lm
    NS_TIMEOUT=120 in_ns "$dir/bin/mpirun" --oversubscribe --bind-to none --mca pml ucx --mca osc ucx --mca pml_ucx_tls any \
        --mca pml_ucx_devices any --mca mpi_yield_when_idle 1 -x LD_PRELOAD="$so" -x UCX_TLS=strait \
        -x UCX_LOG_LEVEL=info -np 4 "$exe" >"$log" 2>&1 </dev/null || status=1
    [ $status = 0 ] && carried "$log"
    report $? "wheels ompi5: exchange, 4 ranks, pml and osc ucx"
    dir=$CLIENTS/mpich log=$logs/mpich.log exe=$WORK/ucx-exchange-mpich status=0
    "$dir/bin/mpicc" -O1 -o "$exe" tests/mpi/exchange.c -lm
    MPIR_CVAR_CH4_NETMOD=ucx MPIR_CVAR_NOLOCAL=1 LD_PRELOAD=$so UCX_TLS=strait UCX_LOG_LEVEL=info \
        NS_TIMEOUT=120 in_ns "$dir/bin/mpiexec" -np 4 "$exe" >"$log" 2>&1 </dev/null || status=1
    [ $status = 0 ] && carried "$log"
    report $? "wheels mpich: exchange, 4 ranks, netmod ucx"
}

main() {
    [ -e "$so" ] || die "no $so (build it first: ci/build)"
    (($#)) || set -- info client perf mpi shmem wheels
    # shellcheck disable=SC2086
    ci/get-ucx $hosts
    for part; do
        [ "$(type -t "part_$part")" = function ] || die "no such part: $part"
        "part_$part"
    done
    exit $bad
}
main "$@"
