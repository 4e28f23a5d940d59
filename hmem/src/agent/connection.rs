//! The agent of this process, as its user has it.

use std::io::ErrorKind;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use ipc::memfd::{self, Writers};
use ipc::{Mapping, Unshared, cvt, rights, socket};

use super::message::{BOUNCE, BOUNCES, BOUNCES_AT, HOST, MOST, Message, Move, SHARED, VERSION, WORDS};
use crate::error::{Codes, Error};
use crate::kind::Kind;
use crate::share::Export;

/// How long an agent may take to start, to open an allocation, and to take a packet.
const PATIENCE: Duration = Duration::from_secs(20);
/// Empty polls between two checks that the agent is still there.
const POLLS_PER_CHECK: u32 = 256;

/// The agent is gone, or this process is a fork of its user.
const GONE: Error = Error::new(
    &Codes {
        kind: Kind::System,
        errno: |_| libc::EPIPE,
        text: |_, f| f.write_str("the process that copies device memory (strait copy-agent) has ended"),
    },
    libc::EPIPE,
);

/// The connection to an agent.
#[derive(Debug)]
pub(crate) struct Agent {
    /// The process that it is of: what that forks has none.
    pid: u32,
    shared: Mapping,
    dead: AtomicBool,
    state: Mutex<State>,
    /// The buffer of copies that are waited for.
    waited: Mutex<()>,
}

#[derive(Debug)]
struct State {
    sock: Unshared,
    /// Allocations that were ever opened.
    numbers: u32,
    /// Slots that are free, and the last generation of each.
    slots: Vec<u32>,
    generations: Vec<u64>,
    bounces: Vec<u32>,
    /// It is a child until its parent is gone, or has waited for it.
    _child: Option<Child>,
}

static AGENT: OnceLock<Agent> = OnceLock::new();

/// The agent, from when it was started on, also when it is gone.
#[inline]
pub(crate) fn active() -> Option<&'static Agent> {
    AGENT.get()
}

/// A copy that was given to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    slot: u32,
    generation: u64,
}

fn errno(e: std::io::Error) -> Error {
    Error::os(e.raw_os_error().unwrap_or(libc::EIO))
}

/// From now on this is the agent of the process, which had none.
pub(crate) fn set(agent: Agent) {
    let _ = AGENT.set(agent);
}

/// Starts an agent, by a command whose standard input is to be its end of the socket.
pub(crate) fn start(mut command: Command) -> Result<Agent, Error> {
    let mut ends = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: a place for two descriptors, which nothing else owns.
    let [ours, theirs] = unsafe {
        cvt(libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr())).map_err(errno)?;
        ends.map(|fd| OwnedFd::from_raw_fd(fd))
    };
    let memory = memfd::create(c"strait-agent", SHARED, Writers::All).map_err(errno)?;
    let shared = Mapping::new(memory.as_fd(), SHARED, None).map_err(errno)?;
    let mut child = command.stdin(theirs).stdout(Stdio::null()).spawn().map_err(errno)?;
    // With it goes our copy of its end.
    drop(command);
    let hello = rights::send_fd(&ours, &Message::Hello(VERSION).to_bytes(), memory.as_fd());
    if let Err(why) = hello.map_err(|_| GONE).and_then(|()| answer(&ours)) {
        let _ = child.kill();
        let _ = child.wait();
        return Err(why);
    }
    let state = State {
        sock: Unshared::new(ours),
        numbers: HOST,
        slots: (0..WORDS as u32).collect(),
        generations: vec![0; WORDS],
        bounces: (1..BOUNCES as u32).collect(),
        _child: left(child),
    };
    Ok(Agent {
        pid: std::process::id(),
        shared,
        dead: AtomicBool::new(false),
        state: Mutex::new(state),
        waited: Mutex::new(()),
    })
}

/// One that has detached itself leaves a process that ends; else it stays a child.
fn left(mut child: Child) -> Option<Child> {
    let until = Instant::now() + Duration::from_millis(200);
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
            Ok(None) => return Some(child),
            _ => return None,
        }
    }
}

/// Waits for the answer to a packet.
fn answer(sock: &OwnedFd) -> Result<(), Error> {
    let until = Instant::now() + PATIENCE;
    loop {
        let mut code = [0; 4];
        match socket::receive(sock, &mut code) {
            Ok(4) if code == [0; 4] => return Ok(()),
            Ok(4) => return Err(Error::os(i32::from_le_bytes(code))),
            Ok(_) => return Err(GONE),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(Error::os(libc::ETIMEDOUT));
                }
                // A signal may end it early.
                socket::wait(sock, left.as_millis().max(1) as i32);
            }
            Err(_) => return Err(GONE),
        }
    }
}

impl Agent {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it can be used: it is there, and of this process.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let ok = !self.dead.load(Ordering::Relaxed) && std::process::id() == self.pid;
        ok.then_some(()).ok_or(GONE)
    }

    /// It is of no more use.
    fn lost(&self) -> Error {
        self.dead.store(true, Ordering::Relaxed);
        GONE
    }

    /// Sends a packet; waits where the agent has not come to the ones before.
    fn send(&self, state: &State, message: &Message) -> Result<(), Error> {
        self.send_bytes(state, &message.to_bytes(), None)
    }

    fn send_bytes(&self, state: &State, bytes: &[u8], fd: Option<&OwnedFd>) -> Result<(), Error> {
        let until = Instant::now() + PATIENCE;
        loop {
            let sent = match fd {
                Some(fd) => rights::send_fd(&state.sock, bytes, fd.as_fd()),
                None => socket::send(&state.sock, bytes),
            };
            match sent {
                Ok(()) => return Ok(()),
                Err(e) if e.kind() == ErrorKind::WouldBlock && Instant::now() < until => {
                    if socket::hung_up(&state.sock) {
                        return Err(self.lost());
                    }
                    std::thread::yield_now();
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(self.lost()),
            }
        }
    }

    /// Has it know an allocation; the number by which it does. `own`: of this process, to be opened at once.
    pub(crate) fn open(&self, export: &Export, fd: Option<&OwnedFd>, own: bool) -> Result<u32, Error> {
        self.check()?;
        let mut state = self.state();
        state.numbers = state.numbers.checked_add(1).ok_or(Error::os(libc::ENOSPC))?;
        let number = state.numbers;
        self.send(&state, &Message::Open { number, own, export: *export })?;
        if fd.is_some() {
            self.send_bytes(&state, &[0], fd)?;
        }
        match answer(&state.sock) {
            Ok(()) => Ok(number),
            Err(e) if e == GONE || e == Error::os(libc::ETIMEDOUT) => Err(self.lost()),
            Err(e) => Err(e),
        }
    }

    /// It need not know that allocation any more.
    pub(crate) fn close(&self, number: u32) {
        if self.check().is_ok() {
            let _ = self.send(&self.state(), &Message::Close(number));
        }
    }

    /// Posts copies of all of `moves`, by the device of the allocation `by`. Returns the tickets to poll.
    pub(crate) fn copy(&self, by: u32, moves: &[Move]) -> Result<Vec<Ticket>, Error> {
        self.check()?;
        let mut state = self.state();
        let mut tickets = Vec::with_capacity(1);
        for some in moves.chunks(MOST) {
            let Some(slot) = state.slots.pop() else {
                drop(state);
                self.end(&mut tickets);
                return Err(Error::os(libc::EAGAIN));
            };
            state.generations[slot as usize] += 1;
            let generation = state.generations[slot as usize];
            let message = Message::Copy { slot, generation, by, moves: some.to_vec() };
            if let Err(e) = self.send(&state, &message) {
                state.slots.push(slot);
                drop(state);
                self.end(&mut tickets);
                return Err(e);
            }
            tickets.push(Ticket { slot, generation });
        }
        Ok(tickets)
    }

    /// Whether a copy is over, and then whether it was done.
    fn is_over(&self, ticket: Ticket) -> Option<bool> {
        // SAFETY: a slot is below `WORDS`, whose words are in front of all else.
        let word = unsafe { self.shared.wide(ticket.slot as usize * 8) }.load(Ordering::Acquire);
        (word >> 1 == ticket.generation).then_some(word & 1 == 0)
    }

    /// Takes those that are over out of `tickets`: whether all of these were done. `polls` counts questions
    /// in vain.
    pub(crate) fn poll(&self, tickets: &mut Vec<Ticket>, polls: &mut u32) -> Result<bool, Error> {
        let mut ok = true;
        tickets.retain(|t| match self.is_over(*t) {
            None => true,
            Some(done) => {
                ok &= done;
                self.state().slots.push(t.slot);
                false
            }
        });
        *polls += 1;
        if !tickets.is_empty() && *polls % POLLS_PER_CHECK == 0 {
            self.check()?;
            if socket::hung_up(&self.state().sock) {
                return Err(self.lost());
            }
        }
        Ok(ok)
    }

    /// Waits until all are over, or the agent is gone, which ends what its devices do; whether they were
    /// done.
    pub(crate) fn end(&self, tickets: &mut Vec<Ticket>) -> bool {
        let (mut ok, mut polls) = (true, 0);
        while !tickets.is_empty() {
            match self.poll(tickets, &mut polls) {
                Ok(good) => ok &= good,
                Err(_) => return false,
            }
            if polls > POLLS_PER_CHECK {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        ok
    }

    /// A buffer of the shared memory.
    pub(crate) fn bounce(&'static self) -> Option<Bounce> {
        self.check().ok()?;
        let number = self.state().bounces.pop()?;
        Some(Bounce { agent: self, number })
    }

    /// Where buffer `number` is.
    fn bounce_at(&self, number: u32) -> *mut u8 {
        self.shared.base().wrapping_add(BOUNCES_AT + number as usize * BOUNCE)
    }

    /// Where in the buffers an address is, and how many bytes follow.
    pub(crate) fn in_bounces(&self, addr: usize) -> Option<(u64, u64)> {
        let off = addr.checked_sub(self.shared.base().addr() + BOUNCES_AT)?;
        let all = BOUNCES * BOUNCE;
        (off < all).then(|| (off as u64, (all - off) as u64))
    }

    /// The buffer of copies that are waited for, and where it is.
    pub(crate) fn waited(&self) -> (MutexGuard<'_, ()>, *mut u8) {
        (self.waited.lock().unwrap_or_else(PoisonError::into_inner), self.bounce_at(0))
    }
}

/// A buffer of memory that the agent's devices reach, as long as this lives.
#[derive(Debug)]
pub(crate) struct Bounce {
    agent: &'static Agent,
    number: u32,
}

impl Bounce {
    /// First of its [`BOUNCE`] bytes, which are of no other.
    pub(crate) fn at(&self) -> *mut u8 {
        self.agent.bounce_at(self.number)
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        self.agent.state().bounces.push(self.number);
    }
}
