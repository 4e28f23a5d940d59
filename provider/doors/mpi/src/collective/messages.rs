//! Messages of device memory between the ranks of a communicator, in one of this library's with the same
//! ranks: no receive of the program's takes them.

use core::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use device_ops::collective::Message;

use crate::abi::{Abi, Handle};
use crate::args::Statuses;
use crate::library::{Function, Library, object, pmpi};

const TAG: c_int = 1;
/// The most bytes of one message: a count of MPI's is an `int`.
const LONGEST: u64 = 1 << 30;

/// The messages, those that are too long in parts.
fn parts(messages: &[Message]) -> impl Iterator<Item = Message> + '_ {
    messages.iter().flat_map(|Message { rank, at, len }| {
        let begins = (0..*len).step_by(LONGEST as usize);
        begins.map(move |begin| Message { rank: *rank, at: at + begin, len: (len - begin).min(LONGEST) })
    })
}

/// Whether MPI_Finalize has begun.
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// No communicator is freed by this library any more.
pub(super) fn finish() {
    IS_OVER.store(true, Relaxed);
}

/// What is said where another rank has failed.
pub(super) const FAILED: &str = "a rank did not do its part of a collective on its device: did an earlier kernel fail, \
                                 or a message of the collective?";

/// Where a status of Open MPI's has the error, in numbers of `int`.
pub(super) const ERROR: usize = 2;

/// Why a collective has failed.
#[derive(Debug)]
pub(super) enum Failed {
    /// The MPI has answered a message of it with this code.
    Code(c_int),
    /// The device of this rank, or another one, has refused its part.
    Device,
}

/// A communicator of this library's. It is freed on drop: the program frees its own then, at all ranks.
#[derive(Debug)]
pub(super) struct Messages(Handle);

impl Messages {
    /// With the ranks of `comm`; `None` where the MPI has refused it.
    ///
    /// # Safety
    /// `comm` is a communicator, and all ranks do the same.
    pub(super) unsafe fn new(library: &Library, comm: Handle, rank: usize) -> Option<Messages> {
        let mut own: Handle = 0;
        // SAFETY: a valid place; the caller's promise. MPI_Comm_dup would call the program's functions for
        // attributes.
        unsafe { pmpi!("Comm_split", comm, 0, rank, &raw mut own) }.ok()?;
        let own = Messages(own);
        set_quiet(library, own.0);
        Some(own)
    }

    /// The communicator.
    pub(super) fn comm(&self) -> Handle {
        self.0
    }

    /// Its number in Fortran.
    pub(super) fn number(&self) -> c_int {
        static CONVERT: Function = Function::new(c"PMPI_Comm_c2f");
        // SAFETY: a communicator that was made here.
        unsafe { CONVERT.call(&[self.0]) }
    }

    /// Sends and receives all of these, and returns when they are complete; in `Err`, the MPI's code of the
    /// first one that failed. Others are under way then only where `is_over` says that no more will come.
    ///
    /// # Safety
    /// The MPI's transport takes device memory, and what the messages name is valid.
    pub(super) unsafe fn exchange(
        &self,
        abi: &Abi,
        sends: &[Message],
        receives: &[Message],
        mut is_over: impl FnMut() -> bool,
    ) -> Result<(), c_int> {
        let mut requests = Vec::new();
        // SAFETY: the caller's promise.
        let begun = unsafe { self.begin(abi, sends, receives, TAG, &mut requests) };
        let mut statuses = Statuses::new(abi, requests.len());
        // SAFETY: as many requests, and as many statuses.
        let waited = unsafe { pmpi!("Waitall", requests.len(), requests.as_mut_ptr(), statuses.at()) };
        // Open MPI returns when one has failed.
        let done = begun.and(waited.map_err(|code| {
            let is_over = |n: &usize| requests[*n] == abi.handles.request_null as u64;
            // SAFETY: as many statuses as requests.
            let code_of = |n| unsafe { error_of(abi, &mut statuses, n) };
            let mut codes = (0..requests.len()).filter(is_over).map(code_of);
            codes.find(|code| *code != 0).unwrap_or(code)
        }));
        while !is_complete(abi, &requests) {
            // SAFETY: requests of this library's.
            unsafe { test_some(abi, &mut requests) };
            if is_over() {
                abandon(abi, requests, receives);
                break;
            }
        }
        done
    }

    /// Begins to send and receive all of these, by messages with that tag, with requests of the MPI's. In
    /// `Err` some may have begun.
    ///
    /// # Safety
    /// As for [`Messages::exchange`], until the requests complete.
    pub(super) unsafe fn begin(
        &self,
        abi: &Abi,
        sends: &[Message],
        receives: &[Message],
        tag: c_int,
        requests: &mut Vec<u64>,
    ) -> Result<(), c_int> {
        let (receives, sends): (Vec<_>, Vec<_>) = (parts(receives).collect(), parts(sends).collect());
        // Handles are as long as numbers here: Open MPI's.
        debug_assert!(abi.handle == size_of::<u64>());
        requests.clear();
        requests.resize(sends.len() + receives.len(), abi.handles.request_null as u64);
        let (byte, mut begun) = (abi.handles.byte, Ok(()));
        for (n, message) in receives.iter().chain(&sends).enumerate() {
            let (Message { rank, at, len }, mut request) = (*message, abi.handles.request_null);
            let place = &raw mut request;
            // SAFETY: the caller's promise, and a place for the request's handle. The others are begun where
            // one was refused, too: each has a counterpart at another rank.
            let one = unsafe {
                if n < receives.len() {
                    pmpi!("Irecv", at, len, byte, rank, tag, self.0, place)
                } else {
                    pmpi!("Isend", at, len, byte, rank, tag, self.0, place)
                }
            };
            if one.is_ok() {
                requests[n] = request as u64;
            }
            begun = begun.and(one);
        }
        begun
    }

    /// Errors of the communicator are answered to its caller until what is returned is dropped, and go to no
    /// handler.
    pub(super) fn quiet(&self, library: &Library) -> Quiet {
        Quiet::of(library, self.0)
    }
}

/// Errors of a communicator are answered to the caller from now on. The handler, 0 where there is none.
fn set_quiet(library: &Library, comm: Handle) -> Handle {
    let handler = object(library, c"ompi_mpi_errors_return");
    if handler != 0 {
        // SAFETY: a communicator, and the handler of Open MPI's of that name.
        let _ = unsafe { pmpi!("Comm_set_errhandler", comm, handler) };
    }
    handler
}

/// The handler of a communicator, to be freed.
fn handler_of(comm: Handle) -> Option<Handle> {
    let mut handler = 0;
    // SAFETY: a valid place, and a communicator.
    unsafe { pmpi!("Comm_get_errhandler", comm, &raw mut handler) }.ok().map(|()| handler)
}

fn free(mut handler: Handle) {
    // SAFETY: of `handler_of`.
    let _ = unsafe { pmpi!("Errhandler_free", &raw mut handler) };
}

/// See [`Messages::quiet`].
#[derive(Debug)]
pub(super) struct Quiet {
    comm: Handle,
    /// The handler before, and the one that is there meanwhile.
    before: Option<Handle>,
    quiet: Handle,
}

impl Quiet {
    pub(super) fn of(library: &Library, comm: Handle) -> Quiet {
        let before = handler_of(comm);
        Quiet { comm, before, quiet: set_quiet(library, comm) }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let Some(before) = self.before else { return };
        let now = handler_of(self.comm);
        // Another thread may have set one.
        if now == Some(self.quiet) {
            // SAFETY: a communicator that stays, and a handler that was got here.
            let _ = unsafe { pmpi!("Comm_set_errhandler", self.comm, before) };
        }
        free(before);
        now.into_iter().for_each(free);
    }
}

/// Whether all of these have completed.
pub(super) fn is_complete(abi: &Abi, requests: &[u64]) -> bool {
    requests.iter().all(|request| *request == abi.handles.request_null as u64)
}

/// Sets those of these requests to MPI_REQUEST_NULL that have completed, in one call: each may have the MPI
/// progress, and yield. Answers which of them have failed, and with what code.
///
/// # Safety
/// They are requests of this library's, of communicators whose errors are answered to the caller.
pub(super) unsafe fn test_some(abi: &Abi, requests: &mut [u64]) -> Vec<(usize, c_int)> {
    let (mut indices, mut found): (Vec<c_int>, c_int) = (vec![0; requests.len()], 0);
    let (all, places) = (requests.as_mut_ptr(), indices.as_mut_ptr());
    let mut statuses = Statuses::new(abi, requests.len());
    let at = statuses.at();
    // SAFETY: as many requests, and valid places.
    let tested = unsafe { pmpi!("Testsome", requests.len(), all, &raw mut found, places, at) };
    if tested.is_ok() {
        return Vec::new();
    }
    let found = usize::try_from(found).unwrap_or(0);
    let all = indices.iter().take(found).enumerate();
    // SAFETY: one for each request that was found.
    let all = all.map(|(n, index)| (*index as usize, unsafe { error_of(abi, &mut statuses, n) }));
    all.filter(|(_, code)| *code != 0).collect()
}

/// The code of a request that has completed, which is freed then; `None` while it is under way. No error
/// handler of the program's is called: Open MPI 4 raises the error of a collective's request for
/// MPI_COMM_WORLD. There the handler is another one for as long as a call takes that finds the request
/// complete; an error that another thread's call raises for MPI_COMM_WORLD meanwhile is returned by that.
///
/// # Safety
/// A request of this library's, of a communicator whose errors are answered to the caller.
pub(super) unsafe fn code_of_completed(library: &Library, request: &mut u64) -> Option<c_int> {
    let (mut flag, ignored): (c_int, _) = (0, library.abi.status_ignore);
    let place = std::ptr::from_mut(request);
    // SAFETY: the caller's promise, and valid places; so below.
    unsafe {
        if pmpi!("Request_get_status", *place as Handle, &raw mut flag, ignored).is_ok() && flag == 0 {
            return None;
        }
    }
    // Sessions came with Open MPI 5.
    let raises = library.address(c"PMPI_Session_init") == 0;
    let _quiet = raises.then(|| Quiet::of(library, library.abi.handles.world));
    // SAFETY: as above.
    let tested = unsafe { pmpi!("Test", place, &raw mut flag, ignored) };
    *request = library.abi.handles.request_null as u64;
    Some(tested.err().unwrap_or(0))
}

/// The code in the status of that number.
///
/// # Safety
/// There are so many.
unsafe fn error_of(abi: &Abi, statuses: &mut Statuses, n: usize) -> c_int {
    let status = (statuses.at() + n * abi.status) as *const c_int;
    // SAFETY: the caller's promise.
    unsafe { status.add(ERROR).read_unaligned() }
}

/// Takes back what is still to be received, and gives up what is still to be sent: some rank is gone. The
/// requests are those of [`Messages::begin`] with these receives.
pub(super) fn abandon(abi: &Abi, requests: Vec<u64>, receives: &[Message]) {
    let receives = parts(receives).count();
    for (n, mut request) in requests.into_iter().enumerate() {
        if is_complete(abi, &[request]) {
            continue;
        }
        let place = &raw mut request;
        // SAFETY: a request of this library's. With that of a send MPI_Cancel of Open MPI 4.1 accesses memory
        // that it has not set.
        unsafe {
            let cancelled = if n < receives { pmpi!("Cancel", place) } else { Ok(()) };
            let _ = cancelled.and_then(|()| pmpi!("Request_free", place));
        }
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        if !IS_OVER.load(Relaxed) {
            // SAFETY: a communicator that was made here.
            let _ = unsafe { pmpi!("Comm_free", &raw mut self.0) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_lengths_that_an_int_has() {
        let all = [Message { rank: 1, at: 64, len: (1 << 31) + 5 }, Message { rank: 2, at: 0, len: 7 }];
        let parts: Vec<_> = parts(&all).map(|Message { rank, at, len }| (rank, at, len)).collect();
        let half = 1u64 << 30;
        assert_eq!(parts, [(1, 64, half), (1, 64 + half, half), (1, 64 + 2 * half, 5), (2, 0, 7)]);
    }
}
