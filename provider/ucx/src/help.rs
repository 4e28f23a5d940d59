//! Large puts and gets of peers, of which pieces are copied here ([`crate::share`] has the other side).

use arrayvec::ArrayVec;
use hmem::{Kind, Span};
use link::ShmLink;
use link_api::{Grant, PeerId, PieceCounter, Way};
use wire::Seg;
use xfer::{BYTES_PER_CALL, CoopCopy, MAX_HELPED};

use crate::attr::MAX_IOV;
use crate::frame::word;
use crate::iface::Iface;
use crate::region::{Region, Slot};
use crate::share::{SLOT_AT, TURN, WORDS, request};

/// A peer's put or get of memory here, of which pieces are copied on this side.
#[derive(Debug)]
pub(crate) struct Helping {
    copy: CoopCopy,
    addr: usize,
    /// The registration that was there when the peer told of it.
    region: Region,
    there: ArrayVec<Seg, MAX_IOV>,
}

/// A peer accesses memory of ours, and we may help.
pub(crate) fn help(i: &mut Iface, from: PeerId, put: u8, body: &[u8]) -> Option<()> {
    let (addr, len) = (word(body, 0)? as usize, word(body, 1)?);
    let (piece, name) = (word(body, 2)?, word(body, 3)?);
    let share = PieceCounter { slot: (name >> TURN) as u16, generation: name & ((1 << TURN) - 1) };
    let slot = Slot::unpack(body.get(SLOT_AT..)?)?;
    let parts = body.get(8 * WORDS..)?.chunks_exact(16);
    let there: ArrayVec<Seg, MAX_IOV> = parts
        .map(|part| Some(Seg { addr: word(part, 0)?.into(), len: word(part, 1)?.into() }))
        .collect::<Option<_>>()?;
    // The other way round: what the peer gets is put there. The peer's memory is allowed by its offer.
    let way = if put != 0 { Way::Get } else { Way::Put };
    let copy = CoopCopy::join(from, share, (len, piece), &there, Grant::Request(request(share)), way)?;
    // The peer has closed what had this counter before, and waits for no report of it.
    i.helping.retain(|h| h.copy.peer != from || h.copy.counter.slot != share.slot);
    // SAFETY: the domain outlives its interfaces.
    let md = unsafe { &*i.md };
    // Without help the peer copies all of it.
    let many = i.helping.iter().filter(|h| h.copy.peer == from).count() >= MAX_HELPED;
    if !md.cma
        || many
        || copy.cut.piece > BYTES_PER_CALL
        || slot.is_some_and(|slot| !md.regions.is_current(slot))
    {
        return Some(());
    }
    if let Some(region) = md.regions.access(addr, copy.len, None, |region| region) {
        i.helping.push_back(Helping { copy, addr, region, there });
        go_on(i);
    }
    Some(())
}

/// Copies pieces of the first of the peers' transfers, as many as one call may; how many.
pub(crate) fn go_on(i: &mut Iface) -> u32 {
    let Some(mut h) = i.helping.pop_front() else { return 0 };
    let (link, copy) = (&mut i.link, &mut h.copy);
    // SAFETY: the domain outlives its interfaces.
    let regions = unsafe { &(*i.md).regions };
    let before = copy.mine();
    let over = regions.access(h.addr, copy.len, Some(h.region), |_| {
        // SAFETY: memory that UCP registered with us for its peers to access, valid until it is deregistered, which
        // waits for this.
        let ours = [unsafe { Span::new(h.addr, copy.len, Kind::System) }];
        copy.run(link, &ours, &h.there, BYTES_PER_CALL, |_, _| false)
    });
    let copied = copy.mine() - before;
    // Memory that is deregistered by now is not copied any more.
    if over == Some(false) {
        i.helping.push_back(h);
    } else {
        h.report(&mut i.link);
    }
    i.busy |= !i.helping.is_empty();
    copied.into()
}

impl Helping {
    /// No more pieces are taken.
    fn report(&self, link: &mut ShmLink) {
        let CoopCopy { peer, counter, .. } = self.copy;
        if self.copy.mine() > 0 {
            link.pieces_report(peer, counter, self.copy.mine(), self.copy.failed().is_none());
        }
    }
}

/// Whether a transfer of this peer is helped with.
pub(crate) fn helps(i: &Iface, peer: PeerId) -> bool {
    i.helping.iter().any(|h| h.copy.peer == peer)
}

/// A peer is gone: its transfers are not gone on with.
pub(crate) fn ends(i: &mut Iface, peer: PeerId) {
    i.helping.retain(|h| h.copy.peer != peer);
}

/// The interface closes: peers are told of what was done.
pub(crate) fn closes(i: &mut Iface) {
    for h in std::mem::take(&mut i.helping) {
        h.report(&mut i.link);
    }
}
