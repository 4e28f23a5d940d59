//! Host memory for what operations keep between messages. It is used again, and stays mapped for ever: a
//! [`Span`] of it is valid whatever becomes of its owner, so that safe code may hand it to a link.

use std::ptr;
use std::sync::{Mutex, PoisonError};

use crate::kind::Kind;
use crate::span::Span;

/// Bytes of the smallest stretch; each other one is twice as long as the one before.
const LEAST: usize = 4096;
/// From so many bytes on a stretch has no pages while it is not used.
const UNBACKED: usize = 1 << 20;
const SIZES: usize = 40;

/// Addresses of stretches that are not used, by size.
static SPARE: Mutex<[Vec<usize>; SIZES]> = Mutex::new([const { Vec::new() }; SIZES]);

/// Memory of one owner until it is dropped. What is in it at first is anything.
#[derive(Debug)]
pub struct Scratch {
    addr: usize,
    /// Its place in [`SPARE`]; `None`: it has no bytes.
    size: Option<usize>,
    len: usize,
}

impl Scratch {
    /// `None`: the system has no memory.
    pub fn new(len: usize) -> Option<Scratch> {
        if len == 0 {
            return Some(Scratch { addr: 0, size: None, len });
        }
        let pages = len.div_ceil(LEAST).checked_next_power_of_two()?;
        let size = pages.trailing_zeros() as usize;
        let spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner).get_mut(size)?.pop();
        let addr = match spare {
            Some(addr) => addr,
            None => map(LEAST << size)?,
        };
        Some(Scratch { addr, size: Some(size), len })
    }

    /// Its memory.
    pub fn span(&self) -> Span {
        if self.size.is_none() {
            return Span::EMPTY;
        }
        // SAFETY: the stretch was mapped for reads and writes, has at least so many bytes, and is never
        // unmapped. Once the owner is dropped its bytes may change at any time, as those of any span.
        unsafe { Span::new(self.addr, self.len, Kind::System) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let Some(size) = self.size else { return };
        if LEAST << size >= UNBACKED {
            // SAFETY: the whole stretch is private memory of this type's, mapped by `map`, and stays mapped.
            unsafe {
                libc::madvise(ptr::with_exposed_provenance_mut(self.addr), LEAST << size, libc::MADV_DONTNEED)
            };
        }
        SPARE.lock().unwrap_or_else(PoisonError::into_inner)[size].push(self.addr);
    }
}

fn map(len: usize) -> Option<usize> {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address of the system's choice touches no other memory.
    let at = unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, -1, 0) };
    (at != libc::MAP_FAILED).then(|| at.expose_provenance())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_and_stays_mapped() {
        let first = Scratch::new(UNBACKED * 2 + 1).unwrap();
        let span = first.span();
        assert_eq!(crate::write(&[span], 0, &[7; 100]), 100);
        drop(first);
        // The owner is gone, and the span can still be followed.
        let mut bytes = [1; 100];
        assert_eq!(crate::read(&[span], 0, &mut bytes), 100);
        assert_eq!(bytes, [0; 100], "it has other pages");
        let second = Scratch::new(UNBACKED * 2 + 1).unwrap();
        assert_eq!(second.span(), span);
    }

    #[test]
    fn two_owners_share_nothing() {
        let (a, b) = (Scratch::new(5000).unwrap(), Scratch::new(5000).unwrap());
        assert!(!a.span().overlaps(b.span()));
        assert_eq!((a.span().len(), Scratch::new(0).unwrap().span()), (5000, Span::EMPTY));
        assert!(Scratch::new(usize::MAX).is_none());
    }
}
