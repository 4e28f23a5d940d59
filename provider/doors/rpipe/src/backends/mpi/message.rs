//! What processes send each other by a window of an MPI. Numbers are little-endian; what is read was
//! written by another process.

use crate::{CONTROL_MOST, GRANTS_MOST, Rank};

/// The longest message.
pub const MOST: usize = HEAD + GRANTS_MOST * 24 + CONTROL_MOST;
const HEAD: usize = 10;
const MAGIC: u16 = u16::from_le_bytes(*b"rp");

/// What a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Control,
    /// The sender leaves.
    Bye,
}

/// A region that is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    pub address: u64,
    pub key: u64,
    pub len: u64,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub kind: Kind,
    pub from: Rank,
    pub grants: Vec<Key>,
    pub bytes: Vec<u8>,
}

impl Message {
    pub fn encode(&self) -> Vec<u8> {
        let kind = match self.kind {
            Kind::Control => 1,
            Kind::Bye => 2,
        };
        let mut to = MAGIC.to_le_bytes().to_vec();
        to.extend([kind, self.grants.len() as u8]);
        to.extend(self.from.to_le_bytes());
        to.extend((self.bytes.len() as u16).to_le_bytes());
        for grant in &self.grants {
            to.extend([grant.address, grant.key, grant.len].iter().flat_map(|n| n.to_le_bytes()));
        }
        to.extend(&self.bytes);
        to
    }

    pub fn decode(bytes: &[u8]) -> Option<Message> {
        let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
        let short = |at: usize| usize::from(u16::from_le_bytes([head[at], head[at + 1]]));
        let (grants, len) = (usize::from(head[3]), short(8));
        let right = head[..2] == MAGIC.to_le_bytes()
            && grants <= GRANTS_MOST
            && len <= CONTROL_MOST
            && rest.len() == 24 * grants + len;
        if !right {
            return None;
        }
        let kind = match head[2] {
            1 => Kind::Control,
            2 => Kind::Bye,
            _ => return None,
        };
        let (keys, bytes) = rest.split_at(24 * grants);
        let number = |one: &[u8]| one.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte));
        let key = |one: &[u8]| Key {
            address: number(&one[..8]),
            key: number(&one[8..16]),
            len: number(&one[16..]),
        };
        Some(Message {
            kind,
            from: u32::from_le_bytes([head[4], head[5], head[6], head[7]]),
            grants: keys.chunks_exact(24).map(key).collect(),
            bytes: bytes.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_as_it_is_written_and_no_other_way() {
        let key = Key { address: 1 << 60 | 5, key: 7, len: 4096 };
        let grants = vec![key; 3];
        let message = Message { kind: Kind::Bye, from: 70000, grants, bytes: b"words".to_vec() };
        let bytes = message.encode();
        assert_eq!(Message::decode(&bytes), Some(message));
        for len in 0..bytes.len() {
            assert_eq!(Message::decode(&bytes[..len]), None);
        }
        for (at, value) in [(0, 0), (2, 0), (2, 3), (3, 5), (3, 2), (8, 4), (9, 0xff)] {
            let mut wrong = bytes.clone();
            wrong[at] = value;
            assert_eq!(Message::decode(&wrong), None, "byte {at}: {value}");
        }
    }
}
