//! What the journal has of a signal that ends the process: its number, the place, the addresses on the stack,
//! and the map of the process, by which `strait doctor` names the libraries that these are in.
//!
//! A handler writes them and has the handler before take its turn: those of the application and of the MPI
//! library act as they would without it. It allocates nothing and calls only what signal-safety(7) lists.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The signals of a fault, and of abort(3).
const SIGNALS: [c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT];
/// Words of the stack that are written.
const WORDS: usize = 256;

/// The journal; below 0: none, or a signal has been written.
static FD: AtomicI32 = AtomicI32::new(-1);
static PID: AtomicI32 = AtomicI32::new(0);
static BEFORE: OnceLock<[libc::sigaction; SIGNALS.len()]> = OnceLock::new();
static INSTALLING: Mutex<()> = Mutex::new(());

/// The file of the object that this code is in.
pub(super) fn own_object() -> String {
    let mut about = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the address is of this object, the place is valid for a write, and of zeros where nothing is
    // written. The name lives as long as the object.
    unsafe {
        if libc::dladdr((&raw const FD).cast::<c_void>(), about.as_mut_ptr()) == 0 {
            return String::new();
        }
        let name = about.assume_init().dli_fname;
        if name.is_null() {
            return String::new();
        }
        std::ffi::CStr::from_ptr(name).to_string_lossy().into_owned()
    }
}

/// Has the signals written to this descriptor, which stays open until the process ends. The caller is never
/// unloaded, or a program.
pub(super) fn write_to(fd: c_int) {
    let _held = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    if BEFORE.get().is_some() {
        return;
    }
    // SAFETY: all zero is an action; both places are valid during the call.
    let mut before = unsafe { std::mem::zeroed::<[libc::sigaction; SIGNALS.len()]>() };
    for (signal, before) in SIGNALS.iter().zip(&mut before) {
        // SAFETY: as above. Nothing is changed.
        unsafe { libc::sigaction(*signal, std::ptr::null(), before) };
    }
    // The handler reads it: it is complete before there is a handler.
    let _ = BEFORE.set(before);
    PID.store(i32::try_from(std::process::id()).unwrap_or(0), Relaxed);
    FD.store(fd, Release);
    // SAFETY: all zero is an action, with an empty mask.
    let mut own = unsafe { std::mem::zeroed::<libc::sigaction>() };
    own.sa_sigaction = handle as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as usize;
    own.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    for signal in SIGNALS {
        // SAFETY: the handler is of this signature, and there until the process ends.
        unsafe { libc::sigaction(signal, &raw const own, std::ptr::null_mut()) };
    }
}

/// What the handler works in: a program's alternate stack may be too small for it.
struct Room(UnsafeCell<(Line, [u64; WORDS], [u8; 4096])>);

// SAFETY: the thread that takes the descriptor out of `FD` uses it, and no other does after that.
unsafe impl Sync for Room {}

static ROOM: Room = Room(UnsafeCell::new((Line::NEW, [0; WORDS], [0; 4096])));

/// Bytes that are put together without an allocation.
struct Line {
    bytes: [u8; 512 + 19 * WORDS],
    len: usize,
}

impl Line {
    const NEW: Line = Line { bytes: [0; 512 + 19 * WORDS], len: 0 };

    fn text(&mut self, text: &str) {
        let room = self.bytes.len() - self.len;
        let n = text.len().min(room);
        self.bytes[self.len..self.len + n].copy_from_slice(&text.as_bytes()[..n]);
        self.len += n;
    }

    fn number(&mut self, mut n: u64, base: u64) {
        let mut digits = [0; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b"0123456789abcdef"[(n % base) as usize];
            n /= base;
            if n == 0 {
                break;
            }
        }
        // Digits alone are text.
        self.text(std::str::from_utf8(&digits[at..]).unwrap_or_default());
    }
}

/// The place at which the signal came, and that of the stack.
#[cfg(target_arch = "x86_64")]
fn registers(context: &libc::ucontext_t) -> (u64, u64) {
    let all = &context.uc_mcontext.gregs;
    (all[libc::REG_RIP as usize] as u64, all[libc::REG_RSP as usize] as u64)
}

#[cfg(target_arch = "aarch64")]
fn registers(context: &libc::ucontext_t) -> (u64, u64) {
    (context.uc_mcontext.pc, context.uc_mcontext.sp)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn registers(_: &libc::ucontext_t) -> (u64, u64) {
    (0, 0)
}

extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the place of errno of this thread.
    let errno = unsafe { *libc::__errno_location() };
    let fd = FD.swap(-1, Acquire);
    // SAFETY: asks for a number of the process.
    if fd >= 0 && unsafe { libc::getpid() } == PID.load(Relaxed) {
        // SAFETY: SA_SIGINFO: the kernel passes both, valid during the handler.
        let (address, (pc, sp)) = unsafe { ((*info).si_addr() as u64, registers(&*context.cast())) };
        write(fd, signal, address, pc, sp);
    }
    // SAFETY: the kernel passes it. An action that was there before, for a signal that it was for.
    unsafe {
        let Some(at) = SIGNALS.iter().position(|s| *s == signal) else { return };
        let Some(before) = BEFORE.get() else { return };
        libc::sigaction(signal, &raw const before[at], std::ptr::null_mut());
        *libc::__errno_location() = errno;
        // A fault comes again once this returns; what a process or abort(3) has sent does not.
        if (*info).si_code <= 0 {
            libc::raise(signal);
        }
    }
}

/// By the thread that has taken the descriptor.
fn write(fd: c_int, signal: c_int, address: u64, pc: u64, sp: u64) {
    // SAFETY: no other thread uses it, since none other has had the descriptor.
    let (line, words, buffer) = unsafe { &mut *ROOM.0.get() };
    let members =
        [("{\"event\":\"signal\",\"pid\":", PID.load(Relaxed) as u64), (",\"signal\":", signal as u64)];
    for (name, value) in members {
        line.text(name);
        line.number(value, 10);
    }
    // SAFETY: asks for a number of the thread.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) };
    line.text(",\"thread\":");
    line.number(thread.unsigned_abs(), 10);
    for (name, value) in [(",\"address\":\"", address), ("\",\"pc\":\"", pc)] {
        line.text(name);
        line.number(value, 16);
    }
    line.text("\",\"stack\":\"");
    let local = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: size_of_val(words) };
    let remote = libc::iovec { iov_base: sp as *mut c_void, iov_len: size_of_val(words) };
    // By the kernel, which stops where the stack ends. SAFETY: the local memory is valid for a write of its
    // length; the other may be anything.
    let read =
        unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
    for word in &words[..usize::try_from(read).unwrap_or(0) / 8] {
        line.number(*word, 16);
        line.text(" ");
    }
    line.text("\"}\n");
    put(fd, &line.bytes[..line.len]);
    maps(fd, buffer);
}

/// Copies the map of the process: lines that no event looks like.
fn maps(fd: c_int, buffer: &mut [u8]) {
    // SAFETY: a string; the descriptor is this function's; the buffer is valid for a write of its length.
    unsafe {
        let from = libc::open(c"/proc/self/maps".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if from < 0 {
            return;
        }
        loop {
            let n = libc::read(from, buffer.as_mut_ptr().cast(), buffer.len());
            let Some(part) = usize::try_from(n).ok().and_then(|n| buffer.get(..n)) else { break };
            if part.is_empty() {
                break;
            }
            put(fd, part);
        }
        libc::close(from);
    }
}

fn put(fd: c_int, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        // SAFETY: the bytes are valid for a read of their length.
        let n = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
        match usize::try_from(n).ok().and_then(|n| bytes.get(n..)) {
            Some(rest) if n > 0 => bytes = rest,
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _};
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn numbers_are_written_without_an_allocation() {
        let mut line = Line::NEW;
        line.number(0, 10);
        line.text(" ");
        line.number(u64::MAX, 10);
        line.text(" ");
        line.number(0xdead_beef, 16);
        assert_eq!(&line.bytes[..line.len], b"0 18446744073709551615 deadbeef");
    }

    /// A child faults: what is written names the address and the map, and the child ends by the signal.
    #[test]
    fn a_fault_is_written_and_ends_the_process() {
        let path = std::env::temp_dir().join(format!("strait-crash-{}", std::process::id()));
        let mut file =
            std::fs::OpenOptions::new().read(true).append(true).create_new(true).open(&path).unwrap();
        // SAFETY: the child sets handlers and faults.
        let child = unsafe { libc::fork() };
        if child == 0 {
            for signal in SIGNALS {
                // SAFETY: the default action, as in a program that is no test.
                unsafe { libc::signal(signal, libc::SIG_DFL) };
            }
            write_to(file.as_raw_fd());
            // SAFETY: it is meant to fault; if it does not, the child ends.
            unsafe {
                std::ptr::without_provenance_mut::<u8>(0x123).write_volatile(1);
                libc::_exit(0);
            }
        }
        let mut status = 0;
        // SAFETY: a child of ours, and a place for what became of it.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status}");
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        std::fs::remove_file(&path).unwrap();
        let head = format!("{{\"event\":\"signal\",\"pid\":{child},\"signal\":11,\"thread\":{child},");
        assert!(text.starts_with(&head) && text.contains("\"address\":\"123\","), "{text}");
        assert!(text.lines().skip(1).any(|line| line.contains(" r-xp ")), "{text}");
    }
}
