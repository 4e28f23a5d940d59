//! Copies of bytes that the processor reaches itself.

/// Up to so many bytes memcpy(3) of glibc copies by loads and stores; more by `rep movsb`, where the processor says that it is quick.
const PART: usize = 2048;
const PAGE: usize = 4096;

/// Whether `rep movsb` is slow from there to there. Processors of AMD from Zen 3 on, which say that it is quick (FSRM), copy a byte
/// at a time, 23 times slower as measured, where the destination is 1 to 31 bytes behind the source within a page. A frame in a ring
/// is there for one in 32 of its places.
#[inline]
fn is_slow(dst: usize, src: usize) -> bool {
    (dst.wrapping_sub(src) % PAGE).wrapping_sub(1) < 31
}

/// As [`std::ptr::copy`], and as quick wherever the two begin.
///
/// # Safety
/// As for that.
#[inline]
pub unsafe fn copy_bytes(src: *const u8, dst: *mut u8, len: usize) {
    if len > PART && is_slow(dst.addr(), src.addr()) {
        // SAFETY: the caller's promise.
        return unsafe { copy_in_parts(src, dst, len) };
    }
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy(src, dst, len) }
}

/// # Safety
/// As for [`copy_bytes`].
#[cold]
unsafe fn copy_in_parts(src: *const u8, dst: *mut u8, len: usize) {
    // Forwards a part would write over what another one is to read.
    let part = if dst.addr().wrapping_sub(src.addr()) < len { len } else { PART };
    for at in (0..len).step_by(part) {
        // SAFETY: inside `len` bytes of both, by the caller's promise.
        unsafe { std::ptr::copy(src.add(at), dst.add(at), part.min(len - at)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_are_copied_wherever_source_and_destination_begin() {
        let text: Vec<u8> = (0..3 * PAGE).map(|n| (n * 7 + n / 256) as u8).collect();
        let mut to = vec![0u8; 5 * PAGE];
        let even = (to.as_ptr().addr().wrapping_sub(text.as_ptr().addr())) % PAGE;
        for behind in [0, 1, 8, 31, 32, 33, 2048, 4095] {
            let at = (2 * PAGE - even + behind) % PAGE;
            for len in [0, 1, PART, PART + 1, 2 * PART + 1, 2 * PAGE + 13] {
                to.fill(0);
                // SAFETY: both are inside their vectors.
                unsafe { copy_bytes(text.as_ptr(), to.as_mut_ptr().add(at), len) };
                assert!(to[at..at + len] == text[..len], "{len} bytes, {behind} behind");
                assert!(
                    to[..at].iter().chain(&to[at + len..]).all(|b| *b == 0),
                    "{len} bytes, {behind} behind"
                );
            }
        }
    }

    #[test]
    fn what_overlaps_is_copied_as_it_was() {
        for (from, to) in [(0, 8), (8, 0), (0, PAGE + 8), (PAGE, 8), (PAGE + 31, 0)] {
            let mut all: Vec<u8> = (0..4 * PAGE).map(|n| (n * 7 + n / 256) as u8).collect();
            let want = all[from..from + 2 * PAGE].to_vec();
            let begin = all.as_mut_ptr();
            // SAFETY: both are inside the vector.
            unsafe { copy_bytes(begin.add(from), begin.add(to), 2 * PAGE) };
            assert!(all[to..to + 2 * PAGE] == want, "from {from} to {to}");
        }
    }

    #[test]
    fn places_that_are_slow() {
        let page = 1 << 20;
        let slow: Vec<usize> = (0..PAGE).filter(|behind| is_slow(page + behind, 5 * PAGE)).collect();
        assert_eq!(slow, (1..32).collect::<Vec<_>>());
        assert!(is_slow(16, 4096) && is_slow(4096, 8191) && !is_slow(4095, 4096));
    }
}
