//! The end of the MPI, its answers to questions about GPUs, and the buffer of MPI_Bsend.

use core::ffi::c_int;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use hmem::Kind;

use super::{Call, hooks};
use crate::library::{Next, c_name, pmpi};
use crate::{report, requests, settings, shape, words};

unsafe fn finalize(call: &mut Call<'_>) -> c_int {
    // SAFETY: the MPI is there until this is forwarded.
    unsafe {
        requests::poll_freed(call.args.abi, true);
        let mut rank: c_int = 0;
        let _ = pmpi!("Comm_rank", call.args.abi.handles.world, &raw mut rank);
        report::print(rank);
        shape::forget_predefined();
        call.forward()
    }
}

/// The program's buffers for buffered sends that are in device memory, by the address of the one that the MPI
/// got. Such a buffer is the MPI's own, and nothing of it is ever read by the program.
static ATTACHED: Mutex<Option<HashMap<usize, Attached>>> = Mutex::new(None);

/// The program's address, and the memory in its place.
type Attached = (usize, Vec<u64>);

unsafe fn attach(call: &mut Call<'_>) -> c_int {
    // SAFETY: an address and a number of bytes.
    unsafe {
        let address = call.args.words[0];
        if crate::host::is_host(address) || hmem::classify(address, 1) == Kind::System {
            return call.forward();
        }
        let mut memory = vec![0u64; call.args.count(1).div_ceil(8)];
        let at = memory.as_mut_ptr() as usize;
        call.args.words[0] = at;
        let code = call.forward();
        if code == 0 {
            let mut attached = ATTACHED.lock().unwrap_or_else(PoisonError::into_inner);
            attached.get_or_insert_with(HashMap::new).insert(at, (address, memory));
        }
        code
    }
}

unsafe fn detach(call: &mut Call<'_>) -> c_int {
    // SAFETY: a place for an address.
    unsafe {
        let place = call.args.words[0] as *mut usize;
        let code = call.forward();
        if code == 0 {
            let mut attached = ATTACHED.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((address, _)) = attached.as_mut().and_then(|all| all.remove(&place.read())) {
                place.write(address);
            }
        }
        code
    }
}

hooks! {
    MPI_Finalize [mpi_finalize_, ompi_finalize_f] () true => finalize;
    MPI_Buffer_attach [mpi_buffer_attach_, ompi_buffer_attach_f] (a b) !settings::is_off() => attach;
    MPI_Buffer_detach [mpi_buffer_detach_, ompi_buffer_detach_f] (a b) !settings::is_off() => detach;
}

/// Open MPI's question: yes.
#[unsafe(no_mangle)]
extern "C" fn MPIX_Query_cuda_support() -> c_int {
    static NEXT: Next = Next::new(c_name!(MPIX_Query_cuda_support));
    if !settings::is_off() {
        return 1;
    }
    // SAFETY: it takes nothing.
    NEXT.address().map_or(0, |at| unsafe { words::call(at, &[]) })
}

/// MPICH's question: yes, for each kind of device.
///
/// # Safety
/// `is_supported` is a place for the answer.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIX_GPU_query_support(kind: c_int, is_supported: *mut c_int) -> c_int {
    static NEXT: Next = Next::new(c_name!(MPIX_GPU_query_support));
    if !settings::is_off() {
        // SAFETY: the caller's promise.
        unsafe { is_supported.write(1) };
        return 0;
    }
    // SAFETY: the caller's promise.
    NEXT.address().map_or(0, |at| unsafe { words::call(at, &[kind as usize, is_supported as usize]) })
}
