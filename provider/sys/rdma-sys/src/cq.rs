//! Completion queues, and channels by which they wake.

use core::ffi::{c_int, c_void};
use core::ptr::{NonNull, null_mut};
use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use crate::context::nonblocking;
use crate::{Context, Error, ibv_comp_channel, ibv_cq, ibv_wc};

struct ChannelInner {
    raw: NonNull<ibv_comp_channel>,
    context: Context,
}

// SAFETY: libibverbs' calls may be made from any thread.
unsafe impl Send for ChannelInner {}
// SAFETY: as above.
unsafe impl Sync for ChannelInner {}

impl Drop for ChannelInner {
    fn drop(&mut self) {
        // SAFETY: made by this library, and its queues are gone: each holds this.
        if unsafe { (self.context.functions().ibv_destroy_comp_channel)(self.raw.as_ptr()) } != 0 {
            core::mem::forget(self.context.clone());
        }
    }
}

/// Where completion events arrive. Clones are the same one.
#[derive(Clone)]
pub struct Channel(Arc<ChannelInner>);

impl Channel {
    /// A channel of the device.
    pub fn new(context: &Context) -> Result<Channel, Error> {
        // SAFETY: an open context.
        let raw = unsafe { (context.functions().ibv_create_comp_channel)(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_create_comp_channel"))?;
        Ok(Channel(Arc::new(ChannelInner { raw, context: context.clone() })))
    }

    /// What poll(2) waits for.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open while the channel is.
        unsafe { BorrowedFd::borrow_raw((*self.0.raw.as_ptr()).fd) }
    }

    /// Has [`Channel::event`] return at once where there is no event.
    pub fn set_nonblocking(&self) -> Result<(), Error> {
        nonblocking(self.fd().as_raw_fd())
    }

    /// The next event, acknowledged: the value that its queue was made with. The queue has to be armed
    /// again, and then polled. `None`: there is none, and the descriptor does not block.
    pub fn event(&self) -> Result<Option<usize>, Error> {
        let functions = self.0.context.functions();
        let (mut cq, mut value) = (null_mut(), null_mut());
        // SAFETY: a channel of this library, and memory for both. The queue of an event is there until that
        // is acknowledged: ibv_destroy_cq(3) waits for it.
        unsafe {
            if (functions.ibv_get_cq_event)(self.0.raw.as_ptr(), &raw mut cq, &raw mut value) != 0 {
                let error = Error::last("ibv_get_cq_event");
                return if error.errno() == libc::EAGAIN { Ok(None) } else { Err(error) };
            }
            (functions.ibv_ack_cq_events)(cq, 1);
        }
        Ok(Some(value as usize))
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Channel").field(&self.fd()).finish()
    }
}

struct Inner {
    raw: NonNull<ibv_cq>,
    /// Of the driver, constant.
    poll: unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int,
    arm: unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int,
    context: Context,
    channel: Option<Channel>,
}

// SAFETY: libibverbs' calls may be made from any thread.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: made by this library, and its queue pairs are gone: each holds this. All events are
        // acknowledged.
        if unsafe { (self.context.functions().ibv_destroy_cq)(self.raw.as_ptr()) } != 0 {
            core::mem::forget((self.context.clone(), self.channel.clone()));
        }
    }
}

/// A completion queue. Clones are the same one.
#[derive(Clone)]
pub struct Cq(Arc<Inner>);

impl Cq {
    /// A completion queue of at least so many entries, whose events go to the channel and carry `value`.
    /// `vector` is below [`Context::vectors`]. More entries than the device has are refused (EINVAL, ENOMEM).
    pub fn new(
        context: &Context,
        entries: u32,
        channel: Option<&Channel>,
        vector: u32,
        value: usize,
    ) -> Result<Cq, Error> {
        const CALL: &str = "ibv_create_cq";
        let invalid = |why| Error::Invalid { call: CALL, why };
        let entries = c_int::try_from(entries).map_err(|_| invalid("too many entries"))?;
        let vector = c_int::try_from(vector).map_err(|_| invalid("there is no such vector"))?;
        let ops = context.ops();
        let poll = ops.poll_cq.ok_or(Error::Missing("ibv_poll_cq"))?;
        let arm = ops.req_notify_cq.ok_or(Error::Missing("ibv_req_notify_cq"))?;
        let on = channel.map_or(null_mut(), |channel| channel.0.raw.as_ptr());
        let create = context.functions().ibv_create_cq;
        // SAFETY: an open context, a channel of this library or none; the value is only handed back.
        let raw = unsafe { create(context.raw(), entries, value as *mut c_void, on, vector) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(CALL))?;
        Ok(Cq(Arc::new(Inner { raw, poll, arm, context: context.clone(), channel: channel.cloned() })))
    }

    pub(crate) fn raw(&self) -> *mut ibv_cq {
        self.0.raw.as_ptr()
    }

    /// How many entries it has: at least what was requested.
    pub fn entries(&self) -> u32 {
        // SAFETY: constant, since nothing here resizes it.
        unsafe { (*self.raw()).cqe }.try_into().unwrap_or(0)
    }

    /// Takes completions from the queue into the front of `wcs`, and says how many; 0: there is none. Of one
    /// with an error, the id and the status alone mean anything (ibv_poll_cq(3)). EIO if the driver refuses.
    #[inline]
    pub fn poll(&self, wcs: &mut [ibv_wc]) -> Result<usize, Error> {
        let room = c_int::try_from(wcs.len()).unwrap_or(c_int::MAX);
        // SAFETY: a queue of this library, and room for that many.
        let taken = unsafe { (self.0.poll)(self.raw(), room, wcs.as_mut_ptr()) };
        match usize::try_from(taken) {
            Ok(taken) => Ok(taken.min(wcs.len())),
            // Its own errors are negative, and most drivers say no more than -1.
            Err(_) => Err(Error::Refused { call: "ibv_poll_cq", errno: libc::EIO }),
        }
    }

    /// Asks for one event at the next completion (`solicited`: only at one of a solicited message, or an
    /// error).
    pub fn arm(&self, solicited: bool) -> Result<(), Error> {
        // SAFETY: a queue of this library.
        Error::check("ibv_req_notify_cq", unsafe { (self.0.arm)(self.raw(), solicited.into()) })
    }
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { context, channel, .. } = &*self.0;
        f.debug_struct("Cq")
            .field("entries", &self.entries())
            .field("context", context)
            .field("channel", channel)
            .finish()
    }
}
