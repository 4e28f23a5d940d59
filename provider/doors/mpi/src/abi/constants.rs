//! The constants of each interface, from its public header: mpi.h of Open MPI 4.1 and 5.0, mpi.h of MPICH 3
//! to 5, and the ABI chapter of MPI 5.0.

use super::{Abi, Combiners, Darray, Errors, Family, Handle, Handles, Topologies, Window};

/// MPICH's.
pub const MPICH: Abi = Abi {
    family: Family::Mpich,
    handle: 4,
    handles: Handles {
        world: 0x4400_0000,
        comm_null: 0x0400_0000,
        request_null: 0x2c00_0000,
        byte: 0x4c00_010d,
    },
    in_place: usize::MAX,
    status_ignore: 1,
    status: 20,
    proc_null: -1,
    root: -3,
    undefined: -32766,
    combiners: Combiners {
        named: 1,
        dup: 2,
        contiguous: 3,
        vector: 4,
        hvector: 6,
        indexed: 7,
        hindexed: 9,
        indexed_block: 10,
        hindexed_block: 19,
        structure: 12,
        subarray: 13,
        darray: 14,
        resized: 18,
        integer: [5, 8, 11],
    },
    darray: Darray { order_c: 56, block: 121, cyclic: 122, default: -49767 },
    errors: Errors { other: 15, count: 2, no_mem: 34, attach: 56 },
    window: Window { base: 0x6600_0001, model: 0x6600_0009, separate: 1 },
    topologies: Topologies { cart: 2, graph: 1 },
};

/// That of MPI 5.
pub const STANDARD: Abi = Abi {
    family: Family::Standard,
    handle: 8,
    handles: Handles { world: 0x101, comm_null: 0x100, request_null: 0x180, byte: 0x247 },
    in_place: 1,
    status_ignore: 0,
    status: 32,
    proc_null: -3,
    root: -4,
    undefined: -32766,
    combiners: Combiners {
        named: 101,
        dup: 102,
        contiguous: 103,
        vector: 104,
        hvector: 105,
        indexed: 106,
        hindexed: 107,
        indexed_block: 108,
        hindexed_block: 109,
        structure: 110,
        subarray: 111,
        darray: 112,
        resized: 116,
        integer: [-1; 3],
    },
    darray: Darray { order_c: 12, block: 17, cyclic: 18, default: 19 },
    errors: Errors { other: 16, count: 2, no_mem: 39, attach: 46 },
    window: Window { base: 601, model: 605, separate: 322 },
    topologies: Topologies { cart: 211, graph: 212 },
};

/// Open MPI's, whose handles are addresses of its objects.
pub fn open_mpi(object: impl Fn(&core::ffi::CStr) -> Handle) -> Abi {
    Abi {
        family: Family::OpenMpi,
        handle: 8,
        handles: Handles {
            world: object(c"ompi_mpi_comm_world"),
            comm_null: object(c"ompi_mpi_comm_null"),
            request_null: object(c"ompi_request_null"),
            byte: object(c"ompi_mpi_byte"),
        },
        in_place: 1,
        status_ignore: 0,
        status: 24,
        proc_null: -2,
        root: -4,
        undefined: -32766,
        combiners: Combiners {
            named: 0,
            dup: 1,
            contiguous: 2,
            vector: 3,
            hvector: 5,
            indexed: 6,
            hindexed: 8,
            indexed_block: 9,
            hindexed_block: 18,
            structure: 11,
            subarray: 12,
            darray: 13,
            resized: 17,
            integer: [4, 7, 10],
        },
        darray: Darray { order_c: 0, block: 0, cyclic: 1, default: -1 },
        errors: Errors { other: 16, count: 2, no_mem: 39, attach: 69 },
        window: Window { base: 7, model: 11, separate: 1 },
        topologies: Topologies { cart: 1, graph: 2 },
    }
}
