# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# How each MPI client is started over each provider.  Sourced by ci/suite/mpi.sh and ci/suite/mpi-exchange.
# shellcheck shell=bash disable=SC2034
#
# mpi_setup CLIENT PROVIDER sets
#   PY        the client's Python
#   MPICC     its compiler wrapper (the one of MPICH for Intel MPI: the same binary interface)
#   LAUNCH    launcher and options, to be followed by: -np N program...
# and exports what the ranks need.  Returns 2 where the combination cannot exist.
#
# clients    ompi4-mtl ompi4-btl ompi5-mtl ompi5-btl mpich impi, and over UCX ompi4-ucx ompi5-ucx
#            mpich-ucx; mpich-abi: programs by the standard ABI of MPI 5
# providers  strait, tcp, shm, any other name, or "default": what the client does by itself; over UCX
#            it is the transports that UCX may use: strait, posix, "posix,cma", ...
mpi_setup() {
    local client=$1 prov=$2
    unset MPI4PY_MPIABI UCX_TLS UCX_LOG_LEVEL FI_PROVIDER FI_PROVIDER_PATH I_MPI_FABRICS I_MPI_OFI_PROVIDER MPIR_CVAR_CH4_NETMOD MPIR_CVAR_NOLOCAL
    if [ "$prov" = strait ]; then
        need_provider
        export FI_PROVIDER_PATH=$STRAIT_LIB_DIR
    fi
    case $client in
    ompi4-*|ompi5-*)
        local dir=$CLIENTS/${client%-*}
        PY=$dir/bin/python
        if [[ $client == ompi4-* ]]; then
            MPICC=/usr/bin/mpicc LAUNCH=(/usr/bin/mpirun)
            # Debian's libfabric 1.17 has tcp for messages only; reliable datagrams are layered.
            # And 4.1 takes the include list per component.
            [ "$prov" != tcp ] || prov='tcp;ofi_rxm'
        else
            MPICC=$dir/bin/mpicc LAUNCH=("$dir/bin/mpirun")
        fi
        ompi_env
        # More ranks than cores, in one node, without a network of its own.
        LAUNCH+=(--oversubscribe --bind-to none --mca mpi_yield_when_idle 1)
        case $client-$prov in
        *-default)
            LAUNCH+=(--mca pml ob1)
            [[ $client != *-btl ]] || LAUNCH+=(--mca osc rdma)
            ;;
        *-mtl-shm)
            return 2        # the MTL insists on FI_REMOTE_COMM, which shm does not have
            ;;
        *-ucx-*)
            # Its own list of transports worth using does not know ours.
            LAUNCH+=(--mca pml ucx --mca osc ucx --mca pml_ucx_tls any --mca pml_ucx_devices any)
            ucx_env "$prov"
            LAUNCH+=(-x UCX_TLS -x UCX_WARN_UNUSED_ENV_VARS)
            [ "$prov" != strait ] || LAUNCH+=(-x "LD_PRELOAD=$STRAIT_LIB_DIR/ucx/libuct_strait.so.0")
            ;;
        *-btl-tcp*)
            return 2        # the BTL wants atomics, and refuses everything over ofi_rxm
            ;;
        *-mtl-*)
            LAUNCH+=(--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include "$prov")
            [[ $client != ompi5-* ]] || LAUNCH+=(--mca opal_common_ofi_provider_include "$prov")
            ;;
        *-btl-*)
            # Two-sided traffic too (mode 2), and nothing but this BTL to any other rank.
            LAUNCH+=(--mca pml ob1 --mca btl "ofi,self" --mca btl_ofi_mode 2 --mca osc rdma
                     --mca btl_ofi_provider_include "$prov")
            [[ $client != ompi5-* ]] || LAUNCH+=(--mca opal_common_ofi_provider_include "$prov")
            ;;
        esac
        if [ "$prov" = strait ] && [[ $client != *-ucx ]]; then
            export FI_PROVIDER=strait
            LAUNCH+=(-x FI_PROVIDER -x FI_PROVIDER_PATH)
        fi
        ;;
    mpich|mpich-ucx|mpich-abi)
        PY=$CLIENTS/mpich/bin/python MPICC=$CLIENTS/mpich/bin/mpicc
        [ "$client" != mpich-abi ] || MPICC+=_abi
        LAUNCH=("$CLIENTS/mpich/bin/mpiexec")
        if [ "$prov" != default ] && [ "$client" = mpich-ucx ]; then
            export MPIR_CVAR_CH4_NETMOD=ucx MPIR_CVAR_NOLOCAL=1
            ucx_env "$prov"
            [ "$prov" != strait ] || LAUNCH+=(-genv LD_PRELOAD "$STRAIT_LIB_DIR/ucx/libuct_strait.so.0")
        elif [ "$prov" != default ]; then
            # NOLOCAL: traffic inside the node through the provider as well.
            export MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1 FI_PROVIDER=$prov
        fi
        ;;
    impi)
        local dir=$CLIENTS/impi
        PY=$dir/bin/python MPICC=$CLIENTS/mpich/bin/mpicc
        LAUNCH=("$dir/bin/mpiexec")
        export I_MPI_ROOT=$dir LD_LIBRARY_PATH=$dir/lib
        if [ "$prov" != default ]; then
            export I_MPI_FABRICS=ofi I_MPI_OFI_PROVIDER=$prov FI_PROVIDER=$prov
            # Its libfabric keeps all providers in modules.
            export FI_PROVIDER_PATH=${FI_PROVIDER_PATH:-$dir/lib}
        fi
        ;;
    *)
        die "unknown client: $client (ompi4-mtl ompi4-btl ompi4-ucx ompi5-mtl ompi5-btl ompi5-ucx mpich mpich-ucx mpich-abi impi)"
        ;;
    esac
    # Small machines: let OpenMP and BLAS threads stay out of the way of the ranks.
    export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
    export PYTHONDONTWRITEBYTECODE=1
}

# What every Open MPI needs here.  Its directory is named after mpirun's pid, which is the same in each
# of in_ns's namespaces: only their /dev/shm distinguishes two runs at a time.
ompi_env() {
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 TMPDIR=/dev/shm
}

# ucx_env TLS: what UCX may use, and nothing else.
ucx_env() {
    export UCX_TLS=$1 UCX_WARN_UNUSED_ENV_VARS=n
}

# Environment that makes the client or libfabric say which provider carries the traffic.
mpi_proof_env() {
    export FI_LOG_LEVEL=info
    case $1 in
    ompi*-ucx) LAUNCH+=(-x UCX_LOG_LEVEL=info) ;;
    mpich-ucx) export UCX_LOG_LEVEL=info ;;
    ompi*) LAUNCH+=(-x FI_LOG_LEVEL --mca opal_common_ofi_verbose 1 --mca mtl_ofi_verbose 1
                    --mca mtl_base_verbose 10 --mca btl_base_verbose 10) ;;
    mpich) export MPIR_CVAR_CH4_OFI_CAPABILITY_SETS_DEBUG=1 MPIR_CVAR_DEBUG_SUMMARY=1 ;;
    impi)  export I_MPI_DEBUG=10 ;;
    esac
}
