//! Collectives from device to device of which a rank knows its own blocks alone, and those that exchange
//! blocks in place.

use device_ops::collective::{Block, Vectors};
use device_ops::nccl::Rank;
use hmem::Kind;

use super::part::Part;
use super::plan::one_device;
use crate::args::{Args, Style};
use crate::buffer::kernels;
use crate::posted::{Plan, What};
use crate::row::{Buf, Count, Places, Row, Type};
use crate::settings;
use crate::shape::shape_of;

/// Whether a call has such a part.
pub(super) fn are_for(plan: &Plan, args: &Args<'_>) -> bool {
    plan.what.is_vector()
        || plan.what == What::Allgatherv
        || (plan.what == What::Alltoall && args.is_in_place(args.words[0]))
}

/// The blocks of one buffer, and the device that all of them are on.
#[derive(Debug, Default)]
struct Blocks {
    all: Vec<Block>,
    /// Of bytes that there are.
    on: Option<i32>,
    near: Option<usize>,
}

impl Blocks {
    /// Bytes of all.
    fn len(&self) -> u64 {
        self.all.iter().fold(0, |sum, block| sum.saturating_add(block.len))
    }

    /// The same block for each of so many ranks.
    fn each(self, ranks: usize) -> Blocks {
        Blocks { all: self.all.into_iter().cycle().take(ranks).collect(), ..self }
    }

    /// Nothing for all ranks but one.
    fn only(self, rank: usize, ranks: usize) -> Blocks {
        let block = self.all.first().copied().unwrap_or_default();
        let of = |n| if n == rank { block } else { Block::default() };
        Blocks { all: (0..ranks).map(of).collect(), ..self }
    }
}

/// A block for each rank, or the one of this rank; `None` where a datatype has gaps, or where not all are
/// memory of one device.
///
/// # Safety
/// The arguments are those of the buffer's call, and valid.
unsafe fn blocks(buf: &Buf, args: &Args<'_>, ranks: usize) -> Option<Blocks> {
    if args.lacks_arrays(buf) {
        return None;
    }
    let (word, wide) = (args.words[usize::from(buf.at)], args.style == Style::Large);
    let (many, place) = match buf.count {
        Count::Each(_, place, _) => (ranks, Some(place)),
        _ => (1, None),
    };
    let (mut found, mut dense) = (Blocks::default(), None);
    let mut bounds = (u64::MAX, 0);
    for n in 0..many {
        // SAFETY: the caller's promise: arrays of so many.
        let (count, by) = unsafe {
            let count = match buf.count {
                Count::Each(at, ..) => args.number_at(at.into(), n, wide) as i64,
                Count::One(at) => args.signed(at.into()),
                _ => return None,
            };
            let by = match place {
                Some(Places::Extents(at) | Places::Bytes(at)) => args.number_at(at.into(), n, wide),
                _ => 0,
            };
            (u64::try_from(count).ok()?, by)
        };
        if count == 0 {
            found.all.push(Block::default());
            continue;
        }
        let size = match (buf.datatype, dense) {
            (Type::One(_), Some(size)) => size,
            (of, _) => {
                // SAFETY: the caller's promise: a datatype, or as many as there are counts.
                let shape = unsafe {
                    let datatype = match of {
                        Type::One(at) => args.datatype(at.into()),
                        Type::Each(at) => args.datatype_at(at.into(), Some(n)),
                        Type::Byte => return None,
                    };
                    shape_of(args.abi, datatype)
                };
                let shape = shape.ok()?;
                let (first, len) = shape.tree.single()?;
                (first == 0 && shape.extent == isize::try_from(len).ok()?).then_some(len)?
            }
        };
        dense = Some(size);
        let unit = if matches!(place, Some(Places::Bytes(_))) { 1 } else { size as isize };
        let at = word.wrapping_add_signed(by.checked_mul(unit)?) as u64;
        let len = count.checked_mul(size as u64)?;
        bounds = (bounds.0.min(at), bounds.1.max(at.checked_add(len)?));
        found.all.push(Block { at, len });
    }
    if bounds.1 > 0 {
        let (near, len) = (bounds.0 as usize, usize::try_from(bounds.1 - bounds.0).ok()?);
        if crate::host::is_no_address(word) || crate::host::is_host(near) {
            return None;
        }
        found.on = Some((hmem::classify(near, len) == Kind::Cuda).then(|| kernels::device_of(near, len))??);
        found.near = Some(near);
    }
    Some(found)
}

/// This rank's part, if its blocks are memory of one device without gaps. A rank without data takes part
/// where it may have a device.
///
/// # Safety
/// The arguments are those of the call, and valid.
pub(super) unsafe fn part(plan: &Plan, row: &'static Row, args: &Args<'_>, at: Rank) -> Option<Part> {
    let Rank { rank, size } = at;
    let [first, second] = row.bufs else { return None };
    let of_first = args.is_in_place(args.words[usize::from(first.at)]);
    let of_second = args.is_in_place(args.words[usize::from(second.at)]);
    // SAFETY: the caller's promise; so below.
    unsafe {
        let root = plan.root.map_or(0, |root| args.int(root));
        let root = usize::try_from(root).ok().filter(|root| *root < size)?;
        let none = || Blocks { all: vec![Block::default(); size], ..Blocks::default() };
        let (sends, receives) = match plan.what {
            What::Alltoall => {
                one_device(row, args, kernels::device_of)?;
                let to = args.words[usize::from(second.at)];
                let len = plan.bytes(args)?;
                let all = (0..size).map(|n| Block { at: (to + n * len) as u64, len: len as u64 }).collect();
                let of = Vectors::in_place(rank, all, settings::reduce_memory())?;
                return Part::of_own(of, Some(to), 0);
            }
            What::Alltoallv | What::Alltoallw if of_first => {
                let both = blocks(second, args, size)?;
                let (near, len) = (both.near, both.len());
                if near.is_none() && !hmem::may_have_a_device() {
                    return None;
                }
                return Part::of_own(
                    Vectors::in_place(rank, both.all, settings::reduce_memory())?,
                    near,
                    len,
                );
            }
            What::Alltoallv | What::Alltoallw => (blocks(first, args, size)?, blocks(second, args, size)?),
            What::Gatherv if rank != root => (blocks(first, args, size)?.only(root, size), none()),
            What::Scatterv if rank != root => (none(), blocks(second, args, size)?.only(root, size)),
            What::Gatherv | What::Allgatherv => {
                let receives = blocks(second, args, size)?;
                let own = Blocks { all: vec![receives.all[rank]], on: receives.on, near: receives.near };
                let sent = if of_first { own } else { blocks(first, args, size)? };
                let sends = if plan.root.is_some() { sent.only(rank, size) } else { sent.each(size) };
                (sends, receives)
            }
            What::Scatterv => {
                let sends = blocks(first, args, size)?;
                let own = Blocks { all: vec![sends.all[rank]], on: sends.on, near: sends.near };
                let received = if of_second { own } else { blocks(second, args, size)? };
                (sends, received.only(rank, size))
            }
            _ => return None,
        };
        let near = sends.near.or(receives.near);
        let is_one = sends.on.is_none() || receives.on.is_none() || sends.on == receives.on;
        if !is_one || (near.is_none() && !hmem::may_have_a_device()) {
            return None;
        }
        let own = sends.len().max(receives.len());
        // The root knows all blocks: what is too short for devices goes by the MPI.
        if plan.root.is_some() && rank == root && own < settings::move_least()? as u64 {
            return None;
        }
        Part::of_own(Vectors::new(rank, sends.all, receives.all)?, near, own)
    }
}
