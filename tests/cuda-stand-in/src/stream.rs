//! Streams and events: work that is done in order, by the first call that asks when its time has come.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use stand_in::Work;

use crate::capture;
use crate::hold;
use crate::memop;
use crate::node::{Function, Node};
use crate::ptx::Launch;
use crate::{
    IN_HOST_FUNCTION, INVALID_HANDLE, INVALID_VALUE, NOT_READY, NOT_SUPPORTED, Ptr, SUCCESS, context, enter,
    enter_in_context, memory,
};

mod event;

struct Item {
    node: Node,
    /// When it has its time; a copy does itself.
    work: Work,
    not_before: Instant,
    /// Of all that was ever queued.
    number: u64,
    /// How many operations of a batch are done.
    begun: usize,
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
    /// A function of the program's is running: its item's number.
    busy: Option<u64>,
    /// How much work was ever queued, and how much is done.
    queued: u64,
    done: u64,
    failed: i32,
    channel: usize,
    attended: bool,
}

#[derive(Default)]
struct All {
    streams: HashMap<usize, Stream>,
    /// After how much work of which stream an event comes.
    events: HashMap<usize, (usize, u64)>,
    made: usize,
    numbers: u64,
}

/// Most microseconds by which an item is put off, and the state of what chooses them.
static JITTER: Mutex<(u64, u64)> = Mutex::new((0, 1));

/// Hardware channels, as a device of H200 has them: of one all streams make use, whatever their priorities; of
/// several, or if nothing is said (0), each stream has its own.
static CHANNELS: AtomicUsize = AtomicUsize::new(0);

/// Those of the program's environment, else.
fn channels() -> usize {
    let set = || std::env::var("CUDA_DEVICE_MAX_CONNECTIONS").ok()?.parse().ok();
    match CHANNELS.load(Relaxed) {
        0 => set().unwrap_or(0),
        count => count,
    }
}

/// From now on each piece of work is put off by up to so many microseconds, so that streams overtake each
/// other.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_jitter(most: u64, seed: u64) {
    *JITTER.lock().unwrap_or_else(PoisonError::into_inner) = (most, seed | 1);
}

/// Streams made from now on have so many hardware channels, as with CUDA_DEVICE_MAX_CONNECTIONS: what is
/// queued in one holds up what was queued later in any stream of the channel. 1: all share it.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_channels(count: usize) {
    CHANNELS.store(count, Relaxed);
}

/// Whether what is no stream, or no more, ends the process: with the driver that is undefined.
static STRICT: AtomicBool = AtomicBool::new(false);

#[unsafe(no_mangle)]
pub extern "C" fn stand_in_strict(is: bool) {
    STRICT.store(is, Relaxed);
}

fn put_off() -> Duration {
    let mut jitter = JITTER.lock().unwrap_or_else(PoisonError::into_inner);
    let (most, state) = *jitter;
    if most == 0 {
        return Duration::ZERO;
    }
    // xorshift64
    let state = state ^ state << 13;
    let state = state ^ state >> 7;
    let state = state ^ state << 17;
    *jitter = (most, state);
    Duration::from_micros(state % (most + 1))
}

fn all() -> MutexGuard<'static, All> {
    static ALL: OnceLock<Mutex<All>> = OnceLock::new();
    ALL.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Which call does the work.
#[derive(Clone, Copy, PartialEq)]
enum By {
    /// One that asks: functions of the program's and kernels that wait are left alone; they may take any time.
    Query,
    /// One that waits until all is done.
    Wait,
    /// The thread that attends to the stream.
    Attendant,
}

/// What comes of a look at the first item.
enum Next {
    Nothing,
    NotYet,
    Done(bool),
    Unlocked(Unlocked),
}

impl All {
    /// Does what can be done at once of a stream's first item.
    fn next(&mut self, name: usize, by: By) -> Next {
        let Some(s) = self.streams.get(&name) else { return Next::Nothing };
        if s.busy.is_some() {
            return Next::NotYet;
        }
        let Some(item) = s.todo.front() else { return Next::Nothing };
        let held = |other: &Stream| {
            // A kernel that runs holds up nothing, but what is behind it does: it is first in the channel.
            let first = other.todo.front().map(|i| i.number);
            other.channel == s.channel && first.is_some_and(|first| first < item.number)
        };
        let after = match item.node {
            Node::After(of, count) => self.streams.get(&of).is_some_and(|s| s.done < count),
            _ => false,
        };
        let is_late = by == By::Query && item.node.may_take_long();
        if is_late || after || Instant::now() < item.not_before || self.streams.values().any(held) {
            return Next::NotYet;
        }
        let Some(item) = self.streams.get_mut(&name).and_then(|s| s.todo.front_mut()) else {
            return Next::Nothing;
        };
        let Some(copied) = item.work.run(false) else { return Next::NotYet };
        match &item.node {
            Node::Copy(..) => Next::Done(copied),
            Node::After(..) | Node::Holds(_) => Next::Done(true),
            Node::Call(call, arg) => Next::Unlocked(Unlocked::Call(*call, *arg)),
            Node::Kernel(launch) => Next::Unlocked(Unlocked::Kernel(launch.clone())),
            Node::Batch(ops) => {
                for op in &ops[item.begun..] {
                    match op.run() {
                        None => return Next::NotYet,
                        Some(true) => item.begun += 1,
                        Some(false) => return Next::Done(false),
                    }
                }
                Next::Done(true)
            }
        }
    }
}

/// Does what its time has come for; for a call that waits, all that is queued. Functions of the program's and
/// kernels run while no lock is held.
fn run(name: usize, by: By) {
    let mut all = all();
    loop {
        let item = match all.next(name, by) {
            Next::Nothing => return,
            Next::NotYet if by != By::Wait => return,
            Next::NotYet => {
                drop(all);
                std::thread::sleep(Duration::from_micros(50));
                all = self::all();
                continue;
            }
            Next::Done(ok) => {
                if let Some(s) = all.streams.get_mut(&name) {
                    s.todo.pop_front();
                    s.done += 1;
                    if !ok {
                        s.failed = INVALID_VALUE;
                    }
                }
                continue;
            }
            Next::Unlocked(item) => item,
        };
        if let Some(s) = all.streams.get_mut(&name) {
            s.busy = s.todo.pop_front().map(|item| item.number);
        }
        drop(all);
        let ended = match item {
            Unlocked::Call(call, arg) => {
                IN_HOST_FUNCTION.set(true);
                unsafe { call(arg as Ptr) };
                IN_HOST_FUNCTION.set(false);
                Ok(())
            }
            Unlocked::Kernel(launch) => {
                let _room = hold::room(launch.kernel.waits);
                hold::fails(launch.kernel.waits).and_then(|()| launch.run())
            }
        };
        all = self::all();
        if let Some(s) = all.streams.get_mut(&name) {
            s.busy = None;
            s.done += 1;
            if let Err(code) = ended {
                s.failed = code;
            }
        }
    }
}

/// What is waiting there comes without being asked for, as on a device. One thread at a time attends; where
/// the process has no more threads, only calls that ask do the work.
fn attend(name: usize) {
    if all().streams.get_mut(&name).is_none_or(|s| std::mem::replace(&mut s.attended, true)) {
        return;
    }
    let spawned = std::thread::Builder::new().spawn(move || {
        loop {
            run(name, By::Attendant);
            let goes_on = all().streams.get_mut(&name).is_some_and(|s| {
                s.attended = s.busy.is_some() || !s.todo.is_empty();
                s.attended
            });
            if !goes_on {
                return;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    });
    if let (Err(_), Some(s)) = (spawned, all().streams.get_mut(&name)) {
        s.attended = false;
    }
}

/// Queues work in a stream of the current context; of one that is being captured, it goes into the graph.
fn queue(stream: usize, node: Node) -> i32 {
    if capture::is_captured(stream) {
        return capture::record(stream, node);
    }
    queue_all(stream, vec![node]).err().unwrap_or(SUCCESS)
}

/// Queues all of it in that stream; how much was ever queued there then.
pub(crate) fn queue_all(stream: usize, nodes: Vec<Node>) -> Result<u64, i32> {
    if capture::is_captured(stream) {
        return Err(NOT_SUPPORTED);
    }
    let ctx = context::current().map_or(0, |c| c.id);
    let (end, attended) = {
        let mut all = all();
        let first = all.numbers;
        all.numbers += nodes.len() as u64;
        let s = all.streams.get_mut(&stream).filter(|s| s.ctx == ctx).ok_or(INVALID_HANDLE)?;
        // By itself come functions, memory operations, and all that may be held up.
        let alone = |node: &Node| !matches!(node, Node::Copy(..) | Node::Kernel(_)) || node.may_take_long();
        let attended = nodes.len() != 1 || nodes.iter().any(alone) || channels() > 0;
        for (i, node) in nodes.into_iter().enumerate() {
            let (dst, src, len) =
                if let Node::Copy(dst, src, len) = node { (dst, src, len) } else { (0, 0, 0) };
            let (work, not_before) = (Work::new("CUDA", dst, src, len), Instant::now() + put_off());
            s.queued += 1;
            s.todo.push_back(Item { node, work, not_before, number: first + i as u64, begun: 0 });
        }
        (s.queued, attended)
    };
    if attended {
        attend(stream);
    }
    Ok(end)
}

/// That of a stream's work which failed, once.
fn failed(name: usize) -> i32 {
    all().streams.get_mut(&name).map_or(INVALID_HANDLE, |s| std::mem::take(&mut s.failed))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(out: *mut Ptr, _flags: u32) -> i32 {
    enter_in_context!("cuStreamCreate");
    unsafe { create(out) }
}

/// A priority is no channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(out: *mut Ptr, _flags: u32, _priority: i32) -> i32 {
    enter_in_context!("cuStreamCreateWithPriority");
    unsafe { create(out) }
}

/// The highest priority, of a number below 0.
const HIGHEST: i32 = -1;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetStreamPriorityRange(least: *mut i32, greatest: *mut i32) -> i32 {
    enter_in_context!("cuCtxGetStreamPriorityRange");
    unsafe { (*least, *greatest) = (0, HIGHEST) };
    SUCCESS
}

unsafe fn create(out: *mut Ptr) -> i32 {
    let mut all = all();
    all.made += 1;
    let name = 0x5000_0000 + all.made * 16;
    let ctx = context::current().map_or(0, |c| c.id);
    let channel = if channels() == 1 { 0 } else { name };
    all.streams.insert(name, Stream { ctx, channel, ..Stream::default() });
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
        Some(s) if s.busy.is_some() || !s.todo.is_empty() => return NOT_READY,
        _ => {}
    }
    failed(stream as usize)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCtx(stream: Ptr, ctx: *mut Ptr) -> i32 {
    enter!("cuStreamGetCtx");
    let Some(id) = all().streams.get(&(stream as usize)).map(|s| s.ctx) else {
        if STRICT.load(Relaxed) {
            eprintln!("stand-in: cuStreamGetCtx: {stream:?} is no stream");
            std::process::abort();
        }
        return INVALID_HANDLE;
    };
    unsafe { *ctx = context::named(id) as Ptr };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchHostFunc(stream: Ptr, call: Function, arg: Ptr) -> i32 {
    enter_in_context!("cuLaunchHostFunc");
    queue(stream as usize, Node::Call(call, arg as usize))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamBatchMemOp_v2(
    stream: Ptr,
    count: u32,
    ops: *const [u64; 6],
    flags: u32,
) -> i32 {
    enter_in_context!("cuStreamBatchMemOp_v2");
    match unsafe { memop::read(count, ops, flags) } {
        Ok(ops) => queue(stream as usize, Node::Batch(ops.into())),
        Err(code) => code,
    }
}

/// A batch of one operation of 64 bits (4 waits, 5 writes).
fn one_word(stream: Ptr, what: u64, at: u64, value: u64, flags: u32) -> i32 {
    match unsafe { memop::read(1, &[what, at, value, u64::from(flags), 0, 0], 0) } {
        Ok(ops) => queue(stream as usize, Node::Batch(ops.into())),
        Err(code) => code,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWriteValue64_v2(stream: Ptr, at: u64, value: u64, flags: u32) -> i32 {
    enter_in_context!("cuStreamWriteValue64_v2");
    one_word(stream, 5, at, value, flags)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitValue64_v2(stream: Ptr, at: u64, value: u64, flags: u32) -> i32 {
    enter_in_context!("cuStreamWaitValue64_v2");
    one_word(stream, 4, at, value, flags)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyAsync(dst: u64, src: u64, len: usize, stream: Ptr) -> i32 {
    enter_in_context!("cuMemcpyAsync");
    queue(stream as usize, Node::Copy(dst as usize, src as usize, len))
}

/// Queues a kernel; in the default stream, where all is over when it returns, runs it.
pub(crate) fn launch(stream: Ptr, launch: Launch) -> i32 {
    if stream.is_null() {
        return launch.run().err().unwrap_or(SUCCESS);
    }
    queue(stream as usize, Node::Kernel(launch))
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
    synchronize();
    SUCCESS
}

/// Waits for all streams.
pub(crate) fn synchronize() {
    let every: Vec<usize> = all().streams.keys().copied().collect();
    every.into_iter().for_each(|name| run(name, By::Wait));
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
