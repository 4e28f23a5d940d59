//! What is queued in streams without a list.

use c_abi::guard;
use libc::{c_int, c_void};
use stream::{Error, List};

use super::types::*;
use super::{errno, open, transfer};

/// Queues what `add` adds to a list.
///
/// # Safety
/// `endpoint` is NULL or open; `stream` is a stream; those of the calls of `add`.
unsafe fn queue(
    endpoint: *mut strait_stream,
    stream: *mut c_void,
    sends: bool,
    add: impl FnOnce(&mut List) -> Result<(), Error>,
) -> Result<(), c_int> {
    // SAFETY: the caller's promise.
    unsafe { errno(open(endpoint)?.queue(stream.expose_provenance(), sends, add)) }
}

/// Queues a send in a stream (a CUstream). Sends and puts are in one stream at a time.
///
/// # Safety
/// `endpoint` is open; `stream` is a stream; `buffer` to `buffer` + `length` is readable until the stream has
/// done it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_send(
    endpoint: *mut strait_stream,
    stream: *mut c_void,
    buffer: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: the program's promise.
    guard(|| unsafe { queue(endpoint, stream, true, |l| l.send(buffer.expose_provenance(), length)) })
}

/// Queues a receive in a stream: what is behind it finds the message in the buffer. The message has the
/// length of the buffer; the endpoint fails otherwise. Receives, gets and waits are in one stream at a time.
///
/// # Safety
/// As of strait_stream_send, and the buffer is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_receive(
    endpoint: *mut strait_stream,
    stream: *mut c_void,
    buffer: *mut c_void,
    length: usize,
) -> c_int {
    // SAFETY: the program's promise.
    guard(|| unsafe { queue(endpoint, stream, false, |l| l.receive(buffer.expose_provenance(), length)) })
}

/// Queues a put in a stream, and the signal behind it.
///
/// # Safety
/// As of strait_stream_send; `what` is NULL or as said of the structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_put(
    endpoint: *mut strait_stream,
    stream: *mut c_void,
    what: *const strait_stream_transfer,
) -> c_int {
    // SAFETY: the program's promise.
    guard(|| unsafe {
        let what = transfer(what)?;
        queue(endpoint, stream, true, |l| l.put(&what))
    })
}

/// Queues a get in a stream. `what->signal` is STRAIT_STREAM_NO_SIGNAL.
///
/// # Safety
/// As of strait_stream_receive; `what` is NULL or as said of the structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_get(
    endpoint: *mut strait_stream,
    stream: *mut c_void,
    what: *const strait_stream_transfer,
) -> c_int {
    // SAFETY: the program's promise.
    guard(|| unsafe {
        let what = transfer(what)?;
        queue(endpoint, stream, false, |l| l.get(&what))
    })
}

/// Queues a wait for a signal of the peer's in a stream.
///
/// # Safety
/// `endpoint` is open; `stream` is a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_wait(
    endpoint: *mut strait_stream,
    stream: *mut c_void,
    signal: u32,
) -> c_int {
    // SAFETY: the program's promise.
    guard(|| unsafe { queue(endpoint, stream, false, |l| l.wait(signal)) })
}

/// Queues the acknowledgement of a signal that was waited for: the peer may put again.
///
/// # Safety
/// As of strait_stream_wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_acknowledge(
    endpoint: *mut strait_stream,
    stream: *mut c_void,
    signal: u32,
) -> c_int {
    // SAFETY: the program's promise.
    guard(|| unsafe { queue(endpoint, stream, false, |l| l.acknowledge(signal)) })
}

/// Queues the acknowledgement of a signal that was waited for, and a put behind it, which is one kernel
/// between two devices. It is in the stream of sends and puts, which is to be behind the wait and behind what
/// uses the memory that the peer may put to again. -EBUSY: another stream has not executed a receive, get,
/// wait or acknowledgement. The acknowledgement is raised before the put's bytes are read: the peer may
/// overwrite them if they are in memory that it puts to with that signal.
///
/// # Safety
/// As of strait_stream_put.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_acknowledge_and_put(
    endpoint: *mut strait_stream,
    stream: *mut c_void,
    signal: u32,
    what: *const strait_stream_transfer,
) -> c_int {
    // SAFETY: the program's promise.
    guard(|| unsafe {
        let what = transfer(what)?;
        queue(endpoint, stream, true, |l| {
            l.acknowledge(signal)?;
            l.put(&what)
        })
    })
}
