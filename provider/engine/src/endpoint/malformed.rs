//! What is said of a frame that makes no sense. Its handler only knows that it does not; what is wrong with
//! it is found out here, once it is dropped.

use wire::{Aux, Flags, Handle, Head, MAX_SEGS, Offer, Op, Pieces, RmaSeg, Seg};

use super::Endpoint;
use link_api::{Frame, RmaLink};

/// Bytes behind the head that a frame has to have; `None` if it counts more segments than there may be.
fn least(op: Op, flags: Flags, aux: u16) -> Option<usize> {
    let segs = |n: usize| (n <= MAX_SEGS).then_some(n * size_of::<Seg>());
    let n = usize::from(aux);
    Some(match op {
        Op::Eager if flags.contains(Flags::ACK) => 8,
        Op::Rts => size_of::<Offer>() + segs(n)?,
        Op::Cts => 8 + segs(if flags.contains(Flags::HANDLES) { n } else { 0 })?,
        Op::Share | Op::Invite => size_of::<Pieces>() + segs(n)?,
        Op::Lend => size_of::<Pieces>() + size_of::<RmaSeg>() + segs(n)?,
        Op::Handle => size_of::<Handle>(),
        Op::Write | Op::WriteRts | Op::Read => {
            let aux = Aux::parse_rma(aux)?;
            usize::from(aux.rma) * size_of::<RmaSeg>() + segs(aux.segs.into())?
        }
        Op::Atomic => usize::from(Aux::parse_atomic(aux)?.rma) * size_of::<RmaSeg>(),
        _ => 0,
    })
}

impl<L: RmaLink> Endpoint<L> {
    #[cold]
    pub(super) fn malformed(&mut self, frame: &Frame) {
        let why = self.diagnose(frame);
        log::warn!(
            "{}: dropped a malformed frame of {} bytes from {}: {why}; that peer has a defect or is no \
             Strait: please report this line",
            self.link.addr(),
            frame.len,
            self.link.peer_addr(frame.from)
        );
    }

    fn diagnose(&mut self, frame: &Frame) -> String {
        let Some(bytes) = self.link.peek::<{ Head::LEN }>(frame) else {
            return format!("shorter than a head of {} bytes", Head::LEN);
        };
        let head: Head = zerocopy::transmute!(bytes);
        let Some(op) = head.op() else { return format!("op {} is unknown", bytes[0]) };
        let Some(flags) = head.flags() else { return format!("{op:?}: unknown flags in {:#x}", bytes[1]) };
        let (aux, tag, data) = (head.aux.get(), head.tag.get(), head.data.get());
        let body = frame.len - Head::LEN;
        let why = match least(op, flags, aux) {
            None => format!("aux {aux:#x} counts more than {MAX_SEGS} segments"),
            Some(least) if body < least => {
                format!(
                    "{body} bytes behind the head, of at least {least} that flags and aux {aux:#x} ask for"
                )
            }
            Some(_) => match op {
                Op::Cts | Op::Data | Op::Fin | Op::Result | Op::Share | Op::Shared | Op::Invite => {
                    match self.requests.get_mut(tag).map(|r| r.peer()) {
                        None => format!("tag {tag:#x} names no operation under way"),
                        Some(peer) if peer != frame.from => {
                            format!("tag {tag:#x} names an operation with another peer")
                        }
                        Some(_) => {
                            format!(
                                "data {data:#x}, aux {aux:#x} or {body} bytes do not fit operation {tag:#x}"
                            )
                        }
                    }
                }
                Op::Rts => "the segments are not as long as the message".into(),
                Op::Hold => format!("data {data:#x} is neither 0 nor 1"),
                Op::Refused => format!("status {aux} for an operation that this endpoint did not post"),
                Op::Lend => "pieces or segments do not make up the transfer".into(),
                _ => format!("its lengths do not add up (aux {aux:#x}, {body} bytes)"),
            },
        };
        format!("{op:?}: {why}")
    }
}
