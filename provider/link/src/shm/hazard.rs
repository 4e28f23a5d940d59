//! Taking memory back from peers that reach it by themselves.
//!
//! A peer copies to registered memory through a mapping or with CMA, and no kernel lets us revoke that
//! for one address. So memory that may be taken back has a *slot* on a board, a window that all peers
//! map, and each user of the board has a *seat* there. A slot is a generation. An access writes the
//! slot's number to its seat, then looks at the generation, and leaves the memory alone if it is
//! another one (`access`). To take memory back is to change the generation, then to look at all seats,
//! and to wait for those that hold the slot. A seat has its user's name, so that seats of processes that
//! have ended are skipped.
//!
//! ```text
//! | seats used | seat: who, pid namespace, slot + 1 | ... | generation | ... |
//! ```
//!
//! Peers write the board. One that lies has others wait, for as long as the caller says and no longer,
//! or has its own user's memory changed.

use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ipc::Mapping;

use super::access;
use super::ring::Word;
use super::wake::full_fence;

const LINE: usize = 64;
const SEATS: u32 = 1023;
const SLOTS: u32 = 16 << 10;

/// The words of a board.
trait Words {
    type Word: Word;

    fn seats(&self) -> u32;
    /// How many seats were ever used.
    fn used(&self) -> &Self::Word;
    /// Who has a seat: 0 if nobody.
    fn who(&self, seat: u32) -> &Self::Word;
    /// The pid namespace of who has it.
    fn space(&self, seat: u32) -> &Self::Word;
    /// The number of the slot it holds, and 1; 0 for none.
    fn holds(&self, seat: u32) -> &Self::Word;
    fn generation(&self, slot: u32) -> &Self::Word;
    /// A sequentially consistent fence.
    fn fence(&self);
}

/// Takes a seat for `me`, if need be one whose user is dead.
fn claim<W: Words>(words: &W, (me, space): (u32, u32), dead: impl Fn(u32, u32) -> bool) -> Option<u32> {
    let free = |seat: &u32| words.who(*seat).compare_exchange(0, me).is_ok();
    let left = |seat: &u32| {
        let who = words.who(*seat).load(Relaxed);
        dead(who, words.space(*seat).load(Relaxed)) && words.who(*seat).compare_exchange(who, me).is_ok()
    };
    let seat = (0..words.seats()).find(free).or_else(|| (0..words.seats()).find(left))?;
    words.space(seat).store(space, Relaxed);
    words.holds(seat).store(0, Release);
    loop {
        let used = words.used().load(Relaxed);
        if used > seat || words.used().compare_exchange(used, seat + 1).is_ok() {
            return Some(seat);
        }
    }
}

/// Gives a seat back.
fn release<W: Words>(words: &W, seat: u32) {
    words.holds(seat).store(0, Release);
    // A free seat has no namespace, and a dead one's that of its heir: so the two words always agree.
    words.space(seat).store(0, Relaxed);
    words.who(seat).store(0, Release);
}

/// Whether memory with this slot and generation may be accessed, until `leave`.
#[inline]
fn enter<W: Words>(words: &W, seat: u32, slot: u32, generation: u32) -> bool {
    let is_current = || words.generation(slot).load(Acquire) == generation;
    access::enter(words.holds(seat), slot + 1, || words.fence(), is_current)
}

#[inline]
fn leave<W: Words>(words: &W, seat: u32) {
    access::leave(words.holds(seat));
}

/// Ends a generation, and waits until nobody is inside; whether that came to pass before `wait`, which
/// is told who is waited for, gave up.
fn end<W: Words>(words: &W, slot: u32, generation: u32, mut wait: impl FnMut(u32, u32) -> Waits) -> bool {
    words.generation(slot).store(generation.wrapping_add(1), Release);
    words.fence();
    for seat in 0..words.used().load(Relaxed).min(words.seats()) {
        while access::is_inside(words.holds(seat), Some(slot + 1)) {
            let who = words.who(seat).load(Acquire);
            match wait(who, words.space(seat).load(Relaxed)) {
                Waits::On => {}
                // Not if somebody else has the seat by now.
                Waits::Dead if words.who(seat).load(Acquire) == who => break,
                Waits::Dead => {}
                Waits::Out => return false,
            }
        }
    }
    true
}

/// Whether to wait on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    On,
    /// Not for this one, who is dead.
    Dead,
    /// No more.
    Out,
}

/// A board in a window.
#[derive(Clone, Debug)]
pub struct Hazards(Arc<Mapping>);

impl Hazards {
    /// Bytes of such a window.
    pub const SIZE: usize = (SEATS as usize + 1) * LINE + SLOTS as usize * 4;
    /// Slots on it.
    pub const SLOTS: u32 = SLOTS;

    /// The board in a window, if it is large enough.
    pub fn new(window: Arc<Mapping>) -> Option<Hazards> {
        (window.len() >= Self::SIZE).then_some(Hazards(window))
    }

    /// Takes a seat; `None` if all are taken. Who has one accesses one thing at a time.
    pub fn claim(&self) -> Option<u32> {
        claim(self, myself(), dead)
    }

    /// Gives a seat back.
    pub fn release(&self, seat: u32) {
        release(self, seat);
    }

    /// Whether memory with this slot and generation may be accessed, until `leave`.
    #[inline]
    pub fn enter(&self, seat: u32, slot: u32, generation: u32) -> bool {
        slot < SLOTS && enter(self, seat, slot, generation)
    }

    #[inline]
    pub fn leave(&self, seat: u32) {
        leave(self, seat);
    }

    /// Ends a generation, and waits until nobody is inside, the dead not counted; whether that came to
    /// pass within `patience`.
    pub fn end(&self, slot: u32, generation: u32, patience: Duration) -> bool {
        // An access of a large piece takes its time: whether somebody lives is asked now and then.
        const ASK: Duration = Duration::from_micros(500);
        if slot >= SLOTS {
            return true;
        }
        let begin = Instant::now();
        let (mut turns, mut asked) = (0u32, begin);
        end(self, slot, generation, |who, space| {
            turns += 1;
            if turns < 100 {
                std::hint::spin_loop();
                return Waits::On;
            }
            std::thread::yield_now();
            if asked.elapsed() < ASK {
                return Waits::On;
            }
            asked = Instant::now();
            match begin.elapsed() > patience {
                _ if dead(who, space) => Waits::Dead,
                true => Waits::Out,
                false => Waits::On,
            }
        })
    }

    fn word(&self, line: u32, at: usize) -> &AtomicU32 {
        let at = line as usize * LINE + at * 4;
        assert!(at + 4 <= Self::SIZE);
        // SAFETY: inside the mapping, which is page aligned and lives as long as `self`; peers may
        // change the word at any time, which is what atomics are for.
        unsafe { AtomicU32::from_ptr(self.0.base().add(at).cast()) }
    }
}

impl Words for Hazards {
    type Word = AtomicU32;

    fn seats(&self) -> u32 {
        SEATS
    }
    fn used(&self) -> &AtomicU32 {
        self.word(0, 0)
    }
    fn who(&self, seat: u32) -> &AtomicU32 {
        self.word(1 + seat, 0)
    }
    fn space(&self, seat: u32) -> &AtomicU32 {
        self.word(1 + seat, 1)
    }
    fn holds(&self, seat: u32) -> &AtomicU32 {
        self.word(1 + seat, 2)
    }
    fn generation(&self, slot: u32) -> &AtomicU32 {
        self.word(1 + SEATS, slot as usize)
    }
    fn fence(&self) {
        full_fence();
    }
}

/// Bits of a name that are of the time at which its process began: a pid has 22 at most.
const START: u32 = 10;

fn name(pid: u32, start: u64) -> u32 {
    // Never 0, since no pid is.
    pid << START | (start.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - START)) as u32
}

/// This process's name and pid namespace; 0 for the latter if /proc does not show it.
fn myself() -> (u32, u32) {
    static MYSELF: OnceLock<(u32, u32, u32)> = OnceLock::new();
    let find = || {
        let pid = std::process::id();
        let start = stat(pid).map(|s| s.start);
        let space = std::fs::metadata("/proc/self/ns/pid").map_or(0, |m| m.ino() as u32);
        // /proc may be that of another namespace.
        let own = std::fs::read_link("/proc/self").is_ok_and(|to| to.as_os_str() == pid.to_string().as_str());
        (pid, name(pid, start.unwrap_or(0)), if own && start.is_some() { space } else { 0 })
    };
    let mine = *MYSELF.get_or_init(find);
    // A forked child is somebody else.
    let (_, name, space) = if mine.0 == std::process::id() { mine } else { find() };
    (name, space)
}

/// Whether the process of this name is dead for certain.
fn dead(who: u32, space: u32) -> bool {
    let (pid, own) = (who >> START, myself().1);
    if space == 0 || space != own || pid == 0 {
        return false;
    }
    // SAFETY: kill(2) with signal 0 sends none.
    let gone = unsafe { libc::kill(pid as libc::pid_t, 0) } != 0
        && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
    // Killed and not waited for yet; or another one has its pid.
    gone || stat(pid).is_some_and(|s| s.ended || name(pid, s.start) != who)
}

struct Stat {
    start: u64,
    ended: bool,
}

/// What /proc/PID/stat says.
fn stat(pid: u32) -> Option<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    let words: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    // A process whose first thread has ended may have others.
    let ended = matches!(*words.first()?, "Z" | "X") && matches!(*words.get(17)?, "0" | "1");
    Some(Stat { start: words.get(19)?.parse().ok()?, ended })
}

#[cfg(all(test, loom))]
#[path = "hazard_loom.rs"]
mod model;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::process::Command;

    use super::super::window::Windows;
    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    fn board() -> Hazards {
        let len = Hazards::SIZE.next_multiple_of(4096);
        Hazards::new(Windows::new().unwrap().create(len, None).unwrap().1).unwrap()
    }

    #[test]
    fn a_slot_that_nobody_holds_is_taken_back() {
        let b = board();
        let (one, other) = (b.claim().unwrap(), b.claim().unwrap());
        assert_ne!(one, other);
        assert!(b.enter(one, 5, 0));
        b.leave(one);
        // InUse another one.
        assert!(b.enter(other, 6, 0));
        assert!(b.end(5, 0, SHORT));
        assert!(!b.enter(one, 5, 0) && b.enter(one, 5, 1));
        // InUse this one: the wait ends all the same.
        assert!(!b.end(5, 1, SHORT));
        b.release(one);
        assert_eq!(b.claim(), Some(one));
        assert!(!b.enter(one, SLOTS, 0) && b.end(SLOTS, 0, SHORT));
    }

    #[test]
    fn nobody_waits_for_the_dead() {
        let b = board();
        let me = b.claim().unwrap();
        let (_, space) = myself();
        assert_ne!(space, 0, "no /proc");
        // Killed, and not waited for.
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let who = name(child.id(), stat(child.id()).unwrap().start);
        let seat = claim(&b, (who, space), dead).unwrap();
        assert!(b.enter(seat, 1, 0));
        assert!(!b.end(1, 0, SHORT), "somebody is inside");
        child.kill().unwrap();
        assert!(b.end(1, 1, Duration::from_secs(60)));
        child.wait().unwrap();
        assert!(b.end(1, 2, Duration::from_secs(60)));
        // Its pid in another namespace says nothing; neither does one of another time.
        b.space(seat).store(space ^ 1, Relaxed);
        assert!(!b.end(1, 3, SHORT));
        assert!(!dead(myself().0, space) && dead(myself().0 ^ 1, space));
        // A dead one's seat is taken when there is no other.
        b.space(seat).store(space, Relaxed);
        (seat + 1..SEATS).for_each(|_| assert!(b.claim().is_some()));
        assert_eq!(b.claim(), Some(seat));
        assert_eq!(b.claim(), None);
        b.release(me);
        assert_eq!(b.claim(), Some(me));
    }

    #[test]
    fn a_board_with_rubbish_is_no_harm() {
        let b = board();
        // SAFETY: the whole window, of this test alone.
        unsafe { b.0.base().write_bytes(0xff, Hazards::SIZE) };
        assert_eq!(b.claim(), None);
        assert!(b.end(9, 4, SHORT));
        assert!(Hazards::new(Windows::new().unwrap().create(4096, None).unwrap().1).is_none());
    }
}
