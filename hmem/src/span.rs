//! Memory that an application handed over.

use std::fmt;

use crate::kind::{Caps, Kind};

/// A stretch of memory an application handed over for one operation (or registered for many).
///
/// The type's invariant, promised by the caller of [`Span::new`]: until the operation it was made for
/// completes, `addr..addr+len` stays valid for reads and, where the operation writes, for writes, in the ways
/// that [`Span::caps`] has. The bytes may change at any time, so nothing ever forms a reference to them.
///
/// With [`Caps::VANISH`] less is promised: the memory may not be mapped, or not for reads or for writes; but
/// what is mapped there may be accessed. It is followed by [`crate::guard`] alone, or by the kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Span {
    addr: usize,
    len: usize,
    what: What,
}

/// The kind, and what can be done, as a number ([`number`]). A whole word: to copy one that was written in
/// parts takes longer. An enumeration, so that an `Option<Span>` takes no more room.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
enum What {
    Host = number(Kind::System, HOST),
    Vanishing = number(Kind::System, HOST.union(Caps::VANISH)),
    Lasting = number(Kind::System, HOST.union(Caps::LASTS)),
    LastingForPeers = number(Kind::System, HOST.union(Caps::LASTS).union(Caps::VANISH)),
    Fake = number(Kind::Fake, Kind::Fake.caps()),
    Cuda = number(Kind::Cuda, Kind::Cuda.caps()),
    Rocr = number(Kind::Rocr, Kind::Rocr.caps()),
    Ze = number(Kind::Ze, Kind::Ze.caps()),
    Client = number(Kind::Client, Kind::Client.caps()),
}

const HOST: Caps = Kind::System.caps();

/// The kind's number, and above it the capabilities in which it is not like ordinary host memory: of that all
/// is 0, and each capability is one bit to test.
const fn number(kind: Kind, caps: Caps) -> u64 {
    kind as u64 | unlike(caps.symmetric_difference(HOST))
}

const fn unlike(caps: Caps) -> u64 {
    (caps.bits() as u64) << 8
}

/// Two addresses and a word, and no more where there may be none: endpoints have arrays of these.
const _: () = assert!(
    size_of::<Span>() == 2 * size_of::<usize>() + 8 && size_of::<Option<Span>>() == size_of::<Span>()
);

impl What {
    const fn of(kind: Kind) -> What {
        match kind {
            Kind::System => What::Host,
            Kind::Fake => What::Fake,
            Kind::Cuda => What::Cuda,
            Kind::Rocr => What::Rocr,
            Kind::Ze => What::Ze,
            Kind::Client => What::Client,
        }
    }

    #[inline]
    fn kind(self) -> Kind {
        match self {
            What::Host | What::Vanishing | What::Lasting | What::LastingForPeers => Kind::System,
            What::Fake => Kind::Fake,
            What::Cuda => Kind::Cuda,
            What::Rocr => Kind::Rocr,
            What::Ze => Kind::Ze,
            What::Client => Kind::Client,
        }
    }
}

impl Span {
    /// A span of no bytes.
    pub const EMPTY: Span = Span { addr: 0, len: 0, what: What::of(Kind::System) };

    /// # Safety
    /// `addr..addr+len` must be memory of `kind`, valid as the type's documentation says, until the
    /// last operation that was given this span, or a part of it, has completed.
    #[inline]
    pub const unsafe fn new(addr: usize, len: usize, kind: Kind) -> Self {
        Span { addr, len, what: What::of(kind) }
    }

    /// Zeroed host memory that is never freed: what a test posts without any `unsafe`.
    pub fn leak(len: usize) -> Self {
        let mem = Box::leak(vec![0u8; len].into_boxed_slice());
        Span { addr: mem.as_mut_ptr().expose_provenance(), len, what: What::Lasting }
    }

    /// Address of the first byte, as a number: for peers and for completions.
    #[inline]
    pub fn addr(self) -> u64 {
        self.addr as u64
    }

    /// First byte, to be followed only with [`Caps::CPU`].
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
        self.what.kind()
    }

    /// What can be done with it.
    #[inline]
    pub fn caps(self) -> Caps {
        Caps::from_bits_retain((self.what as u64 >> 8) as u8).symmetric_difference(HOST)
    }

    /// Whether all of these can be done with it.
    #[inline]
    pub fn can(self, all: Caps) -> bool {
        self.caps().contains(all)
    }

    /// The same memory, as a registration hands it out to peers: the application may unmap it before they
    /// come to it, and a registration of (NULL, SIZE_MAX) was never mapped as a whole.
    #[inline]
    pub fn for_peers(self) -> Span {
        let what = match self.what {
            What::Host => What::Vanishing,
            What::Lasting => What::LastingForPeers,
            other => other,
        };
        Span { what, ..self }
    }

    /// The same memory, if it is the host's, with the promise that it stays.
    ///
    /// # Safety
    /// All of it stays mapped, for reads and, where an operation writes, for writes, until the last operation
    /// that was given this span, or a part of it, has completed.
    #[must_use]
    pub unsafe fn lasting(self) -> Span {
        let what = match self.what {
            What::Host => What::Lasting,
            What::Vanishing => What::LastingForPeers,
            other => other,
        };
        Span { what, ..self }
    }

    /// Whether it is there when it is accessed, for as long as this span may be used: by [`Span::lasting`],
    /// or since it is no registration's.
    #[inline]
    pub fn stays(self) -> bool {
        !self.may_vanish() || self.can(Caps::LASTS)
    }

    /// Whether it may not be there when it is accessed.
    #[inline]
    pub fn may_vanish(self) -> bool {
        self.can(Caps::VANISH)
    }

    /// Whether the CPU may just follow the address.
    #[inline]
    pub fn is_plain(self) -> bool {
        const { assert!(HOST.contains(Caps::CPU) && !HOST.contains(Caps::VANISH)) };
        self.what as u64 & unlike(Caps::CPU.union(Caps::VANISH)) == 0
    }

    /// First byte behind it, as a number.
    fn end(self) -> u64 {
        self.addr() + self.len as u64
    }

    /// Whether some byte is in both.
    pub fn overlaps(self, other: Span) -> bool {
        self.addr() < other.end() && other.addr() < self.end()
    }

    /// Whether all bytes of the other are in this.
    pub fn holds(self, other: Span) -> bool {
        self.addr() <= other.addr() && other.end() <= self.end()
    }

    /// The part `off..off+len`, or `None` where that is not inside.
    #[inline]
    pub fn part(self, off: usize, len: usize) -> Option<Span> {
        let end = off.checked_add(len)?;
        (end <= self.len).then(|| self.cut(off, len))
    }

    /// The same, made anew from its parts: for a call that takes it in memory, so that it is in registers
    /// where there is no such call.
    #[inline(always)]
    pub fn apart(self) -> Span {
        let Span { addr, len, what } = self;
        Span { addr, len, what }
    }

    /// The part `off..off+len`, which is inside.
    #[inline]
    pub(crate) fn cut(self, off: usize, len: usize) -> Span {
        debug_assert!(off <= self.len && len <= self.len - off);
        Span { addr: self.addr + off, len, ..self }
    }

    /// Other memory of which the same is known.
    ///
    /// # Safety
    /// As for [`Span::new`], with what is known of this one.
    pub(crate) unsafe fn like(self, addr: usize, len: usize) -> Span {
        Span { addr, len, ..self }
    }
}

/// Whether all of these can be done with all of the memory.
#[inline]
pub fn can(iov: &[Span], all: Caps) -> bool {
    iov.iter().all(|s| s.can(all))
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}@{:#x}+{}", self.kind(), self.addr, self.len)
    }
}

/// Bytes in all the spans together.
#[inline]
pub fn total(iov: &[Span]) -> usize {
    match iov {
        [one] => one.len,
        several => several.iter().map(|s| s.len).sum(),
    }
}

/// The bytes `off..off+len` of the spans, as far as they are there.
pub fn parts(iov: &[Span], off: usize, len: usize) -> Vec<Span> {
    let mut parts = Vec::new();
    walk(iov, off, len, |s, _| {
        parts.push(s);
        true
    });
    parts
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
    fn a_span_has_the_kind_and_the_capabilities_that_it_was_made_with() {
        for kind in [Kind::System, Kind::Fake, Kind::Cuda, Kind::Rocr, Kind::Ze, Kind::Client] {
            // SAFETY: never followed.
            let s = unsafe { Span::new(4096, 8, kind) };
            assert_eq!((s.kind(), s.caps(), s.is_plain()), (kind, kind.caps(), kind == Kind::System));
            assert_eq!(s.part(1, 3).map(|p| (p.kind(), p.caps())), Some((kind, kind.caps())));
            let vanishes = if s.can(Caps::CPU) { Caps::VANISH } else { Caps::empty() };
            let shown = s.for_peers();
            assert_eq!((shown.kind(), shown.caps(), shown.is_plain()), (kind, kind.caps() | vanishes, false));
            assert_eq!(shown.part(1, 3).map(Span::caps), Some(shown.caps()));
        }
        assert!(can(&[], Caps::CPU) && can(&[Span::leak(1), Span::EMPTY], Caps::CPU | Caps::CMA));
        assert!(!can(&[Span::leak(1)], Caps::CPU | Caps::DEVICE));
    }

    #[test]
    fn memory_that_stays_is_shown_to_peers_as_such() {
        // SAFETY: never followed.
        let (s, gpu) = unsafe { (Span::new(4096, 8, Kind::System), Span::new(4096, 8, Kind::Cuda)) };
        assert!(s.stays() && !s.for_peers().stays());
        // SAFETY: neither is followed.
        let (lasting, other) = unsafe { (s.lasting(), s.for_peers().lasting()) };
        assert!(lasting.stays() && lasting.is_plain() && !lasting.may_vanish());
        for shown in [lasting.for_peers(), other, other.for_peers()] {
            // The CPU still follows it by the guard.
            assert!(shown.stays() && shown.may_vanish() && !shown.is_plain());
            assert_eq!((shown.kind(), shown.part(1, 3).map(Span::caps)), (Kind::System, Some(shown.caps())));
        }
        // SAFETY: never followed.
        assert_eq!(unsafe { gpu.lasting() }.caps(), Kind::Cuda.caps());
    }

    #[test]
    fn spans_overlap_where_they_share_a_byte() {
        let all = Span::leak(8);
        let part = |off, len| all.part(off, len).unwrap();
        assert!(
            part(0, 5).overlaps(part(4, 4)) && part(4, 4).overlaps(part(0, 5)) && all.overlaps(part(3, 1))
        );
        assert!(!part(0, 4).overlaps(part(4, 4)) && !part(4, 4).overlaps(part(0, 4)));
        assert!(all.holds(all) && all.holds(part(0, 3)) && all.holds(part(5, 3)));
        assert!(!part(0, 7).holds(all) && !part(1, 7).holds(all) && !part(0, 4).holds(part(3, 2)));
    }

    #[test]
    fn a_part_outside_is_refused() {
        let s = Span::leak(8);
        assert_eq!(s.part(8, 0).map(Span::len), Some(0));
        assert!(s.part(8, 1).is_none());
        assert!(s.part(usize::MAX, 2).is_none());
    }
}
