//! Large puts and gets of peers, of which pieces are copied here ([`crate::share`] has the other side).

use arrayvec::ArrayVec;
use hmem::{Kind, Span};
use link::ShmLink;
use link_api::{PeerId, PieceCounter};
use wire::Seg;

use crate::attr::MAX_IOV;
use crate::frame::word;
use crate::iface::Iface;
use crate::region::{Region, Slot};
use crate::share::{Done, Part, SLOT_AT, TURN, WORDS};

/// Bytes of peers' transfers that one call of progress copies: what else it has to do waits meanwhile.
const GO: usize = 4 << 20;
/// Most transfers of one peer that are helped with at a time; a channel has about that many counters.
const MOST_HELPED: usize = 64;

/// A peer's put or get of memory here, of which pieces are copied on this side.
#[derive(Debug)]
pub(crate) struct Helping {
    part: Part,
    /// The peer puts.
    put: bool,
    addr: usize,
    /// The registration that was there when the peer told of it.
    region: Region,
    there: ArrayVec<Seg, MAX_IOV>,
    done: Done,
}

/// A peer accesses memory of ours, and we may help.
pub(crate) fn help(i: &mut Iface, from: PeerId, put: u8, body: &[u8]) -> Option<()> {
    let (addr, len) = (word(body, 0)? as usize, usize::try_from(word(body, 1)?).ok()?);
    let (piece, name) = (usize::try_from(word(body, 2)?).ok()?, word(body, 3)?);
    let share = PieceCounter { slot: (name >> TURN) as u16, generation: name & ((1 << TURN) - 1) };
    let slot = Slot::unpack(body.get(SLOT_AT..)?)?;
    let parts = body.get(8 * WORDS..)?.chunks_exact(16);
    let there: ArrayVec<Seg, MAX_IOV> = parts
        .map(|part| Some(Seg { addr: word(part, 0)?.into(), len: word(part, 1)?.into() }))
        .collect::<Option<_>>()?;
    let total = there.iter().try_fold(0u64, |n, part| n.checked_add(part.len.get()))?;
    if total < len as u64 {
        return None;
    }
    let pieces = engine::pieces_by(len, piece)?;
    // The peer has closed what had this counter before, and waits for no report of it.
    i.helping.retain(|h| h.part.peer != from || h.part.share.slot != share.slot);
    // SAFETY: the domain outlives its interfaces.
    let md = unsafe { &*i.md };
    // Without help the peer copies all of it.
    let many = i.helping.iter().filter(|h| h.part.peer == from).count() >= MOST_HELPED;
    if !md.cma || many || piece > GO || slot.is_some_and(|slot| !md.regions.is_current(slot)) {
        return Some(());
    }
    if let Some(region) = md.regions.access(addr, len, None, |region| region) {
        let part = Part { peer: from, share, len, piece, pieces };
        let put = put != 0;
        i.helping.push_back(Helping { part, put, addr, region, there, done: Done::NOTHING });
        go_on(i);
    }
    Some(())
}

/// Copies pieces of the first of the peers' transfers, `GO` bytes; how many.
pub(crate) fn go_on(i: &mut Iface) -> u32 {
    let Some(mut h) = i.helping.pop_front() else { return 0 };
    let (link, done) = (&mut i.link, &mut h.done);
    // SAFETY: the domain outlives its interfaces.
    let regions = unsafe { &(*i.md).regions };
    let before = done.pieces;
    let over = regions.access(h.addr, h.part.len, Some(h.region), |_| {
        // SAFETY: memory that UCP registered with us for its peers to access, valid until it is deregistered, which
        // waits for this.
        let ours = [unsafe { Span::new(h.addr, h.part.len, Kind::System) }];
        // The other way round: what the peer gets is put there.
        h.part.copy(link, false, (&ours, &h.there, !h.put), done, GO)
    });
    let copied = done.pieces - before;
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
        if self.done.pieces > 0 {
            link.pieces_report(self.part.peer, self.part.share, self.done.pieces, self.done.good);
        }
    }
}

/// Whether a transfer of this peer is helped with.
pub(crate) fn helps(i: &Iface, peer: PeerId) -> bool {
    i.helping.iter().any(|h| h.part.peer == peer)
}

/// A peer is gone: its transfers are not gone on with.
pub(crate) fn ends(i: &mut Iface, peer: PeerId) {
    i.helping.retain(|h| h.part.peer != peer);
}

/// The interface closes: peers are told of what was done.
pub(crate) fn closes(i: &mut Iface) {
    for h in std::mem::take(&mut i.helping) {
        h.report(&mut i.link);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_of_progress_copies_no_more_than_a_go() {
        const LEN: usize = 10 * GO + 5;
        let (piece, pieces) = engine::pieces(LEN);
        let part =
            Part { peer: PeerId(0), share: PieceCounter { slot: 0, generation: 1 }, len: LEN, piece, pieces };
        let (mut done, mut next, mut copied, mut calls) = (Done::NOTHING, 0, vec![], 0);
        loop {
            let before = copied.len();
            let over = part.go(
                &mut done,
                GO,
                &mut next,
                |next| (*next < pieces).then(|| std::mem::replace(next, *next + 1)),
                |_, off, len| {
                    copied.push((off, len));
                    true
                },
            );
            calls += 1;
            let bytes: usize = copied[before..].iter().map(|(_, len)| len).sum();
            assert!(bytes < GO + piece, "{bytes} bytes in one call");
            if over {
                break;
            }
        }
        assert!(calls >= 10, "{calls} calls");
        assert_eq!((done.pieces, done.good), (pieces, true));
        // Each byte once.
        assert_eq!(copied.iter().try_fold(0, |at, (off, len)| (at == *off).then_some(at + len)), Some(LEN));
    }
}
