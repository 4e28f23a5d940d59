//! What has arrived by either way, and is not polled or not released yet.

use std::collections::VecDeque;

use link_api::{Event, Frame, OpId, PeerId, RmaLink};

use crate::channel::{BEFORE, Came};
use crate::network::Below;
use crate::parts::peers::Peers;

#[cfg(test)]
mod tests;

/// The frame at hand.
#[derive(Debug)]
pub(crate) enum Held {
    /// Of the fabric: the peer, which generation of it, and where it is.
    Fabric(PeerId, u32, Came),
    /// None, but the report of a write of this generation of the peer.
    Written(PeerId, u32),
    /// Of the connection, as that knows it.
    Base(Frame),
}

/// What the next poll returns.
#[derive(Debug)]
enum Out {
    Event(Event),
    /// A frame by the fabric: from which generation of which peer, and where it is.
    Frame(PeerId, u32, Came),
    /// Memory was written with data by this generation of the peer.
    Written(PeerId, u32, (u32, usize)),
    /// One by the connection, which is not polled until it is released.
    Base(Frame),
}

/// The events and frames to be polled, and the frame at hand.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    /// The frame at hand; or, if it waits, the next of all: a frame by the fabric that came while nothing
    /// else was to be polled, and none was at hand.
    held: Option<Held>,
    waits: bool,
    queue: VecDeque<Out>,
    /// A frame of the connection is in `queue`, or held.
    base_busy: bool,
}

impl Inbox {
    /// Whether there is nothing to poll.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        !self.waits && self.queue.is_empty()
    }

    /// All that is to be polled is in the queue from now on.
    fn line_up(&mut self) {
        if !std::mem::take(&mut self.waits) {
            return;
        }
        if let Some(Held::Fabric(from, generation, came)) = self.held.take() {
            self.queue.push_front(Out::Frame(from, generation, came));
        }
    }

    /// The next of all, which is at hand from now on, if one waits there.
    #[inline(always)]
    fn hand_out(&mut self) -> Option<Frame> {
        match &self.held {
            Some(Held::Fabric(from, _, came)) if self.waits => {
                self.waits = false;
                Some(Frame { from: *from, len: came.len() - BEFORE, slot: 0 })
            }
            _ => None,
        }
    }

    /// The frame at hand.
    #[inline]
    pub(crate) fn held(&self) -> Option<&Held> {
        self.held.as_ref().filter(|_| !self.waits)
    }

    /// The frame at hand, which is released.
    #[inline(always)]
    pub(crate) fn take_held(&mut self) -> Option<Held> {
        if self.waits { None } else { self.held.take() }
    }

    /// A frame of the connection is queued or held, so that there is no other one.
    #[inline]
    pub(crate) fn is_base_busy(&self) -> bool {
        self.base_busy
    }

    pub(crate) fn push_event(&mut self, event: Event) {
        self.queue.push_back(Out::Event(event));
    }

    /// A frame by the fabric: from which generation of which peer, and where it is.
    #[inline(always)]
    pub(crate) fn push_frame(&mut self, from: PeerId, generation: u32, came: Came) {
        if self.held.is_none() && self.queue.is_empty() {
            (self.held, self.waits) = (Some(Held::Fabric(from, generation, came)), true);
        } else {
            self.queue.push_back(Out::Frame(from, generation, came));
        }
    }

    /// Memory was written with data by which generation of which peer: the data, and how many bytes.
    pub(crate) fn push_written(&mut self, from: PeerId, generation: u32, what: (u32, usize)) {
        self.queue.push_back(Out::Written(from, generation, what));
    }

    /// A frame by the connection.
    pub(crate) fn push_base(&mut self, frame: Frame) {
        self.base_busy = true;
        self.queue.push_back(Out::Base(frame));
    }

    /// The next event; a frame is at hand then, or the report of a write.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Event> {
        if let Some(frame) = self.hand_out() {
            return Some(Event::Frame(frame));
        }
        Some(match self.queue.pop_front()? {
            Out::Event(event) => event,
            Out::Frame(from, generation, came) => {
                let len = came.len() - BEFORE;
                self.held = Some(Held::Fabric(from, generation, came));
                Event::Frame(Frame { from, len, slot: 0 })
            }
            Out::Written(from, generation, (data, len)) => {
                self.held = Some(Held::Written(from, generation));
                Event::Written(from, data, len)
            }
            Out::Base(frame) => {
                let event = Event::Frame(Frame { from: frame.from, len: frame.len, slot: 0 });
                self.held = Some(Held::Base(frame));
                event
            }
        })
    }

    /// The next event, if it is a frame, which is at hand then.
    #[inline(always)]
    pub(crate) fn next_frame(&mut self) -> Option<Frame> {
        self.hand_out().or_else(|| self.next_queued())
    }

    /// The same of what is in the queue.
    #[inline(never)]
    fn next_queued(&mut self) -> Option<Frame> {
        if !matches!(self.queue.front(), Some(Out::Frame(..) | Out::Base(_))) {
            return None;
        }
        match self.next() {
            Some(Event::Frame(frame)) => Some(frame),
            _ => None,
        }
    }

    /// Whether the next event is a frame from this peer.
    #[inline]
    pub(crate) fn is_next_from(&self, from: PeerId) -> bool {
        if let (true, Some(Held::Fabric(peer, ..))) = (self.waits, &self.held) {
            return *peer == from;
        }
        match self.queue.front() {
            Some(Out::Frame(peer, ..)) => *peer == from,
            Some(Out::Base(frame)) => frame.from == from,
            _ => false,
        }
    }

    /// The frame at hand is the next one again.
    pub(crate) fn put_back(&mut self) {
        self.line_up();
        match self.held.take() {
            Some(Held::Fabric(peer, generation, came)) => {
                self.queue.push_front(Out::Frame(peer, generation, came));
            }
            Some(Held::Base(frame)) => self.queue.push_front(Out::Base(frame)),
            other => {
                debug_assert!(false, "no frame is at hand, but {other:?}");
                self.held = other;
            }
        }
    }

    /// The end of this operation is not reported.
    pub(crate) fn drop_done(&mut self, op: OpId) {
        self.queue.retain(
            |out| !matches!(out, Out::Event(Event::Done(known, _) | Event::Cut(known)) if *known == op),
        );
    }

    /// Releases a frame of the connection.
    pub(crate) fn release_base<B: RmaLink>(&mut self, base: &mut B, frame: Frame) {
        base.release(frame);
        self.base_busy = false;
    }

    /// Releases the frame at hand if it is the connection's.
    pub(crate) fn release_held_base<B: RmaLink>(&mut self, base: &mut B) {
        if let Some(Held::Base(frame)) = self.take_held() {
            self.release_base(base, frame);
        }
    }

    /// Releases what arrived from a peer, and was not polled.
    pub(crate) fn drop_frames_of<B: RmaLink, F: Below>(
        &mut self,
        peer: PeerId,
        base: &mut B,
        below: &mut Option<F>,
    ) {
        self.line_up();
        for out in std::mem::take(&mut self.queue) {
            match out {
                Out::Frame(from, _, came) if from == peer => came.give_back(below.as_mut()),
                Out::Base(frame) if frame.from == peer => self.release_base(base, frame),
                Out::Written(from, ..) if from == peer => {}
                out => self.queue.push_back(out),
            }
        }
    }

    /// Releases all that was not polled.
    pub(crate) fn drop_all<B: RmaLink, F: Below>(&mut self, base: &mut B, below: &mut Option<F>) {
        self.line_up();
        for out in std::mem::take(&mut self.queue) {
            match out {
                Out::Frame(_, _, came) => came.give_back(below.as_mut()),
                Out::Base(frame) => self.release_base(base, frame),
                Out::Event(_) | Out::Written(..) => {}
            }
        }
    }

    /// Copies what was not polled, so that more can arrive.
    pub(crate) fn set_aside<B: RmaLink, F: Below>(
        &mut self,
        peers: &Peers,
        base: &mut B,
        below: &mut Option<F>,
    ) {
        self.line_up();
        for out in &mut self.queue {
            let copy = match out {
                Out::Frame(from, generation, came @ Came::Buffer(..)) => {
                    (*from, *generation, Came::Copy(came.bytes(below.as_ref()).into()))
                }
                // A frame by the connection is polled like one by the fabric of a peer that has no channel.
                Out::Base(frame) => {
                    let mut bytes = vec![0; BEFORE + frame.len];
                    base.read(frame, 0, &mut bytes[BEFORE..]);
                    (frame.from, peers[frame.from].generation, Came::Copy(bytes.into()))
                }
                _ => continue,
            };
            match std::mem::replace(out, Out::Frame(copy.0, copy.1, copy.2)) {
                Out::Frame(_, _, came) => came.give_back(below.as_mut()),
                Out::Base(frame) => {
                    base.release(frame);
                    self.base_busy = false;
                }
                Out::Event(_) | Out::Written(..) => {}
            }
        }
    }
}
