//! What may be set by the environment: one table, which docs/rpipe.md lists and a test compares.

use std::env;
use std::ffi::OsString;
use std::str::FromStr;
use std::time::Duration;

use crate::core::heap::Policy;
use crate::core::stream::Mode;
use crate::{ALIGN_MOST, Device, Error};

/// A variable.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// What holds where it is not set, in words.
    pub default: &'static str,
    /// What it does.
    pub help: &'static str,
}

/// All of them.
pub const ALL: [Setting; 11] = [
    Setting { name: "STRAIT_RPIPE_BACKEND", default: "strait", help: "The backend" },
    Setting {
        name: "STRAIT_RPIPE_HEAP",
        default: "1MiB",
        help: "Bytes of a heap, where the program says nothing",
    },
    Setting { name: "STRAIT_RPIPE_SLOTS", default: "256", help: "The most messages under way in a pipe" },
    Setting {
        name: "STRAIT_RPIPE_POLICY",
        default: "next-fit",
        help: "The policy of heaps, where the program says nothing",
    },
    Setting {
        name: "STRAIT_RPIPE_SYNC",
        default: "deferred for next-fit and first-fit, immediate for best-fit and worst-fit",
        help: "When the writer learns of freed blocks",
    },
    Setting {
        name: "STRAIT_RPIPE_FLAG",
        default: "by what the path promises",
        help: "The flag mode; it has to be sound on the path",
    },
    Setting {
        name: "STRAIT_RPIPE_INJECT",
        default: "measured",
        help: "The longest message, up to 4096 bytes, that the path copies when it is written; 0: none",
    },
    Setting {
        name: "STRAIT_RPIPE_KEY",
        default: "by the user's number, which is no secret",
        help: "A secret that the processes of a job show each other on connections between hosts",
    },
    Setting {
        name: "STRAIT_RPIPE_LINGER",
        default: "5000",
        help: "Milliseconds that a process that leaves waits at most for what it has written to arrive at other hosts; up to a day",
    },
    Setting { name: "STRAIT_RPIPE_MAP", default: "yes", help: "Map the heaps of peers on this host" },
    Setting {
        name: "STRAIT_RPIPE_DEVICE",
        default: "current",
        help: "The device of ends that are opened for memory of one: a number, or that of the thread's context",
    },
];

/// The backend where none is named.
pub const DEFAULT_BACKEND: &str = "strait";

/// When the writer learns which blocks the reader has freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// By tags that the reader puts to it when it frees.
    Deferred,
    /// By tags that the writer gets from the reader when it allocates.
    Immediate,
}

impl std::fmt::Display for Sync {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == Sync::Deferred { "deferred" } else { "immediate" })
    }
}

impl FromStr for Sync {
    type Err = Error;

    fn from_str(text: &str) -> Result<Sync, Error> {
        match text {
            "deferred" => Ok(Sync::Deferred),
            "immediate" => Ok(Sync::Immediate),
            _ => Err(Error::Invalid(format!(
                "{text:?} is no synchronization; there are deferred and immediate"
            ))),
        }
    }
}

/// What holds in a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub backend: String,
    pub heap: usize,
    pub slots: usize,
    pub policy: Option<Policy>,
    pub sync: Option<Sync>,
    pub flag: Option<Mode>,
    pub inject: Option<usize>,
    pub map: bool,
    /// For how long a process that leaves waits for what it has written.
    pub linger: Duration,
    pub key: Option<String>,
    /// That of ends for memory of a device.
    pub device: Option<Device>,
}

impl Default for Settings {
    fn default() -> Settings {
        let backend = DEFAULT_BACKEND.to_owned();
        Settings {
            backend,
            heap: 1 << 20,
            slots: 256,
            policy: None,
            sync: None,
            flag: None,
            inject: None,
            map: true,
            linger: Duration::from_secs(5),
            key: None,
            device: None,
        }
    }
}

/// The least and the most of slots.
pub const SLOTS: std::ops::RangeInclusive<usize> = 1..=1 << 15;
/// The longest message that is copied on a path that is not mapped.
pub const INJECT_MOST: usize = 4096;
/// The longest that a process that leaves waits, in milliseconds.
pub const LINGER_MOST: u64 = 24 * 3600 * 1000;
/// The longest heap.
pub const HEAP_MOST: usize = 16 << 30;

impl Settings {
    /// What the environment says.
    pub fn from_environment() -> Result<Settings, Error> {
        Settings::from(|name| env::var_os(name))
    }

    fn from(read: impl Fn(&str) -> Option<OsString>) -> Result<Settings, Error> {
        let mut all = Settings::default();
        for setting in &ALL {
            let Some(value) = read(setting.name) else { continue };
            let text = text(setting.name, value)?;
            let text = text.trim();
            if !text.is_empty() {
                all.set(setting.name, text)
                    .map_err(|e| Error::Invalid(format!("{}={text}: {e}", setting.name)))?;
            }
        }
        Ok(all)
    }

    fn set(&mut self, name: &str, text: &str) -> Result<(), Error> {
        match name {
            "STRAIT_RPIPE_BACKEND" => self.backend = text.to_owned(),
            "STRAIT_RPIPE_HEAP" => self.heap = bytes(text).ok_or_else(|| number("8 to 16GiB"))?,
            "STRAIT_RPIPE_SLOTS" => {
                self.slots = bytes(text).filter(|n| SLOTS.contains(n)).ok_or_else(|| number("1 to 32768"))?;
            }
            "STRAIT_RPIPE_INJECT" => {
                let most = bytes(text).filter(|n| *n <= INJECT_MOST);
                self.inject = Some(most.ok_or_else(|| number("0 to 4096"))?);
            }
            "STRAIT_RPIPE_LINGER" => {
                let most = text.parse().ok().filter(|ms| *ms <= LINGER_MOST);
                self.linger = Duration::from_millis(most.ok_or_else(|| number("0 to 86400000"))?);
            }
            "STRAIT_RPIPE_POLICY" => self.policy = Some(text.parse()?),
            "STRAIT_RPIPE_SYNC" => self.sync = Some(text.parse()?),
            "STRAIT_RPIPE_KEY" => self.key = Some(text.to_owned()),
            "STRAIT_RPIPE_DEVICE" => self.device = Some(text.parse()?),
            "STRAIT_RPIPE_FLAG" => self.flag = Some(text.parse()?),
            _ => {
                self.map = match text {
                    "yes" | "1" | "on" => true,
                    "no" | "0" | "off" => false,
                    _ => return Err(Error::Invalid("it takes yes or no".into())),
                }
            }
        }
        Ok(())
    }
}

/// What a variable has, which is to be text. What it is instead is not said: it may be a secret.
pub(crate) fn text(name: &str, value: OsString) -> Result<String, Error> {
    value.into_string().map_err(|_| Error::Invalid(format!("{name}: its value is no text in UTF-8")))
}

fn number(range: &str) -> Error {
    Error::Invalid(format!("it takes a number, {range}"))
}

/// `65536`, `64K`, `64KiB`.
fn bytes(text: &str) -> Option<usize> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let shift = match text[end..].to_ascii_lowercase().as_str() {
        "" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return None,
    };
    text[..end].parse::<usize>().ok()?.checked_mul(1 << shift).filter(|n| *n <= HEAP_MOST)
}

/// The granule of a heap of this length: short heaps are of short messages.
pub(crate) fn granule(heap: usize) -> usize {
    if heap < ALIGN_MOST { 8 } else { 64 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;

    #[test]
    fn variables_are_read_and_what_is_wrong_is_reported() {
        let one = |name: &'static str, text: &'static str| {
            Settings::from(move |n| (n == name).then(|| text.into()))
        };
        assert_eq!(one("X", "1"), Ok(Settings::default()));
        assert_eq!(one("STRAIT_RPIPE_HEAP", " 4K ").unwrap().heap, 4096);
        assert_eq!(one("STRAIT_RPIPE_POLICY", "best").unwrap().policy, Some(Policy::BestFit));
        assert_eq!(one("STRAIT_RPIPE_SYNC", "immediate").unwrap().sync, Some(Sync::Immediate));
        assert!(!one("STRAIT_RPIPE_MAP", "no").unwrap().map);
        assert_eq!(one("STRAIT_RPIPE_LINGER", "250").unwrap().linger, Duration::from_millis(250));
        for (name, text) in [
            ("STRAIT_RPIPE_HEAP", "much"),
            ("STRAIT_RPIPE_SLOTS", "0"),
            ("STRAIT_RPIPE_INJECT", "4097"),
            ("STRAIT_RPIPE_POLICY", "any"),
            ("STRAIT_RPIPE_LINGER", "86400001"),
            ("STRAIT_RPIPE_SYNC", "never"),
            ("STRAIT_RPIPE_FLAG", "red"),
            ("STRAIT_RPIPE_MAP", "perhaps"),
            ("STRAIT_RPIPE_DEVICE", "-1"),
        ] {
            let fault = one(name, text).unwrap_err().to_string();
            assert!(fault.starts_with(&format!("{name}={text}: ")), "{fault}");
        }
        for setting in &ALL {
            let no_text = OsString::from_vec(b"se\xffcret".to_vec());
            let fault =
                Settings::from(|n| (n == setting.name).then(|| no_text.clone())).unwrap_err().to_string();
            assert_eq!(fault, format!("{}: its value is no text in UTF-8", setting.name));
        }
    }
}
