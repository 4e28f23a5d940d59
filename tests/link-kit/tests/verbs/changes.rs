//! Memory of the program that changes while a link uses it: what is mapped there next, by whom.

use std::net::Ipv4Addr;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use below::{Dest, Remote as _};
use hmem::{Kind, Span};
use link_api::Way;
use link_kit::text;
use testkit::pattern;
use verbs::{Options, Verbs};

use crate::device::{open, options, set};
use crate::lone::{accesses, join, say};

/// Longer than what is copied, and not of whole pages; what is mapped for it.
pub const LEN: usize = 50_000;
pub const OFF: usize = 1000;
pub const MAPPED: usize = 13 * 4096;

/// How long the tests take that run for long: LONG_SECONDS, or ten minutes.
pub fn long() -> Duration {
    let seconds = std::env::var("LONG_SECONDS");
    Duration::from_secs(seconds.map_or(600, |seconds| seconds.parse().expect("seconds")))
}

/// Where nothing else is mapped while there are free addresses above.
pub const APART: usize = 0x1000_0000_0000;

/// Pages of the process's, at an address that has to be free if one is given; `None` if it is not.
pub fn map(at: Option<usize>) -> Option<usize> {
    let fixed = at.map_or(0, |_| libc::MAP_FIXED_NOREPLACE);
    let (flags, prot) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: it takes the place of nothing.
    let found = unsafe { libc::mmap(at.unwrap_or(0) as *mut _, MAPPED, prot, flags, -1, 0) };
    (found != libc::MAP_FAILED).then_some(found as usize)
}

/// A part of such pages that begins inside of one.
pub fn part(at: usize) -> Span {
    // SAFETY: the tests' own memory, which stays while an access uses it.
    unsafe { Span::new(at + OFF, LEN, Kind::System) }
}

/// One that accesses memory of the other one.
pub struct Both {
    pub by: Verbs,
    other: Verbs,
    pub memory: Span,
    pub to: (Dest, u64, u64),
}

impl Both {
    pub fn new(devices: &str, on_demand: bool) -> Both {
        set(devices, &[]);
        let wanted = Options { on_demand, ..options() };
        let by = verbs::open(&wanted, Ipv4Addr::LOCALHOST.into()).expect("a device").0;
        let memory = Span::leak(LEN);
        let mut both = Both { by, other: open(), memory, to: (Dest(0), 0, 0) };
        both.connect();
        both
    }

    pub fn connect(&mut self) {
        let (at, to_by) = join(&mut self.by, &mut self.other);
        let lease = self.other.publish(self.memory, true, true).expect("memory of the host");
        let key = self.other.admit(to_by, &lease, true, true).expect("a key");
        say(&mut self.other, to_by, &mut self.by);
        self.to = (at, key, lease.base);
    }

    pub fn access(&mut self, way: Way, local: Span) -> bool {
        let (at, key, base) = self.to;
        accesses(&mut self.by, (way, at, key, base), local)
    }

    /// Writes new bytes from memory, and reads others into it.
    pub fn exchange(&mut self, local: Span, seed: usize) {
        hmem::write(&[local], 0, &pattern(LEN, seed));
        assert!(self.access(Way::Put, local));
        assert!(text(&[self.memory]) == pattern(LEN, seed), "written: bytes of seed {seed}");
        hmem::write(&[self.memory], 0, &pattern(LEN, seed + 1));
        assert!(self.access(Way::Get, local));
        assert!(text(&[local]) == pattern(LEN, seed + 1), "read: bytes of seed {seed}");
    }
}

/// What the other thread does to pages, which are mapped when it has.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    Unmap,
    Fixed,
    Remap,
    Discard,
    Fork,
}

pub fn change(what: Change, at: usize) {
    let (flags, prot) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_READ | libc::PROT_WRITE);
    let at_all = at as *mut libc::c_void;
    // SAFETY: pages of this test that no access uses, and nothing else has.
    unsafe {
        match what {
            Change::Unmap => assert_eq!(libc::munmap(at_all, MAPPED), 0),
            Change::Fixed => {
                assert_eq!(libc::mmap(at_all, MAPPED, prot, flags | libc::MAP_FIXED, -1, 0), at_all);
            }
            Change::Remap => {
                let other = libc::mmap(std::ptr::null_mut(), MAPPED, prot, flags, -1, 0);
                let moved = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                assert_eq!(libc::mremap(other, MAPPED, MAPPED, moved, at_all), at_all);
            }
            Change::Discard => assert_eq!(libc::madvise(at_all, MAPPED, libc::MADV_DONTNEED), 0),
            Change::Fork => {
                let child = libc::fork();
                if child == 0 {
                    // What this changes is the child's.
                    at_all.cast::<u8>().add(OFF).write_bytes(0xee, LEN);
                    libc::_exit(0);
                }
                assert_eq!(libc::waitpid(child, std::ptr::null_mut(), 0), child);
            }
        }
    }
}

/// One thread changes what is mapped at an address, the other one uses it as soon as there is memory.
pub fn pages_change(both: &mut Both, time: Duration) {
    let at = map(Some(APART)).expect("memory");
    let (changes, asked) = mpsc::channel();
    let (say, said) = mpsc::channel();
    let other = thread::spawn(move || {
        for what in asked {
            change(what, at);
            say.send(()).expect("the other thread");
        }
    });
    let all = [Change::Unmap, Change::Fixed, Change::Remap, Change::Discard, Change::Fork];
    let start = Instant::now();
    for (seed, what) in (0usize..).step_by(2).zip(all.iter().cycle()) {
        both.exchange(part(at), seed % 251);
        changes.send(*what).expect("the other thread");
        if matches!(what, Change::Unmap) {
            // The other thread may be in munmap(2) still.
            while map(Some(at)).is_none() {
                let error = std::io::Error::last_os_error();
                assert_eq!(error.raw_os_error(), Some(libc::EEXIST), "{error}");
                assert!(!other.is_finished(), "the other thread has ended");
                thread::yield_now();
            }
            both.exchange(part(at), seed % 241);
        }
        said.recv().expect("the other thread");
        if start.elapsed() > time && seed >= 20 {
            break;
        }
    }
    drop(changes);
    other.join().expect("the other thread");
}
