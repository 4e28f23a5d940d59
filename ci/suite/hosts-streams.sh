# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# The part of ci/suite/hosts in which GPU streams send from host to host, over the stand-in for CUDA's driver. Sourced by it.
# shellcheck shell=bash disable=SC2154

# stream_run NAME LIMIT argument...: tests/xpu/streams.cc, a process on each host; what it prints last has to be ok. $cut: what cuts the cable.
stream_run() {
    local name=$1 limit=$2 status=0; shift 2
    fresh "streams-${name//[ ,]/-}"
    # Other ways are not to be taken in place of the agent: the program checks the path.
    env "LD_LIBRARY_PATH=$STRAIT_LIB_DIR:$out/cuda${libraries:+:$libraries}" "STREAMS_HOSTS=${prefix}h1 ${prefix}h2" \
        "STREAMS_CUT=${cut:-ip -n ${prefix}h1 link set eth0 down}" timeout -k 5 "$limit" "$out/bin/streams" "$@" >"$dir/log" 2>&1 </dev/null || status=$?
    grep -q '^ok streams' "$dir/log" || status=1
    return $status
}

stream_part() {
    local status=0
    stream_run "$@" || status=$?
    report "streams between two hosts: $1" $status "$dir/log" "$begin"
}

part_streams() {
    local way kills=20 rounds=400 status=0
    [ "$long" = 0 ] || kills=200 rounds=10000
    [ -e "$STRAIT_LIB_DIR/libstrait_xpu.so.0" ] || { echo "skipped streams: no libstrait_xpu.so.0 in $STRAIT_LIB_DIR (ci/build)"; return; }
    mkdir -p "$out/cuda"
    quiet "$out/build-stand-in.log" cargo build --manifest-path "$REPO/Cargo.toml" --locked -p cuda-stand-in
    install -m 755 "${CARGO_TARGET_DIR:-$REPO/target}/debug/libcuda_stand_in.so" "$out/cuda/libcuda.so.1"
    quiet "$out/build-streams.log" g++ -std=c++17 -Wall -Wextra -Werror -O2 -I"$REPO/include" -I"$REPO/tests/xpu" -o "$out/bin/streams" \
        "$REPO/tests/xpu/streams.cc" "$STRAIT_LIB_DIR/libstrait_xpu.so.0" -ldl
    for way in stream graph nodes cpu; do stream_part "messages, $way" 100 agent $way $rounds; done
    FI_STRAIT_XPU_MODE=economy stream_part "messages, economy mode" 100 agent stream $rounds
    stream_part "wrong orders, lengths and ends" 200 agent-edges
    stream_part "puts, gets and signals" 200 agent-puts
    stream_part "a peer that is killed" 200 agent-kill $kills
    stream_part "a host that falls silent, time limit" 60 agent-silent 2000
    mend
    # A cable that is not cut: the message comes, and the check has to fail.
    ! cut=true stream_run "no silence" 60 agent-silent 2000 || status=1
    grep -q 'f.code == expected' "$dir/log" || status=3
    report "streams between two hosts: the check of silence fails without it" $status "$dir/log" "$begin"
    # The connection's own limit, half a minute.
    [ "$long" = 0 ] || { stream_part "a host that falls silent, connection" 100 agent-silent 55000; mend; stream_mpi ompi4-mtl; }
}

# stream_mpi CLIENT: tests/mpi/stream/enqueue.c, two ranks on each host; each pair of it is of two hosts.
stream_mpi() {
    local go status=0 exe=$out/bin/enqueue
    [ -e "$STRAIT_LIB_DIR/libstrait_mpi.so.0" ] || { echo "skipped streams through an MPI: no libstrait_mpi.so.0 in $STRAIT_LIB_DIR"; return; }
    on_hosts "$1" || return 0
    fresh "streams-$1"
    quiet "$out/build-enqueue.log" env -u LD_LIBRARY_PATH "$MPICC" -std=gnu11 -O1 -Wall -Wextra -Werror -I"$REPO/include" -o "$exe" \
        "$REPO/tests/mpi/stream/enqueue.c" "$STRAIT_LIB_DIR/libstrait_xpu.so.0" "$out/cuda/libcuda.so.1" -lpthread
    # The libraries are not for the launcher.
    # shellcheck disable=SC2016
    NS_TIMEOUT=300 FI_LOG_LEVEL=info in_ns "$host" h1 env PATH="$out/bin:$PATH" "${go[@]}" --map-by node bash -c '
        export LD_LIBRARY_PATH=$1:$2${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
        LD_PRELOAD=$1/libstrait_mpi.so.0 exec "$3" "$4"' _ "$STRAIT_LIB_DIR" "$out/cuda" "$exe" 200 >"$dir/log" 2>&1 </dev/null || status=$?
    grep -aq '^ok enqueue' "$dir/log" || status=1
    grep -aq "$by" "$dir/log" || status=3
    report "streams through an MPI between two hosts, 4 ranks: $1" $status "$dir/log" "$begin"
}
