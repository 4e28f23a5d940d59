//! Requests that the peer's progress carries out: put, get and atomics on memory that is neither
//! mapped here nor within CMA's reach. And the same for peers.
//!
//! A request has the slot of the key, if it has one: other memory may be registered at the address by now.
//!
//! An interface has at most [`crate::rma::requests::WINDOW`] requests unanswered by a peer; further ones wait
//! here. So for a peer that does not read its replies, because it is stopped, say, no more than that many are
//! kept. A peer that asks for more is cut off: not to read its frames any more would do as well against one,
//! but two that wait for each other's replies would then wait for ever.

use std::rc::Rc;

use link_api::{FrameLink, Link, PeerId, Refused};
use ucx_sys::{self as ucx, Status};
use wire::put;
pub(crate) use wire::ucx::What;
use wire::ucx::{Head, Kind, Reply};

use crate::ffi::complete;
use crate::frame::{Refusal, take};
use crate::md::region::Slot;
use crate::rma::requests::{Into_, Operation, Request};
use crate::state::{Ep, Iface};

/// What a request asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) what: What,
    pub(crate) addr: u64,
    /// A length, or the operand.
    pub(crate) a: u64,
    /// What to compare with.
    pub(crate) b: u64,
    /// Of the key.
    pub(crate) slot: Option<Slot>,
}

impl Iface {
    /// Sends a request; its operation counts it already.
    pub(crate) fn ask(
        &mut self,
        ep: &mut Ep,
        ask: Ask,
        bytes: &[u8],
        into: Into_,
        operation: &Rc<Operation>,
    ) {
        let request = Request { ep: &raw mut *ep, to: ep.peer, into, operation: Rc::clone(operation) };
        let token = self.remote.insert(request);
        ep.has_asked();
        let mut frame = Vec::with_capacity(Head::LEN + size_of::<wire::ucx::Request>() + bytes.len());
        put(&mut frame, &Head::bytes(Kind::Request, ask.what as u8));
        put(
            &mut frame,
            &wire::ucx::Request {
                token: token.into(),
                addr: ask.addr.into(),
                a: ask.a.into(),
                b: ask.b.into(),
                slot: Slot::to_wire(ask.slot),
                zero: 0.into(),
            },
        );
        put(&mut frame, bytes);
        if let Err(why) = self.post(ep.peer, frame, false) {
            ep.refused(why);
        }
    }

    /// Sends a frame, now or later; an error if the peer is gone.
    pub(crate) fn post(&mut self, to: PeerId, frame: Vec<u8>, reply: bool) -> Result<(), Refused> {
        let (link, mut sent) = (&mut self.link, Ok(()));
        let waits = self.remote.post(to, frame, reply, |frame| {
            sent = link.send(to, frame, &[], 0, 0).map(|_| ());
            sent
        });
        self.busy |= waits;
        if waits { Ok(()) } else { sent }
    }

    /// Sends what waits.
    pub(crate) fn flush_remote(&mut self) {
        let (link, mut gone) = (&mut self.link, Vec::new());
        self.remote.flush(|to, frame| {
            let sent = link.send(to, frame, &[], 0, 0).map(|_| ());
            if let (Err(Refused::Gone(_)), false) = (sent, gone.contains(&to)) {
                gone.push(to);
            }
            sent
        });
        for ep in gone.iter().filter_map(|peer| self.eps.get(peer)).flatten() {
            // SAFETY: endpoints live as long as they are listed.
            unsafe { Ep::fail(*ep, ucx::UCS_ERR_CONNECTION_RESET) };
        }
    }
}

/// A reply came.
///
/// # Safety
/// As for `hear`.
pub(crate) unsafe fn answered(
    this: *mut Iface,
    from: PeerId,
    status: Status,
    body: &[u8],
) -> Result<(), Refusal> {
    // SAFETY: the caller's promise; destinations are valid until their operation is complete.
    unsafe {
        (*this).remote.heard(from);
        let mut bytes = body;
        let reply: Reply = take(&mut bytes)?;
        let Some(request) = (*this).remote.take(reply.token.get(), from) else { return Ok(()) };
        let mut status = status.min(ucx::UCS_OK);
        if status == ucx::UCS_OK {
            match request.into {
                Into_::Nowhere => {}
                Into_::Memory(to, len) if bytes.len() == len => {
                    to.copy_from_nonoverlapping(bytes.as_ptr(), len);
                }
                Into_::Callback(unpack, arg, len) if bytes.len() == len => {
                    unpack(arg, bytes.as_ptr().cast(), len);
                }
                _ => status = ucx::UCS_ERR_IO_ERROR,
            }
        } else if request.operation.status.get() == ucx::UCS_OK {
            log::warn!("{} refused an access: status {status}", (*this).link.peer_addr(from));
        }
        let Request { ep, operation, .. } = request;
        if status != ucx::UCS_OK {
            operation.status.set(status);
        }
        let left = operation.left.get() - 1;
        operation.left.set(left);
        if left == 0 {
            complete(operation.comp, operation.status.get());
        }
        // The completion may have destroyed the endpoint.
        if (*this).has(ep) {
            Ep::answered(ep);
        }
        Ok(())
    }
}
