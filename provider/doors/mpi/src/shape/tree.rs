//! Where the bytes of data are: blocks, and repetitions of blocks at a distance.
//!
//! The form is canonical as far as blocks that follow each other become one, and blocks of one length at one
//! distance become a repetition. So types that describe the same bytes in the same order cost the same,
//! however they were made.

use std::sync::Arc;

/// Some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// `len` bytes at `at`.
    Block {
        /// The first one.
        at: isize,
        /// How many.
        len: usize,
    },
    /// `body`, `count` times, at `at`, `at + stride` and so on.
    Repeat {
        /// What is added to the places of the first one.
        at: isize,
        /// How often.
        count: usize,
        /// The distance.
        stride: isize,
        /// What is repeated.
        body: Arc<[Node]>,
    },
}

impl Node {
    /// The same, elsewhere.
    fn moved(&self, by: isize) -> Node {
        match self {
            Node::Block { at, len } => Node::Block { at: at + by, len: *len },
            Node::Repeat { at, count, stride, body } => {
                Node::Repeat { at: at + by, count: *count, stride: *stride, body: body.clone() }
            }
        }
    }

    /// Where it begins, in the order of the type map.
    fn first(&self) -> isize {
        match self {
            Node::Block { at, .. } => *at,
            Node::Repeat { at, body, .. } => at + body.first().map_or(0, Node::first),
        }
    }
}

/// Bytes in the order of a type map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    nodes: Vec<Node>,
}

impl Tree {
    /// None.
    pub const fn new() -> Tree {
        Tree { nodes: Vec::new() }
    }

    /// `len` bytes at `at`.
    pub fn block(at: isize, len: usize) -> Tree {
        let mut tree = Tree::new();
        tree.push_block(at, len);
        tree
    }

    /// What is repeated in a node.
    pub(super) fn of(body: &[Node]) -> Tree {
        Tree { nodes: body.to_vec() }
    }

    /// The node, if there is one alone.
    pub(super) fn only(&self) -> Option<&Node> {
        match &self.nodes[..] {
            [node] => Some(node),
            _ => None,
        }
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The one block, if all bytes are in one.
    pub fn single(&self) -> Option<(isize, usize)> {
        match self.nodes[..] {
            [Node::Block { at, len }] => Some((at, len)),
            _ => None,
        }
    }

    /// Adds a block.
    pub fn push_block(&mut self, at: isize, len: usize) {
        if len == 0 {
            return;
        }
        match self.nodes.last_mut() {
            Some(Node::Block { at: last, len: l }) if *last + *l as isize == at => {
                *l += len;
                self.fold();
                return;
            }
            _ => {}
        }
        self.nodes.push(Node::Block { at, len });
        self.fold();
    }

    /// Adds another tree, elsewhere.
    pub fn push(&mut self, tree: &Tree, by: isize) {
        for node in &tree.nodes {
            self.push_node(node.moved(by));
        }
    }

    fn push_node(&mut self, node: Node) {
        match node {
            Node::Block { at, len } => self.push_block(at, len),
            repeat => {
                self.nodes.push(repeat);
                self.fold();
            }
        }
    }

    /// The last two become one repetition, where they are two of the same at the distance of what is there.
    fn fold(&mut self) {
        while let [.., before, last] = &self.nodes[..] {
            let Some(one) = Self::together(before, last) else { return };
            self.nodes.truncate(self.nodes.len() - 2);
            self.nodes.push(one);
        }
    }

    fn together(before: &Node, last: &Node) -> Option<Node> {
        match (before, last) {
            (Node::Block { at, len }, Node::Block { at: next, len: l }) if len == l => Some(Node::Repeat {
                at: *at,
                count: 2,
                stride: next - at,
                body: [Node::Block { at: 0, len: *len }].into(),
            }),
            (Node::Repeat { at, count, stride, body }, Node::Block { at: next, len })
                if body[..] == [Node::Block { at: 0, len: *len }]
                    && at + *count as isize * stride == *next =>
            {
                Some(Node::Repeat { at: *at, count: count + 1, stride: *stride, body: body.clone() })
            }
            (
                Node::Repeat { at, count, stride, body },
                Node::Repeat { at: next, count: others, stride: s, body: b },
            ) if stride == s && body == b && at + *count as isize * stride == *next => {
                Some(Node::Repeat { at: *at, count: count + others, stride: *stride, body: body.clone() })
            }
            _ => None,
        }
    }

    /// This, `count` times at a distance.
    pub fn times(&self, count: usize, stride: isize) -> Tree {
        if count == 0 || self.is_empty() {
            return Tree::new();
        }
        if count == 1 {
            return self.clone();
        }
        if let [node] = &self.nodes[..] {
            match node {
                Node::Block { at, len } if stride == *len as isize => return Tree::block(*at, len * count),
                // A repetition at the distance that its own end has.
                Node::Repeat { at, count: inner, stride: s, body } if stride == *inner as isize * s => {
                    let (at, stride, body) = (*at, *s, body.clone());
                    return Tree { nodes: vec![Node::Repeat { at, count: inner * count, stride, body }] };
                }
                _ => {}
            }
        }
        let at = self.nodes[0].first();
        let body = self.nodes.iter().map(|node| node.moved(-at)).collect();
        Tree { nodes: vec![Node::Repeat { at, count, stride, body }] }
    }

    /// Calls `each(at, len)` for each block, in order, until it answers false; whether it never did.
    pub fn walk(&self, each: &mut impl FnMut(isize, usize) -> bool) -> bool {
        walk(&self.nodes, 0, each)
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        size(&self.nodes)
    }

    /// Blocks.
    pub fn blocks(&self) -> usize {
        blocks(&self.nodes)
    }

    /// The first byte, and the one behind the last, of all.
    pub fn bounds(&self) -> Option<(isize, isize)> {
        bounds(&self.nodes)
    }
}

fn walk(nodes: &[Node], by: isize, each: &mut impl FnMut(isize, usize) -> bool) -> bool {
    nodes.iter().all(|node| match node {
        Node::Block { at, len } => each(at + by, *len),
        Node::Repeat { at, count, stride, body } => {
            (0..*count as isize).all(|n| walk(body, by + at + n * stride, each))
        }
    })
}

fn size(nodes: &[Node]) -> usize {
    let one = |node: &Node| match node {
        Node::Block { len, .. } => *len,
        Node::Repeat { count, body, .. } => count * size(body),
    };
    nodes.iter().map(one).sum()
}

fn blocks(nodes: &[Node]) -> usize {
    let one = |node: &Node| match node {
        Node::Block { .. } => 1,
        Node::Repeat { count, body, .. } => count * blocks(body),
    };
    nodes.iter().map(one).sum()
}

fn bounds(nodes: &[Node]) -> Option<(isize, isize)> {
    let of = |node: &Node| match node {
        Node::Block { at, len } => Some((*at, at + *len as isize)),
        Node::Repeat { at, count, stride, body } => {
            let (low, high) = bounds(body)?;
            let last = (*count as isize - 1) * stride;
            Some((at + low + last.min(0), at + high + last.max(0)))
        }
    };
    nodes.iter().filter_map(of).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes one by one.
    fn bytes(tree: &Tree) -> Vec<isize> {
        let mut all = Vec::new();
        tree.walk(&mut |at, len| {
            all.extend((0..len as isize).map(|n| at + n));
            true
        });
        all
    }

    /// Numbers that look random, the same in each run.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, n: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.0 >> 33) % n
        }
    }

    #[test]
    fn random_trees_have_the_bytes_of_their_type_maps_in_order() {
        for seed in 0..2000 {
            let mut numbers = Numbers(seed);
            let (mut tree, mut map) = (Tree::new(), Vec::<isize>::new());
            for _ in 0..1 + numbers.below(5) {
                match numbers.below(4) {
                    0 => {
                        let (at, len) = (numbers.below(40) as isize - 20, numbers.below(6) as usize);
                        tree.push_block(at, len);
                        map.extend((0..len as isize).map(|n| at + n));
                    }
                    1 => {
                        let (count, stride) = (numbers.below(4) as usize, numbers.below(60) as isize - 30);
                        tree = tree.times(count, stride);
                        let one = map.clone();
                        map = (0..count as isize)
                            .flat_map(|n| one.iter().map(move |at| at + n * stride))
                            .collect();
                    }
                    2 => {
                        let by = numbers.below(60) as isize - 30;
                        let twice = tree.clone();
                        tree.push(&twice, by);
                        let more: Vec<isize> = map.iter().map(|at| at + by).collect();
                        map.extend(more);
                    }
                    // Blocks at a distance, one by one.
                    _ => {
                        let (at, stride) = (numbers.below(40) as isize, numbers.below(9) as isize - 4);
                        for n in 0..numbers.below(5) as isize {
                            tree.push_block(at + n * stride, 2);
                            map.extend([at + n * stride, at + n * stride + 1]);
                        }
                    }
                }
            }
            assert_eq!(bytes(&tree), map, "seed {seed}");
            assert_eq!(tree.size(), map.len(), "seed {seed}");
            let bounds = map.iter().min().map(|low| (*low, map.iter().max().unwrap() + 1));
            assert_eq!(tree.bounds(), bounds, "seed {seed}");
            let mut blocks = 0;
            tree.walk(&mut |_, _| {
                blocks += 1;
                true
            });
            assert_eq!(tree.blocks(), blocks, "seed {seed}");
        }
    }

    #[test]
    fn equal_bytes_have_one_form() {
        let vector = Tree::block(0, 8).times(5, 24);
        let mut indexed = Tree::new();
        for n in 0..5 {
            indexed.push_block(n * 24, 4);
            indexed.push_block(n * 24 + 4, 4);
        }
        assert_eq!(vector.blocks(), 5);
        assert_eq!(Tree::block(0, 8).times(2, 24).times(3, 48), Tree::block(0, 8).times(6, 24));
        assert_eq!(Tree::block(4, 4).times(1000, 4).single(), Some((4, 4000)));
        assert_eq!(bytes(&indexed), bytes(&vector));
    }

    #[test]
    fn a_walk_ends_where_it_is_asked_to() {
        let mut seen = 0;
        assert!(!Tree::block(0, 1).times(10, 2).walk(&mut |_, _| {
            seen += 1;
            seen < 3
        }));
        assert_eq!(seen, 3);
    }
}
