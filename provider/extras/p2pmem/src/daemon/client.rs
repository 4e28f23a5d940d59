//! A process that has its memory from the daemon.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipc::credentials::{Cred, User};
use ipc::{memfd, rights, socket};

use super::wire::{Answer, Ask, How, MOST, MOST_CLIENTS, MOST_NAME, MOST_SEGMENTS, Reach, Token};
use crate::error::Error;
use crate::orchestrator::Drain;
use crate::peer;
use crate::publisher::{self, Mapped, Source};

/// How long the daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection to the daemon. What it has goes back when it is dropped.
#[derive(Debug)]
pub struct Connection {
    sock: OwnedFd,
    revoked: VecDeque<(u64, String)>,
    /// An answer is still to come, in whole or in part.
    open: bool,
    /// Whose it is: the daemon gives to one process, and a forked one would take its parent's answers.
    process: u32,
}

/// A buffer of the daemon's, mapped. It goes back with [`Connection::free`], or with the connection.
#[derive(Debug)]
pub struct Remote {
    pub handle: u64,
    pub publisher: String,
    pub kind: String,
    /// How each requested device reaches it.
    pub reach: Vec<Reach>,
    pieces: Arc<Pieces>,
}

/// Mapped memory of one buffer or of several that share it.
#[derive(Debug)]
struct Pieces(Vec<Mapped>);

impl Remote {
    /// Its pieces, where they are in this process.
    pub fn pieces(&self) -> &[Mapped] {
        &self.pieces.0
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        self.0.iter().for_each(peer::remove);
    }
}

/// A publisher of the daemon's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    pub name: String,
    pub kind: String,
    pub size: u64,
    pub available: u64,
    pub buffers: u64,
}

fn os(e: io::Error) -> Error {
    Error::Os("the daemon's socket".into(), e)
}

fn nonsense() -> Error {
    Error::Daemon(libc::EPROTO, "the daemon's answer makes no sense: is it of another version?".into())
}

impl Connection {
    /// Connects to the daemon under that name, which has to be root's or this user's.
    pub fn open(name: &str) -> Result<Connection, Error> {
        let sock = socket::connect(name).map_err(|e| {
            Error::Os(format!("no daemon listens at {name:?}; `strait p2pmemd` starts one"), e)
        })?;
        let cred = Cred::of(&sock).map_err(os)?;
        if cred.uid != 0 && cred.user(&sock) != User::Ours {
            return Err(Error::Forbidden(format!(
                "what listens at {name:?} is uid {}'s, neither root's nor this user's",
                cred.uid
            )));
        }
        Ok(Connection { sock, revoked: VecDeque::new(), open: false, process: std::process::id() })
    }

    /// Readable when there may be a notice.
    pub fn fd(&self) -> RawFd {
        self.sock.as_raw_fd()
    }

    /// Asks for memory. The fields are those of [`crate::Request`]; `uid` is this process's.
    pub fn allocate(
        &mut self,
        clients: &[&str],
        len: u64,
        align: u64,
        segments: u16,
        host: bool,
        job: &str,
    ) -> Result<Remote, Error> {
        let clients = named(clients)?;
        if job.len() > MOST_NAME || !(1..=MOST_SEGMENTS).contains(&segments) {
            let most = MOST_SEGMENTS;
            return Err(Error::Invalid(format!(
                "a job has up to {MOST_NAME} bytes, a buffer 1 to {most} segments"
            )));
        }
        self.ask(&Ask::Allocate { len, align, segments, host, job: job.into(), clients })?;
        self.granted(segments, None)
    }

    /// Frees a buffer. In a forked process it is unmapped there, and stays its parent's.
    pub fn free(&mut self, buffer: Remote) -> Result<(), Error> {
        let handle = buffer.handle;
        // Unmapped first: it may be another process's a moment later.
        drop(buffer);
        if self.is_forked() {
            return Ok(());
        }
        self.ask(&Ask::Free { handle })?;
        self.done().map(drop)
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
        match self.answer()? {
            (Answer::Token { token }, _) => {
                self.open = false;
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

    /// The daemon's publishers.
    pub fn list(&mut self) -> Result<Vec<Published>, Error> {
        self.ask(&Ask::List)?;
        let mut all = Vec::new();
        loop {
            match self.answer()?.0 {
                Answer::Publisher { name, kind, size, available, buffers } => {
                    all.push(Published { name, kind, size, available, buffers });
                }
                Answer::Done { .. } => {
                    self.open = false;
                    return Ok(all);
                }
                _ => return Err(nonsense()),
            }
        }
    }

    /// Takes a publisher out, which only root and the daemon's user may. How many buffers were revoked.
    pub fn unpublish(&mut self, publisher: &str, drain: Drain) -> Result<u64, Error> {
        let how = match drain {
            Drain::IfIdle => How::IfIdle,
            Drain::Wait(_) => How::Drain,
            Drain::Revoke => How::Revoke,
        };
        let begin = Instant::now();
        loop {
            self.ask(&Ask::Unpublish { publisher: publisher.into(), how })?;
            match (self.done(), drain) {
                (Err(Error::Daemon(libc::EBUSY, _)), Drain::Wait(time)) if begin.elapsed() < time => {
                    std::thread::sleep(Duration::from_millis(10).min(time));
                }
                (other, _) => return other,
            }
        }
    }

    /// The next buffer that was revoked, by its handle, and why.
    pub fn revoked(&mut self) -> Result<Option<(u64, String)>, Error> {
        self.own()?;
        while self.revoked.is_empty() && socket::wait(&self.sock, 0) {
            match self.receive()? {
                (Answer::Revoked { handle, why }, _) => self.revoked.push_back((handle, why)),
                (Answer::Failed { errno, why }, _) => return Err(Error::Daemon(errno, why)),
                _ => return Err(nonsense()),
            }
        }
        Ok(self.revoked.pop_front())
    }

    /// Whether that buffer was revoked. Notices of others stay for [`Connection::revoked`].
    pub fn is_revoked(&mut self, handle: u64) -> Result<bool, Error> {
        if let Some(notice) = self.revoked()? {
            self.revoked.push_front(notice);
        }
        while socket::wait(&self.sock, 0) {
            match self.receive()? {
                (Answer::Revoked { handle, why }, _) => self.revoked.push_back((handle, why)),
                _ => return Err(nonsense()),
            }
        }
        let at = self.revoked.iter().position(|(of, _)| *of == handle);
        Ok(at.is_some_and(|at| self.revoked.remove(at).is_some()))
    }

    fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    fn own(&self) -> Result<(), Error> {
        match self.is_forked() {
            false => Ok(()),
            true => Err(Error::Unsupported(
                "this connection to the daemon is of the process that forked this one: open another here"
                    .into(),
            )),
        }
    }

    fn ask(&mut self, ask: &Ask) -> Result<(), Error> {
        self.own()?;
        if self.open {
            // What comes next would be taken for the answer to this.
            let why = "an answer of the daemon came too late, or made no sense: this connection asks no more; what was given stays until it is closed";
            return Err(Error::Daemon(libc::EPIPE, why.into()));
        }
        socket::send(&self.sock, &ask.to_bytes()).map_err(os)?;
        self.open = true;
        Ok(())
    }

    fn receive(&mut self) -> Result<(Answer, Option<OwnedFd>), Error> {
        let mut bytes = [0; MOST];
        let (len, fd) = rights::recv_fd(&self.sock, &mut bytes).map_err(os)?;
        if len == 0 {
            return Err(Error::Os(
                "the daemon ended the connection".into(),
                io::ErrorKind::ConnectionReset.into(),
            ));
        }
        Ok((Answer::parse(&bytes[..len]).ok_or_else(nonsense)?, fd))
    }

    /// The next answer that is no notice.
    fn answer(&mut self) -> Result<(Answer, Option<OwnedFd>), Error> {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if !socket::wait(&self.sock, left.as_millis() as i32) {
                if left.is_zero() {
                    return Err(Error::Os(
                        "the daemon does not answer".into(),
                        io::ErrorKind::TimedOut.into(),
                    ));
                }
                continue;
            }
            match self.receive()? {
                (Answer::Revoked { handle, why }, _) => self.revoked.push_back((handle, why)),
                (Answer::Failed { errno, why }, _) => {
                    self.open = false;
                    return Err(Error::Daemon(errno, why));
                }
                other => return Ok(other),
            }
        }
    }

    fn done(&mut self) -> Result<u64, Error> {
        match self.answer()?.0 {
            Answer::Done { count } => {
                self.open = false;
                Ok(count)
            }
            _ => Err(nonsense()),
        }
    }

    /// The next answer, without its descriptor if this process has no room for it.
    fn part(&mut self) -> Result<(Answer, Option<OwnedFd>), Error> {
        match self.answer() {
            // The packet is still there.
            Err(Error::Os(_, e)) if socket::is_lack(&e) => {
                let mut bytes = [0; MOST];
                let len = socket::receive(&self.sock, &mut bytes).map_err(os)?;
                Ok((Answer::parse(&bytes[..len]).ok_or_else(nonsense)?, None))
            }
            other => other,
        }
    }

    /// Receives a buffer and maps it, in up to `most` pieces; if it is to be the memory of `same`, that is
    /// it.
    fn granted(&mut self, most: u16, same: Option<&Arc<Pieces>>) -> Result<Remote, Error> {
        let (Answer::Granted { handle, publisher, kind, segments, reach }, _) = self.answer()? else {
            return Err(nonsense());
        };
        let mut parts = Vec::new();
        // All of them are received, whatever becomes of the first.
        for _ in 0..segments {
            let (Answer::Segment { window, sealed, offset, len }, fd) = self.part()? else {
                return Err(nonsense());
            };
            parts.push(Part { fd, window, sealed, offset, len });
        }
        self.open = false;
        let pieces = match same {
            Some(same) => Ok(same.clone()),
            None => map_all(parts, most.into()),
        };
        match pieces {
            Ok(pieces) => Ok(Remote { handle, publisher, kind, reach, pieces }),
            Err(why) => {
                self.ask(&Ask::Free { handle })?;
                self.done()?;
                Err(why)
            }
        }
    }
}

/// A piece as the daemon gives it.
struct Part {
    /// None came: the kernel drops a descriptor that the process has no room for.
    fd: Option<OwnedFd>,
    window: bool,
    sealed: bool,
    offset: u64,
    len: u64,
}

fn map_all(parts: Vec<Part>, most: usize) -> Result<Arc<Pieces>, Error> {
    let (count, mut pieces) = (parts.len(), Pieces(Vec::new()));
    for (n, part) in parts.into_iter().enumerate() {
        let most = most.saturating_sub(pieces.0.len() + count - n - 1).max(1);
        for piece in map(part, most)? {
            peer::insert(&piece);
            pieces.0.push(piece);
        }
    }
    Ok(Arc::new(pieces))
}

fn map(Part { fd, window, sealed, offset, len }: Part, most: usize) -> Result<Vec<Mapped>, Error> {
    let fd = fd.ok_or_else(no_descriptor)?;
    if sealed {
        let end = offset.checked_add(len).and_then(|end| usize::try_from(end).ok()).ok_or_else(nonsense)?;
        memfd::vet(&fd, memfd::FIXED, end..).map_err(|_| nonsense())?;
    }
    let fd = Arc::new(fd);
    let source = if window { Source::Window(fd) } else { Source::File { fd, offset } };
    publisher::map(&source, len, most).map_err(|e| Error::Os("the daemon's memory: mmap".into(), e))
}

fn no_descriptor() -> Error {
    let what = "the daemon's memory came without its descriptor: this process has as many as it may (RLIMIT_NOFILE); close some, or raise ulimit -n";
    Error::Os(what.into(), io::Error::from_raw_os_error(libc::EMFILE))
}

fn named(clients: &[&str]) -> Result<Vec<String>, Error> {
    if clients.len() > MOST_CLIENTS || clients.iter().any(|c| c.len() > MOST_NAME) {
        return Err(Error::Invalid(format!(
            "up to {MOST_CLIENTS} clients, with names of up to {MOST_NAME} bytes"
        )));
    }
    Ok(clients.iter().map(|c| (*c).to_owned()).collect())
}
