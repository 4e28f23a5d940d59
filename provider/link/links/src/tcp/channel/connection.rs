//! A connection that is agreed on: frames as records, either way.

use std::time::{Duration, Instant};

use hmem::Span;
use ipc::Unshared;
use link_api::{Gone, OpId, Refused, Row};
use wire::session::{Hello, JobKey, Keys, RECORD, RailNote};

use crate::tcp::channel::incoming::{Incoming, Opened, Step};
use crate::tcp::channel::line::Line;
use crate::tcp::channel::outgoing::Outgoing;
use crate::tcp::channel::pool::Pool;
use crate::tcp::channel::rails::Rails;
use crate::tcp::meet::agreement::Conn;

mod striped;

/// A connection.
#[derive(Debug)]
pub(in crate::tcp) struct Channel {
    line: Line,
    outgoing: Outgoing,
    incoming: Incoming,
    /// What takes the place of the job's key where a rail is added. A rail has none.
    rails_key: Option<JobKey>,
    /// Further connections, if there may be any; and which of them has the next frame, 0: this one.
    rails: Option<Box<Rails<Channel>>>,
    current: u8,
    /// From how many bytes on a frame may go on one of them.
    striped: usize,
    /// Which endpoint is at the other end ([`Hello`]), and which of this one's connections it is.
    instance: u64,
    conn: Conn,
}

impl Channel {
    /// `early`: long frames are reported when they begin. exit(3) waits for what is sent by it.
    pub(in crate::tcp) fn new(
        fd: Unshared,
        keys: Keys,
        (peer, conn): (&Hello, Conn),
        early: bool,
    ) -> Channel {
        fd.mark();
        Channel {
            line: Line::new(fd),
            outgoing: Outgoing::new(keys.sealer),
            incoming: Incoming::new(keys.opener, keys.rails.is_none(), early),
            rails_key: keys.rails,
            rails: None,
            current: 0,
            striped: usize::MAX,
            instance: peer.instance,
            conn,
        }
    }

    #[inline]
    pub(in crate::tcp) fn fd(&self) -> &Unshared {
        self.line.fd()
    }

    /// The key of the rails that may be added to it; `None`: it is one.
    pub(in crate::tcp) fn rails_key(&self) -> Option<&JobKey> {
        self.rails_key.as_ref()
    }

    /// Which endpoint is at the other end ([`Hello`]).
    pub(in crate::tcp) fn instance(&self) -> u64 {
        self.instance
    }

    /// Which of this endpoint's connections it is.
    pub(in crate::tcp) fn conn(&self) -> Conn {
        self.conn
    }

    /// Further connections, if there may be any.
    #[inline]
    pub(in crate::tcp) fn rails(&self) -> Option<&Rails<Channel>> {
        self.rails.as_deref()
    }

    #[inline]
    pub(in crate::tcp) fn rails_mut(&mut self) -> Option<&mut Rails<Channel>> {
        self.rails.as_deref_mut()
    }

    /// Takes its rails out, at the end.
    pub(in crate::tcp) fn take_rails(&mut self) -> Option<Rails<Channel>> {
        self.rails.take().map(|rails| *rails)
    }

    /// Which rail has the next frame; 0: the connection itself.
    #[inline]
    pub(in crate::tcp) fn current(&self) -> u8 {
        self.current
    }

    /// Whether a frame of so many bytes may go on a rail.
    #[inline(always)]
    pub(in crate::tcp) fn is_striped(&self, len: usize) -> bool {
        len >= self.striped
    }

    /// Whether nothing more will be received.
    #[inline]
    pub(in crate::tcp) fn is_over(&self) -> bool {
        self.line.is_over()
    }

    /// Nothing more will be received, for this reason.
    pub(in crate::tcp) fn set_over(&mut self, why: Gone) {
        self.line.set_over(why);
    }

    /// Whether it ends when nothing more is to be had.
    #[inline]
    pub(in crate::tcp) fn is_last(&self) -> bool {
        self.line.is_last()
    }

    /// What it is followed by is there: it ends when nothing more is to be had.
    pub(in crate::tcp) fn set_last(&mut self) {
        self.line.set_last();
    }

    /// Whether its end is to be reported, perhaps after frames that have come.
    #[inline]
    pub(in crate::tcp) fn ends(&self) -> bool {
        self.line.ends()
    }

    /// Bytes that wait here for room.
    pub(in crate::tcp) fn pending(&self) -> usize {
        self.outgoing.pending()
    }

    /// Whether something that was sent has not left this process.
    #[inline]
    pub(in crate::tcp) fn keeps(&self) -> bool {
        self.outgoing.keeps() || self.rails().is_some_and(|rails| rails.channels().any(Channel::keeps))
    }

    /// Whether the kernel had no room, as far as is known.
    #[inline(always)]
    pub(in crate::tcp) fn is_blocked(&self) -> bool {
        self.outgoing.is_blocked()
    }

    /// Whether something that was sent here may not have arrived.
    #[inline(always)]
    pub(in crate::tcp) fn is_unsure(&self) -> bool {
        self.outgoing.is_unsure()
    }

    /// Whether something that was sent here, or on a rail, may not have arrived.
    pub(in crate::tcp) fn is_any_unsure(&self) -> bool {
        self.is_unsure() || self.rails().is_some_and(|rails| rails.channels().any(Channel::is_unsure))
    }

    /// Whether much more finds room.
    pub(in crate::tcp) fn has_much_room(&self) -> bool {
        self.outgoing.has_much_room() && (self.rails.is_none() || self.has_room_on_rail())
    }

    /// Sends a frame, or what of it finds room with the kernel, and keeps the rest. `cork`: a short one is
    /// kept back.
    #[inline(always)]
    pub(in crate::tcp) fn send(
        &mut self,
        (head, body, off, len): (&[u8], &[Span], usize, usize),
        cork: bool,
    ) -> Result<(), Refused> {
        if self.is_striped(head.len() + len) {
            return self.send_striped(head, body, off, len);
        }
        self.outgoing.send(&mut self.line, (head, body, off, len), cork)
    }

    /// Sends the first frames of a row by one call: how many. `None`: they are to be sent one by one.
    pub(in crate::tcp) fn send_row(&mut self, row: &Row<'_>) -> Option<Result<usize, Refused>> {
        if self.rails.is_some() { None } else { self.outgoing.send_row(&mut self.line, row) }
    }

    /// Whether frames are kept back here for which there may be room.
    #[inline]
    pub(in crate::tcp) fn is_corked(&self) -> bool {
        self.outgoing.is_corked()
    }

    /// Sends on what waits for room.
    pub(in crate::tcp) fn flush(&mut self) {
        self.outgoing.flush(&mut self.line);
    }

    /// Puts a note among the records.
    pub(in crate::tcp) fn say(&mut self, note: &RailNote) {
        self.outgoing.say(&mut self.line, note);
    }

    /// Sends something, unless there is no room for it, so that the kernel asks for an answer anyhow.
    pub(in crate::tcp) fn probe(&mut self) {
        self.outgoing.probe(&mut self.line);
    }

    /// What is left with the kernel wakes a sleeper again and again: a look after a sleep counts as several.
    pub(in crate::tcp) fn hasten(&mut self) {
        if let Some(channel) = if self.current == 0 { Some(self) } else { self.turned() } {
            channel.incoming.hasten();
        }
    }

    /// Receives what is there, or leaves it where it is if that is better; `pool` has a buffer to spare.
    /// Returns whether there may be a frame, or the end.
    pub(in crate::tcp) fn fill(&mut self, pool: &mut Pool) -> bool {
        if self.current != 0 {
            return self.fill_of_rail(pool);
        }
        self.incoming.fill(&mut self.line, pool)
    }

    /// A buffer with nothing in it serves others.
    #[inline]
    pub(in crate::tcp) fn give_back(&mut self, pool: &mut Pool) {
        self.incoming.give_back(pool);
    }

    /// The next frame, if all of it is there, or it may be reported before.
    #[inline(always)]
    pub(in crate::tcp) fn next(&mut self) -> Step {
        if self.current != 0 {
            return self.next_of_rail();
        }
        self.next_here()
    }

    /// The next frame, where it is the turn of this connection.
    #[inline(always)]
    pub(in crate::tcp) fn next_here(&mut self) -> Step {
        if let Some(step) = self.incoming.next_of_landing(&self.line) {
            return step;
        }
        match self.try_next() {
            Ok(Some(len)) => Step::Frame(len),
            Ok(None) if self.current != 0 => self.next_of_rail(),
            Ok(None) if self.incoming.may_begin(&self.line) => Step::Begun(self.incoming.begin()),
            Ok(None) => self.line.over().map_or(Step::Nothing, Step::End),
            Err(why) => {
                self.spoil(why);
                Step::End(why)
            }
        }
    }

    /// How many bytes the next frame has, if it is whole in the buffer, and nothing comes before it.
    #[inline(always)]
    pub(in crate::tcp) fn next_buffered(&mut self) -> Option<usize> {
        if self.incoming.has_ended_landing().is_some() {
            return None;
        }
        let len = match self.incoming.opened() {
            Some(len) => len,
            None => match self.open() {
                Ok(len) => len?,
                Err(why) => {
                    self.spoil(why);
                    return None;
                }
            },
        };
        self.incoming.is_buffered(len).then_some(len)
    }

    /// Nothing that comes is taken any more.
    fn spoil(&mut self, why: Gone) {
        self.line.set_over(why);
        self.incoming.clear();
    }

    fn try_next(&mut self) -> Result<Option<usize>, Gone> {
        let len = match self.incoming.opened() {
            Some(len) => len,
            None if !self.incoming.has_header() => return Ok(None),
            None => match self.open()? {
                Some(len) => len,
                None => return Ok(None),
            },
        };
        Ok(self.incoming.is_whole(&self.line, len).then_some(len))
    }

    /// Checks the record at the front, if enough of it is there; notes before it are taken.
    #[inline]
    fn open(&mut self) -> Result<Option<usize>, Gone> {
        match self.incoming.open(&self.line)? {
            Opened::Frame(len) => Ok(Some(len)),
            Opened::Unknown => Ok(None),
            Opened::Other => self.open_behind_notes(),
        }
    }

    /// Whether a whole frame was received.
    pub(in crate::tcp) fn has_frame(&self) -> bool {
        if self.current != 0 {
            return self.has_frame_of_rail();
        }
        self.incoming.has_frame_at(0)
    }

    /// Whether a whole frame was received behind the one at hand, which has `len` bytes.
    pub(in crate::tcp) fn has_frame_behind(&self, len: usize) -> bool {
        self.current == 0 && self.incoming.has_frame_at(RECORD + len)
    }

    /// Whether there is a frame or an end to be reported, as far as was received.
    pub(in crate::tcp) fn is_ready(&mut self) -> bool {
        if self.current != 0 {
            return self.is_rail_ready();
        }
        match self.incoming.has_ended_landing() {
            Some(is_over) => is_over || self.ends(),
            None => {
                self.ends()
                    || matches!(self.try_next(), Ok(Some(_)) | Err(_))
                    || self.incoming.may_begin(&self.line)
                    || self.has_notes()
            }
        }
    }

    /// Gives the frame at hand back, which has `len` bytes. Returns whether there may be another one.
    #[inline(always)]
    pub(in crate::tcp) fn release(&mut self, len: usize) -> bool {
        if self.current != 0 {
            return self.release_of_rail(len);
        }
        self.release_here(len)
    }

    /// Gives the frame at hand back, where that is one of this connection.
    #[inline(always)]
    fn release_here(&mut self, len: usize) -> bool {
        self.incoming.release(&mut self.line, len);
        // So that it is known whether another one is whole.
        if self.incoming.has_header() {
            if let Err(why) = self.open() {
                self.spoil(why);
            }
        }
        !self.incoming.is_empty() || self.line.ends()
    }

    /// Bytes of the frame at hand from `off` on to `dst`.
    #[inline]
    pub(in crate::tcp) fn read(&self, len: usize, off: usize, dst: &mut [u8]) -> usize {
        if self.current != 0 {
            return self.read_of_rail(len, off, dst);
        }
        self.incoming.read(&self.line, len, off, dst)
    }

    /// Bytes of a frame that has begun, as far as they are there.
    pub(in crate::tcp) fn read_front(&self, size: usize, off: usize, dst: &mut [u8]) -> usize {
        self.turned_ref().unwrap_or(self).incoming.read_front(size, off, dst)
    }

    /// Up to `len` bytes from `off` on of the frame at hand, which has `size`, to byte `doff` of `dst`; how
    /// many that were.
    pub(in crate::tcp) fn copy_out(
        &self,
        (size, off): (usize, usize),
        dst: &[Span],
        doff: usize,
        len: usize,
    ) -> usize {
        if self.current != 0 {
            return self.copy_out_of_rail((size, off), dst, doff, len);
        }
        self.incoming.copy_out(&self.line, (size, off), dst, doff, len)
    }

    /// [`Channel::copy_out`], where none of these bytes, or of those behind them, is read again.
    pub(in crate::tcp) fn copy_last(
        &mut self,
        (size, off): (usize, usize),
        dst: &[Span],
        doff: usize,
        len: usize,
    ) -> usize {
        if self.current != 0 {
            return self.copy_out_of_rail((size, off), dst, doff, len);
        }
        self.incoming.copy_last(&self.line, (size, off), dst, doff, len)
    }

    /// The frame at the front, of `size` bytes, goes to byte `doff` of `dst`, `len` bytes of it from `off`
    /// on. Whether that is over, and all are there.
    pub(in crate::tcp) fn land(
        &mut self,
        op: OpId,
        (size, off): (usize, usize),
        dst: &[Span],
        doff: usize,
        len: usize,
    ) -> Option<bool> {
        if self.current != 0 {
            return self.land_of_rail(op, (size, off), dst, doff, len);
        }
        self.incoming.land(&mut self.line, op, (size, off), dst, doff, len)
    }

    /// The frame at the front is reported again when it is whole.
    pub(in crate::tcp) fn leave(&mut self) {
        if self.current != 0 {
            return self.leave_of_rail();
        }
        self.incoming.leave();
    }

    /// Nothing more of this operation goes where it belongs. Whether it was one of this channel's.
    pub(in crate::tcp) fn cancel(&mut self, op: OpId) -> bool {
        self.incoming.cancel(op).unwrap_or_else(|| self.current != 0 && self.cancel_of_rail(op))
    }

    /// The operation that is under way, if the end of one is to be reported.
    pub(in crate::tcp) fn lands(&self) -> Option<OpId> {
        self.incoming.lands().unwrap_or_else(|| self.turned_ref().and_then(Channel::lands))
    }

    /// Whether a part of one frame has taken up a buffer for so long, while other peers found none (`short`:
    /// lately).
    pub(in crate::tcp) fn is_stuck(&mut self, short: bool, now: Instant, most: Duration) -> bool {
        self.incoming.is_stuck(&self.line, short, now, most)
    }

    /// Whether the other end's host has not answered for so long what was sent to it.
    pub(in crate::tcp) fn is_silent(&mut self, now: Instant, most: Duration) -> bool {
        self.outgoing.is_silent(&self.line, now, most)
    }
}
