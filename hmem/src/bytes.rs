//! Copies of bytes that the processor reaches itself.

/// Up to so many bytes memcpy(3) of glibc copies by loads and stores; more by `rep movsb`, where the
/// processor says that it is quick.
const PART: usize = 2048;
const PAGE: usize = 4096;

/// Whether `rep movsb` is slow from there to there. Processors of AMD from Zen 3 on, which say that it is
/// quick (FSRM), copy a byte at a time, 23 times slower as measured, where the destination is 1 to 31 bytes
/// behind the source within a page. A frame in a ring is there for one in 32 of its places.
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

/// Copies past the caches: for much that is not read again at once, which then need not be read before it
/// is written.
///
/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`].
pub(crate) unsafe fn stream_bytes(src: *const u8, dst: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if len >= PART && std::is_x86_feature_detected!("avx") {
        // SAFETY: the caller's promise, and the processor has the instructions.
        return unsafe { stream_wide(src, dst, len) };
    }
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, len) }
}

/// # Safety
/// As for [`stream_bytes`]; `len` is at least a line of the cache.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx")]
unsafe fn stream_wide(src: *const u8, dst: *mut u8, len: usize) {
    use std::arch::x86_64::*;
    const LINE: usize = 64;
    /// Bytes by which the source is prefetched ahead of its use.
    const AHEAD: usize = 1024;
    let head = dst.addr().wrapping_neg() % LINE;
    let end = head + (len - head) / LINE * LINE;
    // SAFETY: all that is read and written is inside `len` bytes; a prefetch may name any address.
    unsafe {
        std::ptr::copy_nonoverlapping(src, dst, head);
        for at in (head..end).step_by(LINE) {
            let (from, to) = (src.add(at).cast::<__m256i>(), dst.add(at).cast::<__m256i>());
            _mm_prefetch::<_MM_HINT_T0>(src.wrapping_add(at + AHEAD).cast());
            let (low, high) = (_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1)));
            _mm256_stream_si256(to, low);
            _mm256_stream_si256(to.add(1), high);
        }
        std::ptr::copy_nonoverlapping(src.add(end), dst.add(end), len - end);
        // Before it is said that the bytes are there.
        _mm_sfence();
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

    /// Bytes past the caches are copied wherever source and destination begin.
    #[test]
    fn non_temporal_copies_work_at_any_alignment() {
        let text: Vec<u8> = (0..3 * PAGE).map(|n| (n * 7 + n / 256) as u8).collect();
        let mut to = vec![0u8; 4 * PAGE];
        for (from, at) in [(0, 0), (1, 0), (0, 1), (5, 63), (64, 31), (77, 100)] {
            for len in [0, 1, PART - 1, PART, PART + 1, PART + 63, 2 * PAGE + 13] {
                to.fill(0);
                // SAFETY: both are inside their vectors.
                unsafe { stream_bytes(text.as_ptr().add(from), to.as_mut_ptr().add(at), len) };
                assert!(to[at..at + len] == text[from..from + len], "{len} bytes, from {from} to {at}");
                assert!(to[..at].iter().chain(&to[at + len..]).all(|b| *b == 0), "{len} bytes: outside");
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
