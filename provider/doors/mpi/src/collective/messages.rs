//! Messages of device memory between the ranks of a communicator, in one of this library's with the same
//! ranks: no receive of the program's takes them.

use core::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use device_ops::collective::Message;

use crate::abi::{Abi, Handle};
use crate::library::pmpi;

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
        let (receives, sends): (Vec<_>, Vec<_>) = (parts(receives).collect(), parts(sends).collect());
        let count = sends.len() + receives.len();
        let mut requests = vec![0u64; count];
        let first = requests.as_mut_ptr() as usize;
        let byte = abi.handles.byte;
        for (n, message) in receives.iter().chain(&sends).enumerate() {
            let (Message { rank, at, len }, request) = (*message, first + n * abi.handle);
            // SAFETY: the caller's promise, and a place for the request's handle.
            unsafe {
                if n < receives.len() {
                    pmpi!("Irecv", at, len, byte, rank, TAG, self.0, request)?;
                } else {
                    pmpi!("Isend", at, len, byte, rank, TAG, self.0, request)?;
                }
            }
        }
        // SAFETY: as many requests.
        unsafe { pmpi!("Waitall", count, first, abi.status_ignore) }
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
