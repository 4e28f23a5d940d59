//! Control messages of peers, and what they change.

use super::{EARLY_MOST, End, Inner, Met};
use crate::core::control::{Control, Key, Reason, mismatch};
use crate::core::stream::Mode;
use crate::{Error, Grant, Rank};

impl Inner {
    /// A stream between the sender and this process.
    pub(super) fn concerns(&self, from: Rank, key: &Key) -> bool {
        let (a, b) = (key.writer, key.reader);
        (a, b) == (from, self.rank) || (b, a) == (from, self.rank)
    }

    pub(super) fn take_control(&mut self, key: Key, control: Control, grants: Vec<Grant>) {
        let Some(no) = self.keys.get(&key).copied() else {
            if matches!(control, Control::Close(_)) {
                self.unwanted(|of| *of == key);
            }
            // Its end is not opened here yet; or it was closed.
            let opened = self.ordinals.get(&(key.class, key.writer, key.reader)).copied().unwrap_or(0);
            if key.ordinal < opened {
                self.is_late(key, &control);
            }
            let peer = if key.writer == self.rank { key.reader } else { key.writer };
            let count = self.early_of.entry(peer).or_insert(0);
            let is_first = !self.early.contains_key(&key);
            if key.ordinal < opened || is_first && *count >= EARLY_MOST {
                return self.forget(grants);
            }
            *count += usize::from(is_first);
            let list = self.early.entry(key).or_default();
            if list.len() < 4 {
                return list.push((control, grants));
            }
            return self.forget(grants);
        };
        if let Err(fault) = self.answer(no, control, grants) {
            log::warn!("rpipe: the pipe between ranks {} and {}: {fault}", key.writer, key.reader);
            let reason = match &fault {
                Error::Broken(_) => Reason::Protocol,
                Error::Invalid(_) => Reason::Mismatch,
                _ if self.is_on_device(no) => Reason::NoHeap,
                _ => Reason::Failed,
            };
            let _ = self.say(no, &Control::Close(reason), false);
            if let Some(stream) = self.stream(no) {
                stream.fault.get_or_insert(fault);
            }
        }
    }

    fn answer(&mut self, no: u32, control: Control, mut grants: Vec<Grant>) -> Result<(), Error> {
        let Some(stream) = self.stream(no) else { return Ok(()) };
        let (end, again) = (stream.end, stream.met.is_some());
        if let (Some(fault), false, false) =
            (&stream.fault, stream.said, matches!(control, Control::Close(_)))
        {
            // It could not begin, by a call of its own, before the peer's was there to be told.
            return Err(fault.clone());
        }
        match (control, end) {
            (Control::Close(reason), _) => {
                stream.closed.get_or_insert(reason);
                Ok(())
            }
            (Control::Hello, End::Reader { .. }) => self.begin(no),
            (Control::Reader { shape, no: name, fences }, End::Writer { .. }) if !again => {
                let none = || Error::Broken("the reader's heap was not granted".into());
                if shape.is_on_device() {
                    let device = grants.pop().and_then(|grant| grant.device);
                    stream.their_device = device.filter(|heap| heap.len() >= shape.device_region());
                    stream.their_device.as_ref().ok_or_else(none)?;
                }
                let grant = grants.pop().filter(|grant| grant.len >= shape.region()).ok_or_else(none)?;
                self.as_writer(no, shape, name, fences, grant)
            }
            (Control::Writer { width, manner }, End::Reader { shape, .. }) if !again => {
                if width != shape.width {
                    return Err(mismatch(shape.width, width));
                }
                let needed = shape.writer_region(manner.pull && manner.mode != Mode::Store);
                let grant = grants.pop().filter(|grant| grant.len >= needed);
                let grant =
                    grant.ok_or_else(|| Error::Broken("the writer's state was not granted".into()))?;
                if manner.mode == Mode::Store && grant.mapped.is_none() {
                    return Err(Error::Broken("the writer stores, and its memory is not mapped here".into()));
                }
                let fences = self.fences;
                let Some(stream) = self.stream(no) else { return Ok(()) };
                stream.theirs = Some(grant);
                stream.met = Some(Met {
                    shape,
                    manner,
                    mode_why: "the writer chose it".into(),
                    no: no as u16,
                    fences,
                });
                Ok(())
            }
            _ => Err(Error::Broken("a control message came that no such end sends".into())),
        }
    }
}
