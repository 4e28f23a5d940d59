//! The error word of an endpoint: which operation failed, and why. 0: none did.

use std::fmt;

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Of the endpoint as a whole.
    None = 0,
    /// A send waited for the credit of its slot.
    Send = 1,
    /// A receive waited for its message.
    Receive = 2,
    /// A put waited for the credit of its signal.
    Put = 3,
    /// A wait for a signal.
    Wait = 4,
    /// A get waited for its agent.
    Get = 5,
}

impl Kind {
    fn of(number: u32) -> Kind {
        match number {
            1 => Kind::Send,
            2 => Kind::Receive,
            3 => Kind::Put,
            4 => Kind::Wait,
            5 => Kind::Get,
            _ => Kind::None,
        }
    }
}

/// What ended an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Why: ETIMEDOUT, ECONNRESET (the peer ended), EPIPE (the peer closed), EMSGSIZE, ECANCELED, or the
    /// driver's.
    pub errno: i32,
    /// What waited.
    pub kind: Kind,
    /// The slot or signal that it waited for.
    pub index: u32,
    /// It failed in the peer, not here.
    pub by_peer: bool,
    /// The peer's process.
    pub peer: u32,
}

const BY_PEER: u32 = 1 << 31;
const KIND: u32 = 10;
const INDEX: u32 = 14;

/// The word of a failure. It is not 0.
pub(crate) const fn word(errno: i32, kind: Kind, index: u32) -> u32 {
    let errno = if errno > 0 && errno < 1 << KIND { errno as u32 } else { libc::EIO as u32 };
    errno | (kind as u32) << KIND | (index & 0xffff) << INDEX
}

/// The same as the peer of the one that failed has it.
pub(crate) const fn of_peer(word: u32) -> u32 {
    word | BY_PEER
}

/// What a word says; what is in there may come from another process.
pub(crate) fn read(word: u32, peer: u32) -> Option<Failure> {
    let errno = (word & ((1 << KIND) - 1)) as i32;
    (word != 0).then_some(Failure {
        errno: if errno == 0 { libc::EIO } else { errno },
        kind: Kind::of(word >> KIND & 15),
        index: word >> INDEX & 0xffff,
        by_peer: word & BY_PEER != 0,
        peer,
    })
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let i = self.index;
        match self.kind {
            Kind::None => f.write_str("the endpoint")?,
            Kind::Send => write!(f, "a send by slot {i}")?,
            Kind::Receive => write!(f, "a receive by slot {i}")?,
            Kind::Put => write!(f, "a put with signal {i}")?,
            Kind::Wait => write!(f, "a wait for signal {i}")?,
            Kind::Get => f.write_str("a get")?,
        }
        let what = if self.by_peer { "of" } else { "to or from" };
        // Before there is a peer its process is not known.
        if self.peer != 0 {
            write!(f, " {what} process {}", self.peer)?;
        }
        let why = match self.errno {
            libc::ETIMEDOUT => "waited longer than the time limit",
            libc::ECONNRESET => "failed: the peer ended",
            libc::EPIPE => "failed: the peer closed its endpoint",
            libc::EMSGSIZE => "failed: the message has another length than the receive",
            libc::ECANCELED => "was cancelled",
            _ => "failed",
        };
        write!(f, " {why}; nothing is moved any more: close the endpoint and open another")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_says_what_failed_and_any_value_can_be_read() {
        let of = word(libc::ETIMEDOUT, Kind::Receive, 65_535);
        let wanted =
            Failure { errno: libc::ETIMEDOUT, kind: Kind::Receive, index: 65_535, by_peer: false, peer: 7 };
        assert_eq!(read(of, 7), Some(wanted));
        assert_eq!(read(of_peer(of), 7), Some(Failure { by_peer: true, ..wanted }));
        assert_eq!(read(0, 7), None);
        let words = |peer| read(word(libc::ECANCELED, Kind::None, 0), peer).unwrap().to_string();
        assert!(words(7).contains("to or from process 7 was cancelled") && !words(0).contains("process"));
        assert_ne!(word(0, Kind::None, 0), 0);
        for bit in 0..32 {
            let any = read(1 << bit, 1).unwrap();
            assert!(any.errno > 0 && !any.to_string().is_empty());
        }
    }
}
