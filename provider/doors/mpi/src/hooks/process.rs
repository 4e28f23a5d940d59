//! The begin and the end of the MPI, its answers to questions about GPUs, and the buffer of MPI_Bsend.

use core::ffi::c_int;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use hmem::Kind;

use super::{Call, hooks};
use crate::buffer::{Failure, Host};
use crate::call::raise;
use crate::library::{Next, c_name, pmpi};
use crate::refuse::{self, Target};
use crate::{collective, report, requests, settings, shape, words};

unsafe fn init(call: &mut Call<'_>) -> c_int {
    // SAFETY: the arguments of the call.
    unsafe {
        let code = call.forward();
        if code == 0 {
            collective::begin(call.library);
        }
        code
    }
}

unsafe fn finalize(call: &mut Call<'_>) -> c_int {
    // SAFETY: the MPI is there until this is forwarded.
    unsafe {
        if collective::is_on() {
            collective::finish(call.library);
        }
        requests::poll_freed(call.args.abi, true);
        let mut begun: c_int = 0;
        // Before MPI_Init another question ends the process, with an error that names it.
        if settings::reports() && pmpi!("Initialized", &raw mut begun).is_ok() && begun != 0 {
            let mut rank: c_int = 0;
            let _ = pmpi!("Comm_rank", call.args.abi.handles.world, &raw mut rank);
            report::print(rank);
        }
        shape::forget_predefined();
        call.forward()
    }
}

unsafe fn finalize_session(call: &mut Call<'_>) -> c_int {
    shape::free_key();
    // SAFETY: the arguments of the call.
    unsafe { call.forward() }
}

/// The program's buffers for buffered sends that are in device memory, by the address of the one that the MPI
/// got. Such a buffer is the MPI's own, and nothing of it is ever read by the program.
static ATTACHED: Mutex<Option<HashMap<usize, Attached>>> = Mutex::new(None);

/// The program's address, and the memory in its place.
type Attached = (usize, Host);

const TOO_LONG: &str = "the MPI has no MPI_Buffer_attach_c, and the buffer is longer than 2147483647 bytes";

/// Attaches the buffer at argument `at`, whose length is the next one.
unsafe fn attach_at(call: &mut Call<'_>, at: usize, is_large: bool) -> c_int {
    // SAFETY: by the call: an address and a number of bytes.
    unsafe {
        let (address, library) = (call.args.words[at], call.library);
        let len = if is_large { call.args.long(at + 1) } else { call.args.count(at + 1) };
        let world = Target::Comm(call.args.abi.handles.world);
        // Only of the calls on the process an MPI may have the small form alone.
        if at == 0
            && is_large
            && len > c_int::MAX as usize
            && library.function("MPI_Buffer_attach_c").is_none()
        {
            return refuse::raise(world, library.abi.errors.count, TOO_LONG);
        }
        if crate::host::is_host(address) || hmem::classify(address, 1) == Kind::System {
            return call.forward();
        }
        let Some(memory) = Host::new(len, Kind::System) else {
            return raise(library, world, Failure::NoMemory);
        };
        call.args.words[at] = memory.at();
        let code = call.forward();
        if code == 0 {
            let mut attached = ATTACHED.lock().unwrap_or_else(PoisonError::into_inner);
            attached.get_or_insert_with(HashMap::new).insert(memory.at(), (address, memory));
        }
        code
    }
}

/// Detaches the buffer whose address goes to argument `at`, and its length to the next one.
unsafe fn detach_at(call: &mut Call<'_>, at: usize, is_large: bool) -> c_int {
    // SAFETY: by the call: places for an address and a number of bytes.
    unsafe {
        let place = call.args.words[at] as *mut usize;
        if is_large {
            // The small form writes the lower half alone.
            (call.args.words[at + 1] as *mut i64).write(0);
        }
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

macro_rules! attaching {
    ($($name:ident: $does:ident, $at:literal, $is_large:literal;)*) => {
        $(
            unsafe fn $name(call: &mut Call<'_>) -> c_int {
                // SAFETY: the places of the arguments of that call.
                unsafe { $does(call, $at, $is_large) }
            }
        )*
    };
}

attaching! {
    attach: attach_at, 0, false;
    attach_large: attach_at, 0, true;
    attach_of: attach_at, 1, false;
    attach_large_of: attach_at, 1, true;
    detach: detach_at, 0, false;
    detach_large: detach_at, 0, true;
    detach_of: detach_at, 1, false;
    detach_large_of: detach_at, 1, true;
}

hooks! {
    MPI_Init [] (a b) !settings::is_off() => init;
    MPI_Init_thread [] (a b c d) !settings::is_off() => init;
    MPI_Finalize [mpi_finalize_, ompi_finalize_f] () true => finalize;
    MPI_Session_finalize [] (a) true => finalize_session;
    MPI_Buffer_attach [mpi_buffer_attach_, ompi_buffer_attach_f] (a b) !settings::is_off() => attach;
    MPI_Buffer_detach [mpi_buffer_detach_, ompi_buffer_detach_f] (a b) !settings::is_off() => detach;
    MPI_Buffer_attach_c [] (a b) !settings::is_off() => attach_large;
    MPI_Buffer_detach_c [] (a b) !settings::is_off() => detach_large;
    MPI_Comm_attach_buffer [] (a b c) !settings::is_off() => attach_of;
    MPI_Comm_detach_buffer [] (a b c) !settings::is_off() => detach_of;
    MPI_Comm_attach_buffer_c [] (a b c) !settings::is_off() => attach_large_of;
    MPI_Comm_detach_buffer_c [] (a b c) !settings::is_off() => detach_large_of;
    MPI_Session_attach_buffer [] (a b c) !settings::is_off() => attach_of;
    MPI_Session_detach_buffer [] (a b c) !settings::is_off() => detach_of;
    MPI_Session_attach_buffer_c [] (a b c) !settings::is_off() => attach_large_of;
    MPI_Session_detach_buffer_c [] (a b c) !settings::is_off() => detach_large_of;
}

// In Fortran they have no arguments of the command line.
hooks!(@fn mpi_init_, Fortran, (error), !settings::is_off(), init);
hooks!(@fn ompi_init_f, Fortran, (error), !settings::is_off(), init);
hooks!(@fn mpi_init_thread_, Fortran, (required provided error), !settings::is_off(), init);
hooks!(@fn ompi_init_thread_f, Fortran, (required provided error), !settings::is_off(), init);

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
