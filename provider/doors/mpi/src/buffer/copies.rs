//! Copies of blocks between devices and the host.

use hmem::pending::Part;
use hmem::{Caps, Kind, Span, registry};

use super::kernels::{self, User, Way};
use super::memory::Memory;
use crate::shape::{Data, Tree};

/// Parts that are given to a device at a time.
const BATCH: usize = 4096;
/// Bytes between blocks up to which all is copied from the device as one block, and no kernel packs: that
/// takes as long as the copy of so many.
const GAPS: usize = 1 << 17;
/// The same without kernels, for each byte of data.
const SPARSE: usize = 4;

/// Where a block is in host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// At the offset that it has in the program's memory, from this address on.
    Same(usize),
    /// Behind the block before it; the first one is here.
    Behind(usize),
    /// The same in memory of the device that the program's is on.
    Device(usize),
}

/// How bytes were copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// By a kernel that packs or unpacks.
    Kernel,
    /// By copies of the driver's.
    Copies,
}

/// Copies the first `most` bytes between the program's memory and the host's; how it was done, or `None`
/// where it was not.
///
/// # Safety
/// All blocks are valid on both sides.
pub(super) unsafe fn copy(data: &Data, user: User, host: Place, way: Way, most: usize) -> Option<By> {
    let (tree, most) = (&data.tree, most.min(data.tree.size()));
    let Some((low, high)) = tree.bounds() else { return Some(By::Copies) };
    if most == 0 {
        return Some(By::Copies);
    }
    let (len, blocks) = ((high - low) as usize, tree.blocks());
    // SAFETY: the caller's promise; so below.
    unsafe {
        let copies = |done: bool| done.then_some(By::Copies);
        let Some(kind) = user.kind else { return copies(one_by_one(tree, user, host, way, most)) };
        let by_kernel = kernels::are_for(data, user.at, user.kind);
        match host {
            Place::Behind(at) | Place::Device(at) => {
                let is_in_reach = matches!(host, Place::Device(_)) || (by_kernel && kernels::is_locked(at));
                if by_kernel && is_in_reach && kernels::copy(data, user, at, way, most) {
                    return Some(By::Kernel);
                }
            }
            Place::Same(at) => {
                let gaps = if by_kernel { GAPS } else { tree.size().saturating_mul(SPARSE) };
                let is_dense = way == Way::Out && len.saturating_sub(tree.size()) <= gaps;
                if blocks == 1 || (is_dense && (by_kernel || is_one(user, low, len))) {
                    let len = if blocks == 1 { most } else { len };
                    let host = (at.wrapping_add_signed(low), Kind::System);
                    return copies(piece(user, host, low, len, way, kind));
                }
                if by_kernel && by_packing(data, user, at, way) {
                    return Some(By::Kernel);
                }
            }
        }
        if blocks > 2 && kind.caps().contains(Caps::DEVICE) {
            if let Some(done) = batched(tree, user, host, way, most) {
                return copies(done);
            }
        }
        copies(one_by_one(tree, user, host, way, most))
    }
}

/// Copies all from the program's memory with what is between the blocks, and so many bytes behind the last,
/// where that is not much more; whether it was done. Bytes behind it that are no memory are left out.
///
/// # Safety
/// As of [`copy`], and there is room for the bytes behind the last block.
pub(super) unsafe fn copy_out_with_gaps(tree: &Tree, behind: usize, user: User, host: Place) -> bool {
    let (Place::Same(at), Some((low, high)), Some(kind)) = (host, tree.bounds(), user.kind) else {
        return false;
    };
    let (len, host) = ((high - low) as usize, (at.wrapping_add_signed(low), Kind::System));
    let all = [len + behind, len].into_iter().find(|len| is_one(user, low, *len));
    // SAFETY: the caller's promise.
    len / SPARSE <= tree.size()
        && all.is_some_and(|len| unsafe { piece(user, host, low, len, Way::Out, kind) })
}

/// Whether all of it, with what is between the blocks, is one allocation of CUDA's.
fn is_one(user: User, low: isize, len: usize) -> bool {
    user.kind == Some(Kind::Cuda) && kernels::device_of(user.at.wrapping_add_signed(low), len).is_some()
}

/// Copies all blocks by a kernel that packs or unpacks, and by the CPU between the packed bytes and the host
/// memory with the same offsets; whether it was done.
unsafe fn by_packing(data: &Data, user: User, host: usize, way: Way) -> bool {
    let Some(memory) = Memory::new(data.tree.size(), data.tree.size(), Kind::Cuda) else { return false };
    let packed = memory.at();
    if !kernels::is_locked(packed) {
        return false;
    }
    let spread = || {
        let mut done = packed;
        data.tree.walk(&mut |at, len| {
            let there = host.wrapping_add_signed(at);
            let (to, from) = if way == Way::Out { (there, done) } else { (done, there) };
            done += len;
            // SAFETY: the caller's promise, and room for all bytes of the data.
            unsafe { host_copy(to as *mut u8, from as *const u8, len) };
            true
        });
    };
    if way == Way::Back {
        spread();
    }
    // SAFETY: the caller's promise, and room for all bytes of the data.
    if !unsafe { kernels::copy(data, user, packed, way, data.tree.size()) } {
        return false;
    }
    if way == Way::Out {
        spread();
    }
    true
}

/// A copy between host memory: of the lengths that single elements have, without a call.
///
/// # Safety
/// Both are valid for that many bytes, and do not overlap.
unsafe fn host_copy(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match len {
            4 => to.cast::<u32>().write_unaligned(from.cast::<u32>().read_unaligned()),
            8 => to.cast::<u64>().write_unaligned(from.cast::<u64>().read_unaligned()),
            _ => std::ptr::copy_nonoverlapping(from, to, len),
        }
    }
}

unsafe fn piece(user: User, (host, of): (usize, Kind), at: isize, len: usize, way: Way, kind: Kind) -> bool {
    // SAFETY: the caller's promise, for this copy.
    let (user, host) =
        unsafe { (Span::new(user.at.wrapping_add_signed(at), len, kind), Span::new(host, len, of)) };
    let (to, from) = if way == Way::Out { (host, user) } else { (user, host) };
    hmem::copy(&[to], 0, &[from], 0, len) == len
}

/// Calls `each(place in host memory, offset, bytes)` for the blocks of the first `most` bytes.
fn walk(tree: &Tree, host: Place, most: usize, each: &mut impl FnMut(usize, isize, usize) -> bool) -> bool {
    let (mut done, mut refused) = (0, false);
    tree.walk(&mut |at, len| {
        let len = len.min(most - done);
        let to = match host {
            Place::Same(host) => host.wrapping_add_signed(at),
            Place::Behind(host) | Place::Device(host) => host + done,
        };
        done += len;
        refused = !each(to, at, len);
        !refused && done < most
    });
    !refused
}

unsafe fn one_by_one(tree: &Tree, user: User, host: Place, way: Way, most: usize) -> bool {
    let of = if matches!(host, Place::Device(_)) { Kind::Cuda } else { Kind::System };
    walk(tree, host, most, &mut |to, at, len| {
        let kind = user.kind.unwrap_or_else(|| hmem::classify(user.at.wrapping_add_signed(at), len));
        // SAFETY: the caller's promise.
        unsafe { piece(user, (to, of), at, len, way, kind) }
    })
}

/// Gives the device many copies at a time; `None` where it takes none.
unsafe fn batched(tree: &Tree, user: User, host: Place, way: Way, most: usize) -> Option<bool> {
    let kind = user.kind?;
    let mut parts = Vec::with_capacity(BATCH.min(tree.blocks()));
    let (mut refused, mut begun) = (false, false);
    let mut flush = |parts: &mut Vec<Part>| {
        // SAFETY: the caller's promise; the copies are waited for here.
        let started = unsafe { registry::of(kind).start(parts, Vec::new(), true) };
        parts.clear();
        let Ok(mut copy) = started else {
            refused = !begun;
            return false;
        };
        begun = true;
        loop {
            match copy.poll() {
                Ok(true) => return true,
                Ok(false) => std::hint::spin_loop(),
                Err(_) => return false,
            }
        }
    };
    let mut done = walk(tree, host, most, &mut |host, at, len| {
        let user = user.at.wrapping_add_signed(at);
        let (dst, src) = if way == Way::Out { (host, user) } else { (user, host) };
        parts.push(Part { dst, src, len });
        parts.len() < BATCH || flush(&mut parts)
    });
    done = done && (parts.is_empty() || flush(&mut parts));
    if refused { None } else { Some(done) }
}
