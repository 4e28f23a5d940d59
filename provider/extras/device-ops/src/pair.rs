//! An allreduce of two ranks on two devices that access each other's memory: one kernel of each rank, and no
//! message between the ranks' processes.
//!
//! A rank sends all its elements to slots in the other's memory, in pieces, and reduces its own with what
//! comes, in the order of ranks. So both compute the same, of the same operands. The kernels wait for each
//! other by words in the devices' memory: how many pieces have come. These count on from one kernel to the
//! next, which have to be the same at both ranks. That a piece has come says, too, which slots its sender has
//! read before it sent that; and when a kernel has ended, all has come that the peer's writes to this rank.
//!
//! A kernel whose counterpart does not come waits until [`Pair::end`] is called. The two devices are not the
//! same one: kernels of two processes are not in it at the same time.

use hmem::Kind;
use hmem::cuda::Stream;
use hmem::registry;

use crate::error::{Error, driver};
use crate::kernels::Kernel;
use crate::memory::Memory;
use crate::ptx::PairKernel;
use crate::ptx::pair::{DEPTH, LINE, SLOT};
use crate::reduce::access;
use crate::types::{Op, Type};

/// Most blocks, and threads of one.
const BLOCKS: u64 = 128;
const THREADS: u64 = 512;
/// The least bytes of a piece where there are several.
const LEAST: u64 = 1 << 13;
/// Bytes that a thread accesses at once.
const ACCESS: u64 = 16;

/// A rank's side. What it needs begins with the words, and is [`bytes`] long.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// This rank's memory, and where this one finds the peer's.
    own: u64,
    peer: u64,
    blocks: u64,
    /// Whether this is the lower rank.
    is_first: bool,
}

/// Blocks that two ranks have whose devices run that many at once, the fewer ones, with `room` bytes at most
/// for what one receives; `None` where there is no room for one.
pub fn blocks(at_once: u64, room: u64) -> Option<u64> {
    let blocks = (0..=BLOCKS.min(at_once)).rev().find(|blocks| bytes(*blocks) <= room)?;
    (blocks > 0).then_some(blocks)
}

/// Bytes that a rank needs for as many blocks.
pub fn bytes(blocks: u64) -> u64 {
    words(blocks) + blocks * DEPTH * SLOT
}

/// Of these the words, which are all 0 before the first kernel of both.
fn words(blocks: u64) -> u64 {
    ((blocks + 1) * LINE).next_multiple_of(SLOT)
}

/// Elements of a piece, blocks and threads of `count` elements, which are more than none. The blocks have as
/// many pieces each, or one less.
fn grid(count: u64, extent: u64, most: u64) -> (u64, u64, u64) {
    let len = count.saturating_mul(extent);
    let each = len.div_ceil(most * SLOT);
    let bytes = len.div_ceil(most * each).next_multiple_of(ACCESS).clamp(LEAST, SLOT);
    let piece = bytes / extent;
    let threads = (bytes.min(len).div_ceil(ACCESS)).next_multiple_of(32).min(THREADS);
    (piece, count.div_ceil(piece).min(most), threads)
}

fn kernel((op, ty): (Op, Type), is_first: bool, addresses: u64) -> Kernel {
    Kernel::Pair(PairKernel { op, ty, access: access(ty, addresses), is_first })
}

/// Compiles the kernel that [`Pair::reduce`] of that side launches with results and operands at these
/// addresses. The driver may wait for kernels that run.
pub fn prepare(stream: Stream, of: (Op, Type), is_first: bool, addresses: [usize; 2]) -> Result<(), Error> {
    kernel(of, is_first, (addresses[0] | addresses[1]) as u64).load(stream)
}

impl Pair {
    /// With this rank's memory and the peer's, each for as many blocks.
    ///
    /// # Safety
    /// Both are mapped for as long as this lives, for kernels of the device of `own`, and belong to the two
    /// ranks' sides alone.
    pub unsafe fn new(own: usize, peer: usize, blocks: u64, is_first: bool) -> Pair {
        Pair { own: own as u64, peer: peer as u64, blocks, is_first }
    }

    /// Clears the words, before the peer gets to know where they are.
    ///
    /// # Safety
    /// As many bytes of memory of a device as `blocks` need are there.
    pub unsafe fn clear(own: usize, blocks: u64) -> Result<(), Error> {
        let zeroes = vec![0u8; words(blocks) as usize];
        let from = zeroes.as_ptr().expose_provenance();
        registry::of(Kind::Cuda).copy_now(own, from, zeroes.len()).map_err(driver("clearing words"))
    }

    /// Queues the allreduce of `count` elements at `from`, with results at `to`, which may be the same, as
    /// the peer does at the same time. The stream has no other kernels that a peer waits for.
    pub fn reduce(
        &self,
        stream: Stream,
        (op, ty): (Op, Type),
        to: Memory,
        from: Memory,
        count: u64,
    ) -> Result<(), Error> {
        if !op.takes(ty) {
            return Err(Error::Undefined(op, ty));
        }
        let len = count.checked_mul(ty.extent()).and_then(|len| i64::try_from(len).ok());
        let len = len.ok_or_else(|| Error::Argument(format!("{count} elements of {ty:?} are no buffer")))?;
        to.check("result", 0, len)?;
        from.check("operand", 0, len)?;
        if to.overlaps(&from, len as u64) {
            let why = "the result overlaps the operand: pass it apart, or at the same address";
            return Err(Error::Argument(why.into()));
        }
        if count == 0 {
            return Ok(());
        }
        let (piece, blocks, threads) = grid(count, ty.extent(), self.blocks);
        let slots = words(self.blocks);
        let arguments = [
            to.origin(),
            from.origin(),
            self.own,
            self.own + slots,
            self.peer,
            self.peer + slots,
            count,
            piece,
        ];
        let kernel = kernel((op, ty), self.is_first, to.origin() | from.origin());
        // SAFETY: `Memory`'s promise for bytes that are inside, and that of `Pair::new` for as many blocks;
        // the parameters are as the kernel's text has them.
        unsafe { kernel.launch_as(stream, blocks as u32, threads as u32, &arguments) }
    }

    /// Ends the wait of this rank's kernel, and of each later one: the peer's does not come. What was reduced
    /// is not known then.
    pub fn end(&self) -> Result<(), Error> {
        let one = 1u64;
        let copied =
            registry::of(Kind::Cuda).copy_now(self.own as usize, (&raw const one).expose_provenance(), 8);
        copied.map_err(driver("ending a wait"))
    }
}

#[cfg(all(test, loom))]
#[path = "pair_loom.rs"]
mod pair_loom;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_as_few_for_each_block_as_slots_are_long_enough_for() {
        for most in [1, 3, 127, 128] {
            for len in (0..40).flat_map(|log| [1 << log, (1 << log) + 1, 3 << log]) {
                for extent in [1, 4, 16] {
                    let (count, len) = (len, len * extent);
                    let (piece, blocks, threads) = grid(count, extent, most);
                    let pieces = count.div_ceil(piece);
                    assert!(piece * extent <= SLOT && (piece * extent) % ACCESS == 0, "{len}");
                    assert!(blocks <= most && blocks <= pieces && (32..=THREADS).contains(&threads), "{len}");
                    assert_eq!(pieces.div_ceil(blocks), len.div_ceil(SLOT * most).max(1), "{len}, {most}");
                }
            }
        }
        assert_eq!(grid(4 << 20, 4, 128), (16384, 128, 512));
        assert_eq!(grid(1, 8, 128), (1024, 1, 32));
    }
}
