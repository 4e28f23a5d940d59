//! Completion and start of requests.

use core::ffi::c_int;

use super::{Call, hooks};
use crate::abi::Handle;
use crate::args::bytes_of;
use crate::buffer::Failure;
use crate::call::raise;
use crate::library::pmpi;
use crate::refuse::Target;
use crate::requests::{self, Entry, is_empty};

/// The requests of a call that have entries, out of the table for as long as it takes.
struct Taken(Vec<(usize, Handle, Entry)>);

impl Taken {
    /// Of `count` requests at an argument.
    unsafe fn of(call: &Call<'_>, at: usize, count: usize) -> Taken {
        let mut taken = Vec::new();
        for n in 0..count {
            // SAFETY: the caller's promise: so many requests.
            let request = unsafe { call.args.request(at, n) };
            taken.extend(requests::take(request).map(|entry| (n, request, entry)));
        }
        Taken(taken)
    }

    /// Those for which `done(n, request)` is true have completed, and `bytes(n)` were received; the others go
    /// back, as do persistent ones that the MPI has not freed, by `stays(n, request)`.
    unsafe fn settle(
        self,
        mut done: impl FnMut(usize, Handle, &Entry) -> bool,
        bytes: impl Fn(usize) -> usize,
        stays: impl Fn(usize, Handle) -> bool,
    ) -> Option<Failure> {
        let mut failure = None;
        for (n, request, entry) in self.0 {
            if done(n, request, &entry) {
                let bytes = if entry.needs_length() { bytes(n) } else { 0 };
                // SAFETY: the operation has completed.
                failure =
                    unsafe { requests::complete(request, entry, bytes, stays(n, request)) }.err().or(failure);
            } else {
                requests::put(request, entry);
            }
        }
        failure
    }
}

/// What a request's state says of its operation after a call that failed: the MPI has set those to
/// MPI_REQUEST_NULL whose operation is over.
unsafe fn is_over(call: &Call<'_>, at: usize, n: usize, request: Handle, entry: &Entry) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        if call.args.request(at, n) != request {
            return true;
        }
        let mut flag: c_int = 0;
        entry.is_persistent()
            && pmpi!("Request_get_status", request, &raw mut flag, call.args.abi.status_ignore).is_ok()
            && flag != 0
    }
}

/// Where a completing call writes statuses, by the argument.
#[derive(Clone, Copy)]
enum Statuses {
    /// One.
    One(usize),
    /// One for each request.
    Each(usize),
    /// One for each of the requests whose indices are at the argument before.
    Some(usize),
}

impl Statuses {
    fn argument(self) -> usize {
        match self {
            Statuses::One(at) | Statuses::Each(at) | Statuses::Some(at) => at,
        }
    }

    /// Bytes that the request of that number has received; it has completed.
    unsafe fn bytes(self, call: &Call<'_>, n: usize, code: c_int) -> usize {
        let of = match self {
            // Without success nothing is sure to be written there.
            Statuses::One(_) if code != 0 => return 0,
            Statuses::One(_) => 0,
            Statuses::Each(_) => n,
            // SAFETY: the caller's promise: the indices that the call has written.
            Statuses::Some(at) => unsafe {
                let found = call.args.written(at - 2, 0).max(0) as usize;
                let Some(of) = (0..found).find(|i| is_index(call, n, call.args.written(at - 1, *i))) else {
                    return 0;
                };
                of
            },
        };
        let abi = call.args.abi;
        // SAFETY: the caller's promise: a status that the call has written.
        unsafe { bytes_of(abi, call.args.words[self.argument()] + of * abi.status) }
    }
}

/// Ends a completing call: what is complete is said by `done` if the call was successful.
unsafe fn finish(
    call: &mut Call<'_>,
    at: usize,
    count: usize,
    statuses: Statuses,
    done: impl Fn(&Call<'_>, usize) -> bool,
) -> c_int {
    // SAFETY: the caller's promise; so below.
    unsafe {
        let taken = Taken::of(call, at, count);
        let needs_lengths = taken.0.iter().any(|(_, _, entry)| entry.needs_length());
        let _own = needs_lengths.then(|| call.args.want_statuses(statuses.argument(), count));
        let code = call.forward();
        let is_done = |n, request, entry: &Entry| match code {
            0 => done(call, n),
            _ => is_over(call, at, n, request, entry),
        };
        let stays = |n, request| call.args.request(at, n) == request;
        let failure = taken.settle(is_done, |n| statuses.bytes(call, n, code), stays);
        requests::poll_freed(call.args.abi, false);
        match failure {
            Some(failure) => raise(call.library, Target::Comm(call.args.abi.handles.world), failure),
            None => code,
        }
    }
}

unsafe fn wait(call: &mut Call<'_>) -> c_int {
    // SAFETY: a request.
    unsafe { finish(call, 0, 1, Statuses::One(1), |_, _| true) }
}

unsafe fn test(call: &mut Call<'_>) -> c_int {
    // SAFETY: a request, and a flag that the call has written.
    unsafe { finish(call, 0, 1, Statuses::One(2), |call, _| call.args.written(1, 0) != 0) }
}

unsafe fn count(call: &Call<'_>) -> usize {
    // SAFETY: the first argument is a number.
    usize::try_from(unsafe { call.args.int(0) }).unwrap_or(0)
}

unsafe fn wait_all(call: &mut Call<'_>) -> c_int {
    // SAFETY: as many requests as the first argument says; so of the next ones.
    unsafe { finish(call, 1, count(call), Statuses::Each(2), |_, _| true) }
}

/// Whether a call with a flag for all requests says that they have completed.
fn all_done(call: &Call<'_>, _: usize) -> bool {
    // SAFETY: by the call, which has written it; so below.
    unsafe { call.args.written(2, 0) != 0 }
}

/// Whether a call with an index and a flag says so of that request.
fn any_done(call: &Call<'_>, n: usize) -> bool {
    // SAFETY: as above.
    unsafe { call.args.written(3, 0) != 0 && is_index(call, n, call.args.written(2, 0)) }
}

/// Whether a call with a number of indices says so of that request.
fn some_done(call: &Call<'_>, n: usize) -> bool {
    // SAFETY: as above; the indices are as many as the call has written.
    unsafe {
        let found = call.args.written(2, 0);
        found != call.args.abi.undefined
            && (0..found.max(0) as usize).any(|i| is_index(call, n, call.args.written(3, i)))
    }
}

unsafe fn test_all(call: &mut Call<'_>) -> c_int {
    // SAFETY: as above.
    unsafe { finish(call, 1, count(call), Statuses::Each(3), all_done) }
}

fn is_index(call: &Call<'_>, n: usize, index: c_int) -> bool {
    index != call.args.abi.undefined && i64::from(index - call.args.first_index()) == n as i64
}

unsafe fn wait_any(call: &mut Call<'_>) -> c_int {
    // SAFETY: as above.
    unsafe {
        finish(call, 1, count(call), Statuses::One(3), |call, n| is_index(call, n, call.args.written(2, 0)))
    }
}

unsafe fn test_any(call: &mut Call<'_>) -> c_int {
    // SAFETY: as above.
    unsafe { finish(call, 1, count(call), Statuses::One(4), any_done) }
}

unsafe fn some(call: &mut Call<'_>) -> c_int {
    // SAFETY: as above.
    unsafe { finish(call, 1, count(call), Statuses::Some(4), some_done) }
}

/// MPI_Request_get_status: a request of which it is true has completed, and stays.
unsafe fn get_status(call: &mut Call<'_>) -> c_int {
    // SAFETY: a request by value, and a flag.
    unsafe {
        let request = call.args.request_by_value(0);
        let code = call.forward();
        if code == 0 && call.args.written(1, 0) != 0 {
            return completed(call, request);
        }
        code
    }
}

/// The operation of a request has completed; the request stays.
unsafe fn completed(call: &Call<'_>, request: Handle) -> c_int {
    let Some(entry) = requests::take(request) else { return 0 };
    let is_asked = entry.needs_length();
    // SAFETY: a valid request.
    let bytes = if is_asked { unsafe { requests::done(call.args.abi, request) } } else { None };
    // SAFETY: the operation has completed.
    match unsafe { requests::complete(request, entry, bytes.unwrap_or(0), true) } {
        Ok(()) => 0,
        // SAFETY: a valid communicator.
        Err(e) => unsafe { raise(call.library, Target::Comm(call.args.abi.handles.world), e) },
    }
}

/// MPI_Request_get_status_all, _any and _some: what is complete is said by `done`.
unsafe fn get_statuses(call: &mut Call<'_>, done: impl Fn(&Call<'_>, usize) -> bool) -> c_int {
    // SAFETY: as many requests as the first argument says.
    unsafe {
        let code = call.forward();
        if code != 0 {
            return code;
        }
        let which = (0..count(call)).filter(|n| done(call, *n));
        which.map(|n| completed(call, call.args.request(1, n))).max().unwrap_or(0)
    }
}

unsafe fn get_status_all(call: &mut Call<'_>) -> c_int {
    // SAFETY: by the call.
    unsafe { get_statuses(call, all_done) }
}

unsafe fn get_status_any(call: &mut Call<'_>) -> c_int {
    // SAFETY: by the call.
    unsafe { get_statuses(call, any_done) }
}

unsafe fn get_status_some(call: &mut Call<'_>) -> c_int {
    // SAFETY: by the call.
    unsafe { get_statuses(call, some_done) }
}

unsafe fn free(call: &mut Call<'_>) -> c_int {
    // SAFETY: a request by reference.
    unsafe {
        if requests::free(call.args.request(0, 0)) {
            return call.forward();
        }
        call.args.clear_request(0);
    }
    0
}

unsafe fn start_each(call: &mut Call<'_>, at: usize, count: usize) -> c_int {
    let mut begun = Vec::new();
    for n in 0..count {
        // SAFETY: so many requests, and the program's buffers are valid.
        let (request, started) = unsafe {
            let request = call.args.request(at, n);
            (request, requests::start(request))
        };
        match started {
            Ok(true) => begun.push(request),
            Ok(false) => {}
            Err(failure) => {
                begun.into_iter().for_each(requests::not_started);
                // SAFETY: a valid communicator.
                return unsafe { raise(call.library, Target::Comm(call.args.abi.handles.world), failure) };
            }
        }
    }
    // SAFETY: the arguments of the call.
    let code = unsafe { call.forward() };
    // Of several some may be under way.
    if code != 0 && count == 1 {
        begun.into_iter().for_each(requests::not_started);
    }
    code
}

unsafe fn start(call: &mut Call<'_>) -> c_int {
    // SAFETY: one request.
    unsafe { start_each(call, 0, 1) }
}

unsafe fn start_all(call: &mut Call<'_>) -> c_int {
    // SAFETY: as many requests as the first argument says.
    unsafe { start_each(call, 1, count(call)) }
}

/// MPI_Pready and its like: the partitions that are ready are copied again.
unsafe fn ready(call: &mut Call<'_>, at: usize) -> c_int {
    // SAFETY: a request by value.
    let request = unsafe { call.args.request_by_value(at) };
    // SAFETY: the program's buffer is valid.
    if let Err(failure) = unsafe { requests::start(request) } {
        // SAFETY: a valid communicator.
        return unsafe { raise(call.library, Target::Comm(call.args.abi.handles.world), failure) };
    }
    // SAFETY: the arguments of the call.
    unsafe { call.forward() }
}

unsafe fn one_ready(call: &mut Call<'_>) -> c_int {
    // SAFETY: the request is the second argument.
    unsafe { ready(call, 1) }
}

unsafe fn several_ready(call: &mut Call<'_>) -> c_int {
    // SAFETY: the request is the third argument.
    unsafe { ready(call, 2) }
}

/// MPI_Parrived: what has arrived goes to the device.
unsafe fn arrived(call: &mut Call<'_>) -> c_int {
    // SAFETY: a request by value, and a flag.
    unsafe {
        let request = call.args.request_by_value(0);
        let code = call.forward();
        if code == 0 && call.args.written(2, 0) != 0 {
            if let Err(failure) = requests::copy_arrived(request) {
                return raise(call.library, Target::Comm(call.args.abi.handles.world), failure);
            }
        }
        code
    }
}

hooks! {
    MPI_Wait [mpi_wait_, ompi_wait_f] (a b) !is_empty() => wait;
    MPI_Test [mpi_test_, ompi_test_f] (a b c) !is_empty() => test;
    MPI_Waitall [mpi_waitall_, ompi_waitall_f] (a b c) !is_empty() => wait_all;
    MPI_Testall [mpi_testall_, ompi_testall_f] (a b c d) !is_empty() => test_all;
    MPI_Waitany [mpi_waitany_, ompi_waitany_f] (a b c d) !is_empty() => wait_any;
    MPI_Testany [mpi_testany_, ompi_testany_f] (a b c d e) !is_empty() => test_any;
    MPI_Waitsome [mpi_waitsome_, ompi_waitsome_f] (a b c d e) !is_empty() => some;
    MPI_Testsome [mpi_testsome_, ompi_testsome_f] (a b c d e) !is_empty() => some;
    MPI_Request_get_status [mpi_request_get_status_, ompi_request_get_status_f] (a b c) !is_empty() => get_status;
    MPI_Request_get_status_all [] (a b c d) !is_empty() => get_status_all;
    MPI_Request_get_status_any [] (a b c d e) !is_empty() => get_status_any;
    MPI_Request_get_status_some [] (a b c d e) !is_empty() => get_status_some;
    MPI_Request_free [mpi_request_free_, ompi_request_free_f] (a) !is_empty() => free;
    MPI_Start [mpi_start_, ompi_start_f] (a) !is_empty() => start;
    MPI_Startall [mpi_startall_, ompi_startall_f] (a b) !is_empty() => start_all;
    MPI_Pready [mpi_pready_, ompi_pready_f] (a b) !is_empty() => one_ready;
    MPI_Pready_range [mpi_pready_range_, ompi_pready_range_f] (a b c) !is_empty() => several_ready;
    MPI_Pready_list [mpi_pready_list_, ompi_pready_list_f] (a b c) !is_empty() => several_ready;
    MPI_Parrived [mpi_parrived_, ompi_parrived_f] (a b c) !is_empty() => arrived;
}
