//! Signals as something to read.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// What is passed on to the processes of the job.
pub const PASSED: [libc::c_int; 6] =
    [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2];

/// A signal that came.
#[derive(Clone, Copy, Debug)]
pub struct Came {
    pub signal: libc::c_int,
    /// A terminal's, which sends it to each process of its foreground.
    pub from_terminal: bool,
}

/// A descriptor for [`PASSED`] and for the end of children, which from now on do nothing else.
#[derive(Debug)]
pub struct Signals(OwnedFd);

impl Signals {
    /// Blocks them in this thread and in those it starts: called before there are any.
    pub fn take() -> io::Result<Signals> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset(3) makes an empty set of the place, and the others use that set; the default is
        // no function of ours.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in PASSED.into_iter().chain([libc::SIGCHLD]) {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            // Where it is ignored, which is inherited, children go without a word of how they ended.
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
            let rc = libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            if rc != 0 {
                return Err(io::Error::from_raw_os_error(rc));
            }
        }
        // SAFETY: the set was made above.
        let fd = unsafe { libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor just made, which nothing else owns.
        Ok(Signals(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// In a child, before its program: nothing is blocked there.
    pub fn give_back() -> io::Result<()> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset(3) makes an empty set of the place.
        let rc = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut())
        };
        if rc == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(rc)) }
    }

    /// The next signal; `None` if none came in time.
    pub fn next(&self, limit: Option<Duration>) -> Option<Came> {
        let wait = limit.map_or(-1, |limit| i32::try_from(limit.as_millis() + 1).unwrap_or(i32::MAX));
        let mut one = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let len = size_of::<libc::signalfd_siginfo>();
        // SAFETY: one valid pollfd, and a place of `len` bytes; read(2) of a signalfd gives whole entries.
        unsafe {
            libc::poll(&mut one, 1, wait);
            let n = libc::read(self.0.as_raw_fd(), info.as_mut_ptr().cast(), len);
            (n == len as isize).then(|| {
                let info = info.assume_init();
                Came {
                    signal: info.ssi_signo as libc::c_int,
                    from_terminal: info.ssi_code == libc::SI_KERNEL,
                }
            })
        }
    }
}

/// The name of a signal, for people.
pub fn name(signal: libc::c_int) -> String {
    let known = [
        (libc::SIGABRT, "SIGABRT"),
        (libc::SIGBUS, "SIGBUS"),
        (libc::SIGFPE, "SIGFPE"),
        (libc::SIGHUP, "SIGHUP"),
        (libc::SIGILL, "SIGILL"),
        (libc::SIGINT, "SIGINT"),
        (libc::SIGKILL, "SIGKILL"),
        (libc::SIGPIPE, "SIGPIPE"),
        (libc::SIGQUIT, "SIGQUIT"),
        (libc::SIGSEGV, "SIGSEGV"),
        (libc::SIGTERM, "SIGTERM"),
    ];
    let found = known.iter().find(|(number, _)| *number == signal).map(|(_, name)| *name);
    found.map_or_else(|| format!("signal {signal}"), |name| format!("signal {signal}, {name}"))
}
