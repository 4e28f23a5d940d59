//! Streams and events: work that is done in order, by the first call that asks when its time has come.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use stand_in::Work;

use crate::capture::{self, waits};
use crate::memop::Word;
use crate::ptx::Launch;
use crate::{
    IN_HOST_FUNCTION, INVALID_HANDLE, INVALID_VALUE, NOT_READY, Ptr, SUCCESS, context, enter,
    enter_in_context, memory,
};

type Function = unsafe extern "C" fn(Ptr);

enum Item {
    Copy(Work),
    /// A function of the program's, and its argument.
    Call(Function, usize),
    /// A kernel, and what says when it is done.
    Kernel(Work, Launch),
    Word(Work, Word),
}

/// What is done while no lock is held.
enum Unlocked {
    Call(Function, usize),
    Kernel(Launch),
}

#[derive(Default)]
struct Stream {
    ctx: u64,
    todo: VecDeque<Item>,
    /// A function of the program's is running.
    busy: bool,
    /// A thread does what its time has come for.
    attended: bool,
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

/// Which call does the work.
#[derive(Clone, Copy, PartialEq)]
enum By {
    /// One that asks: functions of the program's are left alone, since they may take any time.
    Query,
    /// One that waits until all is done.
    Wait,
    /// The thread that attends to the stream.
    Attendant,
}

/// Does what its time has come for; for a call that waits, all that is queued. Functions of the program's and
/// kernels run while no lock is held.
fn run(name: usize, by: By) {
    let wait = by == By::Wait;
    let mut all = all();
    loop {
        let Some(s) = all.streams.get_mut(&name) else { return };
        if s.busy {
            if !wait {
                return;
            }
            drop(all);
            std::thread::sleep(A_WHILE);
            all = self::all();
            continue;
        }
        let item = match s.todo.front() {
            None => return,
            Some(Item::Copy(work)) => {
                match work.run(wait) {
                    None => return,
                    Some(true) => {}
                    Some(false) => s.failed = INVALID_VALUE,
                }
                s.todo.pop_front();
                s.done += 1;
                continue;
            }
            Some(&Item::Word(ref work, word)) => {
                match work.run(wait).and_then(|_| word.run()) {
                    None if wait => {
                        drop(all);
                        std::thread::sleep(A_WHILE);
                        all = self::all();
                        continue;
                    }
                    None => return,
                    Some(true) => {}
                    Some(false) => s.failed = INVALID_VALUE,
                }
                s.todo.pop_front();
                s.done += 1;
                continue;
            }
            Some(Item::Call(..)) if by == By::Query => return,
            Some(&Item::Call(call, arg)) => Unlocked::Call(call, arg),
            Some(Item::Kernel(work, launch)) => {
                if work.run(wait).is_none() {
                    return;
                }
                Unlocked::Kernel(launch.clone())
            }
        };
        s.todo.pop_front();
        s.busy = true;
        drop(all);
        let ended = match item {
            Unlocked::Call(call, arg) => {
                IN_HOST_FUNCTION.set(true);
                unsafe { call(arg as Ptr) };
                IN_HOST_FUNCTION.set(false);
                Ok(())
            }
            Unlocked::Kernel(launch) => launch.run(),
        };
        all = self::all();
        if let Some(s) = all.streams.get_mut(&name) {
            s.busy = false;
            s.done += 1;
            if let Err(code) = ended {
                s.failed = code;
            }
        }
    }
}

/// What is waiting there comes without being asked for, as on a device.
fn attend(name: usize) {
    match all().streams.get_mut(&name) {
        Some(s) if !s.attended => s.attended = true,
        _ => return,
    }
    std::thread::spawn(move || {
        let mut looks = 0;
        loop {
            let done = all().streams.get(&name).map(|s| s.done);
            run(name, By::Attendant);
            match all().streams.get_mut(&name) {
                Some(s) if s.busy || !s.todo.is_empty() => {
                    looks = if done == Some(s.done) { looks + 1 } else { 0 }
                }
                Some(s) => {
                    s.attended = false;
                    return;
                }
                None => return,
            }
            // What a word waits for mostly comes soon.
            if looks < 100 { std::thread::yield_now() } else { std::thread::sleep(A_WHILE) }
        }
    });
}

/// Between two looks of a thread that waits.
const A_WHILE: Duration = Duration::from_micros(50);

/// That of a stream's work which failed, once.
fn failed(name: usize) -> i32 {
    all().streams.get_mut(&name).map_or(INVALID_HANDLE, |s| std::mem::take(&mut s.failed))
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
    run(stream as usize, By::Wait);
    all().streams.remove(&(stream as usize)).map_or(INVALID_HANDLE, |_| SUCCESS)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: Ptr) -> i32 {
    enter_in_context!("cuStreamSynchronize");
    // In the default stream are only calls that were over when they returned.
    if stream.is_null() {
        return SUCCESS;
    }
    if let Err(code) = capture::asks(stream as usize) {
        return code;
    }
    run(stream as usize, By::Wait);
    failed(stream as usize)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamQuery(stream: Ptr) -> i32 {
    enter_in_context!("cuStreamQuery");
    if let Err(code) = capture::asks(stream as usize) {
        return code;
    }
    run(stream as usize, By::Query);
    match all().streams.get(&(stream as usize)) {
        Some(s) if s.busy || !s.todo.is_empty() => return NOT_READY,
        _ => {}
    }
    failed(stream as usize)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCtx(stream: Ptr, ctx: *mut Ptr) -> i32 {
    enter!("cuStreamGetCtx");
    let Some(id) = all().streams.get(&(stream as usize)).map(|s| s.ctx) else { return INVALID_HANDLE };
    unsafe { *ctx = context::named(id) as Ptr };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchHostFunc(stream: Ptr, call: Function, arg: Ptr) -> i32 {
    enter_in_context!("cuLaunchHostFunc");
    if capture::is_captured(stream as usize) {
        return SUCCESS;
    }
    {
        let mut all = all();
        let Some(s) = all.streams.get_mut(&(stream as usize)) else { return INVALID_HANDLE };
        s.queued += 1;
        s.todo.push_back(Item::Call(call, arg as usize));
    }
    attend(stream as usize);
    SUCCESS
}

/// Queues an operation on a word, which is done without being asked for.
pub(crate) fn queue_word(stream: Ptr, word: Word) -> i32 {
    if capture::is_captured(stream as usize) {
        return SUCCESS;
    }
    {
        let mut all = all();
        let Some(s) = all.streams.get_mut(&(stream as usize)) else { return INVALID_HANDLE };
        s.queued += 1;
        s.todo.push_back(Item::Word(Work::new("CUDA", 0, 0, 0), word));
    }
    attend(stream as usize);
    SUCCESS
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
    if capture::is_captured(stream as usize) {
        return SUCCESS;
    }
    s.queued += 1;
    s.todo.push_back(Item::Copy(Work::new("CUDA", dst as usize, src as usize, len)));
    SUCCESS
}

/// Queues a kernel; in the default stream, where all is over when it returns, runs it.
pub(crate) fn launch(stream: Ptr, launch: Launch) -> i32 {
    if stream.is_null() {
        return launch.run().err().unwrap_or(SUCCESS);
    }
    if capture::is_captured(stream as usize) {
        return SUCCESS;
    }
    let ctx = context::current().map_or(0, |c| c.id);
    let mut all = all();
    let Some(s) = all.streams.get_mut(&(stream as usize)).filter(|s| s.ctx == ctx) else {
        return INVALID_HANDLE;
    };
    s.queued += 1;
    s.todo.push_back(Item::Kernel(Work::new("CUDA", 0, 0, 0), launch));
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
    let every: Vec<usize> = all().streams.keys().copied().collect();
    every.into_iter().for_each(|name| run(name, By::Wait));
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
    let Some((stream, after)) = all().events.get(&(event as usize)).copied() else { return INVALID_HANDLE };
    run(stream, if wait { By::Wait } else { By::Query });
    let mut all = all();
    let Some(s) = all.streams.get_mut(&stream) else { return SUCCESS };
    match s.done >= after {
        true => std::mem::take(&mut s.failed),
        false => NOT_READY,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: Ptr) -> i32 {
    enter!("cuEventQuery");
    waits!();
    look(event, false)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: Ptr) -> i32 {
    enter!("cuEventSynchronize");
    waits!();
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
