#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Everything there is to check, for hours, in the order of ci/test first; a report in
# target/ci/summary.md, also when something fails.
#
#   RANKS="2 4"                                  ranks of the MPI runs
#   CLIENTS_TO_RUN="ompi4-mtl ompi4-btl ..."     default: all six
#   FABTESTS="quick standard ..."                sets of ci/suite/fabtests.sh; default: all of them
#   PEERS="default"                              what each client is compared with; default: its own
#                                                transport, but tcp for ompi4-mtl (see peers_of)
#   SKIP="test package faults xpu soak hosts containers guest asan miri coverage ucx fabtests exchange mpi fuzz tsan perf" parts to leave out
#   SUITES="bookworm trixie"                     releases of Debian whose clean roots the packages are installed in
#   STORM_SECONDS=3600 ASAN_SECONDS=3600         how long the storms and the hostile peers take
#   FUZZ_SECONDS=3600                            how long peers with the key are drawn at random
#
# Exits 1 if anything failed over strait that passes with a peer.
. "$(dirname "$0")/lib.sh"
# An argument such as --help would start all of it, for hours.
(($# == 0)) || die "ci/full.sh takes no arguments: the variables at its head say what it runs"
cd "$REPO"

ranks=${RANKS:-2 4}
clients=${CLIENTS_TO_RUN:-ompi4-mtl ompi4-btl ompi5-mtl ompi5-btl mpich impi}
sets=${FABTESTS:-quick standard regression multinode ubertest-quick ubertest-verify ubertest-all extra}
skip=" ${SKIP:-} "
suites=${SUITES:-bookworm trixie}
summary=$WORK/summary.md
logs=$WORK/log/full
mkdir -p "$logs"
bad=0

# Open MPI 4.1 hangs and crashes by itself in the MTL, which its own transport does not take.
peers_of() {
    if [ -n "${PEERS:-}" ]; then echo "$PEERS"; elif [ "$1" = ompi4-mtl ]; then echo tcp; else echo default; fi
}

part() { [[ $skip != *" $1 "* ]]; }

# item NAME command...: its output to a log, its last words to the report.  Status 77: it cannot run here.
item() {
    local name=$1 file=$logs/${1//[^a-z0-9-]/_}.log status=0 begin=$SECONDS; shift
    log "$name"
    "$@" >"$file" 2>&1 || status=$?
    if [ $status = 0 ]; then result=ok; elif [ $status = 77 ]; then result=skipped; else result="**failed** ($status)"; bad=1; fi
    log "$name: $result ($((SECONDS - begin)) s)"
    took=$((SECONDS - begin)) last=$file
}

{
    echo "# Full run"
    echo
    echo "$(uname -sr) on $(uname -m), $(nproc) cores; $(rustc --version)"
    echo
} >"$summary"

# A function, so that an edit of this file does not disturb a run.
main() {
    item build ci/build
    item get-libfabric ci/get/libfabric
    item get-clients ci/get/clients

    if part test; then
        item test env CI_FAST=1 ci/test
        { echo "## Checks and Rust tests"; echo; echo '```'; cat "$last"; } >>"$summary"
        item loom ci/test loom
        { cat "$last"; echo '```'; echo; } >>"$summary"
        # Which of two tcp connections counts, with any two things going wrong.
        item model cargo test --release -p strait-link --lib -- --ignored agreement::explored
        { echo "model of tcp's connections: $result"; echo; } >>"$summary"
    fi

    if part package; then
        { echo "## Packages"; echo; echo '```'; } >>"$summary"
        item package ci/package --twice
        echo "ci/package --twice: $(grep -x 'two builds: the same bytes' "$last" || echo "$result")" >>"$summary"
        for suite in $suites; do
            item "package-$suite" pkg/deb/test "$suite"
            { echo "$suite: $result"; grep -E '^(ok|skipped|note)' "$last" || true; } >>"$summary"
        done
        item package-wheel pkg/python/test
        { echo "wheel: $result"; grep -E '^ok' "$last" || true; } >>"$summary"
        item package-aarch64 ci/package aarch64
        { echo "aarch64, in emulation: $result"; tail -n +2 target/package/aarch64-tests.txt || true; echo '```'; echo; } >>"$summary"
    fi

    if part faults; then
        item faults env LONG=1 ci/suite/faults.sh
        { echo "## Faults"; echo; echo '```'; cat "$last"; echo '```'; echo; } >>"$summary"
    fi

    if part xpu; then
        # Streams that send: 10 000 iterations, 200 kills.
        item xpu env LONG=1 ci/suite/xpu
        { echo "## Kernels and streams that send"; echo; echo '```'; grep -E '^(ok|FAILED|-|[0-9]+ passed)' "$last" || true; echo '```'; echo; } >>"$summary"
    fi

    if part soak; then
        item soak env LONG=1 ci/suite/hosts soak v6more storm
        { echo "## Many GiB and a storm between hosts"; echo; echo '```'; grep -E '^(ok|FAILED)' "$last" || true; echo '```'; echo; } >>"$summary"
    fi

    if part hosts; then
        # Each MPI client there is, on two hosts and on four.
        item hosts env LONG=1 ci/suite/hosts mpi four suite
        { echo "## MPI between hosts"; echo; echo '```'; grep -E '^(ok|FAILED|skipped)' "$last" || true; echo '```'; echo; } >>"$summary"
        item rdma ci/test rdma
        item launchers ci/test launchers
    fi

    if part containers; then
        item containers ci/suite/containers namespaces podman docker charliecloud
        { echo "## Containers"; echo; echo '```'; grep -E '^(ok|FAILED|skipped)' "$last" || true; echo '```'; echo; } >>"$summary"
    fi

    if part guest; then
        item guest ci/suite/guest p2pmem
        { echo "## Peer memory in a guest"; echo; echo '```'; grep -E '^(ok|FAILED|skipped)' "$last" || true; echo '```'; echo; } >>"$summary"
        item rdma ci/test rdma
    fi

    if part asan; then
        item asan env ASAN_SECONDS="${ASAN_SECONDS:-3600}" ci/check/asan
        { echo "## Hostile peers under AddressSanitizer"; echo; echo '```'; grep -E '^(ok|FAILED|skipped)' "$last" || true; echo '```'; echo; } >>"$summary"
    fi

    if part fuzz; then
        # Side by side, each for that long.
        item fuzz env BOLERO_RANDOM_TEST_TIME_MS=$((${FUZZ_SECONDS:-3600} * 1000)) BOLERO_RANDOM_ITERATIONS=1000000000 \
            cargo test --locked --profile fuzz -p strait-link --test hostile_tcp
        { echo "## Peers with the key, over tcp"; echo; echo '```'; grep -E '^test ' "$last" || true; echo '```'; echo; } >>"$summary"
    fi

    if part miri; then
        item miri ci/check/miri
        { echo "## Miri"; echo; echo '```'; grep -E '^(ok|FAILED|skipped)' "$last" || true; echo '```'; echo; } >>"$summary"
    fi

    if part tsan; then
        item tsan ci/check/tsan
        { echo "## ThreadSanitizer"; echo; echo '```'; grep -E '^(ok|FAILED|skipped|note)' "$last" || true; echo '```'; echo; } >>"$summary"
    fi

    if part coverage; then
        item coverage ci/check/coverage
        { echo "## Coverage"; echo; grep -E '^(\||skipped)' "$last" || true; echo; } >>"$summary"
    fi

    if part ucx; then
        item ucx ci/suite/ucx.sh
        { echo "## Under UCX"; echo; echo '```'; grep -E '^(ok|FAILED|   )' "$last" || true; echo '```'; echo; } >>"$summary"
    fi

    if part fabtests; then
        { echo "## fabtests 2.1.0"; echo; echo '| set | result | pass | fail | left out | s |'; echo '|---|---|---|---|---|---|'; } >>"$summary"
        failures=''
        for set in $sets; do
            item "fabtests-$set" ci/suite/fabtests.sh "$set"
            counts=$(awk '/ pass +[0-9]+ +fail +[0-9]+/ {print $3 " | " $5 " | " $7; exit}' "$last")
            echo "| $set$(grep -oE '\[[0-9/]+\]' "$last" | sed -n 1p | sed 's/^/ /') | $result | ${counts:-- | - | -} | $took |" >>"$summary"
            failures+=$(sed -n "s/^ *FAILED: /- $set: /p" "$last")$'\n'
        done
        { echo; grep . <<<"$failures" && echo; } >>"$summary" || true
    fi

    if part exchange; then
        { echo "## One program over every client"; echo; echo '```'; } >>"$summary"
        for n in $ranks; do
            item "exchange-$n" ci/suite/mpi-exchange all "$n"
            grep -E '^exchange .*(:|no proof)' "$last" >>"$summary" || true
        done
        item random env SEEDS="$(seq -s ' ' 2 20)" ci/suite/random libfabric ompi4-mtl ompi4-btl ompi4-ucx ompi5-mtl ompi5-btl ompi5-ucx mpich impi
        grep -E '^(ok|FAILED) ' "$last" >>"$summary" || true
        { echo '```'; echo; } >>"$summary"
    fi

    if part mpi; then
        { echo "## mpi4py 4.1"; echo
          echo "Each client over strait, and over a peer. *Worse* is what passes with the peer but not over strait."
          echo; echo '| client | ranks | over strait | compared | peer | worse |'; echo '|---|---|---|---|---|---|'; } >>"$summary"
        failures=''
        for n in $ranks; do
            for client in $clients; do
                peers=$(peers_of "$client")
                for peer in $peers; do
                    # A peer's failures are its own.
                    was=$bad; item "mpi4py-$client-$n-$peer" ci/suite/mpi.sh "$client" "$n" --provider "$peer"; bad=$was
                done
                item "mpi4py-$client-$n-strait" ci/suite/mpi.sh "$client" "$n"
                ours=$(sed -n 's/.*clean at once; //p' "$last" | tail -n 1)
                item "mpi4py-$client-$n-compared" ci/suite/mpi-compare "$client" "$n" --against "$peers"
                compared=$(grep ' pass with the provider' "$last" | tail -n 1)
                worse=$(grep -cE '^  (fail|hang|not reached|skip) +test_' "$last" || true)
                echo "| $client | $n | ${ours:-broke off} | ${compared:-broke off} | $peers | ${worse:-?} |" >>"$summary"
                failures+=$(sed -n "s/^  /- $client, $n ranks: /p" "$last")$'\n'
            done
        done
        { echo; grep . <<<"$failures" && echo; } >>"$summary" || true
    fi

    if part perf; then
        item perf-guard ci/perf-guard
        { echo "## Beside the last release"; echo; echo '```'; grep -E '^(ok|FAILED|undecided|[^ ]+ beside)' "$last" || true; echo '```'; echo; } >>"$summary"
    fi

    cat "$summary"
    exit $bad
}
main
