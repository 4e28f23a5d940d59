#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Run the UCX transport under every UCX there is (ci/get/ucx), with UCX_TLS=strait and nothing else
# for it to choose from:
#
#   ci/suite/ucx.sh                 everything: the parts below
#   ci/suite/ucx.sh PART...         info uct client death given cuda uid two unknown perf mpi shmem wheels nixl
#   UCX_HOSTS="debian 1.22"   only these (default: all that ci/get/ucx gets)
#   FAST=1                    a few sizes, fewer rounds
#
# A line for each check, "ok ..." or "FAILED ..."; logs in $WORK/log/ucx.  The proof that Strait
# carried the bytes: UCX is offered no other transport, and its log must name strait in an endpoint's
# configuration.  Exits 1 if anything failed.
. "$(dirname "$0")/../lib.sh"
. "$REPO/ci/suite/mpi-env.sh"
cd "$REPO"

so=$STRAIT_LIB_DIR/ucx/libuct_strait.so.0
logs=$WORK/log/ucx
mkdir -p "$logs"
bad=0
hosts=${UCX_HOSTS:-debian 1.14 1.15 1.16 1.17 1.18 1.19 1.20 1.21 1.22 cu13-1.22}

report() { # report STATUS NAME
    if [ "$1" = 0 ]; then echo "ok $2"; else echo "FAILED $2"; bad=1; fi
}

# settings [--ucx DIR]: adds what `strait ucx-env` says to `run`.
settings() {
    local text setting
    text=$("$STRAIT_LIB_DIR/bin/strait" ucx-env "$@") || die "no settings for a UCX: $*"
    while read -r _ setting; do run+=("$setting"); done < <(grep '^export' <<<"$text")
}

# use HOST: how its programs are started, in `run` and `bin`; with those settings.
use() {
    local lib=()
    run=(env UCX_WARN_UNUSED_ENV_VARS=n)
    bin=/usr/bin
    if [ "$1" != debian ]; then
        [ -d "$UCX/$1/libucx" ] || die "no UCX $1 in $UCX (ci/get/ucx $1)"
        bin=$UCX/$1/libucx/bin lib=(--ucx "$UCX/$1/libucx/lib")
        run+=(LD_LIBRARY_PATH="$UCX/$1/libucx/lib")
    fi
    settings "${lib[@]}"
}

# carried LOG: UCX says so itself, at its level info.
carried() { grep -q '[_ ]cfg.*(strait/host)' "$1"; }

# preloaded: what `run` preloads, with a blank before each.
preloaded() {
    local setting
    for setting in "${run[@]}"; do
        if [[ $setting == LD_PRELOAD=* ]]; then printf ' %s' "${setting#*=}"; fi
    done
}

part_info() {
    local host status
    for host in $hosts; do
        use "$host"
        status=0
        "${run[@]}" "$bin/ucx_info" -d >"$logs/info-$host.log" 2>&1 || status=1
        grep -q 'Transport: strait' "$logs/info-$host.log" || status=1
        report $status "info $host"
    done
}

# What UCT's headers demand, and UCP seldom asks for.
part_uct() {
    local host test out status cma way
    gcc -O1 -o "$WORK/ucx-uct" tests/ucx/uct.c -luct -lucs
    for host in $hosts; do
        use "$host"
        for test in zero align fixed pending order gets refused memory replies descriptors; do
            out=$logs/uct-$host-$test.log status=0 cma=y way=CMA
            # Requests are for where there is no CMA.
            case $test in replies|descriptors) cma=n way='rings and windows only: STRAIT_UCX_CMA=n' ;; esac
            STRAIT_UCX_CMA=$cma STRAIT_UCX_LOG=info timeout -k 5 100 "${run[@]}" "$WORK/ucx-uct" $test >"$out" 2>&1 ||
                status=1
            grep -q "^ok $test$" "$out" || status=1
            [ "$test" != memory ] || grep -q 'UCS_ERR_NO_MEMORY.*raise RLIMIT_AS' "$out" || status=1
            grep -q "memory of peers: $way" "$out" || status=1 # the log says which way memory goes
            report $status "uct $host: $test"
        done
    done
}

# helped OUT COMMAND...: a run that ends well, in which the other side had a part of some copy. Where others use
# the cores it may not come to that, so that it is tried again.
helped() {
    local out=$1 try
    shift
    for ((try = 1; try <= 20; try++)); do
        STRAIT_UCX_LOG=trace timeout -k 5 100 "$@" >"$out" 2>&1 || return 1
        if grep -q 'copies [1-9][0-9]* pieces of' "$out"; then return 0; fi
        log "try $try: no process helped"
    done
    return 1
}

part_client() {
    local host mode want out status
    gcc -O1 -pthread -o "$WORK/ucx-client" tests/ucx/client.c -lucp -lucs
    gcc -O1 -shared -fPIC -o "$WORK/ucx-nowrite.so" tests/ucx/nowrite.c
    for host in $hosts; do
        use "$host"
        for mode in '' -w -e cma=n; do
            # UCX has no atomics in peer error mode since 1.16.
            case $mode in
                -e)    want="tag am put get user core oneway cancel" ;;
                -w)    want="tag am put get atomic oneway" ;;
                cma=n) want="tag am put get atomic user user-atomic core flood oneway" ;;
                *)     want="tag am put get atomic user user-atomic gone core flood oneway" ;;
            esac
            if [ "${FAST:-0}" != 0 ] && [ "$mode" = -w ]; then continue; fi
            out=$logs/client-$host${mode:+-${mode#-}}.log status=0
            # shellcheck disable=SC2086
            STRAIT_UCX_CMA=$([ "$mode" = cma=n ] && echo n || echo y) UCX_LOG_LEVEL=info \
                timeout -k 5 200 "${run[@]}" "$WORK/ucx-client" ${mode%cma=n} $want >"$out" 2>&1 || status=1
            [ "$(grep -c '^ok ' "$out")" = "$(wc -w <<<"$want")" ] || status=1
            carried "$out" || status=1
            report $status "client $host${mode:+ $mode}: $want"
        done
        # Large messages and gets are copied by both sides.
        out=$logs/client-$host-shared.log status=0
        helped "$out" "${run[@]}" "$WORK/ucx-client" oneway || status=1
        report $status "client $host: both sides copied $(grep -c 'copies [1-9][0-9]* pieces of' "$out") of $(grep -c 'copies [0-9]* pieces of' "$out")"
        # And if the other side finds that it cannot.
        out=$logs/client-$host-nowrite.log status=0
        helped "$out" "${run[@]}" LD_PRELOAD="$WORK/ucx-nowrite.so$(preloaded)" "$WORK/ucx-client" oneway || status=1
        grep -q 'process_vm_readv refused: EPERM' "$out" || status=1
        report $status "client $host: a side that cannot copy its part"
    done
}

# A peer is killed in the middle of every kind of operation.
part_death() {
    local host mode out status
    gcc -O1 -Wno-unused-function -o "$WORK/ucx-death" tests/ucx/death.c -lucp -lucs -ldl
    for host in $hosts; do
        use "$host"
        for mode in '' -w; do
            if [ "${FAST:-0}" != 0 ] && [ "$mode" = -w ]; then continue; fi
            out=$logs/death-$host$mode.log status=0
            # shellcheck disable=SC2086
            timeout -k 5 300 "${run[@]}" "$WORK/ucx-death" $mode -n $((${FAST:-0} ? 2 : 10)) >"$out" 2>&1 || status=1
            report $status "death $host${mode:+ $mode}: all down within $(sed -n 's/.*down after \([0-9.]*\) ms.*/\1/p' "$out" |
                sort -n | tail -n 1) ms"
        done
    done
}

# Memory given back: not touched any more. Without CMA, no peer is ever inside an access.
part_given() {
    local host cma want out status
    gcc -O1 -pthread -o "$WORK/ucx-given" tests/ucx/given.c -luct -lucs
    for host in $hosts; do
        use "$host"
        for cma in y n; do
            want="dereg exec"
            [ $cma = n ] || want="dereg stop cancel exec"
            out=$logs/given-$host-$cma.log status=0
            # shellcheck disable=SC2086
            STRAIT_UCX_CMA=$cma timeout -k 5 300 "${run[@]}" "$WORK/ucx-given" -n $((${FAST:-0} ? 20 : 200)) $want \
                >"$out" 2>&1 || status=1
            [ "$(grep -c '^ok given-' "$out")" = "$(wc -w <<<"$want")" ] || status=1
            report $status "given $host cma=$cma: $want"
        done
    done
}

# stand_in: a driver for CUDA, and what else UCX's modules for it need, in $WORK/ucx-cuda.  Optimised, or
# else no UCX can put its hooks for allocations into it.
stand_in() {
    quiet "$WORK/log/build-stand-in.log" cargo build --release --locked -p cuda-stand-in
    mkdir -p "$WORK/ucx-cuda"
    install -m 755 "${CARGO_TARGET_DIR:-target}/release/libcuda_stand_in.so" "$WORK/ucx-cuda/libcuda.so.1.new"
    mv -f "$WORK/ucx-cuda/libcuda.so.1.new" "$WORK/ucx-cuda/libcuda.so.1"
    ln -sfn libcuda.so.1 "$WORK/ucx-cuda/libnvidia-ml.so.1"
}

# use_cuda HOST: as `use`, with the stand-in; what a wheel brings as CUDA's runtime is replaced too.
use_cuda() {
    local runtime release at
    LD_LIBRARY_PATH=$WORK/ucx-cuda use "$1"
    runtime=$(basename "$UCX/$1"/libucx_cu*.libs/libcudart*) at=$WORK/ucx-cuda/$1
    release=${runtime#*.so.} release=${release%%.*}
    mkdir -p "$at"
    echo "libcudart.so.$release { global: *; };" >"$at/map"
    gcc -O1 -shared -fPIC -Wl,-soname,"$runtime" -Wl,--version-script="$at/map" -o "$at/libcudart.so" \
        tests/ucx/cudart.c "$WORK/ucx-cuda/libcuda.so.1"
    [[ "${run[*]} " == *" UCX_TLS=strait,cuda_copy "* ]] || die "no settings for CUDA under $1"
    run+=(LD_PRELOAD="$at/libcudart.so$(preloaded)"
        LD_LIBRARY_PATH="$WORK/ucx-cuda:$UCX/$1/libucx/lib")
}

# Device memory, over a stand-in for CUDA's driver, beside UCX's own cuda_copy.
part_cuda() {
    local host mode option want out status kind more still
    stand_in
    gcc -O1 -Wno-unused-function -o "$WORK/ucx-cuda/client" tests/ucx/cuda.c -lucp -lucs -ldl
    gcc -O1 -pthread -o "$WORK/ucx-client" tests/ucx/client.c -lucp -lucs
    gcc -O1 -Wno-unused-function -o "$WORK/ucx-death" tests/ucx/death.c -lucp -lucs -ldl
    for host in $hosts; do
        # Debian's has no module for CUDA.
        [ "$host" != debian ] || continue
        use_cuda "$host"
        for mode in '' -e -w -d slow hooks; do
            if [ "${FAST:-0}" != 0 ] && [[ $mode == -[wd] ]]; then continue; fi
            want="tag am put get many again pieces host refused" more=()
            # UCX's own put and get are not for device memory before 1.16, unless its newer protocols are on.
            case $host in 1.14|1.15) if [ -z "$mode" ]; then more+=(UCX_PROTO_ENABLE=y); else want=${want/put get /}; fi ;; esac
            case $mode in
                slow)  more+=(CUDA_STAND_IN_DELAY_US=300); want="tag many" ;;
                # UCX does not hear of what is freed: the wrong allocation must not be taken for another.
                hooks) more+=(UCX_MEM_CUDA_HOOK_MODE=reloc UCX_MEMTYPE_CACHE=n); want=again ;;
            esac
            out=$logs/cuda-$host${mode:+-${mode#-}}.log status=0
            case $mode in -*) option=$mode ;; *) option= ;; esac
            # shellcheck disable=SC2086
            UCX_LOG_LEVEL=info timeout -k 5 300 "${run[@]}" "${more[@]}" "$WORK/ucx-cuda/client" $option $want \
                >"$out" 2>&1 || status=1
            [ "$(grep -c '^ok ' "$out")" = "$(wc -w <<<"$want")" ] || status=1
            # These do not say it, when set to use their newer protocols.
            [[ "${more[*]}" == *PROTO* ]] || grep -q '[_ ]cfg.*(.*strait/cuda' "$out" || status=1
            # No other transport opens anybody's memory.
            for kind in plain mapped pool; do
                grep -q "^opened $kind [1-9]" "$out" || status=1
            done
            report $status "cuda $host${mode:+ $mode}: $want"
        done
        # Host memory where there is a driver, without cuda_copy.
        out=$logs/cuda-$host-alone.log status=0
        UCX_LOG_LEVEL=info timeout -k 5 100 "${run[@]}" UCX_TLS=strait "$WORK/ucx-client" tag put >"$out" 2>&1 || status=1
        carried "$out" || status=1
        report $status "cuda $host without cuda_copy: host memory"
        more=(CUDA_STAND_IN_DELAY_US=1000) still=()
        want="rndv inside receive user-put user-get flush"
        case $host in 1.14|1.15) want="rndv inside receive" ;; esac
        case $host in
            1.14|1.15) ;;
            # These have no cache for registrations where they cannot patch the calls of the stand-in, which is optimised, and crash when one
            # is to be invalidated.
            1.16|1.17|1.18|1.19|1.20|1.21) more+=(UCX_MEM_CUDA_HOOK_MODE=reloc UCX_MEMTYPE_CACHE=n) ;;
        esac
        # These leave sends that the receiver has begun to take, and late ones, in progress for ever, over UCX's own tcp too (1 of 15 runs
        # on a loaded machine): there the receiver makes no progress (round 0).
        case $host in 1.14|1.15|1.16|1.17) still=(rndv inside) ;; esac
        out=$logs/cuda-death-$host.log status=0
        : >"$out"
        for option in ${still[@]+"-n 1 ${still[*]}"} "-n $((${FAST:-0} ? 2 : 6)) ${want#"${still[*]}"}"; do
            # shellcheck disable=SC2086
            timeout -k 5 300 "${run[@]}" "${more[@]}" "$WORK/ucx-death" -d $option >>"$out" 2>&1 || status=1
        done
        [ "$(grep -c '^ok death-' "$out")" = "$(wc -w <<<"$want")" ] || status=1
        report $status "cuda death $host: $want"
    done
}

# Another user's process, with its own address and with a forged one: refused, with one line on
# either side.
part_uid() {
    local host out status line
    gcc -O1 -Wno-unused-function -o "$WORK/ucx-uid" tests/ucx/uid.c -lucp -luct -lucs
    for host in $hosts; do
        use "$host"
        out=$logs/uid-$host.log status=0
        timeout -k 5 200 "${run[@]}" "$WORK/ucx-uid" >"$out" 2>&1 || status=$?
        if [ $status = 77 ]; then
            echo "   uid $host: left out, cannot become the user nobody here (not root?)"
            continue
        fi
        [ "$(grep -c '^ok ' "$out")" = 3 ] || status=1
        for line in 'WARN .* belongs to uid ' 'WARN .* refused a peer of uid '; do
            [ "$(grep -c "$line" "$out")" = 3 ] || status=1
        done
        report $status "uid $host: $(sed -n 's/^the endpoint: //p' "$out" | sort -u)"
    done
}

# renamed HOST DIR: a copy of its libraries with names of their own, as wheels have them inside, so that
# the dynamic linker does not take them for others of the same name.  The new names are as long as the
# old ones, and only names of libraries are changed.
renamed() {
    local l
    mkdir -p "$2"
    for l in m p s t; do
        sed 's/libuc\([mpst]\)\.so\.0/libuc\1-x.so/g' "$UCX/$1/libucx/lib/libuc$l.so.0" >"$2/libuc$l-x.so"
    done
    # What the wheel brings for them.
    for l in "$UCX/$1"/libucx_cu*.libs/*; do [ ! -e "$l" ] || cp "$l" "$2"; done
}

# Two copies of UCX in a process: Debian's and another one, either of them first; and the other one in a
# namespace of the dynamic linker's, where a UCX finds Strait that loads it by itself.
part_two() {
    local host dir order orders out status release
    gcc -O1 -o "$WORK/ucx-two" tests/ucx/two.c -ldl
    gcc -O1 -shared -fPIC -Wno-unused-function -o "$WORK/ucx-side.so" tests/ucx/side.c -lucp -lucs
    for host in $hosts; do
        [ "$host" != debian ] || continue
        dir=$WORK/ucx-two-$host
        renamed "$host" "$dir"
        gcc -O1 -shared -fPIC -Wno-unused-function -o "$dir/side.so" tests/ucx/side.c \
            "$dir/libucp-x.so" "$dir/libucs-x.so" -Wl,--disable-new-dtags,-rpath,"$dir",--allow-shlib-undefined
        use debian
        settings --ucx "$dir"
        orders=("$WORK/ucx-side.so $dir/side.so")
        if [[ ${run[*]} == *UCX_PLUGIN_PATH=* ]]; then orders+=("-m ${orders[0]}"); fi
        if [ "${FAST:-0}" = 0 ]; then orders+=("$dir/side.so $WORK/ucx-side.so"); fi
        for order in "${orders[@]}"; do
            out=$logs/two-$host-$(basename -- "${order%% *}").log status=0
            # shellcheck disable=SC2086
            STRAIT_UCX_LOG=debug UCX_LOG_LEVEL=info timeout -k 5 120 "${run[@]}" "$WORK/ucx-two" $order \
                >"$out" 2>&1 || status=1
            grep -q '^ok two$' "$out" || status=1
            # Two processes, two copies.
            [ "$(grep -c 'serving UCX ' "$out")" = 4 ] && [ "$(grep -c '[_ ]cfg.*(strait/host)' "$out")" = 4 ] || status=1
            release=$(sed -n 's/^a worker of UCX //p' "$out" | paste -sd ' ')
            [ "$(wc -w <<<"$release")" = 2 ] && [ "${release% *}" != "${release#* }" ] || status=1
            [[ $order != -m* ]] || release+=" in a namespace"
            report $status "two copies of UCX in a process: ${release/ /, then }"
        done
    done
}

# unknown NAME WANT LINES COMMAND...: it says "ok unknown" after WANT registrations, and LINES lines of
# Strait's with the reason `why`.  `module`: loaded by the program, and not preloaded.
unknown() {
    local out="$logs/unknown-${1//[ ,]/-}.log" status=0
    timeout -k 5 20 "${@:4}" "$2" ${module:+"$module"} >"$out" 2>&1 || status=1
    grep -q '^ok unknown$' "$out" || status=1
    [ "$(grep -c "^strait: not used with .*: $why$" "$out")" = "$3" ] || status=1
    [ "$(wc -l <"$out")" = $(($3 + 1)) ] || status=1
    report $status "unknown UCX: $1"
}

# no_settings DIR WHY: what the command says.
no_settings() {
    local out=$logs/unknown-env.log status=0
    "$STRAIT_LIB_DIR/bin/strait" ucx-env --ucx "$1" >"$out" 2>&1 || status=$?
    # The right one is 1.
    [ "$(wc -l <"$out")" = 1 ] && grep -q "not with the UCX in $1.*: $2" "$out" || status=2
    report $((status != 1)) "unknown UCX: no settings: $2"
}

# A libuct that is of no known release, or not as its release was: logged once, and left alone.
part_unknown() {
    local whys=("it is older than 1.13" "it lacks uct_tl_register" "its list of components is not laid out as expected")
    local kind why dir module preload
    for kind in 0 1 2; do
        why=${whys[kind]} dir=$WORK/ucx-unknown-$kind module=
        mkdir -p "$dir"
        gcc -O1 -shared -fPIC -DKIND=$kind -Wl,-soname,libuct.so.0 -o "$dir/libuct.so.0" tests/ucx/fake.c
        gcc -O1 -o "$dir/unknown" tests/ucx/unknown.c "$dir/libuct.so.0" -ldl -Wl,-rpath,"$dir"
        preload=(env LD_PRELOAD="$so")
        unknown "$why" 0 1 "${preload[@]}" "$dir/unknown"
        module=$so
        unknown "$why, as a module" 0 1 "$dir/unknown"
        module=
        no_settings "$dir" "$why"
    done
    # It is the check that refused the last one.
    unknown "served unchecked" 2 0 "${preload[@]}" STRAIT_UCX_CHECK=n "$dir/unknown"
    # A real one that is taken for an older one.
    [ -d "$UCX/1.16/libucx" ] || return 0
    dir=$WORK/ucx-unknown-real
    renamed 1.16 "$dir"
    sed -i 's/uct_rkey_compare/uct_rkey_comparX/' "$dir/libuct-x.so"
    no_settings "$dir" "${whys[2]}"
}

# listens PORT: within 10 seconds.
listens() {
    local i
    for ((i = 0; i < 100; i++)); do
        ! grep -qi "$(printf ':%04X 0*:0000 0A' "$1")" /proc/net/tcp /proc/net/tcp6 || return 0
        sleep 0.1
    done
    return 1
}

# perf HOST TEST SIZE N: one run of ucx_perftest; its last line.
perf() {
    local port try server=$logs/perf-$1-$2-$3-server.log status=0
    for try in 1 2 3 4 5; do
        # Below those that the kernel gives out; another program may have it all the same.
        port=$((20000 + RANDOM % 12000))
        timeout -k 5 30 "${run[@]}" "$bin/ucx_perftest" -p $port >"$server" 2>&1 &
        if listens $port && kill -0 $!; then break; fi
        kill $! || true
        wait
    done
    timeout -k 5 30 "${run[@]}" "$bin/ucx_perftest" 127.0.0.1 -p $port -t "$2" -s "$3" -n "$4" -w "$(($4 / 10))" -f \
        >"$logs/perf-$1-$2-$3.log" 2>&1 || status=$?
    wait
    tail -n 1 "$logs/perf-$1-$2-$3.log"
    if [ $status != 0 ]; then
        log "perf $1 $2 $3: status $status"
        tail -n 3 "$server" "$logs/perf-$1-$2-$3.log" >&2
    fi
    return $status
}

part_perf() {
    local host test size sizes='8 1024 8192 65536 1048576' n status
    if [ "${FAST:-0}" != 0 ]; then sizes='8 65536'; fi
    for host in $hosts; do
        use "$host"
        # Those in the wheels of 1.17 and 1.18 crash in the dynamic linker.
        if ! "${run[@]}" UCX_TLS=posix LD_PRELOAD= "$bin/ucx_perftest" -h >"$logs/perf-help.log" 2>&1; then
            echo "   perf $host: left out, its ucx_perftest does not start, Strait or no Strait"
            continue
        fi
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

# exchange CLIENT: one MPI program over it, one-sided operations included, with the proof.
exchange() {
    local log=$logs/$1.log status=0
    ci/suite/mpi-exchange "$1" 4 >"$log" 2>&1 </dev/null || status=$?
    report $status "exchange $1, 4 ranks"
}

part_mpi() {
    need_apt openmpi-bin libopenmpi-dev
    exchange ompi4-ucx
}

# shmem TLS LOG: an OpenSHMEM program of ours: put, get, atomics, locks, collectives.
shmem() {
    NS_TIMEOUT=120 in_ns oshrun --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 \
        --mca pml ucx --mca osc ucx --mca spml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any \
        -x LD_PRELOAD="$so" -x UCX_TLS="$1" -x UCX_LOG_LEVEL=info -x STRAIT_UCX_REPORT="$2.json" -np 4 "$WORK/ucx-shmem" >"$2" 2>&1 </dev/null
}

part_shmem() {
    local status=0 log=$logs/shmem.log peer=$logs/shmem-posix.log i
    need_apt openmpi-bin libopenmpi-dev
    rm -f "$log.json" && oshcc -O1 -o "$WORK/ucx-shmem" tests/ucx/shmem.c
    ompi_env
    shmem strait "$log" || status=$?
    if [ $status != 0 ] && [ "$(grep -c '^shmem .*: ok$' "$log")" = 4 ]; then
        # All went well, and then it died: Debian's oshrun has been seen to do so by itself. That
        # is no fault of ours if it does over posix as well.
        for ((i = 1; i <= 15; i++)); do
            shmem posix "$peer" && continue
            [ "$(grep -c '^shmem .*: ok$' "$peer")" = 4 ] || continue
            echo "   oshrun died in its finalization, over strait and (attempt $i) over posix"
            status=0
            break
        done
    fi
    [ "$(grep -c '^shmem .*: ok$' "$log")" = 4 ] || status=1
    carried "$log" && grep -q '"door":"UCX".*"way":"ring".*"way":"mapped memory"' "$log.json" || status=1
    report $status "shmem ompi4: 4 processing elements, spml ucx"
}

# The UCX inside other wheels: Open MPI 5 and MPICH.
part_wheels() {
    ci/get/clients >&2
    exchange ompi5-ucx
    exchange mpich-ucx
}

# NIXL's wheel, with a UCX of its own inside, in peer error mode: 4 MiB written between two processes,
# by its default and over Strait in turns.  Its CUDA parts find the stand-in for the driver.
part_nixl() {
    local dir=$UCX/nixl want="nixl-cu12==1.5.1 numpy==2.3.5" site status log round way
    need_apt python3-venv python3-pip
    if [ "$(cat "$dir/.done" 2>/dev/null)" != "$want" ]; then
        rm -rf "$dir"
        /usr/bin/python3 -m venv "$dir"
        # shellcheck disable=SC2086
        retry 3 quiet "$WORK/log/pip-nixl.log" "$dir/bin/pip" -q --disable-pip-version-check \
            install --no-deps --only-binary :all: $want
        echo "$want" > "$dir/.done"
    fi
    site=$(echo "$dir"/lib/python3*/site-packages)
    stand_in
    for ((round = 1; round <= (${FAST:-0} ? 1 : 3); round++)); do
        for way in default strait; do
            log=$logs/nixl-$way.log status=0
            run=(env UCX_WARN_UNUSED_ENV_VARS=n)
            [ $way = default ] || settings --ucx "$site/nixl_cu12.libs"
            LD_LIBRARY_PATH=$WORK/ucx-cuda UCX_LOG_LEVEL=info timeout -k 5 200 \
                "${run[@]}" "$dir/bin/python" tests/ucx/nixl.py >"$log" 2>&1 || status=1
            [ $way = default ] || carried "$log" || status=1
            report $status "nixl $way, $(sed -n 's/^ok nixl: //p' "$log")"
        done
    done
}

main() {
    [ -e "$so" ] || die "no $so (build it first: ci/build)"
    (($#)) || set -- info uct client death given cuda uid two unknown perf mpi shmem wheels nixl
    # shellcheck disable=SC2086
    ci/get/ucx $hosts
    for part; do
        [ "$(type -t "part_$part")" = function ] || die "no such part: $part"
        "part_$part"
    done
    exit $bad
}
main "$@"
