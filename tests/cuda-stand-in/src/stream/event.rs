//! Events: how much of a stream's work comes before them.

use super::{By, all, queue, run};
use crate::capture::waits;
use crate::node::Node;
use crate::{INVALID_HANDLE, NOT_READY, Ptr, SUCCESS, enter, enter_in_context};

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

/// What is queued from now on comes behind what the event was recorded behind.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(stream: Ptr, event: Ptr, _flags: u32) -> i32 {
    enter_in_context!("cuStreamWaitEvent");
    let Some((of, after)) = all().events.get(&(event as usize)).copied() else { return INVALID_HANDLE };
    queue(stream as usize, Node::After(of, after))
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
