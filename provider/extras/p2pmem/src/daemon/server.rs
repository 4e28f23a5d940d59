//! The daemon.

mod answers;
mod peers;
mod publications;

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ipc::credentials::Cred;
use ipc::rights::{self, Packet};
use ipc::{Poller, Watch, socket};
use meet::{Life, Shortage};

use self::peers::{Peer, Peers};
use self::publications::Publications;
use super::wire::{self, Answer, Ask, MOST};
use crate::error::Error;
use crate::orchestrator::Orchestrator;

/// Messages of a connection that are handled before others get their turn.
const BURST: usize = 16;

/// How often a busy daemon looks whether devices are gone.
const CHECK: Duration = Duration::from_secs(1);

/// How long no connection is accepted where descriptors or memory lack, unless one ends.
const PAUSE: Duration = Duration::from_millis(100);

const LISTENER: u64 = 0;
const WAKE: u64 = 1;
/// With a connection's number: its process has ended.
const ENDED: u64 = 1 << 63;

/// Notices of revocations that are still to be sent: connection, handle, reason.
#[derive(Clone, Debug)]
struct Notices {
    list: Arc<Mutex<Vec<(u64, u64, String)>>>,
    wake: Arc<OwnedFd>,
}

/// See the module.
pub struct Server {
    listener: OwnedFd,
    poller: Poller,
    woken: OwnedFd,
    notices: Notices,
    orchestrator: Orchestrator,
    peers: Peers,
    publications: Publications,
    next: u64,
    /// When it was last seen whether devices are gone.
    checked: Instant,
    /// When the host was last read for the name of a client that is not known.
    asked: Option<Instant>,
    /// Since when no connection is accepted.
    paused: Option<Instant>,
    shortage: Shortage,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("peers", &self.peers.len()).finish_non_exhaustive()
    }
}

impl Server {
    /// Listens under an abstract name, which is one of a network namespace, or at a path, if it begins with
    /// `/`.
    pub fn new(name: &str, orchestrator: Orchestrator) -> Result<Server, Error> {
        let os = |e: io::Error| match e.kind() {
            io::ErrorKind::AddrInUse if is_other_file(name) => Error::Os(
                format!("{name}: a file that is no socket is there; remove it, or use another name"),
                e,
            ),
            io::ErrorKind::InvalidInput => {
                Error::Invalid(format!("{name:?}: a socket's name has up to 107 bytes, none of them 0"))
            }
            io::ErrorKind::AddrInUse => {
                Error::Os(format!("{name}: another daemon listens there; end it, or use another name"), e)
            }
            _ => Error::Os(name.into(), e),
        };
        let listener = match name.starts_with('/') {
            true => socket::listen_at(Path::new(name)),
            false => socket::listen(name),
        };
        let listener = listener.map_err(os)?;
        let poller = Poller::new().map_err(os)?;
        let (wake, woken) = std::os::unix::net::UnixStream::pair().map_err(os)?;
        wake.set_nonblocking(true).map_err(os)?;
        let woken = OwnedFd::from(woken);
        poller.add(&listener, LISTENER).map_err(os)?;
        poller.add(&woken, WAKE).map_err(os)?;
        let notices = Notices { list: Arc::default(), wake: Arc::new(wake.into()) };
        Ok(Server {
            listener,
            poller,
            woken,
            notices,
            orchestrator,
            peers: Peers::new(),
            publications: Publications::default(),
            next: 2,
            checked: Instant::now(),
            asked: None,
            paused: None,
            shortage: Shortage::default(),
        })
    }

    /// Serves until `stop`, which is looked at at least once a second.
    pub fn serve(&mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            self.serve_once(Duration::from_secs(1));
        }
    }

    /// Connections there are.
    pub fn connections(&self) -> usize {
        self.peers.len()
    }

    /// Waits for something to happen, so long at most, and deals with it.
    pub fn serve_once(&mut self, most: Duration) {
        let most = if self.paused.is_some() { most.min(PAUSE) } else { most };
        socket::wait(&self.poller.fd(), most.as_millis().min(60_000) as i32);
        if self.paused.is_some_and(|since| since.elapsed() >= PAUSE) {
            self.accept_again();
        }
        let ready = self.poller.ready::<64>();
        if ready.is_empty() || self.checked.elapsed() > CHECK {
            let came = self.orchestrator.rediscover();
            match came {
                Ok(0) => {}
                Ok(n) => log::info!("p2pmemd: {n} publishers have come"),
                Err(e) => log::warn!("p2pmemd: {e}: it is looked at again"),
            }
            self.checked = Instant::now();
        }
        for token in ready.tokens().collect::<Vec<_>>() {
            match token {
                LISTENER => self.accept(),
                WAKE => drop(socket::receive(&self.woken, &mut [0; 256])),
                process if process & ENDED != 0 => self.end(process & !ENDED),
                peer => {
                    let waits = self.peers.get(peer).is_some_and(Peer::waits);
                    if !(if waits { self.flush(peer) } else { self.hear(peer) }) {
                        self.end(peer);
                    }
                }
            }
        }
        self.send_notices();
    }

    fn accept(&mut self) {
        for _ in 0..BURST {
            let sock = match socket::accept(&self.listener) {
                Ok(sock) => sock,
                Err(e) if socket::is_lack(&e) && self.end_silent(None) => continue,
                Err(e) if socket::is_lack(&e) => {
                    if self.shortage.warns() {
                        log::warn!("p2pmemd: {e}: no connection is taken until another ends (ulimit -n)");
                    }
                    // The connections that there are go on.
                    self.poller.remove(&self.listener);
                    self.paused = Some(Instant::now());
                    return;
                }
                Err(_) => return,
            };
            let Ok(cred) = Cred::of(&sock) else { continue };
            let full = self.peers.is_full(&sock, &cred, self.pieces(cred.uid));
            if full.is_some_and(|of| !self.end_silent(of)) {
                let why = format!(
                    "uid {} has {} connections, all users {}: end some, or start the daemon with a higher limit (ulimit -n)",
                    cred.uid,
                    self.peers.of_user(cred.uid),
                    self.peers.len()
                );
                let _ = socket::send(&sock, &Answer::Failed { errno: libc::EUSERS, why }.to_bytes());
                continue;
            }
            let id = self.number();
            // A process that was forked from one that has ended uses none of its connections.
            let Ok(life) = Life::watch(&sock, cred.pid) else { continue };
            let watched = life.as_ref().map_or(Ok(()), |life| self.poller.add(life.fd(), id | ENDED));
            if watched.is_ok() && self.poller.add(&sock, id).is_ok() {
                self.peers.add(id, sock, cred, life);
            }
        }
    }

    /// Accepts connections after a pause.
    fn accept_again(&mut self) {
        if self.paused.is_some() && self.poller.add(&self.listener, LISTENER).is_ok() {
            self.paused = None;
        }
    }

    /// Ends a connection without a message so far: the oldest of this user, or of the user that has the
    /// most of them. Whether there was one.
    fn end_silent(&mut self, of: Option<u32>) -> bool {
        self.peers.give_silent(of).inspect(|id| self.end(*id)).is_some()
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// A connection is over: all that it holds goes back.
    fn end(&mut self, id: u64) {
        if let Some(peer) = self.peers.end(id) {
            self.poller.remove(&peer.sock);
            peer.life().inspect(|life| self.poller.remove(*life));
            drop(peer);
            self.accept_again();
        }
        for name in self.publications.end(id) {
            let buffers =
                self.orchestrator.withdraw(&name, &format!("the process that published {name} has ended"));
            log::info!("p2pmemd: the process that published {name} has ended: {buffers} buffers revoked");
        }
    }

    /// The next packet of a connection; `None` at the end, or, as an error, if there is none. Only with a
    /// publication are descriptors received: what comes unasked is closed by the kernel.
    fn packet(&self, sock: &OwnedFd, uid: u32, bytes: &mut [u8]) -> io::Result<Option<Packet>> {
        let mut first = [0];
        socket::peek(sock, &mut first)?;
        let packet = match first[0] == wire::PUBLISH && self.publications.may_receive(uid) {
            true => rights::recv_all(sock, bytes)?,
            false => Packet { len: socket::receive(sock, bytes)?, fds: Vec::new(), lacks: false },
        };
        Ok(Some(packet).filter(|p| p.len > 0))
    }

    /// Deals with what a connection has sent; whether it goes on.
    fn hear(&mut self, id: u64) -> bool {
        // One byte more, to see that a packet is too long.
        let mut bytes = [0; MOST + 1];
        for _ in 0..BURST {
            let Some(peer) = self.peers.get(id) else { return false };
            if peer.waits() {
                return true;
            }
            let (uid, pid) = (peer.cred.uid, peer.cred.pid);
            let packet = match self.packet(&peer.sock, uid, &mut bytes) {
                Ok(Some(packet)) => packet,
                Ok(None) => return false,
                Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
            };
            let len = packet.len;
            let Some(ask) = bytes.get(..len).filter(|_| len <= MOST).and_then(Ask::parse) else {
                self.publications.close(uid, packet.fds);
                log::warn!(
                    "p2pmemd: process {pid} of uid {uid} sent {len} bytes that are no message: disconnected"
                );
                return false;
            };
            self.peers.has_asked(id);
            let sent = match self.answer(id, ask, packet) {
                Ok(()) => Ok(()),
                Err(Stop::Error(e)) => {
                    self.send(id, &Answer::Failed { errno: e.errno(), why: e.to_string() })
                }
                Err(stop) => Err(stop),
            };
            if sent.is_err() {
                log::warn!("p2pmemd: process {pid} of uid {uid} does not take its answers: disconnected");
                return false;
            }
        }
        true
    }

    /// Sends an answer. Only behind notices does one wait for room: what asks and takes no answers ends.
    fn send(&mut self, id: u64, answer: &Answer) -> Result<(), Stop> {
        let peer = self.peers.get_mut(id).ok_or(Stop::Peer)?;
        let sent = match peer.waits() {
            true => peer.send(answer.to_bytes()),
            false => socket::send(&peer.sock, &answer.to_bytes()),
        };
        sent.map_err(|_| Stop::Peer)
    }

    /// Sends what a connection has not taken yet, and hears it again when it has all; whether it goes on.
    fn flush(&mut self, id: u64) -> bool {
        let Some(peer) = self.peers.get_mut(id) else { return false };
        let sent = peer.flush();
        let watch = if peer.waits() { Watch::Write } else { Watch::Read };
        sent.is_ok() && self.poller.change(&peer.sock, id, watch).is_ok()
    }

    /// Sends the notices of revocations, until there are none: those that a process has no room for wait
    /// until it takes them.
    fn send_notices(&mut self) {
        loop {
            let list = std::mem::take(&mut *self.notices.list.lock().unwrap_or_else(PoisonError::into_inner));
            if list.is_empty() {
                return;
            }
            for (id, handle, why) in list {
                let Some(peer) = self.peers.get_mut(id).filter(|p| p.holds(handle)) else { continue };
                let waited = peer.waits();
                let sent = peer.send(Answer::Revoked { handle, why }.to_bytes());
                // What cannot be sent to is ended when it is heard next.
                if sent.is_ok() && peer.waits() && !waited {
                    let _ = self.poller.change(&peer.sock, id, Watch::Write);
                }
            }
        }
    }
}

/// Whether a path is one of something that is no socket.
fn is_other_file(path: &str) -> bool {
    path.starts_with('/') && std::fs::symlink_metadata(path).is_ok_and(|m| !m.file_type().is_socket())
}

/// Why a message has no answer of its own.
enum Stop {
    /// It gets this one.
    Error(Error),
    /// The connection is over.
    Peer,
}

impl From<Error> for Stop {
    fn from(e: Error) -> Stop {
        Stop::Error(e)
    }
}

#[cfg(test)]
mod tests;
