//! Accesses in flight.

use hmem::Span;
use link_api::{OpId, Way};

use super::key::{Exposed, Id, Part};

/// An access in flight.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) op: OpId,
    pub(super) from: Id,
    pub(super) to: Id,
    pub(super) way: Way,
    pub(super) request: u64,
    pub(super) parts: Vec<Part>,
    pub(super) local: Vec<Span>,
    pub(super) len: usize,
    pub(super) done: usize,
}

impl Flight {
    /// Copies up to `stretch` bytes more, and none from byte `halt` on, of or to what its target lets it
    /// reach, if that lives; whether it succeeded once it is over.
    pub(super) fn go_on(&mut self, target: Option<&Exposed>, stretch: usize, halt: usize) -> Option<bool> {
        let end = self.len.min(self.done + stretch).min(halt);
        while self.done < end {
            let Some(n) = target.and_then(|target| self.copy(target, end)) else { return Some(false) };
            self.done += n;
        }
        (self.done == self.len).then_some(true)
    }

    /// Copies up to byte `end`, or to where another part begins.
    fn copy(&self, target: &Exposed, end: usize) -> Option<usize> {
        if !target.allows(self.from, self.request) {
            return None;
        }
        let mut off = self.done;
        let part = self.parts.iter().find(|part| {
            let here = off < part.len;
            off -= if here { 0 } else { part.len };
            here
        })?;
        let n = (end - self.done).min(part.len - off);
        let there = target.find(part, off, n, self.way)?;
        let moved = match self.way {
            Way::Get => hmem::copy(&self.local, self.done, &[there], 0, n),
            Way::Put => hmem::copy(&[there], 0, &self.local, self.done, n),
        };
        (moved == n).then_some(n)
    }
}
