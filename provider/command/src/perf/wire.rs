//! Messages of the processes outside of the fabric: lines of JSON over sockets.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::test::Test;
use crate::fabric::{Error, Info, Remote, version_text};

/// Orders to a worker; all workers of a pair or a group get one at a time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Make an endpoint for `test`, with memory for messages of `most` bytes.
    Open { provider: String, test: Test, most: usize },
    /// Measure one size for about `seconds`.
    Measure { size: usize, seconds: f64 },
    /// Close it.
    Close,
    /// Make the endpoint of one of many, with memory for messages of `most` bytes.
    Join { provider: String, test: Test, most: usize, rank: usize, ranks: usize },
    /// The names of all of them.
    Meet(Vec<Remote>),
    /// Run so many steps of a pattern.
    Repeat { size: usize, count: u64 },
}

/// A worker's answer to an order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Reply {
    Opened(About),
    /// One of many is open under this name.
    Joined(About, Remote),
    /// `ops` operations took `seconds`; of a pair from the first only.
    Measured {
        ops: u64,
        seconds: f64,
    },
    Done,
    Failed {
        unsupported: bool,
        text: String,
    },
}

/// What there is to say about a provider.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    pub domain: String,
    pub version: String,
    pub inject_size: usize,
    pub depth: usize,
    pub mr_mode: i32,
}

impl About {
    pub fn of(info: &Info) -> About {
        About {
            domain: info.domain(),
            version: version_text(info.provider_version()),
            inject_size: info.inject_size(),
            depth: info.depth(),
            mr_mode: info.mr_mode(),
        }
    }
}

/// Between the two workers of a pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Aside {
    /// How to reach me.
    Hello(Remote),
    /// The first asks for one run of `count` steps.
    Run(Run),
    /// The second is prepared for it.
    Ready,
    /// The second has everything, and it was right.
    Checked,
    /// The first is done with this size.
    End,
}

/// One run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    pub size: usize,
    /// Round trips, windows or operations.
    pub count: u64,
    /// Operations of a window.
    pub window: usize,
    /// Of the contents.
    pub seed: u64,
    /// Each operation of a window has its own memory, so that all contents can be checked.
    pub spread: bool,
}

/// One end of a socket.
#[derive(Debug)]
pub struct Channel {
    stream: UnixStream,
    pending: Vec<u8>,
}

impl Channel {
    pub fn new(stream: UnixStream) -> Channel {
        Channel { stream, pending: Vec::new() }
    }

    pub fn send(&mut self, message: &impl Serialize) -> Result<(), Error> {
        let mut line = serde_json::to_vec(message).map_err(|e| Error::Failed(e.to_string()))?;
        line.push(b'\n');
        let mut rest = &line[..];
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(n) => rest = &rest[n..],
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                // Lines are far shorter than a socket's buffer: this is rare and short.
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(e) => return Err(Error::Failed(format!("the other process is gone: {e}"))),
            }
        }
        Ok(())
    }

    /// Says that nothing more is to come.
    pub fn end(&self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    /// Waits for a message.
    pub fn recv<T: DeserializeOwned>(&mut self) -> Result<T, Error> {
        self.stream.set_nonblocking(false)?;
        loop {
            if let Some(message) = self.next()? {
                return Ok(message);
            }
        }
    }

    /// A message, if one is there.
    pub fn try_recv<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Error> {
        self.stream.set_nonblocking(true)?;
        self.next()
    }

    fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Error> {
        loop {
            if let Some(end) = self.pending.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                return serde_json::from_slice(&line)
                    .map(Some)
                    .map_err(|e| Error::Failed(format!("a message out of place: {e}")));
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(Error::Failed("the other process is gone".into())),
                Ok(n) => self.pending.extend_from_slice(&bytes[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(e) => return Err(e.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_whole_and_in_order() {
        let (a, b) = UnixStream::pair().unwrap();
        let (mut a, mut b) = (Channel::new(a), Channel::new(b));
        assert_eq!(b.try_recv::<Aside>().unwrap(), None);
        let hello = Aside::Hello(Remote { name: vec![0, 10, 255], base: 5, len: 7, key: u64::MAX });
        a.send(&hello).unwrap();
        a.send(&Aside::Ready).unwrap();
        assert_eq!(b.recv::<Aside>().unwrap(), hello);
        assert_eq!(b.try_recv::<Aside>().unwrap(), Some(Aside::Ready));
        assert_eq!(b.try_recv::<Aside>().unwrap(), None);
        drop(a);
        assert!(b.recv::<Aside>().is_err());
    }
}
