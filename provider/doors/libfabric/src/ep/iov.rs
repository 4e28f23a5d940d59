//! Buffers and vectors of the ABI as what the engine takes.

use arrayvec::ArrayVec;
use engine::{Iov, RmaIov};
use hmem::{Datatype, Span, classify};
use libc::{c_void, iovec};
use libfabric_sys as fi;
use wire::RmaSeg;

use crate::errno::Errno;

/// Longest vector, of either kind.
pub(crate) const LIMIT: usize = 8;

/// One buffer.
///
/// Descriptors are not read: the kind of memory is found by its address, so clients need pass none
/// (`FI_MR_LOCAL` and `FI_MR_HMEM` are not required).
///
/// # Safety
/// `buf..buf+len` is valid for the operation it is named in, and until that completes.
#[inline]
pub(crate) unsafe fn span(buf: *const c_void, len: usize) -> Span {
    let addr = buf.expose_provenance();
    // SAFETY: the caller's promise is the type's.
    unsafe { Span::new(addr, len, classify(addr, len)) }
}

/// The same once more, for a way that is seldom taken.
///
/// # Safety
/// As for [`span`].
#[cold]
pub(crate) unsafe fn span_again(buf: *const c_void, len: usize) -> Span {
    // SAFETY: the caller's promise.
    unsafe { span(buf, len) }
}

/// A C vector as a slice; `FI_EINVAL` if there is none though it has a length, or it is too long.
///
/// # Safety
/// `v` is NULL or points to `count` values that nothing writes during `'a`.
#[inline]
unsafe fn slice<'a, T>(v: *const T, count: usize) -> Result<&'a [T], Errno> {
    if count == 0 {
        return Ok(&[]);
    }
    if v.is_null() || !v.is_aligned() || count > LIMIT {
        return Err(Errno::INVAL);
    }
    // SAFETY: not NULL and aligned, so by the caller's promise `count` readable values.
    Ok(unsafe { std::slice::from_raw_parts(v, count) })
}

/// Adds a length to a total, which is to stay one that memory can have.
fn grow(total: &mut usize, len: usize) -> Result<(), Errno> {
    *total = total.checked_add(len).filter(|t| *t <= isize::MAX as usize).ok_or(Errno::INVAL)?;
    Ok(())
}

/// The buffers of a message or RMA.
///
/// # Safety
/// `iov` is NULL or points to `count` entries, each as [`span`] demands.
#[inline]
pub(crate) unsafe fn spans(iov: *const iovec, count: usize) -> Result<Iov, Errno> {
    let (mut out, mut total) = (Iov::new(), 0);
    // SAFETY: the caller's promise.
    for v in unsafe { slice(iov, count) }? {
        grow(&mut total, v.iov_len)?;
        // SAFETY: the caller's promise.
        out.push(unsafe { span(v.iov_base, v.iov_len) });
    }
    Ok(out)
}

/// One operand of an atomic: `count` elements.
///
/// # Safety
/// As for [`span`], the length being `count` elements of the type.
#[inline]
pub(crate) unsafe fn element(buf: *const c_void, count: usize, datatype: Datatype) -> Result<Span, Errno> {
    let len = bytes(count, datatype)?;
    // SAFETY: the caller's promise.
    Ok(unsafe { span(buf, len) })
}

/// The operands of an atomic.
///
/// # Safety
/// `ioc` is NULL or points to `count` entries, each as [`element`] demands.
pub(crate) unsafe fn elements(
    ioc: *const fi::fi_ioc,
    count: usize,
    datatype: Datatype,
) -> Result<Iov, Errno> {
    let (mut out, mut total) = (Iov::new(), 0);
    // SAFETY: the caller's promise.
    for v in unsafe { slice(ioc, count) }? {
        // SAFETY: the caller's promise.
        let s = unsafe { element(v.addr, v.count, datatype) }?;
        grow(&mut total, s.len())?;
        out.push(s);
    }
    Ok(out)
}

fn bytes(count: usize, datatype: Datatype) -> Result<usize, Errno> {
    let mut total = 0;
    grow(&mut total, count.checked_mul(datatype.size()).ok_or(Errno::INVAL)?)?;
    Ok(total)
}

/// Remote memory of one piece.
#[inline]
pub(crate) fn segment(addr: u64, len: usize, key: u64) -> RmaSeg {
    RmaSeg { addr: addr.into(), len: (len as u64).into(), key: key.into() }
}

/// Remote memory of an RMA operation that moves `len` bytes; `FI_EINVAL` if that is not what it is.
///
/// # Safety
/// `rma` is NULL or points to `count` entries.
#[inline]
pub(crate) unsafe fn remote(rma: *const fi::fi_rma_iov, count: usize, len: usize) -> Result<RmaIov, Errno> {
    let (mut out, mut total) = (ArrayVec::new(), 0);
    // SAFETY: the caller's promise.
    for v in unsafe { slice(rma, count) }? {
        grow(&mut total, v.len)?;
        out.push(segment(v.addr, v.len, v.key));
    }
    if total == len { Ok(out) } else { Err(Errno::INVAL) }
}

/// Remote memory of an atomic; its length in bytes comes with it.
///
/// # Safety
/// `rma` is NULL or points to `count` entries.
pub(crate) unsafe fn remote_elements(
    rma: *const fi::fi_rma_ioc,
    count: usize,
    datatype: Datatype,
) -> Result<(RmaIov, usize), Errno> {
    let (mut out, mut total) = (ArrayVec::new(), 0);
    // SAFETY: the caller's promise.
    for v in unsafe { slice(rma, count) }? {
        let len = bytes(v.count, datatype)?;
        grow(&mut total, len)?;
        out.push(segment(v.addr, len, v.key));
    }
    Ok((out, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn iovs(lens: &[usize]) -> Vec<iovec> {
        let base = std::ptr::without_provenance_mut(0x1000);
        lens.iter().map(|&iov_len| iovec { iov_base: base, iov_len }).collect()
    }

    #[test]
    fn vectors_are_checked_before_they_are_believed() {
        let lens = |v: &[usize]| {
            let v = iovs(v);
            // SAFETY: the vector is valid, and nothing follows the addresses in it.
            unsafe { spans(v.as_ptr(), v.len()) }.map(|s| s.iter().map(|s| s.len()).collect())
        };
        assert_eq!(lens(&[]), Ok(vec![]));
        assert_eq!(lens(&[3, 0, 5]), Ok(vec![3, 0, 5]));
        assert_eq!(lens(&[1; 8]), Ok(vec![1; 8]));
        assert_eq!(lens(&[1; 9]), Err(Errno::INVAL));
        assert_eq!(lens(&[usize::MAX, 2]), Err(Errno::INVAL));
        // SAFETY: NULL is allowed.
        let none = unsafe { spans(std::ptr::null(), 1) };
        assert_eq!(none.err(), Some(Errno::INVAL));
        // SAFETY: NULL is allowed.
        assert!(unsafe { spans(std::ptr::null(), 0) }.is_ok_and(|s| s.is_empty()));
    }

    #[test]
    fn both_sides_of_an_rma_are_as_long() {
        let rma = [fi::fi_rma_iov { addr: 1, len: 3, key: 7 }, fi::fi_rma_iov { addr: 9, len: 4, key: 8 }];
        // SAFETY: the array is valid.
        let ok = unsafe { remote(rma.as_ptr(), 2, 7) };
        assert_eq!(ok, Ok([segment(1, 3, 7), segment(9, 4, 8)].into_iter().collect()));
        // SAFETY: the array is valid.
        assert_eq!(unsafe { remote(rma.as_ptr(), 2, 8) }, Err(Errno::INVAL));
    }

    #[test]
    fn elements_become_bytes() {
        let base = std::ptr::without_provenance_mut(0x1000);
        let ioc = [fi::fi_ioc { addr: base, count: 3 }, fi::fi_ioc { addr: base, count: usize::MAX / 4 }];
        let of = |n| {
            // SAFETY: the array is valid, and nothing follows the addresses in it.
            unsafe { elements(ioc.as_ptr(), n, Datatype::Int64) }.map(|s| hmem::total(&s))
        };
        assert_eq!(of(1), Ok(24));
        assert_eq!(of(2), Err(Errno::INVAL));
        let rma = [fi::fi_rma_ioc { addr: 8, count: 3, key: 1 }];
        // SAFETY: the array is valid.
        let got = unsafe { remote_elements(rma.as_ptr(), 1, Datatype::Uint16) };
        assert_eq!(got, Ok(([segment(8, 6, 1)].into_iter().collect(), 6)));
    }
}
