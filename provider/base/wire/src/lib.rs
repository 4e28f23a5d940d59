//! The whole wire format of Strait, and nothing else.
//!
//! A link carries *frames* between two endpoints, in order and without loss. A frame is a
//! [`Head`], then what its [`Op`] says, then (for some) payload. All numbers are little-endian and
//! unaligned. What a peer sends is untrusted: everything here that reads takes `&[u8]` of local
//! bytes and answers `None` instead of guessing.
//!
//! | op | tag | data | aux | behind the head |
//! |---|---|---|---|---|
//! | `Eager` | tag | cq data | – | `req` u64 if `ACK`, payload |
//! | `Rts` | tag | cq data | segments | [`Offer`], segments x [`Seg`] |
//! | `Cts` | sender's req | taker's req | segments if `HANDLES` | bytes wanted, u64, segments x [`Seg`] |
//! | `Data` | taker's req | offset | – | payload |
//! | `Fin` | req | bytes | [`Status`] | – |
//! | `Write` | req, if it has one | cq data | rma segments | rma x [`RmaSeg`], payload |
//! | `WriteRts` | req | cq data | rma, segments | rma x [`RmaSeg`], segments x [`Seg`] |
//! | `Read` | req | – | rma, segments | rma x [`RmaSeg`], segments x [`Seg`] |
//! | `Atomic` | req if any answer | cq data | rma, op, datatype | rma x [`RmaSeg`], operands, compares |
//! | `Result` | req | – | [`Status`] | fetched values |
//! | `CoopFetch` | sender's req | taker's req | segments | [`Pieces`], segments x [`Seg`] |
//! | `CoopRma` | initiator's req | 1: write, 0: read | segments | [`Pieces`], [`RmaSeg`], some [`Seg`] |
//! | `Pause` | – | 1: offer messages, 0: send them | 1: offer the next long ones | – |
//! | `Refused` | – | 1: an atomic, 0: a write | [`Status`] | – |
//! | `CoopDone` | counter's owner's req | pieces put; from bit 32: failed piece + 1 | [`Status`] | – |
//! | `Handle` | – | – | – | [`Handle`] |
//! | `Invite` | sender's req | taker's req | segments | [`Pieces`], segments x [`Seg`] |
//! | `Body` | sender's req | – | – | payload |
//! | `Withdrawn` | sender's req | – | – | – |
//! | `Bounce` | taker's req | offset | 1 | [`Seg`] |
//! | `BounceDone` | sender's req | offset | [`Status`] | – |
//! | `ReadRts` | initiator's req | target's req | segments | segments x [`Seg`] |
//! | `Flush` | req | – | – | – |
//!
//! `Write` and friends address memory as libfabric's `fi_rma_iov` does: an offset or address, a
//! length, and the key of a registration of the target.
//!
//! A `Write` with `ACK` is answered by a `Fin`, and so is a `Flush`. One with a req and without `ACK` is
//! answered if it is refused; otherwise the next `Fin` of a `Write`, an `Atomic` or a `Flush` behind it is
//! its answer, too. One without a req is answered by `Refused` alone.
//!
//! With `HANDLES`, segments are in memory, of a device or of the host, that earlier `Handle` frames of the
//! same sender have exported, and are accessed by these handles. A `Cts` with it asks that the bytes be put
//! into those segments; a `Fin` to the taker's request then says that they were. An `Invite` asks for that
//! too, of a sender that takes the one piece of its counter; when the taker has taken it, it gets the bytes
//! itself.
//!
//! A `Cts` with `HANDLES` and no segments says that the payload may also come by way of bounce buffers of the
//! sender's device. Each `Bounce` names one that has the bytes from an offset on, in order, of memory that
//! `Handle` frames have exported; the buffer is the taker's until its `BounceDone`, or its `Fin` to the
//! request. After a `BounceDone` that says that a part is not to be had, and when all parts have been
//! answered, `Data` frames follow from that part's offset on.
//!
//! A `ReadRts` with `HANDLES` answers a `Read`: the initiator gets the bytes from those segments and answers
//! the target's request by a `Fin`, or asks for them in `Data` frames by a `Cts`. A registration that is
//! closed meanwhile ends it by a `Fin` to the initiator's request.
//!
//! An `Eager` or `Rts` with `COLLECTIVE` is a part of a collective operation, or a notice that one has
//! failed. What its tag means is between the engines; the cq data of a notice says whether a member has ended
//! (1).
//!
//! A `Body` is for an `Rts` of the same sender that was not, or not in time, answered by a `Cts`; one that
//! comes after it is void.
//!
//! A sender that has cancelled a message says so by `Withdrawn`, or by a `Fin` with [`Status::Discarded`] if
//! a `Cts` has requested the payload already. The receiver answers the sender's request by a `Fin` in either
//! case, and until then that request's number is not used again. A `Withdrawn` of a write says that its
//! initiator knows of the write's failure: what is posted behind it is behind that write no more. It is not
//! answered.
//!
//! What the two ends of a channel say on its socket, from the hello on, is in [`channel`]; how a connection
//! between hosts begins, and what it adds to each frame, in [`session`]; the UCX transport's frames, keys and
//! addresses are in [`ucx`].

#![forbid(unsafe_code)]

mod addr;
pub mod channel;
mod frame;
pub mod session;
pub mod ucx;

pub use addr::Addr;
pub use frame::{
    Aux, EAGER_HEAD, Flags, Handle, Head, MAX_SEGS, Offer, Op, Pieces, RmaSeg, Seg, Status, put, take,
    take_many,
};

/// Version of everything in this crate but [`ucx`] and [`session`]; two endpoints of different versions
/// refuse each other.
pub const VERSION: u16 = 14;
