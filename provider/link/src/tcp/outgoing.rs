//! Frames on their way out: what of them finds room with the kernel is sent, the rest is kept.

use hmem::{Caps, Span};
use link_api::{Gone, Refused};
use wire::session::{COVERED, RECORD};

use super::channel::{Channel, LONG};
use super::sock::{self, would_block};

impl Channel {
    /// Sends a frame, or what of it finds room with the kernel, and keeps the rest.
    #[inline(always)]
    pub(super) fn send(&mut self, head: &[u8], body: &[Span], off: usize, len: usize) -> Result<(), Refused> {
        if head.len() + len >= self.striped {
            return self.send_striped(head, body, off, len);
        }
        self.send_here(head, body, off, len)
    }

    /// Likewise, on this connection.
    #[inline(always)]
    pub(super) fn send_here(
        &mut self,
        head: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Result<(), Refused> {
        let n = head.len() + len;
        if self.ends() {
            return Err(Refused::Gone(Gone::Reset));
        }
        if !self.has_room(n) {
            return Err(Refused::Busy);
        }
        let mut front = [0; RECORD + COVERED];
        let of_head = head.len().min(COVERED);
        let of_body = len.min(COVERED - of_head);
        front[RECORD..RECORD + of_head].copy_from_slice(&head[..of_head]);
        let inline = RECORD + of_head + of_body;
        if of_body > 0 && hmem::read(body, off, &mut front[RECORD + of_head..inline]) != of_body {
            return Err(Refused::Fault);
        }
        let header = self.keys.sealer.seal(n as u32, &front[RECORD..inline]);
        front[..RECORD].copy_from_slice(&header);
        let (front, middle) = (&front[..inline], &head[of_head..]);
        let done = self.send_sealed(front, middle, body, off + of_body, len - of_body);
        match done {
            Ok(()) => self.unsure = true,
            Err(_) => self.keys.sealer.take_back(),
        }
        done
    }

    #[inline(always)]
    fn send_sealed(
        &mut self,
        front: &[u8],
        middle: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Result<(), Refused> {
        let total = front.len() + middle.len() + len;
        // What may turn out not to be there is read before anything is sent.
        let steady = len == 0 || hmem::can(body, Caps::CMA) && !body.iter().any(|s| s.may_vanish());
        let mut sent = 0;
        if steady && !self.blocked && self.pending() == 0 {
            match sock::send_parts(&self.fd, front, middle, body, off, len) {
                Some(Ok(n)) if n == total => return Ok(()),
                Some(Ok(n)) => (sent, self.blocked) = (n, true),
                Some(Err(e)) if would_block(&e) => {
                    self.blocked = true;
                    if total >= LONG {
                        return Err(Refused::Busy);
                    }
                }
                Some(Err(_)) => {
                    // What came before is there all the same.
                    self.last = true;
                    return Err(Refused::Gone(Gone::Reset));
                }
                None => {}
            }
        }
        self.keep(front, middle, body, off, len, sent)?;
        if !self.blocked {
            self.flush();
        }
        Ok(())
    }

    /// Keeps a record but for the first `sent` bytes of it.
    fn keep(
        &mut self,
        front: &[u8],
        middle: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
        mut sent: usize,
    ) -> Result<(), Refused> {
        let (before, begun) = (self.tx.len(), sent > 0);
        for part in [front, middle] {
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
        if begun {
            // A part of it is on its way, and the rest is not to be had.
            self.last = true;
        }
        Err(Refused::Fault)
    }

    /// Sends on what waits for room.
    pub(super) fn flush(&mut self) {
        self.blocked = false;
        while self.pending() > 0 {
            match sock::send(&self.fd, &self.tx[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(e) if would_block(&e) => {
                    self.blocked = true;
                    return;
                }
                Err(_) => {
                    (self.last, self.lost) = (true, true);
                    break;
                }
            }
        }
        (self.tx, self.sent) = (Vec::new(), 0);
    }
}
