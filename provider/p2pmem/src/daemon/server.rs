//! The daemon.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ipc::credentials::{Cred, User};
use ipc::{Poller, Strangers, rights, socket};

use super::wire::{Answer, Ask, How, MOST, MOST_SEGMENTS, Reach, Token};
use crate::error::Error;
use crate::orchestrator::{Buffer, Client, Drain, NoticeId, Orchestrator, Request};
use crate::publisher::{Kind, Lease, Source};

/// Most connections, and most of one user.
const MOST_CONNECTIONS: usize = 4096;
const MOST_OF_USER: usize = 512;
/// Most buffers of a connection.
const MOST_BUFFERS: usize = 4096;
/// Most buffers of one user, all connections together: what the daemon keeps of a buffer is memory too.
const MOST_BUFFERS_OF_USER: usize = 16384;
/// Most tokens of a buffer.
const MOST_TOKENS: usize = 16;
/// Messages of a connection that are handled in a row before those of others.
const BURST: usize = 16;

/// How often a busy daemon looks whether devices are gone.
const CHECK: Duration = Duration::from_secs(1);

const LISTENER: u64 = 0;
const WAKE: u64 = 1;

struct Peer {
    sock: OwnedFd,
    cred: Cred,
    buffers: HashMap<u64, Held>,
    /// Its place among those without a request so far.
    silent: Option<usize>,
}

/// A buffer of a connection, and the notice that its end is sent by.
struct Held {
    buffer: Buffer,
    notice: NoticeId,
    tokens: Vec<Token>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.buffer.cancel_notice(self.notice);
    }
}

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
    peers: HashMap<u64, Peer>,
    /// Connections without a request so far, by user: they make room for others.
    silent: Strangers<u32, u64>,
    tokens: HashMap<Token, (u64, u64)>,
    next: u64,
    /// Most descriptors that are open for one user: its connections, and pieces of host memory.
    most_descriptors: usize,
    /// Most buffers of one user.
    most_buffers: usize,
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
        let (peers, tokens) = (HashMap::new(), HashMap::new());
        Ok(Server {
            listener,
            poller,
            woken,
            notices,
            orchestrator,
            peers,
            silent: Strangers::new(MOST_CONNECTIONS),
            tokens,
            next: 2,
            most_descriptors: descriptors() / 2,
            most_buffers: MOST_BUFFERS_OF_USER,
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
            let of_user = self.peers.values().filter(|p| p.cred.uid == cred.uid).count();
            let (all_full, user_full) = (self.peers.len() >= MOST_CONNECTIONS, of_user >= MOST_OF_USER);
            let of = user_full.then_some(cred.uid);
            if (all_full || user_full) && !self.end_silent(of) {
                let why = format!("uid {} has {of_user} connections: end some", cred.uid);
                let _ = socket::send(&sock, &Answer::Failed { errno: libc::EUSERS, why }.to_bytes());
                continue;
            }
            let id = self.number();
            if self.poller.add(&sock, id).is_ok() {
                let silent = Some(self.silent.add(cred.uid, id));
                self.peers.insert(id, Peer { sock, cred, buffers: HashMap::new(), silent });
            }
        }
    }

    /// Closes a connection without a request: the oldest of this user, or of the user that has the most of
    /// them. Returns whether there was one.
    fn end_silent(&mut self, of: Option<u32>) -> bool {
        let id = match of {
            Some(uid) => self.silent.give_silent_of(&uid),
            None => self.silent.give_silent(),
        };
        id.inspect(|id| self.end(*id)).is_some()
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// A connection is over: all that it holds goes back.
    fn end(&mut self, id: u64) {
        if let Some(peer) = self.peers.remove(&id) {
            // Its place may be another one's where it was given up.
            peer.silent
                .filter(|at| self.silent.get_mut(*at) == Some(&mut { id }))
                .map(|at| self.silent.take(at));
            self.poller.remove(&peer.sock);
            for token in peer.buffers.values().flat_map(|held| &held.tokens) {
                self.tokens.remove(token);
            }
        }
    }

    /// Deals with what a connection has sent; whether it goes on.
    fn hear(&mut self, id: u64) -> bool {
        // One byte more, to see that a packet is too long.
        let mut bytes = [0; MOST + 1];
        for _ in 0..BURST {
            let Some(peer) = self.peers.get(&id) else { return false };
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
            if let Some(at) = self.peers.get_mut(&id).and_then(|peer| peer.silent.take()) {
                self.silent.take(at);
            }
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
        let peer = self.peers.get(&id).ok_or(Stop::Peer)?;
        socket::send(&peer.sock, &answer.to_bytes()).map_err(|_| Stop::Peer)
    }

    fn answer(&mut self, id: u64, ask: Ask) -> Result<(), Stop> {
        let peer = self.peers.get_mut(&id).ok_or(Stop::Peer)?;
        let unknown = || Error::Unknown("buffer with that handle".into());
        match ask {
            Ask::Allocate { len, align, segments, host, job, clients } => {
                let uid = peer.cred.uid;
                self.room(id)?;
                self.descriptors_left(uid)?;
                let clients = self.clients(&clients)?;
                let segments = usize::from(segments.min(MOST_SEGMENTS));
                let request = Request { clients, len, align, segments, uid, job, host };
                let buffer = self.orchestrator.grant(&request)?;
                self.grant(id, buffer)
            }
            Ask::Free { handle } => {
                let held = peer.buffers.remove(&handle).ok_or_else(unknown)?;
                for token in &held.tokens {
                    self.tokens.remove(token);
                }
                // It is back before that is said.
                drop(held);
                self.send(id, &Answer::Done { count: 1 })
            }
            Ask::Widen { handle, clients } => {
                let buffer = peer.buffers.get(&handle).ok_or_else(unknown)?.buffer.clone();
                self.room(id)?;
                let wider = buffer.share(&self.clients(&clients)?)?;
                self.grant(id, wider)
            }
            Ask::Offer { handle } => {
                let held = peer.buffers.get_mut(&handle).ok_or_else(unknown)?;
                if held.buffer.kind() == Kind::Sysfs {
                    let why = "the kernel makes a new allocation of each mapping of sysfs memory: fork(2) shares it";
                    return Err(Error::Unsupported(why.into()).into());
                }
                if held.tokens.len() >= MOST_TOKENS {
                    let why = format!("{MOST_TOKENS} tokens are enough for a buffer: use one of them");
                    return Err(Error::Invalid(why).into());
                }
                let token = ipc::random().map_err(|e| Error::Os("getrandom".into(), e))?;
                held.tokens.push(token);
                self.tokens.insert(token, (id, handle));
                self.send(id, &Answer::Token { token })
            }
            Ask::Open { token } => {
                self.room(id)?;
                let buffer = self.open(id, token)?;
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

    /// Whether that connection, and its user, may hold another buffer.
    fn room(&self, id: u64) -> Result<(), Error> {
        let Some(peer) = self.peers.get(&id) else { return Ok(()) };
        if peer.buffers.len() >= MOST_BUFFERS {
            return Err(Error::Invalid(format!(
                "a connection holds at most {MOST_BUFFERS} buffers: free some"
            )));
        }
        let uid = peer.cred.uid;
        let of_user = self.peers.values().filter(|p| p.cred.uid == uid).map(|p| p.buffers.len());
        if of_user.sum::<usize>() >= self.most_buffers {
            let why = format!("uid {uid} holds {} buffers: free some", self.most_buffers);
            return Err(Error::Daemon(libc::EUSERS, why));
        }
        Ok(())
    }

    /// Whether this user may have another descriptor of the daemon's: else others would have none.
    fn descriptors_left(&self, uid: u32) -> Result<(), Error> {
        let connections = self.peers.values().filter(|p| p.cred.uid == uid).count();
        let (pieces, most) = (self.orchestrator.descriptors(uid), self.most_descriptors);
        if connections + pieces < most {
            return Ok(());
        }
        Err(Error::Daemon(
            libc::EUSERS,
            format!(
                "uid {uid} has {connections} connections and {pieces} pieces of host memory, and the daemon has {most} descriptors \
                 for one user: free some, or start the daemon with a higher limit (ulimit -n)"
            ),
        ))
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

    /// The buffer that a token is of, as long as the process that shared it has it.
    fn open(&self, id: u64, token: Token) -> Result<Buffer, Error> {
        let unknown =
            || Error::Unknown("buffer with that token: its owner freed it, or it was never shared".into());
        let (owner, handle) = self.tokens.get(&token).ok_or_else(unknown)?;
        let owner = self.peers.get(owner).ok_or_else(unknown)?;
        let buffer = &owner.buffers.get(handle).ok_or_else(unknown)?.buffer;
        let uid = self.peers.get(&id).map(|p| p.cred.uid);
        if uid != Some(owner.cred.uid) && uid != Some(0) {
            return Err(Error::Forbidden("the buffer was shared by another user".into()));
        }
        if buffer.is_revoked() {
            return Err(Error::Revoked("by its publisher".into()));
        }
        Ok(buffer.clone())
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
        let peer = self.peers.get_mut(&id).ok_or(Stop::Peer)?;
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
        peer.buffers.insert(handle, Held { buffer, notice, tokens: Vec::new() });
        Ok(())
    }

    /// A descriptor reaches all of its file. So a part of one goes to root and the daemon's own user alone.
    fn may_have_files(&self, id: u64, buffer: &Buffer) -> Result<(), Stop> {
        let peer = self.peers.get(&id).ok_or(Stop::Peer)?;
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
            let holds = self.peers.get(&id).is_some_and(|p| p.buffers.contains_key(&handle));
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

/// How many descriptors this process may have.
fn descriptors() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == 0;
    if known { usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX) } else { 1024 }
}

#[cfg(test)]
mod tests;
