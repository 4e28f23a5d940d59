//! Copies between spans of any kinds, done when the call returns.

use crate::bytes::copy_bytes;
use crate::kind::{Caps, Kind};
use crate::pending::PIECE;
use crate::span::{Span, walk};
use crate::{fake, guard, registry};

/// Copies all of `src` into `dst`, which is as long; `false` if the device could not, or the memory is gone.
#[inline]
fn copy_span(dst: Span, src: Span) -> bool {
    if dst.is_plain() && src.is_plain() {
        // SAFETY: both sides are valid by `Span`'s invariant, for the length they share.
        // Any overlap is allowed.
        unsafe { copy_bytes(src.as_ptr(), dst.as_ptr(), src.len()) }
        return true;
    }
    if dst.can(Caps::CPU) && src.can(Caps::CPU) {
        // SAFETY: what is mapped of both sides may be accessed by `Span`'s invariant, for the length they
        // share.
        return unsafe { guard::copy(dst.as_ptr(), src.as_ptr(), src.len()) }.is_ok();
    }
    copy_device(dst, src)
}

/// Copies by way of memory of our own.
fn copy_in_pieces(dst: Span, src: Span) -> bool {
    let mut bytes = vec![0u8; src.len().min(PIECE)];
    let at = bytes.as_mut_ptr();
    (0..src.len()).step_by(bytes.len().max(1)).all(|off| {
        let n = bytes.len().min(src.len() - off);
        let (to, from) = (dst.cut(off, n), src.cut(off, n));
        copy_span(raw(at, n), from) && copy_span(to, raw(at, n))
    })
}

#[cold]
fn copy_device(dst: Span, src: Span) -> bool {
    let (to, from) = (dst.kind(), src.kind());
    if dst.may_vanish() || src.may_vanish() {
        // No driver is given memory that may be gone.
        return copy_in_pieces(dst, src);
    }
    if to == Kind::Fake || from == Kind::Fake {
        // No program has another kind as well: this one is for tests.
        let known = |s: Span| s.can(Caps::CPU) || s.kind() == Kind::Fake;
        return known(dst) && known(src) && {
            fake::copy(dst, src);
            true
        };
    }
    if to == from || dst.can(Caps::CPU) || src.can(Caps::CPU) {
        let of = if dst.can(Caps::CPU) { from } else { to };
        return registry::of(of).copy_now(dst.addr() as usize, src.addr() as usize, src.len()).is_ok();
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
    if dst.is_plain() {
        // SAFETY: valid by `Span`'s invariant, and by the caller's promise.
        unsafe { copy_bytes(src, dst.as_ptr(), n) }
        return true;
    }
    copy_span(dst.cut(0, n), raw(src, n))
}

/// Copies `n` bytes from the front of `src` to `dst`, which the CPU may touch; `false` if the device
/// could not, or the memory is gone.
///
/// # Safety
/// `dst` must be valid for writes of `n` bytes; `n` is at most `src.len()`. They may overlap.
#[inline]
#[must_use]
pub unsafe fn copy_out(src: Span, dst: *mut u8, n: usize) -> bool {
    copy_span(raw(dst, n), src.cut(0, n))
}

/// For one copy, of which the caller has promised that the memory is valid as long as it takes.
fn raw(at: *const u8, len: usize) -> Span {
    // SAFETY: the span is used for that copy only.
    unsafe { Span::new(at.expose_provenance(), len, Kind::System) }
}

/// Writes `src` into `dst` from byte `off` of it on; returns how many bytes found room (fewer where a
/// device failed, or memory is gone).
#[inline]
pub fn write(dst: &[Span], off: usize, src: &[u8]) -> usize {
    // One span, and all inside: what nearly every message is.
    if let [d] = dst {
        if let Some(d) = d.part(off, src.len()) {
            // SAFETY: `src` is a slice of as many bytes.
            return if unsafe { copy_in(d, src.as_ptr(), src.len()) } { src.len() } else { 0 };
        }
    }
    write_parts(dst, off, src)
}

fn write_parts(dst: &[Span], off: usize, src: &[u8]) -> usize {
    walk(dst, off, src.len(), |s, done| {
        // SAFETY: `walk` never hands out more than `src` holds from `done` on.
        unsafe { copy_in(s, src.as_ptr().add(done), s.len()) }
    })
}

/// Reads into `dst` from byte `off` of `src` on; returns how many bytes there were (fewer where a
/// device failed, or memory is gone).
#[inline]
pub fn read(src: &[Span], off: usize, dst: &mut [u8]) -> usize {
    // As in `write`.
    if let [s] = src {
        if let Some(s) = s.part(off, dst.len()).filter(|s| s.is_plain()) {
            // SAFETY: valid by `Span`'s invariant; `dst` is a slice of as many bytes.
            unsafe { copy_bytes(s.as_ptr(), dst.as_mut_ptr(), dst.len()) }
            return dst.len();
        }
    }
    read_parts(src, off, dst)
}

fn read_parts(src: &[Span], off: usize, dst: &mut [u8]) -> usize {
    let out = dst.as_mut_ptr();
    walk(src, off, dst.len(), |s, done| {
        // SAFETY: as in `write`, with the roles exchanged.
        unsafe { copy_out(s, out.add(done), s.len()) }
    })
}

/// Whether the CPU can read all of these bytes of the host's memory now: their pages are made present for
/// that (MADV_POPULATE_READ). Also `false` where the kernel cannot say so (before Linux 5.14; a device's
/// pages).
pub fn is_present(src: &[Span], off: usize, len: usize) -> bool {
    // SAFETY: without requirements.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let present = walk(src, off, len, |s, _| {
        let first = s.addr() as usize & !(page - 1);
        let n = s.addr() as usize + s.len() - first;
        let at = std::ptr::without_provenance_mut(first);
        // SAFETY: this advice changes no byte, and what is not mapped is an error.
        s.can(Caps::CPU) && unsafe { libc::madvise(at, n, libc::MADV_POPULATE_READ) } == 0
    });
    present == len
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
        let n = walk(dst, doff + done, s.len(), |d, inner| copy_span(d, s.cut(inner, d.len())));
        moved += n;
        n == s.len()
    });
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_present_from_its_first_page_to_its_last_and_not_beyond() {
        const PAGE: usize = 64 << 10;
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a mapping of its own, of which the last third is taken away again and the middle is not to
        // be read.
        let at = unsafe {
            let at = libc::mmap(std::ptr::null_mut(), 4 * PAGE, prot, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            assert_eq!(libc::munmap(at.byte_add(3 * PAGE), PAGE), 0);
            assert_eq!(libc::mprotect(at.byte_add(PAGE), PAGE, libc::PROT_NONE), 0);
            at.expose_provenance()
        };
        // SAFETY: nothing is accessed by them.
        let span = |off: usize, len: usize| unsafe { Span::new(at + off, len, Kind::System) };
        assert!(is_present(&[span(0, PAGE), span(2 * PAGE, PAGE)], 1, 2 * PAGE - 2));
        assert!(is_present(&[span(PAGE - 1, 1), span(3 * PAGE - 1, 1)], 0, 2));
        assert!(!is_present(&[span(PAGE - 1, 2)], 0, 2));
        assert!(is_present(&[span(PAGE - 1, 2)], 0, 1));
        assert!(!is_present(&[span(2 * PAGE, PAGE + 1)], 0, PAGE + 1));
        assert!(!is_present(&[span(2 * PAGE, PAGE)], 0, PAGE + 1));
    }

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
}
