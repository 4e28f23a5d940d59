//! Where every call that moves data ends: one call of the engine under the domain's lock.

use std::sync::atomic::Ordering::Relaxed;

use engine::{Ctx, FiAddr, Leaving, OpFlags, Pattern, Recv, Rma, Send, WorkOp};
use hmem::{Span, total};
use libc::c_void;
use libfabric_sys as fi;

use super::endpoint::EpFid;
use super::flags::{self, How, Receive};
use super::receiver::{Receiver, Rx};
use super::trigger;
use crate::domain::Shared;
use crate::errno::Errno;

/// The application's context as the engine hands it around.
#[inline]
pub(super) fn ctx(context: *mut c_void) -> Ctx {
    Ctx(context.expose_provenance())
}

/// What `msg.data` means under these flags.
#[inline]
pub(super) fn cq_data(flags: u64, data: u64) -> Option<u64> {
    (flags & fi::FI_REMOTE_CQ_DATA != 0).then_some(data)
}

/// Sends a message; `op.flags` is filled in here.
pub(super) fn send(ep: &EpFid, mut op: Send<'_>, how: How) -> Result<(), Errno> {
    let live = ep.live()?;
    let (flags, triggered) = ep.transmit(how, live.tx_always, total(op.iov))?;
    op.flags = flags;
    if triggered {
        let Send { to, iov, tag, data, ctx, flags } = op;
        let iov = iov.iter().copied().collect();
        return trigger::defer(
            ep.shared(),
            ctx,
            WorkOp::Send { ep: live.ep, to, iov, tag, data, ctx, flags },
        );
    }
    let started = ep.shared().lock().start_send(live.ep, &op)?;
    if let Some(leaving) = started {
        wait_until_left(ep.shared(), leaving);
    }
    Ok(())
}

/// Waits until a device has let go of a buffer whose message is injected. Other threads use the domain
/// meanwhile.
#[cold]
fn wait_until_left(shared: &Shared, mut leaving: Leaving) {
    while !shared.lock().has_left(&mut leaving) {
        std::hint::spin_loop();
    }
}

/// Sends a message of one buffer, in the place of `op.iov`, if that can be done in no time; else
/// nothing has happened, and [`send`] is the way, also to learn what is wrong.
///
/// So its caller has the message in registers only: a structure that the way not taken needs in
/// memory would be read from there on this way too, before it has been written.
#[inline(always)]
pub(super) fn send_plain(ep: &EpFid, span: Span, mut op: Send<'_>, how: How) -> bool {
    let Ok(live) = ep.live() else { return false };
    let Some(flags) = ep.transmit_plain(how, live.tx_always, span.len()) else { return false };
    op.flags = flags;
    let mut engine = ep.shared().lock();
    let sent = engine.send_plain(live.ep, span, &op);
    engine.leave();
    sent
}

/// Reads or writes remote memory; `op.flags` is filled in here.
#[inline]
pub(super) fn rma(ep: &EpFid, mut op: Rma<'_>, how: How) -> Result<(), Errno> {
    let live = ep.live()?;
    // A read hands no buffer over: FI_INJECT, which may be the endpoint's default, is not about it.
    let how = match how {
        How::Default if !op.write => How::Flags(ep.tx_flags.load(Relaxed) & !fi::FI_INJECT),
        How::Flags(flags) if !op.write => How::Flags(flags & !fi::FI_INJECT),
        how => how,
    };
    let (flags, triggered) = ep.transmit(how, live.tx_always, total(op.iov))?;
    op.flags = flags;
    if triggered {
        let work = WorkOp::Rma {
            ep: live.ep,
            to: op.to,
            write: op.write,
            iov: op.iov.iter().copied().collect(),
            remote: op.remote.iter().copied().collect(),
            data: op.data,
            ctx: op.ctx,
            flags,
        };
        return trigger::defer(ep.shared(), op.ctx, work);
    }
    let mut engine = ep.shared().lock();
    let posted = engine.rma(live.ep, &op);
    engine.leave();
    Ok(posted?)
}

/// Posts a buffer, with the receiver's flags.
pub(super) fn recv<R: Receiver>(
    to: &R,
    src: FiAddr,
    tag: Option<(u64, u64)>,
    iov: &[Span],
    ctx: Ctx,
) -> Result<(), Errno> {
    let rx = to.rx()?;
    post(&rx, rx.pattern(src, tag), iov, ctx, to.default_flags())
}

/// Posts a receive of one buffer. `None`: nothing has happened, for it is to wait for a counter.
#[inline(always)]
pub(super) fn recv_one<R: Receiver>(
    to: &R,
    src: FiAddr,
    tag: Option<(u64, u64)>,
    span: Span,
    ctx: Ctx,
) -> Option<Result<(), Errno>> {
    let rx = match to.rx() {
        Ok(rx) => rx,
        Err(e) => return Some(Err(e)),
    };
    let raw = to.default_flags();
    if raw & fi::FI_TRIGGER != 0 {
        return None;
    }
    let (pattern, flags) = (rx.pattern(src, tag), flags::rx(raw, rx.each, tag.is_some()));
    let mut engine = rx.shared.lock();
    let posted = engine.recv_one(rx.id, span, Recv { pattern, iov: &[], ctx, flags });
    engine.leave();
    Some(match posted {
        Ok(()) => Ok(()),
        Err(why) => Err(errno_of(why)),
    })
}

#[cold]
fn errno_of(why: engine::Error) -> Errno {
    why.into()
}

#[inline(never)]
fn post(rx: &Rx<'_>, pattern: Pattern, iov: &[Span], ctx: Ctx, raw: u64) -> Result<(), Errno> {
    let flags = flags::rx(raw, rx.each, pattern.tag.is_some());
    if raw & fi::FI_TRIGGER != 0 {
        let iov = iov.iter().copied().collect();
        return trigger::defer(rx.shared, ctx, WorkOp::Recv { rx: rx.id, pattern, iov, ctx, flags });
    }
    Ok(rx.shared.lock().recv(rx.id, &Recv { pattern, iov, ctx, flags })?)
}

/// All forms of `fi_recvmsg` and `fi_trecvmsg`. `iov` is read only where a buffer is taken.
pub(super) fn recvmsg<R: Receiver>(
    to: &R,
    src: FiAddr,
    tag: Option<(u64, u64)>,
    iov: impl FnOnce() -> Result<engine::Iov, Errno>,
    ctx: Ctx,
    raw: u64,
) -> Result<(), Errno> {
    let rx = to.rx()?;
    let pattern = rx.pattern(src, tag);
    let what = flags::receive(raw)?;
    let tagged = tag.is_some();
    // Never offered, and a buffer that quietly took one message would hang its owner.
    if tagged && raw & fi::FI_MULTI_RECV != 0 {
        return Err(Errno::INVAL);
    }
    let flags = flags::rx(raw, rx.each, tagged);
    let posts = what == Receive::Post;
    if !posts && raw & (fi::FI_TRIGGER | fi::FI_MULTI_RECV) != 0 {
        return Err(Errno::INVAL);
    }
    match what {
        Receive::Post => post(&rx, pattern, &iov()?, ctx, raw),
        Receive::Peek(what) => {
            // Written whatever the queue is bound with, as libfabric's utility providers do: the entry is all
            // that a peek is for.
            let flags = flags | OpFlags::COMPLETION;
            let mut engine = rx.shared.lock();
            Ok(match rx.ep {
                Some(ep) => engine.ep_peek(ep, pattern, what, ctx, flags),
                None => engine.peek(rx.id, pattern, what, ctx, flags),
            }?)
        }
        Receive::Claim => {
            let iov = iov()?;
            Ok(rx.shared.lock().claim(rx.id, &Recv { pattern, iov: &iov, ctx, flags })?)
        }
        Receive::ClaimDiscard => Ok(rx.shared.lock().claim_discard(rx.id, ctx, tagged, flags)?),
    }
}
