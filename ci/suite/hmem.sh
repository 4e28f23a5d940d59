#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Kinds of memory under the provider, with libfabric 2.1.0: clients that a program registers through
# libstrait.so, ROCm's and Level Zero's memory over stand-ins for their runtimes, with faults, and Debian's Open MPI with
# buffers of memory that a device publishes.
#
#   ci/suite/hmem.sh [part...]             default: all of them; ci/suite/hmem.sh --list names them
#
#   STRAIT_LIB_DIR=dir               where libstrait-fi.so and libstrait.so.0 are
#
# One line for each check, "ok NAME" or "FAILED NAME"; logs in $WORK/hmem.  Exits 1 if anything failed.
. "$(dirname "$0")/../lib.sh"

parts='client device mpi'
out=$WORK/hmem
bin=$out/bin

compile() {
    mkdir -p "$bin"
    gcc -std=gnu11 -O2 -g -Wall -Wextra -Werror -I"$REPO/tests/faults" -I"$REPO/include" -I"$LIBFABRIC/include" \
        -o "$bin/$1" "$REPO/tests/hmem/$1.c" -L"$LIBFABRIC/lib" -lfabric -ldl -lpthread -Wl,-rpath,"$LIBFABRIC/lib"
}

bad=0
# check NAME SECONDS command...
check() {
    local name=$1 limit=$2 status=0 begin=$SECONDS log=$out/${1//[^a-z0-9-]/_}.log; shift 2
    NS_TIMEOUT=$limit in_ns "$@" >"$log" 2>&1 </dev/null || status=$?
    if [ $status = 0 ]; then
        echo "ok $name ($((SECONDS - begin)) s)"
    else
        echo "FAILED $name (status $status, $log)"
        tail -n 20 "$log" | sed 's/^/    /'
        bad=1
    fi
}

# A program's own memory, said to be in a file, to be copied by the program alone, or to be in reach of
# its CPU; whatever way the provider would take, and where that is forbidden.
part_client() {
    local way
    compile client
    for way in fd copy cpu; do
        check "client $way" 60 "$bin/client" $way
    done
    check "client staged" 60 env FI_STRAIT_DEVICE_DIRECT=no "$bin/client" copy
    check "client no-cma" 60 env FI_STRAIT_CMA=no "$bin/client" fd
    check "client small-ring" 60 env FI_STRAIT_RING_SIZE=24576 FI_STRAIT_EAGER_SIZE=64 "$bin/client" fd
}

# Devices' memory: as it is, slow, and with each call that can fail failing at once, once, or midway.
part_device() {
    local kind share open copy wait fail
    compile device
    quiet "$WORK/log/build-stand-ins.log" cargo build --manifest-path "$REPO/Cargo.toml" --locked -p rocr-stand-in -p ze-stand-in
    mkdir -p "$out/runtimes"
    cp "${CARGO_TARGET_DIR:-$REPO/target}/debug/librocr_stand_in.so" "$out/runtimes/libhsa-runtime64.so.1"
    cp "${CARGO_TARGET_DIR:-$REPO/target}/debug/libze_stand_in.so" "$out/runtimes/libze_loader.so.1"
    local LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$out/runtimes
    for kind in rocr ze; do
        case $kind in
            rocr) share=hsa_amd_ipc_memory_create open=hsa_amd_ipc_memory_attach
                  copy=hsa_amd_memory_async_copy wait=hsa_signal_load_scacquire ;;
            ze)   share=zeMemGetIpcHandle open=zeMemOpenIpcHandle
                  copy='' wait=zeEventQueryStatus ;;
        esac
        device() { local name=$1; shift; check "device $kind $name" 60 env "$@"; }
        fail=${kind^^}_STAND_IN_FAIL
        device plain "$bin/device" $kind
        device slow ${kind^^}_STAND_IN_DELAY_US=300 "$bin/device" $kind 300000
        device staged FI_STRAIT_DEVICE_DIRECT=no "$bin/device" $kind 300000
        device no-cma FI_STRAIT_CMA=no "$bin/device" $kind 300000
        device small-ring FI_STRAIT_RING_SIZE=24576 FI_STRAIT_EAGER_SIZE=64 "$bin/device" $kind 300000
        device export-refused $fail=$share=4097 "$bin/device" $kind 300000
        device open-refused $fail=$open=4097 "$bin/device" $kind 300000
        device open-refused-once $fail=$open@2=4097 "$bin/device" $kind 300000
        # The program itself copies by Level Zero's one call.
        [ -z "$copy" ] || device copy-refused $fail=$copy@3=4097,$copy@40=4097 "$bin/device" $kind 300000
        device copy-fails-late $fail=$wait@5=4097,$wait@60=4097 "$bin/device" $kind 300000
    done
}

# publishes DIR: a tree that is laid out as /sys is, with a function that publishes 4 MiB: a file stands for them.
publishes() {
    local function=$1/devices/pci0000:00/0000:00:02.0
    rm -rf "$1"
    mkdir -p "$function/p2pmem" "$1/bus/pci/devices"
    head -c 256 /dev/zero >"$function/config"
    echo 4194304 | tee "$function/p2pmem/size" >"$function/p2pmem/available"
    echo 1 >"$function/p2pmem/published"
    truncate -s 4M "$function/p2pmem/allocate"
    ln -s ../../../devices/pci0000:00/0000:00:02.0 "$1/bus/pci/devices/0000:00:02.0"
}

# An unmodified MPI: messages, one-sided operations and collectives in memory that it knows nothing of.
part_mpi() {
    local run=(mpirun --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include strait
        -x FI_PROVIDER -x FI_PROVIDER_PATH -x LD_LIBRARY_PATH -np 2)
    need_apt openmpi-bin libopenmpi-dev
    mkdir -p "$bin"
    mpicc -std=gnu11 -O2 -g -Wall -Wextra -Werror -I"$REPO/include" -o "$bin/mpi" "$REPO/tests/p2pmem/mpi.c" -L"$STRAIT_LIB_DIR" -lstrait
    publishes "$out/sysfs-0"
    publishes "$out/sysfs-1"
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    check "mpi peer memory" 120 "${run[@]}" "$bin/mpi" "$out/sysfs" 0000:00:02.0
    check "mpi peer memory no-cma" 120 "${run[@]}" -x FI_STRAIT_CMA=no "$bin/mpi" "$out/sysfs" 0000:00:02.0
}

if [ "${1:-}" = --list ]; then echo "$parts"; exit 0; fi
need_provider
[ -e "$STRAIT_LIB_DIR/libstrait.so.0" ] || die "no libstrait.so.0 in $STRAIT_LIB_DIR (ci/build)"
mkdir -p "$out"
export FI_PROVIDER=strait FI_PROVIDER_PATH=$STRAIT_LIB_DIR
export LD_LIBRARY_PATH=$STRAIT_LIB_DIR${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
# shellcheck disable=SC2086
(($#)) || set -- $parts
for part; do
    [[ " $parts " == *" $part "* ]] || die "no such part: $part (ci/suite/hmem.sh --list)"
    "part_$part"
done
exit $bad
