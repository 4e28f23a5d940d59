//! Whether streams share a hardware queue: what waits in one then holds up what is queued later in the other.
//!
//! The driver does not say it, so it is tried: one stream waits for a word, the other one stores to another.
//! Streams share queues where there are more of them than CUDA_DEVICE_MAX_CONNECTIONS (8 by default).

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::api::{Error, INVALID_VALUE, NOT_FOUND, loaded};
use super::memops::{MemOp, Until, features, queue_batch};
use super::own::OwnStream;
use super::queue::Stream;
use super::stream::Locked;

/// How long a store is waited for, and then the end of both streams. On an idle device a store takes some
/// 10 microseconds.
const WITHIN: Duration = Duration::from_millis(50);
/// A device that another process keeps busy may be late once.
const TIMES: u32 = 2;
/// Between two looks.
const PAUSE: Duration = Duration::from_micros(20);
/// Which word the second stream stores to; the first one waits for word 0.
const STORED: usize = 16;

#[repr(align(4096))]
struct Words([AtomicU32; 1024]);

/// Words of one try at a time. They stay page-locked: to end that may wait for the device, and so for a
/// stream of the program's that waits.
struct Page {
    words: Box<Words>,
    locked: Locked,
}

impl Page {
    fn new() -> Result<Page, Error> {
        let api = loaded().ok_or(Error(NOT_FOUND))?;
        let words = Box::new(Words([const { AtomicU32::new(0) }; 1024]));
        let locked = Locked::new(api, words.0.as_ptr().expose_provenance(), size_of::<Words>())?;
        Ok(Page { words, locked })
    }

    fn word(&self, number: usize) -> &AtomicU32 {
        &self.words.0[number]
    }

    fn address(&self, number: usize) -> u64 {
        std::ptr::from_ref(self.word(number)).expose_provenance() as u64
    }
}

static PAGE: Mutex<Option<Page>> = Mutex::new(None);

/// Whether what waits in `first` holds up what is queued later in `second`. `None`: not known, since one of
/// them has something to do or is being captured, the device is busy, or the driver has no memory operations.
/// Both are as they were when this returns, within some 0.2 seconds; only with `None` may they not be done.
pub fn share_a_queue(first: Stream, second: Stream) -> Result<Option<bool>, Error> {
    if first == second {
        return Err(Error(INVALID_VALUE));
    }
    for _ in 0..TIMES {
        match once(first, second)? {
            Some(true) => {}
            other => return Ok(other),
        }
    }
    Ok(Some(true))
}

/// Whether streams of a context share their queue that are made one after the other, as all do with
/// CUDA_DEVICE_MAX_CONNECTIONS=1. `near`: memory of the context; none: that of the calling thread.
pub fn has_one_queue(near: Option<usize>) -> Result<Option<bool>, Error> {
    let (first, second) = (OwnStream::non_blocking(near)?, OwnStream::non_blocking(near)?);
    let answer = share_a_queue(first.stream(), second.stream());
    if ![&first, &second].iter().all(|s| s.stream().is_done() == Ok(true)) {
        // To destroy a stream may take as long as what it still has to do.
        std::mem::forget((first, second));
    }
    answer
}

fn once(first: Stream, second: Stream) -> Result<Option<bool>, Error> {
    for stream in [first, second] {
        if !stream.is_done()? || !features(stream)?.batches {
            return Ok(None);
        }
    }
    let mut kept = PAGE.lock().unwrap_or_else(PoisonError::into_inner);
    // Page-locked memory ends with the context in which it was made.
    let page = match kept.take() {
        Some(page) if page.locked.is_there() => page,
        gone => {
            std::mem::forget(gone);
            Page::new()?
        }
    };
    [0, STORED].into_iter().for_each(|n| page.word(n).store(0, SeqCst));
    let wait = MemOp::Wait { at: page.address(0), value: 1, until: Until::Geq };
    let store = MemOp::Write32 { to: page.address(STORED), value: 1 };
    // SAFETY: the page stays locked, and is used again once both streams are done; all accesses are atomic.
    let queued = unsafe { queue_batch(first, &[wait]).and_then(|()| queue_batch(second, &[store])) };
    let passed = queued.is_ok() && within(|| Ok(page.word(STORED).load(SeqCst) != 0)) == Ok(true);
    page.word(0).store(1, SeqCst);
    let over = within(|| Ok(first.is_done()? && second.is_done()?));
    if over != Ok(true) {
        std::mem::forget(page);
        return over.map(|_| None);
    }
    *kept = Some(page);
    queued.map(|()| Some(!passed))
}

/// Whether that becomes true in time.
fn within(mut is_so: impl FnMut() -> Result<bool, Error>) -> Result<bool, Error> {
    let began = Instant::now();
    while !is_so()? {
        if began.elapsed() >= WITHIN {
            return Ok(false);
        }
        std::thread::sleep(PAUSE);
    }
    Ok(true)
}
