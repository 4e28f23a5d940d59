//! Memory that an application handed over.

use std::fmt;

use crate::kind::Kind;

/// A stretch of memory an application handed over for one operation (or registered for many).
///
/// The type's invariant, promised by whoever calls [`Span::new`]: until the operation it was made
/// for completes, `addr..addr+len` stays valid for reads and, where the operation writes, for
/// writes. The bytes may change at any time under us, so nothing ever forms a reference to them.
///
/// Of one that [`Span::may_vanish`] less is promised: host memory of it may not be mapped, or not for reads or for
/// writes; but what is mapped there may be accessed. It is followed by [`crate::guard`] alone, or by the kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Span {
    addr: usize,
    len: usize,
    kind: Kind,
    vanishes: bool,
}

impl Span {
    /// A span of no bytes.
    pub const EMPTY: Span = Span { addr: 0, len: 0, kind: Kind::System, vanishes: false };

    /// # Safety
    /// `addr..addr+len` must be memory of `kind`, valid as the type's documentation says, until the
    /// last operation that was given this span, or a part of it, has completed.
    #[inline]
    pub const unsafe fn new(addr: usize, len: usize, kind: Kind) -> Self {
        Span { addr, len, kind, vanishes: false }
    }

    /// Zeroed host memory that is never freed: what a test posts without any `unsafe`.
    pub fn leak(len: usize) -> Self {
        let mem = Box::leak(vec![0u8; len].into_boxed_slice());
        Span { addr: mem.as_mut_ptr().expose_provenance(), len, kind: Kind::System, vanishes: false }
    }

    /// First byte, as a number: what a peer is told, and what completions carry.
    #[inline]
    pub fn addr(self) -> u64 {
        self.addr as u64
    }

    /// First byte, to be followed only for kinds the CPU may touch.
    #[inline]
    pub fn as_ptr(self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.addr)
    }

    /// Length in bytes.
    #[inline]
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether it spans no byte.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// What memory this is.
    #[inline]
    pub fn kind(self) -> Kind {
        self.kind
    }

    /// The same memory, as a registration hands it out to peers: the application may unmap it before they come to
    /// it, and a registration of (NULL, SIZE_MAX) was never mapped as a whole.
    #[inline]
    pub fn for_peers(self) -> Span {
        Span { vanishes: self.kind.is_system(), ..self }
    }

    /// Whether it is host memory that may not be there when it is accessed.
    #[inline]
    pub fn may_vanish(self) -> bool {
        self.vanishes
    }

    /// Whether the CPU may just follow the address.
    #[inline]
    pub fn is_plain(self) -> bool {
        self.kind.is_system() & !self.vanishes
    }

    /// The part `off..off+len`, or `None` where that is not inside.
    #[inline]
    pub fn part(self, off: usize, len: usize) -> Option<Span> {
        let end = off.checked_add(len)?;
        (end <= self.len).then(|| self.cut(off, len))
    }

    /// The part `off..off+len`, which is inside.
    #[inline]
    pub(crate) fn cut(self, off: usize, len: usize) -> Span {
        debug_assert!(off <= self.len && len <= self.len - off);
        Span { addr: self.addr + off, len, ..self }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}@{:#x}+{}", self.kind, self.addr, self.len)
    }
}

/// Bytes in all the spans together.
#[inline]
pub fn total(iov: &[Span]) -> usize {
    match iov {
        [one] => one.len,
        more => more.iter().map(|s| s.len).sum(),
    }
}

/// Calls `each(span, done)` for the parts of `iov` that make up `off..off+len`, in order, `done`
/// being how many bytes came before, until it fails; returns how many bytes it did.
pub(crate) fn walk(
    iov: &[Span],
    mut off: usize,
    len: usize,
    mut each: impl FnMut(Span, usize) -> bool,
) -> usize {
    let mut done = 0;
    for s in iov {
        if done == len {
            break;
        }
        if off >= s.len {
            off -= s.len;
            continue;
        }
        let n = (s.len - off).min(len - done);
        if !each(s.cut(off, n), done) {
            break;
        }
        done += n;
        off = 0;
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_outside_is_refused() {
        let s = Span::leak(8);
        assert_eq!(s.part(8, 0).map(Span::len), Some(0));
        assert!(s.part(8, 1).is_none());
        assert!(s.part(usize::MAX, 2).is_none());
    }
}
