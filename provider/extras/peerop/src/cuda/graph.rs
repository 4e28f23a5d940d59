//! The executor that makes lists nodes of a graph, and what launches it.

use std::sync::Arc;

use hmem::cuda::graph::{Graph, Instance, Node};
use hmem::cuda::{Function, Stream};

use super::kit::{Kit, driver};
use super::lower::Step;
use crate::error::Error;
use crate::exec::{Executor, Failed};
use crate::memory::Targets;
use crate::op::Op;
use crate::place::Caps;

/// Adds lists to a graph as nodes, each behind the one before it.
#[derive(Debug)]
pub struct CudaGraph {
    graph: Graph,
    kit: Kit,
    /// What the next node comes behind.
    after: Vec<Node>,
    made: Vec<Made>,
}

/// A node that was made here.
#[derive(Clone, Copy, Debug)]
struct Made {
    node: Node,
    /// How many operations it has; `None`: it is a kernel.
    batch: Option<usize>,
}

impl CudaGraph {
    /// Adds to a graph, at first behind the nodes `after`, for the context of a stream.
    ///
    /// # Safety
    /// `after` are nodes of the graph. Memory stays registered as long as the graph and its instances are
    /// used.
    pub unsafe fn new(
        graph: Graph,
        after: &[Node],
        stream: Stream,
        targets: Arc<Targets>,
    ) -> Result<CudaGraph, Error> {
        let kit = Kit::new(stream, targets)?;
        Ok(CudaGraph { graph, kit, after: after.to_vec(), made: Vec::new() })
    }

    /// The node behind which all is that was added; `None` before anything was.
    pub fn last(&self) -> Option<Node> {
        self.made.last().map(|m| m.node)
    }

    /// Nodes that were added.
    pub fn len(&self) -> usize {
        self.made.len()
    }

    /// Whether none was.
    pub fn is_empty(&self) -> bool {
        self.made.is_empty()
    }

    /// What can be launched.
    pub fn instantiate(&self) -> Result<CudaInstance, Error> {
        let instance = self.graph.instantiate().map_err(driver("instantiating a graph"))?;
        Ok(CudaInstance { instance, kit: self.kit.clone(), made: self.made.clone() })
    }

    /// Adds a kernel of the caller's, of `grid` blocks and threads of each, behind what is there.
    ///
    /// # Safety
    /// The kernel has as many parameters as there are arguments; what it accesses is there as long as the
    /// graph and its instances are used.
    pub unsafe fn launch(
        &mut self,
        kernel: Function,
        grid: [u32; 2],
        arguments: &[u64],
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        let node = unsafe { self.graph.add_kernel(&self.after, kernel, grid, arguments) };
        let node = node.map_err(driver("adding a kernel to a graph"))?;
        self.made.push(Made { node, batch: None });
        self.after = vec![node];
        Ok(())
    }

    fn add(&mut self, step: &Step) -> Result<(), Error> {
        let (node, batch) = match step {
            // SAFETY: the promise of `new`; places were resolved in registered memory.
            Step::Batch(ops) => (unsafe { self.graph.add_batch(&self.after, ops) }, Some(ops.len())),
            Step::Add { to, value } => {
                let add = self.kit.add()?;
                // SAFETY: as above; the kernel has two parameters.
                (unsafe { self.graph.add_kernel(&self.after, add, [1, 1], &[*to, (*value).into()]) }, None)
            }
        };
        let node = node.map_err(driver("adding a node to a graph"))?;
        self.made.push(Made { node, batch });
        self.after = vec![node];
        Ok(())
    }
}

impl Executor for CudaGraph {
    fn caps(&self) -> Caps {
        self.kit.caps()
    }

    fn execute(&mut self, ops: &[Op]) -> Result<(), Failed> {
        let mut before = 0;
        for lowered in self.kit.steps(ops).map_err(Failed::at_once)? {
            self.add(&lowered.step).map_err(|error| Failed { done: before, error })?;
            before = lowered.done;
        }
        Ok(())
    }
}

/// What a graph was when it was instantiated.
#[derive(Debug)]
pub struct CudaInstance {
    instance: Instance,
    kit: Kit,
    made: Vec<Made>,
}

impl CudaInstance {
    /// Launches it in a stream.
    pub fn launch(&self, stream: Stream) -> Result<(), Error> {
        // SAFETY: the promise of `CudaGraph::new`.
        unsafe { self.instance.launch(stream) }.map_err(driver("launching a graph"))
    }

    /// Has later launches execute another list in the place of all that was added before. It makes as many
    /// nodes, of as many operations each: other values or places, but not another shape.
    pub fn update(&mut self, ops: &[Op]) -> Result<(), Failed> {
        let steps = self.kit.steps(ops).map_err(Failed::at_once)?;
        let shape = steps.iter().map(|s| if let Step::Batch(ops) = &s.step { Some(ops.len()) } else { None });
        if !shape.eq(self.made.iter().map(|m| m.batch)) || self.made.iter().any(|m| m.batch.is_none()) {
            return Err(Failed::at_once(Error::Setup(
                "the list makes other nodes than those of the graph: make a new graph of it",
            )));
        }
        let mut before = 0;
        for (lowered, made) in steps.iter().zip(&self.made) {
            if let Step::Batch(ops) = &lowered.step {
                // SAFETY: the promise of `CudaGraph::new`.
                let set = unsafe { self.instance.set_batch(made.node, ops) };
                set.map_err(driver("changing a node")).map_err(|error| Failed { done: before, error })?;
            }
            before = lowered.done;
        }
        Ok(())
    }
}
