//! Whether an answer has become old; read for every buffer.
//!
//! To read the processor's time stamp takes longer than all else that is done to find out what memory a
//! buffer is: 10 to 13 ns on one machine, 20 to 60 on another. So, where there is one, a word of the page is
//! looked at in which Linux keeps the time for the vDSO's clock_gettime(2), mapped readable into every
//! process as `[vvar]`: some of its words change with each tick of the kernel's, every 1 to 10 ms while the
//! process runs. Which ones do is no interface, so nothing is taken for granted. A word is trusted after it
//! was seen to have changed every time that it was looked at, four times in a row, a tick or more apart; and
//! no more once it stands still (a process can be moved to another namespace of time). Until then, after
//! that, and where there is no such page, it is the time stamp.

use std::sync::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use super::asked::ASKED;

/// Ticks for which an answer holds: a millisecond at 2 GHz, less at more.
const HOLDS: u64 = 2_000_000;
/// Longer than an answer holds by either clock: two of the kernel's ticks where these are slowest.
const LONGEST: Duration = Duration::from_millis(25);
/// Time between two readings of the page: longer than any tick.
const APART: Duration = Duration::from_millis(12);
/// After so many a word that has not changed stands still.
const STILL: u64 = 400_000_000;
/// How often a word is to have changed.
const ROUNDS: u32 = 4;
const WORDS: usize = 4096 / 4;

/// What it was when it was last checked, and since when.
static CHECKED: AtomicU32 = AtomicU32::new(0);
static SINCE: AtomicU64 = AtomicU64::new(0);

/// A clock that costs no call where the processor has one.
#[inline]
fn ticks() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every x86_64 has the instruction.
    return unsafe { std::arch::x86_64::_rdtsc() };
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: a valid place.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut now) };
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }
}

/// The word's value, if there is one.
#[inline(always)]
fn word() -> Option<u32> {
    let word = ASKED.clock.word.load(Acquire);
    // SAFETY: NULL, or a word of a mapping that stays as long as the process (`Study::sample`).
    // The kernel writes to it at any time, which an atomic allows.
    unsafe { word.as_ref() }.map(|word| word.load(Relaxed))
}

/// Whether it is time to ask again.
#[inline(always)]
pub(super) fn is_old() -> bool {
    match word() {
        Some(now) => now != ASKED.clock.seen.load(Acquire),
        None => ticks().wrapping_sub(ASKED.clock.asked.load(Acquire)) >= HOLDS,
    }
}

/// A time by both clocks.
#[derive(Clone, Copy)]
pub(super) struct Time {
    ticks: u64,
    word: Option<u32>,
}

pub(super) fn now() -> Time {
    Time { ticks: ticks(), word: word() }
}

/// What was asked at that time is known to this thread, and by this call to those that do not find it old.
pub(super) fn asked(at: Time) {
    ASKED.clock.asked.store(at.ticks, Release);
    match at.word {
        Some(word) => ASKED.clock.seen.store(word, Release),
        None => study(),
    }
}

/// Goes on with the search for a word.
fn study() {
    if let Ok(mut study) = STUDY.try_lock() {
        study.sample();
    }
}

/// Waits until every answer given before, in any copy of this crate in the process, is old.
pub(crate) fn outlive_answers() {
    std::thread::sleep(LONGEST);
}

/// Looks for a word, and does without one that stands still. To be called now and then, as
/// often as sockets are looked at, say.
pub(crate) fn check() {
    let Some(word) = word() else { return study() };
    let now = ticks();
    if CHECKED.swap(word, Relaxed) != word {
        SINCE.store(now, Relaxed);
    } else if now.wrapping_sub(SINCE.load(Relaxed)) > STILL {
        ASKED.clock.word.store(std::ptr::null_mut(), Relaxed);
    }
}

/// The search for a word.
struct Study {
    /// Where the page is; `None` before that was asked, 0 if there is none that serves.
    page: Option<usize>,
    last: Option<Instant>,
    rounds: u32,
    before: [u32; WORDS],
    /// Whether it has changed each time.
    lively: [bool; WORDS],
}

static STUDY: Mutex<Study> =
    Mutex::new(Study { page: None, last: None, rounds: 0, before: [0; WORDS], lively: [true; WORDS] });

impl Study {
    fn sample(&mut self) {
        let page = *self.page.get_or_insert_with(find_page);
        if page == 0 || self.last.is_some_and(|last| last.elapsed() < APART) {
            return;
        }
        let first = self.last.replace(Instant::now()).is_none();
        let words = std::ptr::with_exposed_provenance_mut::<AtomicU32>(page);
        for n in 0..WORDS {
            // SAFETY: a word of the first page of a mapping that the kernel made readable for the life of the
            // process, see `find_page`; an atomic may change at any time.
            let value = unsafe { (*words.add(n)).load(Relaxed) };
            self.lively[n] &= first || self.before[n] != value;
            self.before[n] = value;
        }
        self.rounds += u32::from(!first);
        match self.lively.iter().position(|lively| *lively) {
            // It stands still where the time of another namespace is kept elsewhere.
            None => self.page = Some(0),
            Some(n) if self.rounds >= ROUNDS => {
                // Not what it is: nothing was asked by this word.
                ASKED.clock.seen.store(self.before[n].wrapping_sub(1), Release);
                SINCE.store(ticks(), Relaxed);
                // SAFETY: inside the page.
                ASKED.clock.word.store(unsafe { words.add(n) }, Release);
                self.page = Some(0);
            }
            Some(_) => {}
        }
    }
}

/// The address of the page, or 0.
fn find_page() -> usize {
    // Without a vDSO the page is not for this process, though it may be there: so it is under valgrind. Miri
    // has neither. SAFETY: reads the auxiliary vector, which the kernel wrote at the process's start.
    if cfg!(miri) || unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } == 0 {
        return 0;
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let line = maps.lines().find(|line| line.ends_with(" [vvar]") && line.contains(" r--p "));
    let from = line.and_then(|line| line.split_once('-')).map_or("", |(from, _)| from);
    usize::from_str_radix(from, 16).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// An answer becomes old by either clock, and a word that stands still is dropped.
    /// As the search would go on in a process that posts buffers all the time.
    #[test]
    #[cfg_attr(miri, ignore = "reads the processor's time stamp and the kernel's page")]
    fn answers_expire_by_either_clock_and_a_stopped_word_is_dropped() {
        asked(now());
        let begin = Instant::now();
        while ASKED.clock.word.load(Relaxed).is_null() && begin.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(1));
            asked(now());
        }
        for _ in 0..3 {
            asked(now());
            let begin = Instant::now();
            while !is_old() {
                assert!(begin.elapsed() < Duration::from_secs(5), "the clock stands still");
            }
        }
        if ASKED.clock.word.load(Relaxed).is_null() {
            assert!(STUDY.lock().unwrap().page == Some(0), "gave up without a reason");
            return;
        }
        check();
        std::thread::sleep(LONGEST);
        check();
        assert!(word().is_some());
        // One that never changes.
        static DEAD: AtomicU32 = AtomicU32::new(7);
        ASKED.clock.word.store((&raw const DEAD).cast_mut(), Relaxed);
        asked(now());
        assert!(!is_old());
        let begin = Instant::now();
        while word().is_some() {
            check();
            assert!(begin.elapsed() < Duration::from_secs(5), "still believed");
        }
        assert!(is_old());
    }
}
