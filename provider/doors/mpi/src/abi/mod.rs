//! What differs between the binary interfaces of MPI: Open MPI's, MPICH's (with Intel MPI and MVAPICH), and
//! the standard one of MPI 5.
//!
//! Handles are words everywhere here: pointers of Open MPI and of the standard interface, 32-bit integers of
//! MPICH.

mod constants;

pub use constants::{MPICH, STANDARD, open_mpi};

use core::ffi::c_int;

/// A handle, as the MPI has it.
pub type Handle = usize;

/// Which interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Open MPI 4 and 5.
    OpenMpi,
    /// MPICH's, by its ABI initiative also that of Intel MPI and MVAPICH.
    Mpich,
    /// MPI 5's.
    Standard,
}

/// An interface.
#[derive(Clone, Debug)]
pub struct Abi {
    /// Which one.
    pub family: Family,
    /// Bytes of a handle in memory: 4 or 8.
    pub handle: usize,
    /// Handles.
    pub handles: Handles,
    /// Addresses with a meaning.
    pub in_place: usize,
    /// MPI_STATUS_IGNORE and MPI_STATUSES_IGNORE.
    pub status_ignore: usize,
    /// Bytes of an MPI_Status.
    pub status: usize,
    /// Ranks with a meaning.
    pub proc_null: c_int,
    /// MPI_ROOT.
    pub root: c_int,
    /// MPI_UNDEFINED.
    pub undefined: c_int,
    /// The values of combiners.
    pub combiners: Combiners,
    /// Those of MPI_Type_create_darray.
    pub darray: Darray,
    /// Error classes.
    pub errors: Errors,
    /// Attributes of windows.
    pub window: Window,
    /// What MPI_Topo_test answers.
    pub topologies: Topologies,
}

/// Predefined handles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handles {
    /// MPI_COMM_WORLD.
    pub world: Handle,
    /// MPI_COMM_NULL.
    pub comm_null: Handle,
    /// MPI_REQUEST_NULL.
    pub request_null: Handle,
    /// MPI_BYTE.
    pub byte: Handle,
}

/// Values of combiners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Combiners {
    /// MPI_COMBINER_NAMED.
    pub named: c_int,
    /// MPI_COMBINER_DUP.
    pub dup: c_int,
    /// MPI_COMBINER_CONTIGUOUS.
    pub contiguous: c_int,
    /// MPI_COMBINER_VECTOR.
    pub vector: c_int,
    /// MPI_COMBINER_HVECTOR.
    pub hvector: c_int,
    /// MPI_COMBINER_INDEXED.
    pub indexed: c_int,
    /// MPI_COMBINER_HINDEXED.
    pub hindexed: c_int,
    /// MPI_COMBINER_INDEXED_BLOCK.
    pub indexed_block: c_int,
    /// MPI_COMBINER_HINDEXED_BLOCK.
    pub hindexed_block: c_int,
    /// MPI_COMBINER_STRUCT.
    pub structure: c_int,
    /// MPI_COMBINER_SUBARRAY.
    pub subarray: c_int,
    /// MPI_COMBINER_DARRAY.
    pub darray: c_int,
    /// MPI_COMBINER_RESIZED.
    pub resized: c_int,
    /// The variants of Fortran for hvector, hindexed and struct, which some give out.
    pub integer: [c_int; 3],
}

/// Constants of arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Darray {
    /// MPI_ORDER_C.
    pub order_c: c_int,
    /// MPI_DISTRIBUTE_BLOCK.
    pub block: c_int,
    /// MPI_DISTRIBUTE_CYCLIC.
    pub cyclic: c_int,
    /// MPI_DISTRIBUTE_DFLT_DARG.
    pub default: c_int,
}

/// Error classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errors {
    /// MPI_ERR_OTHER.
    pub other: c_int,
    /// MPI_ERR_COUNT.
    pub count: c_int,
    /// MPI_ERR_NO_MEM.
    pub no_mem: c_int,
    /// MPI_ERR_RMA_ATTACH.
    pub attach: c_int,
}

/// Attributes of windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// MPI_WIN_BASE.
    pub base: c_int,
    /// MPI_WIN_MODEL.
    pub model: c_int,
    /// MPI_WIN_SEPARATE.
    pub separate: c_int,
}

/// What MPI_Topo_test answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topologies {
    /// MPI_CART.
    pub cart: c_int,
    /// MPI_GRAPH.
    pub graph: c_int,
}

impl Abi {
    /// The handle in a word of which only the bytes of a handle are defined.
    pub fn handle_in(&self, word: usize) -> Handle {
        if self.handle == 4 { word & 0xffff_ffff } else { word }
    }

    /// The handle at `at[n]`.
    ///
    /// # Safety
    /// There is one.
    pub unsafe fn handle_at(&self, at: usize, n: usize) -> Handle {
        let place = at + n * self.handle;
        // SAFETY: the caller's promise; a handle has that many bytes.
        unsafe {
            if self.handle == 4 {
                (place as *const u32).read_unaligned() as usize
            } else {
                (place as *const usize).read_unaligned()
            }
        }
    }

    /// Writes the handle at `at[n]`.
    ///
    /// # Safety
    /// There is one, that may be written.
    pub unsafe fn set_handle(&self, at: usize, n: usize, handle: Handle) {
        let place = at + n * self.handle;
        // SAFETY: as for `handle_at`.
        unsafe {
            if self.handle == 4 {
                (place as *mut u32).write_unaligned(handle as u32);
            } else {
                (place as *mut usize).write_unaligned(handle);
            }
        }
    }
}
