use std::fmt;

use crate::{fake, guard, registry};

/// What memory an address belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Kind {
    /// Ordinary host memory: the CPU may load and store it, and another process may reach it with
    /// process_vm_readv(2).
    #[default]
    System = 0,
    /// Memory of [`crate::fake`], which acts like a device's.
    Fake = 1,
    /// Memory of [`crate::cuda`]: a device's, or managed.
    Cuda = 2,
    /// ROCm's device memory, [`crate::rocr`].
    Rocr = 3,
    /// Level Zero's device memory, [`crate::ze`].
    Ze = 4,
    /// Memory that a program has registered a client for: [`crate::client`].
    Client = 5,
}

impl Kind {
    /// Whether the CPU, and so process_vm_readv(2) in another process, may follow the address.
    #[inline]
    pub fn is_system(self) -> bool {
        matches!(self, Kind::System)
    }
}

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
        (end <= self.len).then(|| Span { addr: self.addr + off, len, ..self })
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
fn walk(iov: &[Span], mut off: usize, len: usize, mut each: impl FnMut(Span, usize) -> bool) -> usize {
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
        if !each(Span { addr: s.addr + off, len: n, ..*s }, done) {
            break;
        }
        done += n;
        off = 0;
    }
    done
}

/// Copies all of `src` into `dst`, which is as long; `false` if the device could not, or the memory is gone.
#[inline]
fn copy_span(dst: Span, src: Span) -> bool {
    if dst.is_plain() && src.is_plain() {
        // SAFETY: both sides are valid by `Span`'s invariant, for the length they share.
        // `ptr::copy` allows any overlap.
        unsafe { std::ptr::copy(src.as_ptr(), dst.as_ptr(), src.len) }
        return true;
    }
    if dst.kind.is_system() && src.kind.is_system() {
        // SAFETY: what is mapped of both sides may be accessed by `Span`'s invariant, for the length they share.
        return unsafe { guard::copy(dst.as_ptr(), src.as_ptr(), src.len) }.is_ok();
    }
    copy_device(dst, src)
}

/// Copies by way of memory of our own.
fn copy_in_pieces(dst: Span, src: Span) -> bool {
    let mut bytes = vec![0u8; src.len.min(crate::flight::PIECE)];
    let at = bytes.as_mut_ptr();
    (0..src.len).step_by(bytes.len().max(1)).all(|off| {
        let n = bytes.len().min(src.len - off);
        let (to, from) =
            (Span { addr: dst.addr + off, len: n, ..dst }, Span { addr: src.addr + off, len: n, ..src });
        copy_span(raw(at, n), from) && copy_span(to, raw(at, n))
    })
}

#[cold]
fn copy_device(dst: Span, src: Span) -> bool {
    let (to, from) = (dst.kind, src.kind);
    if dst.vanishes || src.vanishes {
        // No driver is given memory that may be gone.
        return copy_in_pieces(dst, src);
    }
    if to == Kind::Fake || from == Kind::Fake {
        // No program has another kind as well: this one is for tests.
        let both = |k: Kind| k.is_system() || k == Kind::Fake;
        return both(to) && both(from) && {
            fake::copy(dst, src);
            true
        };
    }
    if to == from || to.is_system() || from.is_system() {
        let of = if to.is_system() { from } else { to };
        return registry::of(of).copy_now(dst.addr, src.addr, src.len).is_ok();
    }
    // Two kinds, neither of which knows the other.
    copy_in_pieces(dst, src)
}

/// Copies `n` bytes at `src`, which the CPU may touch, to the front of `dst`; `false` if the device
/// could not, or the memory is gone.
///
/// # Safety
/// `src` must be valid for reads of `n` bytes; `n` is at most `dst.len()`. They may overlap.
#[inline]
#[must_use]
pub unsafe fn copy_in(dst: Span, src: *const u8, n: usize) -> bool {
    debug_assert!(n <= dst.len);
    copy_span(Span { len: n, ..dst }, raw(src, n))
}

/// Copies `n` bytes from the front of `src` to `dst`, which the CPU may touch; `false` if the device
/// could not, or the memory is gone.
///
/// # Safety
/// `dst` must be valid for writes of `n` bytes; `n` is at most `src.len()`. They may overlap.
#[inline]
#[must_use]
pub unsafe fn copy_out(src: Span, dst: *mut u8, n: usize) -> bool {
    debug_assert!(n <= src.len);
    copy_span(raw(dst, n), Span { len: n, ..src })
}

/// For one copy: memory the caller promised to be valid as long as that takes.
fn raw(at: *const u8, len: usize) -> Span {
    Span { addr: at.expose_provenance(), len, kind: Kind::System, vanishes: false }
}

/// Writes `src` into `dst` from byte `off` of it on; returns how many bytes found room (fewer where a
/// device failed, or memory is gone).
pub fn write(dst: &[Span], off: usize, src: &[u8]) -> usize {
    walk(dst, off, src.len(), |s, done| {
        // SAFETY: `walk` never hands out more than `src` holds from `done` on.
        unsafe { copy_in(s, src.as_ptr().add(done), s.len) }
    })
}

/// Reads into `dst` from byte `off` of `src` on; returns how many bytes there were (fewer where a
/// device failed, or memory is gone).
pub fn read(src: &[Span], off: usize, dst: &mut [u8]) -> usize {
    let out = dst.as_mut_ptr();
    walk(src, off, dst.len(), |s, done| {
        // SAFETY: as in `write`, with the roles exchanged.
        unsafe { copy_out(s, out.add(done), s.len) }
    })
}

/// Copies up to `len` bytes from byte `soff` of `src` to byte `doff` of `dst`; returns how many (fewer
/// where a device failed, or memory is gone).
#[inline]
pub fn copy(dst: &[Span], doff: usize, src: &[Span], soff: usize, len: usize) -> usize {
    // One span each, all inside: what nearly every message is.
    if let ([d], [s]) = (dst, src) {
        if let (Some(d), Some(s)) = (d.part(doff, len), s.part(soff, len)) {
            return if copy_span(d, s) { len } else { 0 };
        }
    }
    copy_parts(dst, doff, src, soff, len)
}

fn copy_parts(dst: &[Span], doff: usize, src: &[Span], soff: usize, len: usize) -> usize {
    let mut moved = 0;
    walk(src, soff, len, |s, done| {
        let n = walk(dst, doff + done, s.len, |d, inner| {
            let part = Span { addr: s.addr + inner, len: d.len, ..s };
            copy_span(d, part)
        });
        moved += n;
        n == s.len
    });
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_crosses_iovs_of_other_shapes() {
        let src = [Span::leak(3), Span::leak(0), Span::leak(6)];
        let dst = [Span::leak(5), Span::leak(4)];
        assert_eq!(write(&src, 0, b"123456789"), 9);
        assert_eq!(copy(&dst, 1, &src, 0, 9), 8);
        let mut back = [0; 9];
        assert_eq!(read(&dst, 0, &mut back), 9);
        assert_eq!(&back, b"\x0012345678");
        assert_eq!(write(&dst, 7, b"abc"), 2);
        assert_eq!(read(&dst, 6, &mut back[..2]), 2);
        assert_eq!(&back[..2], b"6a");
    }

    #[test]
    fn a_part_outside_is_refused() {
        let s = Span::leak(8);
        assert_eq!(s.part(8, 0).map(Span::len), Some(0));
        assert!(s.part(8, 1).is_none());
        assert!(s.part(usize::MAX, 2).is_none());
    }
}
