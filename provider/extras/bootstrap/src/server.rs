//! The place where the processes of a job give and get bytes. A launcher holds it, or the process of rank 0.
//!
//! A connection has a thread of its own once it has said the job's token, of which a job has only so many.
//! Before that it costs a descriptor, and its place is another one's where there are too many.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use meet::{Message, Strangers};

use crate::net::{Listener, Stream};
use crate::protocol::{Frame, Hello};
use crate::{Address, Error};

/// How long a connection may take over its introduction, and over what it is sent.
const PATIENCE: Duration = Duration::from_secs(10);

/// Most connections that have not said the token yet, and that are taken in one go.
const GREETING: usize = 256;
const BATCH: usize = 64;

/// A word of 128 random bits.
pub fn token() -> Result<String, Error> {
    let bytes = ipc::random().map_err(|e| Error::System(format!("no random bytes: {e}")))?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

#[derive(Debug)]
enum Member {
    Absent,
    Here(Stream),
    /// It takes part no more.
    Left,
}

#[derive(Debug)]
struct State {
    members: Vec<Member>,
    /// What each gave for the exchange under way.
    contributions: Vec<Option<Vec<u8>>>,
    /// Why there will be no further exchange.
    failed: Option<String>,
    /// Connections that are served.
    served: usize,
}

#[derive(Debug)]
struct Shared {
    token: Vec<u8>,
    state: Mutex<State>,
}

/// Serves the exchange of one job, in threads of its own, until it is dropped.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    ports: Vec<u16>,
    /// Closed, it ends the thread that accepts.
    _stop: UnixStream,
}

impl Server {
    /// For a job of `size` processes that know `token`. If there is a time limit, the job fails where one has
    /// not joined by then.
    pub fn start(at: &[Address], size: usize, token: &str, limit: Option<Duration>) -> Result<Server, Error> {
        let mut listeners = Vec::new();
        for address in at {
            let listener = Listener::bind(address)
                .map_err(|e| Error::System(format!("cannot listen at {address}: {e}")))?;
            listeners.push(listener);
        }
        let ports = listeners.iter().filter_map(Listener::port).collect();
        let state = State {
            members: (0..size).map(|_| Member::Absent).collect(),
            contributions: vec![None; size],
            failed: None,
            served: 0,
        };
        let shared = Arc::new(Shared { token: token.as_bytes().to_vec(), state: Mutex::new(state) });
        let (stop, other_end) =
            UnixStream::pair().map_err(|e| Error::System(format!("cannot make a socket: {e}")))?;
        let deadline = limit.map(|limit| (Instant::now() + limit, limit));
        let acceptor = shared.clone();
        std::thread::Builder::new()
            .name("strait-exchange".into())
            .spawn(move || accept(&acceptor, &listeners, &other_end, deadline))
            .map_err(|e| Error::System(format!("cannot start a thread: {e}")))?;
        Ok(Server { shared, ports, _stop: stop })
    }

    /// The ports of its TCP addresses.
    pub fn ports(&self) -> &[u16] {
        &self.ports
    }

    /// A process has ended by itself. One that had not joined will not.
    pub fn ended(&self, rank: usize) {
        let mut state = self.shared.lock();
        if let Some(Member::Absent) = state.members.get(rank) {
            state.members[rank] = Member::Left;
            state.check();
        }
    }

    /// Ends the exchange: all that wait, or ask later, get `why`.
    pub fn fail(&self, why: &str) {
        self.shared.lock().fail(why);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // What is being written is written under the lock, so this returns when it has been.
        let state = self.shared.lock();
        for member in &state.members {
            if let Member::Here(stream) = member {
                stream.end();
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No function of `State` panics half way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves one connection, which has said the token.
    fn serve(&self, mut stream: Stream, hello: &Hello) {
        let size = self.lock().members.len();
        let refuse = |stream: &mut Stream, why: String| {
            let _ = stream.write_all(&Frame::Failed(why).bytes());
            stream.end();
        };
        if stream.write_timeout(Some(PATIENCE)).is_err() {
            return stream.end();
        }
        let rank = hello.rank as usize;
        if hello.size as usize != size || rank >= size {
            let got = format!("rank {rank} of {}", hello.size);
            return refuse(&mut stream, format!("{got} cannot join a job of {size} processes"));
        }
        let Ok(mut ours) = stream.read_timeout(None).and_then(|()| stream.try_clone()) else { return };
        {
            let mut state = self.lock();
            if !matches!(state.members[rank], Member::Absent) {
                drop(state);
                return refuse(&mut stream, format!("there is another process of rank {rank} in this job"));
            }
            let _ = stream.write_all(&Frame::Welcome.bytes());
            if let Some(why) = &state.failed {
                let _ = stream.write_all(&Frame::Failed(why.clone()).bytes());
            }
            state.members[rank] = Member::Here(stream);
        }
        loop {
            match Frame::read(&mut ours, size) {
                Ok(Frame::Give(bytes)) => self.lock().give(rank, bytes),
                Ok(Frame::Leave) => {
                    let mut state = self.lock();
                    state.members[rank] = Member::Left;
                    return state.check();
                }
                // Not one more word is read of a process that sends what it may not.
                other => {
                    let what = if other.is_ok() { "sent nonsense" } else { "ended without leaving the job" };
                    ours.end();
                    let mut state = self.lock();
                    state.members[rank] = Member::Left;
                    return state.fail(&format!("rank {rank} {what}"));
                }
            }
        }
    }
}

impl State {
    fn send(&mut self, frame: &Frame) {
        let bytes = frame.bytes();
        for member in &mut self.members {
            if let Member::Here(stream) = member {
                // The thread that reads from it sees its end.
                if stream.write_all(&bytes).is_err() {
                    stream.end();
                }
            }
        }
    }

    fn fail(&mut self, why: &str) {
        if self.failed.is_none() {
            self.failed = Some(why.into());
            self.send(&Frame::Failed(why.into()));
        }
    }

    fn give(&mut self, rank: usize, bytes: Vec<u8>) {
        if let (Some(why), Member::Here(stream)) = (&self.failed, &mut self.members[rank]) {
            // It may have got the reason before; each question has an answer.
            if stream.write_all(&Frame::Failed(why.clone()).bytes()).is_err() {
                stream.end();
            }
            return;
        }
        if self.contributions[rank].replace(bytes).is_some() {
            return self.fail(&format!("rank {rank} gave twice to one exchange"));
        }
        self.check();
    }

    /// Ends the exchange under way, if all have given or one never will.
    fn check(&mut self) {
        if self.failed.is_some() || self.contributions.iter().all(Option::is_none) {
            return;
        }
        if self.contributions.iter().all(Option::is_some) {
            let all = self.contributions.iter_mut().filter_map(Option::take).collect();
            return self.send(&Frame::All(all));
        }
        let gone = |(rank, member): (usize, &Member)| {
            (matches!(member, Member::Left) && self.contributions[rank].is_none()).then_some(rank)
        };
        if let Some(rank) = self.members.iter().enumerate().find_map(gone) {
            self.fail(&format!("rank {rank} has ended, or left the job, while others wait for it"));
        }
    }
}

/// Takes connections until the other end of `stop` closes.
fn accept(
    shared: &Arc<Shared>,
    listeners: &[Listener],
    stop: &UnixStream,
    mut deadline: Option<(Instant, Duration)>,
) {
    let watch = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut greeting: Strangers<Option<IpAddr>, Greeting> = Strangers::new(GREETING);
    loop {
        let mut fds: Vec<libc::pollfd> =
            listeners.iter().map(|listener| watch(listener.as_raw_fd())).collect();
        fds.push(watch(stop.as_raw_fd()));
        fds.extend(greeting.iter().map(|(_, one)| watch(one.stream.as_raw_fd())));
        let places: Vec<usize> = greeting.iter().map(|(at, _)| at).collect();
        let until = greeting.oldest().map(|(_, since)| since + PATIENCE);
        let wait = until.into_iter().chain(deadline.map(|(at, _)| at)).min().map_or(-1, |at| {
            let left = at.saturating_duration_since(Instant::now()).as_millis();
            i32::try_from(left).map_or(i32::MAX, |left| left + 1)
        });
        // SAFETY: as many valid pollfds as said; their descriptors are held by the arguments, and by
        // `greeting`.
        let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, wait) };
        let now = Instant::now();
        if let Some((at, limit)) = deadline {
            if now >= at {
                deadline = None;
                overdue(shared, limit);
            }
        }
        if ready < 0 {
            continue;
        }
        if fds[listeners.len()].revents != 0 {
            return;
        }
        let late = greeting.late(now, PATIENCE);
        for (at, fd) in places.into_iter().zip(&fds[listeners.len() + 1..]) {
            let is_late = late.contains(&at);
            if fd.revents != 0 || is_late {
                greet(shared, &mut greeting, at, is_late);
            }
        }
        for (listener, _) in listeners.iter().zip(&fds).filter(|(_, fd)| fd.revents != 0) {
            for _ in 0..BATCH {
                let stream = match listener.accept() {
                    Ok(stream) => stream,
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    // One that has said nothing has what another one lacks.
                    Err(e) if ipc::socket::is_lack(&e) && greeting.give_silent().is_some() => continue,
                    // Without descriptors or memory the connection stays in the queue: not at once again.
                    Err(_) => {
                        std::thread::sleep(Duration::from_millis(50));
                        break;
                    }
                };
                if !stream.of_this_user() {
                    stream.end();
                    continue;
                }
                let origin = stream.origin();
                drop(greeting.give_way(&origin));
                let at = greeting.add(origin, Greeting { stream, said: Message::default() });
                greet(shared, &mut greeting, at, false);
            }
        }
    }
}

/// A connection that has not said the token.
struct Greeting {
    stream: Stream,
    said: Message,
}

impl Greeting {
    /// Its introduction, once it is there; an error is its end.
    fn hear(&mut self) -> std::io::Result<Option<Hello>> {
        loop {
            let wants = Hello::wants(self.said.bytes())?;
            if wants == self.said.bytes().len() {
                return Hello::parse(self.said.bytes()).map(Some);
            }
            let had = self.said.bytes().len();
            match self.said.receive(wants, |bytes| self.stream.read(bytes)) {
                Ok(_) if self.said.bytes().len() == had => return Ok(None),
                Err(e) if e.kind() != ErrorKind::Interrupted => return Err(e),
                _ => {}
            }
        }
    }
}

/// Hears a connection that has not said the token, and serves it when it has.
fn greet(shared: &Arc<Shared>, greeting: &mut Strangers<Option<IpAddr>, Greeting>, at: usize, is_late: bool) {
    let Some(one) = greeting.get_mut(at) else { return };
    let heard = one.hear();
    if matches!(heard, Ok(None)) && !is_late {
        return;
    }
    let Some(Greeting { mut stream, .. }) = greeting.take(at) else { return };
    let Ok(Some(hello)) = heard else { return stream.end() };
    if !is_same(&hello.token, &shared.token) {
        let why = format!("this is another job: {} differs", crate::names::JOB);
        let _ = stream.write_all(&Frame::Failed(why).bytes());
        return stream.end();
    }
    if stream.set_blocking(true).is_ok() {
        take(shared, stream, hello);
    }
}

/// Whether a token is the job's. How long that takes says nothing of where they differ.
fn is_same(said: &[u8], token: &[u8]) -> bool {
    let differs = said.iter().zip(token).fold(0, |all, (a, b)| std::hint::black_box(all | (a ^ b)));
    (said.len() == token.len()) & (differs == 0)
}

/// Fails the job if a process has not joined.
fn overdue(shared: &Shared, limit: Duration) {
    let mut state = shared.lock();
    let absent =
        |(rank, member): (usize, &Member)| matches!(member, Member::Absent).then(|| rank.to_string());
    let missing: Vec<String> = state.members.iter().enumerate().filter_map(absent).collect();
    if !missing.is_empty() {
        let ranks = missing.join(", ");
        state.fail(&format!("of the job's processes these have not joined within {limit:?}: {ranks}"));
    }
}

/// Serves a connection in a thread of its own, if there are not too many.
fn take(shared: &Arc<Shared>, stream: Stream, hello: Hello) {
    {
        let mut state = shared.lock();
        if state.served >= 2 * state.members.len() + 16 {
            return stream.end();
        }
        state.served += 1;
    }
    let server = shared.clone();
    let started =
        std::thread::Builder::new().name("strait-exchange".into()).stack_size(128 << 10).spawn(move || {
            server.serve(stream, &hello);
            server.lock().served -= 1;
        });
    if started.is_err() {
        shared.lock().served -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_the_jobs_if_all_of_it_is() {
        assert!(is_same(b"word", b"word") && is_same(b"", b""));
        for other in [&b"ward"[..], b"wor", b"words", b"", b"xord", b"worx"] {
            assert!(!is_same(other, b"word"));
        }
    }
}
