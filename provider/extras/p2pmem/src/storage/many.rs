//! Transfers of several files at once, in pieces: a few threads do all of them, so that a hundred files take
//! no more threads and buffers than one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::bounce::CHUNK;
use super::file::{File, Op};
use super::outcome::caught;
use crate::error::Error;

/// One transfer: its pieces, and what has come of those that are done.
#[derive(Debug)]
pub(super) struct Parts {
    file: Arc<File>,
    op: Op,
    left: AtomicUsize,
    /// Bytes before the first piece that was not whole.
    end: AtomicUsize,
    /// That of the first piece which failed, and where the piece begins.
    failed: Mutex<Option<(usize, Error)>>,
}

impl Parts {
    pub fn new(file: Arc<File>, op: Op) -> Parts {
        let left = AtomicUsize::new(op.len.div_ceil(CHUNK).max(1));
        Parts { file, op, left, end: AtomicUsize::new(op.len), failed: Mutex::new(None) }
    }

    /// How many pieces there are: at least one, which finds out what is wrong with a transfer of no bytes.
    pub fn count(&self) -> usize {
        self.op.len.div_ceil(CHUNK).max(1)
    }

    /// Does piece number `n`. What the whole has come to, if it was the last one.
    pub fn piece(&self, n: usize) -> Option<Result<usize, Error>> {
        let at = n * CHUNK;
        // Behind the end of the file, or behind a failure, there is nothing to do.
        if at == 0 || at < self.end.load(Ordering::Relaxed) {
            let len = CHUNK.min(self.op.len - at);
            match caught(|| self.part(at, len)) {
                Ok(got) if got == len => {}
                Ok(got) => drop(self.end.fetch_min(at + got, Ordering::Relaxed)),
                Err(e) => {
                    self.end.fetch_min(at, Ordering::Relaxed);
                    let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
                    if failed.as_ref().is_none_or(|(before, _)| at < *before) {
                        *failed = Some((at, e));
                    }
                }
            }
        }
        // The last one sees what the others have found.
        if self.left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return None;
        }
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        Some(match failed {
            Some((_, e)) => Err(e),
            None => Ok(self.end.load(Ordering::Relaxed)),
        })
    }

    fn part(&self, at: usize, len: usize) -> Result<usize, Error> {
        // The whole is checked, not what is in range of it.
        self.file.check(&self.op)?;
        self.file.transfer(&Op {
            addr: self.op.addr + at,
            len,
            offset: self.op.offset + at as u64,
            ..self.op
        })
    }
}
