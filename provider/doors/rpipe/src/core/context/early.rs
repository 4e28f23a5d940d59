//! Control messages of streams whose ends this process has not opened yet.

use std::collections::HashMap;

use crate::core::control::{Control, Key};
use crate::{Grant, Rank};

/// Streams of one peer whose messages are kept: as many as there may be pipes in a process.
const STREAMS_MOST: usize = if cfg!(test) { 1 << 8 } else { 1 << 15 };
/// Messages of one stream that are kept.
const MESSAGES_MOST: usize = 4;

/// A control message, and what it grants.
pub(super) type Message = (Control, Vec<Grant>);

#[derive(Debug, Default)]
pub(super) struct Early {
    messages: HashMap<Key, Vec<Message>>,
    /// How many streams of them are of a peer.
    of: HashMap<Rank, usize>,
}

impl Early {
    /// Keeps a message of a stream of this peer; gives its grants back if there are too many.
    pub(super) fn keep(&mut self, peer: Rank, key: Key, message: Message) -> Result<(), Vec<Grant>> {
        let count = self.of.entry(peer).or_insert(0);
        let is_first = !self.messages.contains_key(&key);
        if is_first && *count >= STREAMS_MOST {
            return Err(message.1);
        }
        *count += usize::from(is_first);
        let list = self.messages.entry(key).or_default();
        if list.len() >= MESSAGES_MOST {
            return Err(message.1);
        }
        list.push(message);
        Ok(())
    }

    /// The messages of a stream, whose end is open now.
    pub(super) fn take(&mut self, peer: Rank, key: &Key) -> Vec<Message> {
        let messages = self.messages.remove(key);
        if let Some(count) = self.of.get_mut(&peer).filter(|_| messages.is_some()) {
            *count -= 1;
        }
        messages.unwrap_or_default()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::core::control::Class;

    #[test]
    fn a_peer_has_so_many_streams_kept_and_each_of_them_so_many_messages() {
        let key = |ordinal| Key { class: Class::Half, writer: 1, reader: 0, ordinal };
        let mut early = Early::default();
        for n in 0..=MESSAGES_MOST {
            assert_eq!(early.keep(1, key(0), (Control::Hello, Vec::new())).is_ok(), n < MESSAGES_MOST);
        }
        for n in 1..=STREAMS_MOST {
            let kept = early.keep(1, key(n as u32), (Control::Hello, Vec::new())).is_ok();
            assert_eq!(kept, n < STREAMS_MOST);
        }
        assert!(early.keep(2, key(0), (Control::Hello, Vec::new())).is_err(), "of another peer, as long");
        assert_eq!(early.take(1, &key(0)).len(), MESSAGES_MOST);
        assert!(early.take(1, &key(0)).is_empty());
        // A stream that is open makes room for another one.
        assert!(early.keep(1, key(STREAMS_MOST as u32), (Control::Hello, Vec::new())).is_ok());
    }
}
