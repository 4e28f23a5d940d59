//! Streams that are made here for a library's own work on memory of the program's.

use std::ptr::null_mut;

use super::api::{Error, Handle, NOT_FOUND, STREAM_NON_BLOCKING, loaded};
use super::info::info;
use super::queue::{Stream, is_gone};
use super::stream::{Entered, INVALID_CONTEXT, any, context_of, id_of};

/// `CU_STREAM_DEFAULT`.
const STREAM_DEFAULT: u32 = 0;

/// A stream of a library's. It is destroyed on drop, when the work in it is done.
#[derive(Debug)]
pub struct OwnStream {
    stream: Stream,
    /// Of the context: a later one of the same handle has another number.
    context: u64,
}

impl OwnStream {
    /// Of the context of the memory at `near`; without an address, of the calling thread's. It waits for the
    /// legacy default stream, as every stream does that is made without `CU_STREAM_NON_BLOCKING`: kernels
    /// that the program launched there before are done first.
    pub fn new(near: Option<usize>) -> Result<OwnStream, Error> {
        Self::make(near, STREAM_DEFAULT)
    }

    /// The same, but it waits for no other stream (`CU_STREAM_NON_BLOCKING`).
    pub fn non_blocking(near: Option<usize>) -> Result<OwnStream, Error> {
        Self::make(near, STREAM_NON_BLOCKING)
    }

    fn make(near: Option<usize>, flags: u32) -> Result<OwnStream, Error> {
        let api = loaded().ok_or(Error(NOT_FOUND))?;
        let ctx = match near {
            Some(addr) => context_of(api, &info(addr).ok_or(Error(NOT_FOUND))?)?,
            None => any(api).ok_or(Error(INVALID_CONTEXT))?,
        };
        let _entered = Entered::new(api, ctx)?;
        let mut stream = null_mut();
        api.stream_create(&mut stream, flags)?;
        Ok(OwnStream { stream: Stream::of(stream as usize, ctx), context: id_of(api, ctx) })
    }

    /// Whether nothing in it will be done any more: it is done, has failed, or its context is gone.
    pub(super) fn is_over(&self) -> bool {
        is_gone(self.stream.context(), self.context) || self.stream.is_done() != Ok(false)
    }

    /// To queue work in. It is not used any more once this is dropped.
    pub fn stream(&self) -> Stream {
        self.stream
    }
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        let Some(api) = loaded() else { return };
        // The stream of a context that is gone went with it.
        if id_of(api, self.stream.context()) != self.context {
            return;
        }
        if let Ok(_entered) = Entered::new(api, self.stream.context()) {
            let _ = api.stream_destroy(self.stream.handle() as Handle);
        }
    }
}
