# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# The parts of ci/suite/hosts that run MPI and OpenSHMEM on its hosts. Sourced by it.
# shellcheck shell=bash disable=SC2154

# What mpi() and on_hosts() start ranks on.
hosts='h1 h2'
libraries=${LD_LIBRARY_PATH:-}

# mpi NAME command...: tests/mpi/exchange.c with two ranks on each host.
mpi() {
    local name=$1 status=0 n; shift
    n=$(wc -w <<<"$hosts")
    fresh "mpi-$name-$n-${by%% *}"
    NS_TIMEOUT=$((50 * n)) FI_LOG_LEVEL=info in_ns "$host" h1 env PATH="$out/bin:$PATH" "$@" > "$dir/log" 2>&1 || status=$?
    grep -aq '^exchange ok' "$dir/log" || status=1
    # Each rank has a peer on its own host, and two on each other one.
    grep -aq "$by" "$dir/log" || status=3
    grep -a 'ring' "$dir/log" | has -a 'its address is this host' || status=4
    report "$name, $n hosts x 2 ranks, over ${by%% *} and shared memory" $status "$dir/log" "$begin"
}

# on_hosts CLIENT [PROVIDER]: $go is what starts 2 ranks on each of $hosts, to be followed by a program. 1: it is not there.
on_hosts() {
    local client=$1 pass=(-x FI_PROVIDER -x FI_PROVIDER_PATH -x FI_LOG_LEVEL -x FI_STRAIT_LINKS -x SKIP_TESTS) slots names ranks
    [ -e "$CLIENTS/${client%-*}/.done" ] || { echo "skipped $client: run ci/get/clients"; return 1; }
    # What Intel MPI needs there is not for the others.
    export LD_LIBRARY_PATH=$libraries
    [ -n "$libraries" ] || unset LD_LIBRARY_PATH
    mpi_setup "$client" "${2:-strait}" || return 1
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    names=${hosts// /,} slots=${hosts// /:2,}:2 ranks=$((2 * $(wc -w <<<"$hosts")))
    case $client in
    # Debian turns off the only one-sided module that works between hosts over an MTL.
    ompi4-*) go=("${LAUNCH[@]}" --mca osc pt2pt --mca plm_rsh_agent ssh -H "$slots" "${pass[@]}" -np "$ranks") ;;
    ompi5-*) go=("${LAUNCH[@]}" --prtemca plm_ssh_agent ssh --host "$slots" "${pass[@]}" -np "$ranks") ;;
    mpich) go=(env MPIR_CVAR_NOLOCAL=1 "${LAUNCH[@]}" -launcher rsh -launcher-exec ssh -hosts "$names" -ppn 2 -genvall -np "$ranks") ;;
    impi) go=(env I_MPI_HYDRA_BOOTSTRAP=rsh I_MPI_HYDRA_BOOTSTRAP_EXEC=ssh "${LAUNCH[@]}" -hosts "$names" -ppn 2 -genvall -n "$ranks") ;;
    esac
}

# clients_of CLIENT...: those that HOSTS_CLIENTS names, or these, less the ones that take LONG=1.
clients_of() {
    local client
    for client in ${HOSTS_CLIENTS:-"$@"}; do
        case ${HOSTS_CLIENTS:+chosen}$client$long in ompi5-mtl0 | impi0) continue ;; esac
        echo "$client"
    done
}

# exchange_by CLIENT: $exe is tests/mpi/exchange.c, compiled for it. After on_hosts.
exchange_by() {
    # Intel MPI has MPICH's binary interface.
    exe=$WORK/exchange/${1%-*}
    mkdir -p "$WORK/exchange"
    if [ "$REPO/tests/mpi/exchange.c" -nt "$exe" ]; then
        env -u LD_LIBRARY_PATH "$MPICC" -O1 -Wall -o "$exe" "$REPO/tests/mpi/exchange.c"
    fi
}

part_mpi() {
    local client exe go
    for client in $(clients_of ompi4-mtl ompi5-mtl mpich impi); do
        on_hosts "$client" || continue
        exchange_by "$client"
        mpi "$client" "${go[@]}" "$exe"
    done
}

# Four hosts at one switch: each of them, of two ranks, has six peers on others.
part_four() {
    local n client exe go hosts='h1 h2 h3 h4' was all='ompi4-mtl ompi5-mtl mpich impi'
    was=$(cat "$STRAIT_HOSTS/hosts")
    ip netns add "${prefix}switch"
    if ! ip -n "${prefix}switch" link add name bridge type bridge 2>/dev/null; then
        ip netns del "${prefix}switch"
        echo "skipped four hosts: this kernel makes no switches (bridge)"
        return 0
    fi
    ip -n "${prefix}h1" link del eth0
    ip -n "${prefix}switch" link set bridge up
    echo '127.0.0.1 localhost' > "$STRAIT_HOSTS/hosts"
    for n in 1 2 3 4; do
        [ $n -lt 3 ] || ip netns add "${prefix}h$n"
        ip link add eth0 netns "${prefix}h$n" type veth peer name "port$n" netns "${prefix}switch"
        ip -n "${prefix}switch" link set "port$n" master bridge up
        ip -n "${prefix}h$n" addr add "10.9.77.$n/24" dev eth0
        ip -n "${prefix}h$n" link set lo up
        ip -n "${prefix}h$n" link set eth0 up
        echo "10.9.77.$n h$n" >> "$STRAIT_HOSTS/hosts"
    done
    # One client, for its time.
    [ "$long" = 1 ] || all=mpich
    for client in $(clients_of $all); do
        on_hosts "$client" || continue
        exchange_by "$client"
        mpi "$client" "${go[@]}" "$exe"
        # Eight of Open MPI's ranks on two cores take a minute over a provider below.
        # Intel MPI's libfabric drops the providers that FI_PROVIDER does not name, so that there is none to be below.
        case $client$long in ompi?-mtl0 | impi?) continue ;; esac
        export FI_STRAIT_LINKS=shm,ofi
        by='ofi .*set up over tcp' mpi "$client" "${go[@]}" "$exe"
        unset FI_STRAIT_LINKS
    done
    for n in h3 h4 switch; do ip netns del "$prefix$n"; done
    # Their ends of cables go with namespaces, though not at once.
    for n in 1 2; do
        ip -n "${prefix}h$n" link del eth0 2>/dev/null || true
    done
    echo "$was" > "$STRAIT_HOSTS/hosts"
    connect
}

# What Sandia OpenSHMEM asks of libfabric (tests/hosts/shmem.c), by two processes on each host; and its own tests, where it was built.
part_shmem() {
    local mode status pe n exe go
    gcc -std=gnu11 -O2 -g -Wall -Wextra -Werror -I"$LIBFABRIC/include" -o "$out/bin/shmem" \
        "$REPO/tests/hosts/shmem.c" -L"$LIBFABRIC/lib" -lfabric -Wl,-rpath,"$LIBFABRIC/lib"
    for mode in scalable polling manual basic; do
        fresh "shmem-$mode-${by%% *}"
        status=0
        local all=()
        for pe in 0 1 2 3; do
            FI_LOG_LEVEL=info timeout -k 2 60 "$host" "h$((1 + pe / 2))" "$out/bin/shmem" $pe 4 "$dir" $mode > "$dir/log.$pe" 2>&1 &
            all+=($!)
        done
        for pe in "${all[@]}"; do wait "$pe" || status=$?; done
        cat "$dir"/log.? > "$dir/log"
        [ "$(grep -c '^ok: process' "$dir/log")" = 4 ] || status=1
        grep -q "$by" "$dir/log" && grep 'ring' "$dir/log" | has 'its address is this host' || status=3
        report "what OpenSHMEM asks for ($mode), 2 hosts x 2 processes, over ${by%% *} and shared memory" $status "$dir/log" "$begin"
    done
    [ -n "${SOS:-}" ] || return 0
    on_hosts mpich || return 0
    export SHMEM_OFI_PROVIDER=strait
    for exe in ${SOS_TESTS:-hello barrier put1 get1 atomic_inc atomic_bitwise waituntil pingpong bcast to_all put_signal cswap max_reduction collect rma_coverage set_fetch self_collectives}; do
        exe=$(find "$SOS/modules/tests-sos/test" -type f -name "$exe" -perm -1 -not -name '*.la' | sed -n 1p)
        [ -n "$exe" ] || continue
        fresh "sos-$(basename "$exe")-${by%% *}"
        status=0
        NS_TIMEOUT=100 FI_LOG_LEVEL=info in_ns "$host" h1 env PATH="$out/bin:$PATH" "${go[@]}" "$exe" > "$dir/log" 2>&1 || status=$?
        grep -aq "$by" "$dir/log" || status=3
        report "OpenSHMEM's $(basename "$exe"), 2 hosts x 2 processes, over ${by%% *}" $status "$dir/log" "$begin"
    done
    unset SHMEM_OFI_PROVIDER
}

# module CLIENT MODULE INTO: runs it with $go. The names of tests that failed on any rank, and 4 if a rank did not come to its end.
module() {
    local name=$2 into=$3
    (cd "$dir" && NS_TIMEOUT=${MODULE_TIMEOUT:-300} in_ns "$host" h1 env PATH="$out/bin:$PATH" "${go[@]}" "$PY" \
        "$REPO/tests/mpi/run_mpi4py.py" "$CLIENTS/mpi4py/test" "$dir/$into" "test_$name") > "$dir/log.$into" 2>&1 < /dev/null || true
    cat "$dir/$into".? 2>/dev/null | sed -n 's/^\(fail\|error\) //p' | sort -u
    [ "$(cat "$dir/$into".? 2>/dev/null | grep -c '^end')" = 4 ] || return 4
}

# Not among the default parts. A test that fails over the client's libfabric with tcp as well is not counted.
part_suite() {
    local client go name status ended ok modules=${MODULES:-p2p_buf p2p_obj cco_buf cco_nb_buf cco_vec rma win}
    for client in $(clients_of ompi4-mtl ompi5-mtl mpich impi); do
        export SKIP_TESTS=$REPO/tests/mpi/$client.skip
        [ -e "$SKIP_TESTS" ] || SKIP_TESTS=$REPO/tests/mpi/${client%%-*}.skip
        [ -e "$SKIP_TESTS" ] || SKIP_TESTS=/dev/null
        for name in $modules; do
            on_hosts "$client" || break
            fresh "suite-$client-$name"
            status=0 ended=0
            module "$client" "$name" rank > "$dir/log" || status=$?
            ok=$(grep -c '^ok' "$dir/rank.0" || true)
            if { [ -s "$dir/log" ] || [ $status != 0 ]; } && on_hosts "$client" tcp; then
                module "$client" "$name" peer > "$dir/peers" || { ended=4; echo "over tcp a rank does not come to its end" >> "$dir/log.peer"; }
                grep -vxFf "$dir/peers" "$dir/log" > "$dir/ours" || true
                mv "$dir/ours" "$dir/log"
            fi
            [ ! -s "$dir/log" ] || status=1
            # That says nothing of Strait.
            if [ $status$ended = 44 ]; then
                echo "skipped $client, mpi4py's $name, 2 hosts x 2 ranks: it does not come to its end over tcp either, ${ok:-0} tests ok before"
                continue
            fi
            report "$client, mpi4py's $name, 2 hosts x 2 ranks, ${ok:-0} tests ok" $status "$dir/log" "$begin"
        done
        unset SKIP_TESTS
    done
}
