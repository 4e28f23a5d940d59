//! The connections of the daemon, the buffers that each holds, and how many these may be.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use ipc::credentials::{Cred, UNMAPPED, User};
use ipc::socket;
use meet::{Life, Strangers};

use super::super::wire::Token;
use crate::error::Error;
use crate::orchestrator::{self, Buffer, MOST_TOKENS, NoticeId};
use crate::rules::Rules;

/// Most connections, and most of one user.
const MOST_CONNECTIONS: usize = 4096;
pub(super) const MOST_OF_USER: usize = 512;
/// Most buffers of a connection.
const MOST_BUFFERS: usize = 4096;
/// Most buffers of one user, all connections together: what the daemon keeps of a buffer is memory too.
const MOST_BUFFERS_OF_USER: usize = 16384;
/// Descriptors of a connection: its socket, and one of its process.
const OF_CONNECTION: usize = 2;
/// The part of the daemon's descriptors, as one divided by this, that other users than root and the daemon's
/// own leave free.
const RESERVE: usize = 8;
/// Most rules of a connection.
pub(super) const MOST_RULES: usize = 64;

pub(super) struct Peer {
    pub(super) sock: OwnedFd,
    pub(super) cred: Cred,
    /// The process that has connected, where that is known. A process forked from it has the socket too.
    life: Option<Life>,
    buffers: HashMap<u64, Held>,
    /// Its own.
    rules: Option<Arc<Rules>>,
    /// What it has not taken yet: notices, and the answer to what has caused them. No more of it is heard
    /// meanwhile, so this is bounded by its buffers.
    backlog: VecDeque<Vec<u8>>,
    /// Its place in [`Peers::silent`], until its first message.
    silent: Option<usize>,
}

impl Peer {
    pub(super) fn rules(&self) -> Option<Arc<Rules>> {
        self.rules.clone()
    }

    /// Whether something is still to be sent.
    pub(super) fn waits(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Sends a packet, or keeps it behind those that are still to be sent.
    pub(super) fn send(&mut self, packet: Vec<u8>) -> io::Result<()> {
        self.backlog.push_back(packet);
        self.flush()
    }

    /// Sends what is still to be sent, as far as there is room.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while let Some(packet) = self.backlog.front() {
            match socket::send(&self.sock, packet) {
                Ok(()) => drop(self.backlog.pop_front()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Whether it is root's, or of the daemon's own user.
    pub(super) fn is_trusted(&self) -> bool {
        is_trusted(&self.cred, &self.sock)
    }

    /// What is readable when its process has ended.
    pub(super) fn life(&self) -> Option<&OwnedFd> {
        self.life.as_ref().map(Life::fd)
    }

    pub(super) fn holds(&self, handle: u64) -> bool {
        self.buffers.contains_key(&handle)
    }

    pub(super) fn hold(&mut self, handle: u64, buffer: Buffer, notice: NoticeId) {
        self.buffers.insert(handle, Held { buffer, notice, tokens: Vec::new() });
    }

    pub(super) fn buffer(&self, handle: u64) -> Result<&Buffer, Error> {
        self.buffers.get(&handle).map(|held| &held.buffer).ok_or_else(unknown)
    }
}

/// Whether what is at the other end of a socket is root's, or of the daemon's own user.
fn is_trusted(cred: &Cred, sock: &OwnedFd) -> bool {
    cred.uid == 0 || cred.user(sock) == User::Ours
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

fn unknown() -> Error {
    Error::Unknown("buffer with that handle".into())
}

pub(super) struct Peers {
    all: HashMap<u64, Peer>,
    /// Connections without a message so far, by user: they make room for others.
    pub(super) silent: Strangers<u32, u64>,
    pub(super) tokens: HashMap<Token, (u64, u64)>,
    /// Most descriptors that are open for one user: its connections, and pieces of host memory.
    pub(super) most_descriptors: usize,
    /// The least number of a descriptor that is for root and the daemon's own user alone: the kernel gives
    /// the lowest that is free.
    pub(super) reserved_from: usize,
    /// Most buffers of one user.
    pub(super) most_buffers: usize,
}

impl Peers {
    pub(super) fn new() -> Peers {
        let all = descriptors();
        Peers {
            all: HashMap::new(),
            silent: Strangers::new(MOST_CONNECTIONS),
            tokens: HashMap::new(),
            most_descriptors: all / 2,
            reserved_from: all - all / RESERVE,
            most_buffers: MOST_BUFFERS_OF_USER,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn get(&self, id: u64) -> Option<&Peer> {
        self.all.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut Peer> {
        self.all.get_mut(&id)
    }

    /// Connections of a user.
    pub(super) fn of_user(&self, uid: u32) -> usize {
        self.all.values().filter(|p| p.cred.uid == uid).count()
    }

    /// Whether this connection of a user, which has `pieces` of host memory, is too many: of all users' or of
    /// its own, in which case the user is named.
    pub(super) fn is_full(&self, sock: &OwnedFd, cred: &Cred, pieces: usize) -> Option<Option<u32>> {
        let connections = self.of_user(cred.uid);
        let user_full =
            connections >= MOST_OF_USER || (connections + 1) * OF_CONNECTION + pieces > self.most_descriptors;
        let full =
            self.len() >= MOST_CONNECTIONS || self.is_reserved(sock.as_raw_fd()) && !is_trusted(cred, sock);
        (user_full || full).then(|| user_full.then_some(cred.uid))
    }

    /// Whether a descriptor with that number leaves too few for root and the daemon's own user.
    fn is_reserved(&self, fd: RawFd) -> bool {
        usize::try_from(fd).is_ok_and(|fd| fd >= self.reserved_from)
    }

    /// A connection without a message so far: the oldest of this user, or of the user that has the most
    /// of them.
    pub(super) fn give_silent(&mut self, of: Option<u32>) -> Option<u64> {
        match of {
            Some(uid) => self.silent.give_silent_of(&uid),
            None => self.silent.give_silent(),
        }
    }

    pub(super) fn add(&mut self, id: u64, sock: OwnedFd, cred: Cred, life: Option<Life>) {
        let silent = Some(self.silent.add(cred.uid, id));
        self.all.insert(
            id,
            Peer { sock, cred, life, buffers: HashMap::new(), rules: None, backlog: VecDeque::new(), silent },
        );
    }

    /// A connection has sent a message.
    pub(super) fn has_asked(&mut self, id: u64) {
        if let Some(at) = self.get_mut(id).and_then(|peer| peer.silent.take()) {
            self.silent.take(at);
        }
    }

    /// A connection is over: all that it holds goes back when it is dropped.
    pub(super) fn end(&mut self, id: u64) -> Option<Peer> {
        let peer = self.all.remove(&id)?;
        // Its place may be another one's where it was given up.
        if let Some(at) = peer.silent.filter(|at| self.silent.get_mut(*at) == Some(&mut { id })) {
            self.silent.take(at);
        }
        for token in peer.buffers.values().flat_map(|held| &held.tokens) {
            self.tokens.remove(token);
        }
        Some(peer)
    }

    /// Adds a rule of a connection's own.
    pub(super) fn add_rule(&mut self, id: u64, rule: &str) -> Result<(), Error> {
        let Some(peer) = self.get_mut(id) else { return Ok(()) };
        let rules = Arc::make_mut(peer.rules.get_or_insert_default());
        if rules.all().len() >= MOST_RULES {
            return Err(Error::Rule(format!(
                "a connection has at most {MOST_RULES} rules: join some by patterns"
            )));
        }
        rules.add(rule)
    }

    /// A buffer goes back before this returns.
    pub(super) fn free(&mut self, id: u64, handle: u64) -> Result<(), Error> {
        let held = self.get_mut(id).and_then(|peer| peer.buffers.remove(&handle)).ok_or_else(unknown)?;
        for token in &held.tokens {
            self.tokens.remove(token);
        }
        Ok(())
    }

    /// A token by which another process opens a buffer.
    pub(super) fn share(&mut self, id: u64, handle: u64) -> Result<Token, Error> {
        let held =
            self.all.get_mut(&id).and_then(|peer| peer.buffers.get_mut(&handle)).ok_or_else(unknown)?;
        orchestrator::may_have_token(&held.buffer)?;
        if held.tokens.len() >= MOST_TOKENS {
            return Err(orchestrator::too_many_tokens());
        }
        let token = ipc::random().map_err(|e| Error::Os("getrandom".into(), e))?;
        held.tokens.push(token);
        self.tokens.insert(token, (id, handle));
        Ok(token)
    }

    /// The buffer that a token is of, as long as the process that shared it has it.
    pub(super) fn open(&self, id: u64, token: Token) -> Result<Buffer, Error> {
        let unknown = orchestrator::unknown_token;
        let (owner, handle) = self.tokens.get(&token).ok_or_else(unknown)?;
        let owner = self.get(*owner).ok_or_else(unknown)?;
        let buffer = &owner.buffers.get(handle).ok_or_else(unknown)?.buffer;
        let uid = self.get(id).map(|p| p.cred.uid);
        if uid != Some(owner.cred.uid) {
            return Err(Error::Forbidden("the buffer was shared by another user".into()));
        }
        if owner.cred.is_of_many() {
            return Err(Error::Forbidden(format!("uid {}: {UNMAPPED}", owner.cred.uid)));
        }
        if buffer.is_revoked() {
            return Err(Error::Revoked("by its publisher".into()));
        }
        Ok(buffer.clone())
    }

    /// Whether that connection, and its user, may hold another buffer.
    pub(super) fn room(&self, id: u64) -> Result<(), Error> {
        let Some(peer) = self.get(id) else { return Ok(()) };
        if peer.buffers.len() >= MOST_BUFFERS {
            return Err(Error::Invalid(format!(
                "a connection holds at most {MOST_BUFFERS} buffers: free some"
            )));
        }
        let uid = peer.cred.uid;
        let of_user = self.all.values().filter(|p| p.cred.uid == uid).map(|p| p.buffers.len());
        if of_user.sum::<usize>() >= self.most_buffers {
            let why = format!("uid {uid} holds {} buffers: free some", self.most_buffers);
            return Err(Error::Daemon(libc::EUSERS, why));
        }
        Ok(())
    }

    /// Whether the user of a connection, which has `pieces` of host memory, may have another descriptor of
    /// the daemon's, of which `free` is the next: else others would have none.
    pub(super) fn descriptors_left(&self, id: u64, pieces: usize, free: RawFd) -> Result<(), Error> {
        let Some(peer) = self.get(id) else { return Ok(()) };
        let uid = peer.cred.uid;
        let (connections, most) = (self.of_user(uid), self.most_descriptors);
        if self.is_reserved(free) && !peer.is_trusted() {
            let why = "the daemon keeps its last descriptors for root and its own user: start it with a higher limit (ulimit -n)";
            return Err(Error::Daemon(libc::EUSERS, why.into()));
        }
        if connections * OF_CONNECTION + pieces < most {
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
}

/// How many descriptors this process may have.
fn descriptors() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == 0;
    if known { usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX) } else { 1024 }
}
