//! Graphs of memory operations and kernels: made node by node or by capturing a stream, and launched.

use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::Arc;

use super::api::{BatchParams, Error, Handle, KernelParams, MemOp as Raw, NOT_FOUND, loaded};
use super::kernel::Function;
use super::memops::{MemOp, raw};
use super::queue::Stream;
use super::stream::{INVALID_CONTEXT, Relaxed, enter};

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: i32 = 2;
/// `CU_STREAM_CAPTURE_STATUS_ACTIVE`.
const ACTIVE: i32 = 1;

/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC` and `CU_GRAPH_USER_OBJECT_MOVE`.
const NO_SYNC: u32 = 1;
const MOVE: u32 = 1;

/// A `CUgraphNode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node(usize);

impl Node {
    /// A node of the program's.
    pub fn of_program(node: usize) -> Node {
        Node(node)
    }

    /// Its `CUgraphNode`.
    pub fn handle(self) -> usize {
        self.0
    }
}

/// What a graph holds (a `CUuserObject`).
#[derive(Debug)]
pub struct Held(usize);

/// A `CUgraph`.
#[derive(Debug)]
pub struct Graph {
    handle: usize,
    ctx: usize,
    /// Destroyed on drop.
    own: bool,
}

impl Graph {
    /// An empty one, for the stream's context.
    pub fn new(stream: Stream) -> Result<Graph, Error> {
        let (api, _entered) = stream.enter()?;
        let mut graph = null_mut();
        api.graph_create(&mut graph, 0)?;
        Ok(Graph { handle: graph as usize, ctx: stream.context(), own: true })
    }

    /// One of the program's, to which nodes for the stream's context are added.
    ///
    /// # Safety
    /// It is a graph, and stays one for as long as what is returned is used; no other thread uses it.
    pub unsafe fn of_program(graph: usize, stream: Stream) -> Graph {
        Graph { handle: graph, ctx: stream.context(), own: false }
    }

    /// The one that a stream of the program's is being captured into. `None`: the driver is of before CUDA
    /// 11.3, and does not say it, or the capture has been invalidated.
    pub fn of_capture(stream: Stream) -> Result<Option<Graph>, Error> {
        let (api, _entered) = stream.enter()?;
        let (mut status, mut id, mut handle, mut after, mut count) = (0, 0, null_mut(), null(), 0);
        let stream_of = stream.handle() as Handle;
        match api.capture_info(stream_of, &mut status, &mut id, &mut handle, &mut after, &mut count) {
            Ok(()) if status == ACTIVE => {
                Ok(Some(Graph { handle: handle as usize, ctx: stream.context(), own: false }))
            }
            Ok(()) | Err(Error(NOT_FOUND)) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Its `CUgraph`.
    pub fn handle(&self) -> usize {
        self.handle
    }

    /// Adds a batch of at most [`super::memops::MOST_IN_BATCH`] operations behind other nodes.
    ///
    /// # Safety
    /// What they access is there as often as the graph is launched; `after` are nodes of this graph.
    pub unsafe fn add_batch(&mut self, after: &[Node], ops: &[MemOp]) -> Result<Node, Error> {
        let (api, _entered) = enter(self.ctx)?;
        let raw = raw(ops);
        let params = params(self.ctx, &raw);
        let (before, mut node) = (handles(after), null_mut());
        api.graph_batch(&mut node, self.handle as Handle, before.as_ptr(), before.len(), &params)?;
        Ok(Node(node as usize))
    }

    /// Adds a kernel of `grid` blocks and threads of each, whose parameters are all of 64 bits, behind other
    /// nodes.
    ///
    /// # Safety
    /// As of [`Graph::add_batch`]; the kernel has as many parameters as there are arguments.
    pub unsafe fn add_kernel(
        &mut self,
        after: &[Node],
        function: Function,
        grid: [u32; 2],
        arguments: &[u64],
    ) -> Result<Node, Error> {
        if function.context() != self.ctx {
            return Err(Error(INVALID_CONTEXT));
        }
        let (api, _entered) = enter(self.ctx)?;
        let mut arguments = arguments.to_vec();
        let mut places: Vec<*mut c_void> = arguments.iter_mut().map(|a| (a as *mut u64).cast()).collect();
        let params = KernelParams {
            function: function.handle() as Handle,
            grid: [grid[0], 1, 1, grid[1], 1, 1, 0],
            arguments: places.as_mut_ptr(),
            extra: null_mut(),
            kernel: null_mut(),
            ctx: null_mut(),
        };
        let (before, mut node) = (handles(after), null_mut());
        api.graph_kernel(&mut node, self.handle as Handle, before.as_ptr(), before.len(), &params)?;
        Ok(Node(node as usize))
    }

    /// Has the graph, its copies, its instances and their launches hold that; `None`: the driver cannot
    /// (before CUDA 11.3). What they held is let go in a thread of the driver's.
    pub fn hold(&mut self, what: Arc<()>) -> Result<Option<Held>, Error> {
        let (api, _entered) = enter(self.ctx)?;
        let (mut object, at) = (null_mut(), Arc::into_raw(what));
        let created = api.held_create(&mut object, at.cast_mut().cast(), let_go, 1, NO_SYNC);
        if let Err(e) = created {
            // SAFETY: from above, and nothing has it.
            drop(unsafe { Arc::from_raw(at) });
            return if e == Error(NOT_FOUND) { Ok(None) } else { Err(e) };
        }
        match api.graph_hold(self.handle as Handle, object, 1, MOVE) {
            Ok(()) => Ok(Some(Held(object as usize))),
            Err(e) => {
                let _ = api.held_release(object, 1);
                Err(e)
            }
        }
    }

    /// Has the graph hold that no more, before it is copied or instantiated.
    pub fn let_go(&mut self, held: Held) -> Result<(), Error> {
        let (api, _entered) = enter(self.ctx)?;
        api.graph_let_go(self.handle as Handle, held.0 as Handle, 1)
    }

    /// Its nodes.
    pub fn nodes(&self) -> Result<Vec<Node>, Error> {
        let (api, _entered) = enter(self.ctx)?;
        let mut count = 0;
        api.graph_nodes(self.handle as Handle, null_mut(), &mut count)?;
        let mut nodes: Vec<Handle> = vec![null_mut(); count];
        api.graph_nodes(self.handle as Handle, nodes.as_mut_ptr(), &mut count)?;
        Ok(nodes.into_iter().take(count).map(|n| Node(n as usize)).collect())
    }

    /// What can be launched. It does not change with the graph.
    pub fn instantiate(&self) -> Result<Instance, Error> {
        let (api, _entered) = enter(self.ctx)?;
        let mut instance = null_mut();
        api.graph_instantiate(&mut instance, self.handle as Handle, 0)?;
        Ok(Instance { handle: instance as usize, ctx: self.ctx })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if let Some(api) = loaded().filter(|_| self.own) {
            let _relaxed = Relaxed::new(api);
            let _ = api.graph_destroy(self.handle as Handle);
        }
    }
}

/// What the driver calls at the end of the last graph that holds something.
unsafe extern "C" fn let_go(what: *mut c_void) {
    // SAFETY: from `hold`, whose object the driver ends once.
    drop(unsafe { Arc::from_raw(what.cast_const().cast::<()>()) });
}

/// A batch of these operations, as a node has it.
fn params(ctx: usize, ops: &[Raw]) -> BatchParams {
    BatchParams { ctx: ctx as Handle, count: ops.len() as u32, ops: ops.as_ptr(), flags: 0 }
}

fn handles(nodes: &[Node]) -> Vec<Handle> {
    nodes.iter().map(|n| n.0 as Handle).collect()
}

/// A `CUgraphExec`.
#[derive(Debug)]
pub struct Instance {
    handle: usize,
    ctx: usize,
}

impl Instance {
    /// Queues all of it in a stream. A launch waits for the one before it.
    ///
    /// # Safety
    /// What its nodes access is there until the launch is done.
    pub unsafe fn launch(&self, stream: Stream) -> Result<(), Error> {
        let (api, _entered) = stream.enter()?;
        api.graph_launch(self.handle as Handle, stream.handle() as Handle)
    }

    /// Has later launches do other operations in a node, as many as it had.
    ///
    /// # Safety
    /// As of [`Graph::add_batch`].
    pub unsafe fn set_batch(&mut self, node: Node, ops: &[MemOp]) -> Result<(), Error> {
        let (api, _entered) = enter(self.ctx)?;
        let raw = raw(ops);
        api.graph_set_batch(self.handle as Handle, node.0 as Handle, &params(self.ctx, &raw))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // The instance of a context that is gone went with it.
        if let Ok((api, _entered)) = enter(self.ctx) {
            let _ = api.graph_exec_destroy(self.handle as Handle);
        }
    }
}

/// A capture of a stream, which this thread has begun, in the relaxed mode: calls of other threads do not end
/// it. Dropped, what was captured is dropped.
#[derive(Debug)]
pub struct Capture {
    stream: Stream,
    over: bool,
}

impl Capture {
    /// Begins. The stream is not being captured already.
    pub fn begin(stream: Stream) -> Result<Capture, Error> {
        let (api, _entered) = stream.enter()?;
        api.capture_begin(stream.handle() as Handle, RELAXED)?;
        Ok(Capture { stream, over: false })
    }

    /// Ends, with the graph of all that was queued.
    pub fn end(mut self) -> Result<Graph, Error> {
        self.over = true;
        self.stop()
    }

    fn stop(&self) -> Result<Graph, Error> {
        let (api, _entered) = self.stream.enter()?;
        let mut graph = null_mut();
        api.capture_end(self.stream.handle() as Handle, &mut graph)?;
        Ok(Graph { handle: graph as usize, ctx: self.stream.context(), own: true })
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if !self.over {
            drop(self.stop());
        }
    }
}
