//! The binomial tree of a call: the parent's number, counted from the root, lacks the lowest bit of a
//! member's own, and its children have a lower one.

/// A member's place in the tree.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tree {
    n: usize,
    root: usize,
    /// Counted from the root.
    mine: usize,
}

impl Tree {
    /// Of `n` members the one at `me`.
    pub(super) fn new(n: usize, root: usize, me: usize) -> Tree {
        Tree { n, root, mine: (me + n - root) % n }
    }

    /// The place of the parent; the root has none.
    pub(super) fn parent(self) -> Option<usize> {
        (self.mine != 0).then(|| self.place(self.mine & (self.mine - 1)))
    }

    /// The places of the children, the next one first.
    pub(super) fn children(self) -> impl DoubleEndedIterator<Item = usize> {
        let end = if self.mine == 0 { self.n.next_power_of_two() } else { self.mine };
        let bits = 0..end.trailing_zeros();
        let children = bits.map(move |bit| self.mine + (1 << bit)).filter(move |child| *child < self.n);
        children.map(move |child| self.place(child))
    }

    fn place(self, relative: usize) -> usize {
        (relative + self.root) % self.n
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_member_but_the_root_is_the_child_of_its_parent_alone() {
        for (n, root) in (1..40).flat_map(|n| (0..n).map(move |root| (n, root))) {
            let mut parents = vec![None; n];
            for me in 0..n {
                for child in Tree::new(n, root, me).children() {
                    assert_eq!(parents[child].replace(me), None, "{n} {root}");
                }
            }
            for (me, parent) in parents.into_iter().enumerate() {
                assert_eq!(Tree::new(n, root, me).parent(), parent, "{n} {root} {me}");
                assert_eq!(parent.is_none(), me == root, "{n} {root} {me}");
            }
        }
    }
}
