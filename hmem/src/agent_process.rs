//! The process that copies for another one: see [`crate::agent`].
//!
//! It trusts its user, which could read and write all of this memory itself. It ends when its user's end of
//! the socket is closed, by close(2), execve(2) or the end of the process.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ipc::{Mapping, memfd, rights, socket};

use crate::agent::{BOUNCE, BOUNCES, BOUNCES_AT, HOST, LONGEST, Message, Move, SHARED, VERSION, WORDS};
use crate::cuda;
use crate::error::Error;
use crate::kind::Kind;
use crate::memory::Pages;
use crate::pending::{Part, PendingCopies, PendingCopy};
use crate::registry;
use crate::share::{Export, HandleType, Opened, Passed};

/// For how long it polls after the last packet, before it sleeps.
const AWAKE: Duration = Duration::from_millis(1);
/// Packets taken at most between two polls of the driver for completed copies.
const MOST_TAKEN: u32 = 16;
/// Bytes of the packets taken at most between two polls. To start a copy takes the driver 3 µs, as long as a
/// copy of this size; users of completed copies wait meanwhile.
const BYTES_TAKEN: u64 = 256 << 10;

struct Process {
    sock: OwnedFd,
    shared: Mapping,
    /// The buffers, page-locked: after the first allocation was opened, since that needs a context.
    locked: Option<Pages>,
    allocations: HashMap<u32, Passed>,
    /// By slot and generation.
    begun: PendingCopies<(u32, u64)>,
}

/// Copies, as a process that no other one waits for, for the process at the other end of standard input. To
/// be called while there is one thread.
pub fn serve_standard_input() -> io::Result<()> {
    let sock = io::stdin().as_fd().try_clone_to_owned()?;
    // A person's terminal, or a file, has no other end.
    if socket::peer_name(&sock).is_err() {
        return Err(io::Error::other("this is for the provider's own use"));
    }
    detach()?;
    serve(sock)
}

/// Ends the process that a user waits for, and goes on as another one. While there is one thread.
fn detach() -> io::Result<()> {
    // SAFETY: there is one thread, by what the documentation says.
    match ipc::cvt(unsafe { libc::fork() })? {
        0 => {
            // What a terminal sends its foreground group is for the user, which then ends or does not.
            // SAFETY: touches no memory.
            unsafe { libc::setsid() };
            Ok(())
        }
        // SAFETY: ends the process, and runs nothing on the way.
        _ => unsafe { libc::_exit(0) },
    }
}

/// Copies for the process at the other end of `sock`, until that is closed.
pub fn serve(sock: OwnedFd) -> io::Result<()> {
    let mut first = [0; LONGEST];
    if !socket::wait(&sock, 10_000) {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let (len, fd) = rights::recv_fd(&sock, &mut first)?;
    let (Some(Message::Hello(version)), Some(fd)) = (Message::from_bytes(&first[..len]), fd) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    if version != VERSION {
        return reply(&sock, Err(Error::os(libc::EPROTO)));
    }
    run_anywhere();
    let shared = memfd::adopt(&fd, SHARED..=SHARED).map_err(|e| io::Error::other(e.to_string()))?;
    let ready = cuda::load();
    reply(&sock, ready)?;
    if ready.is_err() {
        return Ok(());
    }
    let (allocations, begun) = (HashMap::new(), PendingCopies::new());
    let mut process = Process { sock, shared, locked: None, allocations, begun };
    let done = process.run();
    // The copies end before the memory goes.
    process.begun.cancel(|_| true);
    done
}

/// On any processor: the thread that started this one may be bound to the only one that its user's threads
/// run on.
fn run_anywhere() {
    // SAFETY: plain data, for which all bits set is a value.
    let all: libc::cpu_set_t = unsafe {
        let mut all = std::mem::zeroed::<libc::cpu_set_t>();
        std::ptr::write_bytes(&raw mut all, 0xff, 1);
        all
    };
    // SAFETY: a set of that size.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const all) };
}

fn reply(sock: &OwnedFd, how: Result<(), Error>) -> io::Result<()> {
    let code = how.map_or_else(|e| e.errno().max(1), |()| 0);
    socket::send(sock, &code.to_le_bytes())
}

impl Process {
    fn run(&mut self) -> io::Result<()> {
        let (mut bytes, mut last, mut taken, mut asked) = ([0; LONGEST], Instant::now(), 0, 0);
        loop {
            match socket::receive(&self.sock, &mut bytes) {
                Ok(0) => return Ok(()),
                Ok(len) => {
                    let message = Message::from_bytes(&bytes[..len]).ok_or(io::ErrorKind::InvalidData)?;
                    asked = message.bytes().saturating_add(asked);
                    self.take(message)?;
                    (last, taken) = (Instant::now(), taken + 1);
                    if taken < MOST_TAKEN && asked < BYTES_TAKEN {
                        continue;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            }
            (taken, asked) = (0, 0);
            if !self.begun.is_empty() {
                self.poll();
            } else if last.elapsed() > AWAKE {
                socket::wait(&self.sock, -1);
                last = Instant::now();
            } else {
                std::thread::yield_now();
            }
        }
    }

    fn take(&mut self, message: Message) -> io::Result<()> {
        match message {
            Message::Open { number, own, export } => {
                let has_fd = export.handle_type == HandleType::Descriptor;
                let fd = if has_fd { Some(self.receive_descriptor()?) } else { None };
                let opened = self.open(&export, fd, own).map(|a| drop(self.allocations.insert(number, a)));
                reply(&self.sock, opened)
            }
            Message::Close(number) => {
                self.allocations.remove(&number);
                Ok(())
            }
            Message::Copy { slot, generation, by, moves } => {
                match self.begin(by, &moves) {
                    Ok(flight) => self.begun.add((slot, generation), flight),
                    Err(_) => over(&self.shared, slot, generation, false),
                }
                Ok(())
            }
            Message::Hello(_) => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// The next packet, which is the descriptor of the last one.
    fn receive_descriptor(&self) -> io::Result<OwnedFd> {
        loop {
            match rights::recv_fd(&self.sock, &mut [0]) {
                Ok((_, fd)) => return fd.ok_or(io::ErrorKind::InvalidData.into()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => drop(socket::wait(&self.sock, -1)),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// What is of the user itself is opened now: why that cannot be is known at registration.
    fn open(&mut self, export: &Export, fd: Option<OwnedFd>, own: bool) -> Result<Passed, Error> {
        let memory = Passed::of(export, fd)?;
        if own {
            cuda::activate(&export.device)?;
            self.lock();
            memory.open(0)?;
        }
        Ok(memory)
    }

    /// Page-locks the buffers. If that is refused, the driver copies from and to there in pieces.
    fn lock(&mut self) {
        if self.locked.is_none() {
            let at = self.shared.base().expose_provenance() + BOUNCES_AT;
            // SAFETY: this part of the mapping, which ends with the process.
            self.locked = unsafe { registry::of(Kind::Cuda).lock_host(at, BOUNCES * BOUNCE) };
        }
    }

    fn begin(&self, by: u32, moves: &[Move]) -> Result<Box<dyn PendingCopy>, Error> {
        let held = |number: u32| self.allocations.get(&number).ok_or(Error::FAULT);
        let ctx = held(by)?.context(0)?;
        let (mut keep, mut parts, mut host) = (Vec::<Opened>::new(), Vec::new(), false);
        let mut place = |(number, off): (u32, u64), len: u64| -> Result<usize, Error> {
            if number == HOST {
                host = true;
                let end = off.checked_add(len).filter(|end| *end <= (BOUNCES * BOUNCE) as u64);
                end.ok_or(Error::FAULT)?;
                return Ok(self.shared.base().expose_provenance() + BOUNCES_AT + off as usize);
            }
            let memory = held(number)?;
            let opened = memory.open_in(ctx)?;
            let addr = memory.export().base.checked_add(off).ok_or(Error::FAULT)?;
            let (at, _) = opened.place(addr).filter(|(_, room)| *room as u64 >= len).ok_or(Error::FAULT)?;
            keep.push(opened);
            Ok(at)
        };
        for m in moves {
            if m.len < SHORT && m.src.0 == HOST && m.dst.0 != HOST {
                let n = m.len.min(8);
                let (dst, src) = (place((HOST, SPARE), n)?, place(m.dst, n)?);
                parts.push(Part { dst, src, len: n as usize });
            }
            let (dst, src) = (place(m.dst, m.len)?, place(m.src, m.len)?);
            parts.push(Part { dst, src, len: m.len as usize });
        }
        // SAFETY: all parts are inside what is mapped here, and that is kept: the buffers by `self`, which
        // outlives all that has begun.
        unsafe { registry::of(Kind::Cuda).start(&parts, keep, host) }
    }

    /// Reports completed copies in their slots.
    fn poll(&mut self) {
        while let Some((slot, generation)) = self.begun.over() {
            over(&self.shared, slot, generation, true);
        }
        if let Some(((slot, generation), how)) = self.begun.poll_done() {
            over(&self.shared, slot, generation, how.is_ok());
        }
    }
}

/// Copies of fewer bytes from host memory to a device, and values that a stream writes, are made by the
/// engine for copies only if what is before them in their stream is; else by that of kernels, where they wait
/// for other processes' kernels. So a copy of a word to the host goes before them.
const SHORT: u64 = 64 << 10;
/// Where that word goes: behind what a stage uses of the last buffer.
const SPARE: u64 = (BOUNCES * BOUNCE - 8) as u64;

/// The copy in a slot is over.
fn over(shared: &Mapping, slot: u32, generation: u64, good: bool) {
    if (slot as usize) < WORDS {
        // SAFETY: one of the words, which are in front of all else.
        let word = unsafe { shared.wide(slot as usize * 8) };
        word.store((generation << 1) | u64::from(!good), Ordering::Release);
    }
}
