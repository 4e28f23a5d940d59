//! Endpoints: opened, connected, closed.

use std::ffi::CStr;
use std::ptr;
use std::slice;
use std::time::Duration;

use c_abi::{guard, sized};
use libc::{c_char, c_int, c_void};
use stream::{Endpoint, Options, Through};

use super::types::*;
use super::{NULL, carrier, errno, invalid, open, put};

/// Why the last call of this thread failed. Valid until its next.
#[unsafe(no_mangle)]
pub extern "C" fn strait_stream_error() -> *const c_char {
    c_abi::last_error()
}

/// Opens an endpoint. Slots for messages are in memory of the calling thread's CUDA context, if it has one,
/// and kernels are loaded there, for which the driver waits for what is queued in the context. The first call
/// for a stream of another context loads them there.
///
/// # Safety
/// `options` is NULL or as said of the structure; `opened` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_open(
    options: *const strait_stream_options,
    opened: *mut *mut strait_stream,
) -> c_int {
    guard(|| {
        let mut wanted = Options::default();
        let mut carrier = None;
        if !options.is_null() {
            let none = strait_stream_options {
                size: 0,
                slots: 0,
                slot_bytes: 0,
                signals: 0,
                flags: 0,
                timeout_ns: 0,
                key: ptr::null(),
            };
            // SAFETY: the program's promise.
            let o = unsafe { sized(options, size_of_val(&none), none)? };
            let all = STRAIT_STREAM_HOST_MEMORY | STRAIT_STREAM_BY_AGENT | STRAIT_STREAM_MEMORY_OPERATIONS;
            if o.flags & !all != 0 {
                return invalid("strait_stream_options.flags has a bit that means nothing");
            }
            for (to, from) in [
                (&mut wanted.slots, o.slots),
                (&mut wanted.slot_bytes, o.slot_bytes),
                (&mut wanted.signals, o.signals),
            ] {
                *to = if from == 0 { *to } else { from };
            }
            if o.timeout_ns > 0 {
                wanted.timeout = Duration::from_nanos(o.timeout_ns);
            }
            wanted.in_host_memory = o.flags & STRAIT_STREAM_HOST_MEMORY != 0;
            wanted.by_agent = o.flags & STRAIT_STREAM_BY_AGENT != 0;
            wanted.by_memory_operations = o.flags & STRAIT_STREAM_MEMORY_OPERATIONS != 0;
            // SAFETY: a string, by the program's promise.
            let key = (!o.key.is_null()).then(|| unsafe { CStr::from_ptr(o.key) }.to_bytes());
            if key.is_some_and(<[u8]>::is_empty) {
                return invalid("the key is empty, which is no secret: pass NULL for none");
            }
            if wanted.by_agent || key.is_some() {
                carrier = Some(errno(carrier::open(key))?);
            }
        }
        if opened.is_null() {
            return invalid(NULL);
        }
        let endpoint = errno(Endpoint::open(wanted, carrier))?;
        let abort = endpoint.aborts();
        // SAFETY: the program has a place for it.
        unsafe { put(opened, Box::into_raw(Box::new(strait_stream { endpoint, abort }))) }
    })
}

/// Registers device memory that the peer may put to and get from. Registrations have the numbers 0, 1 and so
/// on. To be called before strait_stream_blob.
///
/// # Safety
/// `endpoint` is open; `address` to `address` + `length` stays allocated until both sides have closed;
/// `region` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_register(
    endpoint: *mut strait_stream,
    address: *mut c_void,
    length: usize,
    region: *mut u32,
) -> c_int {
    guard(|| {
        if region.is_null() {
            return invalid(NULL);
        }
        // SAFETY: the program's promise.
        unsafe {
            let number = errno(open(endpoint)?.register(address.expose_provenance(), length))?;
            put(region, number)
        }
    })
}

/// What the peer has to know. `length` is the size of `buffer`, and becomes that of the blob; -ENOSPC: it is
/// too small, and nothing was written.
///
/// # Safety
/// `endpoint` is open; `buffer` is valid for writes of `length` bytes; `length` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_blob(
    endpoint: *mut strait_stream,
    buffer: *mut c_void,
    length: *mut usize,
) -> c_int {
    guard(|| {
        if length.is_null() {
            return invalid(NULL);
        }
        // SAFETY: the program's promise.
        let (blob, room) = unsafe { (errno(open(endpoint)?.blob())?, length.read()) };
        // SAFETY: as above.
        unsafe { length.write(blob.len()) };
        if room < blob.len() || buffer.is_null() {
            return errno(Err(stream::Error::NoSpace { needed: blob.len(), room, what: "bytes" }));
        }
        // SAFETY: there is room for so many bytes.
        unsafe { buffer.cast::<u8>().copy_from_nonoverlapping(blob.as_ptr(), blob.len()) };
        Ok(())
    })
}

/// Connects to the peer whose blob this is, a process of the same host, and maps its memory. Both sides call
/// it, and each waits for the other one. -EHOSTUNREACH: the peer is on another host, and one side has no key.
///
/// # Safety
/// `endpoint` is open; `blob` is NULL or `length` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_connect(
    endpoint: *mut strait_stream,
    blob: *const c_void,
    length: usize,
) -> c_int {
    guard(|| {
        if blob.is_null() || length > isize::MAX as usize {
            return invalid(NULL);
        }
        // SAFETY: the program's promise; nothing writes the blob during the call.
        unsafe {
            let bytes = slice::from_raw_parts(blob.cast::<u8>(), length);
            errno(open(endpoint)?.connect(bytes))
        }
    })
}

/// Which way messages to the peer go, and why.
///
/// # Safety
/// `endpoint` is open; `path` is NULL, or valid for writes, its size set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_query(
    endpoint: *mut strait_stream,
    path: *mut strait_stream_path,
) -> c_int {
    guard(|| {
        let mut answer = strait_stream_path { size: 0, path: 0, unused: 0, why: [0; 240], polls: 0 };
        // SAFETY: the program's promise.
        answer.size = unsafe { sized(path.cast_const(), size_of_val(&answer), answer)?.size };
        // SAFETY: as above.
        let found = errno(unsafe { open(endpoint)? }.path())?;
        answer.path = match found.through {
            Through::Device => STRAIT_STREAM_DEVICE,
            Through::Host => STRAIT_STREAM_HOST,
            Through::Agent => STRAIT_STREAM_AGENT,
        };
        let why = found.why.bytes().filter(|b| *b != 0);
        let room = answer.why.len() - 1;
        // SAFETY: as above.
        answer.polls = unsafe { open(endpoint)? }.polls();
        answer.why.iter_mut().take(room).zip(why).for_each(|(to, from)| *to = from as c_char);
        // SAFETY: as above.
        unsafe { put(path, answer) }
    })
}

/// What ended the endpoint; `code` is 0 if nothing did.
///
/// # Safety
/// `endpoint` is open; `failure` is NULL, or valid for writes, its size set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_failed(
    endpoint: *mut strait_stream,
    failure: *mut strait_stream_failure,
) -> c_int {
    guard(|| {
        let mut answer = strait_stream_failure {
            size: 0,
            code: 0,
            operation: 0,
            index: 0,
            peer: 0,
            by_peer: 0,
            unused: 0,
        };
        // SAFETY: the program's promise.
        answer.size = unsafe { sized(failure.cast_const(), size_of_val(&answer), answer)?.size };
        // SAFETY: as above.
        if let Some(f) = unsafe { open(endpoint)? }.failure() {
            answer.code = f.errno;
            answer.operation = f.kind as u32;
            answer.index = f.index;
            answer.peer = f.peer;
            answer.by_peer = f.by_peer.into();
        }
        // SAFETY: as above.
        unsafe { put(failure, answer) }
    })
}

/// How many calls without a list streams have executed: `sends` of strait_stream_send, strait_stream_put and
/// strait_stream_acknowledge_and_put, `receives` of strait_stream_receive, strait_stream_get,
/// strait_stream_wait and strait_stream_acknowledge. After a failure streams pass these calls, and they
/// count.
///
/// # Safety
/// `endpoint` is open; `sends` and `receives` are NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_executed(
    endpoint: *mut strait_stream,
    sends: *mut u64,
    receives: *mut u64,
) -> c_int {
    // SAFETY: the program's promise.
    guard(|| unsafe {
        let [sent, received] = open(endpoint)?.executed();
        put(sends, sent)?;
        put(receives, received)
    })
}

/// The address of a word of 4 bytes in page-locked host memory, for kernels of the program's: not 0 once the
/// endpoint has failed.
///
/// # Safety
/// `endpoint` is open; `word` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_error_word(
    endpoint: *mut strait_stream,
    word: *mut *const u32,
) -> c_int {
    // SAFETY: the program's promise.
    guard(|| unsafe { put(word, ptr::with_exposed_provenance(open(endpoint)?.error_word())) })
}

/// Fails the endpoint and the peer's: each wait of a stream or of a call passes, nothing is moved any more,
/// and all calls but those that close fail. Any thread may call it while the endpoint is open.
///
/// # Safety
/// `endpoint` is NULL or open, and is not closed meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_abort(endpoint: *mut strait_stream) -> c_int {
    guard(|| {
        if endpoint.is_null() {
            return Ok(());
        }
        // SAFETY: the program's promise. Other threads have references to the other field alone.
        errno(unsafe { &(*endpoint).abort }.abort())
    })
}

/// Closes an endpoint. -EBUSY: a list is open, or a stream has not executed what it was given; the endpoint
/// is still open. Streams of the peer's that wait for this side pass, and its endpoint fails (EPIPE).
/// Messages that were sent before arrive.
///
/// # Safety
/// `endpoint` is NULL or open, and is not used any more if this returns 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_close(endpoint: *mut strait_stream) -> c_int {
    guard(|| {
        if endpoint.is_null() {
            return Ok(());
        }
        // SAFETY: the program's promise.
        errno(unsafe { open(endpoint)? }.close())?;
        // SAFETY: as above; it came from a box.
        drop(unsafe { Box::from_raw(endpoint) });
        Ok(())
    })
}
