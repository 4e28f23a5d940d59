//! Frames of one transfer, by one system call.

use link_api::{Gone, Refused, Row};
use wire::session::{COVERED, RECORD};

use crate::tcp::channel::line::Line;
use crate::tcp::channel::outgoing::{Outgoing, is_steady};
use crate::tcp::sock::{self, would_block};

/// Most frames of one call, during which nothing is received.
const MOST: usize = 4;

/// A frame: header and what the tag covers, how many bytes these are, and the place of the rest.
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

impl Outgoing {
    /// Sends the first frames of a row by one call: how many. `None`: they are to be sent one by one.
    pub(super) fn send_row(&mut self, line: &mut Line, row: &Row<'_>) -> Option<Result<usize, Refused>> {
        let bytes = row.len.min(MOST * row.most);
        let is_row = row.heads.len() > 1 && row.heads.iter().all(|head| head.len() <= COVERED);
        if !is_row || line.ends() || self.is_blocked() || self.pending() > 0 {
            return None;
        }
        if !is_steady(row.body, row.off, bytes) {
            return None;
        }
        let none = Ready { front: [0; RECORD + COVERED], inline: 0, off: 0, len: 0 };
        let (mut ready, mut all) = ([none; MOST], 0);
        for (frame, (head, off, len)) in ready.iter_mut().zip(row.frames()) {
            let front = &mut frame.front;
            let of_body = len.min(COVERED - head.len());
            let (at, inline) = (RECORD + head.len(), RECORD + head.len() + of_body);
            front[RECORD..at].copy_from_slice(head);
            if hmem::read(row.body, off, &mut front[at..inline]) != of_body {
                break;
            }
            let header = self.seal(head.len() + len, &front[RECORD..inline]);
            front[..RECORD].copy_from_slice(&header);
            (frame.inline, frame.off, frame.len) = (inline, off + of_body, len - of_body);
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
                self.set_blocked(taken < all || self.pending() > 0);
                self.set_unsure();
                Some(Ok(taken))
            }
            Some(Err(e)) if would_block(&e) => {
                self.set_blocked(true);
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
        (taken..all).for_each(|_| self.take_back());
        done
    }
}
