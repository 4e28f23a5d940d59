//! Errors that are this library's: a code of the MPI with a sentence of its own, through the error handler
//! of what the call was on.

use core::ffi::c_int;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};

use crate::abi::Handle;
use crate::buffer::Failure;
use crate::library::{Library, pmpi};

/// Of a mirror that could not be made.
const NO_MEMORY: &str = "there is no host memory for a copy of a buffer in device memory; send less at a time, \
                         or raise the limit of the process's memory";
/// Of a mirror for which there is no address space.
const TOO_FAR: &str = "the data of a buffer lie too far apart for a copy with the same layout, as those of MPI_BOTTOM \
                       in host and in device memory may; send what is in each kind of memory by a call of its own";
/// Of a copy that the device has refused.
const NOT_COPIED: &str = "the device did not copy a buffer: is the pointer still allocated, and did an earlier \
                          kernel fail? (the driver's error is that of the next synchronising call)";

/// What a call was on, for its error handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A communicator.
    Comm(Handle),
    /// A window.
    Window(Handle),
    /// A file.
    File(Handle),
}

/// The code of an error of that class, with these words.
pub fn code(class: c_int, words: &str) -> c_int {
    let words = format!("libstrait_mpi: {words}");
    static CODES: Mutex<BTreeMap<(c_int, String), c_int>> = Mutex::new(BTreeMap::new());
    let mut codes = CODES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(code) = codes.get(&(class, words.clone())) {
        return *code;
    }
    let mut code = class;
    let text = CString::new(words.as_str()).unwrap_or_default();
    // SAFETY: valid places. Where the MPI adds no code the class stands for it.
    let added = unsafe {
        pmpi!("Add_error_code", class, &raw mut code)
            .and_then(|()| pmpi!("Add_error_string", code, text.as_ptr()))
    };
    if added.is_err() {
        return class;
    }
    codes.insert((class, words), code);
    code
}

/// The code of a mirror's failure.
pub(crate) fn code_of(library: &Library, failure: Failure) -> c_int {
    let errors = &library.abi.errors;
    match failure {
        Failure::NoMemory => code(errors.no_mem, NO_MEMORY),
        Failure::TooFar => code(errors.no_mem, TOO_FAR),
        Failure::NotCopied => code(errors.other, NOT_COPIED),
    }
}

/// Raises an error: the answer of the call, if the error handler returns.
///
/// # Safety
/// The handle is valid.
pub unsafe fn raise(target: Target, class: c_int, words: &str) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { raised(target, code(class, words)) }
}

/// The same of a code.
///
/// # Safety
/// The handle is valid.
pub unsafe fn raised(target: Target, code: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let _ = unsafe {
        match target {
            Target::Comm(comm) => pmpi!("Comm_call_errhandler", comm, code),
            Target::Window(window) => pmpi!("Win_call_errhandler", window, code),
            Target::File(file) => pmpi!("File_call_errhandler", file, code),
        }
    };
    code
}
