//! What bytes a datatype describes.

mod contents;
mod flatten;
mod kept;
mod tree;

pub use kept::{forget_predefined, free_key, no_copy, shape_of};
pub use tree::Tree;

/// A datatype, flattened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The bytes of one element.
    pub tree: Tree,
    /// From one element to the next.
    pub extent: isize,
}

impl Shape {
    /// The bytes of several elements that follow each other.
    pub fn times(&self, count: usize) -> Tree {
        self.tree.times(count, self.extent)
    }
}
