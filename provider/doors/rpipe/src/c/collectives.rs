//! Groups: barrier, gather, scatter, all-to-all, reduce and allreduce.

use std::ptr;

use libc::{c_int, c_uint, c_void};

use super::groups::{ALL, check, place, rank_of};
use super::handles::{here, status};
use super::messages::patience;
use super::types::*;
use crate::group::{Elements, FUNCTION, How, parts, predefined};
use crate::{Error, Group, Operation, Rank};

/// Calls with the open group.
fn in_group<R>(group: rpipe_group_t, call: impl FnOnce(&mut Group) -> Result<R, Error>) -> Result<R, Error> {
    here()?;
    ALL.with(place(group), call)
}

/// Where the members' parts are, one behind the other, in memory that begins at `at`.
///
/// # Safety
/// `sizes` is NULL or has one for each of `n` members.
unsafe fn parts_of(
    at: *const c_void,
    sizes: *const usize,
    size: usize,
    n: usize,
    what: &str,
) -> Result<Vec<(usize, usize)>, Error> {
    // SAFETY: the caller's promise.
    let of = |member| if sizes.is_null() { size } else { unsafe { sizes.add(member).read() } };
    let parts = parts(&(0..n).map(of).collect::<Vec<_>>())?;
    check(at, parts.last().map_or(0, |(at, size)| at + size), what)?;
    Ok(parts)
}

/// The same at the root; the others have none.
///
/// # Safety
/// That of [`parts_of`] at the root.
unsafe fn parts_of_root(
    group: &Group,
    root: Rank,
    (at, sizes, size): (*const c_void, *const usize, usize),
    what: &str,
) -> Result<Vec<(usize, usize)>, Error> {
    if root != group.rank() {
        return Ok(Vec::new());
    }
    // SAFETY: the caller's promise.
    unsafe { parts_of(at, sizes, size, group.size(), what) }
}

/// A type and an operation, such as RPIPE_INT32 | RPIPE_SUM.
fn elements(what: c_uint) -> Result<Elements<'static>, Error> {
    let operation = match what & !0xf {
        RPIPE_SUM => Operation::Sum,
        RPIPE_PROD => Operation::Prod,
        RPIPE_MIN => Operation::Min,
        RPIPE_MAX => Operation::Max,
        RPIPE_AND => Operation::And,
        RPIPE_OR => Operation::Or,
        RPIPE_XOR => Operation::Xor,
        _ => {
            return Err(Error::Invalid(format!(
                "{what:#x} has no operation: it is a type and an operation, such as RPIPE_INT32 | RPIPE_SUM"
            )));
        }
    };
    let elements = match what & 0xf {
        RPIPE_INT32 => predefined::<i32>(operation),
        RPIPE_INT64 => predefined::<i64>(operation),
        RPIPE_UINT32 => predefined::<u32>(operation),
        RPIPE_UINT64 => predefined::<u64>(operation),
        RPIPE_FLOAT => predefined::<f32>(operation),
        RPIPE_DOUBLE => predefined::<f64>(operation),
        _ => {
            return Err(Error::Invalid(format!(
                "{what:#x} has no type: it is a type and an operation, such as RPIPE_INT32 | RPIPE_SUM"
            )));
        }
    };
    elements.ok_or_else(|| {
        Error::Invalid(format!(
            "{operation:?} is an operation of integers: RPIPE_FLOAT and RPIPE_DOUBLE have sum, prod, min, max"
        ))
    })
}

/// Calls with a program's function as a way to combine elements.
///
/// # Safety
/// `function` is NULL or valid; its function combines elements of its size.
unsafe fn with_function<R>(
    function: *const rpipe_function,
    call: impl FnOnce(Elements<'_>) -> Result<R, Error>,
) -> Result<R, Error> {
    let none = || {
        Error::Invalid(
            "there is no function: rpipe_function.size has to be its size, and combine is to be set".into(),
        )
    };
    let fresh = rpipe_function { size: 0, element: 0, combine: None, arg: ptr::null_mut() };
    // SAFETY: the caller's promise.
    let chosen = unsafe { c_abi::sized(function, size_of::<rpipe_function>(), fresh) }.map_err(|_| none())?;
    let combine = chosen.combine.ok_or_else(none)?;
    let mut apply = |from: *const u8, to: *mut u8, count: usize| {
        // SAFETY: so many elements of both; what a function of the program's does is the program's.
        unsafe { combine(from.cast(), to.cast(), count, chosen.arg) }
    };
    call(Elements { size: chosen.element, code: FUNCTION, how: How::Function(&mut apply) })
}

/// Returns when all members have called it, or with an error: ETIMEDOUT, if that took longer than
/// `nanoseconds`; else those of rpipe_bcast. The group is over then.
///
/// # Safety
/// `group` is NULL or came from rpipe_group_open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpipe_barrier(group: rpipe_group_t, nanoseconds: i64) -> c_int {
    status(|| in_group(group, |group| group.barrier(patience(nanoseconds))))
}

/// Gather: the `size` bytes of each member come to the member of rank `root`, which has them in `receive` one
/// behind the other, in the order of the group. `sizes` of the root: how many each member sends; NULL: `size`
/// each. The others' `receive` and `sizes` are not used. Errors are those of rpipe_barrier; EMSGSIZE: a
/// member sends another size.
///
/// # Safety
/// `group` is NULL or came from rpipe_group_open; the memory is there, and nothing else uses it meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpipe_gather(
    group: rpipe_group_t,
    root: c_int,
    send: *const c_void,
    size: usize,
    receive: *mut c_void,
    sizes: *const usize,
    nanoseconds: i64,
) -> c_int {
    status(|| {
        check(send, size, "what is sent")?;
        let root = rank_of(root)?;
        in_group(group, |group| {
            // SAFETY: the program's promise.
            unsafe {
                let to = parts_of_root(group, root, (receive, sizes, size), "the room for what comes")?;
                group.gather_at(root, (send.cast(), size), receive.cast(), &to, patience(nanoseconds))
            }
        })
    })
}

/// Scatter: of the bytes at `send` of the member of rank `root` each member gets its `size`, in the order of
/// the group. `sizes` of the root: how many each gets; NULL: `size` each. The others' `send` and `sizes` are
/// not used. Errors are those of rpipe_gather.
///
/// # Safety
/// Those of rpipe_gather.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpipe_scatter(
    group: rpipe_group_t,
    root: c_int,
    send: *const c_void,
    sizes: *const usize,
    receive: *mut c_void,
    size: usize,
    nanoseconds: i64,
) -> c_int {
    status(|| {
        check(receive, size, "the room for what comes")?;
        let root = rank_of(root)?;
        in_group(group, |group| {
            let to = (receive.cast(), size);
            // SAFETY: the program's promise.
            unsafe {
                let from = parts_of_root(group, root, (send, sizes, size), "what is sent")?;
                group.scatter_at(root, send.cast(), &from, to, patience(nanoseconds))
            }
        })
    })
}

/// All-to-all: each member has a part for each at `send`, and gets one of each at `receive`, one behind the
/// other in the order of the group. `send_sizes`, `receive_sizes`: how long they are; NULL: `size` each. What
/// is sent and what is received do not overlap. Errors are those of rpipe_gather.
///
/// # Safety
/// Those of rpipe_gather.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpipe_alltoall(
    group: rpipe_group_t,
    send: *const c_void,
    send_sizes: *const usize,
    receive: *mut c_void,
    receive_sizes: *const usize,
    size: usize,
    nanoseconds: i64,
) -> c_int {
    status(|| {
        in_group(group, |group| {
            let n = group.size();
            // SAFETY: the program's promise.
            unsafe {
                let from = parts_of(send, send_sizes, size, n, "what is sent")?;
                let to = parts_of(receive, receive_sizes, size, n, "the room for what comes")?;
                group.alltoall_at((send.cast(), &from), (receive.cast(), &to), patience(nanoseconds))
            }
        })
    })
}

/// Reduce: the `count` elements of all members are combined, one by one, and come to `receive` of the member
/// of rank `root`; the others' `receive` is not used. `what` is a type and an operation, such as
/// RPIPE_INT32 | RPIPE_SUM. `receive` may be `send`. Errors are those of rpipe_barrier; EMSGSIZE: a member
/// has another count.
///
/// # Safety
/// Those of rpipe_gather.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpipe_reduce(
    group: rpipe_group_t,
    root: c_int,
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    what: c_uint,
    nanoseconds: i64,
) -> c_int {
    status(|| {
        let memory = (send, receive, count);
        // SAFETY: the program's promise.
        unsafe { reduce(group, root, memory, elements(what)?, nanoseconds) }
    })
}

/// As rpipe_reduce, by a function of the program's, which has to be associative and commutative. It is called
/// in this thread, with some of the elements at a time, and makes no call of this library.
///
/// # Safety
/// Those of rpipe_gather; `function` is NULL or valid, and combines elements of its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpipe_reduce_by(
    group: rpipe_group_t,
    root: c_int,
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    function: *const rpipe_function,
    nanoseconds: i64,
) -> c_int {
    status(|| {
        let memory = (send, receive, count);
        // SAFETY: the program's promise.
        unsafe { with_function(function, |elements| reduce(group, root, memory, elements, nanoseconds)) }
    })
}

/// As rpipe_reduce, and the outcome comes to all members, to each the same bits.
///
/// # Safety
/// Those of rpipe_gather.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpipe_allreduce(
    group: rpipe_group_t,
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    what: c_uint,
    nanoseconds: i64,
) -> c_int {
    status(|| {
        let memory = (send, receive, count);
        // SAFETY: the program's promise.
        unsafe { allreduce(group, memory, elements(what)?, nanoseconds) }
    })
}

/// As rpipe_allreduce, by a function of the program's: see rpipe_reduce_by.
///
/// # Safety
/// Those of rpipe_reduce_by.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpipe_allreduce_by(
    group: rpipe_group_t,
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    function: *const rpipe_function,
    nanoseconds: i64,
) -> c_int {
    status(|| {
        let memory = (send, receive, count);
        // SAFETY: the program's promise.
        unsafe { with_function(function, |elements| allreduce(group, memory, elements, nanoseconds)) }
    })
}

/// # Safety
/// That of rpipe_reduce.
unsafe fn reduce(
    group: rpipe_group_t,
    root: c_int,
    (send, receive, count): (*const c_void, *mut c_void, usize),
    elements: Elements<'_>,
    nanoseconds: i64,
) -> Result<(), Error> {
    let root = rank_of(root)?;
    let bytes = count.saturating_mul(elements.size);
    check(send, bytes, "what is sent")?;
    in_group(group, |group| {
        let mut to = receive;
        if root == group.rank() {
            check(receive, bytes, "the room for what comes")?;
        } else {
            to = ptr::null_mut();
        }
        // SAFETY: the program's promise.
        unsafe { group.reduce_at(root, (send.cast(), count), to.cast(), elements, patience(nanoseconds)) }
    })
}

/// # Safety
/// That of rpipe_allreduce.
unsafe fn allreduce(
    group: rpipe_group_t,
    (send, receive, count): (*const c_void, *mut c_void, usize),
    elements: Elements<'_>,
    nanoseconds: i64,
) -> Result<(), Error> {
    let bytes = count.saturating_mul(elements.size);
    check(send, bytes, "what is sent")?;
    check(receive, bytes, "the room for what comes")?;
    in_group(group, |group| {
        // SAFETY: the program's promise.
        unsafe { group.allreduce_at((send.cast(), count), receive.cast(), elements, patience(nanoseconds)) }
    })
}
