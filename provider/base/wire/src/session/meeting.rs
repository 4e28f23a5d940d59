//! What two endpoints that have a connection say on it to agree on a fabric besides, which carries their
//! frames then; and what is before each message there.
//!
//! A control message is a frame on the connection. It begins with [`MAGIC`], which no frame of an endpoint
//! begins with.
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | [`MAGIC`] |
//! | 8 | kind: 1 announce, 2 settle, 3 bye, 4 bye received, 5 rest, 6 rest received, 7 second |
//! | 9 | of a settle: 1 the fabric, 2 the connection (see below); of 6: 1 it is closed, 2 it stays |
//! | 10..12 | version of all this (u16) |
//! | 12..16 | of a bye and a rest: how many messages were sent by the fabric (u32) |
//! | 16..20 | of a rest: how many were taken (u32) |
//! | 12..14 | of a second: bytes of the address (u16), which is at 16 and behind; 0: there is none |
//!
//! Where each end connects to the other before either can send, the end that does not decide says 1 once it
//! has connected.
//!
//! A rest proposes to close a connection of the fabric by which nothing goes: both have to say of themselves
//! that they can.
//!
//! A second announces another connection of the fabric between the same two, besides the first: both have to
//! say of themselves that they can. Each end says so once; one that has said it has no second one does not.
//!
//! An announce goes on:
//!
//! | bytes | what |
//! |---|---|
//! | 16..20, 20..24 | `slot`, `generation` |
//! | 24..28, 28..32 | longest message, how many may be under way |
//! | 32..36, 36..40 | `protocol`, `format` |
//! | 40..42 | bytes of the address, 0 where there is no fabric |
//! | 42..44 | what it can do: 1 memory is read by the fabric, in messages of sort 5 to 9 (u16) |
//! | 44..48 | 0 |
//! | 48..80 | name of what is below, padded with zeros |
//! | 80..112 | random bytes |
//! | 112.. | the address |
//!
//! A message on the fabric is [`Mark`] (12 bytes: the receiver's slot and generation, number of the message
//! in its direction), the header of a record ([`super::RECORD`]), and what that covers: its sort (u32: 1 a
//! frame, 2 ping, 3 pong, 4 room, 5 memory is taken back, 6 it is left, 7 its request is renewed, 8 a read
//! has ended before its time, 9 nothing is lent any more), how many messages of the other side the sender is
//! done with (u32), and the frame, or of 5 to 7 the request's name (u64; 0: all), of 8 and 9 the generation
//! of what was lent (u64). The records' keys are made of both announces.
//!
//! The token of a handle is key, address and generation (u64 each), and the length (u8) and bytes of the
//! address of the endpoint that lends.

use super::key::JobKey;
use super::{Keys, Role};

/// What control messages begin with.
pub const MAGIC: [u8; 8] = *b"\x93STOFI\x01\n";
/// Version of what is in this module.
pub const MEETING: u16 = 2;
/// [`Announce::can`]: memory is read by the fabric.
pub const READS: u16 = 1;
/// A message of the meeting may come again: it is the same one, byte by byte.
pub const REPEATS: u16 = 2;
/// [`Announce::can`]: memory is written by the fabric, too.
pub const WRITES: u16 = 4;
/// [`Announce::can`]: so it is with data that the target reports.
pub const DATA: u16 = 8;
/// [`Announce::can`]: words of it are changed in one step, which no processor divides.
pub const ATOMICS: u16 = 16;
/// [`Announce::can`]: a connection by which nothing goes is closed, and made again ([`Control::Rest`]).
pub const RESTS: u16 = 32;
/// [`Announce::can`]: there may be a second connection besides the first ([`Control::Second`]).
pub const SECONDS: u16 = 64;
/// [`Announce::can`]: long accesses go in parts by connections of further ports ([`Control::Second`]).
pub const RAILS: u16 = 128;
/// Longest address.
pub const MOST_ADDRESS: usize = 256;
/// Bytes of a name.
pub const NAME: usize = 32;
/// Bytes before the address.
const FRONT: usize = 112;
/// Bytes of a message that is no announce.
const SHORT: usize = 16;
/// And of one that proposes to close.
const REST: usize = 20;

/// What an endpoint says of its end of a fabric to one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announce {
    /// Where messages of the peer belong.
    pub slot: u32,
    /// Which of those that had the slot.
    pub generation: u32,
    /// Longest message that it takes.
    pub most: u32,
    /// How many messages may be under way to it.
    pub window: u32,
    /// What is spoken below, by numbers of its own.
    pub protocol: u32,
    /// What sort of address it has.
    pub format: u32,
    /// What it can do besides: [`READS`], [`REPEATS`], [`WRITES`], [`DATA`], [`ATOMICS`],
    /// [`RESTS`], [`SECONDS`], [`RAILS`].
    pub can: u16,
    /// The name of what is below.
    pub name: [u8; NAME],
    /// Random bytes.
    pub nonce: [u8; 32],
    /// The address, of no bytes where there is no fabric.
    pub address: Vec<u8>,
}

/// A control message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// An end of a fabric.
    Announce(Box<Announce>),
    /// Frames go by the fabric from now on, or (`false`) by the connection. `true` of the end that does not
    /// decide: it has connected to the other one, where ends connect.
    Settle(bool),
    /// So many messages were sent by the fabric, and there will be no more.
    Bye(u32),
    /// All of them have come.
    ByeHeard,
    /// So many messages were sent by the fabric, and so many taken, and nothing is under way: the connection
    /// may be closed.
    Rest(u32, u32),
    /// It is closed, or stays.
    RestHeard(bool),
    /// Where a second connection of the fabric leads to, of no bytes if there is none; or what the fabric
    /// says of those of further ports.
    Second(Vec<u8>),
    /// It is of another version.
    Other(u16),
}

fn word(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| b[at + i]))
}

impl Control {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; SHORT];
        out[..8].copy_from_slice(&MAGIC);
        out[10..12].copy_from_slice(&MEETING.to_le_bytes());
        match self {
            Control::Announce(said) => {
                out[8] = 1;
                for n in [said.slot, said.generation, said.most, said.window, said.protocol, said.format] {
                    out.extend(n.to_le_bytes());
                }
                out.extend((said.address.len() as u16).to_le_bytes());
                out.extend(said.can.to_le_bytes());
                out.extend([0; 4]);
                out.extend(said.name);
                out.extend(said.nonce);
                out.extend(&said.address);
            }
            Control::Settle(fabric) => (out[8], out[9]) = (2, if *fabric { 1 } else { 2 }),
            Control::Bye(sent) => {
                out[8] = 3;
                out[12..16].copy_from_slice(&sent.to_le_bytes());
            }
            Control::ByeHeard => out[8] = 4,
            Control::Rest(sent, came) => {
                out[8] = 5;
                out[12..16].copy_from_slice(&sent.to_le_bytes());
                out.extend(came.to_le_bytes());
            }
            Control::RestHeard(closes) => (out[8], out[9]) = (6, if *closes { 1 } else { 2 }),
            Control::Second(address) => {
                out[8] = 7;
                out[12..14].copy_from_slice(&(address.len() as u16).to_le_bytes());
                out.extend(address);
            }
            Control::Other(version) => out[10..12].copy_from_slice(&version.to_le_bytes()),
        }
        out
    }

    /// Whether a frame that begins so may be one.
    #[inline]
    pub fn is_one(front: &[u8]) -> bool {
        front.starts_with(&MAGIC)
    }

    /// Whether such a front is of an announce, in whatever version: its sender waits for what the other end
    /// says of the fabric.
    pub fn awaits_answer(front: &[u8]) -> bool {
        Control::is_one(front) && front.get(8) == Some(&1)
    }

    /// What these bytes say; `None` if they make no sense.
    pub fn decode(b: &[u8]) -> Option<Control> {
        if !Control::is_one(b) || b.len() < SHORT {
            return None;
        }
        let version = u16::from_le_bytes([b[10], b[11]]);
        if version != MEETING {
            return Some(Control::Other(version));
        }
        match (b[8], b[9], b.len()) {
            (1, 0, FRONT..) => {
                let len = usize::from(u16::from_le_bytes([b[40], b[41]]));
                let address = b.get(FRONT..).filter(|a| a.len() == len && len <= MOST_ADDRESS)?.to_vec();
                Some(Control::Announce(Box::new(Announce {
                    slot: word(b, 16),
                    generation: word(b, 20),
                    most: word(b, 24),
                    window: word(b, 28),
                    protocol: word(b, 32),
                    format: word(b, 36),
                    can: u16::from_le_bytes([b[42], b[43]]),
                    name: std::array::from_fn(|i| b[48 + i]),
                    nonce: std::array::from_fn(|i| b[80 + i]),
                    address,
                })))
            }
            (2, 1, SHORT) => Some(Control::Settle(true)),
            (2, 2, SHORT) => Some(Control::Settle(false)),
            (3, 0, SHORT) => Some(Control::Bye(word(b, 12))),
            (4, 0, SHORT) => Some(Control::ByeHeard),
            (5, 0, REST) => Some(Control::Rest(word(b, 12), word(b, 16))),
            (6, 1, SHORT) => Some(Control::RestHeard(true)),
            (6, 2, SHORT) => Some(Control::RestHeard(false)),
            (7, 0, len) => {
                let said = usize::from(u16::from_le_bytes([b[12], b[13]]));
                let is_one = said <= MOST_ADDRESS && len == SHORT + said;
                is_one.then(|| Control::Second(b[SHORT..].to_vec()))
            }
            _ => None,
        }
    }
}

/// What is before a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The receiver's slot for the sender.
    pub slot: u32,
    /// Which of those that had it.
    pub generation: u32,
    /// The number of the message, from 0 on.
    pub number: u32,
}

impl Mark {
    /// Bytes of one.
    pub const LEN: usize = 12;

    /// Its bytes.
    #[inline]
    pub fn encode(&self) -> [u8; Mark::LEN] {
        let mut out = [0; Mark::LEN];
        out[..4].copy_from_slice(&self.slot.to_le_bytes());
        out[4..8].copy_from_slice(&self.generation.to_le_bytes());
        out[8..].copy_from_slice(&self.number.to_le_bytes());
        out
    }

    /// What these bytes say.
    #[inline]
    pub fn decode(b: &[u8; Mark::LEN]) -> Mark {
        let word = |at: usize| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        Mark { slot: word(0), generation: word(4), number: word(8) }
    }
}

/// The keys of the messages between two ends, of which the one whose name is lower is the caller: from what
/// both have announced, as bytes.
pub fn fabric_keys(job: &JobKey, caller: &[u8], answerer: &[u8], role: Role) -> Keys {
    let len = (caller.len() as u64).to_le_bytes();
    super::parties::halves(job, job.sign_parts(b"strait ofi records", &[&len, caller, answerer]), role)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announce() -> Announce {
        Announce {
            slot: 3,
            generation: 0x0102_0304,
            most: 65_536,
            window: 32,
            protocol: 11,
            format: 2,
            can: READS,
            name: std::array::from_fn(|i| *b"tcp;ofi_rxm".get(i).unwrap_or(&0)),
            nonce: [0xab; 32],
            address: vec![1, 2, 3],
        }
    }

    /// The bytes are a promise: a change here is a new [`MEETING`].
    #[test]
    fn golden_bytes() {
        let hex = |b: &[u8]| b.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let golden = [
            "9353544f4649010a 01 00 0200 00000000",
            "03000000 04030201 00000100 20000000 0b000000 02000000 0300 0100 00000000",
            "7463703b6f66695f72786d 000000000000000000000000000000000000000000",
            &"ab".repeat(32),
            "010203",
        ];
        let said = Control::Announce(Box::new(announce()));
        assert_eq!(hex(&said.encode()), golden.concat().replace(' ', ""));
        assert_eq!(hex(&Control::Settle(true).encode()), "9353544f4649010a0201020000000000");
        assert_eq!(hex(&Control::Bye(258).encode()), "9353544f4649010a0300020002010000");
        assert_eq!(hex(&Control::Rest(258, 3).encode()), "9353544f4649010a050002000201000003000000");
        assert_eq!(hex(&Control::RestHeard(false).encode()), "9353544f4649010a0602020000000000");
        assert_eq!(hex(&Control::Second(vec![8, 9]).encode()), "9353544f4649010a07000200020000000809");
        let mark = Mark { slot: 1, generation: 2, number: 0x0a0b };
        assert_eq!(hex(&mark.encode()), "01000000020000000b0a0000");
        assert_eq!(Mark::decode(&mark.encode()), mark);
    }

    #[test]
    fn what_was_said_is_understood_and_nonsense_is_not() {
        let all = [
            Control::Announce(Box::new(announce())),
            Control::Announce(Box::new(Announce { address: Vec::new(), ..announce() })),
            Control::Settle(true),
            Control::Settle(false),
            Control::Bye(7),
            Control::ByeHeard,
            Control::Rest(7, 8),
            Control::RestHeard(true),
            Control::RestHeard(false),
            Control::Second(vec![1, 2, 3]),
            Control::Second(Vec::new()),
            Control::Other(9),
        ];
        for said in all {
            let bytes = said.encode();
            assert_eq!(Control::decode(&bytes), Some(said.clone()));
            for len in 0..bytes.len() {
                assert_eq!(Control::decode(&bytes[..len]), None, "{len} bytes of {said:?}");
            }
            let longer = [&bytes[..], &[0]].concat();
            assert!(matches!(Control::decode(&longer), None | Some(Control::Other(_))), "{said:?}");
        }
        let mut long = Control::Announce(Box::new(Announce { address: vec![0; 257], ..announce() })).encode();
        assert_eq!(Control::decode(&long), None);
        long[0] ^= 1;
        assert!(!Control::is_one(&long));
    }

    #[test]
    fn ends_with_the_same_announces_and_key_understand_each_other() {
        let key = JobKey::from_secret(b"key");
        let mut one = fabric_keys(&key, b"a", b"bc", Role::Caller);
        let mut other = fabric_keys(&key, b"a", b"bc", Role::Answerer);
        let header = one.sealer.seal(2, b"hi");
        assert_eq!(other.opener.open(&header, b"hi"), Ok(()));
        let header = other.sealer.seal(2, b"ho");
        assert_eq!(one.opener.open(&header, b"ho"), Ok(()));
        let others = [
            fabric_keys(&JobKey::from_secret(b"quay"), b"a", b"bc", Role::Answerer),
            fabric_keys(&key, b"ab", b"c", Role::Answerer),
            fabric_keys(&key, b"a", b"bd", Role::Answerer),
            fabric_keys(&key, b"a", b"bc", Role::Caller),
        ];
        for mut stranger in others {
            let header = fabric_keys(&key, b"a", b"bc", Role::Caller).sealer.seal(2, b"hi");
            assert!(stranger.opener.open(&header, b"hi").is_err());
        }
    }
}
