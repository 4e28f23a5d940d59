//! Which transfers both sides copy, and which part is left to the peer.

/// Bytes from which on it is worth a message to the other side that both copy.
const WORTH: usize = 64 << 10;
/// Most bytes of which each copies a half while more messages are behind.
const DELEGATED: usize = 8 << 20;

/// A transfer in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// The pieces.
    pub(crate) pieces: xfer::Cut,
    /// The second of two is left to the peer until there is nothing else to do here.
    pub(crate) delegated: bool,
}

impl Cut {
    /// Of `len` bytes that one side could copy alone, if both sides had better copy. `delegate`: there is
    /// more to do here.
    pub(crate) fn of(len: usize, delegate: bool) -> Option<Cut> {
        if !Cut::is_worth(len) {
            return None;
        }
        let delegated = delegate && len <= DELEGATED;
        let pieces = if delegated { xfer::Cut::halves(len) } else { xfer::Cut::of(len) };
        Some(Cut { pieces, delegated })
    }

    /// Whether `len` bytes are worth a message to the other side that both copy.
    pub(crate) fn is_worth(len: usize) -> bool {
        len >= WORTH
    }

    /// Whether a part of `len` bytes may be left to the peer while there is more to do here.
    pub(crate) fn is_delegable(len: usize) -> bool {
        (WORTH..=DELEGATED).contains(&len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_left_to_the_peer_of_what_is_neither_small_nor_huge() {
        for len in [0, 1, WORTH - 1, WORTH, 1 << 20, DELEGATED, DELEGATED + 1, 1 << 30] {
            assert_eq!(Cut::of(len, false).is_some_and(|cut| !cut.delegated), len >= WORTH, "{len}");
            let cut = Cut::of(len, true);
            assert_eq!(cut.is_some(), len >= WORTH, "{len}");
            assert_eq!(cut.is_some_and(|cut| cut.delegated), Cut::is_delegable(len), "{len}");
            if let Some(Cut { pieces, delegated: true }) = cut {
                assert_eq!(pieces, xfer::Cut::halves(len), "{len}");
            }
        }
    }
}
