//! Messages of device memory between the ranks of a communicator, in one of this library's with the same
//! ranks: no receive of the program's takes them.

use core::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use device_ops::collective::Message;

use crate::abi::{Abi, Handle};
use crate::library::{Function, pmpi};

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

/// What is said of a device's.
pub(super) const FAILED: &str =
    "a rank's device did not do its part of a collective: did an earlier kernel fail?";

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
    pub(super) unsafe fn new(comm: Handle, rank: usize) -> Option<Messages> {
        let mut own: Handle = 0;
        // SAFETY: a valid place; the caller's promise. MPI_Comm_dup would call the program's functions for
        // attributes.
        unsafe { pmpi!("Comm_split", comm, 0, rank, &raw mut own) }.ok()?;
        Some(Messages(own))
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

    /// Sends and receives all of these, and returns when they are complete; in `Err`, the MPI's code.
    ///
    /// # Safety
    /// The MPI's transport takes device memory, and what the messages name is valid.
    pub(super) unsafe fn exchange(
        &self,
        abi: &Abi,
        sends: &[Message],
        receives: &[Message],
    ) -> Result<(), c_int> {
        let mut requests = Vec::new();
        // SAFETY: the caller's promise.
        unsafe { self.begin(abi, sends, receives, TAG, &mut requests) }?;
        // SAFETY: as many requests.
        unsafe { pmpi!("Waitall", requests.len(), requests.as_mut_ptr(), abi.status_ignore) }
    }

    /// Begins to send and receive all of these, by messages with that tag, with requests of the MPI's.
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
        requests.resize(sends.len() + receives.len(), 0);
        let first = requests.as_mut_ptr() as usize;
        let byte = abi.handles.byte;
        for (n, message) in receives.iter().chain(&sends).enumerate() {
            let (Message { rank, at, len }, request) = (*message, first + n * abi.handle);
            // SAFETY: the caller's promise, and a place for the request's handle.
            unsafe {
                if n < receives.len() {
                    pmpi!("Irecv", at, len, byte, rank, tag, self.0, request)?;
                } else {
                    pmpi!("Isend", at, len, byte, rank, tag, self.0, request)?;
                }
            }
        }
        Ok(())
    }
}

/// Sets those of these requests to MPI_REQUEST_NULL that have completed, in one call: each may have the MPI
/// progress, and yield.
///
/// # Safety
/// They are requests of this library's.
pub(super) unsafe fn test_some(abi: &Abi, requests: &mut [u64]) -> Result<(), c_int> {
    let (mut indices, mut found): (Vec<c_int>, c_int) = (vec![0; requests.len()], 0);
    let (all, places) = (requests.as_mut_ptr(), indices.as_mut_ptr());
    // SAFETY: as many requests, and valid places.
    unsafe { pmpi!("Testsome", requests.len(), all, &raw mut found, places, abi.status_ignore) }
}

/// Whether all of these have completed; in `Err`, the code of one that has failed.
///
/// # Safety
/// As for [`test_some`].
pub(super) unsafe fn test_all(abi: &Abi, requests: &mut [u64]) -> Result<bool, c_int> {
    let mut flag: c_int = 0;
    // SAFETY: as many requests, and a valid place.
    unsafe { pmpi!("Testall", requests.len(), requests.as_mut_ptr(), &raw mut flag, abi.status_ignore) }?;
    Ok(flag != 0)
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
