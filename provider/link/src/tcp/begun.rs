//! Frames that are told of when they begin.

use hmem::Span;
use link_api::{Gone, OpId};
use wire::session::RECORD;

use super::channel::{Channel, FRONT, LONG, Step};
use super::landing::{Front, Landing};
use super::pool::Pool;

impl Channel {
    /// Whether a frame of so many bytes is told of before it is whole.
    pub(super) fn begins_early(&self, len: usize) -> bool {
        self.early && len >= LONG && matches!(self.front, Front::Unseen | Front::Told)
    }

    /// Whether the frame at the front is to be told of now.
    pub(super) fn may_begin(&self) -> bool {
        matches!(self.front, Front::Unseen)
            && self.over.is_none()
            && self.opened.is_some_and(|len| self.begins_early(len))
    }

    /// What is to be told of the frame that lands, if one does.
    pub(super) fn next_of_landing(&mut self) -> Option<Step> {
        let Front::Lands(landing) = &self.front else { return None };
        let (is_over, told, good) = (landing.is_over(), landing.told(), landing.is_good());
        if !is_over && self.over.is_none() {
            return Some(Step::Nothing);
        }
        self.front = Front::Unseen;
        told.map(|op| Step::Landed(op, good))
    }

    /// The frame at the front, of `size` bytes, goes to byte `doff` of `dst`, `len` bytes of it from `off`
    /// on. Whether that is over, and all are there.
    pub(super) fn land(
        &mut self,
        op: OpId,
        (size, off): (usize, usize),
        dst: &[Span],
        doff: usize,
        len: usize,
    ) -> Option<bool> {
        if self.turn != 0 {
            return self.land_of_rail(op, (size, off), dst, doff, len);
        }
        debug_assert!(off + len <= size, "bytes {off}+{len} of a frame of {size}");
        let len = len.min(size.saturating_sub(off));
        let front = self.here_from(size, off, len);
        let near = front.len();
        let failed = hmem::write(dst, doff, front) < near;
        let (left, rest) = (len - near, size - self.here(size).len());
        let mut landing = Box::new(Landing::new(op, dst, doff + near, left, rest - left, failed));
        self.pass(RECORD + size - rest, size);
        self.receive_landing(&mut landing);
        if landing.is_over() {
            return Some(landing.is_good());
        }
        self.front = Front::Lands(landing);
        None
    }

    /// Receives what is there of a frame that lands, and with its end the front of the next one.
    pub(super) fn receive_landing(&mut self, landing: &mut Landing) {
        let ahead = match &mut self.rx {
            // Of a rail the connection has to tell first.
            Some(rx) if self.start == self.end && self.keys.rails.is_some() => &mut rx[..FRONT],
            _ => &mut [],
        };
        let (next, end) = landing.receive(&self.fd, ahead);
        if next > 0 {
            (self.start, self.end) = (0, next);
        }
        self.over = self.over.or(end);
    }

    /// [`Channel::fill`], while a frame lands.
    pub(super) fn fill_landing(&mut self, pool: &mut Pool) -> bool {
        let Front::Lands(mut landing) = std::mem::replace(&mut self.front, Front::Unseen) else {
            return false;
        };
        self.rx = self.rx.take().or_else(|| pool.take(false));
        self.receive_landing(&mut landing);
        let is_over = landing.is_over();
        if self.last && !is_over {
            self.over.get_or_insert(Gone::Reset);
        }
        self.front = Front::Lands(landing);
        if !is_over {
            self.give_back(pool);
        }
        is_over || self.over.is_some()
    }

    /// Bytes of a frame that has begun, as far as they are there.
    pub(super) fn read_front(&self, size: usize, off: usize, dst: &mut [u8]) -> usize {
        if let Some(rail) = self.turned_ref() {
            return rail.read_front(size, off, dst);
        }
        let front = self.here_from(size, off, dst.len());
        dst[..front.len()].copy_from_slice(front);
        front.len()
    }

    /// The frame at the front is told of again when it is whole.
    pub(super) fn leave(&mut self) {
        if self.turn != 0 {
            return self.leave_of_rail();
        }
        if let Front::Told = self.front {
            self.front = Front::Left;
        }
    }

    /// Nothing more of this operation goes where it belongs. Whether it was one of this channel's.
    pub(super) fn cancel(&mut self, op: OpId) -> bool {
        match &mut self.front {
            Front::Lands(landing) => landing.cancel(op),
            _ => self.turn != 0 && self.cancel_of_rail(op),
        }
    }

    /// The operation that is under way, if the end of one is to be told of.
    pub(super) fn lands(&self) -> Option<OpId> {
        match &self.front {
            Front::Lands(landing) => landing.told(),
            _ => self.turned_ref().and_then(Channel::lands),
        }
    }
}
