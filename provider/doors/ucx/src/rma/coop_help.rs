//! Large puts and gets of peers, of which pieces are copied here; the other side: [`crate::rma::coop_begin`].

use arrayvec::ArrayVec;
use hmem::{Kind, Span};
use link_api::{Grant, PeerId, PieceCounter, Way};
use wire::Seg;
use wire::ucx::CoopOffer;
use xfer::{BYTES_PER_CALL, CoopCopy, MAX_HELPED};

use crate::frame::{Refusal, take};
use crate::iface::attr::MAX_IOV;
use crate::md::region::Slot;
use crate::rma::coop_state::{Helping, request};
use crate::state::Iface;

/// A peer's announcement of its put or get of memory here: the cooperative copy, the memory and the slot of
/// its key, and the peer's own memory.
type Announced = (CoopCopy, usize, Option<Slot>, ArrayVec<Seg, MAX_IOV>);

fn announced(from: PeerId, put: u8, body: &[u8]) -> Result<Announced, Refusal> {
    let mut rest = body;
    let share: CoopOffer = take(&mut rest)?;
    let mut there = ArrayVec::new();
    while !rest.is_empty() {
        there.try_push(take(&mut rest)?).map_err(|_| "it names too many parts")?;
    }
    let (slot, generation) = share.counter();
    let counter = PieceCounter { slot, generation };
    // The other way round: what the peer gets is put there. The peer's memory is allowed by its offer.
    let way = if put != 0 { Way::Get } else { Way::Put };
    let size = (share.len.get(), share.piece.get());
    let copy = CoopCopy::join(from, counter, size, &there, Grant::Request(request(counter)), way)
        .ok_or("pieces or parts do not make up the transfer")?;
    Ok((copy, share.addr.get() as usize, Slot::from_wire(share.slot), there))
}

/// A peer accesses memory of ours, and we may help.
pub(crate) fn help(i: &mut Iface, from: PeerId, put: u8, body: &[u8]) -> Result<(), Refusal> {
    let (copy, addr, slot, there) = announced(from, put, body)?;
    // The peer has closed what had this counter before, and waits for no report of it.
    i.helping.retain(|h| h.copy.peer != from || h.copy.counter.slot != copy.counter.slot);
    // SAFETY: the domain outlives its interfaces.
    let md = unsafe { &*i.md };
    // Without help the peer copies all of it.
    let many = i.helping.iter().filter(|h| h.copy.peer == from).count() >= MAX_HELPED;
    if !md.cma
        || many
        || copy.cut.piece > BYTES_PER_CALL
        || slot.is_some_and(|slot| !md.regions.is_current(slot))
    {
        return Ok(());
    }
    if let Some(region) = md.regions.access(addr, copy.len, None, |region| region) {
        i.helping.push_back(Helping { copy, addr, region, there });
        go_on(i);
    }
    Ok(())
}

/// Copies pieces of the first of the peers' transfers, as many as one call may; how many.
pub(crate) fn go_on(i: &mut Iface) -> u32 {
    let Some(mut h) = i.helping.pop_front() else { return 0 };
    let (link, copy) = (&mut i.link, &mut h.copy);
    // SAFETY: the domain outlives its interfaces.
    let regions = unsafe { &(*i.md).regions };
    let before = copy.mine();
    let over = regions.access(h.addr, copy.len, Some(h.region), |_| {
        // SAFETY: memory that UCP registered with us for its peers to access, valid until it is deregistered,
        // which waits for this.
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

/// A peer is gone: its transfers are not gone on with.
pub(crate) fn ends(i: &mut Iface, peer: PeerId) {
    i.helping.retain(|h| h.copy.peer != peer);
}

/// The interface closes: peers get the results of what was done.
pub(crate) fn closes(i: &mut Iface) {
    for h in std::mem::take(&mut i.helping) {
        h.report(&mut i.link);
    }
}

#[cfg(test)]
mod tests {
    use wire::put;

    use super::*;

    fn frame(parts: usize) -> Vec<u8> {
        let mut frame = Vec::new();
        let len = 1 << 20;
        put(
            &mut frame,
            &CoopOffer {
                addr: 0x1000.into(),
                len: len.into(),
                piece: (len / 2).into(),
                counter: CoopOffer::name(3, 9),
                slot: Slot::to_wire(None),
                zero: 0.into(),
            },
        );
        (0..parts).for_each(|_| put(&mut frame, &Seg { addr: 0x2000.into(), len: len.into() }));
        frame
    }

    #[test]
    fn what_a_peer_sends_of_its_put_is_understood_or_refused() {
        let (copy, addr, slot, there) = announced(PeerId(5), 1, &frame(MAX_IOV)).unwrap();
        assert_eq!((copy.peer, copy.len, copy.cut.pieces), (PeerId(5), 1 << 20, 2));
        assert_eq!(copy.counter, PieceCounter { slot: 3, generation: 9 });
        assert_eq!((addr, slot, there.len()), (0x1000, None, MAX_IOV));
        let refusal = |bytes: &[u8]| announced(PeerId(5), 1, bytes).map(drop);
        assert_eq!(refusal(&frame(MAX_IOV + 1)), Err("it names too many parts"));
        assert_eq!(refusal(&frame(0)), Err("pieces or parts do not make up the transfer"));
        for short in [0, size_of::<CoopOffer>() - 1, size_of::<CoopOffer>() + 1] {
            assert_eq!(refusal(&frame(1)[..short]), Err("it is too short"), "{short} bytes");
        }
    }
}
