//! What the driver loads when it is first needed, loaded before it is.
//!
//! The driver's own kernels for copies come with modules that it loads at their first use (CUDA_MODULE_LOADING,
//! lazy since CUDA 12.2), and a stream gets its queue with the first work. Either may wait until the kernels end
//! that run by then (CUDA C++ Programming Guide, "Lazy Loading"). A kernel that waits for a transfer of ours never
//! does: so every sort of copy is done once, small, when a context is first used here, which for registered memory
//! is when that is registered.

use std::sync::OnceLock;

use super::api::{Api, Handle};

/// Lengths between which drivers are known to change how they copy: inline, by a kernel, by a copy engine.
const LENGTHS: [usize; 5] = [1, 8, 4096, 65_537, 262_144];
/// Longest, and room to begin at an odd address.
const ROOM: usize = 262_144 + 64;

/// Host memory to copy from and to. What is in it is of no interest, and it stays.
fn host() -> u64 {
    static HOST: OnceLock<u64> = OnceLock::new();
    *HOST
        .get_or_init(|| Box::leak(vec![0u8; ROOM].into_boxed_slice()).as_mut_ptr().expose_provenance() as u64)
}

/// Device memory of the context that is entered, to copy from and to; 0 if there is none. It is never freed, since
/// to free memory is to wait for all that the device does.
pub(super) fn memory(api: &Api) -> u64 {
    let mut at = 0;
    api.mem_alloc(&mut at, 2 * ROOM).map_or(0, |()| at)
}

/// Does every sort of copy once in the context that is entered: in its first stream with all lengths, in the others
/// with a short one. `own` is its [`memory`], `others` that of other contexts. Nothing is waited for but what the
/// driver waits for itself, and what it refuses here will be refused when it is needed.
pub(super) fn load(api: &Api, streams: &[usize], own: u64, others: &[u64]) {
    if own == 0 {
        return;
    }
    let (second, host) = (own + ROOM as u64, host());
    let copy = |dst: u64, src: u64, len: usize, stream: usize| {
        let _ = api.copy_async(dst, src, len, stream as Handle);
    };
    let every = |len: usize, odd: u64, stream: usize| {
        for (dst, src) in [(own, host), (second, own), (host, second)] {
            copy(dst + odd, src, len, stream);
        }
        for other in others {
            copy(*other, own + odd, len, stream);
            copy(second, *other + odd, len, stream);
        }
    };
    for (n, &stream) in streams.iter().enumerate() {
        if n > 0 {
            every(8, 0, stream);
            continue;
        }
        for len in LENGTHS {
            every(len, 0, stream);
            every(len, 1, stream);
        }
    }
}
