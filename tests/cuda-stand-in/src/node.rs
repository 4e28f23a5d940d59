//! Pieces of work: what is queued in a stream, and the nodes of a graph.

use std::sync::Arc;

use crate::Ptr;
use crate::memop::MemOp;
use crate::ptx::Launch;

pub(crate) type Function = unsafe extern "C" fn(Ptr);

/// What is queued in a stream, or is a node of a graph.
#[derive(Clone)]
pub(crate) enum Node {
    /// To, from, and how much.
    Copy(usize, usize, usize),
    /// A function of the program's, and its argument.
    Call(Function, usize),
    Kernel(Launch),
    Batch(Arc<[MemOp]>),
    /// Behind so much work of a stream.
    After(usize, u64),
}

impl Node {
    /// Whether what it does may wait for something outside of the stream.
    pub(crate) fn may_take_long(&self) -> bool {
        match self {
            Node::Call(..) => true,
            Node::Kernel(launch) => launch.kernel.waits,
            _ => false,
        }
    }
}
