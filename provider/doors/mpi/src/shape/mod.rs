//! What bytes a datatype describes.

mod contents;
mod flatten;
mod kept;
mod layout;
mod tree;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use device_ops::Layout;

pub use kept::{forget_predefined, free_key, no_copy, shape_of};
pub use tree::Tree;

/// A datatype, flattened.
#[derive(Debug)]
pub struct Shape {
    /// The bytes of one element.
    pub tree: Tree,
    /// From one element to the next.
    pub extent: isize,
    /// What kernels pack by, made when one first does.
    layout: OnceLock<Option<Layout>>,
    /// Whether the MPI has taken the datatype in a call.
    pub is_committed: AtomicBool,
}

impl Shape {
    fn new(tree: Tree, extent: isize) -> Shape {
        Shape { tree, extent, layout: OnceLock::new(), is_committed: AtomicBool::new(false) }
    }

    /// The bytes of several elements that follow each other.
    pub fn times(&self, count: usize) -> Tree {
        self.tree.times(count, self.extent)
    }

    /// What kernels pack one element by; `None` of a datatype that has too many blocks for it.
    pub fn layout(&self) -> Option<&Layout> {
        self.layout.get_or_init(|| layout::of(&self.tree)).as_ref()
    }
}

/// Elements of a datatype in a buffer.
#[derive(Clone, Debug)]
pub struct Elements {
    /// The datatype.
    pub shape: Arc<Shape>,
    /// How many.
    pub count: usize,
    /// Where the first one is in the buffer.
    pub by: isize,
}

/// The data of a buffer: all bytes, in the order of the type map, and the elements that they belong to.
#[derive(Clone, Debug, Default)]
pub struct Data {
    /// The bytes.
    pub tree: Tree,
    /// The elements, in the same order.
    pub elements: Vec<Elements>,
}

impl Data {
    /// Of elements that begin where the buffer does.
    pub fn of(shape: Arc<Shape>, count: usize) -> Data {
        let tree = shape.times(count);
        Data { tree, elements: vec![Elements { shape, count, by: 0 }] }
    }

    /// Adds elements of which the first one is at `by`.
    pub fn push(&mut self, shape: Arc<Shape>, count: usize, by: isize) {
        self.tree.push(&shape.times(count), by);
        self.elements.push(Elements { shape, count, by });
    }

    /// Bytes behind the last block that belong to its element: the gap before the next one.
    pub fn behind(&self) -> usize {
        let Some((_, high)) = self.tree.bounds() else { return 0 };
        let ends = self.elements.iter().filter_map(|Elements { shape, count, by }| {
            let (low, _) = shape.tree.bounds()?;
            Some(by + low + shape.extent * *count as isize)
        });
        usize::try_from(ends.max().unwrap_or(high) - high).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gap_behind_the_last_block_is_as_long_as_the_one_before_each_element() {
        let pair = Arc::new(Shape::new(Tree::block(0, 12), 16));
        assert_eq!(Data::of(pair.clone(), 3).behind(), 4);
        assert_eq!(Data::default().behind(), 0);
        let mut several = Data::of(pair.clone(), 3);
        several.push(pair, 1, -100);
        assert_eq!(several.behind(), 4);
        for extent in [-16, 4, 12] {
            assert_eq!(Data::of(Arc::new(Shape::new(Tree::block(0, 12), extent)), 3).behind(), 0);
        }
    }
}
