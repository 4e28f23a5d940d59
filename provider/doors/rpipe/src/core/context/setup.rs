//! How an end is set up: the reader's with its memory, the writer's with what the reader has said.

use std::time::Instant;

use super::{End, Inner, MEET, Met, Stream};
use crate::core::backend::NO_DEVICES;
use crate::core::control::{Control, Manner, Shape, mismatch};
use crate::core::stream::Mode;
use crate::{DeviceMemory, Error, Grant};

impl Inner {
    /// Begins to set a stream up, once: now, or with a later call if the peer is not in the job yet.
    pub(crate) fn begin(&mut self, no: u32) -> Result<(), Error> {
        let is_due = |stream: &&mut Stream| !stream.said && stream.fault.is_none();
        let Some(stream) = self.stream(no).filter(is_due) else { return Ok(()) };
        let (end, peer) = (stream.end, stream.peer);
        let since = *stream.since.get_or_insert_with(Instant::now);
        let fault = match self.meet_now(peer) {
            Ok(()) => {
                let begun = match end {
                    End::Writer { .. } => self.say(no, &Control::Hello, false),
                    End::Reader { shape, device } => self.begin_to_read(no, shape, device),
                };
                // The message is sent once; the next call fails with the same error.
                return begun.inspect_err(|fault| self.fail(no, fault));
            }
            Err(Error::Again) if since.elapsed() < MEET => return Ok(()),
            Err(Error::Again) => {
                Error::Gone(format!("rank {peer} has not begun within {} s", MEET.as_secs()))
            }
            Err(fault) => fault,
        };
        if let Some(stream) = self.stream(no) {
            stream.fault = Some(fault.clone());
        }
        Err(fault)
    }

    /// Makes a reader's slots and heap, and tells the writer.
    pub(super) fn begin_to_read(&mut self, no: u32, shape: Shape, device: Option<i32>) -> Result<(), Error> {
        let begun = self.expose_heap(no, shape, device).and_then(|()| {
            let fences = self.fences;
            self.say(no, &Control::Reader { shape, no: no as u16, fences }, true)
        });
        if begun.is_err() && device.is_some() {
            self.unmake_heap(no);
        }
        begun
    }

    fn expose_heap(&mut self, no: u32, shape: Shape, device: Option<i32>) -> Result<(), Error> {
        let region = self.backend.expose(shape.region())?;
        if let Some(stream) = self.stream(no) {
            stream.mine = Some(region);
        }
        if let Some(device) = device {
            let memory = DeviceMemory::new(device, shape.device_region())?;
            if shape.number(0).is_some() {
                memory.clear(0, shape.device_heap_at())?;
            }
            let id = self.backend.expose_device(&memory)?;
            if let Some(stream) = self.stream(no) {
                stream.on_device = Some((id, memory));
            }
        }
        Ok(())
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
        let Some(stream) = self.stream(no) else { return Ok(()) };
        let End::Writer { width, asked, sync, pull } = stream.end else { return Ok(()) };
        let peer = stream.peer;
        if width != shape.width {
            return Err(mismatch(width, shape.width));
        }
        let mut promise = self.backend.promise(peer);
        promise.mapped &= grant.mapped.is_some();
        let (mode, mode_why) = Mode::choose(&promise, asked)?;
        if shape.is_on_device() && mode != Mode::Store {
            return Err(Error::Unsupported(format!("{NO_DEVICES}; and for the flag mode store, not {mode}")));
        }
        // What is mapped is read where it is.
        let manner = Manner { mode, sync, pull: pull && mode != Mode::Store };
        let region = self.backend.expose(shape.writer_region(mode != Mode::Store))?;
        if let Some(stream) = self.stream(no) {
            stream.mine = Some(region);
            stream.theirs = Some(grant);
            stream.met = Some(Met { shape, manner, mode_why, no: name, fences });
        }
        self.say(no, &Control::Writer { width, manner }, true)
    }

    /// What was made for a reader that cannot begin: the next call, or the writer's hello, tries again, and
    /// is told.
    fn unmake_heap(&mut self, no: u32) {
        let Some(stream) = self.stream(no) else { return };
        stream.said = false;
        let device = stream.on_device.take().map(|(id, _)| id);
        let mine = stream.mine.take().map(|region| region.id);
        for region in device.into_iter().chain(mine) {
            let _ = self.backend.withdraw(region);
        }
    }

    /// Whether a device has part in an end.
    pub(super) fn is_on_device(&mut self, no: u32) -> bool {
        self.stream(no).is_some_and(|stream| {
            stream.their_device.is_some() || matches!(stream.end, End::Reader { device: Some(_), .. })
        })
    }
}
