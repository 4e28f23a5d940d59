//! The ends of this process, by their numbers and keys.

use std::collections::HashMap;

use super::end::{End, Stream, peer_of};
use super::net::Net;
use crate::core::control::{Class, Control, Key, Reason, closed};
use crate::core::forked;
use crate::{Error, Rank};

/// So many ends may be opened before one has a number that another one had.
const ENTERED: u32 = 1 << 15;

/// The place of the end of this number.
fn place(no: u32) -> usize {
    usize::from(no as u16)
}

#[derive(Debug, Default)]
pub(super) struct Ends {
    places: Vec<Option<Stream>>,
    /// Ends that were opened, modulo `ENTERED`.
    entered: u32,
    keys: HashMap<Key, u32>,
    ordinals: HashMap<(Class, Rank, Rank), u32>,
    /// Places of ends that were closed with operations under way: what comes of these is no other end's.
    spent: Vec<u32>,
}

impl Ends {
    /// The next stream of this kind between two ranks.
    pub(super) fn next_key(&mut self, class: Class, writer: Rank, reader: Rank) -> Key {
        let ordinal = self.ordinals.entry((class, writer, reader)).or_insert(0);
        *ordinal += 1;
        Key { class, writer, reader, ordinal: *ordinal - 1 }
    }

    /// Whether this process has opened its end of that stream, or had.
    pub(super) fn was_opened(&self, key: &Key) -> bool {
        let ordinals = self.ordinals.get(&(key.class, key.writer, key.reader));
        key.ordinal < ordinals.copied().unwrap_or(0)
    }

    /// Enters an end; its number.
    pub(super) fn enter(&mut self, key: Key, end: End, net: &Net) -> Result<u32, Error> {
        net.check_rank(peer_of(&key, &end))?;
        let free = self.free_place();
        let at = free.unwrap_or(self.places.len());
        if at >= usize::from(u16::MAX) {
            return Err(Error::Exhausted("there are 65535 open ends already; close some".into()));
        }
        self.entered = (self.entered + 1) % ENTERED;
        let no = self.entered << 16 | at as u32;
        let stream = Some(Stream::new(no, key, end));
        match free {
            Some(at) => self.places[at] = stream,
            None => self.places.push(stream),
        }
        self.keys.insert(key, no);
        Ok(no)
    }

    /// A place of an end that is closed, with nothing of it to come.
    fn free_place(&self) -> Option<usize> {
        let is_free = |at: usize| self.places[at].is_none() && !self.spent.contains(&(at as u32));
        (0..self.places.len()).find(|at| is_free(*at))
    }

    /// The end of this number, if it is open.
    pub(super) fn get(&self, no: u32) -> Option<&Stream> {
        self.places.get(place(no))?.as_ref().filter(|stream| stream.no() == no)
    }

    pub(super) fn get_mut(&mut self, no: u32) -> Option<&mut Stream> {
        self.places.get_mut(place(no))?.as_mut().filter(|stream| stream.no() == no)
    }

    /// The number of the end of a stream.
    pub(super) fn number(&self, key: &Key) -> Option<u32> {
        self.keys.get(key).copied()
    }

    /// Takes an end out.
    pub(super) fn remove(&mut self, no: u32) -> Option<Stream> {
        let stream = self.places.get_mut(place(no))?.take_if(|stream| stream.no() == no)?;
        self.keys.remove(&stream.key());
        Some(stream)
    }

    /// The place of this number is not used again.
    pub(super) fn spend(&mut self, no: u32) {
        self.spent.push(place(no) as u32);
    }

    /// A peer's put has notified.
    pub(super) fn notify(&mut self, from: Rank, data: u32) {
        let stream = self.places.get_mut((data >> 16) as usize).and_then(Option::as_mut);
        if let Some(stream) = stream.filter(|stream| stream.peer() == from) {
            stream.notify(data as u16);
        }
    }

    /// Sends a message of an end to its peer.
    pub(super) fn say(
        &mut self,
        net: &mut Net,
        no: u32,
        control: &Control,
        grant: bool,
    ) -> Result<(), Error> {
        forked::check()?;
        let Some(stream) = self.get_mut(no) else { return Ok(()) };
        let (peer, (bytes, grants)) = (stream.peer(), stream.say(control, grant));
        match net.meet(peer) {
            // Close can still go by the connection that the peer has made to this process.
            Err(_) if matches!(control, Control::Close(_)) => {}
            other => other?,
        }
        net.backend().send(peer, &bytes, &grants)
    }

    /// The end has failed, if its peer may wait for it: each of its calls returns that.
    pub(super) fn fail_if_said(&mut self, no: u32, fault: &Error) {
        if let Some(stream) = self.get_mut(no).filter(|stream| stream.has_said()) {
            stream.fail(fault);
        }
    }

    /// The end has failed.
    pub(super) fn fail(&mut self, no: u32, fault: &Error) {
        if let Some(stream) = self.get_mut(no) {
            stream.fail(fault);
        }
    }

    /// The peer of an end, if the end is open and the peer has ended.
    pub(super) fn is_gone(&self, net: &Net, no: u32) -> bool {
        self.get(no).is_some_and(|stream| net.is_gone(stream.peer()))
    }

    /// An error if nothing comes from the peer any more.
    pub(super) fn still_there(&self, net: &Net, no: u32) -> Result<(), Error> {
        let Some(stream) = self.get(no) else { return Err(Error::Invalid("the pipe is closed".into())) };
        if let Some(fault) = stream.fault() {
            return Err(fault.clone());
        }
        match (stream.closed(), net.gone_error(stream.peer())) {
            (Some(reason), None) => Err(closed(reason, "HD_PIPE or FD_PIPE")),
            (Some(reason @ (Reason::Mismatch | Reason::Protocol)), _) => {
                Err(closed(reason, "HD_PIPE or FD_PIPE"))
            }
            (_, Some(gone)) => Err(gone),
            (None, None) => Ok(()),
        }
    }

    /// An error if operations on the peer's memory end in nothing: it is gone. One that has closed its end
    /// ends them itself.
    pub(super) fn can_reach(&self, net: &Net, no: u32) -> Result<(), Error> {
        let stream = self.get(no);
        let closed = stream.is_some_and(|stream| stream.closed() == Some(Reason::Done));
        let gone = stream.is_some_and(|stream| stream.fault().is_some()) || self.is_gone(net, no);
        if closed && !gone { Ok(()) } else { self.still_there(net, no) }
    }
}
