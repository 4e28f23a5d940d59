//! Reads of a completion queue: fi_cq_read(3), and fi_cq_sread(3), which sleeps.

use std::sync::atomic::Ordering;

use engine::{PollFast, Report};
use libc::{c_int, c_void};
use libfabric_sys as fi;
use link::turns;
use runtime::{Deadline, Step, Watched};

use super::place::Place;
use super::{CqFid, entry};
use crate::domain::{Engine, Guard};
use crate::errno::Errno;
use crate::wait::Style;

/// After how many reads that found nothing one lets another process have the core, where there may be one for
/// each.
const PATIENCE: u32 = 4096;
/// Most messages taken in by one read that finds the queue empty.
const BATCH: usize = 32;
/// After so many reads in a row that found the queue filled the next one may make progress all the same.
const TAKEN_IN_A_ROW: u32 = 15;
/// Work with messages that no receive is for (`Domain::kept`) after which a read looks at no further ring,
/// but says that there is nothing. No sleep begins there: to arm an endpoint is to look at its rings.
const DETOURS: u32 = 128;

impl CqFid {
    /// Takes up to `count` entries into `buf`, and their sources into `from` unless that is NULL.
    ///
    /// # Safety
    /// `buf` has room for `count` entries of the queue's format, `from` is NULL or has for as many
    /// addresses.
    #[inline(never)]
    pub(super) unsafe fn read(
        &self,
        buf: *mut c_void,
        count: usize,
        from: *mut fi::fi_addr_t,
    ) -> Result<usize, Errno> {
        // SAFETY: the caller's promise.
        unsafe { self.read_inlined::<true>(buf, count, from) }
    }

    /// Reads entries; `SOURCES`: `from` may be something else than NULL. With one caller for each, so that
    /// what becomes of a message is compiled in one piece: an entry that is passed on in memory is read back
    /// before it has left the store buffer.
    ///
    /// # Safety
    /// As for [`CqFid::read`].
    #[inline(always)]
    pub(super) unsafe fn read_inlined<const SOURCES: bool>(
        &self,
        buf: *mut c_void,
        count: usize,
        from: *mut fi::fi_addr_t,
    ) -> Result<usize, Errno> {
        let from = if SOURCES { from } else { std::ptr::null_mut() };
        let mut engine = self.shared.lock_to_poll();
        if !engine.cq_is_empty(self.id) {
            // SAFETY: the caller's promise.
            return unsafe { self.read_standing(engine, buf, count, from) };
        }
        self.taken.store(0, Ordering::Relaxed);
        // No ring is looked at: there is nothing to wait for.
        if engine.rests() {
            engine.leave();
            self.batch.store(1, Ordering::Relaxed);
            return Err(Errno::AGAIN);
        }
        // SAFETY: the caller's promise.
        unsafe { self.read_next(engine, buf, count, from) }
    }

    /// Reads a queue that has entries.
    ///
    /// # Safety
    /// As for [`CqFid::read`].
    #[inline(always)]
    unsafe fn read_standing(
        &self,
        mut engine: Guard<'_>,
        buf: *mut c_void,
        count: usize,
        from: *mut fi::fi_addr_t,
    ) -> Result<usize, Errno> {
        if count == 0 {
            // SAFETY: the caller's promise.
            return unsafe { self.read_any(engine, buf, count, from) };
        }
        self.progress_at_last(&mut engine);
        // SAFETY: the caller's promise.
        unsafe { self.take(engine, buf, count, from) }
    }

    /// Reads a queue that has none.
    ///
    /// # Safety
    /// As for [`CqFid::read`].
    #[inline(always)]
    unsafe fn read_next(
        &self,
        mut engine: Guard<'_>,
        buf: *mut c_void,
        count: usize,
        from: *mut fi::fi_addr_t,
    ) -> Result<usize, Errno> {
        // A stream of messages is read by batches; a single one is handed on at once.
        let batch = self.batch.load(Ordering::Relaxed);
        let most = count.min(batch);
        if most == 0 {
            // SAFETY: the caller's promise.
            return unsafe { self.read_any(engine, buf, count, from) };
        }
        // SAFETY: the caller promised room for one.
        let first = engine.poll_fast(self.id, &mut unsafe { self.place(buf, from, 0) });
        if first == PollFast::Message && most == 1 {
            engine.leave();
            self.batch.store(if batch == 1 { 2 } else { 1 }, Ordering::Relaxed);
            return Ok(1);
        }
        if first == PollFast::Nothing {
            engine.leave();
            self.batch.store(1, Ordering::Relaxed);
            self.wait_a_little();
            return Err(Errno::AGAIN);
        }
        // SAFETY: `most` is no more than `count`, for which the caller promised room.
        let n = match unsafe { self.poll_on(&mut engine, first, buf, most, from) } {
            Some(n) => n,
            // SAFETY: the caller's promise.
            None => return unsafe { self.read_any(engine, buf, count, from) },
        };
        engine.leave();
        if n == 0 {
            self.batch.store(1, Ordering::Relaxed);
            self.wait_a_little();
            return Err(Errno::AGAIN);
        }
        self.batch.store(if n == batch { (2 * n).min(BATCH) } else { n }, Ordering::Relaxed);
        Ok(n)
    }

    /// Goes on behind the first poll of a read, which has found this: up to how many messages the read has
    /// taken, or `None` if there is none and the general way is to look.
    ///
    /// # Safety
    /// As for [`CqFid::read`], `most` in the place of `count`.
    #[inline(never)]
    unsafe fn poll_on(
        &self,
        engine: &mut Engine,
        first: PollFast,
        buf: *mut c_void,
        most: usize,
        from: *mut fi::fi_addr_t,
    ) -> Option<usize> {
        let (mut n, mut detours, mut found) = (0, 0, first);
        loop {
            match found {
                PollFast::Message => n += 1,
                PollFast::Other | PollFast::Unknown if n == 0 => return None,
                PollFast::Kept => {
                    detours += engine.kept();
                    // Answers may have completed operations.
                    if n == 0 && !engine.cq_is_empty(self.id) {
                        return None;
                    }
                    // What is waited for may be in the next ring. A caller that gets nothing perhaps lets
                    // another process have the core.
                    if n > 0 || detours >= DETOURS {
                        return Some(n);
                    }
                }
                _ => return Some(n),
            }
            if n >= most {
                return Some(n);
            }
            // SAFETY: `n < most`, for which the caller promised room.
            found = engine.poll_fast(self.id, &mut unsafe { self.place(buf, from, n) });
        }
    }

    /// A read that finds entries takes them, and makes no progress. So that a program hears of its peers
    /// whose every read finds the completion of what it has just posted, one of some such reads in a row
    /// makes progress first.
    #[inline(always)]
    fn progress_at_last(&self, engine: &mut Engine) {
        let taken = self.taken.load(Ordering::Relaxed);
        if taken < TAKEN_IN_A_ROW {
            return self.taken.store(taken + 1, Ordering::Relaxed);
        }
        self.progress_between(engine);
    }

    /// Makes progress unless that was done within this tick of the kernel's clock: between the messages of a
    /// stream it would take longer than they do, and end what the engine has found out about it.
    #[cold]
    #[inline(never)]
    fn progress_between(&self, engine: &mut Engine) {
        self.taken.store(0, Ordering::Relaxed);
        let tick = (turns::tick() / 1_000_000) as u32;
        if self.tick.swap(tick, Ordering::Relaxed) != tick {
            engine.progress();
        }
    }

    /// Takes entries of a queue that has some; the caller has room for one at least.
    ///
    /// # Safety
    /// As for [`CqFid::read`].
    #[inline(always)]
    unsafe fn take(
        &self,
        mut engine: Guard<'_>,
        buf: *mut c_void,
        count: usize,
        from: *mut fi::fi_addr_t,
    ) -> Result<usize, Errno> {
        // SAFETY: `n < count`, for which the caller promised room.
        let n = engine.cq_take(self.id, count, |n, c| unsafe { self.place(buf, from, n) }.report(c));
        engine.leave();
        // The first has failed.
        if n == 0 { Err(Errno::AVAIL) } else { Ok(n) }
    }

    /// Reads what is there, an error, too. With room for none it makes progress all the same, whatever stands
    /// in the queue: fi_cq(3) has that for applications which only want to drive their endpoints.
    ///
    /// # Safety
    /// As for [`CqFid::read`].
    #[inline(never)]
    unsafe fn read_any(
        &self,
        mut engine: Guard<'_>,
        buf: *mut c_void,
        count: usize,
        from: *mut fi::fi_addr_t,
    ) -> Result<usize, Errno> {
        if count == 0 {
            engine.progress();
        }
        let some = !engine.cq_is_empty(self.id) || (count > 0 && engine.progress_for(self.id, count));
        if some && count > 0 {
            // SAFETY: the caller's promise.
            return unsafe { self.take(engine, buf, count, from) };
        }
        engine.leave();
        if some {
            return Ok(0);
        }
        self.wait_a_little();
        Err(Errno::AGAIN)
    }

    /// Where entry `n` goes.
    ///
    /// # Safety
    /// `buf` has room for more than `n` entries of the queue's format, `from` is NULL or has for as many
    /// addresses, until the place is gone.
    #[inline(always)]
    unsafe fn place(&self, buf: *mut c_void, from: *mut fi::fi_addr_t, n: usize) -> Place {
        // SAFETY: the caller's promise.
        unsafe { Place::new(self.format, buf, from, n) }
    }

    /// Nothing was found. Where there are more processes than cores, a peer may need this one.
    #[inline]
    fn wait_a_little(&self) {
        link::speculation_barrier();
        let n = self.empty.load(Ordering::Relaxed).wrapping_add(1);
        self.empty.store(n, Ordering::Relaxed);
        if n % turns::POLLS == 0 && turns::yields(n, PATIENCE) {
            std::thread::yield_now();
        }
    }

    /// Reads and, as long as there is too little, sleeps.
    ///
    /// # Safety
    /// As for [`CqFid::read`].
    pub(super) unsafe fn sread(
        &self,
        buf: *mut c_void,
        count: usize,
        from: *mut fi::fi_addr_t,
        cond: *const c_void,
        timeout: c_int,
    ) -> Result<usize, Errno> {
        if self.style == Style::None {
            return Err(Errno::NOSYS);
        }
        let enough = if self.threshold { cond.addr().clamp(1, count.max(1)) } else { 1 };
        let entry = entry::size(self.format);
        let mut n = 0;
        let ended = self.shared.block(&self.wait, self.style.idle(), Deadline::after_ms(timeout), || {
            // SAFETY: `n` entries of the caller's `count` are used, and the offsets are theirs.
            let some = unsafe {
                let from = if from.is_null() { from } else { from.add(n) };
                self.read(buf.byte_add(n * entry), count - n, from)
            };
            match some {
                Ok(read) => n += read,
                Err(Errno::AGAIN) => {}
                Err(_) if n > 0 => return Step::Done(Ok(n)),
                Err(e) => return Step::Done(Err(e)),
            }
            if n >= enough || (some.is_ok() && count == 0) {
                return Step::Done(Ok(n));
            }
            if self.signalled.swap(false, Ordering::SeqCst) {
                return Step::Done(if n > 0 { Ok(n) } else { Err(Errno::AGAIN) });
            }
            Step::Wait(Watched::Cq(self.id))
        })?;
        ended.unwrap_or(if n > 0 { Ok(n) } else { Err(Errno::AGAIN) })
    }
}
