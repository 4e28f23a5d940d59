//! Frames as they are built.

use crate::types::Error;
use hmem::Span;
use wire::{Flags, Head, MAX_SEGS, Op as WireOp, RmaSeg, Seg, put};

/// A frame header, built where it is used.
pub(in crate::endpoint) type Header =
    arrayvec::ArrayVec<u8, { Head::LEN + 8 + MAX_SEGS * size_of::<RmaSeg>() + MAX_SEGS * size_of::<Seg>() }>;

#[inline]
pub(in crate::endpoint) fn push<T: zerocopy::IntoBytes + zerocopy::Immutable + ?Sized>(
    h: &mut Header,
    part: &T,
) {
    let fits = h.try_extend_from_slice(part.as_bytes());
    debug_assert!(fits.is_ok(), "a header longer than any");
}

/// The segments that announce these spans to a peer, at the end of a frame.
pub(in crate::endpoint) fn put_segs(frame: &mut Vec<u8>, iov: &[Span]) {
    for s in iov {
        put(frame, &Seg { addr: s.addr().into(), len: (s.len() as u64).into() });
    }
}

/// A frame that is kept: its bytes are no application's.
pub(in crate::endpoint) fn frame(head: &Head, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(Head::LEN + payload.len());
    put(&mut frame, head);
    frame.extend_from_slice(payload);
    frame
}

/// Asks for so many bytes of the peer's request `theirs`, for `ours`.
pub(in crate::endpoint) fn put_cts(
    frame: &mut Vec<u8>,
    flags: Flags,
    segs: usize,
    theirs: u64,
    ours: u64,
    want: usize,
) {
    put(frame, &Head::new(WireOp::Cts, flags, segs as u16, theirs, ours));
    put(frame, &(want as u64).to_le_bytes());
}

pub(in crate::endpoint) fn handle_frame(handle: &wire::Handle) -> Vec<u8> {
    let mut frame = Vec::with_capacity(Head::LEN + size_of::<wire::Handle>());
    put(&mut frame, &Head::new(WireOp::Handle, Flags::empty(), 0, 0, 0));
    put(&mut frame, handle);
    frame
}

/// The spans as they are announced to a peer, and whether it may follow the addresses.
pub(in crate::endpoint) fn segments(
    iov: &[Span],
) -> Result<(arrayvec::ArrayVec<Seg, MAX_SEGS>, bool), Error> {
    let mut segs = arrayvec::ArrayVec::new();
    for s in iov {
        let seg = Seg { addr: s.addr().into(), len: (s.len() as u64).into() };
        segs.try_push(seg).map_err(|_| Error::Invalid)?;
    }
    Ok((segs, hmem::can(iov, hmem::Caps::CMA)))
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn a_handle_is_a_head_and_the_handle() {
        let handle = wire::Handle {
            how: 1,
            zero: [0; 3],
            fd: 0.into(),
            id: 1.into(),
            base: 2.into(),
            len: 3.into(),
            device: [0; 16],
            token: [0; 64],
        };
        let frame = handle_frame(&handle);
        assert_eq!(&frame[Head::LEN..], handle.as_bytes());
        assert_eq!(Head::of(&frame).and_then(|h| h.op()), Some(WireOp::Handle));
    }
}
