//! How the backend strait reaches peers: the part of STRAIT_RPIPE_BACKEND that says so.

use std::str::FromStr;

use crate::Error;

/// How peers on this host are reached; all processes of a job have the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// By memory that both map.
    Memory,
    /// By frames, as those on other hosts, which go through shared memory.
    Frames,
    /// By frames, which go through TCP, too.
    Tcp,
    /// By this provider of libfabric, as those on other hosts. Without a name, by the first that can be
    /// opened.
    Provider(String),
}

impl Reach {
    /// What stands for it in a card.
    pub(super) fn code(&self) -> u8 {
        match self {
            Reach::Memory => 0,
            Reach::Frames => 1,
            Reach::Tcp => 2,
            Reach::Provider(_) => 3,
        }
    }

    /// The value of STRAIT_RPIPE_BACKEND that asks for it.
    pub(super) fn setting(&self) -> String {
        match self {
            Reach::Memory => "strait".into(),
            Reach::Frames => "strait:frames".into(),
            Reach::Tcp => "strait:tcp".into(),
            Reach::Provider(name) if name.is_empty() => "libfabric".into(),
            Reach::Provider(name) => format!("libfabric:{name}"),
        }
    }
}

impl FromStr for Reach {
    type Err = Error;

    fn from_str(text: &str) -> Result<Reach, Error> {
        match text {
            "" => Ok(Reach::Memory),
            "frames" => Ok(Reach::Frames),
            "tcp" => Ok(Reach::Tcp),
            _ => Err(Error::Unsupported(format!(
                "there is no backend strait:{text}; there are strait, strait:frames and strait:tcp"
            ))),
        }
    }
}
