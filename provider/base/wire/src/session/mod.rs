//! How two endpoints of different hosts agree on a connection, and what it carries then: of the tcp link.
//!
//! The side that connects is the caller, the other one the answerer. Numbers are little-endian.
//!
//! | step | from | bytes | what |
//! |---|---|---|---|
//! | 1 | caller | [`Hello::LEN`] | [`Hello`], role 1 |
//! | 2 | answerer | [`Hello::LEN`] + [`MAC`] | [`Hello`], role 2; a MAC over both hellos |
//! | 3 | caller | [`MAC`] | another MAC over both hellos |
//! | 4 | answerer | 8 + [`MAC`] | [`Verdict`]; a MAC over both hellos and it |
//! | 5 | caller | [`MAC`] | after [`Verdict::Accepted`], the confirmation: a MAC over both hellos |
//! | 6 | both | | records: [`RECORD`] bytes of header and a frame or a [`RailNote`] each |
//!
//! The MACs are HMAC-SHA256 with the key of the job ([`JobKey`]), each over a text of its own and both
//! hellos. A hello has a random nonce, so that answers cannot be replayed. No message discloses the key.
//!
//! The caller uses the connection from the verdict on, and the answerer from the confirmation on: a call that
//! its caller has given up meanwhile becomes no connection of the answerer's.
//!
//! The caller's hello says by which name it calls. An answerer that has no such name declines, so that a
//! connection that was led astray on its way joins no two endpoints that did not mean each other.
//!
//! A hello of another version has the first [`PREFIX`] bytes in common with this one. It is answered by a
//! hello of this version without a MAC, so that both sides can say what the matter is.
//!
//! Where both sides want so, a connection gets rails: further connections, by other interfaces, on which long
//! frames travel. The side that was called says where it can be called ([`RailNote::At`]). The other one
//! makes a connection to there by steps 1 to 4 (a rail has [`RailNote::Up`] for a confirmation), with role 3
//! and the rail's number in its hello, and with a key that is derived from the connection's hellos
//! ([`Keys::rails`]) in place of the job's. It says by [`RailNote::Up`] that the rail may be used. A frame of
//! a rail is announced by [`RailNote::Next`] at its place among the records of the connection, which so has
//! the order of all. A rail carries frames alone.
//!
//! A record's header has a tag of the record's number, its length, and the first [`COVERED`] bytes of the
//! frame, by a key that both sides derive from the job's key and both hellos, another one for either
//! direction. Where the job's key is made of a secret it is SipHash-2-4. Else it is made of products of 128
//! bits, of 16 bytes each (docs/design/hosts.md): that takes a quarter of the instructions and finds
//! mistakes, which is all that a key which is no secret can be for.

mod hello;
mod key;
mod meeting;
mod parties;
mod rails;
mod record;

pub use hello::{Hello, PREFIX, Role, Stranger};
pub use key::{JobKey, MAC};
pub use meeting::{
    ATOMICS, Announce, Control, DATA, MEETING, MOST_ADDRESS, Mark, NAME, RAILS, READS, REPEATS, RESTS,
    SECONDS, WRITES, fabric_keys,
};
pub use parties::{Answerer, Caller, Heard, Keys, Next, Proven, VERDICT, Verdict};
pub use rails::{MOST_RAILS, NOTE, RailNote};
pub use record::{COVERED, Opener, RECORD, Sealer, Spoilt};

/// Version of the connection: of everything in this module but the frames.
pub const VERSION: u16 = 5;
