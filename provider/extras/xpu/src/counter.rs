//! Counters that a device reads and adds to, and their words for streams that wait.
//!
//! A write-back word has the value in its low 48 bits, the failures in the 7 bits above them, and the highest
//! bit set, as the words that adapters with counters of their own write. A stream waits until the word is
//! greater than or equal to the value, so a failure ends the wait, too: the memory that a stream polls is
//! never left at a value that nothing raises any more.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use engine::{ADDR_UNSPEC, CntrId, Domain, Expired, What};
use hmem::{Caps, Span};
use link_api::RmaLink;

use crate::error::{Error, ended};
use crate::layout::{self, word_of};
use crate::queue::Place;
use limit::{Ending, Limit, Standing};

mod limit;

/// The largest value and the most failures that a write-back word has.
pub const VALUE_MOST: u64 = (1 << 48) - 1;
/// Most failures.
pub const FAILURES_MOST: u64 = (1 << 7) - 1;

/// A write-back word.
pub fn write_back_word(value: u64, failures: u64) -> u64 {
    1 << 63 | failures.min(FAILURES_MOST) << 48 | (value & VALUE_MOST)
}

/// The host's side of a counter that a device reads and adds to. The engine's counter has what both have
/// added; the host's words have the engine's value less what came from the device, so that the sum of both
/// sides' words is the value at any time. Values wrap.
#[derive(Debug)]
pub struct CounterSide {
    of: CntrId,
    at: Place,
    /// What the engine's counter has of the device's value and errors. Changed with the engine's lock.
    taken: [AtomicU64; 2],
    /// The engine has no such counter any more. Changed with the engine's lock.
    closed: AtomicBool,
    /// The application's memory for the write-back word.
    buffer: Mutex<Option<Buffer>>,
    /// The application's time limit. Locked after the engine.
    limit: Mutex<Option<Limit>>,
    /// What a limit that is over ends. Locked after the engine.
    ending: Mutex<Option<Ending>>,
}

/// Where the write-back word is written beside the counter's own.
#[derive(Debug)]
struct Buffer {
    memory: Span,
    /// What it has.
    written: u64,
}

impl Buffer {
    /// `memory`: 8 bytes, aligned to 8.
    fn write(&mut self, word: u64) -> bool {
        if self.memory.can(Caps::CPU) {
            let at = std::ptr::with_exposed_provenance_mut::<u64>(self.memory.addr() as usize);
            // SAFETY: memory of 8 bytes that the CPU loads and stores, aligned as `set_buffer` has checked,
            // and valid until another buffer is set or the counter closes, as its caller promises. A stream
            // reads it at any time, and nothing else of this process writes it.
            unsafe { AtomicU64::from_ptr(at) }.store(word, Release);
        } else if hmem::write(&[self.memory], 0, &word.to_ne_bytes()) != size_of::<u64>() {
            return false;
        }
        self.written = word;
        true
    }
}

impl CounterSide {
    /// A counter shown at this place.
    pub fn new(of: CntrId, at: Place, timeout_ns: u64) -> CounterSide {
        let writeback = write_back_word(0, 0);
        let shown = layout::CounterHost { timeout_ns, writeback, ..layout::CounterHost::default() };
        at.write(&shown.words());
        let (taken, closed) = (Default::default(), AtomicBool::new(false));
        CounterSide {
            of,
            at,
            taken,
            closed,
            buffer: Mutex::default(),
            limit: Mutex::default(),
            ending: Mutex::default(),
        }
    }

    /// Where a device finds the words.
    pub fn device(&self) -> u64 {
        self.at.device()
    }

    /// Where a device finds the word that it adds to.
    pub fn device_added(&self) -> u64 {
        self.at.device() + (DEVICE + word_of!(CounterDevice.added)) as u64 * 8
    }

    /// Where a device finds the write-back word.
    pub fn device_word(&self) -> u64 {
        self.at.device() + word_of!(CounterHost.writeback) as u64 * 8
    }

    /// The memory of the words: a stream may poll it for longer than the counter is open.
    pub fn place(&self) -> &Place {
        &self.at
    }

    /// Has the engine's counter count what the device has added since the last call, which deferred work and
    /// waits then see; whether there was something. The device's words may be anything.
    pub fn take<L: RmaLink>(&self, engine: &mut Domain<L>) -> bool {
        if self.closed.load(Relaxed) {
            return false;
        }
        let since = |number: usize, word| {
            let now = self.at.word(DEVICE + word).load(Acquire);
            now.wrapping_sub(self.taken[number].swap(now, Relaxed))
        };
        let value = since(0, word_of!(CounterDevice.added));
        let errors = since(1, word_of!(CounterDevice.errors_added));
        if errors != 0 {
            engine.cntr_adderr(self.of, errors);
        }
        if value != 0 {
            engine.cntr_add(self.of, value);
        }
        value != 0 || errors != 0
    }

    /// Closes the engine's counter. After that nothing of the device's is taken. [`CounterSide::release`] is
    /// to follow, without the engine's lock.
    pub fn close<L: RmaLink>(&self, engine: &mut Domain<L>) -> Result<(), engine::Error> {
        engine.cntr_close(self.of)?;
        self.closed.store(true, Relaxed);
        Ok(())
    }

    /// Shows the device what the engine's counter has beside the device's own; [`CounterSide::write_back`] is
    /// to follow, without the engine's lock.
    pub fn show<L: RmaLink>(&self, engine: &Domain<L>) {
        if self.closed.load(Relaxed) {
            return;
        }
        let [value, errors] = [engine.cntr_read(self.of), engine.cntr_readerr(self.of)];
        let own = |all: u64, number: usize| all.wrapping_sub(self.taken[number].load(Relaxed));
        let words = [
            (word_of!(CounterHost.value), own(value, 0)),
            (word_of!(CounterHost.errors), own(errors, 1)),
            (word_of!(CounterHost.writeback), write_back_word(value, errors)),
        ];
        for (word, value) in words {
            let word = self.at.word(word);
            if word.load(Relaxed) != value {
                word.store(value, Release);
            }
        }
    }

    fn limit(&self) -> MutexGuard<'_, Option<Limit>> {
        self.limit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has what is to count in the counter end once nothing has changed in it for `most`, until it has
    /// reached the value or counted a failure. The limit before it ends. `None`: no limit any more.
    pub fn set_limit(&self, value: u64, most: Option<Duration>) {
        *self.limit() = most.map(|most| Limit::new(value, most));
    }

    /// Ends what the counter was to count, if its time limit is over. Where a peer is inside an access, the
    /// next calls go on with it.
    pub fn expire<L: RmaLink>(&self, engine: &mut Domain<L>, now: Instant) {
        let mut held = self.ending.lock().unwrap_or_else(PoisonError::into_inner);
        if self.closed.load(Relaxed) {
            (*held, *self.limit()) = (None, None);
            return;
        }
        if held.is_none() {
            *held = self.take_overdue(engine, now);
        }
        let Some(ending) = held.as_mut() else { return };
        let (value, patience) = (engine.cntr_read(self.of), ending.patience(now));
        let ended = engine.cntr_expire(self.of, ending.value, patience, &mut ending.begun);
        let Ok(Expired { failed, left, first }) = ended else { return };
        let first = first.map_or(String::new(), |(what, peer, ctx)| {
            let peer = if peer == ADDR_UNSPEC { "any peer".into() } else { format!("peer {peer}") };
            format!(": {}, {peer}, context {:#x}", named(what), ctx.0)
        });
        log::warn!(
            "a counter that a stream waits for has {value} of {}, and nothing has changed for {} ms: {failed} \
             operations have failed{first}; {left} are under way",
            ending.value,
            ending.most.as_millis()
        );
        *held = None;
    }

    /// The limit, if it is over.
    fn take_overdue<L: RmaLink>(&self, engine: &Domain<L>, now: Instant) -> Option<Ending> {
        let mut held = self.limit();
        let value = engine.cntr_read(self.of);
        match held.as_mut()?.read(value, engine.cntr_readerr(self.of), now) {
            Standing::Waits => None,
            Standing::Passed => {
                *held = None;
                None
            }
            Standing::Overdue => held.take().map(|limit| limit.end(now)),
        }
    }

    fn buffer(&self) -> MutexGuard<'_, Option<Buffer>> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn word(&self) -> &AtomicU64 {
        self.at.word(word_of!(CounterHost.writeback))
    }

    /// Writes the write-back word to the application's buffer, if it has changed.
    pub fn write_back(&self) {
        let mut held = self.buffer();
        let Some(buffer) = held.as_mut() else { return };
        let word = self.word().load(Acquire);
        if buffer.written != word && !buffer.write(word) {
            log::warn!(
                "a counter's write-back buffer cannot be written any more: a stream that waits for it waits on"
            );
            *held = None;
        }
    }

    /// Has the write-back word written to this memory, too, from now on; it has the word when this returns.
    /// `None`: no more. The buffer before it is not written any more when this returns.
    ///
    /// # Safety
    /// The memory stays until another buffer is set, or until [`CounterSide::release`] has returned.
    pub unsafe fn set_buffer(&self, memory: Option<Span>) -> Result<(), Error> {
        let mut held = self.buffer();
        let Some(memory) = memory else {
            *held = None;
            return Ok(());
        };
        let memory = memory.part(0, size_of::<u64>()).filter(|m| m.addr() % size_of::<u64>() as u64 == 0);
        let memory = memory.ok_or(Error::Invalid("a write-back buffer is 8 bytes, aligned to 8"))?;
        let mut buffer = Buffer { memory, written: 0 };
        if memory.may_vanish() || !buffer.write(self.word().load(Acquire)) {
            return Err(Error::Invalid("a write-back buffer is memory that the host can write"));
        }
        *held = Some(buffer);
        Ok(())
    }

    /// The engine's counter is closed: every stream that waits for a write-back word goes on, and the buffer
    /// is not written any more.
    pub fn release(&self) {
        self.satisfy();
        *self.buffer() = None;
    }

    /// A write-back word that ends every wait.
    fn satisfy(&self) {
        let word = self.word();
        word.store(write_back_word(word.load(Relaxed), FAILURES_MOST), Release);
        self.write_back();
    }

    pub(crate) fn end(&self, errno: i32) {
        self.at.word(word_of!(CounterHost.error)).store(ended(errno), Release);
        self.satisfy();
    }
}

/// An operation in a log.
fn named(what: What) -> &'static str {
    let kinds = [(What::SEND, "a send"), (What::RECV, "a receive"), (What::ATOMIC, "an atomic")];
    let rma = [(What::READ, "a read"), (What::WRITE, "a write")];
    let kind = kinds.iter().chain(&rma).find(|(kind, _)| what.contains(*kind));
    kind.map_or("a change of a counter", |(_, name)| name)
}

/// Words of what the host writes: what the device writes is behind them.
const DEVICE: usize = size_of::<layout::CounterHost>() / 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::Words;

    fn counter() -> CounterSide {
        let config = engine::Config { virt_addr: true, rma_order: false };
        let of = Domain::<link::Links>::new(config).cntr_open();
        CounterSide::new(of, Place { words: Words::new(16).unwrap(), at: 0 }, 7)
    }

    /// As cuStreamWaitValue64 compares with CU_STREAM_WAIT_VALUE_GEQ.
    fn passes(word: u64, value: u64) -> bool {
        word.wrapping_sub(value) as i64 >= 0
    }

    #[test]
    fn a_wait_for_a_value_passes_at_the_value_and_at_any_failure() {
        for value in [0, 1, 20, VALUE_MOST - 1] {
            let until = write_back_word(value + 1, 0);
            assert!(!passes(write_back_word(value, 0), until));
            assert!(passes(write_back_word(value + 1, 0), until));
            assert!(passes(write_back_word(0, 1), until) && passes(write_back_word(0, u64::MAX), until));
        }
        assert_eq!(write_back_word(VALUE_MOST + 3, 200), 1 << 63 | 127 << 48 | 2);
    }

    #[test]
    fn a_buffer_has_the_word_from_the_first_call_on_and_is_left_at_one_that_ends_waits() {
        let side = counter();
        let (first, second) = (AtomicU64::new(0), AtomicU64::new(0));
        // SAFETY: the words outlive the counter's use of them.
        let span =
            |word: &AtomicU64| unsafe { Span::new(word.as_ptr().expose_provenance(), 8, hmem::Kind::System) };
        // SAFETY: as above.
        unsafe { side.set_buffer(Some(span(&first))) }.unwrap();
        assert_eq!(first.load(Acquire), 1 << 63);
        side.word().store(write_back_word(3, 0), Release);
        side.write_back();
        assert_eq!(first.load(Acquire), 1 << 63 | 3);
        // SAFETY: as above.
        unsafe { side.set_buffer(Some(span(&second))) }.unwrap();
        side.release();
        assert_eq!((first.load(Acquire), second.load(Acquire)), (1 << 63 | 3, 1 << 63 | 127 << 48 | 3));
        side.word().store(0, Release);
        side.write_back();
        assert_eq!(second.load(Acquire), 1 << 63 | 127 << 48 | 3, "written after its counter has closed");
    }

    #[test]
    fn a_buffer_that_is_short_or_not_aligned_or_not_writable_is_refused() {
        let side = counter();
        let memory = Span::leak(32);
        let at = (8 - memory.addr() as usize % 8) % 8;
        for (off, len) in [(at, 7), (at + 4, 8), (at, 0)] {
            // SAFETY: memory that is never freed.
            assert!(unsafe { side.set_buffer(memory.part(off, len)) }.is_err(), "{len} bytes at {off}");
        }
        // SAFETY: no device is asked to follow the address.
        let device = unsafe { Span::new(memory.addr() as usize + at, 8, hmem::Kind::Cuda) };
        // SAFETY: as above: there is no driver that could write it.
        assert!(unsafe { side.set_buffer(Some(device)) }.is_err());
    }
}
