//! Operations, briefly.

use engine::{ADDR_UNSPEC, Ctx, FiAddr, OpFlags, Pattern, Recv, Rma, Send};
use hmem::Span;
use wire::RmaSeg;

/// An untagged message.
pub fn msg(to: FiAddr, iov: &[Span], ctx: usize) -> Send<'_> {
    Send { to, iov, tag: None, data: None, ctx: Ctx(ctx), flags: OpFlags::COMPLETION }
}

/// A tagged message.
pub fn tagged(to: FiAddr, iov: &[Span], tag: u64, ctx: usize) -> Send<'_> {
    Send { tag: Some(tag), ..msg(to, iov, ctx) }
}

/// A receive for untagged messages of any peer.
pub fn from_any(iov: &[Span], ctx: usize) -> Recv<'_> {
    let pattern = Pattern { src: ADDR_UNSPEC, tag: None };
    Recv { pattern, iov, ctx: Ctx(ctx), flags: OpFlags::COMPLETION }
}

/// A receive for messages of any peer with this tag.
pub fn with_tag(iov: &[Span], tag: u64, ctx: usize) -> Recv<'_> {
    Recv { pattern: Pattern { src: ADDR_UNSPEC, tag: Some((tag, 0)) }, ..from_any(iov, ctx) }
}

/// A receive for untagged messages of one peer.
pub fn from(src: FiAddr, iov: &[Span], ctx: usize) -> Recv<'_> {
    Recv { pattern: Pattern { src, tag: None }, ..from_any(iov, ctx) }
}

/// An RMA write.
pub fn write<'a>(to: FiAddr, iov: &'a [Span], remote: &'a [RmaSeg], ctx: usize) -> Rma<'a> {
    Rma { to, write: true, iov, remote, data: None, ctx: Ctx(ctx), flags: OpFlags::COMPLETION }
}

/// An RMA read.
pub fn read<'a>(to: FiAddr, iov: &'a [Span], remote: &'a [RmaSeg], ctx: usize) -> Rma<'a> {
    Rma { write: false, ..write(to, iov, remote, ctx) }
}

/// A piece of a peer's registration.
pub fn there(addr: u64, len: usize, key: u64) -> RmaSeg {
    RmaSeg { addr: addr.into(), len: (len as u64).into(), key: key.into() }
}

/// Bytes that differ from those of any other `seed`, mostly.
pub fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) ^ i >> 8 ^ seed.wrapping_mul(97)) as u8).collect()
}
