//! The copies of an interface that are in flight, and the reader slots of the memory that they access.

use std::fmt::Arguments;

use hmem::share::{Owner, Plan};
use ucx_sys::{self as ucx, Completion, Status};
use xfer::DeviceCopies;

use super::key::Rkey;
use crate::md::readers::{Held, NoReader, Readers};
use crate::md::region::regions;

/// A copy: its endpoint, and its completion.
#[derive(Debug)]
pub(super) struct Copy<E> {
    pub(super) ep: *mut E,
    pub(super) comp: *mut Completion,
    /// Where the memory may be taken back.
    held: Option<Held>,
}

/// All copies of an interface, whose endpoints are `E`.
#[derive(Debug)]
pub(super) struct Copies<E> {
    in_flight: DeviceCopies<Copy<E>>,
    readers: Readers<Owner>,
    /// The log has a line of a copy that failed.
    warned: bool,
}

impl<E> Copies<E> {
    pub(super) fn new() -> Copies<E> {
        Copies { in_flight: DeviceCopies::new(), readers: Readers::new(), warned: false }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Starts a copy of an endpoint, whose peer is `of`, from or to memory of this key.
    pub(super) fn start(
        &mut self,
        (ep, of): (*mut E, Owner),
        comp: *mut Completion,
        key: &Rkey,
        plan: Plan<'_>,
    ) -> Result<(), Status> {
        let held = self.announce(key)?;
        match plan.start() {
            Ok(copy) => {
                self.in_flight.add(Copy { ep, comp, held }, copy);
                Ok(())
            }
            Err(why) => {
                if let Some(held) = held {
                    self.readers.leave(held);
                }
                Err(self.failed(of, format_args!("the device does not copy: {why}")))
            }
        }
    }

    /// A reader slot for an access by this key, if one is needed.
    fn announce(&mut self, key: &Rkey) -> Result<Option<Held>, Status> {
        let Some((board, slot, table)) = &key.guard else { return Ok(None) };
        loop {
            match self.readers.enter((*board, table), *slot, key.owner) {
                Ok(held) => return Ok(Some(held)),
                Err(NoReader::Gone) => return Err(ucx::UCS_ERR_CANCELED),
                Err(NoReader::Full) => {}
            }
            // The next that comes free is one of our own.
            let mut one = false;
            self.in_flight.wait(|copy| {
                !one && {
                    one = copy.held.is_some();
                    one
                }
            });
            let Some(held) = self.take_held(|_| true) else {
                log::warn!("no reader slot is free on a peer's board");
                return Err(ucx::UCS_ERR_IO_ERROR);
            };
            self.readers.leave(held);
        }
    }

    /// The reader slot of one of these copies that has one.
    fn take_held(&mut self, which: impl Fn(&Copy<E>) -> bool) -> Option<Held> {
        self.in_flight.find(|copy| copy.held.is_some() && which(copy)).and_then(|copy| copy.held.take())
    }

    /// Waits for the copies of an endpoint.
    pub(super) fn wait_for(&mut self, ep: *const E) {
        self.in_flight.wait(|copy| std::ptr::eq(copy.ep, ep));
    }

    /// An endpoint ends: its copies end first, and none of them completes.
    pub(super) fn cancel(&mut self, ep: *const E) {
        self.wait_for(ep);
        while let Some(held) = self.take_held(|copy| std::ptr::eq(copy.ep, ep)) {
            self.readers.leave(held);
        }
        self.in_flight.cancel(|copy| std::ptr::eq(copy.ep, ep));
    }

    /// Memory of this process's is accessed no more.
    pub(super) fn end_readers(&mut self, owner: Owner) {
        // Without regions there is no board of a peer's either.
        if let Ok(regions) = regions() {
            self.readers.ended(owner, &regions.windows);
        }
    }

    /// A copy that is over, and how it ended.
    pub(super) fn next(&mut self) -> Option<(Copy<E>, Status)> {
        let over = self.in_flight.over().map(|copy| (copy, true));
        let (mut copy, good) = over.or_else(|| self.in_flight.poll("device memory"))?;
        if let Some(held) = copy.held.take() {
            self.readers.leave(held);
        }
        let status = if good { ucx::UCS_OK } else { ucx::UCS_ERR_IO_ERROR };
        Some((copy, status))
    }

    /// Logs, the first time, why a copy cannot be done. Returns the status for UCX.
    #[cold]
    pub(super) fn failed(&mut self, of: Owner, why: Arguments<'_>) -> Status {
        let gone = Owner::now(of.pid) != of;
        if gone {
            log::debug!("pid {} is gone", of.pid);
            return ucx::UCS_ERR_CONNECTION_RESET;
        }
        if !std::mem::replace(&mut self.warned, true) {
            log::warn!("pid {}: {why}", of.pid);
        }
        ucx::UCS_ERR_IO_ERROR
    }
}
