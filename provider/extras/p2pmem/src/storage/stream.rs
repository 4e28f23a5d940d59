//! Transfers in the order of a stream of CUDA's.
//!
//! A function that a stream calls may call nothing of CUDA's. So the copies themselves are queued, between
//! calls that hand pieces to threads for the disk and wait for them:
//!
//! | the stream | threads |
//! |---|---|
//! | call 0: the first reads may begin; wait for piece 0 | read pieces 0 to 3 |
//! | copy piece 0 to the device | |
//! | call 1: the buffer of piece 0 is free; wait for piece 1 | read piece 4 |
//! | … | |
//! | last call: wait for all writes; done | |
//!
//! Pieces of writes are copied first, and handed to a thread by the next call. A call waits for the disk
//! alone, so it stands in the way of nothing but its stream.

use std::ffi::c_void;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hmem::Kind;
use hmem::cuda::Stream;

use super::bounce::{CHUNK, Key, Set, WORKERS};
use super::cufile;
use super::file::{File, Op, Sort, sort};
use super::outcome::{Results, caught};
use super::report::Way;
use crate::error::Error;

/// How often a stream is asked whether it still does anything.
const CHECK: Duration = Duration::from_millis(100);

/// A piece of a transfer.
struct Piece {
    /// Which transfer's.
    of: usize,
    part: Op,
    /// Memory that threads reach by themselves; else it goes through a buffer.
    own: Option<Sort>,
}

impl Piece {
    /// Whether a thread does it before the stream comes to it; else it is a write, whose bytes come first.
    fn early(&self) -> bool {
        self.own.is_some() || !self.part.write
    }
}

#[derive(Default)]
struct Progress {
    pieces: Vec<Option<Result<usize, Error>>>,
    /// How many threads have.
    out: usize,
    over: bool,
    /// The stream has failed: no piece is begun any more, and it is over when threads have none.
    failed: bool,
    results: Option<Results>,
}

/// A request, as the calls on the stream know it.
struct Pipe {
    file: Arc<File>,
    pieces: Vec<Piece>,
    /// Addresses; piece `n` uses number `n` modulo their count.
    buffers: Vec<usize>,
    /// By cuFile: which transfer.
    queued: Vec<(usize, cufile::Queued)>,
    /// Why it is not cuFile.
    why: String,
    count: usize,
    progress: Mutex<Progress>,
    changed: Condvar,
}

/// A call's argument.
struct Call {
    pipe: Arc<Pipe>,
    step: usize,
}

impl Pipe {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn until(&self, mut ready: impl FnMut(&Progress) -> bool) -> MutexGuard<'_, Progress> {
        let mut progress = self.lock();
        while !ready(&progress) {
            progress = self.changed.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
        progress
    }

    /// Hands a piece to a thread.
    fn post(self: &Arc<Pipe>, n: usize) {
        {
            let mut progress = self.lock();
            if progress.failed {
                return;
            }
            progress.out += 1;
        }
        let pipe = Arc::clone(self);
        self.file.piece_workers.post(Box::new(move || {
            let result = caught(|| pipe.do_piece(n));
            let released = pipe.pieces[n].part.write || pipe.pieces[n].own.is_some();
            pipe.lock().pieces[n] = Some(result);
            // Before this one counts as done: what comes is counted first.
            if released {
                pipe.released(n);
            }
            let mut progress = pipe.lock();
            progress.out -= 1;
            progress.over |= progress.failed && progress.out == 0;
            drop(progress);
            pipe.changed.notify_all();
        }));
    }

    /// Nothing uses the buffer of that piece any more.
    fn released(self: &Arc<Pipe>, n: usize) {
        let next = n + self.buffers.len().max(1);
        if self.pieces.get(next).is_some_and(Piece::early) {
            self.post(next);
        }
    }

    fn do_piece(&self, n: usize) -> Result<usize, Error> {
        let piece = &self.pieces[n];
        let what = if piece.part.write { "write" } else { "read" };
        let failed = |e| Error::Os(what.into(), e);
        if let Some(sort) = &piece.own {
            let (bytes, way, why) = self.file.best(&piece.part, sort).map_err(failed)?;
            self.file.tally.took(way, why);
            return Ok(bytes);
        }
        let at = self.buffers[n % self.buffers.len()];
        // SAFETY: a buffer of the set that the request holds, in which no other piece is now, and no copy.
        let buffer = unsafe {
            std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut::<u8>(at), piece.part.len)
        };
        let done = self.file.disk(piece.part.write, buffer, piece.part.offset);
        if !piece.part.write {
            // What the copy brings besides: nothing of other files.
            buffer[*done.as_ref().unwrap_or(&0)..].fill(0);
        }
        done.map_err(failed)
    }

    /// The call before piece `n`, and the one behind the last.
    fn step(self: &Arc<Pipe>, n: usize) {
        if n == 0 {
            let first = self.buffers.len().max(1).min(self.pieces.len());
            (0..first).filter(|n| self.pieces[*n].early()).for_each(|n| self.post(n));
        } else if self.pieces[n - 1].own.is_none() {
            match self.pieces[n - 1].part.write {
                true => self.post(n - 1),
                false => self.released(n - 1),
            }
        }
        match self.pieces.get(n) {
            Some(piece) if piece.early() => drop(self.until(|p| p.failed || p.pieces[n].is_some())),
            Some(_) => {
                // Its buffer: that of a read is free since the copy, which was before this.
                let before = n.checked_sub(self.buffers.len()).filter(|b| {
                    let of = &self.pieces[*b];
                    of.own.is_some() || of.part.write
                });
                if let Some(before) = before {
                    drop(self.until(|p| p.failed || p.pieces[before].is_some()));
                }
            }
            None => self.end(),
        }
    }

    fn end(&self) {
        let mut progress = self.until(|p| p.out == 0);
        if progress.failed {
            // The failure has been reported already.
            return;
        }
        let mut results: Results = (0..self.count).map(|_| Ok(0)).collect();
        let mut ended = vec![false; self.count];
        for (piece, done) in self.pieces.iter().zip(std::mem::take(&mut progress.pieces)) {
            let done = done.unwrap_or_else(|| Err(Error::Invalid("not begun".into())));
            let (result, ended) = (&mut results[piece.of], &mut ended[piece.of]);
            match done {
                _ if *ended => {}
                Ok(bytes) => {
                    *ended = bytes < piece.part.len;
                    if let Ok(sum) = result {
                        *sum += bytes;
                    }
                    if piece.own.is_none() {
                        self.file.tally.add(Way::Bounce, bytes);
                        self.file.tally.took(Way::Bounce, self.why.clone());
                    }
                }
                Err(e) => {
                    *ended = true;
                    *result = Err(e);
                }
            }
        }
        for (of, queued) in &self.queued {
            let registered = self.file.registered();
            // SAFETY: the stream has come to this call, so it is done.
            results[*of] = match registered.and_then(|r| unsafe { r.result(queued) }) {
                Ok(bytes) => {
                    self.file.tally.add(Way::Cufile, bytes);
                    self.file.tally.took(Way::Cufile, "O_DIRECT does not reach CUDA's memory".into());
                    Ok(bytes)
                }
                Err(why) => {
                    let failed = io::Error::from_raw_os_error(libc::EIO);
                    Err(Error::Os(format!("cuFile on a stream: {why}"), failed))
                }
            };
        }
        progress.results = Some(results);
        progress.over = true;
        self.changed.notify_all();
    }
}

/// # Safety
/// `arg` is a `Call` of `Queued::queue`'s, once.
unsafe extern "C" fn called(arg: *mut c_void) {
    // SAFETY: the caller's promise.
    let call = unsafe { Box::from_raw(arg.cast::<Call>()) };
    let pipe = Arc::clone(&call.pipe);
    let _ = caught(|| {
        call.pipe.step(call.step);
        Ok(())
    });
    if call.step == call.pipe.pieces.len() {
        // What goes with the last of it calls CUDA, which this thread may not; nor may it do what else is
        // posted there.
        let workers = pipe.file.workers.clone();
        workers.leave(Box::new(move || drop((pipe, call))));
    }
}

/// A request on a stream.
pub(super) struct Queued {
    pipe: Arc<Pipe>,
    stream: Stream,
    /// The last request that has it makes its buffers free.
    set: Option<Arc<Set>>,
    looked: Mutex<Instant>,
}

impl std::fmt::Debug for Queued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queued").field("stream", &self.stream).finish_non_exhaustive()
    }
}

fn refused(e: hmem::cuda::Error) -> Error {
    if e.is_capture() {
        return Error::Unsupported(format!(
            "the stream is being captured into a graph, and a graph would do the transfer each time that it is launched: submit it \
             before or after the capture ({e})"
        ));
    }
    let code = io::Error::from_raw_os_error(e.errno());
    Error::Os(format!("the stream: {e}"), code)
}

impl Queued {
    /// # Safety
    /// As of [`super::Request::submit_on`].
    pub unsafe fn new(file: &Arc<File>, ops: &[Op], stream: usize) -> Result<Queued, Error> {
        ops.iter().try_for_each(|op| file.check(op))?;
        if !hmem::cuda::find_driver() {
            return Err(Error::Unsupported("a stream: no libcuda.so.1 in this process".into()));
        }
        // SAFETY: the caller's promise.
        let of = unsafe { Stream::new(stream) }.map_err(refused)?;
        let key: Key = (stream, of.context(), (stream == 2).then(|| std::thread::current().id()));
        let mut queueing = file.sets.queue();
        let set = queueing.set(key);
        let mut pipe = Pipe {
            file: Arc::clone(file),
            pieces: Vec::new(),
            buffers: Vec::new(),
            queued: Vec::new(),
            why: String::new(),
            count: ops.len(),
            progress: Mutex::default(),
            changed: Condvar::new(),
        };
        // SAFETY: the caller's promise.
        let taken = unsafe { pipe.take_apart(ops, of) };
        let through = pipe.pieces.iter().filter(|p| p.own.is_none()).count();
        let buffers = set.addresses(through.min(WORKERS), &file.buffers);
        pipe.buffers = buffers.clone().unwrap_or_default();
        pipe.lock().pieces = pipe.pieces.iter().map(|_| None).collect();
        let queued =
            Queued { pipe: Arc::new(pipe), stream: of, set: Some(set), looked: Mutex::new(Instant::now()) };
        let done = taken.and_then(|()| match buffers {
            None => Err(Error::Os("page-locked memory".into(), io::ErrorKind::OutOfMemory.into())),
            // SAFETY: the caller's promise, and the request keeps what is used.
            Some(_) => unsafe { queued.queue() },
        });
        match done {
            Ok(()) => Ok(queued),
            Err(e) => {
                queued.break_off();
                Err(e)
            }
        }
    }

    /// # Safety
    /// As of [`Queued::new`], for the pieces.
    unsafe fn queue(&self) -> Result<(), Error> {
        for (n, piece) in self.pipe.pieces.iter().enumerate() {
            self.call(n)?;
            if piece.own.is_some() {
                continue;
            }
            let (memory, buffer) = (piece.part.addr, self.pipe.buffers[n % self.pipe.buffers.len()]);
            let (dst, src) = if piece.part.write { (buffer, memory) } else { (memory, buffer) };
            // SAFETY: the caller's promise, and a buffer of the set's.
            unsafe { self.stream.copy(dst, src, piece.part.len) }.map_err(refused)?;
        }
        self.call(self.pipe.pieces.len())
    }

    fn call(&self, step: usize) -> Result<(), Error> {
        let arg = Box::into_raw(Box::new(Call { pipe: Arc::clone(&self.pipe), step }));
        // SAFETY: `called` takes such an argument, once.
        unsafe { self.stream.call(called, arg.cast()) }.map_err(|e| {
            // SAFETY: it was not handed on.
            drop(unsafe { Box::from_raw(arg) });
            refused(e)
        })
    }

    /// Not all of it could be queued: what was comes to its end.
    fn break_off(mut self) {
        let ended = self.stream.wait().is_ok();
        if ended {
            drop(self.pipe.until(|p| p.out == 0));
        } else {
            // Nothing is known of what the device still does: the buffers stay. The program's memory does
            // not: threads are waited for.
            std::mem::forget(self.set.take());
            std::mem::forget(Arc::clone(&self.pipe));
            self.pipe.lock().failed = true;
            self.pipe.changed.notify_all();
            drop(self.pipe.until(|p| p.out == 0));
        }
        self.pipe.lock().over = true;
    }

    fn is_over(&self) -> bool {
        self.pipe.lock().over
    }

    pub fn wait(&self, most: Option<Duration>) -> bool {
        let end = most.map(|most| Instant::now() + most);
        loop {
            {
                let mut progress = self.pipe.lock();
                let left = end.map_or(CHECK, |end| end.saturating_duration_since(Instant::now()).min(CHECK));
                if !progress.over && !left.is_zero() {
                    let waited = self.pipe.changed.wait_timeout(progress, left);
                    progress = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                if progress.over {
                    return true;
                }
            }
            self.check();
            if end.is_some_and(|end| Instant::now() >= end) {
                return self.is_over();
            }
        }
    }

    /// Whether the stream has died: it calls nothing any more then.
    fn check(&self) {
        {
            let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
            if looked.elapsed() < CHECK {
                return;
            }
            *looked = Instant::now();
        }
        let Err(e) = self.stream.is_done() else { return };
        if e.is_capture() {
            // The capture began just now: it says nothing of what was queued before.
            return;
        }
        let mut progress = self.pipe.lock();
        if !progress.over && !progress.failed {
            let failed =
                || Error::Os(format!("the stream has failed: {e}"), io::Error::from_raw_os_error(libc::EIO));
            progress.results = Some((0..self.pipe.count).map(|_| Err(failed())).collect());
            // Threads may still use the program's memory.
            (progress.failed, progress.over) = (true, progress.out == 0);
            // The device may still have the buffers, and a call that comes yet the rest.
            std::mem::forget(self.set.clone());
            std::mem::forget(Arc::clone(&self.pipe));
            self.pipe.changed.notify_all();
        }
    }

    pub fn take(&self) -> Option<Results> {
        let mut progress = self.pipe.lock();
        progress.over.then(|| progress.results.take().unwrap_or_default())
    }
}

impl Pipe {
    /// What goes by cuFile is queued; the rest becomes pieces.
    ///
    /// # Safety
    /// As of [`Queued::new`].
    unsafe fn take_apart(&mut self, ops: &[Op], stream: Stream) -> Result<(), Error> {
        for (of, op) in ops.iter().enumerate() {
            let op = Op { len: self.file.there_is(op), ..*op };
            let place = sort(&op);
            match place {
                _ if op.len == 0 => continue,
                Sort::Device(Kind::Cuda) => {
                    let registered = self.file.registered();
                    let queue = |r: &cufile::Registered| {
                        // SAFETY: the caller's promise; the request keeps what comes of it.
                        let queue =
                            || unsafe { r.queue(op.write, op.addr, op.len, op.offset, stream.handle()) };
                        stream.within(queue).map_err(|e| e.to_string()).and_then(|queued| queued)
                    };
                    match registered.and_then(queue) {
                        Ok(queued) => {
                            self.queued.push((of, queued));
                            continue;
                        }
                        Err(why) => self.why = why,
                    }
                }
                Sort::Device(kind) => {
                    return Err(Error::Unsupported(format!(
                        "{kind:?} memory has no place in a stream of CUDA's: submit it without a stream"
                    )));
                }
                Sort::Host | Sort::Window => {
                    self.pieces.push(Piece { of, part: op, own: Some(place) });
                    continue;
                }
            }
            for at in (0..op.len).step_by(CHUNK) {
                let part = Op {
                    write: op.write,
                    addr: op.addr + at,
                    len: CHUNK.min(op.len - at),
                    offset: op.offset + at as u64,
                };
                self.pieces.push(Piece { of, part, own: None });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
