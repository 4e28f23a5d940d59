//! What the program waits for: a generalised request of the MPI's, which completes when the collective has.

use core::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

use crate::abi::Handle;
use crate::collective::messages::ERROR;
use crate::library::{library, pmpi};
use crate::refuse;

/// What MPI_Cancel is refused with.
const NOT_CANCELLED: &str = "a collective that returns a request cannot be cancelled";

/// A request, and the code that it will complete with.
#[derive(Debug)]
pub(super) struct Promise {
    request: Handle,
    code: Arc<AtomicI32>,
}

impl Promise {
    /// A request that has not completed; in `Err`, the MPI's code.
    pub(super) fn new() -> Result<Promise, c_int> {
        let (mut request, code) = (0usize, Arc::new(AtomicI32::new(0)));
        let state = Arc::into_raw(code.clone());
        let (query, free, cancel) = (query as *const (), free as *const (), cancel as *const ());
        // SAFETY: functions of the types that MPI_Grequest_start(3) takes, and a valid place.
        let made = unsafe { pmpi!("Grequest_start", query, free, cancel, state, &raw mut request) };
        if let Err(code) = made {
            // SAFETY: the MPI has not taken it.
            drop(unsafe { Arc::from_raw(state) });
            return Err(code);
        }
        Ok(Promise { request, code })
    }

    /// The request.
    pub(super) fn request(&self) -> Handle {
        self.request
    }

    /// The collective has ended with that code.
    pub(super) fn keep(&self, code: c_int) {
        self.code.store(code, Relaxed);
        // SAFETY: a generalised request that has not completed: this is called once.
        let _ = unsafe { pmpi!("Grequest_complete", self.request) };
    }
}

/// MPI_Grequest_query_function.
unsafe extern "C" fn query(state: *const AtomicI32, status: usize) -> c_int {
    let Some(library) = library() else { return 0 };
    // SAFETY: the state is that of `Promise::new`, which `free` has not dropped; a status of the MPI's.
    unsafe {
        let code = (*state).load(Relaxed);
        let _ = pmpi!("Status_set_elements", status, library.abi.handles.byte, 0);
        let _ = pmpi!("Status_set_cancelled", status, 0);
        (status as *mut c_int).add(ERROR).write_unaligned(code);
        code
    }
}

/// MPI_Grequest_free_function.
unsafe extern "C" fn free(state: *const AtomicI32) -> c_int {
    // SAFETY: the reference that `Promise::new` gave the MPI, which calls this once.
    drop(unsafe { Arc::from_raw(state) });
    0
}

/// MPI_Grequest_cancel_function: MPI-4.1, 6.12: a collective cannot be cancelled.
unsafe extern "C" fn cancel(_: *mut c_void, _: c_int) -> c_int {
    library().map_or(1, |library| refuse::code(library.abi.errors.other, NOT_CANCELLED))
}
