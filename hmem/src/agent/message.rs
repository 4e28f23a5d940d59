//! What a process and its agent exchange: packets on a socket, and one piece of shared memory.
//!
//! The memory has [`WORDS`] words of completions, then [`BOUNCES`] buffers for bytes from and to host memory.
//! A copy has a slot; when it is over the agent stores `generation << 1`, or with the lowest bit set if it
//! failed, in the slot's word. A slot has a new generation with each copy, and is used again once its word
//! says that the last one is over.

use crate::share::Export;

/// Both sides have the same.
pub(crate) const VERSION: u32 = 1;
/// Completions.
pub(crate) const WORDS: usize = 4096;
/// Where the buffers begin.
pub(crate) const BOUNCES_AT: usize = WORDS * 8;
/// Bytes of a buffer: one of `stage`, with its head, in whole pages.
pub(crate) const BOUNCE: usize = 260 << 10;
/// Buffers.
pub(crate) const BOUNCES: usize = 33;
/// Bytes of all.
pub(crate) const SHARED: usize = BOUNCES_AT + BOUNCES * BOUNCE;
/// The number that the buffers have among the allocations.
pub(crate) const HOST: u32 = 0;
/// Most parts of one packet.
pub(crate) const MOST: usize = 64;
/// Bytes of the longest packet.
pub(crate) const LONGEST: usize = HEAD + MOST * Move::LEN;

const HEAD: usize = 24;
const HELLO: u32 = 1;
const OPEN: u32 = 2;
const CLOSE: u32 = 3;
const COPY: u32 = 4;

/// A stretch of an allocation to one of another: numbers of allocations, and offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) dst: (u32, u64),
    pub(crate) src: (u32, u64),
    pub(crate) len: u64,
}

impl Move {
    const LEN: usize = 32;
}

/// A packet to the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// The first one, with the memory's descriptor; answered.
    Hello(u32),
    /// An allocation under a number; a packet with its descriptor follows if it has one. Answered. `own`: of
    /// the process itself, and to be opened at once.
    Open { number: u32, own: bool, export: Export },
    /// It is needed no more.
    Close(u32),
    /// To be copied by the device that the allocation `by` is on.
    Copy { slot: u32, generation: u64, by: u32, moves: Vec<Move> },
}

impl Message {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let (kind, a, b, c, d) = match self {
            Message::Hello(version) => (HELLO, *version, 0, 0, 0),
            Message::Open { number, own, .. } => (OPEN, *number, u32::from(*own), 0, 0),
            Message::Close(number) => (CLOSE, *number, 0, 0, 0),
            Message::Copy { slot, generation, by, moves } => {
                (COPY, *slot, *by, *generation, moves.len() as u32)
            }
        };
        let mut out = Vec::with_capacity(LONGEST);
        [kind, a, b, d].iter().for_each(|w| out.extend(w.to_le_bytes()));
        out.extend(u64::to_le_bytes(c));
        match self {
            Message::Open { export, .. } => out.extend(export.to_bytes()),
            Message::Copy { moves, .. } => {
                for m in moves {
                    [m.dst.0, m.src.0].iter().for_each(|w| out.extend(w.to_le_bytes()));
                    [m.dst.1, m.src.1, m.len].iter().for_each(|w| out.extend(w.to_le_bytes()));
                }
            }
            Message::Hello(_) | Message::Close(_) => {}
        }
        out
    }

    /// How many it has copied.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Message::Copy { moves, .. } => moves.iter().fold(0, |n, m| n.saturating_add(m.len)),
            _ => 0,
        }
    }

    /// `None` if it is none of these.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Message> {
        let half = |b: &[u8], at: usize| Some(u32::from_le_bytes(b.get(at..at + 4)?.try_into().ok()?));
        let word = |b: &[u8], at: usize| Some(u64::from_le_bytes(b.get(at..at + 8)?.try_into().ok()?));
        let (a, b, n, generation) = (half(bytes, 4)?, half(bytes, 8)?, half(bytes, 12)?, word(bytes, 16)?);
        let rest = &bytes[HEAD..];
        Some(match half(bytes, 0)? {
            HELLO => Message::Hello(a),
            OPEN => {
                Message::Open { number: a, own: b != 0, export: Export::from_bytes(rest.try_into().ok()?)? }
            }
            CLOSE => Message::Close(a),
            COPY if n as usize <= MOST && rest.len() == n as usize * Move::LEN => {
                let moves = rest.chunks_exact(Move::LEN).map(|m| {
                    let (dst, src) = ((half(m, 0)?, word(m, 8)?), (half(m, 4)?, word(m, 16)?));
                    Some(Move { dst, src, len: word(m, 24)? })
                });
                Message::Copy { slot: a, generation, by: b, moves: moves.collect::<Option<_>>()? }
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::HandleType;

    #[test]
    fn packets_are_what_was_sent_or_none() {
        let export = Export {
            handle_type: HandleType::Legacy,
            id: 5,
            base: 1 << 21,
            len: 4096,
            fd: -1,
            device: [3; 16],
            token: [4; 64],
        };
        let step = Move { dst: (1, 2), src: (3, 4), len: 5 };
        let most = vec![step; MOST];
        for m in [
            Message::Hello(7),
            Message::Open { number: 9, own: true, export },
            Message::Close(8),
            Message::Copy { slot: 1, generation: u64::MAX >> 1, by: 3, moves: most },
            Message::Copy { slot: 1, generation: 2, by: 3, moves: Vec::new() },
        ] {
            let bytes = m.to_bytes();
            assert!(bytes.len() <= LONGEST);
            assert_eq!(Message::from_bytes(&bytes).as_ref(), Some(&m));
            if !matches!(m, Message::Hello(_) | Message::Close(_)) && bytes.len() > HEAD {
                assert_eq!(Message::from_bytes(&bytes[..bytes.len() - 1]), None);
            }
        }
        assert_eq!(Message::from_bytes(&[]), None);
        assert_eq!(Message::from_bytes(&[0; HEAD]), None);
    }

    #[test]
    fn a_buffer_of_a_stage_fits() {
        assert_eq!(BOUNCES_AT % 4096, 0);
        assert_eq!(BOUNCE % 4096, 0);
    }
}
