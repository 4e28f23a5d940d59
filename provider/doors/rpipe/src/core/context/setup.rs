//! How an end is set up: the reader's with its memory, the writer's with what the reader has said.

use std::time::Duration;

use super::end::End;
use super::ends::Ends;
use super::net::Net;
use super::ready::Met;
use crate::core::backend::NO_DEVICES;
use crate::core::control::{Control, Manner, Shape, mismatch};
use crate::core::stream::Mode;
use crate::{Error, Grant};

/// For how long a peer may take to publish its card.
const MEET: Duration = Duration::from_secs(60);

/// The parts that take part in setting an end up.
#[derive(Debug)]
pub(super) struct Setup<'a> {
    pub(super) net: &'a mut Net,
    pub(super) ends: &'a mut Ends,
    /// This process uses membarrier(2).
    pub(super) fences: bool,
}

impl Setup<'_> {
    /// Begins to set a stream up, once: now, or with a later call if the peer is not in the job yet.
    pub(super) fn begin(&mut self, no: u32) -> Result<(), Error> {
        let Some(stream) = self.ends.get_mut(no) else { return Ok(()) };
        let Some(since) = stream.due_since() else { return Ok(()) };
        let (end, peer) = (stream.end(), stream.peer());
        let fault = match self.net.meet(peer) {
            Ok(()) => {
                let begun = match end {
                    End::Writer { .. } => self.ends.say(self.net, no, &Control::Hello, false),
                    End::Reader { shape, device } => self.begin_to_read(no, shape, device),
                };
                // The message is sent once; the next call fails with the same error.
                return begun.inspect_err(|fault| self.ends.fail_if_said(no, fault));
            }
            Err(Error::Again) if since.elapsed() < MEET => return Ok(()),
            Err(Error::Again) => {
                Error::Gone(format!("rank {peer} has not begun within {} s", MEET.as_secs()))
            }
            Err(fault) => fault,
        };
        self.ends.fail(no, &fault);
        Err(fault)
    }

    /// Makes a reader's slots and heap, and sends the writer what they are like.
    fn begin_to_read(&mut self, no: u32, shape: Shape, device: Option<i32>) -> Result<(), Error> {
        let exposed = match self.ends.get_mut(no) {
            Some(stream) => stream.regions().expose_heap(self.net.backend(), shape, device),
            None => Ok(()),
        };
        let message = Control::Reader { shape, no: no as u16, fences: self.fences };
        let begun = exposed.and_then(|()| self.ends.say(self.net, no, &message, true));
        if begun.is_err() && device.is_some() {
            self.unmake_heap(no);
        }
        begun
    }

    /// The writer has had a message from its reader.
    pub(super) fn as_writer(
        &mut self,
        no: u32,
        shape: Shape,
        name: u16,
        fences: bool,
        grant: Grant,
    ) -> Result<(), Error> {
        let Some(stream) = self.ends.get_mut(no) else { return Ok(()) };
        let End::Writer { width, asked, sync, pull } = stream.end() else { return Ok(()) };
        if width != shape.width {
            return Err(mismatch(width, shape.width));
        }
        let mut promise = self.net.promise(stream.peer());
        promise.mapped &= grant.mapped.is_some();
        let (mode, mode_why) = Mode::choose(&promise, asked)?;
        if shape.is_on_device() && mode != Mode::Store {
            return Err(Error::Unsupported(format!("{NO_DEVICES}; and for the flag mode store, not {mode}")));
        }
        // What is mapped is read where it is.
        let manner = Manner { mode, sync, pull: pull && mode != Mode::Store };
        let region = self.net.backend().expose(shape.writer_region(mode != Mode::Store))?;
        stream.regions().set_writer(region, grant);
        stream.meet(Met { shape, manner, mode_why, no: name, fences });
        self.ends.say(self.net, no, &Control::Writer { width, manner }, true)
    }

    /// What was made for a reader that cannot begin: the next call, or the writer's hello, tries again, and
    /// gets the error.
    fn unmake_heap(&mut self, no: u32) {
        let Some(stream) = self.ends.get_mut(no) else { return };
        stream.unsay();
        for region in stream.regions().unmake() {
            let _ = self.net.backend().withdraw(region);
        }
    }
}
