//! The daemon.

mod peers;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ipc::credentials::{Cred, User};
use ipc::{Poller, rights, socket};

use self::peers::Peers;
use super::wire::{Answer, Ask, How, MOST, MOST_SEGMENTS, Reach};
use crate::error::Error;
use crate::orchestrator::{Buffer, Client, Drain, Orchestrator, Request};
use crate::publisher::{Kind, Lease, Source};

/// Messages of a connection that are handled before others get their turn.
const BURST: usize = 16;

/// How often a busy daemon looks whether devices are gone.
const CHECK: Duration = Duration::from_secs(1);

const LISTENER: u64 = 0;
const WAKE: u64 = 1;

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
    next: u64,
    /// When it was last seen whether devices are gone.
    checked: Instant,
    /// When the host was last read for the name of a client that is not known.
    asked: Option<Instant>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("peers", &self.peers.len()).finish_non_exhaustive()
    }
}

impl Server {
    /// Listens under an abstract name.
    pub fn new(name: &str, orchestrator: Orchestrator) -> Result<Server, Error> {
        let os = |e: io::Error| match e.kind() {
            io::ErrorKind::AddrInUse => {
                Error::Os(format!("{name}: another daemon listens there; end it, or use another name"), e)
            }
            _ => Error::Os(name.into(), e),
        };
        let listener = socket::listen(name).map_err(os)?;
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
            next: 2,
            checked: Instant::now(),
            asked: None,
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
        socket::wait(&self.poller.fd(), most.as_millis().min(60_000) as i32);
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
                peer => {
                    if !self.hear(peer) {
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
                    log::warn!("p2pmemd: {e}: no connection is taken until another ends");
                    std::thread::sleep(Duration::from_millis(10));
                    return;
                }
                Err(_) => return,
            };
            let Ok(cred) = Cred::of(&sock) else { continue };
            if self.peers.is_full(cred.uid).is_some_and(|of| !self.end_silent(of)) {
                let why =
                    format!("uid {} has {} connections: end some", cred.uid, self.peers.of_user(cred.uid));
                let _ = socket::send(&sock, &Answer::Failed { errno: libc::EUSERS, why }.to_bytes());
                continue;
            }
            let id = self.number();
            if self.poller.add(&sock, id).is_ok() {
                self.peers.add(id, sock, cred);
            }
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
        }
    }

    /// Deals with what a connection has sent; whether it goes on.
    fn hear(&mut self, id: u64) -> bool {
        // One byte more, to see that a packet is too long.
        let mut bytes = [0; MOST + 1];
        for _ in 0..BURST {
            let Some(peer) = self.peers.get(id) else { return false };
            let len = match socket::receive(&peer.sock, &mut bytes) {
                Ok(0) => return false,
                Ok(len) => len,
                Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
            };
            let (uid, pid) = (peer.cred.uid, peer.cred.pid);
            let Some(ask) = bytes.get(..len).filter(|_| len <= MOST).and_then(Ask::parse) else {
                log::warn!(
                    "p2pmemd: process {pid} of uid {uid} sent {len} bytes that are no message: disconnected"
                );
                return false;
            };
            self.peers.has_asked(id);
            let sent = match self.answer(id, ask) {
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

    fn send(&self, id: u64, answer: &Answer) -> Result<(), Stop> {
        let peer = self.peers.get(id).ok_or(Stop::Peer)?;
        socket::send(&peer.sock, &answer.to_bytes()).map_err(|_| Stop::Peer)
    }

    fn answer(&mut self, id: u64, ask: Ask) -> Result<(), Stop> {
        let peer = self.peers.get(id).ok_or(Stop::Peer)?;
        match ask {
            Ask::Allocate { len, align, segments, host, job, clients } => {
                let uid = peer.cred.uid;
                self.peers.room(id)?;
                self.peers.descriptors_left(uid, self.orchestrator.descriptors(uid))?;
                let clients = self.clients(&clients)?;
                let segments = usize::from(segments.min(MOST_SEGMENTS));
                let request = Request { clients, len, align, segments, uid, job, host };
                let buffer = self.orchestrator.grant(&request)?;
                self.grant(id, buffer)
            }
            Ask::Free { handle } => {
                self.peers.free(id, handle)?;
                self.send(id, &Answer::Done { count: 1 })
            }
            Ask::Widen { handle, clients } => {
                let buffer = peer.buffer(handle)?.clone();
                self.peers.room(id)?;
                let wider = buffer.share(&self.clients(&clients)?)?;
                self.grant(id, wider)
            }
            Ask::Offer { handle } => {
                let token = self.peers.share(id, handle)?;
                self.send(id, &Answer::Token { token })
            }
            Ask::Open { token } => {
                self.peers.room(id)?;
                let buffer = self.peers.open(id, token)?;
                self.grant(id, buffer)
            }
            Ask::List => {
                for p in self.orchestrator.publishers() {
                    let (kind, buffers) = (p.kind.into(), p.buffers as u64);
                    let (name, size, available) = (p.name, p.size, p.available);
                    self.send(id, &Answer::Publisher { name, kind, size, available, buffers })?;
                }
                self.send(id, &Answer::Done { count: 0 })
            }
            Ask::Unpublish { publisher, how } => {
                if peer.cred.uid != 0 && peer.cred.user(&peer.sock) != User::Ours {
                    let why = "only root and the daemon's own user may unpublish";
                    return Err(Error::Forbidden(why.into()).into());
                }
                let drain = match how {
                    How::IfIdle => Drain::IfIdle,
                    // The daemon waits for no buffer: its client asks again.
                    How::Drain => Drain::Wait(Duration::ZERO),
                    How::Revoke => Drain::Revoke,
                };
                let count = self.orchestrator.unpublish(&publisher, drain)? as u64;
                // All owners get their notices before the answer.
                self.send_notices();
                self.send(id, &Answer::Done { count })
            }
        }
    }

    /// Devices by their names. For one that is not known the host is read anew, once in a while: to read all
    /// of it takes longer than to ask for names that there are not.
    fn clients(&mut self, names: &[String]) -> Result<Vec<Client>, Error> {
        let mut all = Vec::with_capacity(names.len());
        for name in names {
            let known = self.orchestrator.known_client(name);
            let soon = self.asked.is_some_and(|then| then.elapsed() < CHECK);
            all.push(match known {
                Err(_) if !soon => {
                    self.asked = Some(Instant::now());
                    self.orchestrator.client(name)?
                }
                known => known?,
            });
        }
        Ok(all)
    }

    /// Hands a buffer to a connection.
    fn grant(&mut self, id: u64, buffer: Buffer) -> Result<(), Stop> {
        // Nothing of another process's address space can be given.
        let source = |lease: &Lease| lease.source().clone();
        let sources: Vec<Source> = buffer.leases().iter().map(source).collect();
        // And by a device's descriptor all of the device is controlled.
        if sources.iter().any(|s| matches!(s, Source::Here(_) | Source::Bar { .. })) {
            return Err(Error::Unsupported(
                "memory of the daemon's own process, or of a device that it controls, cannot be given away"
                    .into(),
            )
            .into());
        }
        self.may_have_files(id, &buffer)?;
        let handle = self.number();
        let reach = buffer.routes().iter().map(|(client, route)| Reach {
            client: client.clone(),
            map: route.map as u8,
            distance: route.distance,
        });
        let granted = Answer::Granted {
            handle,
            publisher: buffer.publisher().into(),
            kind: buffer.kind().name().into(),
            segments: sources.len() as u16,
            reach: reach.collect(),
        };
        self.send(id, &granted)?;
        let peer = self.peers.get_mut(id).ok_or(Stop::Peer)?;
        let sealed = buffer.kind() == Kind::Host;
        for (lease, source) in buffer.leases().iter().zip(&sources) {
            let (window, fd, offset) = match source {
                Source::File { fd, offset } => (false, fd, *offset),
                Source::Window(fd) => (true, fd, 0),
                Source::Here(_) | Source::Bar { .. } => continue,
            };
            let segment = Answer::Segment { window, sealed, offset, len: lease.len() };
            rights::send_fd(&peer.sock, &segment.to_bytes(), fd.as_fd()).map_err(|_| Stop::Peer)?;
        }
        let notices = self.notices.clone();
        let notice = buffer.on_revoke(move |why| {
            let mut list = notices.list.lock().unwrap_or_else(PoisonError::into_inner);
            list.push((id, handle, why.to_owned()));
            // If it is full the daemon wakes up all the same.
            let _ = socket::send(&notices.wake, &[1]);
        });
        peer.hold(handle, buffer, notice);
        Ok(())
    }

    /// A descriptor reaches all of its file. So a part of one goes to root and the daemon's own user alone.
    fn may_have_files(&self, id: u64, buffer: &Buffer) -> Result<(), Stop> {
        let peer = self.peers.get(id).ok_or(Stop::Peer)?;
        if buffer.kind() != Kind::File || peer.cred.uid == 0 || peer.cred.user(&peer.sock) == User::Ours {
            return Ok(());
        }
        let whole = |lease: &Lease| match lease.source() {
            Source::File { fd, offset } => is_whole(fd, *offset, lease.len()),
            _ => true,
        };
        if buffer.leases().iter().all(whole) {
            return Ok(());
        }
        let why = "a part of a file would give all of it away: only root and the daemon's own user get parts of this publisher";
        Err(Error::Forbidden(why.into()).into())
    }

    /// Sends the notices of revocations.
    fn send_notices(&mut self) {
        let list = std::mem::take(&mut *self.notices.list.lock().unwrap_or_else(PoisonError::into_inner));
        for (id, handle, why) in list {
            let holds = self.peers.get(id).is_some_and(|p| p.holds(handle));
            if holds && self.send(id, &Answer::Revoked { handle, why }).is_err() {
                self.end(id);
            }
        }
    }
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

/// Whether that part of a file is all of it.
fn is_whole(fd: &OwnedFd, offset: u64, len: u64) -> bool {
    let size = fd.try_clone().and_then(|fd| std::fs::File::from(fd).metadata()).map(|m| m.len());
    offset == 0 && size.is_ok_and(|size| size <= len)
}

#[cfg(test)]
mod tests;
