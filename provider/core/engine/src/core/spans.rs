//! The spans of one operation.

use arrayvec::ArrayVec;
use hmem::Span;
use wire::{MAX_SEGS, RmaSeg};

/// Spans of one operation, as a provider hands them over for later.
pub type Iov = ArrayVec<Span, MAX_SEGS>;
/// Remote segments of one operation.
pub type RmaIov = ArrayVec<RmaSeg, MAX_SEGS>;

/// Spans of one operation under way: nearly always one, and small to move about.
#[derive(Clone, Debug)]
pub(crate) enum Spans {
    One(Span),
    Many(Box<[Span]>),
}

impl Spans {
    pub(crate) const NONE: Spans = Spans::One(Span::EMPTY);

    /// The part `off..off+len`, as far as there is one.
    pub(crate) fn part(&self, mut off: usize, len: usize) -> Spans {
        if let Spans::One(s) = self {
            let off = off.min(s.len());
            return Spans::One(s.part(off, len.min(s.len() - off)).unwrap_or(Span::EMPTY));
        }
        let mut left = len;
        let mut parts = Vec::new();
        for s in self.iter() {
            if off >= s.len() {
                off -= s.len();
                continue;
            }
            let n = left.min(s.len() - off);
            parts.extend(s.part(off, n));
            left -= n;
            off = 0;
            if left == 0 {
                break;
            }
        }
        Spans::from(&parts[..])
    }
}

impl From<&[Span]> for Spans {
    fn from(iov: &[Span]) -> Self {
        match iov {
            [] => Spans::NONE,
            [one] => Spans::One(*one),
            many => Spans::Many(many.into()),
        }
    }
}

impl std::ops::Deref for Spans {
    type Target = [Span];
    fn deref(&self) -> &[Span] {
        match self {
            Spans::One(s) => std::slice::from_ref(s),
            Spans::Many(m) => m,
        }
    }
}

/// Whether a device has any of it.
pub(crate) fn on_device(iov: &[Span]) -> bool {
    iov.iter().any(|s| s.can(hmem::Caps::DEVICE))
}
