//! Words in memory that a stream waits for, and stores to: the program's own, and those of libfabric's
//! counters (include/strait_fi_stream.h). They belong to no endpoint, so that no watchdog ends a wait: the
//! provider raises the word of a counter when something fails, and when the counter is closed.

use hmem::cuda::memops::{Features, MOST_IN_BATCH, MemOp, Until, features, queue_batch};
use hmem::cuda::{self, Stream};
use hmem::{Kind, registry};

use crate::error::Error;
use crate::memory::Words;

/// When a wait for a word of 32 bits is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Its difference to the value, as a signed number, is not negative.
    Geq,
    /// It is the value.
    Eq,
    /// It has a bit of the value.
    And,
    /// There is a bit that neither it nor the value has.
    Nor,
}

impl From<Condition> for Until {
    fn from(of: Condition) -> Until {
        match of {
            Condition::Geq => Until::Geq,
            Condition::Eq => Until::Eq,
            Condition::And => Until::And,
            Condition::Nor => Until::Nor,
        }
    }
}

/// Most bytes of [`Word::copy`].
pub const MOST: usize = 1020;
const _: () = assert!(MOST / 4 <= MOST_IN_BATCH);

/// Most of a counter's value: the bits of its word.
const COUNTER: u64 = (1 << 48) - 1;
/// The bit that each write-back word of a counter has.
const SET: u64 = 1 << 63;

/// Zeroed memory for words, page-locked for all devices of the process.
#[derive(Debug)]
pub struct Page(Words);

impl Page {
    /// So many bytes. The process has a CUDA context.
    pub fn new(len: usize) -> Result<Page, Error> {
        if len == 0 || len > 1 << 30 {
            return Err(Error::Invalid("memory for words has 1 byte to 1 GiB"));
        }
        cuda::find_driver();
        let words = Words::new(len.next_multiple_of(4096))?;
        match registry::of(Kind::Cuda).is_host_locked(words.at()) {
            true => Ok(Page(words)),
            false => Err(Error::NotForDevice(words.at())),
        }
    }

    /// Where it is.
    pub fn at(&self) -> usize {
        self.0.at()
    }
}

/// A stream that accesses words.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    stream: Stream,
    features: Features,
}

fn driver(what: &'static str) -> impl FnOnce(cuda::Error) -> Error {
    move |e| Error::Memory(what, e.into())
}

/// Whether two streams (`CUstream`) share a hardware queue: what waits in one then holds up what is queued
/// later in the other. Takes up to 0.2 seconds if they do.
///
/// # Safety
/// They are streams, and stay so during the call.
pub unsafe fn share_a_queue(first: usize, second: usize) -> Result<bool, Error> {
    cuda::find_driver();
    let of = |stream| {
        // SAFETY: the caller's promise.
        unsafe { Stream::new(stream) }.map_err(|e| match e.is_capture() {
            true => Error::State("a stream is being captured: ask before"),
            false => driver("naming the stream")(e),
        })
    };
    let shared = cuda::share_a_queue(of(first)?, of(second)?);
    shared.map_err(driver("trying whether the streams share a queue"))?.ok_or(Error::Busy(
        "a stream or the device has something to do, or the driver has no memory operations: wait for both streams",
    ))
}

impl Word {
    /// Of a stream (a `CUstream`), also of one that is being captured.
    ///
    /// # Safety
    /// It is a stream, and stays one until what is queued is done.
    pub unsafe fn of(stream: usize) -> Result<Word, Error> {
        cuda::find_driver();
        // SAFETY: the caller's promise.
        let stream = unsafe { Stream::captured_too(stream) }.map_err(driver("naming the stream"))?;
        let features = features(stream).map_err(driver("asking for the device's attributes"))?;
        if !features.batches {
            return Err(Error::Unsupported(
                "the driver has no memory operations of streams: update it to CUDA 11.7",
            ));
        }
        Ok(Word { stream, features })
    }

    /// The same, but not of one that is being captured: a graph would wait for the same sum each time.
    ///
    /// # Safety
    /// As of [`Word::of`].
    pub unsafe fn of_counter(stream: usize) -> Result<Word, Error> {
        cuda::find_driver();
        // SAFETY: the caller's promise.
        match unsafe { Stream::new(stream) } {
            Err(e) if e.is_capture() => Err(Error::State(
                "the stream is being captured, and counts rise: a graph waits by a list of an endpoint",
            )),
            Err(e) => Err(driver("naming the stream")(e)),
            // SAFETY: the caller's promise.
            Ok(_) => unsafe { Word::of(stream) },
        }
    }

    /// Waits until a counter has the value, has counted a failure, or is closed: `at` is its write-back word.
    ///
    /// # Safety
    /// The word stays until the stream has passed.
    pub unsafe fn wait_counter(&self, at: usize, value: u64) -> Result<(), Error> {
        self.for_counter(at, value)?;
        // SAFETY: the caller's promise; checked above.
        unsafe { self.queue(&[MemOp::Wait64 { at: at as u64, value: SET | value }]) }
    }

    /// Stores what the stream has added to a counter in all: `at` is the counter's first word for devices.
    ///
    /// # Safety
    /// The word stays until the stream has passed.
    pub unsafe fn raise_counter(&self, at: usize, sum: u64) -> Result<(), Error> {
        self.for_counter(at, sum)?;
        // SAFETY: the caller's promise; checked above. The driver orders what precedes a store.
        unsafe { self.queue(&[MemOp::Write64 { to: at as u64, value: sum }]) }
    }

    /// Waits for a word of 32 bits, and with `flush` for what adapters have written to the device before it
    /// was raised.
    ///
    /// # Safety
    /// The word stays until the stream has passed, or as long as the graph is used.
    pub unsafe fn wait32(
        &self,
        at: usize,
        value: u32,
        condition: Condition,
        flush: bool,
    ) -> Result<(), Error> {
        self.finds(at, 4)?;
        if condition == Condition::Nor && !self.features.nor {
            return Err(Error::Unsupported("the device has no wait by NOR: wait by another condition"));
        }
        if flush && self.features.unordered && !self.features.flush {
            return Err(Error::Unsupported(
                "the device cannot flush what adapters write to it: wait on the host",
            ));
        }
        let mut ops = vec![MemOp::Wait { at: at as u64, value, until: condition.into() }];
        if flush && self.features.unordered {
            ops.push(MemOp::Flush);
        }
        // SAFETY: the caller's promise; checked above.
        unsafe { self.queue(&ops) }
    }

    /// Stores 32 bits behind all that precedes.
    ///
    /// # Safety
    /// As of [`Word::wait32`].
    pub unsafe fn write32(&self, to: usize, value: u32) -> Result<(), Error> {
        self.finds(to, 4)?;
        // SAFETY: the caller's promise; checked above.
        unsafe { self.queue(&[MemOp::Write32 { to: to as u64, value }]) }
    }

    /// Copies bytes that the call takes with it: a multiple of 4, at most [`MOST`].
    ///
    /// # Safety
    /// As of [`Word::wait32`], for all of the memory.
    pub unsafe fn copy(&self, to: usize, bytes: &[u8]) -> Result<(), Error> {
        if bytes.is_empty() || bytes.len() > MOST || bytes.len() % 4 != 0 {
            return Err(Error::Invalid(
                "a store has 4 to 1020 bytes, a multiple of 4: copy more by cuMemcpyAsync",
            ));
        }
        self.finds(to, bytes.len())?;
        let words = bytes.chunks_exact(4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
        let store = |(i, value)| MemOp::Write32 { to: (to + 4 * i) as u64, value };
        let ops: Vec<MemOp> = words.enumerate().map(store).collect();
        // SAFETY: the caller's promise; checked above.
        unsafe { self.queue(&ops) }
    }

    fn for_counter(&self, at: usize, value: u64) -> Result<(), Error> {
        if value > COUNTER {
            return Err(Error::Invalid("a counter that streams wait for has at most 2^48 - 1"));
        }
        if !self.features.wide {
            return Err(Error::Unsupported(
                "the device has no memory operations of 64 bits: use another device",
            ));
        }
        if at % 8 != 0 {
            return Err(Error::Invalid(
                "the word is not aligned to 8 bytes: pass what the counter's table says",
            ));
        }
        self.finds(at, 8)
    }

    /// Refuses memory that a stream does not find.
    fn finds(&self, at: usize, len: usize) -> Result<(), Error> {
        if at == 0 || at % 4 != 0 || at.checked_add(len).is_none() {
            return Err(Error::Invalid("the word is NULL, or not aligned to 4 bytes"));
        }
        let last = at + len - 1;
        let cuda = registry::of(Kind::Cuda);
        let host = registry::classify(at, len) == Kind::System;
        if host && !(cuda.is_host_locked(at) && cuda.is_host_locked(last)) {
            return Err(Error::NotForDevice(at));
        }
        Ok(())
    }

    /// # Safety
    /// The memory of the operations stays until they are done.
    unsafe fn queue(&self, ops: &[MemOp]) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { queue_batch(self.stream, ops) }.map_err(driver("queueing memory operations in a stream"))
    }
}
