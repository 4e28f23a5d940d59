//! An identity of an address space.
//!
//! A process, its pidfd and its sockets (where a forked child holds copies) live on over execve(2), and
//! a pid is given to another process some time after its own has ended. process_vm_readv(2) and
//! process_vm_writev(2) know nothing but a pid, so that what was meant for a peer's memory would go to
//! whatever program has that pid by now. So each process that lets peers access its memory has
//!
//! - a *keeper*: a thread that sleeps as long as the process lives. execve(2) ends all threads but the
//!   caller's, which then takes the pid, before it exchanges the address space. A system call that names
//!   the keeper's tid therefore reaches the old address space or fails with ESRCH. It also reaches a
//!   process whose main thread has ended;
//! - a *guard*: a page at a random address with a random token. A read of the token proves that a tid
//!   is still the keeper's, and has not been given to another task: tids are not used again within the
//!   milliseconds for which the proof is taken to hold.
//!
//! Where a peer cannot name the keeper (no thread could be made; another pid namespace in between), each
//! call names the guard first: the kernel takes hold of one address space for all of a call, so a read
//! that did not bring the token along has failed, and a write stops at a guard that is not mapped, before
//! it has changed anything. That takes some hundred nanoseconds a call.
//!
//! The guard's address is drawn from the range between programs and libraries, where the kernel maps
//! nothing by itself, so that no other program has a page there. A forked child does not inherit the page
//! (MADV_DONTFORK), nor the keeper.

use std::io;
use std::sync::{Mutex, mpsc};

use link_api::KEEPER;
use wire::channel::Space;

use crate::random;

/// Bytes of the guard.
const PAGE: usize = 4096;
/// Where writers leave a word each: lines of the guard behind the one with the token.
const LINES: u64 = PAGE as u64 / 64 - 1;
/// Bits of the address of a guard: from 16 to 64 TiB where an address space has 47 bits and more, and
/// lower where it has fewer. ThreadSanitizer's own memory is in the higher range, and its mmap then takes
/// address 0 instead (`ci/check/tsan`).
const RANGES: [(u64, u64); 2] = [(1 << 44, 1 << 46), (1 << 36, 1 << 38)];

/// This process's own address space.
pub(crate) fn own() -> io::Result<Space> {
    static OWN: Mutex<Option<Space>> = Mutex::new(None);
    let mut own = OWN.lock().unwrap_or_else(|e| e.into_inner());
    let pid = std::process::id() as i32;
    match *own {
        Some(space) if space.pid == pid => Ok(space),
        // A forked child has none yet.
        _ => {
            let (guard, token) = map()?;
            let space = Space { guard, token, pid, keeper: keep() };
            *own = Some(space);
            Ok(space)
        }
    }
}

/// What the process `pid`, by the kernel's word, says of its address space, without a keeper that is no
/// thread of it.
pub(crate) fn checked(said: Space, pid: i32) -> Space {
    let kept = pid > 0 && said.pid == pid && said.keeper > 0 && said.keeper != pid;
    let keeper = if kept && is_thread(pid, said.keeper).is_ok() { said.keeper } else { 0 };
    Space { keeper, ..said }
}

/// Whether this address space of the process `pid` is gone for certain: its keeper, which was there, is.
pub(crate) fn is_gone(space: &Space, pid: i32) -> bool {
    let is_gone = |e: io::Error| e.raw_os_error() == Some(libc::ESRCH);
    space.keeper > 0 && is_thread(pid, space.keeper).is_err_and(is_gone)
}

/// A peer's address space, as this process reaches it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    /// The keeper's tid, or the pid.
    pub(crate) id: i32,
    /// Each call has to name the guard.
    pub(crate) guarded: bool,
    pub(crate) space: Space,
}

impl Target {
    /// The process `pid`, by the kernel's word, which says this of itself. One that is wrong about its guard
    /// has a word of its own memory changed; a keeper has to be a thread of it.
    pub(crate) fn new(pid: i32, space: Space) -> Target {
        match checked(space, pid).keeper {
            0 => Target { id: pid, guarded: true, space },
            keeper => Target { id: keeper, guarded: false, space },
        }
    }

    /// Where its token is.
    pub(crate) fn token_at(&self) -> u64 {
        self.space.guard
    }

    /// Whether these bytes, read there, are its token.
    pub(crate) fn has_token(&self, bytes: [u8; 8]) -> bool {
        u64::from_le_bytes(bytes) == self.space.token
    }

    /// Where a write leaves a word, to see whether the guard is there: not all on one cache line.
    pub(crate) fn word_at(&self) -> u64 {
        self.space.guard.wrapping_add((1 + u64::from(std::process::id()) % LINES) * 64)
    }
}

/// Whether a process has a thread of that tid.
fn is_thread(pid: i32, tid: i32) -> io::Result<()> {
    // SAFETY: tgkill(2) with signal 0 sends none.
    let found = unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, 0) } == 0;
    if found { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// How long a process lives on at most whose threads have all ended by pthread_exit(3): no other thread than
/// a keeper is left to call exit(3).
const LAST_THREAD: std::time::Duration = std::time::Duration::from_secs(5);

/// Whether the calling thread is the last one; `None` where /proc does not say.
fn is_last() -> Option<bool> {
    // SAFETY: gettid(2) touches no memory.
    let own = unsafe { libc::syscall(libc::SYS_gettid) }.to_string();
    for thread in std::fs::read_dir("/proc/self/task").ok()? {
        let thread = thread.ok()?;
        if thread.file_name().to_str() == Some(&own) {
            continue;
        }
        // A first thread that has ended stays there: pid (name) state ...
        let stat = std::fs::read_to_string(thread.path().join("stat")).ok()?;
        if !stat.rsplit_once(") ")?.1.starts_with(['Z', 'X']) {
            return Some(false);
        }
    }
    Some(true)
}

/// Starts a keeper: its tid, 0 if that cannot be.
fn keep() -> i32 {
    if is_last() == Some(true) {
        // With one thread there is nothing that the kernel waits for.
        ipc::fence::register();
    }
    let (say, hear) = mpsc::channel();
    // SAFETY: a `sigset_t` is plain data, which sigfillset(3) fills in; pthread_sigmask(3) reads one set
    // and writes the other.
    let before = unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
        libc::sigfillset(&mut all);
        // No signal of the application's is to be handled by it, so it starts with all blocked.
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        before
    };
    let keeper = move || {
        leave_descriptors();
        // SAFETY: gettid(2) touches no memory.
        let _ = say.send(unsafe { libc::syscall(libc::SYS_gettid) } as i32);
        // Senders fence until that is done, and no call waits for it.
        ipc::fence::register();
        loop {
            std::thread::sleep(LAST_THREAD);
            if is_last() == Some(true) {
                // SAFETY: exit(3), which the last thread of a program ends in: this one is none of the
                // program's.
                unsafe { libc::exit(0) };
            }
        }
    };
    let started = std::thread::Builder::new().name(KEEPER.into()).stack_size(64 << 10).spawn(keeper);
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    match started {
        Ok(_) => hear.recv().unwrap_or(0),
        Err(e) => {
            log::info!("no thread can be started ({e}): direct copies from and to this process take longer");
            ipc::fence::register();
            0
        }
    }
}

/// Has the thread that calls share descriptors with no other one, and have none itself. Else no process would
/// have its table of them alone: the kernel would wait for a grace period of RCU, 10 to 30 ms, each time that
/// table grows (with the descriptors 64, 128, 256 and so on, each a connection that is being made), and count
/// references in each system call on a descriptor.
fn leave_descriptors() {
    let flags = libc::CLOSE_RANGE_UNSHARE;
    // SAFETY: the thread that has started this one uses the same table and waits, so that close_range(2)
    // closes descriptors in a copy of the table alone. Where the kernel does not have it (before 5.9), or a
    // container forbids it, nothing changes.
    unsafe { libc::syscall(libc::SYS_close_range, 0u32, u32::MAX, flags) };
}

/// Maps a guard with its token.
fn map() -> io::Result<(u64, u64)> {
    let token = random()?;
    let mut failed = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for (low, high) in RANGES.into_iter().skip(usize::from(cfg!(tsan))) {
        for _ in 0..16 {
            let place = (low + random()? % (high - low)) as usize & !(PAGE - 1);
            match map_at(place, libc::MAP_FIXED_NOREPLACE) {
                // A kernel before 4.17 takes the address for a hint.
                Ok(base) if base == place => return finish(base, token),
                Ok(base) => unmap(base),
                Err(e) => failed = e,
            }
        }
    }
    // Where the kernel likes: still an address that another program hardly has.
    map_at(0, 0).and_then(|base| finish(base, token)).map_err(|_| failed)
}

fn map_at(place: usize, flags: libc::c_int) -> io::Result<usize> {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags);
    // SAFETY: a new mapping, which replaces none: there is no MAP_FIXED among the flags.
    let base = unsafe { libc::mmap(std::ptr::without_provenance_mut(place), PAGE, prot, flags, -1, 0) };
    if base == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(base.expose_provenance()) }
}

fn unmap(base: usize) {
    // SAFETY: a whole mapping that was just made, and that nothing points to.
    unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(base), PAGE) };
}

fn finish(base: usize, token: u64) -> io::Result<(u64, u64)> {
    let at = std::ptr::with_exposed_provenance_mut::<u64>(base);
    // SAFETY: a page of ours, aligned; nothing else uses it yet. It stays mapped as long as the process
    // lives.
    unsafe {
        if libc::madvise(at.cast(), PAGE, libc::MADV_DONTFORK) != 0 {
            let failed = io::Error::last_os_error();
            unmap(base);
            return Err(failed);
        }
        at.write(token.to_le());
    }
    Ok((base as u64, token))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_one_address_space_identity() {
        let own = own().unwrap();
        assert_eq!(super::own().unwrap(), own);
        let target = Target::new(std::process::id() as i32, own);
        assert!(!target.guarded && target.id != std::process::id() as i32);
        let read = |at: u64| {
            // SAFETY: an aligned word of the guard, which stays mapped.
            unsafe { std::ptr::with_exposed_provenance::<[u8; 8]>(at as usize).read() }
        };
        assert!(target.has_token(read(target.token_at())));
        let at = target.word_at();
        assert!(at >= own.guard + 64 && at + 8 <= own.guard + PAGE as u64 && at % 64 == 0);
        assert!(!target.has_token(read(at)));
    }

    #[test]
    fn the_keeper_shares_no_descriptors() {
        let keeper = own().unwrap().keeper;
        let of = |tid: i32| std::fs::read_dir(format!("/proc/self/task/{tid}/fd")).unwrap().count();
        assert!(of(std::process::id() as i32) > 0);
        assert_eq!(of(keeper), 0);
    }

    #[test]
    fn the_keeper_registers_its_process_for_barriers() {
        own().unwrap();
        if !ipc::fence::Barrier::probe_unregistered().usable {
            return;
        }
        // Minutes where the kernel's grace periods take as long as they may on a loaded host.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(300);
        while !ipc::fence::is_registered() {
            assert!(std::time::Instant::now() < until, "not registered");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_keeper_has_to_be_a_thread_of_its_process() {
        let own = own().unwrap();
        let pid = std::process::id() as i32;
        for other in [
            Space { keeper: 0, ..own },
            Space { keeper: -1, ..own },
            Space { keeper: pid, ..own },
            Space { keeper: 1, ..own },
            Space { pid: pid + 1, ..own },
        ] {
            let target = Target::new(pid, other);
            assert!(target.guarded && target.id == pid, "{other:?}");
        }
    }

    #[test]
    fn a_forked_child_has_none() {
        let own = own().unwrap();
        // SAFETY: the child calls nothing but mincore(2), tgkill(2) and _exit(2).
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut page = 0u8;
            // SAFETY: mincore(2) writes one byte for one page; _exit(2) ends the child.
            unsafe {
                let at = std::ptr::with_exposed_provenance_mut(own.guard as usize);
                let guard = libc::mincore(at, PAGE, &mut page) == 0;
                let keeper = libc::syscall(libc::SYS_tgkill, libc::getpid(), own.keeper, 0) == 0;
                libc::_exit(libc::c_int::from(guard) | libc::c_int::from(keeper) << 1);
            }
        }
        let mut status = 0;
        // SAFETY: a child of ours and a valid place.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0), "guard 1, keeper 2");
    }
}
