//! Contexts, and the streams that copies run in.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::api::{
    Api, EVENT_DISABLE_TIMING, Error, Handle, LOCK_MAPPED, LOCK_PORTABLE, NOT_FOUND, STREAM_NON_BLOCKING,
    loaded,
};
use super::info::{Info, Sort, info};
use crate::error::Error as AnyError;

/// `CU_DEVICE_ATTRIBUTE_MPS_ENABLED`, of CUDA 12.4.
const MPS_ENABLED: c_int = 133;

/// Which of a context's streams a copy is queued in. Copies in one stream come one behind the other
/// with no gap, which for short ones is quicker than many streams side by side; but none is to wait
/// for a long one, for one in the other direction, or, where a call waits for it, for any.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StreamUse {
    /// Waited for.
    Waited,
    /// Pending; the second field is whether it is long.
    Pending(Direction, bool),
}

/// Between what.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Direction {
    /// From host memory to a device.
    ToDevice,
    /// From a device to host memory.
    FromDevice,
    /// Between devices.
    BetweenDevices,
}

impl StreamUse {
    const COUNT: usize = 7;

    fn number(self) -> usize {
        match self {
            StreamUse::Waited => 0,
            StreamUse::Pending(direction, long) => 1 + 2 * direction as usize + usize::from(long),
        }
    }
}

/// Most events kept for later, of one context.
const EVENTS: usize = 64;

/// `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICE: i32 = 100;
/// `CUDA_ERROR_INVALID_CONTEXT`.
pub(super) const INVALID_CONTEXT: i32 = 201;

/// As long as this lives, calls of this thread that may wait for the device do not end the captures of other
/// streams, by which the application makes graphs. They would, in any thread, and be refused: what they wait
/// for are streams of our own, which are never captured.
pub struct Relaxed<'a> {
    api: &'a Api,
    before: Option<c_int>,
}

impl Relaxed<'static> {
    /// For calls of another library; `None` where there is no CUDA.
    pub fn here() -> Option<Relaxed<'static>> {
        loaded().map(Relaxed::new)
    }
}

impl std::fmt::Debug for Relaxed<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Relaxed")
    }
}

impl<'a> Relaxed<'a> {
    pub(crate) fn new(api: &'a Api) -> Relaxed<'a> {
        // CU_STREAM_CAPTURE_MODE_RELAXED. A driver of before 10.1 has no such modes.
        let mut mode = 2;
        let before = api.capture_mode(&mut mode).is_ok().then_some(mode);
        Relaxed { api, before }
    }
}

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        if let Some(mut before) = self.before {
            let _ = self.api.capture_mode(&mut before);
        }
    }
}

/// A context, made current in this thread for as long as this lives.
pub(crate) struct Entered<'a> {
    api: &'a Api,
    pub(crate) ctx: usize,
    pushed: bool,
    _relaxed: Relaxed<'a>,
}

/// The driver, with this context current.
pub(super) fn enter(ctx: usize) -> Result<(&'static Api, Entered<'static>), Error> {
    let api = loaded().ok_or(Error(NOT_FOUND))?;
    Ok((api, Entered::new(api, ctx)?))
}

impl<'a> Entered<'a> {
    pub(crate) fn new(api: &'a Api, ctx: usize) -> Result<Entered<'a>, Error> {
        let pushed = current(api) != ctx;
        if pushed {
            // The driver takes one that is gone as well (seen with 580), and the process ends by a signal
            // soon after.
            match api.ctx_id(ctx as Handle, &mut 0) {
                Ok(()) | Err(Error(NOT_FOUND)) => {}
                Err(gone) => return Err(gone),
            }
            api.ctx_push(ctx as Handle)?;
        }
        Ok(Entered { api, ctx, pushed, _relaxed: Relaxed::new(api) })
    }

    /// The number of the device that the context is of.
    pub(crate) fn device(&self) -> Result<c_int, Error> {
        let mut device = 0;
        self.api.ctx_device(&mut device)?;
        Ok(device)
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if self.pushed {
            let _ = self.api.ctx_pop(&mut null_mut());
        }
    }
}

/// The calling thread's, or 0.
pub(super) fn current(api: &Api) -> usize {
    let mut ctx = null_mut();
    let _ = api.ctx_current(&mut ctx);
    ctx as usize
}

/// The primary context of a device, if that is active; held from then on.
pub(super) fn primary(api: &Api, device: c_int) -> Option<usize> {
    static HELD: Mutex<Vec<(c_int, usize)>> = Mutex::new(Vec::new());
    let (mut flags, mut active) = (0, 0);
    api.primary_state(device, &mut flags, &mut active).ok()?;
    if active == 0 {
        return None;
    }
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, ctx)) = held.iter().find(|(d, _)| *d == device) {
        return Some(*ctx);
    }
    let mut ctx = null_mut();
    api.primary_retain(&mut ctx, device).ok()?;
    held.push((device, ctx as usize));
    Some(ctx as usize)
}

/// Makes the primary context of the device with that UUID active, for good, and current in this thread if
/// none is: so copies in it need not enter it.
pub(crate) fn activate(uuid: &[u8; 16]) -> Result<(), AnyError> {
    let api = loaded().ok_or(Error(NOT_FOUND))?;
    let stay = |ctx: Handle| if current(api) == 0 { api.ctx_push(ctx) } else { Ok(()) };
    let device = device_of(api, uuid)?;
    if let Some(ctx) = primary(api, device) {
        return Ok(stay(ctx as Handle)?);
    }
    let mut ctx = null_mut();
    Ok(api.primary_retain(&mut ctx, device).and_then(|()| stay(ctx))?)
}

/// The context to reach memory in: its own, else its device's, else the calling thread's.
pub(crate) fn context_of(api: &Api, of: &Info) -> Result<usize, Error> {
    let known = Some(of.context).filter(|c| *c != 0);
    known.or_else(|| primary(api, of.device)).or_else(|| any(api)).ok_or(Error(INVALID_CONTEXT))
}

/// A context that is there anyway: the calling thread's, else a device's that is active.
pub(crate) fn any(api: &Api) -> Option<usize> {
    let own = current(api);
    if own != 0 {
        return Some(own);
    }
    let mut count = 0;
    api.device_count(&mut count).ok()?;
    (0..count).find_map(|n| {
        let mut device = 0;
        api.device_get(&mut device, n).ok()?;
        primary(api, device)
    })
}

/// Whether NVIDIA's MPS serves the device, so that it runs what several processes ask for at once, as far as
/// the driver says that.
pub(super) fn is_by_mps(api: &Api, device: c_int) -> bool {
    let mut is_on = 0;
    api.device_attr(&mut is_on, MPS_ENABLED, device).is_ok() && is_on != 0
}

/// The name that all processes of the host have for a device.
pub(super) fn uuid_of(api: &Api, device: c_int) -> Result<[u8; 16], Error> {
    let mut uuid = [0; 16];
    api.device_uuid(&mut uuid, device)?;
    Ok(uuid)
}

/// The device with that UUID; one that is not visible here is no device. A device whose UUID cannot be read
/// does not hide the others; its error is returned if no other device matches.
fn device_of(api: &Api, uuid: &[u8; 16]) -> Result<c_int, Error> {
    let (mut count, mut why) = (0, Error(NO_DEVICE));
    api.device_count(&mut count)?;
    for n in 0..count {
        let mut device = 0;
        match api.device_get(&mut device, n).and_then(|()| uuid_of(api, device)) {
            Ok(of) if of == *uuid => return Ok(device),
            Ok(_) => {}
            Err(e) => why = e,
        }
    }
    Err(why)
}

/// The context of the device with that UUID, if it is visible and in use here, else another one that is
/// there.
pub(crate) fn context_near(api: &Api, uuid: &[u8; 16]) -> Result<usize, Error> {
    let device = device_of(api, uuid);
    let ctx = device.as_ref().ok().and_then(|device| primary(api, *device)).or_else(|| any(api));
    ctx.ok_or(device.err().unwrap_or(Error(INVALID_CONTEXT)))
}

/// The number of a context, which no other ever has. A driver before 12.0 has no such numbers: 0 there.
pub(super) fn id_of(api: &Api, ctx: usize) -> u64 {
    let mut id = 0;
    let _ = api.ctx_id(ctx as Handle, &mut id);
    id
}

/// The context for a copy between these two addresses.
pub(crate) fn context_for(api: &Api, dst: usize, src: usize) -> Result<usize, Error> {
    // The destination's first: the device that is written to is the one that must have seen it.
    let device = [dst, src].into_iter().filter_map(info).find(|i| i.device >= 0);
    match device {
        Some(of) => context_of(api, &of),
        None => any(api).ok_or(Error(INVALID_CONTEXT)),
    }
}

struct Streams {
    ctx: usize,
    /// Number of the context; a later context with the same handle has another one.
    id: u64,
    /// By the line's number.
    streams: [usize; StreamUse::COUNT],
    /// To be used again.
    events: Vec<usize>,
}

/// Where a copy is queued, and the event that comes behind it.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) ctx: usize,
    /// Of the context.
    id: u64,
    pub(crate) stream: usize,
    pub(crate) event: usize,
}

fn all_streams() -> MutexGuard<'static, Vec<Streams>> {
    static STREAMS: Mutex<Vec<Streams>> = Mutex::new(Vec::new());
    STREAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stream and an event of the context that is entered.
pub(crate) fn slot(api: &Api, entered: &Entered<'_>, usage: StreamUse) -> Result<Slot, Error> {
    let id = id_of(api, entered.ctx);
    let mut all = all_streams();
    let at = all.iter().position(|l| l.ctx == entered.ctx);
    let at = match at {
        Some(at) if all[at].id == id => at,
        stale => {
            // The streams of a context that is gone went with it.
            if let Some(at) = stale {
                all.swap_remove(at);
            }
            let (mut streams, mut made) = ([0; StreamUse::COUNT], Ok(()));
            for s in &mut streams {
                let mut stream = null_mut();
                made = api.stream_create(&mut stream, STREAM_NON_BLOCKING);
                if made.is_err() {
                    break;
                }
                *s = stream as usize;
            }
            if let Err(e) = made {
                for stream in streams.into_iter().filter(|s| *s != 0) {
                    let _ = api.stream_destroy(stream as Handle);
                }
                return Err(e);
            }
            all.push(Streams { ctx: entered.ctx, id, streams, events: Vec::new() });
            all.len() - 1
        }
    };
    let of = &mut all[at];
    let stream = of.streams[usage.number()];
    let event = match of.events.pop() {
        Some(event) => event,
        None => {
            let mut event = null_mut();
            api.event_create(&mut event, EVENT_DISABLE_TIMING)?;
            event as usize
        }
    };
    Ok(Slot { ctx: entered.ctx, id, stream, event })
}

/// Gives a slot back whose work is over.
pub(crate) fn give_back(api: &Api, slot: &Slot) {
    let mut all = all_streams();
    let its = |l: &&mut Streams| (l.ctx, l.id) == (slot.ctx, slot.id) && l.events.len() < EVENTS;
    match all.iter_mut().find(its) {
        Some(of) => of.events.push(slot.event),
        None => drop(api.event_destroy(slot.event as Handle)),
    }
}

/// Host memory that is page-locked for every context, until this is dropped, or the context is gone in which
/// that was done.
pub(super) struct Locked {
    at: usize,
    /// The registration's number: what is there later may be another one.
    id: u64,
}

impl Locked {
    pub(super) fn new(api: &Api, at: usize, len: usize) -> Result<Locked, Error> {
        let ctx = any(api).ok_or(Error(INVALID_CONTEXT))?;
        let _entered = Entered::new(api, ctx)?;
        api.host_lock(std::ptr::with_exposed_provenance_mut(at), len, LOCK_PORTABLE | LOCK_MAPPED)?;
        Ok(Locked { at, id: info(at).map_or(0, |of| of.id) })
    }

    /// What the driver knows of it. It is gone with its context.
    fn info(&self) -> Option<Info> {
        info(self.at).filter(|of| of.sort == Sort::Host && of.id == self.id)
    }

    /// Whether it is still page-locked.
    pub(super) fn is_there(&self) -> bool {
        self.info().is_some()
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let Some(api) = loaded() else { return };
        // A context that is gone is not to be entered.
        let Some(of) = self.info() else { return };
        if let Ok(_entered) = context_of(api, &of).and_then(|ctx| Entered::new(api, ctx)) {
            let _ = api.host_unlock(std::ptr::with_exposed_provenance_mut(self.at));
        }
    }
}
