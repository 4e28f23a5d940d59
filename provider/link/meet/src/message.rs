//! A message of a known length, of which a part has arrived.

use std::io;

/// What arrived of a message.
#[derive(Debug, Default)]
pub struct Message(Vec<u8>);

impl Message {
    /// What has arrived.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Takes out what has arrived: the next message begins.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }

    /// Reads more of a message of `wants` bytes, and nothing behind it; whether it is whole. The end of the
    /// connection is [`io::ErrorKind::UnexpectedEof`].
    pub fn receive(
        &mut self,
        wants: usize,
        mut read: impl FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<bool> {
        let had = self.0.len();
        if had >= wants {
            return Ok(true);
        }
        self.0.resize(wants, 0);
        let found = read(&mut self.0[had..]);
        self.0.truncate(had + *found.as_ref().unwrap_or(&0));
        match found {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(self.0.len() == wants),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(e) => Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn a_message_is_whole_with_its_last_byte_and_has_none_behind_it() {
        let mut from = &b"abcdef"[..];
        let mut message = Message::default();
        assert!(!message.receive(4, |to| from.read(&mut to[..2])).unwrap());
        let busy = |_: &mut [u8]| Err(io::ErrorKind::WouldBlock.into());
        assert!(!message.receive(4, busy).unwrap() && message.bytes() == b"ab");
        let mut all = |to: &mut [u8]| from.read(to);
        assert!(message.receive(4, &mut all).unwrap() && message.take() == b"abcd");
        assert!(!message.receive(4, &mut all).unwrap());
        let end = message.receive(4, &mut all).unwrap_err();
        assert_eq!((end.kind(), message.bytes()), (io::ErrorKind::UnexpectedEof, &b"ef"[..]));
        assert!(message.receive(2, busy).unwrap());
    }
}
