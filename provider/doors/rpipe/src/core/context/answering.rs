//! Control messages of peers, and what they change.

use super::early::Early;
use super::end::End;
use super::kept::Kept;
use super::ready::Met;
use super::setup::Setup;
use crate::core::control::{Control, Key, Manner, Reason, Shape, mismatch};
use crate::core::stream::Mode;
use crate::{Error, Grant, Rank, RemoteId};

/// The parts that take part in an answer.
#[derive(Debug)]
pub(super) struct Answers<'a> {
    pub(super) setup: Setup<'a>,
    pub(super) early: &'a mut Early,
    pub(super) kept: &'a mut Kept,
}

impl Answers<'_> {
    /// A message of a peer; one of a stream that is not between the peer and this process is ignored.
    pub(super) fn hear(&mut self, from: Rank, bytes: &[u8], grants: Vec<Grant>) {
        let me = self.setup.net.rank();
        match Control::decode(bytes) {
            Some((key, control)) if [(from, me), (me, from)].contains(&(key.writer, key.reader)) => {
                self.take(key, control, grants);
            }
            _ => {
                log::warn!("rpipe: a control message of rank {from} makes no sense and is ignored");
                self.setup.net.forget(grants);
            }
        }
    }

    /// What a peer has sent of a stream whose end is open now.
    pub(super) fn take_early(&mut self, peer: Rank, key: Key) {
        for (control, grants) in self.early.take(peer, &key) {
            self.take(key, control, grants);
        }
    }

    fn take(&mut self, key: Key, control: Control, grants: Vec<Grant>) {
        let Some(no) = self.setup.ends.number(&key) else { return self.take_unopened(key, control, grants) };
        let granted: Vec<RemoteId> = grants.iter().map(|grant| grant.remote).collect();
        if let Err(fault) = self.answer(no, control, grants) {
            log::warn!("rpipe: the pipe between ranks {} and {}: {fault}", key.writer, key.reader);
            let ends = &mut *self.setup.ends;
            let reason = match &fault {
                Error::Broken(_) => Reason::Protocol,
                Error::Invalid(_) => Reason::Mismatch,
                _ if ends.get(no).is_some_and(|stream| stream.is_on_device()) => Reason::NoHeap,
                _ => Reason::Failed,
            };
            let _ = ends.say(self.setup.net, no, &Control::Close(reason), false);
            ends.fail(no, &fault);
            // The end may not have kept them.
            granted.into_iter().for_each(|remote| self.setup.net.backend().forget(remote));
        }
    }

    /// A message of a stream whose end is not opened here yet; or was closed.
    fn take_unopened(&mut self, key: Key, control: Control, grants: Vec<Grant>) {
        let Setup { net, ends, .. } = &mut self.setup;
        if matches!(control, Control::Close(_)) {
            self.kept.unwanted(net.backend(), |of| *of == key);
        }
        let peer = if key.writer == net.rank() { key.reader } else { key.writer };
        if ends.was_opened(&key) {
            // The peer is sent `Close`, once, for what it sets up.
            let is_asking = matches!(control, Control::Hello | Control::Reader { .. });
            if is_asking && self.kept.refuse(key) {
                let _ = net.backend().send(peer, &Control::Close(Reason::Done).encode(&key), &[]);
            }
            return net.forget(grants);
        }
        if let Err(grants) = self.early.keep(peer, key, (control, grants)) {
            net.forget(grants);
        }
    }

    fn answer(&mut self, no: u32, control: Control, mut grants: Vec<Grant>) -> Result<(), Error> {
        let Some(stream) = self.setup.ends.get_mut(no) else { return Ok(()) };
        let (end, again) = (stream.end(), stream.has_met());
        if let (Some(fault), false, false) =
            (stream.fault(), stream.has_said(), matches!(control, Control::Close(_)))
        {
            // It could not begin, by a call of its own, before the peer's end was there to get `Close`.
            return Err(fault.clone());
        }
        match (control, end) {
            (Control::Close(reason), _) => {
                stream.close(reason);
                Ok(())
            }
            (Control::Hello, End::Reader { .. }) => self.setup.begin(no),
            (Control::Reader { shape, no: name, fences }, End::Writer { .. }) if !again => {
                let none = || Error::Broken("the reader's heap was not granted".into());
                if shape.is_on_device() && !stream.regions().take_device(grants.pop(), shape) {
                    return Err(none());
                }
                let grant = grants.pop().filter(|grant| grant.len >= shape.region()).ok_or_else(none)?;
                self.setup.as_writer(no, shape, name, fences, grant)
            }
            (Control::Writer { width, manner }, End::Reader { shape, .. }) if !again => {
                self.as_reader(no, shape, width, manner, grants.pop())
            }
            _ => Err(Error::Broken("a control message came that no such end sends".into())),
        }
    }

    /// The reader has had a message from its writer.
    fn as_reader(
        &mut self,
        no: u32,
        shape: Shape,
        width: u64,
        manner: Manner,
        grant: Option<Grant>,
    ) -> Result<(), Error> {
        if width != shape.width {
            return Err(mismatch(shape.width, width));
        }
        let needed = shape.writer_region(manner.pull && manner.mode != Mode::Store);
        let grant = grant.filter(|grant| grant.len >= needed);
        let grant = grant.ok_or_else(|| Error::Broken("the writer's state was not granted".into()))?;
        if manner.mode == Mode::Store && grant.mapped.is_none() {
            return Err(Error::Broken("the writer stores, and its memory is not mapped here".into()));
        }
        let (fences, mode_why) = (self.setup.fences, "the writer chose it".into());
        let Some(stream) = self.setup.ends.get_mut(no) else { return Ok(()) };
        stream.regions().set_theirs(grant);
        stream.meet(Met { shape, manner, mode_why, no: no as u16, fences });
        Ok(())
    }
}
