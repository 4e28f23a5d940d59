//! Frames as they are built.

use hmem::Span;
use wire::{Head, MAX_SEGS, RmaSeg, Seg, put};

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

/// The segments that a peer is told of for these spans, at the end of a frame.
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
