//! A communicator of NCCL's.

use std::cell::Cell;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use hmem::cuda::{OwnStream, Stream};

use super::error::NcclError;
use super::library::{Config, Handle, IN_PROGRESS, Library, UniqueId};

/// Polls without sleeping between them, and the sleep after that many.
const EAGER: u32 = 2000;
const SLEEP: Duration = Duration::from_micros(50);

/// This process in a communicator.
#[derive(Clone, Copy, Debug)]
pub struct Rank {
    /// Its number.
    pub rank: usize,
    /// How many there are.
    pub size: usize,
}

/// A communicator, and the stream that its collectives are queued in. That waits for the legacy default
/// stream, so for kernels that the program has launched there before. A communicator that has failed is
/// aborted.
#[derive(Debug)]
pub struct Comm {
    pub(super) library: &'static Library,
    pub(super) handle: Handle,
    pub(super) at: Rank,
    stream: OwnStream,
    limit: Duration,
    failed: Cell<bool>,
}

// SAFETY: NCCL's communicators may be used by one thread after the other; nothing here is shared by threads.
unsafe impl Send for Comm {}

fn count(n: usize) -> Result<i32, NcclError> {
    i32::try_from(n).map_err(|_| NcclError::Argument(format!("{n} is no rank of NCCL's")))
}

impl Comm {
    /// Makes one, together with all other ranks that were given `id`, on the device that the memory at `near`
    /// is of. What takes longer than `limit`, this and later calls, fails.
    pub fn new(
        library: &'static Library,
        id: &UniqueId,
        at: Rank,
        near: usize,
        limit: Duration,
    ) -> Result<Comm, NcclError> {
        if at.rank >= at.size {
            return Err(NcclError::Argument(format!("rank {} of {} is none", at.rank, at.size)));
        }
        let (rank, size) = (count(at.rank)?, count(at.size)?);
        let stream = OwnStream::new(Some(near)).map_err(|e| NcclError::Driver("making a stream", e))?;
        let mut comm = Comm { library, handle: null_mut(), at, stream, limit, failed: Cell::new(false) };
        let of = &library.functions;
        let (mut handle, mut config) = (null_mut(), Config::new());
        let (call, code) = match of.init_config {
            Some(init) => {
                // SAFETY: all places are valid for the call; the stream's context, of the device, is current.
                let code = comm.within(|| unsafe { init(&mut handle, size, *id, rank, &mut config) })?;
                ("ncclCommInitRankConfig", code)
            }
            None => {
                // SAFETY: as above.
                ("ncclCommInitRank", comm.within(|| unsafe { (of.init)(&mut handle, size, *id, rank) })?)
            }
        };
        comm.handle = handle;
        comm.begun(call, code)?;
        Ok(comm)
    }

    /// Divides it as MPI_Comm_split does: ranks of one color come into one communicator, in the order of
    /// `key`. `Ok(None)` without a color. In `Err` with [`NcclError::Library`] the library has no such
    /// function.
    pub fn split(&self, color: Option<i32>, key: i32, at: Rank) -> Result<Option<Comm>, NcclError> {
        let Some(split) = self.library.functions.split else {
            let why = "it has no ncclCommSplit".to_owned();
            return Err(NcclError::Library { name: "NCCL".to_owned(), why });
        };
        self.usable()?;
        let near = self.stream.stream();
        let made = near.within(|| OwnStream::new(None)).and_then(|made| made);
        let stream = made.map_err(|e| NcclError::Driver("making a stream", e))?;
        let (mut handle, mut config) = (null_mut(), Config::new());
        // SAFETY: the communicator is alive, and all places are valid for the call.
        let code = self
            .within(|| unsafe { split(self.handle, color.unwrap_or(-1), key, &mut handle, &mut config) })?;
        // The other communicator is there when this one has ended what it does.
        self.begun("ncclCommSplit", code)?;
        if color.is_none() || handle.is_null() {
            return Ok(None);
        }
        let (library, limit) = (self.library, self.limit);
        let made = Comm { library, handle, at, stream, limit, failed: Cell::new(false) };
        made.settle()?;
        Ok(Some(made))
    }

    /// The stream of its collectives.
    pub fn stream(&self) -> Stream {
        self.stream.stream()
    }

    /// This process in it.
    pub fn at(&self) -> Rank {
        self.at
    }

    /// Runs what calls NCCL, with the device's context current.
    pub(super) fn within<R>(&self, call: impl FnOnce() -> R) -> Result<R, NcclError> {
        self.stream.stream().within(call).map_err(|e| NcclError::Driver("entering the device's context", e))
    }

    pub(super) fn usable(&self) -> Result<(), NcclError> {
        if self.failed.get() { Err(NcclError::Failed) } else { Ok(()) }
    }

    /// Some of what its ranks do together has begun, and not all: it is aborted.
    pub(super) fn fail(&self) {
        self.failed.set(true);
    }

    /// The outcome of a call; what it began is over, but for what it has queued in the stream.
    pub(super) fn begun(&self, call: &'static str, code: i32) -> Result<(), NcclError> {
        let checked = self.library.check(call, code);
        if checked.is_err() {
            self.failed.set(true);
        }
        checked?;
        if code == IN_PROGRESS || self.handle.is_null() || call.starts_with("ncclComm") {
            self.settle()?;
        }
        Ok(())
    }

    /// Waits until no call is in progress.
    fn settle(&self) -> Result<(), NcclError> {
        self.poll("a call of NCCL", || Ok(self.async_error()? == 0))
    }

    /// 0, or that a call is in progress.
    fn async_error(&self) -> Result<i32, NcclError> {
        if self.handle.is_null() {
            return Err(NcclError::Argument("NCCL made no communicator".to_owned()));
        }
        let mut state = 0;
        // SAFETY: the communicator is alive, and the place is valid for the call.
        let code =
            self.within(|| unsafe { (self.library.functions.async_error)(self.handle, &mut state) })?;
        self.library.check("ncclCommGetAsyncError", code)?;
        match state {
            0 | IN_PROGRESS => Ok(state),
            code => Err(NcclError::Async { code, text: self.library.text(code) }),
        }
    }

    /// Whether all that is queued is done.
    pub fn is_done(&self) -> Result<bool, NcclError> {
        self.usable()?;
        let done = self.done();
        if done.is_err() {
            self.failed.set(true);
        }
        done
    }

    fn done(&self) -> Result<bool, NcclError> {
        let queried = self.stream.stream().is_done();
        // First why: the stream of a communicator that failed may never come to its end.
        self.async_error()?;
        queried.map_err(|e| NcclError::Driver("a collective of NCCL", e))
    }

    /// Waits until all that is queued is done; no longer than the limit.
    pub fn wait(&self) -> Result<(), NcclError> {
        self.usable()?;
        self.poll("a collective of NCCL", || self.done())
    }

    fn poll(
        &self,
        what: &'static str,
        mut is_over: impl FnMut() -> Result<bool, NcclError>,
    ) -> Result<(), NcclError> {
        let (begin, mut polls) = (Instant::now(), 0u32);
        let outcome = loop {
            match is_over() {
                Ok(true) => return Ok(()),
                Ok(false) if begin.elapsed() > self.limit => break NcclError::TimedOut(what, self.limit),
                Ok(false) => {}
                Err(e) => break e,
            }
            polls = polls.saturating_add(1);
            if polls > EAGER { std::thread::sleep(SLEEP) } else { std::thread::yield_now() }
        };
        self.failed.set(true);
        Err(outcome)
    }

    /// Ends what is under way, here and, by that, at the other ranks. Dropping a communicator that has failed
    /// does the same.
    pub fn abort(self) {
        self.failed.set(true);
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        if self.handle.is_null() {
            return;
        }
        let of = &self.library.functions;
        let end = if self.failed.get() { of.abort } else { of.destroy };
        // SAFETY: the communicator is alive, and not used any more.
        let _ = self.within(|| unsafe { end(self.handle) });
    }
}
