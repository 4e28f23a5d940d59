//! How a reader learns of a message: chosen from what the path promises.

use std::fmt;
use std::str::FromStr;

use crate::core::slot::SLOT;
use crate::{Error, Promise};

/// A flag mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The slot is mapped: its words are stored, the flag last.
    Store,
    /// The slot is put as a whole: its last bytes, the flag, become visible last.
    OneWrite,
    /// The slot is put, and then the flag behind it.
    TwoWrites,
    /// The slot is put; the flag is put once that is known to be visible.
    Delivered,
    /// The slot is put, and the reader's completion queue has an entry for it: there is no flag to poll.
    Notified,
}

impl Mode {
    pub const ALL: [Mode; 5] =
        [Mode::Store, Mode::OneWrite, Mode::TwoWrites, Mode::Delivered, Mode::Notified];

    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_code(code: u8) -> Option<Mode> {
        Mode::ALL.get(usize::from(code)).copied()
    }

    /// Why it is not sound on this path.
    fn fault(self, promise: &Promise) -> Option<&'static str> {
        let (ok, fault) = match self {
            Mode::Store => (promise.mapped, "the peer's memory is not mapped"),
            Mode::OneWrite => (
                promise.within >= SLOT && promise.between,
                "the order within a write, or of writes, is not promised",
            ),
            Mode::TwoWrites => (promise.between, "the order of writes is not promised"),
            Mode::Delivered => (promise.delivered, "completion does not say that bytes are visible"),
            Mode::Notified => (
                promise.notify && (promise.between || promise.delivered),
                "writes are not notified of in order",
            ),
        };
        (!ok).then_some(fault)
    }

    /// The first that is sound on this path, or the one that is required; and why.
    pub(crate) fn choose(promise: &Promise, asked: Option<Mode>) -> Result<(Mode, String), Error> {
        if let Some(mode) = asked {
            return match mode.fault(promise) {
                None => Ok((mode, "it was asked for".into())),
                Some(fault) => Err(Error::Unsupported(format!(
                    "the flag mode {mode} is not sound on the path to this peer ({}): {fault}",
                    promise.path
                ))),
            };
        }
        let mut why = String::new();
        for mode in Mode::ALL {
            match mode.fault(promise) {
                None if why.is_empty() => return Ok((mode, "the path promises it".into())),
                None => return Ok((mode, why)),
                Some(fault) => {
                    if !why.is_empty() {
                        why.push_str("; ");
                    }
                    why.push_str(&format!("not {mode}: {fault}"));
                }
            }
        }
        Err(Error::Unsupported(format!(
            "no flag mode is sound on the path to this peer ({}): {why}",
            promise.path
        )))
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Store => "store",
            Mode::OneWrite => "one-write",
            Mode::TwoWrites => "two-writes",
            Mode::Delivered => "delivered",
            Mode::Notified => "notified",
        })
    }
}

impl FromStr for Mode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Mode, Error> {
        let names = Mode::ALL.map(|mode| mode.to_string());
        match names.iter().position(|name| name == text) {
            Some(at) => Ok(Mode::ALL[at]),
            None => Err(Error::Invalid(format!("{text:?} is no flag mode; there are {}", names.join(", ")))),
        }
    }
}
