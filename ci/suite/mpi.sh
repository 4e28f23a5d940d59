#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Run mpi4py's own test-suite, module by module, with an unmodified MPI client.
#
#   ci/suite/mpi.sh CLIENT RANKS [--provider strait|tcp|shm|default|...] [--modules "regex..."]
#
# CLIENT: ompi4-mtl ompi4-btl ompi5-mtl ompi5-btl mpich impi.  --modules selects by regular
# expression ("p2p rma cco_buf"); the default is all but test_spawn.  The names of the modules are
# those of mpi4py's test/ directory, with or without "test_".
#
# Over anything but the client's default transport, the tests in tests/mpi/<client>.skip are left
# out: faults of the client that only show there, each with its reason.
#
#   MODULE_TIMEOUT=150    seconds for one module; one that does not come out clean gets a second
#                         attempt, with the machine's noise (time-outs) in mind
#
# Results, a line for each test: $WORK/mpi4py/<client>-<ranks>-<provider>.results with
#   ok|ok2|fail|hang|skip <module.Class.test>
# where ok2 passed only at the second attempt, and hang is the test during which the run died or
# ran out of time; the tests that come after one in its module are missing.  ci/suite/mpi-compare compares
# two such files by name.  Exits 0 also when tests fail: what counts is the comparison.
. "$(dirname "$0")/../lib.sh"
. "$REPO/ci/suite/mpi-env.sh"

(($# >= 2)) || { sed -n '2,/^\. /p' "$0" | sed '$d; s/^# \?//'; exit 2; }
client=$1 ranks=$2 provider=strait want=; shift 2
while (($#)); do
    case $1 in
        --provider) provider=$2; shift 2 ;;
        --modules)  shift; while (($#)) && [[ $1 != --* ]]; do want+=" $1"; shift; done ;;
        *) die "unknown argument: $1" ;;
    esac
done
limit=${MODULE_TIMEOUT:-150}

mpi_setup "$client" "$provider" || { echo "$client over $provider: not possible, skipped"; exit 0; }
testdir=$CLIENTS/mpi4py/test
[ -d "$testdir" ] || die "run ci/get/clients first"

skips=$REPO/tests/mpi/$client.skip
[ -f "$skips" ] || skips=$REPO/tests/mpi/${client%%-*}.skip
if [ "$provider" != default ] && [ -f "$skips" ]; then
    export SKIP_TESTS=$skips
fi

out=$WORK/mpi4py/$client-$ranks-${provider//;/+}
# A selection of modules replaces those modules' lines only.
mkdir -p "$out"
touch "$out.results"

modules=()
for f in "$testdir"/test_*.py; do
    m=$(basename "$f" .py)
    if [ -n "$want" ]; then
        for w in $want; do
            [[ $m =~ ^(test_)?${w#test_} ]] && { modules+=("$m"); break; }
        done
    elif [ "$m" != test_spawn ]; then
        # Spawning starts new jobs, with other command lines than ours; not what is judged here.
        modules+=("$m")
    fi
done
((${#modules[@]})) || die "no module matches:$want"

# merge ATTEMPT-FILES -> one line for each test: the worst outcome over the ranks.
merge() {
    awk -v n="$ranks" '
        function worse(t, o) { if (rank[o] > rank[out[t]]) out[t] = o }
        BEGIN { rank["ok"] = 1; rank["skip"] = 2; rank["hang"] = 3; rank["fail"] = 4 }
        $1 == "start" { open[FILENAME] = $2; last[FILENAME] = 1; if (!($2 in out)) out[$2] = "ok"; next }
        $1 == "end"   { delete open[FILENAME]; next }
        # A class that fails in its set-up is named "setUpClass (...)".
        { w = $1; t = $2; if ($3 != "") t = $2 $3
          if (w == "error") w = "fail"
          worse(t, w); delete open[FILENAME] }
        END { for (f in open) if (open[f] != "") worse(open[f], "hang")
              for (t in out) print out[t], t }' "$@" | sort -k2
}

# one MODULE ATTEMPT: run it; the status is 0 if it came out clean.
one() {
    local m=$1 base=$out/$1.$2 status=0
    rm -f "$base".*
    (cd "$out" && NS_TIMEOUT=$limit in_ns "${LAUNCH[@]}" -np "$ranks" "$PY" \
        "$REPO/tests/mpi/run_mpi4py.py" "$testdir" "$base" "$m") > "$base.log" 2>&1 < /dev/null || status=$?
    compgen -G "$base.[0-9]*" > /dev/null || { echo "hang $m" > "$base.0"; }
    merge "$base".[0-9]* > "$base.merged"
    # Died outside of any test (in the finalization, say): count it against the module.
    if [ $status != 0 ] && ! grep -q '^fail\|^hang' "$base.merged"; then
        echo "hang $m.exit" >> "$base.merged"
    fi
    ! grep -q '^fail\|^hang' "$base.merged"
}

begin=$SECONDS clean=0 retried=0
for m in "${modules[@]}"; do
    t=$SECONDS note=
    if one "$m" 1; then
        cp "$out/$m.1.merged" "$out/$m.final"
        clean=$((clean + 1))
    else
        retried=$((retried + 1)) note=", retried"
        one "$m" 2 || true
        # The better of both for each test.
        awk 'BEGIN { r["ok"] = 1; r["skip"] = 2; r["hang"] = 3; r["fail"] = 4 }
             NR == FNR { a[$2] = $1; next }
             { b[$2] = $1 }
             END { for (t in a) {
                       o = a[t]
                       if (t in b && r[b[t]] < r[o]) o = b[t] == "ok" ? "ok2" : b[t]
                       # a death outside of the tests that did not happen again
                       if (!(t in b) && t ~ /\.exit$/) continue
                       print o, t }
                   for (t in b) if (!(t in a)) print (b[t] == "ok" ? "ok2" : b[t]), t }' \
            "$out/$m.1.merged" "$out/$m.2.merged" | sort -k2 > "$out/$m.final"
    fi
    awk -v m="$m" '$2 != m && index($2, m ".") != 1' "$out.results" > "$out.results.new"
    cat "$out/$m.final" >> "$out.results.new"
    mv "$out.results.new" "$out.results"
    bad=$(grep -c '^fail\|^hang' "$out/$m.final" || true)
    if [ "$bad" != 0 ]; then
        log "$m: $bad of $(wc -l < "$out/$m.final") not ok$note ($((SECONDS - t)) s): $(sed -n 's/^\(fail\|hang\) /\1 /p' "$out/$m.final" | sed 's/test_[a-z0-9_]*\.//' | sed -n 1,4p | tr '\n' ' ')"
    elif [ -n "$note" ] || [ -n "${VERBOSE:-}" ]; then
        log "$m: ok$note ($((SECONDS - t)) s)"
    fi
done
awk -v c="$client over $provider, $ranks ranks" -v s=$((SECONDS - begin)) -v n=${#modules[@]} \
    -v clean=$clean -v retried=$retried '
    { k[$1]++ }
    END { printf "mpi4py %s: %d modules, %d clean at once; ok %d, only at second try %d, fail %d, hang %d, skip %d; %d s\n",
          c, n, clean, k["ok"], k["ok2"], k["fail"], k["hang"], k["skip"], s }' "$out.results"
