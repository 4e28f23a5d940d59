//! Frames that make no sense: which field of which does not, and what is said of it.

use arrayvec::ArrayVec;
use wire::{Aux, Flags, Head, MAX_SEGS, Op as WireOp, RmaSeg, Seg, take, take_many};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::endpoint::parts::request::{Out, Request};
use crate::pool::Pool;
use link_api::PeerId;

/// Why a handler refuses a frame. A frame that is refused has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Malformed {
    /// It is shorter than a head.
    Head,
    /// There is no such op.
    Op,
    /// A flag is unknown, or for what the endpoint does not take part in.
    Flags,
    /// It names memory by means that its link does not have.
    Means,
    /// Fewer bytes are behind the head than these, which flags and `aux` ask for.
    Short(usize),
    /// `aux` counts too many segments.
    Aux,
    /// The segments are not as long as the message.
    Segments,
    /// Lengths do not add up.
    Lengths,
    /// Pieces or segments do not make up the transfer.
    Pieces,
    /// `tag` names no operation under way.
    NoRequest,
    /// `tag` names an operation with another peer.
    OtherPeer,
    /// `data`, `aux` or the length do not fit the operation that `tag` names.
    Unfit,
    /// `data` or `aux` is neither 0 nor 1, or both are 1.
    Data,
    /// It refuses what was not posted.
    Status,
}

/// What a handler answers.
pub(super) type Handled = Result<(), Malformed>;

/// The fields of a frame behind its head.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    rest: &'a [u8],
    taken: usize,
}

impl<'a> Fields<'a> {
    pub(super) fn new(rest: &'a [u8]) -> Self {
        Fields { rest, taken: 0 }
    }

    /// The next field.
    pub(super) fn take<T: FromBytes>(&mut self) -> Result<T, Malformed> {
        self.taken += size_of::<T>();
        take(&mut self.rest).ok_or(Malformed::Short(self.taken))
    }

    /// The next `n` fields.
    pub(super) fn take_many<T>(&mut self, n: usize) -> Result<&'a [T], Malformed>
    where
        T: FromBytes + Immutable + KnownLayout + Unaligned,
    {
        self.taken += n * size_of::<T>();
        take_many(&mut self.rest, n).ok_or(Malformed::Short(self.taken))
    }

    /// What is accessed here, and the segments of the initiator's memory with their bytes, as many as `aux`
    /// counts of each.
    pub(super) fn take_access(&mut self, aux: u16) -> Result<(&'a [RmaSeg], &'a [Seg], u64), Malformed> {
        let aux = parse_rma(aux)?;
        let rma = self.take_many::<RmaSeg>(aux.rma.into())?;
        let segs = self.take_many::<Seg>(aux.segs.into())?;
        Ok((rma, segs, bytes_of(segs)?))
    }

    /// `n` segments.
    pub(super) fn take_segs(&mut self, n: usize) -> Result<ArrayVec<Seg, MAX_SEGS>, Malformed> {
        Ok(self.take_many::<Seg>(n)?.iter().copied().collect())
    }
}

/// How many segments `aux` counts.
pub(super) fn parse_segs(aux: u16) -> Result<usize, Malformed> {
    Some(usize::from(aux)).filter(|n| *n <= MAX_SEGS).ok_or(Malformed::Aux)
}

/// The counts of an access.
pub(super) fn parse_rma(aux: u16) -> Result<Aux, Malformed> {
    Aux::parse_rma(aux).ok_or(Malformed::Aux)
}

/// Bytes of these segments.
pub(super) fn bytes_of(segs: &[Seg]) -> Result<u64, Malformed> {
    segs.iter().try_fold(0u64, |n, s| n.checked_add(s.len.get())).ok_or(Malformed::Lengths)
}

/// Its head, what it asks for, and how.
#[inline(always)]
pub(super) fn parse_head(frame: &[u8]) -> Result<(Head, WireOp, Flags), Malformed> {
    let head: Head = take(&mut &frame[..]).ok_or(Malformed::Head)?;
    Ok((head, head.op().ok_or(Malformed::Op)?, head.flags().ok_or(Malformed::Flags)?))
}

/// The operation with this peer that a frame names.
pub(super) fn request_of(
    requests: &mut Pool<Request>,
    peer: PeerId,
    name: u64,
) -> Result<&mut Request, Malformed> {
    let request = requests.get_mut(name).ok_or(Malformed::NoRequest)?;
    match request {
        _ if request.peer() != peer => Err(Malformed::OtherPeer),
        // The link does it by itself, and no frame has named it to the peer.
        Request::Out(Out { one_sided: Some(_), .. }) => Err(Malformed::NoRequest),
        _ => Ok(request),
    }
}

pub(super) fn describe(head: Option<[u8; Head::LEN]>, len: usize, why: Malformed) -> String {
    let Some(bytes) = head else {
        return format!("shorter than a head of {} bytes", Head::LEN);
    };
    let head: Head = zerocopy::transmute!(bytes);
    let Some(op) = head.op() else { return format!("op {} is unknown", bytes[0]) };
    let (aux, tag, data) = (head.aux.get(), head.tag.get(), head.data.get());
    let body = len - Head::LEN;
    let what = match why {
        Malformed::Head | Malformed::Op => "no such op".into(),
        Malformed::Flags => format!("flags {:#x}, of which this endpoint does not take all", bytes[1]),
        Malformed::Means => {
            format!("flags {:#x}: the link that it came by has no such access to a peer's memory", bytes[1])
        }
        Malformed::Short(least) => {
            format!("{body} bytes behind the head, of at least {least} that flags and aux {aux:#x} ask for")
        }
        Malformed::Aux => format!("aux {aux:#x} counts more than {MAX_SEGS} segments"),
        Malformed::Segments => "the segments are not as long as the message".into(),
        Malformed::Lengths => format!("its lengths do not add up (aux {aux:#x}, {body} bytes)"),
        Malformed::Pieces => "pieces or segments do not make up the transfer".into(),
        Malformed::NoRequest => format!("tag {tag:#x} names no operation under way"),
        Malformed::OtherPeer => format!("tag {tag:#x} names an operation with another peer"),
        Malformed::Unfit => {
            format!("data {data:#x}, aux {aux:#x} or {body} bytes do not fit operation {tag:#x}")
        }
        Malformed::Data => format!("data {data:#x}, aux {aux:#x}: each is 0 or 1, and not both 1"),
        Malformed::Status => format!("status {aux} for an operation that this endpoint did not post"),
    };
    format!("{op:?}: {what}")
}
