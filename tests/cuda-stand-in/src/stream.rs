//! Streams and events: work that is done in order, by the first call that asks when its time has come.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use stand_in::Work;

use crate::{
    INVALID_HANDLE, INVALID_VALUE, NOT_READY, Ptr, SUCCESS, context, enter, enter_in_context, memory,
};

#[derive(Default)]
struct Stream {
    ctx: u64,
    todo: VecDeque<Work>,
    /// How much work was ever queued, and how much is done.
    queued: u64,
    done: u64,
    failed: i32,
}

#[derive(Default)]
struct All {
    streams: HashMap<usize, Stream>,
    /// After how much work of which stream an event comes.
    events: HashMap<usize, (usize, u64)>,
    made: usize,
}

fn all() -> MutexGuard<'static, All> {
    static ALL: OnceLock<Mutex<All>> = OnceLock::new();
    ALL.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stream {
    fn run(&mut self, wait: bool) {
        while let Some(work) = self.todo.front() {
            match work.run(wait) {
                None => return,
                Some(true) => {}
                Some(false) => self.failed = INVALID_VALUE,
            }
            self.todo.pop_front();
            self.done += 1;
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(out: *mut Ptr, _flags: u32) -> i32 {
    enter_in_context!("cuStreamCreate");
    let mut all = all();
    all.made += 1;
    let name = 0x5000_0000 + all.made * 16;
    let ctx = context::current().map_or(0, |c| c.id);
    all.streams.insert(name, Stream { ctx, ..Stream::default() });
    unsafe { *out = name as Ptr };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: Ptr) -> i32 {
    enter!("cuStreamDestroy_v2");
    match all().streams.remove(&(stream as usize)) {
        Some(mut s) => {
            s.run(true);
            SUCCESS
        }
        None => INVALID_HANDLE,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: Ptr) -> i32 {
    enter_in_context!("cuStreamSynchronize");
    match all().streams.get_mut(&(stream as usize)) {
        Some(s) => {
            s.run(true);
            std::mem::take(&mut s.failed)
        }
        None => INVALID_HANDLE,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyAsync(dst: u64, src: u64, len: usize, stream: Ptr) -> i32 {
    enter_in_context!("cuMemcpyAsync");
    let ctx = context::current().map_or(0, |c| c.id);
    let mut all = all();
    let Some(s) = all.streams.get_mut(&(stream as usize)) else { return INVALID_HANDLE };
    if s.ctx != ctx {
        return INVALID_HANDLE;
    }
    s.queued += 1;
    s.todo.push_back(Work::new("CUDA", dst as usize, src as usize, len));
    SUCCESS
}

fn copied(ok: bool) -> i32 {
    if ok { SUCCESS } else { INVALID_VALUE }
}

/// Without a stream: at once.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpy(dst: u64, src: u64, len: usize) -> i32 {
    enter_in_context!("cuMemcpy");
    copied(memory::copy(dst as usize, src as usize, len))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoD_v2(dst: u64, src: Ptr, len: usize) -> i32 {
    enter_in_context!("cuMemcpyHtoD_v2");
    copied(memory::copy(dst as usize, src as usize, len))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoH_v2(dst: Ptr, src: u64, len: usize) -> i32 {
    enter_in_context!("cuMemcpyDtoH_v2");
    copied(memory::copy(dst as usize, src as usize, len))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8_v2(dst: u64, value: u8, len: usize) -> i32 {
    enter_in_context!("cuMemsetD8_v2");
    let bytes = vec![value; len];
    copied(memory::copy(dst as usize, bytes.as_ptr() as usize, len))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> i32 {
    enter_in_context!("cuCtxSynchronize");
    all().streams.values_mut().for_each(|s| s.run(true));
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(out: *mut Ptr, _flags: u32) -> i32 {
    enter_in_context!("cuEventCreate");
    let mut all = all();
    all.made += 1;
    let name = 0xe000_0000 + all.made * 16;
    all.events.insert(name, (0, 0));
    unsafe { *out = name as Ptr };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: Ptr) -> i32 {
    enter!("cuEventDestroy_v2");
    all().events.remove(&(event as usize)).map_or(INVALID_HANDLE, |_| SUCCESS)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: Ptr, stream: Ptr) -> i32 {
    enter_in_context!("cuEventRecord");
    let mut all = all();
    let Some(queued) = all.streams.get(&(stream as usize)).map(|s| s.queued) else { return INVALID_HANDLE };
    all.events.insert(event as usize, (stream as usize, queued));
    SUCCESS
}

fn look(event: Ptr, wait: bool) -> i32 {
    let mut all = all();
    let Some(&(stream, after)) = all.events.get(&(event as usize)) else { return INVALID_HANDLE };
    let Some(s) = all.streams.get_mut(&stream) else { return SUCCESS };
    s.run(wait);
    match s.done >= after {
        true => std::mem::take(&mut s.failed),
        false => NOT_READY,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: Ptr) -> i32 {
    enter!("cuEventQuery");
    look(event, false)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: Ptr) -> i32 {
    enter!("cuEventSynchronize");
    look(event, true)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoDAsync_v2(dst: u64, src: u64, len: usize, stream: Ptr) -> i32 {
    cuMemcpyAsync(dst, src, len, stream)
}

/// Called when what is queued there is done: at once, and so is that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamAddCallback(
    stream: Ptr,
    callback: unsafe extern "C" fn(Ptr, i32, Ptr),
    arg: Ptr,
    _flags: u32,
) -> i32 {
    let code = cuStreamSynchronize(stream);
    unsafe { callback(stream, code, arg) };
    code
}
