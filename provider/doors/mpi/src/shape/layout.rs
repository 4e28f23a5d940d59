//! The form in which kernels pack a datatype: a list of pieces, and the levels at which it is repeated.

use device_ops::{Layout, Level, Piece};

use super::tree::{Node, Tree};

/// Most pieces, of which each is 16 bytes in the device's memory.
const PIECES: usize = 1 << 20;

/// That form of a tree; `None` where it has too many pieces.
pub(super) fn of(tree: &Tree) -> Option<Layout> {
    let (mut rest, mut levels, mut by) = (tree.clone(), Vec::new(), 0);
    while let Some(Node::Repeat { at, count, stride, body }) = rest.only() {
        by += at;
        levels.push(Level { count: *count as u64, stride: *stride as i64 });
        rest = Tree::of(body);
    }
    levels.reverse();
    if rest.blocks() > PIECES {
        return None;
    }
    let mut pieces = Vec::with_capacity(rest.blocks());
    rest.walk(&mut |at, len| {
        pieces.push(Piece { offset: (at + by) as i64, length: len as u64 });
        true
    });
    Layout::new(&pieces, &levels).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The offsets of the bytes, in order.
    fn bytes(tree: &Tree) -> Vec<i64> {
        let mut all = Vec::new();
        tree.walk(&mut |at, len| {
            all.extend((0..len as i64).map(|n| at as i64 + n));
            true
        });
        all
    }

    fn bytes_of(layout: &Layout) -> Vec<i64> {
        let (pieces, levels) = layout.form();
        let mut all: Vec<i64> =
            pieces.iter().flat_map(|p| (0..p.length as i64).map(|n| p.offset + n)).collect();
        for level in levels {
            let inner = all;
            all = (0..level.count as i64)
                .flat_map(|n| inner.iter().map(move |at| at + n * level.stride))
                .collect();
        }
        all
    }

    #[test]
    fn a_layout_has_the_bytes_of_its_tree_in_order() {
        let face = Tree::block(16, 8).times(5, 64).times(7, 1024);
        let mut several = Tree::block(3, 4);
        several.push_block(20, 1);
        several.push(&face, 40);
        let nested = several.times(3, 20_000).times(2, -1).times(2, 100_000);
        for tree in [Tree::new(), Tree::block(-8, 24), face, several, nested] {
            let layout = of(&tree).unwrap();
            assert_eq!(bytes_of(&layout), bytes(&tree));
        }
    }

    #[test]
    fn a_subarray_is_levels_and_a_vector_of_blocks_that_meet_is_one_piece() {
        let layout = of(&Tree::block(16, 8).times(5, 64).times(7, 1024)).unwrap();
        assert_eq!((layout.form().0.len(), layout.form().1.len()), (1, 2));
        assert!(of(&Tree::block(0, 8).times(4, 8)).unwrap().is_contiguous());
    }

    #[test]
    fn a_datatype_of_too_many_blocks_has_none() {
        let mut tree = Tree::new();
        for n in 0..=PIECES as isize {
            // No two of them at one distance.
            tree.push_block(n * n + 3 * n, 1);
        }
        assert!(of(&tree).is_none());
    }
}
