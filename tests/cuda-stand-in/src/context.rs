//! Contexts, and which of them is current in a thread.

use std::cell::RefCell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{INVALID_CONTEXT, INVALID_DEVICE, Ptr, SUCCESS, devices, enter};

/// Stops a call that comes too early or that is to fail, and one without a current context.
macro_rules! enter_in_context {
    ($name:literal) => {
        crate::enter!($name);
        if crate::context::current().is_none() {
            return crate::INVALID_CONTEXT;
        }
    };
}
pub(crate) use enter_in_context;

#[derive(Clone, Copy)]
pub(crate) struct Context {
    /// What a program sees of it.
    pub(crate) name: usize,
    pub(crate) id: u64,
    pub(crate) device: c_int,
    primary: bool,
    users: u32,
}

#[derive(Default)]
struct All {
    live: Vec<Context>,
    made: u64,
}

fn all() -> MutexGuard<'static, All> {
    static ALL: Mutex<All> = Mutex::new(All { live: Vec::new(), made: 0 });
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

pub(crate) fn find(name: usize) -> Option<Context> {
    all().live.iter().find(|c| c.name == name).copied()
}

/// What a program sees of the one with that number; 0 if it is gone.
pub(crate) fn named(id: u64) -> usize {
    all().live.iter().find(|c| c.id == id).map_or(0, |c| c.name)
}

/// The calling thread's, if that is alive.
pub(crate) fn current() -> Option<Context> {
    find(STACK.with_borrow(|s| s.last().copied())?)
}

pub(crate) fn primary_active(device: c_int) -> bool {
    all().live.iter().any(|c| c.primary && c.device == device)
}

fn make(device: c_int, primary: bool) -> usize {
    let mut all = all();
    if primary {
        if let Some(c) = all.live.iter_mut().find(|c| c.primary && c.device == device) {
            c.users += 1;
            return c.name;
        }
    }
    all.made += 1;
    let id = all.made;
    // Names are used again, as the driver's are.
    let name = (1..).map(|n| 0xc000 + 16 * n).find(|n| all.live.iter().all(|c| c.name != *n)).unwrap_or(0);
    all.live.push(Context { name, id, device, primary, users: 1 });
    name
}

fn leave(name: usize) {
    let mut all = all();
    if let Some(at) = all.live.iter().position(|c| c.name == name) {
        all.live[at].users -= 1;
        if all.live[at].users == 0 {
            all.live.remove(at);
            stand_in::memory::forget_host(name);
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(ctx: *mut Ptr, device: c_int) -> i32 {
    enter!("cuDevicePrimaryCtxRetain");
    if device as usize >= devices::visible().len() {
        return INVALID_DEVICE;
    }
    unsafe { *ctx = make(device, true) as Ptr };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> i32 {
    enter!("cuDevicePrimaryCtxRelease_v2");
    let name = all().live.iter().find(|c| c.primary && c.device == device).map(|c| c.name);
    name.map_or(INVALID_CONTEXT, |name| {
        leave(name);
        SUCCESS
    })
}

/// Ends it, however many use it; the next one may have the same name.
#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxReset_v2(device: c_int) -> i32 {
    enter!("cuDevicePrimaryCtxReset_v2");
    let mut all = all();
    if let Some(at) = all.live.iter().position(|c| c.primary && c.device == device) {
        stand_in::memory::forget_host(all.live.remove(at).name);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxCreate_v2(ctx: *mut Ptr, _flags: u32, device: c_int) -> i32 {
    enter!("cuCtxCreate_v2");
    if device as usize >= devices::visible().len() {
        return INVALID_DEVICE;
    }
    let name = make(device, false);
    STACK.with_borrow_mut(|s| s.push(name));
    unsafe { *ctx = name as Ptr };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxDestroy_v2(ctx: Ptr) -> i32 {
    enter!("cuCtxDestroy_v2");
    if find(ctx as usize).is_none() {
        return INVALID_CONTEXT;
    }
    leave(ctx as usize);
    STACK.with_borrow_mut(|s| s.retain(|c| *c != ctx as usize));
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(ctx: *mut Ptr) -> i32 {
    enter!("cuCtxGetCurrent");
    unsafe { *ctx = STACK.with_borrow(|s| s.last().copied().unwrap_or(0)) as Ptr };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(ctx: Ptr) -> i32 {
    enter!("cuCtxSetCurrent");
    STACK.with_borrow_mut(|s| {
        s.pop();
        if !ctx.is_null() {
            s.push(ctx as usize);
        }
    });
    SUCCESS
}

/// As the driver: also one that is gone.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxPushCurrent_v2(ctx: Ptr) -> i32 {
    enter!("cuCtxPushCurrent_v2");
    if ctx.is_null() {
        return INVALID_CONTEXT;
    }
    STACK.with_borrow_mut(|s| s.push(ctx as usize));
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPopCurrent_v2(ctx: *mut Ptr) -> i32 {
    enter!("cuCtxPopCurrent_v2");
    let Some(top) = STACK.with_borrow_mut(Vec::pop) else { return INVALID_CONTEXT };
    if !ctx.is_null() {
        unsafe { *ctx = top as Ptr };
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetDevice(device: *mut c_int) -> i32 {
    enter!("cuCtxGetDevice");
    let Some(ctx) = current() else { return INVALID_CONTEXT };
    unsafe { *device = ctx.device };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetId(ctx: Ptr, id: *mut u64) -> i32 {
    enter!("cuCtxGetId");
    // None: the current one.
    let of = if ctx.is_null() { current() } else { find(ctx as usize) };
    let Some(ctx) = of else { return INVALID_CONTEXT };
    unsafe { *id = ctx.id };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetApiVersion(ctx: Ptr, version: *mut u32) -> i32 {
    enter!("cuCtxGetApiVersion");
    if find(ctx as usize).is_none() {
        return INVALID_CONTEXT;
    }
    unsafe { *version = 13000 };
    SUCCESS
}

/// Of all contexts alike.
static FLAGS: AtomicU32 = AtomicU32::new(0);

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetFlags(flags: u32) -> i32 {
    enter_in_context!("cuCtxSetFlags");
    FLAGS.store(flags, Ordering::Relaxed);
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetFlags(flags: *mut u32) -> i32 {
    enter_in_context!("cuCtxGetFlags");
    unsafe { *flags = FLAGS.load(Ordering::Relaxed) };
    SUCCESS
}
