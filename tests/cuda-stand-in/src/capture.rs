//! Streams that are being captured into a graph: what is queued on such a stream becomes a node of it.
//!
//! What was seen of the driver (580.159, CUDA 13.0): to ask a captured stream whether it is done, or to wait
//! for it, ends its capture; so do, in any thread, calls that may wait for the device (cuEventQuery,
//! cuStreamSynchronize, cuMemHostRegister and their like), as long as a capture in the global mode goes on,
//! unless the thread has set itself the relaxed mode.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use crate::node::{Held, Node};
use crate::{CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED, INVALID_VALUE, Ptr, SUCCESS, enter, enter_in_context};

/// `CUstreamCaptureMode`.
const GLOBAL: i32 = 0;
const RELAXED: i32 = 2;

/// How many captures were begun.
static MADE: AtomicUsize = AtomicUsize::new(0);

struct Capture {
    stream: usize,
    mode: i32,
    thread: ThreadId,
    broken: bool,
    /// The graph that it becomes, and what that holds.
    graph: usize,
    nodes: Vec<Node>,
    held: Vec<Held>,
}

fn all() -> MutexGuard<'static, Vec<Capture>> {
    static ALL: Mutex<Vec<Capture>> = Mutex::new(Vec::new());
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    static MODE: Cell<i32> = const { Cell::new(GLOBAL) };
}

/// Whether what is queued there goes into a graph.
pub(crate) fn is_captured(stream: usize) -> bool {
    all().iter().any(|c| c.stream == stream)
}

/// Puts a node into the graph that the stream is captured into.
pub(crate) fn record(stream: usize, node: Node) -> i32 {
    match all().iter_mut().find(|c| c.stream == stream) {
        Some(capture) if capture.broken => return CAPTURE_INVALIDATED,
        Some(capture) => capture.nodes.push(node),
        None => {}
    }
    SUCCESS
}

/// What a call that asks or waits for a stream comes to: of a captured one it ends the capture.
pub(crate) fn asks(stream: usize) -> Result<(), i32> {
    if let Some(capture) = all().iter_mut().find(|c| c.stream == stream) {
        capture.broken = true;
        return Err(CAPTURE_UNSUPPORTED);
    }
    may_wait()
}

/// What a call comes to that may wait for the device.
pub(crate) fn may_wait() -> Result<(), i32> {
    let (own, mode) = (std::thread::current().id(), MODE.get());
    let stands_in_the_way = |c: &&mut Capture| match mode {
        RELAXED => false,
        GLOBAL if c.mode == GLOBAL => true,
        _ => c.mode != RELAXED && c.thread == own,
    };
    let mut all = all();
    let mut ended = all.iter_mut().filter(stands_in_the_way).peekable();
    if ended.peek().is_none() {
        return Ok(());
    }
    ended.for_each(|c| c.broken = true);
    Err(CAPTURE_UNSUPPORTED)
}

/// Stops a call that may wait for the device.
macro_rules! waits {
    () => {
        if let Err(code) = crate::capture::may_wait() {
            return code;
        }
    };
}
pub(crate) use waits;

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamBeginCapture_v2(stream: Ptr, mode: i32) -> i32 {
    enter_in_context!("cuStreamBeginCapture_v2");
    let stream = stream as usize;
    if !(GLOBAL..=RELAXED).contains(&mode) || is_captured(stream) {
        return INVALID_VALUE;
    }
    all().push(Capture {
        stream,
        mode,
        thread: std::thread::current().id(),
        broken: false,
        graph: 0x6800_0000 + 16 * MADE.fetch_add(1, Relaxed),
        nodes: Vec::new(),
        held: Vec::new(),
    });
    SUCCESS
}

/// Ends a capture: the graph, its nodes and what it holds, if nothing broke it. `None`: there is none.
#[expect(clippy::type_complexity, reason = "of one caller")]
pub(crate) fn end(stream: usize) -> Option<Result<(usize, Vec<Node>, Vec<Held>), i32>> {
    let mut all = all();
    let at = all.iter().position(|c| c.stream == stream)?;
    let ended = all.remove(at);
    Some(if ended.broken { Err(CAPTURE_INVALIDATED) } else { Ok((ended.graph, ended.nodes, ended.held)) })
}

/// Has the graph of a capture hold that; it comes back if there is no such capture.
pub(crate) fn hold(graph: usize, held: Held) -> Option<Held> {
    let mut all = all();
    match all.iter_mut().find(|c| c.graph == graph) {
        Some(capture) => capture.held.push(held),
        None => return Some(held),
    }
    None
}

/// Has the graph of a capture hold that object no more; whether it did.
pub(crate) fn let_go(graph: usize, object: usize) -> bool {
    all().iter_mut().find(|c| c.graph == graph).is_some_and(|c| Held::take(&mut c.held, object))
}

/// All but the status stays as it was unless a capture goes on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCaptureInfo_v2(
    stream: Ptr,
    status: *mut i32,
    id: *mut u64,
    graph: *mut Ptr,
    after: *mut *const Ptr,
    count: *mut usize,
) -> i32 {
    enter_in_context!("cuStreamGetCaptureInfo_v2");
    let all = all();
    let found = all.iter().find(|c| c.stream == stream as usize);
    unsafe {
        *status = found.map_or(0, |c| 1 + i32::from(c.broken));
        if let Some(capture) = found.filter(|c| !c.broken) {
            (*id, *graph) = (capture.graph as u64, capture.graph as Ptr);
            (*after, *count) = (std::ptr::null(), 0);
        }
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(stream: Ptr, status: *mut i32) -> i32 {
    enter_in_context!("cuStreamIsCapturing");
    let found = all().iter().find(|c| c.stream == stream as usize).map_or(0, |c| 1 + i32::from(c.broken));
    unsafe { *status = found };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut i32) -> i32 {
    enter!("cuThreadExchangeStreamCaptureMode");
    let wanted = unsafe { *mode };
    if !(GLOBAL..=RELAXED).contains(&wanted) {
        return INVALID_VALUE;
    }
    unsafe { *mode = MODE.replace(wanted) };
    SUCCESS
}
