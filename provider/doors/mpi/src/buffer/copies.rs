//! Copies of blocks between devices and the host.

use hmem::pending::Part;
use hmem::{Caps, Kind, Span, registry};

use crate::shape::Tree;

/// Parts that are given to a device at a time.
const BATCH: usize = 4096;
/// Bytes between two blocks, for each byte of data, up to which all is copied from the device as one block.
const SPARSE: usize = 4;

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// From the program's memory to the host's.
    Out,
    /// Back.
    Back,
}

/// The program's memory: where offset 0 is, and what it is. Without a kind the kind of each block is found.
#[derive(Clone, Copy, Debug)]
pub(super) struct User {
    pub(super) at: usize,
    pub(super) kind: Option<Kind>,
}

/// Copies all blocks between the program's memory and `host`, the place of offset 0 in host memory; whether
/// it was done.
///
/// # Safety
/// All blocks are valid on both sides.
pub(super) unsafe fn copy(tree: &Tree, user: User, host: usize, way: Way) -> bool {
    let Some((low, high)) = tree.bounds() else { return true };
    let (len, blocks) = ((high - low) as usize, tree.blocks());
    // SAFETY: the caller's promise; so below.
    unsafe {
        let Some(kind) = user.kind else { return one_by_one(tree, user, host, way) };
        if blocks == 1 || (way == Way::Out && len / SPARSE <= tree.size() && is_one(user, low, len)) {
            return piece(user, host, low, len, way, kind);
        }
        if blocks > 2 && kind.caps().contains(Caps::DEVICE) {
            if let Some(done) = batched(tree, user, host, way, kind) {
                return done;
            }
        }
        one_by_one(tree, user, host, way)
    }
}

/// Whether all of it, with what is between the blocks, is one allocation of CUDA's.
fn is_one(user: User, low: isize, len: usize) -> bool {
    let first = user.at.wrapping_add_signed(low) as u64;
    user.kind == Some(Kind::Cuda)
        && hmem::cuda::info(first as usize)
            .is_some_and(|info| first >= info.base && first + len as u64 <= info.base + info.len)
}

unsafe fn piece(user: User, host: usize, at: isize, len: usize, way: Way, kind: Kind) -> bool {
    // SAFETY: the caller's promise, for this copy.
    let (user, host) = unsafe {
        let user = Span::new(user.at.wrapping_add_signed(at), len, kind);
        (user, Span::new(host.wrapping_add_signed(at), len, Kind::System))
    };
    let (to, from) = if way == Way::Out { (host, user) } else { (user, host) };
    hmem::copy(&[to], 0, &[from], 0, len) == len
}

unsafe fn one_by_one(tree: &Tree, user: User, host: usize, way: Way) -> bool {
    tree.walk(&mut |at, len| {
        let kind = user.kind.unwrap_or_else(|| hmem::classify(user.at.wrapping_add_signed(at), len));
        // SAFETY: the caller's promise.
        unsafe { piece(user, host, at, len, way, kind) }
    })
}

/// Copies all blocks between the program's memory and host memory in which they follow each other; whether it
/// was done.
///
/// # Safety
/// As of [`copy`], with room for all bytes at `host`.
pub(super) unsafe fn copy_packed(tree: &Tree, user: User, host: usize, way: Way) -> bool {
    let mut done = 0usize;
    tree.walk(&mut |at, len| {
        let kind = user.kind.unwrap_or_else(|| hmem::classify(user.at.wrapping_add_signed(at), len));
        // What `piece` adds to the place in host memory is taken off.
        let to = (host + done).wrapping_add_signed(at.wrapping_neg());
        done += len;
        // SAFETY: the caller's promise.
        unsafe { piece(user, to, at, len, way, kind) }
    })
}

/// Gives the device many copies at a time; `None` where it takes none.
unsafe fn batched(tree: &Tree, user: User, host: usize, way: Way, kind: Kind) -> Option<bool> {
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
    let mut done = tree.walk(&mut |at, len| {
        let (user, host) = (user.at.wrapping_add_signed(at), host.wrapping_add_signed(at));
        let (dst, src) = if way == Way::Out { (host, user) } else { (user, host) };
        parts.push(Part { dst, src, len });
        parts.len() < BATCH || flush(&mut parts)
    });
    done = done && (parts.is_empty() || flush(&mut parts));
    if refused { None } else { Some(done) }
}
