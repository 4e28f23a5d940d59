//! The bytes of a datatype, from how it was made (MPI 4.1, chapter 5).

use core::ffi::c_int;

use super::contents::Contents;
use super::tree::Tree;
use crate::abi::{Abi, Darray};

/// One datatype that another is made of.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) tree: Tree,
    pub(super) extent: isize,
}

/// A predefined datatype: a block, or of those for MPI_MINLOC and MPI_MAXLOC a value and an int behind it.
pub(super) fn predefined(size: usize, low: isize, high: isize) -> Tree {
    const INT: usize = size_of::<c_int>();
    if size == (high - low) as usize || size <= INT {
        return Tree::block(low, size);
    }
    let value = size - INT;
    let mut tree = Tree::block(low, value);
    tree.push_block(low + value.next_multiple_of(INT) as isize, INT);
    tree
}

/// What a constructor makes; `None` where its arguments cannot be.
pub(super) fn made(abi: &Abi, contents: &Contents, parts: &[Part]) -> Option<Tree> {
    let c = &abi.combiners;
    let (i, a) = (&contents.integers[..], &contents.addresses[..]);
    let first = parts.first();
    let number = |at: usize| usize::try_from(*i.get(at)?).ok();
    let combiner = match c.integer.iter().position(|x| *x == contents.combiner && *x >= 0) {
        Some(0) => c.hvector,
        Some(1) => c.hindexed,
        Some(2) => c.structure,
        _ => contents.combiner,
    };
    match combiner {
        x if x == c.dup || x == c.resized => Some(first?.tree.clone()),
        x if x == c.contiguous => Some(first?.tree.times(number(0)?, first?.extent)),
        x if x == c.vector || x == c.hvector => {
            let part = first?;
            let stride = if x == c.vector {
                *i.get(2)? as isize * part.extent
            } else {
                *a.first().or(i.get(2))? as isize
            };
            Some(part.tree.times(number(1)?, part.extent).times(number(0)?, stride))
        }
        x if x == c.indexed || x == c.hindexed => {
            let (part, count) = (first?, number(0)?);
            let scale = if x == c.indexed { part.extent } else { 1 };
            let places = if a.is_empty() { i.get(1 + count..)? } else { a };
            blocks(part, i.get(1..1 + count)?, places, scale)
        }
        x if x == c.indexed_block || x == c.hindexed_block => {
            let (part, count, len) = (first?, number(0)?, *i.get(1)?);
            let scale = if x == c.indexed_block { part.extent } else { 1 };
            let places = if a.is_empty() { i.get(2..)? } else { a };
            blocks(part, &vec![len; count], places, scale)
        }
        x if x == c.structure => {
            let count = number(0)?;
            let places = if a.is_empty() { i.get(1 + count..)? } else { a };
            let mut tree = Tree::new();
            for ((part, len), at) in parts.iter().zip(i.get(1..1 + count)?).zip(places) {
                tree.push(&part.tree.times(usize::try_from(*len).ok()?, part.extent), *at as isize);
            }
            Some(tree)
        }
        x if x == c.subarray => subarray(i, first?, abi.darray.order_c),
        x if x == c.darray => darray(i, first?, &abi.darray),
        _ => None,
    }
}

fn blocks(part: &Part, lens: &[i64], places: &[i64], scale: isize) -> Option<Tree> {
    let mut tree = Tree::new();
    let mut last: Option<(i64, Tree)> = None;
    for (len, at) in lens.iter().zip(places) {
        let one = match &last {
            Some((l, tree)) if l == len => tree.clone(),
            _ => part.tree.times(usize::try_from(*len).ok()?, part.extent),
        };
        tree.push(&one, *at as isize * scale);
        last = Some((*len, one));
    }
    Some(tree)
}

/// The dimensions from the one whose elements are next to each other to the one whose are farthest apart.
fn inner_first(dimensions: usize, order_c: bool) -> Box<dyn Iterator<Item = usize>> {
    if order_c { Box::new((0..dimensions).rev()) } else { Box::new(0..dimensions) }
}

fn subarray(i: &[i64], part: &Part, order_c: c_int) -> Option<Tree> {
    let dimensions = usize::try_from(*i.first()?).ok()?;
    let [sizes, subsizes, starts] = [0, 1, 2].map(|n| i.get(1 + n * dimensions..1 + (n + 1) * dimensions));
    let (sizes, subsizes, starts) = (sizes?, subsizes?, starts?);
    let order = *i.get(1 + 3 * dimensions)?;
    let (mut tree, mut stride, mut offset) = (part.tree.clone(), part.extent, 0);
    for d in inner_first(dimensions, order == i64::from(order_c)) {
        tree = tree.times(usize::try_from(subsizes[d]).ok()?, stride);
        offset += starts[d] as isize * stride;
        stride *= sizes[d] as isize;
    }
    let mut moved = Tree::new();
    moved.push(&tree, offset);
    Some(moved)
}

fn darray(i: &[i64], part: &Part, constants: &Darray) -> Option<Tree> {
    let (rank, dimensions) = (*i.get(1)?, usize::try_from(*i.get(2)?).ok()?);
    let [sizes, distributions, arguments, processes] =
        [0, 1, 2, 3].map(|n| i.get(3 + n * dimensions..3 + (n + 1) * dimensions));
    let (sizes, distributions, arguments, processes) = (sizes?, distributions?, arguments?, processes?);
    let order = *i.get(3 + 4 * dimensions)?;
    // The grid of processes is always in the order of C.
    let mut places = vec![0; dimensions];
    let mut rest = rank;
    for d in (0..dimensions).rev() {
        places[d] = rest % processes[d].max(1);
        rest /= processes[d].max(1);
    }
    let (mut tree, mut stride) = (part.tree.clone(), part.extent);
    for d in inner_first(dimensions, order == i64::from(constants.order_c)) {
        let (size, among, place) = (sizes[d], processes[d].max(1), places[d]);
        let argument = (arguments[d] != i64::from(constants.default)).then_some(arguments[d]);
        let block = match distributions[d] {
            x if x == i64::from(constants.block) => argument.unwrap_or((size + among - 1) / among),
            x if x == i64::from(constants.cyclic) => argument.unwrap_or(1),
            _ => size,
        };
        tree = distributed(&tree, stride, size, block.max(1), among, place)?;
        stride *= size as isize;
    }
    Some(tree)
}

/// Of `size` indices, dealt out in blocks, those of one process.
fn distributed(tree: &Tree, stride: isize, size: i64, block: i64, among: i64, place: i64) -> Option<Tree> {
    let round = block.checked_mul(among)?;
    let first = place * block;
    let mut all = Tree::new();
    if first >= size {
        return Some(all);
    }
    let whole = (size - first) / round + i64::from((size - first) % round >= block);
    let one = tree.times(usize::try_from(block).ok()?, stride);
    let rounds = one.times(usize::try_from(whole).ok()?, round as isize * stride);
    all.push(&rounds, first as isize * stride);
    let next = first + whole * round;
    if next < size {
        let left = tree.times(usize::try_from((size - next).min(block)).ok()?, stride);
        all.push(&left, next as isize * stride);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::MPICH;

    fn bytes(tree: &Tree) -> Vec<isize> {
        let mut all = Vec::new();
        tree.walk(&mut |at, len| {
            all.extend((0..len as isize).map(|n| at + n));
            true
        });
        all
    }

    fn of(combiner: c_int, integers: &[i64], addresses: &[i64], parts: &[(usize, isize)]) -> Vec<isize> {
        let contents = Contents {
            combiner,
            integers: integers.to_vec(),
            addresses: addresses.to_vec(),
            types: Vec::new(),
        };
        let parts: Vec<Part> =
            parts.iter().map(|(len, extent)| Part { tree: Tree::block(0, *len), extent: *extent }).collect();
        bytes(&made(&MPICH, &contents, &parts).unwrap())
    }

    #[test]
    fn each_constructor_has_the_type_map_of_the_standard() {
        let c = MPICH.combiners;
        let two = &[(2, 2)];
        assert_eq!(of(c.contiguous, &[3], &[], two), [0, 1, 2, 3, 4, 5]);
        assert_eq!(of(c.vector, &[2, 1, 3], &[], two), [0, 1, 6, 7]);
        assert_eq!(of(c.hvector, &[2, 1], &[-5], two), [0, 1, -5, -4]);
        assert_eq!(of(c.indexed, &[2, 1, 2, 4, 0], &[], two), [8, 9, 0, 1, 2, 3]);
        assert_eq!(of(c.hindexed, &[2, 1, 1], &[7, 1], two), [7, 8, 1, 2]);
        assert_eq!(of(c.indexed_block, &[2, 1, 3, 0], &[], two), [6, 7, 0, 1]);
        assert_eq!(of(c.hindexed_block, &[2, 1], &[9, 5], two), [9, 10, 5, 6]);
        assert_eq!(of(c.structure, &[2, 1, 2], &[0, 4], &[(1, 4), (2, 3)]), [0, 4, 5, 7, 8]);
        assert_eq!(of(c.resized, &[], &[-4, 16], two), [0, 1]);
        assert_eq!(of(c.dup, &[], &[], two), [0, 1]);
        // Rows 1 and 2 of columns 1 to 2, of 3 rows of 4.
        assert_eq!(of(c.subarray, &[2, 3, 4, 2, 2, 1, 1, 56], &[], &[(1, 1)]), [5, 6, 9, 10]);
        assert_eq!(of(c.subarray, &[2, 4, 3, 2, 2, 1, 1, 57], &[], &[(1, 1)]), [5, 6, 9, 10]);
    }

    /// What MPI_Type_create_darray says, index by index.
    fn dealt(sizes: [i64; 2], blocks: [i64; 2], grid: [i64; 2], rank: i64) -> Vec<isize> {
        let place = [rank / grid[1], rank % grid[1]];
        let has = |d: usize, index: i64| (index / blocks[d]) % grid[d] == place[d];
        let all = (0..sizes[0]).flat_map(|r| (0..sizes[1]).map(move |c| (r, c)));
        all.filter(|(r, c)| has(0, *r) && has(1, *c)).map(|(r, c)| (r * sizes[1] + c) as isize).collect()
    }

    #[test]
    fn distributed_arrays_have_the_elements_of_their_process() {
        let (d, combiner) = (MPICH.darray, MPICH.combiners.darray);
        for (sizes, blocks, grid) in
            [([7, 5], [2, 1], [2, 2]), ([6, 6], [3, 2], [2, 3]), ([5, 9], [1, 2], [3, 2])]
        {
            for rank in 0..grid[0] * grid[1] {
                let cyclic = i64::from(d.cyclic);
                let integers = [
                    grid[0] * grid[1],
                    rank,
                    2,
                    sizes[0],
                    sizes[1],
                    cyclic,
                    cyclic,
                    blocks[0],
                    blocks[1],
                    grid[0],
                    grid[1],
                    i64::from(d.order_c),
                ];
                assert_eq!(of(combiner, &integers, &[], &[(1, 1)]), dealt(sizes, blocks, grid, rank));
            }
        }
        // By the default block of 5 indices for 2 processes, and an undistributed dimension.
        let integers =
            [2, 1, 2, 5, 2, i64::from(d.block), 123, i64::from(d.default), i64::from(d.default), 2, 1, 56];
        assert_eq!(of(combiner, &integers, &[], &[(1, 1)]), dealt([5, 2], [3, 2], [2, 1], 1));
    }

    #[test]
    fn pairs_have_their_gap() {
        assert_eq!(bytes(&predefined(6, 0, 8)), [0, 1, 4, 5, 6, 7]);
        assert_eq!(predefined(12, 0, 12).single(), Some((0, 12)));
        assert_eq!(predefined(20, 0, 20).single(), Some((0, 20)));
        assert_eq!(predefined(20, 0, 32).single(), Some((0, 20)));
        assert_eq!(bytes(&predefined(12, 0, 16)).len(), 12);
    }
}
