//! An allreduce, or a reduce-scatter, of two ranks on two devices that access each other's memory: one
//! kernel of each rank, and no message between the ranks' processes.
//!
//! A rank sends all its elements, or those of the other rank's part, to slots in the other's memory, in
//! pieces, and reduces its own with what comes, in the order of ranks. So of an allreduce both compute the
//! same, of the same operands. The kernels wait for each other by words in the devices'
//! memory: how many pieces have come. These count on from one kernel to the next, which have to be the same
//! at both ranks. That a piece has come says, too, which slots its sender has read before it sent that; and
//! when a kernel has ended, all has come that the peer's writes to this rank.
//!
//! A kernel whose counterpart does not come waits until [`Pair::end`] is called. That, and whether it is
//! done, are words in host memory: a thread in cudaFree has the driver's lock for as long as the kernel goes
//! on, and no call of the driver's may be what ends it. The two devices are not the
//! same one: kernels of two processes are not in it at the same time.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use hmem::Kind;
use hmem::cuda::Stream;
use hmem::locked::{Buffer, Pool};
use hmem::registry;

use crate::error::{Error, driver};
use crate::kernels::Kernel;
use crate::memory::Memory;
use crate::ptx::PairKernel;
use crate::ptx::pair::{DEPTH, DONE, LINE, SLOT, STOP};
use crate::reduce::{self, access};
use crate::types::{Op, Type};

/// Most blocks, and threads of one.
const BLOCKS: u64 = 128;
const THREADS: u64 = 512;
/// The least bytes of a piece where there are several.
const LEAST: u64 = 1 << 13;
/// Bytes that a thread accesses at once.
const ACCESS: u64 = 16;

/// A side's words in host memory, for kernels of one context.
#[derive(Debug)]
pub struct Host {
    memory: Buffer,
    /// Where kernels find them.
    at: u64,
}

impl Host {
    /// For kernels in that stream; `None` where they reach no host memory.
    pub fn new(stream: Stream) -> Option<Host> {
        let mut memory = Pool::new(1, 2 * DONE).take().ok()?;
        // For as long as the kernels' context is there: the thread may have another one.
        let locked = stream.within(|| memory.lock_for(registry::of(Kind::Cuda)));
        if !locked.ok()? {
            return None;
        }
        let at = stream.address_of(memory.at()).ok()?;
        Some(Host { memory, at })
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at % 8 == 0 && at < 2 * DONE);
        // SAFETY: inside of memory that is there for as long as this, aligned, and zeroed when it was made;
        // all accesses are atomic.
        unsafe { AtomicU64::from_ptr(self.memory.at().add(at).cast()) }
    }
}

/// A rank's side. What it needs begins with the words, and is [`bytes`] long.
#[derive(Debug)]
pub struct Pair {
    /// This rank's memory, and where this one finds the peer's.
    own: u64,
    peer: u64,
    blocks: u64,
    /// Whether this is the lower rank.
    is_first: bool,
    host: Host,
    /// Kernels that were queued.
    queued: AtomicU64,
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
pub fn prepare(stream: Stream, of: (Op, Type), is_first: bool, addresses: [usize; 3]) -> Result<(), Error> {
    kernel(of, is_first, addresses.iter().fold(0, |all, at| all | *at as u64)).load(stream)
}

impl Pair {
    /// With this rank's memory and the peer's, each for as many blocks.
    ///
    /// # Safety
    /// Both are mapped for as long as this lives, for kernels of the device of `own`, and belong to the two
    /// ranks' sides alone. The host's words are for the same kernels.
    pub unsafe fn new(own: usize, peer: usize, blocks: u64, is_first: bool, host: Host) -> Pair {
        Pair { own: own as u64, peer: peer as u64, blocks, is_first, host, queued: AtomicU64::new(0) }
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

    /// Queues the reduction of `count` elements at `from` with as many that the peer sends at the same time,
    /// and sends those at `sent`, for an allreduce the same. The results go to `to`, which may be either.
    /// The stream has no other kernels that a peer waits for.
    pub fn reduce(
        &self,
        stream: Stream,
        (op, ty): (Op, Type),
        to: Memory,
        from: Memory,
        sent: Memory,
        count: u64,
    ) -> Result<(), Error> {
        let len = reduce::bytes(op, ty, count)?;
        to.check("result", 0, len)?;
        from.check("operand", 0, len)?;
        sent.check("operand of the peer", 0, len)?;
        if to.overlaps(&from, len as u64) || to.overlaps(&sent, len as u64) {
            let why = "the result overlaps the operand: pass it apart, or at the same address";
            return Err(Error::Argument(why.into()));
        }
        if count == 0 {
            return Ok(());
        }
        let (piece, blocks, threads) = grid(count, ty.extent(), self.blocks);
        let slots = words(self.blocks);
        let number = self.queued.load(Relaxed) + 1;
        let arguments = [
            to.origin(),
            from.origin(),
            sent.origin(),
            self.own,
            self.own + slots,
            self.peer,
            self.peer + slots,
            count,
            piece,
            self.host.at,
            number,
        ];
        let kernel = kernel((op, ty), self.is_first, to.origin() | from.origin() | sent.origin());
        // SAFETY: `Memory`'s promise for bytes that are inside, and that of `Pair::new` for as many blocks;
        // the parameters are as the kernel's text has them.
        unsafe { kernel.launch_as(stream, blocks as u32, threads as u32, &arguments) }?;
        self.queued.store(number, Relaxed);
        Ok(())
    }

    /// Whether all that was queued is done, and its results are there. Calls nothing of the driver's. Where
    /// the device has failed it never is.
    pub fn is_done(&self) -> bool {
        self.host.word(DONE).load(Acquire) == self.queued.load(Relaxed)
    }

    /// Ends the wait of this rank's kernel, and of each later one: the peer's does not come. What was reduced
    /// is not known then. Calls nothing of the driver's.
    pub fn end(&self) {
        self.host.word(STOP).store(1, Release);
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
