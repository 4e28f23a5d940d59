//! What peers write and read here within the call that takes their frame in.

use wire::{Aux, Flags, Head, Op as WireOp, RmaSeg, Status, take};
use zerocopy::IntoBytes;

use crate::core::{Bound, Core, Reached, Tally, failure, unmoved};
use crate::endpoint::complete::Failed;
use crate::endpoint::device::staging::Source;
use crate::endpoint::malformed::{Fields, Handled, Malformed, parse_rma};
use crate::endpoint::net::Net;
use crate::endpoint::parts::bind::Bind;
use crate::endpoint::parts::request::Serve;
use crate::types::*;
use link_api::{Frame, How, PeerId, RmaLink, Side};

/// Accesses of peers to memory here.
pub(crate) struct Accesses<'a, L> {
    pub(in crate::endpoint) net: &'a mut Net<L>,
    pub(in crate::endpoint) bind: &'a Bind,
}

impl<L: RmaLink> Accesses<'_, L> {
    /// A peer wrote memory here, or tried to.
    #[allow(clippy::too_many_arguments)]
    pub(in crate::endpoint) fn written(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        status: Status,
        what: What,
        len: usize,
        data: Option<u64>,
        cntrs: impl IntoIterator<Item = CntrId>,
    ) {
        if status != Status::Ok {
            return self.net.warn_of(peer, status);
        }
        core.count(self.bind.cntrs().remote_write, false);
        for cntr in cntrs {
            if Some(cntr) != self.bind.cntrs().remote_write {
                core.count(Some(cntr), false);
            }
        }
        if let Some(data) = data {
            let standing = self.bind.rx_cq().map_or(0, |cq| core.standing(cq) * size_of::<Completion>());
            if !self.net.may_keep(core, peer, standing) {
                return;
            }
            let entry = Completion {
                ctx: Ctx(0),
                what: what | What::REMOTE_WRITE | What::REMOTE_CQ_DATA,
                len,
                buf: 0,
                data,
                tag: 0,
                src: self.net.peer(peer).src,
                err: None,
                olen: 0,
            };
            core.complete(self.bind.rx_cq(), entry);
        }
    }

    /// A peer wrote memory here by its link, with data.
    pub(in crate::endpoint) fn written_with(&mut self, core: &mut Core, peer: PeerId, data: u32, len: usize) {
        self.net.peer(peer).has_sent(len);
        self.net.meter(peer, Side::Theirs, How::Device, len);
        self.written(core, peer, Status::Ok, What::RMA, len, Some(data.into()), None::<CntrId>);
    }

    pub(in crate::endpoint) fn on_write(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        (frame, size): (Source<'_>, usize),
        head: &Head,
        flags: Flags,
        fields: &mut Fields<'_>,
    ) -> Handled {
        let n = usize::from(parse_rma(head.aux.get())?.rma);
        let segs = fields.take_many::<RmaSeg>(n)?;
        let off = Head::LEN + size_of_val(segs);
        let len = size - off;
        let (status, cntrs) = match core.mrs.reach(segs, Access::REMOTE_WRITE) {
            Ok(Reached { iov, len: n, cntrs, .. }) if n == len => {
                let ok = self.net.copy_from(frame, off, &iov, 0, len) == len;
                (if ok { Status::Ok } else { unmoved(&iov) }, cntrs)
            }
            Ok(_) => (Status::Malformed, Bound::new()),
            Err(status) => (status, Bound::new()),
        };
        let data = flags.contains(Flags::CQ_DATA).then(|| head.data.get());
        self.written(core, peer, status, What::RMA, len, data, cntrs);
        self.net.answer_write(peer, flags, head.tag.get(), status, len);
        Ok(())
    }

    /// Answers a read in one frame, as the memory is now.
    pub(in crate::endpoint) fn serve_in_one(&mut self, core: &mut Core, serve: &Serve) {
        let (peer, req) = (serve.peer, serve.req);
        let head = Head::new(WireOp::Data, Flags::empty(), 0, req, 0);
        if self.net.send_or_queue_body(peer, head.as_bytes(), &serve.iov, serve.len) {
            return self.bind.was_read(core, serve.cntrs.clone());
        }
        let status = unmoved(&serve.iov);
        self.net.warn_of(peer, status);
        self.net.fin(peer, req, status, 0);
    }

    #[inline]
    pub(in crate::endpoint) fn on_plain_write(
        &mut self,
        core: &mut Core,
        frame: &Frame,
        head: &Head,
        flags: Flags,
    ) -> Option<()> {
        const HEADERS: usize = Head::LEN + size_of::<RmaSeg>();
        if head.aux.get() != Aux::rma(1, 0) {
            return None;
        }
        let bytes: [u8; HEADERS] = self.net.link.peek(frame)?;
        let seg: RmaSeg = take(&mut &bytes[Head::LEN..])?;
        let len = frame.len - HEADERS;
        let (span, cntr) = core.mrs.reach_plain(&seg)?;
        if span.len() != len || !span.can(hmem::Caps::CPU) {
            return None;
        }
        if self.net.link.copy_last(frame, HEADERS, &[span], 0, len) != len {
            return None;
        }
        let data = flags.contains(Flags::CQ_DATA).then(|| head.data.get());
        self.written(core, frame.from, Status::Ok, What::RMA, len, data, cntr);
        self.net.answer_write(frame.from, flags, head.tag.get(), Status::Ok, len);
        Some(())
    }

    /// A write or atomic of ours that requested no answer came to nothing.
    pub(in crate::endpoint) fn on_refused(&mut self, core: &mut Core, peer: PeerId, head: &Head) -> Handled {
        let err = failure(Status::from_u16(head.aux.get())).ok_or(Malformed::Status)?;
        if !self.net.peer(peer).answers.refuse_unacked() {
            return Err(Malformed::Status);
        }
        let what = What::WRITE | if head.data.get() == 1 { What::ATOMIC } else { What::RMA };
        let failed = Failed { ctx: Ctx(0), what, tag: 0, to: self.net.peer(peer).src };
        self.bind.fail_start(core, failed, Tally::PLAIN, err);
        Ok(())
    }
}
