//! How requests end: what their peers are sent then, and which completions are written.

use wire::{Aux, Flags, Head, Op as WireOp, Status, put};

use crate::core::Core;
use crate::endpoint::device::handles::Handles;
use crate::endpoint::malformed::{Handled, Malformed};
use crate::endpoint::net::Net;
use crate::endpoint::parts::adapt::Adapt;
use crate::endpoint::parts::bind::Bind;
use crate::endpoint::parts::header::{put_segs, segments};
use crate::endpoint::parts::request::{Done, NO_REQUEST, OneSided, Out, Request, Then, Unsent};
use crate::endpoint::requests::Requests;
use crate::endpoint::rma::target::Accesses;
use crate::proto::Cut;
use crate::types::*;
use link_api::{Frame, How, PeerId, RmaLink, Side};

/// Ends of requests.
pub(crate) struct Ends<'a, L> {
    pub(in crate::endpoint) net: &'a mut Net<L>,
    pub(in crate::endpoint) requests: &'a mut Requests,
    pub(in crate::endpoint) bind: &'a Bind,
    pub(in crate::endpoint) adapt: &'a mut Adapt,
}

impl<L: RmaLink> Ends<'_, L> {
    #[inline(always)]
    pub(in crate::endpoint) fn accesses(&mut self) -> Accesses<'_, L> {
        Accesses { net: self.net, bind: self.bind }
    }

    #[inline(always)]
    pub(in crate::endpoint) fn handles(&mut self) -> Handles<'_, L> {
        Handles { net: self.net, requests: self.requests }
    }

    /// Completes a request of ours, after the pool has let go of it.
    pub(in crate::endpoint) fn finish_out(&mut self, core: &mut Core, out: &Out, err: Option<Error>) {
        if self.net.metered.is_on() && err.is_none() {
            self.net.metered.out(&self.net.link, out);
        }
        if out.offered {
            self.adapt.note_taken();
        }
        if out.one_sided.is_none() && self.net.peer(out.peer).flow.limits().is_retiring() {
            self.requests.retire(&mut self.net.link, out);
        }
        self.net.peer(out.peer).answers.over(out.seq, out.large);
        match err {
            None => self.bind.finish(core, &out.done_as, out.len, None),
            Some(_) => {
                let to = self.net.peer(out.peer).src;
                self.bind.finish_to(core, &out.done_as, out.len, err, to);
            }
        }
    }

    /// A write or atomic of this number was answered: those before it have been taken in, too, and were right
    /// unless they were answered themselves.
    #[inline(always)]
    pub(in crate::endpoint) fn end_before(&mut self, core: &mut Core, peer: PeerId, seq: u64) {
        if self.net.peer(peer).cumulative.is_some() {
            self.end_all_before(core, peer, seq);
        }
    }

    #[inline(never)]
    fn end_all_before(&mut self, core: &mut Core, peer: PeerId, seq: u64) {
        while let Some(name) = self.net.peer(peer).cumulative.as_mut().and_then(|c| c.next_before(seq)) {
            if let Some(Request::Out(out)) = self.requests.pool.remove(name) {
                self.finish_out(core, &out, None);
            }
        }
    }

    /// All bytes are here, or none will be.
    pub(in crate::endpoint) fn fetched(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        req: u64,
        status: Status,
        len: usize,
        then: Then,
    ) {
        if req != NO_REQUEST {
            self.net.fin(peer, req, status, len);
        }
        if Cut::is_worth(len) {
            self.adapt.note_received();
        }
        match then {
            Then::Recv(matched) => {
                let err = self.net.failure(peer, status);
                self.bind.complete_recv(core, matched, len, err);
            }
            Then::Write { data, cntrs, .. } => {
                self.accesses().written(core, peer, status, What::RMA, len, data, cntrs)
            }
        }
    }

    /// A read of ours was got, or could not be.
    pub(in crate::endpoint) fn read_is_over(&mut self, core: &mut Core, name: u64, ok: bool) {
        if !ok {
            return self.handles().ask_for_read(name);
        }
        let Some(Request::Out(out)) = self.requests.pool.remove(name) else { return };
        if let Some((theirs, want)) = out.asked {
            self.net.fin(out.peer, theirs, Status::Ok, want);
        }
        self.finish_out(core, &out, None);
    }

    /// An access that the link has made without the peer is over. One that failed is requested of the peer;
    /// one that has ended with its connection may be done, and is not repeated.
    pub(in crate::endpoint) fn one_sided_is_over(
        &mut self,
        core: &mut Core,
        name: u64,
        (ok, cut): (bool, bool),
    ) {
        let is_once = matches!(
            self.requests.pool.get_mut(name),
            Some(Request::Out(Out { one_sided: Some(OneSided::Once), .. }))
        );
        if ok || cut || is_once {
            let Some(Request::Out(out)) = self.requests.pool.remove(name) else { return };
            // What is done once has failed without its connection if its result cannot be written.
            let why = if cut { Error::Reset } else { Error::Fault };
            return self.finish_out(core, &out, (!ok).then_some(why));
        }
        let Some(Request::Out(out)) = self.requests.pool.get_mut(name) else { return };
        let Some(OneSided::Repeated(there)) = out.one_sided.take() else { return };
        let (peer, is_write) = (out.peer, out.done_as.what.contains(What::WRITE));
        // It was posted with as many parts as fit.
        let Ok((segs, _)) = segments(&out.iov) else { return };
        let state = self.net.peer(peer);
        out.large = out.len > state.flow.limits().eager;
        if out.large {
            state.answers.becomes_large();
        }
        let op = if is_write { WireOp::WriteRts } else { WireOp::Read };
        let mut frame = Vec::with_capacity(Head::LEN + size_of_val(&there) + size_of_val(&segs[..]));
        put(&mut frame, &Head::new(op, Flags::empty(), Aux::rma(1, segs.len()), name, 0));
        put(&mut frame, &there);
        put_segs(&mut frame, &out.iov);
        self.net.send_or_queue(peer, &frame);
    }

    /// The initiator of a read is done with it.
    pub(in crate::endpoint) fn was_got(&mut self, core: &mut Core, name: u64, status: Status) {
        let Some(serve) = self.requests.end_serve(&mut self.net.link, name) else { return };
        if status == Status::Ok {
            self.net.meter(serve.peer, Side::Theirs, How::Device, serve.len);
            self.bind.was_read(core, serve.cntrs);
        }
    }

    pub(in crate::endpoint) fn on_result(&mut self, core: &mut Core, frame: &Frame, head: &Head) -> Handled {
        let (peer, name) = (frame.from, head.tag.get());
        let len = frame.len - Head::LEN;
        match self.requests.named(peer, name)? {
            Request::Out(out) if out.done_as.what.contains(What::ATOMIC | What::READ) => {}
            _ => return Err(Malformed::Unfit),
        }
        let Some(Request::Out(out)) = self.requests.pool.remove(name) else { return Err(Malformed::Unfit) };
        let ok = if len == out.len {
            self.net.link.copy_last(frame, Head::LEN, &out.iov, 0, len) == len
        } else {
            false
        };
        let err = (!ok).then_some(Error::Io);
        self.finish_out(core, &out, err);
        Ok(())
    }

    /// Completes a message later, of which the link keeps a part, if it has a completion or is counted.
    #[cold]
    #[inline(never)]
    pub(in crate::endpoint) fn finish_later(&mut self, peer: PeerId, len: usize, done_as: Done) {
        let counted = done_as.tally.endpoint && self.bind.cntrs().send.is_some();
        if done_as.report || counted || done_as.tally.also.is_some() {
            self.requests.queues.add_unsent(Unsent { peer, len, done_as });
            self.net.unhurried.set_unsent(true);
            self.net.peer(peer).keep_unsent();
        }
    }

    /// Completes those that have been sent on. How many.
    #[cold]
    #[inline(never)]
    pub(in crate::endpoint) fn finish_sent(&mut self, core: &mut Core) -> usize {
        let mut all = self.requests.queues.take_unsent();
        let before = all.len();
        let mut asked = None;
        all.retain(|unsent| {
            // Most are to one peer.
            let (_, kept) = match asked {
                Some(known @ (of, _)) if of == unsent.peer => known,
                _ => *asked.insert((unsent.peer, self.net.link.keeps(unsent.peer))),
            };
            if kept {
                return true;
            }
            self.net.peer(unsent.peer).let_go_unsent();
            self.bind.finish(core, &unsent.done_as, unsent.len, None);
            false
        });
        self.requests.queues.set_unsent(all);
        self.net.unhurried.set_unsent(self.requests.queues.has_unsent());
        before - self.requests.queues.unsent().len()
    }

    /// A peer is gone: those to it have been sent on before, or have failed.
    pub(in crate::endpoint) fn end_unsent(&mut self, core: &mut Core, peer: PeerId, why: Error) {
        let err = self.net.link.keeps(peer).then_some(why);
        let (to_it, others) = self.requests.queues.take_unsent().into_iter().partition(|u| u.peer == peer);
        self.requests.queues.set_unsent(others);
        let to_it: Vec<Unsent> = to_it;
        for unsent in to_it {
            self.net.peer(peer).let_go_unsent();
            let to = if err.is_some() { self.net.peer(peer).src } else { ADDR_UNSPEC };
            self.bind.finish_to(core, &unsent.done_as, unsent.len, err, to);
        }
        self.net.unhurried.set_unsent(self.requests.queues.has_unsent());
    }

    /// Completes a request whose bytes were to come in frames, if all of them have, and are where they
    /// belong. `failed`: some could not be put there.
    pub(in crate::endpoint) fn all_came(&mut self, core: &mut Core, name: u64, failed: bool) {
        let landing = self.requests.staging.is_landing(name);
        let copying = self.requests.is_in_flight(name);
        let is_over = match self.requests.pool.get_mut(name) {
            // What it requested comes in any case.
            Some(Request::In(i)) => i.got == i.want && i.broken.is_none() && !landing && !copying,
            Some(Request::Out(out)) => failed || (out.done == out.len && !landing && !copying),
            _ => true,
        };
        if !landing || is_over {
            self.requests.queues.drop_stream(name);
        }
        if !is_over {
            return;
        }
        self.requests.staging.cancel(name);
        self.requests.end_invitation(&mut self.net.link, name);
        match self.requests.pool.remove(name) {
            Some(Request::In(i)) => {
                // What did not fit was never requested; the matched receive knows the message's length.
                let status = i.failed.unwrap_or(Status::Ok);
                let how = if i.bounces { How::Device } else { How::Frames };
                self.net.meter(i.peer, Side::Theirs, how, i.len);
                self.fetched(core, i.peer, i.req, status, i.len, i.then);
                if self.net.peer(i.peer).gone.is_some() {
                    self.requests.release(self.net, i.peer);
                }
            }
            Some(Request::Out(out)) if failed => self.finish_out(core, &out, Some(Error::Io)),
            Some(Request::Out(out)) => self.finish_out(core, &out, None),
            Some(Request::Serve(_) | Request::CoopHelp(_) | Request::Withdrawn(_) | Request::Flush(..))
            | None => {}
        }
    }
}
