//! Lists, and what executes them.

use std::ptr;

use c_abi::guard;
use libc::{c_int, c_void};

use super::types::*;
use super::{NULL, errno, invalid, list, open, put, transfer};

/// Makes a list with room for `entries` operations. A message takes one for each slot that it fills. -EBUSY:
/// 62 lists of the endpoint are open, as many as there can be.
///
/// # Safety
/// `endpoint` is open; `made` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_list_open(
    endpoint: *mut strait_stream,
    entries: usize,
    made: *mut *mut strait_stream_list,
) -> c_int {
    guard(|| {
        if made.is_null() {
            return invalid(NULL);
        }
        // SAFETY: the program's promise.
        let list = errno(unsafe { open(endpoint)? }.list(entries))?;
        // SAFETY: as above.
        unsafe { put(made, Box::into_raw(Box::new(strait_stream_list { list }))) }
    })
}

/// Adds a send to a list. -ENOSPC: the list has not room for it, and is as before.
///
/// # Safety
/// `to` is open; the buffer is readable until the last execution of the list is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_list_send(
    to: *mut strait_stream_list,
    buffer: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: the program's promise.
    guard(|| unsafe { errno(list(to)?.send(buffer.expose_provenance(), length)) })
}

/// Adds a receive to a list.
///
/// # Safety
/// As of strait_stream_list_send, and the buffer is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_list_receive(
    to: *mut strait_stream_list,
    buffer: *mut c_void,
    length: usize,
) -> c_int {
    // SAFETY: the program's promise.
    guard(|| unsafe { errno(list(to)?.receive(buffer.expose_provenance(), length)) })
}

/// Adds a put, and the signal behind it, to a list.
///
/// # Safety
/// As of strait_stream_list_send; `what` is NULL or as said of the structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_list_put(
    to: *mut strait_stream_list,
    what: *const strait_stream_transfer,
) -> c_int {
    // SAFETY: the program's promise.
    guard(|| unsafe { errno(list(to)?.put(&transfer(what)?)) })
}

/// Adds a get to a list.
///
/// # Safety
/// As of strait_stream_list_receive; `what` is NULL or as said of the structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_list_get(
    to: *mut strait_stream_list,
    what: *const strait_stream_transfer,
) -> c_int {
    // SAFETY: the program's promise.
    guard(|| unsafe { errno(list(to)?.get(&transfer(what)?)) })
}

/// Adds a wait for a signal of the peer's to a list.
///
/// # Safety
/// `to` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_list_wait(to: *mut strait_stream_list, signal: u32) -> c_int {
    // SAFETY: the program's promise.
    guard(|| unsafe { errno(list(to)?.wait(signal)) })
}

/// Adds the acknowledgement of a signal to a list.
///
/// # Safety
/// `to` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_list_acknowledge(to: *mut strait_stream_list, signal: u32) -> c_int {
    // SAFETY: the program's promise.
    guard(|| unsafe { errno(list(to)?.acknowledge(signal)) })
}

/// Queues a list in a stream. If that is being captured, the list becomes part of the graph. One execution of
/// a list is done before the next begins.
///
/// # Safety
/// `what` is open and `stream` is a stream; a graph that was captured is gone, with its instances, before the
/// list is closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_list_run(what: *mut strait_stream_list, stream: *mut c_void) -> c_int {
    // SAFETY: the program's promise.
    guard(|| unsafe { errno(list(what)?.run(stream.expose_provenance())) })
}

/// Executes a list by the calling thread, and returns when it is done or the endpoint has failed.
///
/// # Safety
/// `what` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_list_run_on_cpu(what: *mut strait_stream_list) -> c_int {
    // SAFETY: the program's promise.
    guard(|| errno(unsafe { list(what)? }.run_on_cpu()))
}

/// Adds a list to a graph (a CUgraph) of the calling thread's context as nodes, behind the `count` nodes
/// `after`. `last` becomes the node that is behind all of them.
///
/// # Safety
/// `what` is open; `graph` is a graph that no other thread uses, and `after` are nodes of it; the graph is
/// gone, with its instances, before the list is closed; `last` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_list_add_to_graph(
    what: *mut strait_stream_list,
    graph: *mut c_void,
    after: *const *mut c_void,
    count: usize,
    last: *mut *mut c_void,
) -> c_int {
    guard(|| {
        if graph.is_null() || last.is_null() || count > 0 && after.is_null() {
            return invalid(NULL);
        }
        if count > isize::MAX as usize / size_of::<*mut c_void>() {
            return invalid("there are not so many nodes: pass their count");
        }
        // SAFETY: the program's promise.
        let after: Vec<usize> = (0..count).map(|n| unsafe { (*after.add(n)).expose_provenance() }).collect();
        // SAFETY: as above.
        unsafe {
            let node = errno(list(what)?.add_to_graph(graph.expose_provenance(), &after))?;
            put(last, ptr::with_exposed_provenance_mut(node))
        }
    })
}

/// Closes a list. -EBUSY: a stream has not executed it yet, or a graph or an instance of one has it (as
/// drivers from CUDA 11.3 on say); it is still open.
///
/// # Safety
/// `what` is NULL or open, and is not used any more if this returns 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_stream_list_close(what: *mut strait_stream_list) -> c_int {
    guard(|| {
        if what.is_null() {
            return Ok(());
        }
        // SAFETY: the program's promise.
        errno(unsafe { list(what)? }.is_free())?;
        // SAFETY: as above; it came from a box.
        drop(unsafe { Box::from_raw(what) });
        Ok(())
    })
}
