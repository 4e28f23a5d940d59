//! The messages by which memory is offered to a peer, taken over, and given back.
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

use crate::Rank;

const VERSION: u8 = 1;
pub(super) const LEND: u8 = 0x20;
pub(super) const TAKEN: u8 = 0x21;
pub(super) const OVER: u8 = 0x22;
pub(super) const BACK: u8 = 0x23;
const LEN: usize = 16;

/// Which of the memories that one process lends to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Name {
    pub(super) lender: Rank,
    pub(super) borrower: Rank,
    pub(super) ordinal: u32,
}

impl Name {
    pub(super) fn encode(self, kind: u8) -> Vec<u8> {
        let mut bytes = vec![VERSION, kind, 0, 0];
        [self.lender, self.borrower, self.ordinal].iter().for_each(|n| bytes.extend(n.to_le_bytes()));
        bytes
    }
}

/// Whether a control message is one of these.
pub(super) fn is_one(bytes: &[u8]) -> bool {
    bytes.len() >= LEN && bytes[0] == VERSION && (LEND..=BACK).contains(&bytes[1])
}

/// The kind, what it is of, and what follows.
pub(super) fn decode(bytes: &[u8]) -> Option<(u8, Name, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<LEN>()?;
    let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let name = Name { lender: number(4), borrower: number(8), ordinal: number(12) };
    let right = head[..1] == [VERSION] && head[2..4] == [0, 0];
    let room = if head[1] == LEND { 8 } else { 0 };
    (right && (LEND..=BACK).contains(&head[1]) && rest.len() == room).then_some((head[1], name, rest))
}
