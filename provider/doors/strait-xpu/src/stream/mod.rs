//! Streams that send: `include/strait_stream.h`, which `ci/check/header` makes of the files beside this one.

mod carrier;
pub mod endpoint;
pub mod lists;
pub mod queue;
pub mod types;
pub mod words;

use std::ptr;

use c_abi::sized;
use libc::c_int;
use stream::{Endpoint, List, Put};

use types::{STRAIT_STREAM_NO_SIGNAL, strait_stream, strait_stream_list, strait_stream_transfer};

/// An errno, and its words for [`strait_stream_error`].
fn errno<T>(outcome: Result<T, stream::Error>) -> Result<T, c_int> {
    outcome.map_err(|e| {
        match &e {
            stream::Error::OtherUser => {
                c_abi::keep_error(&format_args!("{e}: {}=tcp", settings::LINKS.variable()));
            }
            e => c_abi::keep_error(e),
        }
        e.errno()
    })
}

/// EINVAL, and why.
fn invalid<T>(why: &'static str) -> Result<T, c_int> {
    errno(Err(stream::Error::Invalid(why)))
}

const NULL: &str = "an argument is NULL that may not be";

/// # Safety
/// `of` is NULL, or is open and used by no other thread during 'a, but to abort.
unsafe fn open<'a>(of: *mut strait_stream) -> Result<&'a mut Endpoint, c_int> {
    if of.is_null() {
        return invalid(NULL);
    }
    // SAFETY: the program's promise. What aborts is another field, of which this makes no reference.
    let endpoint = unsafe { &mut (*of).endpoint };
    errno(endpoint.is_of_this_process())?;
    Ok(endpoint)
}

/// # Safety
/// The same of a list.
unsafe fn list<'a>(of: *mut strait_stream_list) -> Result<&'a mut List, c_int> {
    // SAFETY: the program's promise.
    let list = unsafe { of.as_mut() }.map_or_else(|| invalid(NULL), |l| Ok(&mut l.list))?;
    errno(list.is_of_this_process())?;
    Ok(list)
}

/// # Safety
/// `at` is NULL or valid for a write.
unsafe fn put<T>(at: *mut T, value: T) -> Result<(), c_int> {
    if at.is_null() {
        return invalid(NULL);
    }
    // SAFETY: the program's promise.
    unsafe { at.write(value) };
    Ok(())
}

/// # Safety
/// `of` is NULL or as said of the structure.
unsafe fn transfer(of: *const strait_stream_transfer) -> Result<Put, c_int> {
    let signal = STRAIT_STREAM_NO_SIGNAL;
    let none =
        strait_stream_transfer { size: 0, local: ptr::null_mut(), length: 0, offset: 0, region: 0, signal };
    // SAFETY: the program's promise.
    let t = unsafe { sized(of, size_of_val(&none), none)? };
    Ok(Put {
        local: t.local.expose_provenance(),
        len: t.length,
        region: t.region,
        offset: t.offset,
        signal: (t.signal != signal).then_some(t.signal),
    })
}
