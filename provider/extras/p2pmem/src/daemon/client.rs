//! A process that has its memory from the daemon.

mod memory;
mod talk;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipc::credentials::{Cred, User};
use ipc::socket;

pub use self::memory::Remote;
use self::memory::{From, Part, Pieces, map_all};
use self::talk::{PATIENCE, Talk, no_answer, nonsense, os};
use super::wire::{
    Answer, Ask, How, MOST_CLIENTS, MOST_LISTED, MOST_NAME, MOST_RULE, MOST_SEGMENTS, Published, Reach, Token,
};
use crate::address::Address;
use crate::error::Error;
use crate::orchestrator::Drain;
use crate::publisher::{Exported, Kind, descriptor, export_to_processes};

/// Most publishers of a list: more than a daemon has.
const MOST_PUBLISHERS: usize = 16384;

/// How long a publisher that is in use is left alone before the next attempt to take it out.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(10);

/// A connection to the daemon. What it has goes back when it is dropped, and what it has published is taken
/// out.
#[derive(Debug)]
pub struct Connection {
    talk: Talk,
}

/// A request for memory. The fields are those of [`crate::Request`]; the user is this process's.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    pub clients: &'a [&'a str],
    pub len: u64,
    pub align: u64,
    pub segments: u16,
    pub host: bool,
    pub others: bool,
    pub job: &'a str,
}

/// Memory that a process publishes for others.
#[derive(Clone, Copy, Debug)]
pub struct Publication<'a> {
    pub name: &'a str,
    /// The PCI function that has it, without which no client reaches it.
    pub function: Option<Address>,
    /// A label; [`Kind::File`] of a memfd.
    pub kind: Kind,
    pub offset: u64,
    pub len: u64,
    /// For other users too.
    pub all_users: bool,
}

impl Connection {
    /// Connects to the daemon under that name, or at that path if it begins with /. It has to be root's or
    /// this user's.
    pub fn open(name: &str) -> Result<Connection, Error> {
        let connected = match name.starts_with('/') {
            true => socket::connect_at(Path::new(name)),
            false => socket::connect(name),
        };
        let sock = connected.map_err(|e| {
            // Nothing is there, or nothing listens there any more: the same to a program.
            let e = match e.kind() {
                std::io::ErrorKind::InvalidInput => {
                    return Error::Invalid(format!(
                        "{name:?}: a socket's name has up to 107 bytes, none of them 0"
                    ));
                }
                std::io::ErrorKind::NotFound => std::io::Error::from_raw_os_error(libc::ECONNREFUSED),
                _ => e,
            };
            Error::Os(format!("no daemon listens at {name:?}; `strait p2pmemd` starts one"), e)
        })?;
        let cred = Cred::of(&sock).map_err(os)?;
        if cred.uid != 0 && cred.user(&sock) != User::Ours {
            return Err(Error::Forbidden(format!(
                "what listens at {name:?} is uid {}'s, neither root's nor this user's",
                cred.uid
            )));
        }
        Ok(Connection { talk: Talk::new(sock) })
    }

    /// Readable when there may be a notice.
    pub fn fd(&self) -> RawFd {
        self.talk.fd()
    }

    /// Whether the daemon has ended the connection: what it gave may be another process's by now.
    pub fn is_ended(&self) -> bool {
        self.talk.is_ended()
    }

    /// Asks for memory that no other user publishes.
    pub fn allocate(
        &mut self,
        clients: &[&str],
        len: u64,
        align: u64,
        segments: u16,
        host: bool,
        job: &str,
    ) -> Result<Remote, Error> {
        self.request(&Wanted { clients, len, align, segments, host, others: false, job })
    }

    /// Asks for memory.
    pub fn request(&mut self, wanted: &Wanted<'_>) -> Result<Remote, Error> {
        let &Wanted { len, align, segments, host, others, job, .. } = wanted;
        let clients = named(wanted.clients)?;
        if job.len() > MOST_NAME || !(1..=MOST_SEGMENTS).contains(&segments) {
            let most = MOST_SEGMENTS;
            return Err(Error::Invalid(format!(
                "a job has up to {MOST_NAME} bytes, a buffer 1 to {most} segments"
            )));
        }
        self.ask(&Ask::Allocate { len, align, segments, host, others, job: job.into(), clients })?;
        self.granted(segments, None)
    }

    /// Frees a buffer. In a forked process it is unmapped there, and stays its parent's.
    pub fn free(&mut self, buffer: Remote) -> Result<(), Error> {
        let handle = buffer.handle;
        // Unmapped first: it may be another process's a moment later.
        drop(buffer);
        // With the connection all that it had has gone back.
        if self.talk.is_forked() || self.talk.is_ended() {
            return Ok(());
        }
        self.ask(&Ask::Free { handle })?;
        self.talk.done().map(drop)
    }

    /// The same memory for further devices.
    pub fn widen(&mut self, buffer: &Remote, clients: &[&str]) -> Result<Remote, Error> {
        let clients = named(clients)?;
        self.ask(&Ask::Widen { handle: buffer.handle, clients })?;
        // Another mapping of a window would be other memory.
        self.granted(MOST_SEGMENTS, Some(&buffer.pieces))
    }

    /// What another process of this user opens the buffer by, as long as this one has it.
    pub fn share(&mut self, buffer: &Remote) -> Result<Token, Error> {
        self.ask(&Ask::Offer { handle: buffer.handle })?;
        match self.talk.answer()? {
            (Answer::Token { token }, _) => {
                self.talk.close();
                Ok(token)
            }
            _ => Err(nonsense()),
        }
    }

    /// Opens a buffer that another process shares.
    pub fn open_shared(&mut self, token: Token) -> Result<Remote, Error> {
        self.ask(&Ask::Open { token })?;
        self.granted(MOST_SEGMENTS, None)
    }

    /// A dma-buf of a piece, or the descriptor of a memfd that was published, and where in it the piece
    /// begins.
    pub fn dmabuf(&mut self, buffer: &Remote, piece: usize) -> Result<(OwnedFd, u64), Error> {
        let no_piece = || Error::Invalid(format!("there is no piece {piece}"));
        let number = u16::try_from(piece).ok().filter(|_| piece < buffer.segments()).ok_or_else(no_piece)?;
        // The kernel has mapped a window in more pieces than the daemon has of it.
        let number = if buffer.kind == Kind::Sysfs.name() { 0 } else { number };
        self.ask(&Ask::Dmabuf { handle: buffer.handle, piece: number })?;
        let (Answer::Dmabuf { offset }, fd) = self.talk.part()? else { return Err(nonsense()) };
        self.talk.close();
        let lacks = || {
            let e = std::io::Error::from_raw_os_error(libc::EMFILE);
            Error::Os("the dma-buf: this process has as many descriptors as it may".into(), e)
        };
        Ok((fd.ok_or_else(lacks)?, offset))
    }

    /// The daemon's publishers that this user may have memory of: those that all clients reach first, the
    /// closest before others. Without clients, in the order in which they came.
    pub fn list(&mut self, clients: &[&str]) -> Result<Vec<Published>, Error> {
        let clients = named(clients)?;
        let mut all: Vec<Published> = Vec::new();
        let begin = Instant::now();
        loop {
            let (from, clients) = (u16::try_from(all.len()).unwrap_or(u16::MAX), clients.clone());
            self.ask(&Ask::List { from, clients })?;
            let had = all.len();
            let count = loop {
                match self.talk.answer()?.0 {
                    Answer::Publisher(_)
                        if all.len() >= had + MOST_LISTED || all.len() >= MOST_PUBLISHERS =>
                    {
                        return Err(nonsense());
                    }
                    Answer::Publisher(_) if begin.elapsed() > PATIENCE => return Err(no_answer()),
                    Answer::Publisher(published) => all.push(published),
                    Answer::Done { count } => break count,
                    _ => return Err(nonsense()),
                }
            };
            self.talk.close();
            // One that has come or gone meanwhile has moved the others.
            if all.len() == had || all.len() as u64 >= count {
                let mut names = std::collections::HashSet::new();
                all.retain(|p| names.insert(p.name.clone()));
                return Ok(all);
            }
        }
    }

    /// How a device reaches a publisher.
    pub fn route(&mut self, publisher: &str, client: &str) -> Result<(Reach, String), Error> {
        let names = named(&[publisher, client])?;
        let [publisher, client] = <[String; 2]>::try_from(names).map_err(|_| nonsense())?;
        self.ask(&Ask::Route { publisher, client: client.clone() })?;
        match self.talk.answer()?.0 {
            Answer::Route { map, distance, why } => {
                self.talk.close();
                Ok((Reach { client, map, distance }, why))
            }
            _ => Err(nonsense()),
        }
    }

    /// Adds a rule for what this connection asks for from now on, behind the daemon's own rules.
    pub fn add_rule(&mut self, rule: &str) -> Result<(), Error> {
        if rule.len() > MOST_RULE {
            return Err(Error::Rule(format!("a rule has up to {MOST_RULE} bytes")));
        }
        self.ask(&Ask::Rule { text: rule.into() })?;
        self.talk.done().map(drop)
    }

    /// Publishes memory of this process, by a memfd or a dma-buf. A memfd is sealed so that it cannot become
    /// shorter (F_SEAL_SHRINK). It is taken out when this connection ends.
    pub fn publish(&mut self, of: &Publication<'_>, fd: BorrowedFd<'_>) -> Result<(), Error> {
        let copy = fd.try_clone_to_owned().map_err(|e| Error::Os("the descriptor".into(), e))?;
        descriptor::sealed(&copy)?;
        let [name] = <[String; 1]>::try_from(named(&[of.name])?).map_err(|_| nonsense())?;
        let function = of.function.map(|f| f.to_string()).unwrap_or_default();
        let (kind, offset, len, all_users) = (of.kind.name().into(), of.offset, of.len, of.all_users);
        self.talk.ask(&Ask::Publish { name, function, kind, offset, len, all_users }, Some(fd))?;
        self.talk.done().map(drop)
    }

    /// Publishes `of.len` bytes at `addr` of this process, of a GPU or of a client's own kind: by a handle of
    /// its driver's for processes of this user, by which they map it, or else by a dma-buf. `of.kind` and
    /// `of.offset` are not used.
    pub fn publish_memory(&mut self, of: &Publication<'_>, addr: usize) -> Result<(), Error> {
        let len =
            usize::try_from(of.len).map_err(|_| Error::Invalid("that is more than a process has".into()))?;
        match export_to_processes(of.name, addr, len)? {
            (kind, Exported::Dmabuf(fd, offset)) => {
                self.publish(&Publication { kind, offset, ..*of }, fd.as_fd())
            }
            (kind, Exported::Handle(export, offset)) => {
                let [name] = <[String; 1]>::try_from(named(&[of.name])?).map_err(|_| nonsense())?;
                let function = of.function.map(|f| f.to_string()).unwrap_or_default();
                let (kind, export) = (kind.name().into(), export.to_bytes());
                self.ask(&Ask::PublishHandle { name, function, kind, export, offset, len: of.len })?;
                self.talk.done().map(drop)
            }
        }
    }

    /// Takes a publisher out, which only root, the daemon's user and the user that published it may. How many
    /// buffers were revoked.
    pub fn unpublish(&mut self, publisher: &str, drain: Drain) -> Result<u64, Error> {
        let how = match drain {
            Drain::IfIdle => How::IfIdle,
            Drain::Wait(_) => How::Drain,
            Drain::Revoke => How::Revoke,
        };
        drained(drain, || {
            self.ask(&Ask::Unpublish { publisher: publisher.into(), how })?;
            self.talk.done()
        })
    }

    /// The next buffer that was revoked, by its handle, and why.
    pub fn revoked(&mut self) -> Result<Option<(u64, String)>, Error> {
        self.talk.own()?;
        if let Some(notice) = self.talk.notice() {
            return Ok(Some(notice));
        }
        self.talk.read_notices()?;
        Ok(self.talk.notice())
    }

    /// Whether that buffer was revoked. Notices of others stay for [`Connection::revoked`].
    pub fn is_revoked(&mut self, handle: u64) -> Result<bool, Error> {
        self.talk.read_notices()?;
        Ok(self.talk.notice_of(handle).is_some())
    }

    /// Whether this process may use it: not one that was forked since.
    pub(super) fn own(&self) -> Result<(), Error> {
        self.talk.own()
    }

    /// Reads the notices that have come.
    pub(super) fn read_notices(&mut self) -> Result<(), Error> {
        self.talk.read_notices()
    }

    /// The first of the notices that were read.
    pub(super) fn taken(&mut self) -> Option<(u64, String)> {
        self.talk.notice()
    }

    /// A copy of the descriptor, to wait at.
    pub(super) fn copy(&self) -> std::io::Result<OwnedFd> {
        self.talk.copy()
    }

    fn ask(&mut self, ask: &Ask) -> Result<(), Error> {
        self.talk.ask(ask, None)
    }

    /// Receives a buffer and maps it, in up to `most` pieces; if it is to be the memory of `same`, that is
    /// it.
    fn granted(&mut self, most: u16, same: Option<&Arc<Pieces>>) -> Result<Remote, Error> {
        let (Answer::Granted { handle, publisher, kind, segments, reach }, _) = self.talk.answer()? else {
            return Err(nonsense());
        };
        let mut parts = Vec::new();
        // All of them are received, whatever becomes of the first.
        for _ in 0..segments {
            parts.push(match self.talk.part()? {
                (Answer::Segment { of, offset, len }, fd) => Part { from: From::File(fd, of), offset, len },
                (Answer::Handle { export, offset, len }, _) => {
                    Part { from: From::Handle(export), offset, len }
                }
                _ => return Err(nonsense()),
            });
        }
        self.talk.close();
        let pieces = match same {
            Some(same) => Ok(same.clone()),
            None => map_all(parts, most.into()),
        };
        match pieces {
            Ok(pieces) => Ok(Remote { handle, publisher, kind, reach, pieces }),
            Err(why) => {
                self.ask(&Ask::Free { handle })?;
                self.talk.done()?;
                Err(why)
            }
        }
    }
}

/// Attempts to take a publisher out, until its buffers are freed or `drain` has passed. Between attempts
/// nothing is held.
pub(super) fn drained(drain: Drain, mut attempt: impl FnMut() -> Result<u64, Error>) -> Result<u64, Error> {
    let begin = Instant::now();
    loop {
        match (attempt(), drain) {
            (Err(Error::Daemon(libc::EBUSY, _)), Drain::Wait(time)) if begin.elapsed() < time => {
                std::thread::sleep(BETWEEN_ATTEMPTS.min(time.saturating_sub(begin.elapsed())));
            }
            (other, _) => return other,
        }
    }
}

fn named(names: &[&str]) -> Result<Vec<String>, Error> {
    if names.len() > MOST_CLIENTS {
        let count = names.len();
        return Err(Error::Invalid(format!("{count} clients: a request has up to {MOST_CLIENTS}")));
    }
    if let Some(long) = names.iter().find(|name| name.len() > MOST_NAME) {
        let len = long.len();
        return Err(Error::Invalid(format!("{long:?}: {len} bytes: a name has up to {MOST_NAME}")));
    }
    Ok(names.iter().map(|c| (*c).to_owned()).collect())
}
