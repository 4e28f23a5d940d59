//! Operations that are under way: what is known of each until it completes.

use arrayvec::ArrayVec;
use wire::{MAX_SEGS, RmaSeg, Seg, Status};

use crate::core::{Bound, Mrs, Segs, Spans, Tally};
use crate::endpoint::coop::copy::{Coop, CoopHelp};
use crate::proto::Reach;
use crate::types::*;
use link_api::{PeerId, PieceCounter};

/// The name of no request: of a message that is not answered.
pub(in crate::endpoint) const NO_REQUEST: u64 = 0;

/// A request that a peer has yet to answer or to feed.
#[derive(Debug)]
pub(in crate::endpoint) enum Request {
    Out(Out),
    In(In),
    Serve(Serve),
    CoopHelp(CoopHelp),
    /// A send that was cancelled, and that its receiver has not answered yet.
    Withdrawn(PeerId),
    /// An answer for what was posted to a peer before this number.
    Flush(PeerId, u64),
}

impl Request {
    pub(in crate::endpoint) fn peer(&self) -> PeerId {
        match self {
            Request::Out(o) => o.peer,
            Request::In(i) => i.peer,
            Request::Serve(s) => s.peer,
            Request::CoopHelp(l) => l.peer,
            Request::Withdrawn(peer) | Request::Flush(peer, _) => *peer,
        }
    }
}

/// Started here.
#[derive(Debug)]
pub(in crate::endpoint) struct Out {
    pub(in crate::endpoint) peer: PeerId,
    /// Its number among what was posted to the peer, from 1 on.
    pub(in crate::endpoint) seq: u64,
    /// Source of a send or write, destination of a read or of what an atomic fetches.
    pub(in crate::endpoint) iov: Spans,
    pub(in crate::endpoint) len: usize,
    /// Bytes sent or received in frames.
    pub(in crate::endpoint) done: usize,
    pub(in crate::endpoint) large: bool,
    /// A message that the peer is to fetch, and that takes it a while.
    pub(in crate::endpoint) offered: bool,
    /// All of it went with its frame: nothing but the peer's answer is to come, and nothing else names it.
    pub(in crate::endpoint) whole: bool,
    pub(in crate::endpoint) followed: Followed,
    /// Its buffer is the application's again once the call that sends it has returned.
    pub(in crate::endpoint) injected: bool,
    /// It goes, or went, through bounce buffers.
    pub(in crate::endpoint) bounced: bool,
    /// The peer requested frames: its request, and how many bytes it wants.
    pub(in crate::endpoint) asked: Option<(u64, usize)>,
    /// This side and the peer copy it.
    pub(in crate::endpoint) coop: Option<Box<Coop>>,
    /// This side has copied its part of it.
    pub(in crate::endpoint) helped: bool,
    /// The link moves its bytes, without the peer.
    pub(in crate::endpoint) one_sided: Option<OneSided>,
    pub(in crate::endpoint) done_as: Done,
}

impl Out {
    pub(in crate::endpoint) fn new(peer: PeerId, iov: Spans, len: usize, done_as: Done) -> Out {
        let followed = Followed::No;
        Out {
            peer,
            seq: 0,
            iov,
            len,
            done: 0,
            large: false,
            offered: false,
            whole: false,
            followed,
            injected: false,
            bounced: false,
            asked: None,
            coop: None,
            helped: false,
            one_sided: None,
            done_as,
        }
    }

    /// A read whose bytes the peer sends in frames.
    pub(in crate::endpoint) fn is_read_in_frames(&self) -> bool {
        self.coop.is_none() && self.done_as.what.contains(What::RMA | What::READ)
    }
}

/// What becomes of an access of the link's that fails.
#[derive(Clone, Copy, Debug)]
pub(in crate::endpoint) enum OneSided {
    /// It is requested of the peer: from or to this place there.
    Repeated(RmaSeg),
    /// It fails.
    Once,
}

/// How an operation started here completes.
#[derive(Clone, Copy, Debug)]
pub(in crate::endpoint) struct Done {
    pub(in crate::endpoint) ctx: Ctx,
    pub(in crate::endpoint) what: What,
    pub(in crate::endpoint) report: bool,
    pub(in crate::endpoint) tag: u64,
    pub(in crate::endpoint) data: u64,
    pub(in crate::endpoint) tally: Tally,
}

/// Whether the bytes of a message that was offered followed it unasked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::endpoint) enum Followed {
    No,
    Yes,
    /// They could not be read.
    Lost,
}

/// A message that is sent, but for what the link keeps of it.
#[derive(Debug)]
pub(in crate::endpoint) struct Unsent {
    pub(in crate::endpoint) peer: PeerId,
    pub(in crate::endpoint) len: usize,
    pub(in crate::endpoint) done_as: Done,
}

/// Bytes that a peer sends in frames because this side asked.
#[derive(Debug)]
pub(in crate::endpoint) struct In {
    pub(in crate::endpoint) peer: PeerId,
    pub(in crate::endpoint) iov: Spans,
    /// Bytes of the message; only `want` of them are requested.
    pub(in crate::endpoint) len: usize,
    pub(in crate::endpoint) want: usize,
    pub(in crate::endpoint) got: usize,
    /// The peer's request, to be answered when all is here.
    pub(in crate::endpoint) req: u64,
    /// The peer knows where to put the bytes, and may say that it has.
    pub(in crate::endpoint) placed: bool,
    /// It was so only if it comes to it before this side does.
    pub(in crate::endpoint) invited: Option<Box<Invited>>,
    /// It may come by way of the sender's bounce buffers, as the sender knows; and from this byte on it
    /// cannot.
    pub(in crate::endpoint) bounces: bool,
    pub(in crate::endpoint) broken: Option<usize>,
    /// Why they are not kept: a device could not take them, or the memory was taken back.
    pub(in crate::endpoint) failed: Option<Status>,
    pub(in crate::endpoint) then: Then,
    /// This side and the peer copy it, instead of frames.
    pub(in crate::endpoint) coop: Option<Box<Coop>>,
}

impl In {
    pub(in crate::endpoint) fn new(
        peer: PeerId,
        iov: Spans,
        len: usize,
        want: usize,
        req: u64,
        then: Then,
    ) -> In {
        let (got, placed, invited, bounces, broken) = (0, false, None, false, None);
        let (failed, coop) = (None, None);
        In { peer, iov, len, want, got, req, placed, invited, bounces, broken, failed, then, coop }
    }
}

/// What is needed of a request that nothing was done for yet ([`crate::proto::Plan::InProgress`]): its name,
/// the sender's memory, and how that is reached.
#[derive(Debug)]
pub(in crate::endpoint) struct Unbegun {
    pub(in crate::endpoint) name: u64,
    pub(in crate::endpoint) segs: Segs,
    pub(in crate::endpoint) direct: Reach,
}

/// What is needed of a request whose sender was invited, should that not come to it.
#[derive(Debug)]
pub(in crate::endpoint) struct Invited {
    pub(in crate::endpoint) share: PieceCounter,
    /// The sender's memory.
    pub(in crate::endpoint) segs: ArrayVec<Seg, MAX_SEGS>,
}

/// What a rendezvous was for.
#[derive(Debug)]
pub(in crate::endpoint) enum Then {
    Recv(MatchedRecv),
    /// `in_order`: no access that the peer posted behind it may take effect before it. `several`: it names
    /// more than one place, and the last one may stand for those before it.
    Write {
        data: Option<u64>,
        cntrs: Bound,
        mrs: Mrs,
        in_order: bool,
        several: bool,
    },
}

impl Then {
    /// Whether no later access of the peer may take effect before.
    pub(in crate::endpoint) fn is_in_order(&self) -> bool {
        matches!(self, Then::Write { in_order: true, .. })
    }
}

/// Memory that a peer reads, in frames or by an operation of either side.
#[derive(Debug)]
pub(in crate::endpoint) struct Serve {
    pub(in crate::endpoint) peer: PeerId,
    pub(in crate::endpoint) iov: Spans,
    pub(in crate::endpoint) len: usize,
    pub(in crate::endpoint) done: usize,
    pub(in crate::endpoint) req: u64,
    /// They count the read.
    pub(in crate::endpoint) cntrs: Bound,
    pub(in crate::endpoint) mrs: Mrs,
    /// No access that the peer posted behind it may take effect before it.
    pub(in crate::endpoint) in_order: bool,
    /// The memory was announced to the peer, which gets the bytes itself.
    pub(in crate::endpoint) lent: bool,
}

/// A message on its way into a posted buffer.
#[derive(Debug)]
pub(crate) struct MatchedRecv {
    pub(in crate::endpoint) iov: Spans,
    pub(in crate::endpoint) room: usize,
    pub(in crate::endpoint) entry: Completion,
    pub(in crate::endpoint) report: bool,
    pub(in crate::endpoint) multi: Option<u64>,
    pub(in crate::endpoint) tally: Tally,
}

/// What is known of a message when it is matched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meta {
    pub(crate) peer: PeerId,
    pub(crate) src: FiAddr,
    pub(crate) tagged: bool,
    pub(crate) tag: u64,
    pub(crate) data: Option<u64>,
    pub(crate) len: usize,
}
