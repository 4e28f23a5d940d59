//! Words in memory: the program's, and those of libfabric's counters.

use std::ptr;
use std::slice;

use c_abi::guard;
use libc::{c_int, c_void};
use stream::{Condition, Page, Word};

use super::types::*;
use super::{NULL, errno, invalid, put};

/// Makes zeroed host memory for words, page-locked for the devices of the process, which has a CUDA context;
/// `memory` is where it begins.
///
/// # Safety
/// `made` and `memory` are NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_words_open(
    length: usize,
    made: *mut *mut strait_stream_words,
    memory: *mut *mut c_void,
) -> c_int {
    guard(|| {
        if made.is_null() || memory.is_null() {
            return invalid(NULL);
        }
        let page = errno(Page::new(length))?;
        // SAFETY: the program has places for both.
        unsafe {
            put(memory, ptr::with_exposed_provenance_mut(page.at()))?;
            put(made, Box::into_raw(Box::new(strait_stream_words { _page: page })))
        }
    })
}

/// Gives such memory back.
///
/// # Safety
/// `made` is NULL or open, no stream and no graph accesses the memory any more, and neither does the program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_words_close(made: *mut strait_stream_words) -> c_int {
    guard(|| {
        if !made.is_null() {
            // SAFETY: the program's promise; it came from a box.
            drop(unsafe { Box::from_raw(made) });
        }
        Ok(())
    })
}

/// Queues a wait in a stream until a counter of libfabric's has the value. `word` is the counter's
/// write-back word, of get_wb_addr or set_wb_buffer (strait_fi_stream.h). The wait also passes once the
/// counter has counted a failure, or is closed: fi_strait_cntr_wb_readerr of the word says so. -EPERM: the
/// stream is being captured.
///
/// # Safety
/// `stream` is a stream; the word stays until the stream has passed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_wait_counter(
    stream: *mut c_void,
    word: *const c_void,
    value: u64,
) -> c_int {
    // SAFETY: the program's promise.
    guard(|| unsafe {
        let stream = errno(Word::of_counter(stream.expose_provenance()))?;
        errno(stream.wait_counter(word.expose_provenance(), value))
    })
}

/// Queues in a stream what raises a counter of libfabric's: deferred work with a threshold up to it begins.
/// `word` is the first one of get_mmio_addr, and `sum` what streams have added in all. -EPERM: the stream is
/// being captured.
///
/// # Safety
/// As of strait_stream_wait_counter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_raise_counter(
    stream: *mut c_void,
    word: *mut c_void,
    sum: u64,
) -> c_int {
    // SAFETY: the program's promise.
    guard(|| unsafe {
        let stream = errno(Word::of_counter(stream.expose_provenance()))?;
        errno(stream.raise_counter(word.expose_provenance(), sum))
    })
}

/// Whether two streams share a hardware queue: 1 in `shared` then, else 0. What waits in one of such streams
/// holds up what is queued later in the other. The call tries it, which takes up to 0.2 seconds if they do.
/// -EBUSY: one of them, or the device, has something to do; -EPERM: one is being captured.
///
/// # Safety
/// Both are streams; `shared` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_share_queue(
    first: *mut c_void,
    second: *mut c_void,
    shared: *mut u32,
) -> c_int {
    guard(|| {
        if shared.is_null() {
            return invalid(NULL);
        }
        // SAFETY: the program's promise.
        unsafe {
            let share = stream::share_a_queue(first.expose_provenance(), second.expose_provenance());
            put(shared, u32::from(errno(share)?))
        }
    })
}

/// Queues a wait in a stream for a word of the program's, in device memory or page-locked. `condition` is
/// STRAIT_STREAM_GEQ and others, with STRAIT_STREAM_FLUSH or without. Nothing but the word ends the wait.
///
/// # Safety
/// `stream` is a stream; the word stays until the stream has passed, or as long as the graph is used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_wait_value32(
    stream: *mut c_void,
    word: *const u32,
    value: u32,
    condition: u32,
) -> c_int {
    guard(|| {
        let how = match condition & !STRAIT_STREAM_FLUSH {
            STRAIT_STREAM_GEQ => Condition::Geq,
            STRAIT_STREAM_EQ => Condition::Eq,
            STRAIT_STREAM_AND => Condition::And,
            STRAIT_STREAM_NOR => Condition::Nor,
            _ => return invalid("the condition of a wait is STRAIT_STREAM_GEQ, _EQ, _AND or _NOR"),
        };
        let flush = condition & STRAIT_STREAM_FLUSH != 0;
        // SAFETY: the program's promise.
        unsafe {
            let stream = errno(Word::of(stream.expose_provenance()))?;
            errno(stream.wait32(word.expose_provenance(), value, how, flush))
        }
    })
}

/// Queues a store in a stream, behind all that precedes, to a word of the program's.
///
/// # Safety
/// As of strait_stream_wait_value32.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_write_value32(
    stream: *mut c_void,
    word: *mut u32,
    value: u32,
) -> c_int {
    // SAFETY: the program's promise.
    guard(|| unsafe {
        let stream = errno(Word::of(stream.expose_provenance()))?;
        errno(stream.write32(word.expose_provenance(), value))
    })
}

/// Queues a store of bytes in a stream, which the call takes with it: a multiple of 4, at most 1020, to
/// memory that is aligned to 4.
///
/// # Safety
/// As of strait_stream_wait_value32, for all of the memory; `from` is NULL or `length` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_write_memory(
    stream: *mut c_void,
    to: *mut c_void,
    from: *const c_void,
    length: usize,
) -> c_int {
    guard(|| {
        if from.is_null() || length > isize::MAX as usize {
            return invalid(NULL);
        }
        // SAFETY: the program's promise; nothing writes the bytes during the call.
        unsafe {
            let bytes = slice::from_raw_parts(from.cast::<u8>(), length);
            let stream = errno(Word::of(stream.expose_provenance()))?;
            errno(stream.copy(to.expose_provenance(), bytes))
        }
    })
}
