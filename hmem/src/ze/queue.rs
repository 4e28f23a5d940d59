//! Where Level Zero's copies run: for each device two immediate command lists of ours, one for copies that
//! are waited for and one for pending copies, and the completion events of the latter.

use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::{Mutex, PoisonError};

use super::api::{
    ASYNCHRONOUS, Api, Error, EventDesc, HOST_VISIBLE, Handle, PoolDesc, QueueDesc, SCOPE_HOST, SYNCHRONOUS,
    stype,
};

/// How many copies of a device may be in flight at once; more wait for their turn.
const EVENTS: u32 = 64;

/// Of one device. A list is for one thread at a time.
pub(super) struct Queues {
    pub(super) ctx: usize,
    pub(super) device: usize,
    waited: Mutex<usize>,
    flying: Mutex<usize>,
    free: Mutex<Vec<usize>>,
}

/// That of a device, made when it is first needed.
pub(super) fn of(api: &Api, ctx: usize, device: usize) -> Result<&'static Queues, Error> {
    static ALL: Mutex<Vec<&'static Queues>> = Mutex::new(Vec::new());
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(queues) = all.iter().find(|l| (l.ctx, l.device) == (ctx, device)) {
        return Ok(queues);
    }
    let list = |mode| {
        let stype = stype::QUEUE_DESC;
        let desc = QueueDesc { stype, next: null(), ordinal: 0, index: 0, flags: 0, mode, priority: 0 };
        let mut list = null_mut();
        api.list_create(ctx as Handle, device as Handle, &desc, &mut list).map(|()| list as usize)
    };
    let desc = PoolDesc { stype: stype::POOL_DESC, next: null(), flags: HOST_VISIBLE, count: EVENTS };
    let (mut pool, mut devices) = (null_mut(), [device as Handle]);
    api.pool_create(ctx as Handle, &desc, 1, devices.as_mut_ptr(), &mut pool)?;
    let event = |index| {
        let (signal, wait) = (SCOPE_HOST, 0);
        let desc = EventDesc { stype: stype::EVENT_DESC, next: null(), index, signal, wait };
        let mut event = null_mut();
        api.event_create(pool, &desc, &mut event).map(|()| event as usize)
    };
    let free = (0..EVENTS).map(event).collect::<Result<_, _>>()?;
    let (waited, flying) = (Mutex::new(list(SYNCHRONOUS)?), Mutex::new(list(ASYNCHRONOUS)?));
    let queues = Box::leak(Box::new(Queues { ctx, device, waited, flying, free: Mutex::new(free) }));
    all.push(queues);
    Ok(queues)
}

impl Queues {
    /// Copies, and waits for it.
    pub(super) fn copy_now(
        &self,
        api: &Api,
        dst: *mut c_void,
        src: *const c_void,
        len: usize,
    ) -> Result<(), Error> {
        let list = self.waited.lock().unwrap_or_else(PoisonError::into_inner);
        api.copy(*list as Handle, dst, src, len, null_mut(), 0, null_mut())
    }

    /// Starts a copy. Returns its completion event, or `None` if too many are pending.
    pub(super) fn start(
        &self,
        api: &Api,
        dst: *mut c_void,
        src: *const c_void,
        len: usize,
    ) -> Result<Option<usize>, Error> {
        let Some(event) = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop() else {
            return Ok(None);
        };
        let list = self.flying.lock().unwrap_or_else(PoisonError::into_inner);
        match api.copy(*list as Handle, dst, src, len, event as Handle, 0, null_mut()) {
            Ok(()) => Ok(Some(event)),
            Err(e) => {
                self.give_back(api, event);
                Err(e)
            }
        }
    }

    /// The event's copy is done with. One that cannot be reset is not used again.
    pub(super) fn give_back(&self, api: &Api, event: usize) {
        if api.event_reset(event as Handle).is_ok() {
            self.free.lock().unwrap_or_else(PoisonError::into_inner).push(event);
        }
    }
}
