//! What each call begins with.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use rdma_sys as ibv;
use stand_in::fault;

use crate::settings::{Profile, settings};
use crate::state::{State, lock};

pub fn set_errno(errno: c_int) {
    unsafe { *libc::__errno_location() = errno };
}

/// Counts a call; with the error it is to give, if a test wants one.
pub fn enter(name: &str) -> Result<(), c_int> {
    fault::READY.store(true, Ordering::Release);
    fault::enter("VERBS", name, libc::EIO)
}

/// The same, for calls that answer null.
pub fn enter_or_null(name: &str) -> bool {
    enter(name).map_err(set_errno).is_ok()
}

impl State {
    /// Which device a context is of.
    pub fn device_of(&self, context: *mut ibv::ibv_context) -> Option<usize> {
        self.contexts.get(&(context as usize)).map(|c| c.device)
    }
}

/// The profile of an open context.
pub fn profile_of(context: *mut ibv::ibv_context) -> &'static Profile {
    let at = lock().device_of(context).expect("verbs stand-in: no such context");
    &settings().devices[at]
}
