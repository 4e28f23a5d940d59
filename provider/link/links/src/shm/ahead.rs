//! What the processor does ahead of the program: what it is asked to fetch, and what it is kept from.
//!
//! None of it changes what a program does. Where it has no instruction for it, nothing is done.

/// Has a cache line fetched to be read.
#[inline(always)]
pub(crate) fn will_read(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: it changes nothing, and never faults.
    unsafe {
        std::arch::asm!("prefetcht0 byte ptr [{}]", in(reg) at.addr(), options(nomem, nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Has a cache line fetched to be written.
#[inline(always)]
pub(crate) fn will_write(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: it changes nothing and never faults, and to 64-bit processors of before 2014 that do not have
    // it it is no operation.
    unsafe {
        std::arch::asm!("prefetchw byte ptr [{}]", in(reg) at.addr(), options(nomem, nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Has a cache line that was written moved to a cache that processors share (cldemote), from which another
/// one gets it sooner.
#[inline(always)]
pub(crate) fn hand_over(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: it changes nothing and never faults, and to processors that do not have it it is no operation.
    // By its bytes, `0f 1c /0` with rax, since assemblers take its name only where the target has it.
    unsafe {
        std::arch::asm!(".byte 0x0f, 0x1c, 0x00", in("rax") at.addr(), options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// To be called after a poll that found no frame, most probably before the next one.
///
/// A processor that takes for granted that nothing comes executes many such polls ahead of time
/// (speculation). What it read is thrown away when the line changes hands, and it asks for the line again at
/// once: before the sender, which has it to write several words to it, is done. So the next poll waits for
/// this one (lfence).
#[inline(always)]
pub fn speculation_barrier() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: it changes nothing.
    unsafe {
        std::arch::asm!("lfence", options(nostack, preserves_flags));
    }
}
