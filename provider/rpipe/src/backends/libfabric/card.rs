//! Where a peer is found.

use super::watch::Place;

const CARD: [u8; 4] = *b"rpf2";

/// Where a peer's endpoint and the peer itself are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// As of fi_getname(3).
    pub address: Vec<u8>,
    pub place: Place,
}

impl Card {
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = CARD.to_vec();
        bytes.extend((self.address.len() as u16).to_le_bytes());
        bytes.extend(&self.address);
        self.place.write(&mut bytes);
        bytes
    }

    pub fn read(bytes: &[u8]) -> Option<Card> {
        let rest = bytes.strip_prefix(&CARD)?;
        let (len, rest) = rest.split_first_chunk::<2>()?;
        let len = usize::from(u16::from_le_bytes(*len));
        if len > rest.len() {
            return None;
        }
        let (address, rest) = rest.split_at(len);
        Some(Card { address: address.to_vec(), place: Place::read(rest)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_read_as_it_is_written_and_no_other_way() {
        let watch = super::super::watch::Watch::start().unwrap();
        let card = Card { address: vec![3; 20], place: watch.place().clone() };
        let bytes = card.bytes();
        assert_eq!(Card::read(&bytes), Some(card));
        for len in 0..bytes.len() {
            assert_eq!(Card::read(&bytes[..len]), None);
        }
    }
}
