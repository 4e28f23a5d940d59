//! Long reads whose initiator gets the bytes ([`link_api::RmaCaps::HOST_GETS`], `DEVICE_GETS`).
//!
//! The target checks key, range and access as for any read, and answers with handles of the memory, for this
//! request alone, and a `ReadRts` that names it. The initiator gets the bytes, and says so (`Fin`); if that
//! fails it asks for frames (`Cts`). A registration that is closed meanwhile waits until the initiator does
//! not read any more ([`RmaLink::revoke`]).

use wire::{Flags, Head, Op as WireOp, Status, put};

use crate::endpoint::device::handles::Handles;
use crate::endpoint::malformed::{Fields, Handled, Malformed, bytes_of, parse_segs};
use crate::endpoint::parts::header::{handle_frame, put_cts, put_segs, segments};
use crate::endpoint::parts::request::{Request, Serve};
use crate::types::*;
use link_api::{Direct, Grant, HandleNote, PeerId, RmaLink, Way};

impl<L: RmaLink> Handles<'_, L> {
    /// Answers a read with the handles of the memory. If that cannot be, the request comes back.
    pub(in crate::endpoint) fn lend(&mut self, request: Serve) -> Option<Serve> {
        let (peer, theirs, iov) = (request.peer, request.req, request.iov.clone());
        let found = segments(&iov).ok().and_then(|_| self.net.link.export_handles(peer, &iov, Way::Get));
        let Some(lacking) = found else {
            self.requests.retire_memory(&mut self.net.link, peer, &iov);
            return Some(request);
        };
        for handle in &lacking {
            self.net.send_or_queue(peer, &handle_frame(handle));
            self.net.link.note_handle(peer, HandleNote::Exported(handle));
        }
        let name = self.begin_serve(Serve { lent: true, ..request });
        let mut frame = Vec::with_capacity(Head::LEN + size_of_val(&iov[..]));
        put(&mut frame, &Head::new(WireOp::ReadRts, Flags::HANDLES, iov.len() as u16, theirs, name));
        put_segs(&mut frame, &iov);
        self.net.send_or_queue(peer, &frame);
        None
    }

    /// The target of a read of ours says where the bytes are.
    pub(in crate::endpoint) fn on_read_rts(
        &mut self,
        peer: PeerId,
        head: &Head,
        flags: Flags,
        fields: &mut Fields<'_>,
    ) -> Handled {
        let segs = fields.take_segs(parse_segs(head.aux.get())?)?;
        let (name, theirs) = (head.tag.get(), head.data.get());
        if self.requests.is_past(&self.net.link, peer, name) {
            self.net.fin(peer, theirs, Status::Discarded, 0);
            return Ok(());
        }
        let Request::Out(out) = self.requests.named(peer, name)? else { return Err(Malformed::Unfit) };
        let fits = flags == Flags::HANDLES
            && out.done_as.what.contains(What::RMA | What::READ)
            && out.coop.is_none()
            && out.asked.is_none()
            && out.done == 0
            && bytes_of(&segs)? == out.len as u64;
        if !fits {
            return Err(Malformed::Unfit);
        }
        out.asked = Some((theirs, out.len));
        let (iov, len) = (out.iov.clone(), out.len);
        let access = Direct::new(Grant::Request(theirs), &segs, &iov, len);
        if self.requests.start_operation(&mut self.net.link, name, Way::Get, peer, &access).is_err() {
            self.ask_for_read(name);
        }
        Ok(())
    }

    /// Asks for the bytes of a read in frames.
    pub(in crate::endpoint) fn ask_for_read(&mut self, name: u64) {
        let Some(Request::Out(out)) = self.requests.pool.get_mut(name) else { return };
        let Some((theirs, want)) = out.asked else { return };
        let peer = out.peer;
        let mut frame = Vec::with_capacity(Head::LEN + 8);
        put_cts(&mut frame, Flags::empty(), 0, theirs, name, want);
        self.net.send_or_queue(peer, &frame);
    }

    /// The initiator of a read asks for frames.
    pub(in crate::endpoint) fn serve_in_frames(&mut self, name: u64, theirs: u64, want: u64) -> Handled {
        let Some(Request::Serve(serve)) = self.requests.pool.get_mut(name) else {
            return Err(Malformed::NoRequest);
        };
        if theirs != serve.req || want != serve.len as u64 {
            return Err(Malformed::Unfit);
        }
        serve.lent = false;
        let (peer, iov) = (serve.peer, serve.iov.clone());
        self.requests.retire_memory(&mut self.net.link, peer, &iov);
        self.requests.queues.add_stream(name);
        Ok(())
    }
}
