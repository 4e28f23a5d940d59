//! Collectives of all ranks of a communicator, on memory of their devices.
//!
//! Of a reduction each rank owns a block of the elements. The ranks send each other the blocks of their
//! owners; an owner reduces what it has, in the order of ranks, and sends the results to the ranks that want
//! them. So there are two exchanges, whatever the number of ranks, and an element's result is `((c0 op c1)
//! op c2) op ...` everywhere and each time: no rank computes what another one has computed too. Long blocks
//! go in pieces, so that what is received has room in memory of a bounded length.
//!
//! | module | what it holds |
//! |---|---|
//! | [`shares`] | which elements a rank owns |
//! | [`steps`] | what a rank computes, and sends and receives, for one piece |
//! | [`phase`] | what a rank does at a time |
//! | [`moves`] | collectives that compute nothing, of blocks that all ranks know |
//! | [`vectors`] | those of which a rank knows its own blocks alone |

pub mod moves;
pub mod phase;
pub mod shares;
pub mod steps;
pub mod vectors;

#[cfg(all(test, not(loom)))]
mod model;

use crate::kernels::Kernel;
use crate::memory::Memory;
use crate::reduce::{kernel_for, reduce};
use crate::types::{Op, Type};
use crate::{Error, error::driver};
use hmem::cuda::Stream;
pub use moves::{Move, Moves};
use phase::ALIGN;
pub use phase::{Copy, Phase};
pub use shares::Shares;
pub use steps::{Buffers, Message, Step, What};
use steps::{Place, Round};
pub use vectors::{Block, Vectors};

/// One rank's part in a collective.
#[derive(Clone, Debug)]
pub struct Collective {
    round: Round,
    shares: Shares,
    /// Elements of a piece, the same at all ranks.
    piece: u64,
}

/// What a piece is a multiple of, in elements: the elements of all pieces are aligned alike.
const UNIT: u64 = 256;

impl Collective {
    /// That of rank `rank`, with `room` bytes at most for what it receives from others: the same number at
    /// all ranks. `None` where a piece has no room, and of a reduction in place whose blocks are scattered
    /// and have several pieces.
    pub fn new(
        what: What,
        rank: usize,
        shares: Shares,
        extent: u64,
        buffers: Buffers,
        room: usize,
    ) -> Option<Collective> {
        let ranks = shares.ranks();
        if rank >= ranks || ranks < 2 {
            return None;
        }
        let piece = room as u64 / ranks as u64 / extent / UNIT * UNIT;
        let (own, is_split) = (shares.of(rank), shares.longest() > piece);
        if piece == 0 || (is_split && what == What::ReduceScatter && buffers.is_in_place()) {
            return None;
        }
        let stride = ((own.end - own.start).min(piece) * extent).next_multiple_of(ALIGN);
        let place = Place { rank, ranks, extent, stride };
        Some(Collective { round: Round { what, place, buffers }, shares, piece })
    }

    /// Bytes that it needs for what it receives from others.
    pub fn room(&self) -> usize {
        (self.round.place.stride * self.round.place.ranks as u64) as usize
    }

    /// The same with that memory, which begins at a multiple of 256.
    pub fn with_slots(mut self, at: u64) -> Collective {
        self.round.buffers.slots = at;
        self
    }

    /// Compiles the kernels that it will launch.
    pub fn prepare(&self, stream: Stream, op: Op, ty: Type) -> Result<(), Error> {
        let steps = self.round.steps(&self.shares, 0..self.piece);
        steps.iter().try_for_each(|step| match step {
            Step::Reduce { to, a, b, .. } => Kernel::Reduce(kernel_for(op, ty, to | a | b)).load(stream),
            Step::Copy { .. } => Ok(()),
        })
    }

    /// What the rank does.
    pub fn phases(&self) -> Vec<Phase> {
        let mut phases = Vec::new();
        let mut begin = 0;
        while begin < self.shares.longest() {
            let of = begin..begin + self.piece;
            let (sends, receives) = self.round.contributions(&self.shares, of.clone());
            phases.push(Phase::Exchange(sends, receives));
            phases.push(Phase::Compute(self.round.steps(&self.shares, of.clone())));
            let (sends, receives) = self.round.results(&self.shares, of);
            phases.push(Phase::Exchange(sends, receives));
            begin += self.piece;
        }
        phases.retain(|phase| !phase.is_empty());
        phases
    }
}

/// Queues steps.
///
/// # Safety
/// The addresses are those of a [`Collective`] with buffers of the elements that it was made for, which stay
/// valid until the steps are done.
pub unsafe fn queue(stream: Stream, op: Op, ty: Type, steps: &[Step]) -> Result<(), Error> {
    for step in steps {
        match *step {
            Step::Reduce { to, a, b, count } => {
                let len = count.saturating_mul(ty.extent()) as usize;
                // SAFETY: the caller's promise.
                let [to, a, b] = [to, a, b].map(|at| unsafe { Memory::new(at as usize, len) });
                reduce(stream, op, ty, to, a, b, count)?;
            }
            Step::Copy { to, from, count } => {
                // SAFETY: the caller's promise.
                unsafe { copy(stream, Copy { to, from, len: count.saturating_mul(ty.extent()) }) }?;
            }
        }
    }
    Ok(())
}

/// Queues a copy.
///
/// # Safety
/// Both are memory of the stream's device, of as many bytes, and valid until it is done.
pub unsafe fn copy(stream: Stream, Copy { to, from, len }: Copy) -> Result<(), Error> {
    // SAFETY: the caller's promise.
    unsafe { stream.copy(to as usize, from as usize, len as usize) }.map_err(driver("copying elements"))
}
