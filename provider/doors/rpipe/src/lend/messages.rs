//! The messages by which memory is offered to a peer, taken over, and given back.
//!
//! | message | from, to | says | grants |
//! |---|---|---|---|
//! | `LEND` | lender, borrower | bytes lent; with several borrowers, who keeps the book | the memory |
//! | `TAKEN` | borrower, lender | the memory was granted: the lender has nothing more to do | – |
//! | `OVER` | lender, borrower | the memory is taken back | – |
//! | `BACK` | borrower, lender | no operation on the memory is under way, and none follows | – |
//! | `ATOMIC` | borrower, lender | number, word and operands of an atomic operation | – |
//! | `DONE` | lender, borrower | its number, and what the word was; or a refusal | – |
//!
//! `TAKEN` and `BACK` are sent by whichever call of the borrower's process makes progress. Memory that is
//! taken back stays until `BACK`, so that no operation ends in memory of something else. With several
//! borrowers each has these messages with the lender, and the memory stays until the last `BACK`. Nothing is
//! trusted: what cannot be is ignored, with a warning.

use crate::{Atomic, AtomicOp, Rank};

const VERSION: u8 = 1;
pub(super) const LEND: u8 = 0x20;
pub(super) const TAKEN: u8 = 0x21;
pub(super) const OVER: u8 = 0x22;
pub(super) const BACK: u8 = 0x23;
pub(super) const ATOMIC: u8 = 0x24;
pub(super) const DONE: u8 = 0x25;
const LEN: usize = 16;
/// What follows the name in `ATOMIC` and in `DONE`.
const REQUEST: usize = 32;
const ANSWER: usize = 16;

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
    bytes.len() >= LEN && bytes[0] == VERSION && (LEND..=DONE).contains(&bytes[1])
}

/// The kind, what it is of, and what follows.
pub(super) fn decode(bytes: &[u8]) -> Option<(u8, Name, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<LEN>()?;
    let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let name = Name { lender: number(4), borrower: number(8), ordinal: number(12) };
    let right = head[..1] == [VERSION] && head[2..4] == [0, 0];
    let fits = match head[1] {
        LEND => rest.len() == 8 || rest.len() == 12,
        TAKEN..=BACK => rest.is_empty(),
        ATOMIC => rest.len() == REQUEST,
        DONE => rest.len() == ANSWER,
        _ => false,
    };
    (right && fits).then_some((head[1], name, rest))
}

/// How many bytes are lent, and, where there are several borrowers, who has the book.
pub(super) fn encode_offer(name: Name, len: usize, keeper: Option<Rank>) -> Vec<u8> {
    let mut bytes = name.encode(LEND);
    bytes.extend((len as u64).to_le_bytes());
    keeper.iter().for_each(|rank| bytes.extend(rank.to_le_bytes()));
    bytes
}

/// The same, of what [`decode`] has given.
pub(super) fn decode_offer(rest: &[u8]) -> (usize, Option<Rank>) {
    let (len, keeper) = rest.split_at(8.min(rest.len()));
    let keeper = (!keeper.is_empty()).then(|| number(keeper) as Rank);
    (usize::try_from(number(len)).unwrap_or(usize::MAX), keeper)
}

/// Of an atomic operation with the word at byte `at`.
pub(super) fn encode_request(name: Name, ordinal: u32, at: usize, atomic: &Atomic) -> Vec<u8> {
    let mut bytes = name.encode(ATOMIC);
    bytes.extend(ordinal.to_le_bytes());
    bytes.extend([atomic.op as u8, u8::from(atomic.wide), 0, 0]);
    [at as u64, atomic.operand, atomic.compare].iter().for_each(|n| bytes.extend(n.to_le_bytes()));
    bytes
}

/// Its number, where the word is, and what is to be done; `None` for those: it is no operation.
pub(super) fn decode_request(rest: &[u8]) -> Option<(u32, Option<(usize, Atomic)>)> {
    let (head, numbers) = rest.split_first_chunk::<8>().filter(|_| rest.len() == REQUEST)?;
    let op = AtomicOp::ALL.get(usize::from(head[4])).filter(|_| head[5] <= 1 && head[6..] == [0, 0]);
    let at = usize::try_from(number(&numbers[..8])).ok();
    let (operand, compare) = (number(&numbers[8..16]), number(&numbers[16..]));
    let atomic = op.map(|op| Atomic { op: *op, wide: head[5] == 1, operand, compare });
    Some((number(&head[..4]) as u32, at.zip(atomic)))
}

/// What the word was; `None`: the operation is refused.
pub(super) fn encode_answer(name: Name, ordinal: u32, was: Option<u64>) -> Vec<u8> {
    let mut bytes = name.encode(DONE);
    [ordinal, u32::from(was.is_none())].iter().for_each(|n| bytes.extend(n.to_le_bytes()));
    bytes.extend(was.unwrap_or(0).to_le_bytes());
    bytes
}

/// The number of the operation, and the same, of what [`decode`] has given.
pub(super) fn decode_answer(rest: &[u8]) -> Option<(u32, Option<u64>)> {
    let (head, was) = rest.split_first_chunk::<8>().filter(|_| rest.len() == ANSWER)?;
    Some((number(&head[..4]) as u32, (head[4..] == [0; 4]).then(|| number(was))))
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte))
}
