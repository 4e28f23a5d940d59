//! A program's own stream, in which work is queued for it.

use std::ffi::c_void;
use std::ptr::null_mut;

use super::api::{Api, CAPTURE_FIRST, Error, Handle, NOT_FOUND, NOT_READY, loaded};
use super::info::info;
use super::stream::{Entered, INVALID_CONTEXT, any, context_of, enter, id_of};

/// What a stream calls when all before it is done. It may call nothing of CUDA's, and wait for nothing that
/// does.
pub type Call = unsafe extern "C" fn(*mut c_void);

/// `CU_STREAM_LEGACY`.
const LEGACY: usize = 1;

/// Whether the driver says that a context is gone, by its handle and number: nothing of it is done any more.
/// A driver before 12.0, whose contexts have no numbers, does not say it.
pub fn is_gone(context: usize, id: u64) -> bool {
    id != 0 && loaded().is_some_and(|api| id_of(api, context) != id)
}

/// A stream of the program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    handle: usize,
    ctx: usize,
}

impl Stream {
    /// A `CUstream`; those that have no name of their own (0, 1 and 2) too, of the calling thread's context.
    /// Refused: one that is being captured into a graph, which would do what is queued any number of times.
    ///
    /// # Safety
    /// It is a stream, and stays one for as long as what is returned is used.
    pub unsafe fn new(stream: usize) -> Result<Stream, Error> {
        // SAFETY: the caller's promise.
        let of = unsafe { Stream::captured_too(stream) }?;
        let (api, _entered) = of.enter()?;
        if of.is_captured(api)? { Err(Error(CAPTURE_FIRST)) } else { Ok(of) }
    }

    /// As [`Stream::new`], and one that is being captured is taken: what is queued becomes part of the graph.
    ///
    /// # Safety
    /// As of [`Stream::new`].
    pub unsafe fn captured_too(stream: usize) -> Result<Stream, Error> {
        let api = loaded().ok_or(Error(NOT_FOUND))?;
        let mut ctx = null_mut();
        if stream > 2 {
            api.stream_ctx(stream as Handle, &mut ctx)?;
        }
        let ctx = match ctx as usize {
            0 => any(api).ok_or(Error(INVALID_CONTEXT))?,
            ctx => ctx,
        };
        Ok(Stream { handle: stream, ctx })
    }

    /// The legacy default stream of the context of the memory at `near`: copies of cudaMemcpy are in it.
    pub fn legacy(near: usize) -> Result<Stream, Error> {
        let api = loaded().ok_or(Error(NOT_FOUND))?;
        let ctx = context_of(api, &info(near).ok_or(Error(NOT_FOUND))?)?;
        Ok(Stream { handle: LEGACY, ctx })
    }

    /// A stream that was made here.
    pub(super) fn of(handle: usize, ctx: usize) -> Stream {
        Stream { handle, ctx }
    }

    /// Whether what is queued goes into a graph. The context is entered.
    fn is_captured(self, api: &Api) -> Result<bool, Error> {
        let mut status = 0;
        match api.stream_capturing(self.handle as Handle, &mut status) {
            Ok(()) => Ok(status != 0),
            // A driver of before 10.0 has no graphs.
            Err(Error(NOT_FOUND)) => Ok(false),
            // The stream without a name, while another one is captured that waits for it.
            Err(e) if e.is_capture() => Ok(true),
            Err(e) => Err(e),
        }
    }

    /// Its `CUstream`.
    pub fn handle(self) -> usize {
        self.handle
    }

    /// Its context, as a number.
    pub fn context(self) -> usize {
        self.ctx
    }

    pub(super) fn enter(self) -> Result<(&'static Api, Entered<'static>), Error> {
        enter(self.ctx)
    }

    /// Queues a copy.
    ///
    /// # Safety
    /// Both ranges are valid for it until it is done.
    pub unsafe fn copy(self, dst: usize, src: usize, len: usize) -> Result<(), Error> {
        let (api, _entered) = self.enter()?;
        api.copy_async(dst as u64, src as u64, len, self.handle as Handle)
    }

    /// Queues a call.
    ///
    /// # Safety
    /// `call` may be called with `arg`, in a thread of the driver's; it does not unwind.
    pub unsafe fn call(self, call: Call, arg: *mut c_void) -> Result<(), Error> {
        let (api, _entered) = self.enter()?;
        api.stream_call(self.handle as Handle, call, arg)
    }

    /// Runs what queues work itself, with the stream's context current.
    pub fn within<R>(self, work: impl FnOnce() -> R) -> Result<R, Error> {
        let (_, _entered) = self.enter()?;
        Ok(work())
    }

    /// Waits until all that is queued is done.
    pub fn wait(self) -> Result<(), Error> {
        let (api, _entered) = self.enter()?;
        api.stream_wait(self.handle as Handle)
    }

    /// Waits until all work of its context is done, in other streams too.
    pub fn wait_for_context(self) -> Result<(), Error> {
        let (api, _entered) = self.enter()?;
        api.ctx_wait()
    }

    /// Whether all that is queued is known to be done; in `Err`, why nothing in it will ever be done. While
    /// it is being captured that is not known: to ask would end the capture.
    pub fn is_done(self) -> Result<bool, Error> {
        let (api, _entered) = self.enter()?;
        if self.is_captured(api)? {
            return Ok(false);
        }
        match api.stream_query(self.handle as Handle) {
            Ok(()) => Ok(true),
            Err(Error(NOT_READY)) => Ok(false),
            Err(e) => Err(e),
        }
    }
}
