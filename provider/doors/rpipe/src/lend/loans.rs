//! Memory that a process lends to a peer: how it is offered, taken over, and given back.
//!
//! | message | from, to | says | grants |
//! |---|---|---|---|
//! | `LEND` | lender, borrower | so many bytes are lent | the memory |
//! | `TAKEN` | borrower, lender | the memory was granted: the lender has nothing more to do | – |
//! | `OVER` | lender, borrower | the memory is taken back | – |
//! | `BACK` | borrower, lender | no operation on the memory is under way, and none follows | – |
//!
//! `TAKEN` and `BACK` are sent by whichever call of the borrower's process makes progress. Memory that is
//! taken back stays until `BACK`, so that no operation ends in memory of something else. Nothing is trusted:
//! what cannot be is ignored, with a warning.

use std::collections::HashMap;

use crate::{Error, Grant, Promise, Rank, Region, RegionId, Token};

const VERSION: u8 = 1;
pub(crate) const LEND: u8 = 0x20;
pub(crate) const TAKEN: u8 = 0x21;
pub(crate) const OVER: u8 = 0x22;
pub(crate) const BACK: u8 = 0x23;
const LEN: usize = 16;

/// Tokens from here on are of operations on borrowed memory: numbers of streams have 16 bits.
pub(crate) const TOKENS: u64 = 1 << (32 + 31);
/// Offers of one lender that are not borrowed yet.
pub(crate) const OFFERS_MOST: usize = 256;

/// Which of the memories that one process lends to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    pub(crate) lender: Rank,
    pub(crate) borrower: Rank,
    pub(crate) ordinal: u32,
}

/// What this process lends, and what was lent to it.
#[derive(Debug, Default)]
pub(crate) struct Lends {
    pub(crate) lent: HashMap<Name, Lent>,
    pub(crate) borrowed: HashMap<Name, Borrowed>,
    pub(crate) last: u32,
    pub(crate) last_id: u32,
}

#[derive(Debug)]
pub(crate) struct Lent {
    pub(crate) region: Region,
    pub(crate) offered: bool,
    pub(crate) taken: bool,
    /// The borrower needs it no more.
    pub(crate) back: bool,
    /// The lender has taken it back.
    pub(crate) closed: bool,
}

#[derive(Debug)]
pub(crate) struct Borrowed {
    pub(crate) len: usize,
    /// `None`: what came with the offer is less than it says.
    pub(crate) grant: Option<Grant>,
    /// What tokens have; 0: it is not borrowed yet.
    pub(crate) id: u32,
    /// The lender has taken it back.
    pub(crate) over: bool,
    pub(crate) under_way: bool,
    pub(crate) outcome: Option<Result<(), Error>>,
    /// It is closed, and the operation under way uses this region of the borrower's.
    pub(crate) leaves: Option<RegionId>,
}

/// What was lent, for its borrower.
#[derive(Clone, Debug)]
pub(crate) struct Loan {
    pub(crate) name: Name,
    pub(crate) len: usize,
    pub(crate) grant: Grant,
    pub(crate) promise: Promise,
}

/// An operation on borrowed memory, from or to memory of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Move {
    pub(crate) write: bool,
    pub(crate) local: (RegionId, usize),
    pub(crate) at: usize,
    pub(crate) len: usize,
}

impl Name {
    pub(crate) fn encode(self, kind: u8) -> Vec<u8> {
        let mut bytes = vec![VERSION, kind, 0, 0];
        [self.lender, self.borrower, self.ordinal].iter().for_each(|n| bytes.extend(n.to_le_bytes()));
        bytes
    }
}

/// Whether a control message is one of these.
pub(crate) fn is_one(bytes: &[u8]) -> bool {
    bytes.len() >= LEN && bytes[0] == VERSION && (LEND..=BACK).contains(&bytes[1])
}

/// The kind, what it is of, and what follows.
pub(crate) fn decode(bytes: &[u8]) -> Option<(u8, Name, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<LEN>()?;
    let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let name = Name { lender: number(4), borrower: number(8), ordinal: number(12) };
    let right = head[..1] == [VERSION] && head[2..4] == [0, 0];
    let room = if head[1] == LEND { 8 } else { 0 };
    (right && (LEND..=BACK).contains(&head[1]) && rest.len() == room).then_some((head[1], name, rest))
}

pub(crate) fn is_token(token: Token) -> bool {
    token.0 >= TOKENS
}
