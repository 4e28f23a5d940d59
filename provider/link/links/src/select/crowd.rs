//! Endpoints of one process to which nothing comes for a while, looked at together.
//!
//! A look at an endpoint's sockets takes system calls. A process of a thousand endpoints that polls one after
//! the other would make a thousand of them for each message. So an endpoint that had nothing for a while is
//! armed, as for a sleep, and its descriptor is put into a set that such endpoints of the process share. Of
//! those in the set the one that is polled first after the last look makes the next one, which is a single
//! call for all and notes whose descriptor has something; that endpoint leaves the set with its next poll. A
//! member is reported once ([`Watch::Once`]), so that endpoints outside the set cost it nothing.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use ipc::{Poller, Watch};

#[cfg(all(test, loom))]
use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
#[cfg(not(all(test, loom)))]
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// How long an endpoint had nothing, by the clock, which one of [`CLOCK`] looks reads, before it is looked at
/// together with others.
pub(super) const QUIET: Duration = Duration::from_micros(250);
/// While nothing comes, one of so many looks reads the clock.
const CLOCK: u32 = 4;
/// One of so many polls asks whether the endpoint is still armed.
const ASKED: u32 = 16;
/// How long another thread that opens an endpoint is waited for, and how often it is looked whether it has
/// ended.
const PATIENCE: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_micros(50);
/// Members that one look reports.
const BATCH: usize = 64;

/// What is known of a member: that its descriptor has something.
#[derive(Debug)]
struct Due(AtomicBool);

/// Members whose flags lie together: to ask each of many in turn is to read few lines of memory.
const TOGETHER: usize = 64;
type Flags = Arc<[Due; TOGETHER]>;

/// Counts looks, so that one serves all members.
#[derive(Debug)]
struct Looks(AtomicU64);

impl Due {
    fn new() -> Due {
        Due(AtomicBool::new(false))
    }

    fn note(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_noted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Forgets what was noted, and has the descriptor be watched again: in this order, since what is noted
    /// from then on is new.
    fn forget<T>(&self, watch: impl FnOnce() -> T) -> T {
        self.0.store(false, Ordering::Relaxed);
        watch()
    }
}

impl Looks {
    fn new() -> Looks {
        Looks(AtomicU64::new(0))
    }

    /// Whether a member that was polled when there were `seen` looks has something, as far as the last look
    /// showed. Where there was none since, `poll` makes one.
    #[inline]
    fn is_due(&self, due: &Due, seen: &mut u64, poll: impl FnOnce()) -> bool {
        if due.is_noted() {
            return true;
        }
        let looks = self.0.load(Ordering::Relaxed);
        if *seen != looks {
            // What came after that look is for the next one.
            *seen = looks;
            return false;
        }
        poll();
        *seen = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        due.is_noted()
    }
}

/// The set of one process.
#[derive(Debug)]
struct Crowd {
    poller: Poller,
    looks: Looks,
    /// Endpoints that may be in the set.
    many: AtomicUsize,
    members: Mutex<Members>,
    pid: u32,
}

#[derive(Debug, Default)]
struct Members {
    flags: Vec<Flags>,
    /// Places of members that are no more.
    free: Vec<usize>,
    taken: usize,
}

impl Members {
    fn due(&self, place: usize) -> Option<&Due> {
        self.flags.get(place / TOGETHER).map(|flags| &flags[place % TOGETHER])
    }

    /// A place for one more, and the flags that have it.
    fn take(&mut self) -> (usize, Flags) {
        let place = self.free.pop().unwrap_or(self.taken);
        self.taken = self.taken.max(place + 1);
        if self.flags.len() <= place / TOGETHER {
            self.flags.push(Arc::new(std::array::from_fn(|_| Due::new())));
        }
        (place, self.flags[place / TOGETHER].clone())
    }
}

/// That of this process, which ends with its last member. A forked child makes its own.
static CROWD: Mutex<Weak<Crowd>> = Mutex::new(Weak::new());

/// The forked child in which the lock on the set was found to be held by a thread of its parent's, for good;
/// 0: none.
static HELD_FOR_GOOD: AtomicU32 = AtomicU32::new(0);

/// Takes the lock on the set of this process, unless it is held for good.
fn lock_crowd(pid: u32) -> Option<MutexGuard<'static, Weak<Crowd>>> {
    let start = Instant::now();
    loop {
        match CROWD.try_lock() {
            Ok(crowd) => return Some(crowd),
            Err(TryLockError::Poisoned(crowd)) => return Some(crowd.into_inner()),
            Err(TryLockError::WouldBlock) if HELD_FOR_GOOD.load(Ordering::Relaxed) == pid => return None,
            Err(TryLockError::WouldBlock) if start.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            Err(TryLockError::WouldBlock) => HELD_FOR_GOOD.store(pid, Ordering::Relaxed),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Crowd {
    fn of_process() -> io::Result<Option<Arc<Crowd>>> {
        let pid = std::process::id();
        let Some(mut crowd) = lock_crowd(pid) else { return Ok(None) };
        if let Some(known) = crowd.upgrade().filter(|known| known.pid == pid) {
            return Ok(Some(known));
        }
        let fresh = Arc::new(Crowd {
            poller: Poller::new()?,
            looks: Looks::new(),
            many: AtomicUsize::new(0),
            members: Mutex::default(),
            pid,
        });
        *crowd = Arc::downgrade(&fresh);
        Ok(Some(fresh))
    }

    #[cold]
    fn poll(&self) {
        let found = self.poller.ready::<BATCH>();
        if found.is_empty() {
            return;
        }
        let members = lock(&self.members);
        found.tokens().filter_map(|token| members.due(token as usize)).for_each(Due::note);
    }
}

/// An endpoint's part in the set of its process.
#[derive(Debug)]
pub(super) struct Member {
    crowd: Arc<Crowd>,
    /// The descriptor that stands for the endpoint, which lives longer than this.
    fd: RawFd,
    place: usize,
    flags: Flags,
    /// Looks when it was polled last.
    seen: u64,
    rests: bool,
    /// Polls since then.
    polls: u32,
    /// The poller has the descriptor.
    is_added: bool,
    /// Since when nothing has come, as far as is known; and looks that have found so since the clock was
    /// read.
    since: Option<Instant>,
    misses: u32,
}

impl Member {
    /// `fd` is readable when the endpoint has something, provided that it was armed. `None`: the process has
    /// no set.
    pub(super) fn new(fd: RawFd) -> Option<Member> {
        let crowd = Crowd::of_process().ok().flatten()?;
        let (place, flags) = lock(&crowd.members).take();
        crowd.many.fetch_add(1, Ordering::Relaxed);
        Some(Member {
            crowd,
            fd,
            place,
            flags,
            seen: 0,
            rests: false,
            polls: 0,
            is_added: false,
            since: None,
            misses: 0,
        })
    }

    /// Nothing has come now. Whether it is time to rest.
    pub(super) fn is_quiet(&mut self) -> bool {
        if self.crowd.many.load(Ordering::Relaxed) < 2 {
            return false;
        }
        self.misses += 1;
        if self.misses < CLOCK {
            return false;
        }
        self.misses = 0;
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        now.saturating_duration_since(since) >= QUIET
    }

    /// Something has come, or is to come.
    #[inline]
    pub(super) fn wake(&mut self) {
        (self.rests, self.since, self.misses) = (false, None, 0);
    }

    #[inline(always)]
    pub(super) fn rests(&self) -> bool {
        self.rests
    }

    /// From now on the descriptor of the endpoint, which was just armed, is in the set.
    pub(super) fn rest(&mut self) {
        let (poller, token) = (&self.crowd.poller, self.place as u64);
        let done = self.flags[self.place % TOGETHER].forget(|| match self.is_added {
            true => poller.change(&self.fd, token, Watch::Once),
            // Where it is too many levels deep it stays outside.
            false => poller.add_for(&self.fd, token, Watch::Once),
        });
        (self.rests, self.polls) = (done.is_ok(), 0);
        self.is_added |= self.rests;
        self.since = None;
    }

    /// Whether a member that rests has something.
    #[inline]
    pub(super) fn is_due(&mut self) -> bool {
        let crowd = &self.crowd;
        let due = &self.flags[self.place % TOGETHER];
        crowd.looks.is_due(due, &mut self.seen, || crowd.poll())
    }

    /// Whether it is to be asked now if the endpoint is still armed, as it should be.
    #[inline]
    pub(super) fn is_asked(&mut self) -> bool {
        self.polls = self.polls.wrapping_add(1);
        self.polls % ASKED == 0
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // What a forked child has of its parent's set is of no use, and a lock of it may be held for good.
        if self.crowd.pid != std::process::id() {
            return;
        }
        if self.is_added {
            self.crowd.poller.remove(&self.fd);
        }
        self.crowd.many.fetch_sub(1, Ordering::Relaxed);
        lock(&self.crowd.members).free.push(self.place);
    }
}

#[cfg(all(test, loom))]
#[path = "crowd_loom.rs"]
mod loom_tests;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_look_serves_all_members() {
        let (looks, due) = (Looks::new(), [(); 10].map(|()| Due::new()));
        let mut seen = [0; 10];
        let mut made = 0;
        for _ in 0..100 {
            for (due, seen) in due.iter().zip(&mut seen) {
                assert!(!looks.is_due(due, seen, || made += 1));
            }
        }
        assert!((100..=101).contains(&made), "{made} looks of 10 members, each polled 100 times");
        // Each of them finds out by itself where the others are not polled.
        for (due, seen) in due.iter().zip(&mut seen) {
            assert!((0..2).any(|_| looks.is_due(due, seen, || due.note())));
        }
    }

    #[test]
    fn an_endpoint_that_is_opened_while_another_thread_opens_one_is_a_member() {
        let (held, is_held) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            let _crowd = lock(&CROWD);
            held.send(()).unwrap();
            std::thread::sleep(PATIENCE / 5);
        });
        is_held.recv().unwrap();
        assert!(Member::new(0).is_some());
        other.join().unwrap();
    }

    /// Its parent's other threads do not run in it, and what they held stays held.
    #[test]
    fn a_forked_child_drops_a_member_though_the_lock_is_held() {
        let member = Member::new(0).unwrap();
        let crowd = member.crowd.clone();
        let held = lock(&crowd.members);
        // SAFETY: the child drops what is its own, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: alarm(2) and _exit(2) have no requirements.
            unsafe { libc::alarm(20) };
            drop(member);
            // SAFETY: as above.
            unsafe { libc::_exit(0) };
        }
        let mut status = -1;
        // SAFETY: a local word for the status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        drop(held);
        assert_eq!(status, 0, "it waited for the lock");
    }

    #[test]
    fn places_are_given_again() {
        let mut members = Members::default();
        let places: Vec<usize> = (0..100).map(|_| members.take().0).collect();
        assert_eq!(places, (0..100).collect::<Vec<_>>());
        members.free.push(70);
        let (place, flags) = members.take();
        flags[place % TOGETHER].note();
        assert_eq!(place, 70);
        let noted = |at: usize| members.due(at).map(Due::is_noted);
        assert_eq!((noted(70), noted(69), noted(200)), (Some(true), Some(false), None));
    }
}
