//! Whether streams share a hardware queue: what waits in one then holds up what is queued later in the other.
//!
//! The driver does not say it, so it is tried: one stream waits for a word, the other one stores to another.
//! All streams of a context share one with CUDA_DEVICE_MAX_CONNECTIONS=1.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::api::{Error, INVALID_VALUE, NOT_FOUND, loaded};
use super::memops::{MemOp, Until, features, queue_batch};
use super::own::OwnStream;
use super::queue::{Stream, is_gone};
use super::stream::{Locked, id_of};

/// How long a store is waited for, and then the end of both streams. On an idle device a store takes some
/// 10 microseconds.
const WITHIN: Duration = Duration::from_millis(50);
/// A device that another process keeps busy may be late once.
const TIMES: u32 = 2;
/// Between two looks.
const PAUSE: Duration = Duration::from_micros(20);
/// Which words the second stream stores to, and the first one, which waits for word 0 before.
const STORED: usize = 16;
const WAITED: usize = 32;

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
        let words = Box::new(Words([const { AtomicU32::new(1) }; 1024]));
        let locked = Locked::new(api, words.0.as_ptr().expose_provenance(), size_of::<Words>())?;
        Ok(Page { words, locked })
    }

    /// Whether the streams of these contexts have done their parts of the last try, or never will.
    fn is_over(&self, contexts: &[(usize, u64); 2]) -> bool {
        let mut parts = [WAITED, STORED].into_iter().zip(contexts);
        parts.all(|(n, (ctx, id))| self.word(n).load(SeqCst) != 0 || is_gone(*ctx, *id))
    }

    fn word(&self, number: usize) -> &AtomicU32 {
        &self.words.0[number]
    }

    fn address(&self, number: usize) -> u64 {
        std::ptr::from_ref(self.word(number)).expose_provenance() as u64
    }
}

/// What the last try used, which it still uses if it did not end in time: there is no other one until it has.
struct Kept {
    page: Option<Page>,
    /// Those of the two streams, and their numbers.
    contexts: [(usize, u64); 2],
    /// Those that were made here. To destroy a stream may take as long as what it still has to do.
    streams: Vec<OwnStream>,
}

static KEPT: Mutex<Kept> = Mutex::new(Kept { page: None, contexts: [(0, 0); 2], streams: Vec::new() });

/// `None`: the last try has not ended.
fn kept() -> Option<MutexGuard<'static, Kept>> {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    kept.streams.retain(|stream| !stream.is_over());
    // Page-locked memory ends with the context in which it was made: a stream that still waits for it does so
    // where the memory was.
    if kept.page.as_ref().is_some_and(|page| !page.locked.is_there()) {
        std::mem::forget(kept.page.take());
    }
    let over = kept.streams.is_empty() && kept.page.as_ref().is_none_or(|page| page.is_over(&kept.contexts));
    over.then_some(kept)
}

/// Whether what waits in `first` holds up what is queued later in `second`. `None`: not known, since one of
/// them has something to do or is being captured, the device is busy, or the driver has no memory operations.
/// Both are as they were when this returns, within some 0.2 seconds; only with `None` may they not be done.
pub fn share_a_queue(first: Stream, second: Stream) -> Result<Option<bool>, Error> {
    if first == second {
        return Err(Error(INVALID_VALUE));
    }
    kept().map_or(Ok(None), |mut kept| several(&mut kept, first, second))
}

fn several(kept: &mut Kept, first: Stream, second: Stream) -> Result<Option<bool>, Error> {
    for _ in 0..TIMES {
        match once(kept, first, second)? {
            Some(true) => {}
            other => return Ok(other),
        }
    }
    Ok(Some(true))
}

/// Whether streams of a context share their queue that are made one after the other, as all do with
/// CUDA_DEVICE_MAX_CONNECTIONS=1. `near`: memory of the context; none: that of the calling thread.
pub fn has_one_queue(near: Option<usize>) -> Result<Option<bool>, Error> {
    let Some(mut kept) = kept() else { return Ok(None) };
    let (first, second) = (OwnStream::non_blocking(near)?, OwnStream::non_blocking(near)?);
    let answer = several(&mut kept, first.stream(), second.stream());
    kept.streams.extend([first, second]);
    kept.streams.retain(|stream| !stream.is_over());
    answer
}

fn once(kept: &mut Kept, first: Stream, second: Stream) -> Result<Option<bool>, Error> {
    for stream in [first, second] {
        if !stream.is_done()? || !features(stream)?.batches {
            return Ok(None);
        }
    }
    let api = loaded().ok_or(Error(NOT_FOUND))?;
    let contexts = [first, second].map(|stream| (stream.context(), id_of(api, stream.context())));
    let page = match kept.page.take() {
        Some(page) => page,
        None => Page::new()?,
    };
    let page = kept.page.insert(page);
    kept.contexts = contexts;
    [0, STORED, WAITED].into_iter().for_each(|n| page.word(n).store(0, SeqCst));
    let wait = MemOp::Wait { at: page.address(0), value: 1, until: Until::Geq };
    let waited = MemOp::Write32 { to: page.address(WAITED), value: 1 };
    let store = MemOp::Write32 { to: page.address(STORED), value: 1 };
    // SAFETY: the page stays locked, and is used again once both streams are done; all accesses are atomic.
    let queued = unsafe { [queue_batch(first, &[wait, waited]), queue_batch(second, &[store])] };
    // What was refused is not waited for.
    for (result, word) in queued.iter().zip([WAITED, STORED]) {
        if result.is_err() {
            page.word(word).store(1, SeqCst);
        }
    }
    let [first_queued, queued] = queued;
    let queued = first_queued.and(queued);
    let passed = queued.is_ok() && within(|| Ok(page.word(STORED).load(SeqCst) != 0)) == Ok(true);
    page.word(0).store(1, SeqCst);
    let over = within(|| Ok(page.is_over(&contexts) && first.is_done()? && second.is_done()?));
    if over != Ok(true) {
        return over.map(|_| None);
    }
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
