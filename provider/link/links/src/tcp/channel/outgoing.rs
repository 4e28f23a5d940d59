//! Frames on their way out: what of them finds room with the kernel is sent, the rest is kept.

use std::time::{Duration, Instant};

use hmem::{Caps, Span};
use link_api::{Gone, Refused, Row};
use wire::session::{COVERED, Opener, RECORD, RailNote, Sealer};

use crate::tcp::channel::incoming::LONG;
use crate::tcp::channel::line::Line;
use crate::tcp::cork::LONGEST;
use crate::tcp::sock::{self, would_block};

/// Most bytes that wait here for room, but for the rest of one frame.
const TX_MOST: usize = 64 << 10;
/// Most bytes of a short frame.
const SHORT: usize = 112;
/// Room that is made for some answers that are kept back; twice as much stays, for short writes.
const KEPT: usize = 2 << 10;

/// A frame of a row: header and what the tag covers, how many bytes these are, and the place of the rest.
#[derive(Clone, Copy)]
struct Ready {
    front: [u8; RECORD + COVERED],
    inline: usize,
    off: usize,
    len: usize,
}

impl Ready {
    fn front(&self) -> &[u8] {
        &self.front[..self.inline]
    }

    fn size(&self) -> usize {
        self.inline + self.len
    }
}

/// What is sent on a connection.
#[derive(Debug)]
pub(super) struct Outgoing {
    sealer: Sealer,
    /// What waits for room, from `sent` on.
    tx: Vec<u8>,
    sent: usize,
    /// Some of it was given up.
    lost: bool,
    /// The kernel had no room, and has not said since that it has.
    blocked: bool,
    /// Something was sent that may not have arrived, and since when that is known.
    unsure: bool,
    owing: Option<Instant>,
}

impl Outgoing {
    pub(super) fn new(sealer: Sealer) -> Outgoing {
        Outgoing { sealer, tx: Vec::new(), sent: 0, lost: false, blocked: false, unsure: false, owing: None }
    }

    /// Bytes that wait here for room.
    #[inline]
    pub(super) fn pending(&self) -> usize {
        self.tx.len() - self.sent
    }

    /// Whether something that was sent has not left this process.
    #[inline]
    pub(super) fn keeps(&self) -> bool {
        self.pending() > 0 || self.lost
    }

    /// Whether the kernel had no room, as far as is known.
    #[inline(always)]
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Whether something that was sent may not have arrived.
    #[inline(always)]
    pub(super) fn is_unsure(&self) -> bool {
        self.unsure
    }

    /// Whether a frame of so many bytes finds room, as far as is known.
    #[inline]
    fn has_room(&self, len: usize) -> bool {
        match self.pending() {
            0 => !self.blocked || len < LONG,
            pending => len < LONG && pending + len + RECORD <= TX_MOST,
        }
    }

    /// Whether much more finds room.
    #[inline]
    pub(super) fn has_much_room(&self) -> bool {
        // What is kept back is little.
        !self.blocked
    }

    /// Whether what waits here was kept back, and the kernel may have room for it.
    #[inline]
    pub(super) fn is_corked(&self) -> bool {
        self.pending() > 0 && !self.blocked
    }

    /// Sends a frame, or what of it finds room with the kernel, and keeps the rest. `cork`: a short one is
    /// kept back.
    #[inline(always)]
    pub(super) fn send(
        &mut self,
        line: &mut Line,
        (head, body, off, len): (&[u8], &[Span], usize, usize),
        cork: bool,
    ) -> Result<(), Refused> {
        let n = head.len() + len;
        if line.ends() {
            return Err(Refused::Gone(Gone::Reset));
        }
        let cork = cork && n <= LONGEST && self.pending() + n + RECORD <= TX_MOST;
        if !cork && self.is_corked() {
            self.flush(line);
        }
        if !self.has_room(n) {
            return Err(Refused::Busy);
        }
        // To zero room for more takes longer than a short message.
        if n <= SHORT {
            self.send_with::<{ RECORD + SHORT }>(line, (head, body, off, len), cork)
        } else {
            self.send_with::<{ RECORD + COVERED }>(line, (head, body, off, len), cork)
        }
    }

    /// Sends a frame for which there is room, of which so many bytes hold the header and all that the tag
    /// covers.
    #[inline]
    fn send_with<const FRONT: usize>(
        &mut self,
        line: &mut Line,
        (head, body, off, len): (&[u8], &[Span], usize, usize),
        cork: bool,
    ) -> Result<(), Refused> {
        let mut front = [0; FRONT];
        let (of_head, of_body) = self.seal(&mut front, (head, body, off, len))?;
        let (front, middle) = (&front[..RECORD + of_head + of_body], &head[of_head..]);
        let done = match cork && !self.blocked {
            true => {
                self.tx.reserve(KEPT.saturating_sub(self.tx.len()));
                self.keep([front, middle], body, off + of_body, len - of_body, 0)
            }
            false => self.send_sealed(line, front, middle, body, off + of_body, len - of_body),
        };
        match done {
            Ok(()) => self.unsure = true,
            Err(_) => self.sealer.take_back(),
        }
        done
    }

    /// Fills the front of the next record, a frame: its header, and what the tag covers of the head and of
    /// the body. How many bytes these are.
    #[inline(always)]
    fn seal<const FRONT: usize>(
        &mut self,
        front: &mut [u8; FRONT],
        (head, body, off, len): (&[u8], &[Span], usize, usize),
    ) -> Result<(usize, usize), Refused> {
        let of_head = head.len().min(COVERED);
        let of_body = len.min(COVERED - of_head);
        let (mid, end) = (RECORD + of_head, RECORD + of_head + of_body);
        front[RECORD..mid].copy_from_slice(&head[..of_head]);
        if of_body > 0 && hmem::read(body, off, &mut front[mid..end]) != of_body {
            return Err(Refused::Fault);
        }
        let header = self.sealer.seal((head.len() + len) as u32, &front[RECORD..end]);
        front[..RECORD].copy_from_slice(&header);
        Ok((of_head, of_body))
    }

    #[inline(always)]
    fn send_sealed(
        &mut self,
        line: &mut Line,
        front: &[u8],
        middle: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Result<(), Refused> {
        let total = front.len() + middle.len() + len;
        let steady = len == 0 || is_steady(body, off, len);
        let mut sent = 0;
        if steady && !self.blocked && self.pending() == 0 {
            match sock::send_parts(line.fd(), front, middle, body, off, len) {
                Some(Ok(n)) if n == total => return Ok(()),
                Some(Ok(n)) => (sent, self.blocked) = (n, true),
                Some(Err(e)) if e.raw_os_error() == Some(libc::EFAULT) => return Err(Refused::Fault),
                Some(Err(e)) if would_block(&e) => {
                    self.blocked = true;
                    if total >= LONG {
                        return Err(Refused::Busy);
                    }
                }
                Some(Err(_)) => {
                    // What came before is there all the same.
                    line.set_last();
                    return Err(Refused::Gone(Gone::Reset));
                }
                None => {}
            }
        }
        if let Err(e) = self.keep([front, middle], body, off, len, sent) {
            if sent > 0 {
                // A part of it is on its way, and the rest is not to be had.
                line.set_last();
            }
            return Err(e);
        }
        if !self.blocked {
            self.flush(line);
        }
        Ok(())
    }

    /// Sends the first frames of a row by one call: how many. `None`: they are to be sent one by one.
    pub(super) fn send_row(&mut self, line: &mut Line, row: &Row<'_>) -> Option<Result<usize, Refused>> {
        let is_row = row.heads.len() > 1 && row.heads.iter().all(|head| head.len() <= COVERED);
        if !is_row || line.ends() || self.blocked || self.pending() > 0 {
            return None;
        }
        if !is_steady(row.body, row.off, row.len) {
            return None;
        }
        let none = Ready { front: [0; RECORD + COVERED], inline: 0, off: 0, len: 0 };
        let (mut ready, mut all) = ([none; Row::FRAMES], 0);
        for (frame, (head, off, len)) in ready.iter_mut().zip(row.frames()) {
            let Ok((of_head, of_body)) = self.seal(&mut frame.front, (head, row.body, off, len)) else {
                break;
            };
            frame.inline = RECORD + of_head + of_body;
            (frame.off, frame.len) = (off + of_body, len - of_body);
            all += 1;
        }
        let ready = &ready[..all];
        if ready.is_empty() {
            return None;
        }
        let sent =
            sock::send_row(line.fd(), ready.iter().map(|f| (f.front(), &[][..], f.off, f.len)), row.body);
        let mut taken = 0;
        let done = match sent {
            Some(Ok(mut left)) => {
                for frame in ready {
                    if left == 0 {
                        break;
                    }
                    let here = left.min(frame.size());
                    (left, taken) = (left - here, taken + 1);
                    let parts = [frame.front(), &[]];
                    if here < frame.size() && self.keep(parts, row.body, frame.off, frame.len, here).is_err()
                    {
                        // A part of it is on its way, and the rest is not to be had.
                        line.set_last();
                        return Some(Err(Refused::Fault));
                    }
                }
                self.blocked = taken < all || self.pending() > 0;
                self.unsure = true;
                Some(Ok(taken))
            }
            Some(Err(e)) if would_block(&e) => {
                self.blocked = true;
                Some(Err(Refused::Busy))
            }
            // Which of them it is shows when they are sent one by one.
            Some(Err(e)) if e.raw_os_error() == Some(libc::EFAULT) => None,
            Some(Err(_)) => {
                line.set_last();
                return Some(Err(Refused::Gone(Gone::Reset)));
            }
            None => None,
        };
        (taken..all).for_each(|_| self.sealer.take_back());
        done
    }

    /// Keeps a record but for the first `sent` bytes of it.
    fn keep(
        &mut self,
        parts: [&[u8]; 2],
        body: &[Span],
        off: usize,
        len: usize,
        mut sent: usize,
    ) -> Result<(), Refused> {
        let before = self.tx.len();
        for part in parts {
            let skip = sent.min(part.len());
            self.tx.extend_from_slice(&part[skip..]);
            sent -= skip;
        }
        let at = self.tx.len();
        self.tx.resize(at + len - sent, 0);
        if hmem::read(body, off + sent, &mut self.tx[at..]) == len - sent {
            return Ok(());
        }
        self.tx.truncate(before);
        Err(Refused::Fault)
    }

    /// Sends on what waits for room.
    pub(super) fn flush(&mut self, line: &mut Line) {
        self.blocked = false;
        while self.pending() > 0 {
            match sock::send(line.fd(), &self.tx[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(e) if would_block(&e) => {
                    self.blocked = true;
                    return;
                }
                Err(_) => {
                    self.lost = true;
                    line.set_last();
                    break;
                }
            }
        }
        self.sent = 0;
        self.tx.clear();
        if self.tx.capacity() > 2 * KEPT {
            self.tx = Vec::new();
        }
    }

    /// Puts a note among the records. It is kept where the kernel has no room: there are few for which that
    /// was not asked before.
    pub(super) fn say(&mut self, line: &mut Line, note: &RailNote) {
        let body = note.encode();
        debug_assert!(Opener::note_len(&self.sealer.clone().seal_note(&body)).is_some());
        let header = self.sealer.seal_note(&body);
        self.tx.extend_from_slice(&header);
        self.tx.extend_from_slice(&body);
        if !self.blocked {
            self.flush(line);
        }
        self.unsure = true;
    }

    /// Whether the kernel has room for a note. One that was kept here would have to wait for a later call of
    /// the application's, which may make none.
    pub(super) fn takes_note(&mut self, line: &mut Line) -> bool {
        if self.is_corked() {
            self.flush(line);
        }
        if self.pending() > 0 || self.blocked {
            return false;
        }
        self.blocked = !sock::wait_for_room(line.fd(), Duration::ZERO);
        !self.blocked
    }

    /// Sends something, unless there is no room for it, so that the kernel asks for an answer anyhow.
    pub(super) fn probe(&mut self, line: &mut Line) {
        if !line.is_over() && self.pending() == 0 && !self.blocked {
            self.say(line, &RailNote::Probe);
        }
        self.unsure = true;
    }

    /// Whether the other end's host has not answered for so long what was sent to it.
    pub(super) fn is_silent(&mut self, line: &Line, now: Instant, most: Duration) -> bool {
        if !self.unsure || line.is_over() {
            return false;
        }
        let Some(vitals) = sock::vitals(line.fd()) else { return false };
        if !vitals.owes {
            (self.owing, self.unsure) = (None, vitals.queued || self.pending() > 0);
            return false;
        }
        let since = *self.owing.get_or_insert(now);
        let answered = now.checked_sub(vitals.silent).unwrap_or(since);
        let since = since.max(answered);
        self.owing = Some(since);
        now.saturating_duration_since(since) >= most
    }
}

/// Whether the kernel can send these bytes from where they are. What may turn out not to be there is read
/// before anything is sent, or, where it is much, looked at: if it goes away between that and the call, and a
/// part has left by then, the connection ends.
fn is_steady(body: &[Span], off: usize, len: usize) -> bool {
    let stays = body.iter().all(|s| s.stays());
    hmem::can(body, Caps::CMA) && (stays || len >= LONG && hmem::is_present(body, off, len))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use hmem::Kind;

    use super::*;

    #[test]
    fn memory_that_stays_registered_is_sent_from_where_it_is_without_a_look_at_its_pages() {
        let stays = Span::leak(LONG - 1);
        let mut bytes = vec![0u8; stays.len()];
        // SAFETY: the bytes outlive the span, and nothing else accesses them.
        let other = unsafe { Span::new(bytes.as_mut_ptr().expose_provenance(), bytes.len(), Kind::System) };
        assert!(is_steady(&[stays.for_peers()], 0, stays.len()));
        assert!(is_steady(&[other], 0, other.len()), "one of an operation under way");
        // Too short to be looked at, so that it is read before anything is sent.
        assert!(!is_steady(&[other.for_peers()], 0, other.len()));
    }
}
