//! Memory that providers read and write behind our back.

use std::io;
use std::ptr::NonNull;

use super::Error;

/// A part of a [`Region`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Bytes from the region's start.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

/// Fresh pages of our own. They are only ever accessed by copying through raw pointers: a peer may
/// write to them at any time.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
}

impl Region {
    /// Bytes that whole pages for `len` bytes take.
    pub fn pages(len: usize) -> usize {
        const PAGE: usize = 4096;
        len.max(1).div_ceil(PAGE) * PAGE
    }

    /// Maps at least `len` bytes of zeroes and touches each page.
    pub fn new(len: usize) -> io::Result<Region> {
        let len = Self::pages(len);
        // SAFETY: an anonymous mapping at no particular address touches no memory of ours.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
                -1,
                0,
            )
        };
        match NonNull::new(base.cast::<u8>()) {
            Some(base) if base.as_ptr().cast() != libc::MAP_FAILED => Ok(Region { base, len }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn address(&self) -> u64 {
        self.base.as_ptr().expose_provenance() as u64
    }

    /// Where `part` is. Panics if it is not within the region: parts are made by this program.
    #[inline]
    pub fn at(&self, part: Part) -> *mut u8 {
        assert!(part.offset <= self.len && part.len <= self.len - part.offset);
        // SAFETY: within the mapping by the line above.
        unsafe { self.base.as_ptr().add(part.offset) }
    }

    /// Writes one byte value all over a part.
    pub fn fill(&self, part: Part, value: u8) {
        // SAFETY: `at` checked the bounds; no reference into the region exists.
        unsafe { self.at(part).write_bytes(value, part.len) };
    }

    /// Writes the pattern of `seed` to a part.
    pub fn put_pattern(&self, part: Part, seed: u64) {
        let bytes = pattern(seed, part.len);
        // SAFETY: `at` checked the bounds and `bytes` has that length; no reference into the
        // region exists.
        unsafe { self.at(part).copy_from(bytes.as_ptr(), part.len) };
    }

    /// Compares a part with the pattern of `seed`; `Err` says where it differs.
    pub fn check_pattern(&self, part: Part, seed: u64) -> Result<(), Error> {
        let mut got = vec![0; part.len];
        // SAFETY: `at` checked the bounds and `got` has that length; no reference into the region
        // exists.
        unsafe { self.at(part).copy_to(got.as_mut_ptr(), part.len) };
        let want = pattern(seed, part.len);
        match got.iter().zip(&want).position(|(a, b)| a != b) {
            None => Ok(()),
            Some(at) => Err(Error::Failed(format!(
                "WRONG DATA: byte {at} of {} is {:#04x} instead of {:#04x} ({} bytes are wrong)",
                part.len,
                got[at],
                want[at],
                got.iter().zip(&want).filter(|(a, b)| a != b).count()
            ))),
        }
    }

    pub fn put_u64(&self, part: Part, value: u64) {
        assert!(part.len == 8);
        // SAFETY: `at` checked the bounds and the length is that of a u64; volatile, as a peer
        // may write here too.
        unsafe { self.at(part).cast::<[u8; 8]>().write_volatile(value.to_ne_bytes()) };
    }

    pub fn get_u64(&self, part: Part) -> u64 {
        assert!(part.len == 8);
        // SAFETY: as in `put_u64`.
        u64::from_ne_bytes(unsafe { self.at(part).cast::<[u8; 8]>().read_volatile() })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `new`, and no reference into it exists.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Bytes that differ with the seed, and from place to place.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        // xorshift64*
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        bytes.extend_from_slice(&state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_ne_bytes());
    }
    bytes.truncate(len);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_found_again_and_a_wrong_byte_noticed() {
        let region = Region::new(5000).unwrap();
        assert_eq!(region.len(), 8192);
        let part = Part { offset: 4091, len: 1001 };
        region.put_pattern(part, 7);
        region.check_pattern(part, 7).unwrap();
        assert!(region.check_pattern(part, 8).is_err());
        region.fill(Part { offset: 4096, len: 1 }, 0);
        region.fill(Part { offset: 4096, len: 1 }, !pattern(7, 6)[5]);
        let error = region.check_pattern(part, 7).unwrap_err();
        assert!(error.text().contains("byte 5 of 1001"), "{error}");
        assert!(error.text().contains("(1 bytes are wrong)"), "{error}");
    }

    #[test]
    #[should_panic]
    fn a_part_outside_is_refused() {
        let region = Region::new(1).unwrap();
        region.at(Part { offset: usize::MAX, len: 2 });
    }
}
