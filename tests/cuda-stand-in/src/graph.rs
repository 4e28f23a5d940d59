//! Graphs: nodes that are made one by one or by capturing a stream, instances of them, and their launches.
//!
//! A launch does its nodes one after the other, in the order in which they were made: what depends on another
//! one is made later. Branches beside each other are not done at once; one whose wait only another branch
//! satisfies does not end here. Two launches of an instance are one after the other, as the driver's are.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::memop::{self, MemOp};
use crate::module::{self, KernelNode};
use crate::node::{Held, Node};
use crate::stream;
use crate::{INVALID_HANDLE, INVALID_VALUE, Ptr, SUCCESS, capture, context, enter, enter_in_context};

/// `CUDA_BATCH_MEM_OP_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct BatchNode {
    ctx: Ptr,
    count: u32,
    ops: *const [u64; 6],
    flags: u32,
}

impl BatchNode {
    unsafe fn read(&self) -> Result<Vec<MemOp>, i32> {
        context::find(self.ctx as usize).ok_or(INVALID_VALUE)?;
        unsafe { memop::read(self.count, self.ops, self.flags) }
    }
}

/// Its nodes, and what it holds.
#[derive(Default)]
struct Graph(Vec<(usize, Node)>, Vec<Held>);

struct Instance {
    nodes: Vec<(usize, Node)>,
    held: Vec<Held>,
    /// The stream of its last launch, and how much was queued there behind it.
    last: Option<(usize, u64)>,
}

#[derive(Default)]
struct All {
    graphs: HashMap<usize, Graph>,
    instances: HashMap<usize, Instance>,
    made: usize,
}

impl All {
    fn name(&mut self) -> usize {
        self.made += 1;
        0x6000_0000 + self.made * 16
    }
}

fn all() -> MutexGuard<'static, All> {
    static ALL: OnceLock<Mutex<All>> = OnceLock::new();
    ALL.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

fn make(graph: usize, nodes: Vec<Node>, held: Vec<Held>) -> Ptr {
    let mut all = all();
    let nodes = nodes.into_iter().map(|node| (all.name(), node)).collect();
    all.graphs.insert(graph, Graph(nodes, held));
    graph as Ptr
}

/// `CU_GRAPH_USER_OBJECT_MOVE`.
const MOVE: u32 = 1;

/// Also of a graph that a stream is being captured into. The caller's reference becomes the graph's.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphRetainUserObject(graph: Ptr, object: Ptr, count: u32, flags: u32) -> i32 {
    enter!("cuGraphRetainUserObject");
    if count != 1 || flags != MOVE {
        return INVALID_VALUE;
    }
    let Some(held) = Held::of_program(object as usize) else { return INVALID_VALUE };
    let Some(held) = capture::hold(graph as usize, held) else { return SUCCESS };
    match all().graphs.get_mut(&(graph as usize)) {
        Some(of) => of.1.push(held),
        None => {
            // It is still the caller's.
            std::mem::forget(held);
            return INVALID_VALUE;
        }
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphReleaseUserObject(graph: Ptr, object: Ptr, count: u32) -> i32 {
    enter!("cuGraphReleaseUserObject");
    if count != 1 {
        return INVALID_VALUE;
    }
    let of_graph = |g: &mut Graph| Held::take(&mut g.1, object as usize);
    let done = capture::let_go(graph as usize, object as usize)
        || all().graphs.get_mut(&(graph as usize)).is_some_and(of_graph);
    if done { SUCCESS } else { INVALID_VALUE }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture(stream: Ptr, graph: *mut Ptr) -> i32 {
    enter_in_context!("cuStreamEndCapture");
    unsafe { *graph = std::ptr::null_mut() };
    match capture::end(stream as usize) {
        Some(Ok((name, nodes, held))) => {
            unsafe { *graph = make(name, nodes, held) };
            SUCCESS
        }
        Some(Err(code)) => code,
        None => INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphCreate(graph: *mut Ptr, flags: u32) -> i32 {
    enter!("cuGraphCreate");
    if flags != 0 {
        return INVALID_VALUE;
    }
    let name = all().name();
    unsafe { *graph = make(name, Vec::new(), Vec::new()) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphDestroy(graph: Ptr) -> i32 {
    enter!("cuGraphDestroy");
    all().graphs.remove(&(graph as usize)).map_or(INVALID_VALUE, |_| SUCCESS)
}

/// Adds a node behind those that it depends on, which are of the same graph.
unsafe fn add(node: *mut Ptr, graph: Ptr, before: *const Ptr, count: usize, what: Node) -> i32 {
    let mut all = all();
    let name = all.name();
    let Some(of) = all.graphs.get_mut(&(graph as usize)) else { return INVALID_VALUE };
    let is_here = |i| of.0.iter().any(|(n, _)| *n == unsafe { *before.add(i) } as usize);
    if !(0..count).all(is_here) {
        return INVALID_VALUE;
    }
    of.0.push((name, what));
    unsafe { *node = name as Ptr };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphAddBatchMemOpNode(
    node: *mut Ptr,
    graph: Ptr,
    before: *const Ptr,
    count: usize,
    params: *const BatchNode,
) -> i32 {
    enter!("cuGraphAddBatchMemOpNode");
    match unsafe { (*params).read() } {
        Ok(ops) => unsafe { add(node, graph, before, count, Node::Batch(ops.into())) },
        Err(code) => code,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphAddKernelNode_v2(
    node: *mut Ptr,
    graph: Ptr,
    before: *const Ptr,
    count: usize,
    params: *const KernelNode,
) -> i32 {
    enter_in_context!("cuGraphAddKernelNode_v2");
    match unsafe { module::of_node(&*params) } {
        Ok(launch) => unsafe { add(node, graph, before, count, Node::Kernel(launch)) },
        Err(code) => code,
    }
}

/// How many nodes there are, and as many of them as there is room for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphGetNodes(graph: Ptr, nodes: *mut Ptr, count: *mut usize) -> i32 {
    enter!("cuGraphGetNodes");
    let all = all();
    let Some(of) = all.graphs.get(&(graph as usize)) else { return INVALID_VALUE };
    if !nodes.is_null() {
        for (i, (name, _)) in of.0.iter().enumerate().take(unsafe { *count }) {
            unsafe { *nodes.add(i) = *name as Ptr };
        }
    }
    unsafe { *count = of.0.len() };
    SUCCESS
}

/// Of one instance at a time; it does not change with the graph.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiateWithFlags(instance: *mut Ptr, graph: Ptr, flags: u64) -> i32 {
    enter_in_context!("cuGraphInstantiateWithFlags");
    let mut all = all();
    let name = all.name();
    let Some(of) = all.graphs.get(&(graph as usize)).filter(|_| flags == 0) else { return INVALID_VALUE };
    let (nodes, held) = (of.0.clone(), of.1.clone());
    all.instances.insert(name, Instance { nodes, held, last: None });
    unsafe { *instance = name as Ptr };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphExecDestroy(instance: Ptr) -> i32 {
    enter!("cuGraphExecDestroy");
    all().instances.remove(&(instance as usize)).map_or(INVALID_VALUE, |_| SUCCESS)
}

/// Launches that are under way keep what they had.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphExecBatchMemOpNodeSetParams(
    instance: Ptr,
    node: Ptr,
    params: *const BatchNode,
) -> i32 {
    enter!("cuGraphExecBatchMemOpNodeSetParams");
    let ops = match unsafe { (*params).read() } {
        Ok(ops) => ops,
        Err(code) => return code,
    };
    let mut all = all();
    let Some(of) = all.instances.get_mut(&(instance as usize)) else { return INVALID_HANDLE };
    match of.nodes.iter_mut().find(|(name, _)| *name == node as usize) {
        // The number of operations stays.
        Some((_, Node::Batch(old))) if old.len() == ops.len() => *old = ops.into(),
        _ => return INVALID_VALUE,
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphLaunch(instance: Ptr, stream: Ptr) -> i32 {
    enter_in_context!("cuGraphLaunch");
    let mut all = all();
    let Some(of) = all.instances.get_mut(&(instance as usize)) else { return INVALID_HANDLE };
    let nodes = of.nodes.iter().map(|(_, node)| node.clone());
    let behind = of.last.filter(|(last, _)| *last != stream as usize);
    let holds = (!of.held.is_empty()).then(|| Node::Holds(of.held.clone()));
    let nodes: Vec<Node> =
        behind.map(|(s, n)| Node::After(s, n)).into_iter().chain(nodes).chain(holds).collect();
    match stream::queue_all(stream as usize, nodes) {
        Ok(end) => of.last = Some((stream as usize, end)),
        Err(code) => return code,
    }
    SUCCESS
}
