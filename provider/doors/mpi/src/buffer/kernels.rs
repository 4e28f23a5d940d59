//! Kernels of the device that pack, unpack and reduce: the streams in which they run, and which memory they
//! can access.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use device_ops::{Element, Error, Memory, pack, unpack};
use hmem::Kind;
use hmem::cuda::{OwnStream, Sort, Stream, info};

use crate::shape::{Data, Elements};
use crate::{settings, stderr};

/// Bytes of a block, on average, from which on blocks are copied one by one and not by a kernel.
const LONG: usize = 1 << 16;
/// Most allocations that one buffer may go through: memory that is mapped by hand is of many.
const PARTS: usize = 4096;

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// From the program's memory to the host's.
    Out,
    /// Back.
    Back,
}

/// The program's memory: where offset 0 is, and what it is. Without a kind the kind of each block is found.
#[derive(Clone, Copy, Debug)]
pub(super) struct User {
    pub(super) at: usize,
    pub(super) kind: Option<Kind>,
}

/// Whether the driver has refused a kernel: it is not asked again.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// By the context's handle and number.
type Streams = HashMap<(usize, u64), Arc<OwnStream>>;

static STREAMS: Mutex<Option<Streams>> = Mutex::new(None);

/// Whether kernels are used: STRAIT_MPI_KERNELS, and the driver takes them.
pub(crate) fn are_on() -> bool {
    settings::kernels() && !REFUSED.load(Relaxed)
}

/// The device whose kernels can access all of `len` bytes: memory of CUDA's without a hole.
pub(crate) fn device_of(at: usize, len: usize) -> Option<i32> {
    let (mut next, end, mut device) = (at as u64, (at as u64).checked_add(len as u64)?, None);
    for _ in 0..PARTS {
        let found = info(next as usize).filter(|found| found.sort != Sort::Host)?;
        if device.is_some_and(|device| device != found.device) {
            return None;
        }
        device = Some(found.device);
        let after = found.base.checked_add(found.len).filter(|after| *after > next)?;
        if after >= end {
            return device;
        }
        next = after;
    }
    None
}

/// Whether a kernel is the way to pack and unpack these data of the buffer at `at`: they are many blocks, not
/// long ones, in memory that it can access.
pub(crate) fn are_for(data: &Data, at: usize, kind: Option<Kind>) -> bool {
    let (Some((low, high)), blocks) = (data.tree.bounds(), data.tree.blocks()) else { return false };
    kind == Some(Kind::Cuda)
        && are_on()
        && blocks > 1
        && data.tree.size() / blocks < LONG
        && !data.elements.is_empty()
        && data.elements.iter().all(|elements| elements.shape.layout().is_some())
        && device_of(at.wrapping_add_signed(low), (high - low) as usize).is_some()
}

/// Whether a kernel can access host memory there: it is page-locked.
pub(super) fn is_locked(host: usize) -> bool {
    info(host).is_some_and(|found| found.sort == Sort::Host)
}

/// The stream for kernels on the memory at `near`. It waits for no other one: a call has waited for what
/// STRAIT_MPI_SYNC says.
fn stream(near: usize) -> Result<Arc<OwnStream>, hmem::cuda::Error> {
    let legacy = Stream::legacy(near)?;
    let key = (legacy.context(), legacy.context_id()?);
    let mut streams = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
    let streams = streams.get_or_insert_default();
    if let Some(found) = streams.get(&key) {
        return Ok(found.clone());
    }
    let made = Arc::new(OwnStream::non_blocking(Some(near))?);
    // A context of that handle with another number is gone, and its streams with it.
    streams.retain(|(ctx, id), _| *ctx != key.0 || *id == key.1);
    streams.insert(key, made.clone());
    Ok(made)
}

/// What came of the work of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// It is done.
    Done,
    /// It was not begun: there is another way.
    NotBegun,
    /// It was begun, and an error of the device's has ended it.
    Failed,
}

/// Does something with the stream for kernels on the memory at `near` that is not waited for; `None` where it
/// could not be done.
pub(crate) fn queue(near: usize, work: impl FnOnce(Stream) -> Result<(), Error>) -> Option<()> {
    let stream = stream(near).ok()?;
    work(stream.stream()).inspect_err(report).ok()
}

/// Says once that the driver refuses kernels, and asks it for none any more.
fn report(why: &Error) {
    if matches!(why, Error::NotCompiled { .. }) && !REFUSED.swap(true, Relaxed) {
        stderr::say(&format!("{why}: device memory goes by copies from now on\n"));
    }
}

/// Queues work on the memory at `near`, and waits until it is done.
pub(crate) fn run(near: usize, work: impl FnOnce(Stream) -> Result<(), Error>) -> Work {
    let Ok(stream) = stream(near) else { return Work::NotBegun };
    let queued = work(stream.stream());
    // What was queued before an error is waited for, too: it accesses the program's memory.
    let is_done = is_over(stream.stream());
    match (queued, is_done) {
        (Ok(()), true) => Work::Done,
        (Ok(()), false) => Work::Failed,
        (Err(why), _) => {
            report(&why);
            Work::NotBegun
        }
    }
}

/// Waits until all in the stream is done; false where the device will not do it any more. A wait that was
/// refused says nothing of that.
fn is_over(stream: Stream) -> bool {
    stream.wait().is_ok()
        || loop {
            match stream.is_done() {
                Ok(false) => std::thread::yield_now(),
                done => break done.is_ok(),
            }
        }
}

/// Packs the first `most` bytes of the data to the memory at `packed`, or unpacks them; whether it was done.
///
/// # Safety
/// [`are_for`] was true of these; [`is_locked`] is of the memory at `packed`, or it is the device's; all
/// blocks are valid, and there is room for the bytes at `packed`.
pub(super) unsafe fn copy(data: &Data, user: User, packed: usize, way: Way, most: usize) -> bool {
    let Some((low, high)) = data.tree.bounds() else { return true };
    let near = user.at.wrapping_add_signed(low);
    let work = |stream| {
        let mut done = 0;
        for Elements { shape, count, by } in &data.elements {
            let Some(layout) = shape.layout() else { continue };
            let element = Element { layout, count: *count as u64, extent: shape.extent as i64 };
            let len = (layout.size().saturating_mul(*count as u64)).min((most - done) as u64);
            // SAFETY: the caller's promise, until the stream is waited for.
            let (typed, packed) = unsafe {
                let origin = user.at.wrapping_add_signed(*by);
                (
                    Memory::around(origin, (low - by) as i64, (high - by) as i64),
                    Memory::new(packed + done, len as usize),
                )
            };
            match way {
                Way::Out => pack(stream, element, typed, 0..len, packed)?,
                Way::Back => unpack(stream, element, typed, 0..len, packed)?,
            }
            done += len as usize;
        }
        Ok(())
    };
    run(near, work) == Work::Done
}
