//! The executors for CUDA against the CPU's, over the stand-in for the driver. One process, so one test at a
//! time.

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use hmem::cuda::Stream;
use hmem::cuda::graph::{Capture, Graph};
use peerop::cuda::{CudaGraph, CudaStream, means};
use peerop::replay::{Method, Senders, choose};
use peerop::{Block, Caps, Cpu, Error, Executor, Fence, Op, Place, Reach, TargetId, Targets, Until};
use proptest::collection::vec;
use proptest::prelude::*;
use support::*;

/// Words of each of two targets; the last of the first one is raised by another thread.
const WORDS: u64 = 64;
const RAISED: u64 = WORDS - 1;

fn place(target: u32, word: u64) -> Place {
    Place { target: TargetId(target), offset: 4 * word }
}

/// How a list is executed.
#[derive(Clone, Copy, Debug)]
enum By {
    Stream,
    Captured,
    Nodes,
}

/// Executes the list so often, while another thread raises the word that it polls. What is in memory then.
fn on_device(cu: Cu, by: By, ops: &[Op], times: usize, polls: u32) -> Vec<u8> {
    let (host, device) = (cu.alloc_host(4 * WORDS as usize), cu.alloc(4 * WORDS as usize));
    cu.write(device, &[0; 4 * WORDS as usize]);
    let targets = Arc::new(Targets::new());
    // SAFETY: both are there until the end of this function, and the CPU accesses atomics alone.
    unsafe {
        targets.register(host, 4 * WORDS as usize, Reach::Cpu).unwrap();
        targets.register(device, 4 * WORDS as usize, Reach::Device).unwrap();
    }
    let stream = stream(cu);
    let raiser = raise(host + 4 * RAISED as usize, polls);
    match by {
        By::Stream => {
            let mut executor = on_stream(stream, &targets);
            (0..times).for_each(|_| executor.execute(ops).unwrap());
        }
        By::Captured => {
            let graph = captured(stream, &targets, ops);
            let instance = graph.instantiate().unwrap();
            // SAFETY: memory is there until the stream was waited for.
            (0..times).for_each(|_| unsafe { instance.launch(stream) }.unwrap());
        }
        By::Nodes => {
            let mut graph = by_nodes(stream, &targets);
            graph.execute(ops).unwrap();
            let instance = graph.instantiate().unwrap();
            (0..times).for_each(|_| instance.launch(stream).unwrap());
        }
    }
    stream.wait().unwrap();
    raiser.join().unwrap();
    let found = [cu.read(host, 4 * WORDS as usize), cu.read(device, 4 * WORDS as usize)].concat();
    cu.free(host);
    cu.free(device);
    cu.drop_stream(stream.handle());
    found
}

fn on_cpu(ops: &[Op], times: usize, polls: u32) -> Vec<u8> {
    let memory = [Memory::new(WORDS as usize / 2), Memory::new(WORDS as usize / 2)];
    let targets = Arc::new(Targets::new());
    for of in &memory {
        of.register(&targets);
    }
    let raiser = raise(memory[0].addr() + 4 * RAISED as usize, polls);
    let mut cpu = Cpu::within(targets, Duration::from_secs(60));
    (0..times).for_each(|_| cpu.execute(ops).unwrap());
    raiser.join().unwrap();
    memory.iter().flat_map(Memory::bytes).collect()
}

/// Operations whose outcome no other thread decides. A poll waits for the next value of the word that is
/// raised, in one of the ways.
#[derive(Clone, Debug)]
enum Piece {
    Op(Op),
    Poll,
}

fn any_piece(caps: Caps) -> impl Strategy<Value = Piece> {
    let to = (0..2u32, 0..WORDS - 2);
    let block = |len: usize, value: u32| Block::new(&vec![value; len]).unwrap();
    let (narrow, no_adds) = (!caps.contains(Caps::STORE_QWORD), !caps.contains(Caps::ADD_DWORD));
    let ops = prop_oneof![
        (to.clone(), any::<u32>()).prop_map(|((t, w), value)| Op::Store32 { to: place(t, w), value }),
        (to.clone(), any::<u64>()).prop_map(move |((t, w), value)| match narrow {
            true => Op::Store32 { to: place(t, w), value: value as u32 },
            false => Op::Store64 { to: place(t, w / 2 * 2), value },
        }),
        (0..2u32, 0..30u64, 1..32usize, any::<u32>())
            .prop_map(move |(t, w, len, v)| Op::Copy { to: place(t, w), block: block(len, v) }),
        (to, any::<u32>()).prop_map(move |((t, w), value)| match no_adds {
            true => Op::Store32 { to: place(t, w), value },
            false => Op::Add32 { to: place(t, w), value },
        }),
        Just(Op::Fence(Fence::ACQUIRE)),
        Just(Op::Fence(Fence::RELEASE)),
    ];
    prop_oneof![8 => ops.prop_map(Piece::Op), 1 => Just(Piece::Poll)]
}

fn list(pieces: &[Piece]) -> (Vec<Op>, u32) {
    let mut polls = 0;
    let ops = pieces.iter().map(|piece| match piece {
        Piece::Op(op) => op.clone(),
        Piece::Poll => {
            polls += 1;
            Op::Poll { at: place(0, RAISED), until: Until::Geq, value: polls }
        }
    });
    (ops.collect(), polls)
}

fn all_are_like_the_cpu(pieces: &[Piece], times: usize) {
    let (_alone, cu) = alone();
    let (ops, polls) = list(pieces);
    let wanted = on_cpu(&ops, times, polls);
    cu.jitter(30, ops.len() as u64);
    // Additions by batches, or by the kernel.
    cu.attribute(148, times as i32 % 2);
    for by in [By::Stream, By::Captured, By::Nodes] {
        assert!(on_device(cu, by, &ops, times, polls) == wanted, "{by:?} {ops:?}");
    }
    cu.jitter(0, 1);
    cu.attribute(148, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn lists_have_the_cpus_outcome(pieces in vec(any_piece(Caps::all()), 0..60), times in 1..4usize) {
        all_are_like_the_cpu(&pieces, times);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]

    #[test]
    fn long_lists_have_the_cpus_outcome(pieces in vec(any_piece(Caps::all()), 250..600)) {
        all_are_like_the_cpu(&pieces, 2);
    }
}

#[test]
fn the_ways_to_poll_are_the_cpus() {
    let (_alone, cu) = alone();
    let values = [0u32, 1, 2, 3, 0x7fff_ffff, 0x8000_0000, 0xffff_fffe, u32::MAX];
    let (host, own) = (cu.alloc_host(64), Memory::new(8));
    let targets = Arc::new(Targets::new());
    // SAFETY: it is there until the end of the test, and accessed by atomics.
    unsafe { targets.register(host, 64, Reach::Cpu) }.unwrap();
    own.register(&targets);
    for until in [Until::And, Until::Nor, Until::Geq] {
        for word in values {
            for value in values {
                // Behind the poll a mark is stored, which is there or not.
                let list = |target| {
                    let (at, to) = (place(target, 0), place(target, 1));
                    [Op::Poll { at, until, value }, Op::Store32 { to, value: 7 }]
                };
                own.word(0).store(word, SeqCst);
                let ends = Cpu::within(targets.clone(), Duration::ZERO).execute(&list(1));
                atomic(host).store(word, SeqCst);
                atomic(host + 4).store(0, SeqCst);
                let stream = stream(cu);
                on_stream(stream, &targets).execute(&list(0)).unwrap();
                let found = stream.is_done().unwrap();
                assert_eq!(found, ends.is_ok(), "{until:?} {word:#x} {value:#x}");
                assert_eq!(atomic(host + 4).load(SeqCst), if found { 7 } else { 0 });
                if !found {
                    // Some word ends each of these.
                    let ends = values.into_iter().find(|word| until.is_met(*word, value));
                    match ends {
                        Some(word) => atomic(host).store(word, SeqCst),
                        None => continue,
                    }
                }
                stream.wait().unwrap();
                cu.drop_stream(stream.handle());
            }
        }
    }
}

#[test]
fn what_a_device_has_is_asked_by_attribute() {
    let (_alone, cu) = alone();
    let targets = Arc::new(Targets::new());
    let stream = stream(cu);
    let caps = || on_stream(stream, &targets).caps();
    assert_eq!(caps(), Caps::all());
    assert_eq!(choose(Senders::Several, means(stream).unwrap()).unwrap().method, Method::Kernel);
    cu.attribute(122, 0);
    assert_eq!(caps(), Caps::all().difference(Caps::STORE_QWORD));
    cu.attribute(123, 0);
    assert_eq!(caps(), Caps::all().difference(Caps::STORE_QWORD | Caps::POLL_NOR_DWORD));
    cu.attribute(122, 1);
    cu.attribute(123, 1);
    cu.attribute(148, 1);
    assert_eq!(choose(Senders::Several, means(stream).unwrap()).unwrap().method, Method::Reduction);
    let add = Op::Add32 { to: place(0, 0), value: 5 };
    let host = cu.alloc_host(64);
    // SAFETY: it is there until the end of the test, and accessed by atomics.
    unsafe { targets.register(host, 64, Reach::Cpu) }.unwrap();
    let kernels = cu.calls(c"cuLaunchKernel");
    on_stream(stream, &targets).execute(&[add.clone(), add.clone()]).unwrap();
    stream.wait().unwrap();
    assert_eq!((atomic(host).load(SeqCst), cu.calls(c"cuLaunchKernel")), (10, kernels));
    cu.attribute(148, 0);
    on_stream(stream, &targets).execute(std::slice::from_ref(&add)).unwrap();
    stream.wait().unwrap();
    assert_eq!((atomic(host).load(SeqCst), cu.calls(c"cuLaunchKernel")), (15, kernels + 1));
    // A driver that does not take the kernel either: such lists are refused as a whole.
    let other = cu.make_context(0);
    cu.fail(c"cuModuleLoadDataEx", 0, 218);
    let second = support::stream(cu);
    assert_eq!(on_stream(second, &targets).caps(), Caps::all().difference(Caps::ADD_DWORD));
    let store = Op::Store32 { to: place(0, 1), value: 1 };
    let refused = on_stream(second, &targets).execute(&[store, add]).unwrap_err();
    assert_eq!((refused.done, refused.error), (0, Error::Lacks(Caps::ADD_DWORD)));
    assert_eq!(atomic(host + 4).load(SeqCst), 0);
    assert!(matches!(choose(Senders::Several, means(second).unwrap()), Err(Error::NoMeans(_))));
    cu.fail(c"cuModuleLoadDataEx", 0, 0);
    cu.end_context(other);
}

#[test]
fn an_instance_is_updated_to_other_values_but_not_to_another_shape() {
    let (_alone, cu) = alone();
    let host = cu.alloc_host(64);
    let targets = Arc::new(Targets::new());
    // SAFETY: it is there until the end of the test, and accessed by atomics.
    unsafe { targets.register(host, 64, Reach::Cpu) }.unwrap();
    let store = |word, value| Op::Store32 { to: place(0, word), value };
    let stream = stream(cu);
    let mut graph = by_nodes(stream, &targets);
    assert!(graph.is_empty() && graph.last().is_none());
    let first: Vec<Op> = (0..300).map(|n| store(n % 4, 1)).collect();
    graph.execute(&first).unwrap();
    assert_eq!(graph.len(), 2);
    let mut instance = graph.instantiate().unwrap();
    instance.launch(stream).unwrap();
    let second: Vec<Op> = (0..300).map(|n| store(4 + n % 4, 2)).collect();
    instance.update(&second).unwrap();
    drop(graph);
    instance.launch(stream).unwrap();
    stream.wait().unwrap();
    let words = || (0..8).map(|n| atomic(host + 4 * n).load(SeqCst)).collect::<Vec<_>>();
    assert_eq!(words(), [1, 1, 1, 1, 2, 2, 2, 2]);
    let refused = instance.update(&second[..299]).unwrap_err();
    assert_eq!((refused.done, refused.error.errno()), (0, libc::EINVAL));
    // The first node is changed, the second is not.
    cu.fail(c"cuGraphExecBatchMemOpNodeSetParams", 2, 999);
    let failed = instance.update(&first).unwrap_err();
    assert_eq!(failed.done, 255);
    assert!(failed.to_string().contains("first 255 operations"), "{failed}");
    cu.fail(c"cuGraphExecBatchMemOpNodeSetParams", 0, 0);
    instance.update(&first).unwrap();
}

#[test]
fn nodes_are_added_to_a_graph_of_the_programs_behind_its_own() {
    let (_alone, cu) = alone();
    let host = cu.alloc_host(64);
    let targets = Arc::new(Targets::new());
    // SAFETY: it is there until the end of the test, and accessed by atomics.
    unsafe { targets.register(host, 64, Reach::Cpu) }.unwrap();
    let stream = stream(cu);
    let store = |value| [Op::Store32 { to: place(0, 0), value }];
    let first = captured(stream, &targets, &store(1));
    let before = first.nodes().unwrap();
    // SAFETY: `first` is a graph for as long as the other one is used, by this thread alone.
    let same = unsafe { Graph::of_program(first.handle(), stream) };
    // SAFETY: the nodes are of that graph; memory is there until the stream was waited for.
    let mut graph = unsafe { CudaGraph::new(same, &before, stream, targets.clone()) }.unwrap();
    graph.execute(&store(2)).unwrap();
    let last = graph.last().unwrap();
    assert_eq!(first.nodes().unwrap(), [before, vec![last]].concat());
    let instance = graph.instantiate().unwrap();
    drop(graph);
    assert!(first.nodes().is_ok(), "it is the program's, and stays");
    instance.launch(stream).unwrap();
    stream.wait().unwrap();
    assert_eq!(atomic(host).load(SeqCst), 2);
    // A node of another graph is refused.
    let other = captured(stream, &targets, &store(3));
    let foreign = other.nodes().unwrap();
    // SAFETY: they are not of that graph, which the stand-in finds.
    let mut wrong =
        unsafe { CudaGraph::new(Graph::new(stream).unwrap(), &foreign, stream, targets.clone()) }.unwrap();
    assert_eq!(wrong.execute(&store(4)).unwrap_err().error.errno(), libc::EINVAL);
}

#[test]
fn each_call_that_fails_is_an_error_that_says_what_was_queued() {
    let (_alone, cu) = alone();
    let host = cu.alloc_host(4096);
    let targets = Arc::new(Targets::new());
    // SAFETY: it is there until the end of the test, and accessed by atomics.
    unsafe { targets.register(host, 4096, Reach::Cpu) }.unwrap();
    let stream = stream(cu);
    let word = |n| place(0, n);
    let mut ops: Vec<Op> = (0..254).map(|n| Op::Store32 { to: word(n), value: 1 }).collect();
    ops.push(Op::Poll { at: word(0), until: Until::And, value: 1 });
    ops.push(Op::Store32 { to: word(0), value: 0 });
    ops.push(Op::Add32 { to: word(300), value: 1 });
    let steps: [(&std::ffi::CStr, u64, usize); 3] =
        [(c"cuStreamBatchMemOp_v2", 1, 0), (c"cuStreamBatchMemOp_v2", 2, 254), (c"cuLaunchKernel", 1, 256)];
    for (call, nth, done) in steps {
        let mut executor = on_stream(stream, &targets);
        cu.fail(call, nth, 999);
        let failed = executor.execute(&ops).unwrap_err();
        cu.fail(call, nth, 0);
        assert_eq!((failed.done, failed.error.errno()), (done, libc::EIO), "{call:?} {nth}");
        stream.wait().unwrap();
    }
    for (call, nth, done) in [
        (c"cuGraphAddBatchMemOpNode", 1, 0),
        (c"cuGraphAddBatchMemOpNode", 2, 254),
        (c"cuGraphAddKernelNode_v2", 1, 256),
    ] {
        let mut graph = by_nodes(stream, &targets);
        cu.fail(call, nth, 801);
        let failed = graph.execute(&ops).unwrap_err();
        cu.fail(call, nth, 0);
        assert_eq!((failed.done, failed.error.errno()), (done, libc::EOPNOTSUPP), "{call:?} {nth}");
    }
    let mut graph = by_nodes(stream, &targets);
    graph.execute(&ops).unwrap();
    cu.fail(c"cuGraphInstantiateWithFlags", 1, 2);
    assert_eq!(graph.instantiate().unwrap_err().errno(), libc::ENOMEM);
    let instance = graph.instantiate().unwrap();
    cu.fail(c"cuGraphLaunch", 1, 999);
    assert_eq!(instance.launch(stream).unwrap_err().errno(), libc::EIO);
    instance.launch(stream).unwrap();
    stream.wait().unwrap();
    cu.fail(c"cuGraphCreate", 1, 2);
    assert!(Graph::new(stream).is_err());
    cu.fail(c"cuStreamBeginCapture_v2", 1, 999);
    assert!(Capture::begin(stream).is_err());
    let capture = Capture::begin(stream).unwrap();
    cu.fail(c"cuStreamEndCapture", 1, 901);
    assert!(capture.end().is_err());
    cu.fail(c"cuStreamEndCapture", 0, 0);
    // Both times the driver was asked, and the stand-in still captures: that ends with the next call.
    assert!(Capture::begin(stream).is_err());
    assert!(cu.end_capture(stream.handle()));
    assert!(Capture::begin(stream).unwrap().end().is_ok());
}

#[test]
fn a_capture_goes_on_whatever_is_executed_and_one_dropped_ends() {
    let (_alone, cu) = alone();
    let host = cu.alloc_host(64);
    let targets = Arc::new(Targets::new());
    // SAFETY: it is there until the end of the test, and accessed by atomics.
    unsafe { targets.register(host, 64, Reach::Cpu) }.unwrap();
    let raw = cu.stream();
    let list = [Op::Store32 { to: place(0, 0), value: 3 }, Op::Add32 { to: place(0, 0), value: 1 }];
    // The program captures in the global mode, which calls of any thread end that may wait.
    cu.capture(raw);
    // SAFETY: no stream is destroyed in this test.
    assert!(unsafe { Stream::new(raw) }.is_err(), "for what is to be done once");
    // SAFETY: as above.
    let stream = unsafe { Stream::captured_too(raw) }.unwrap();
    let mut executor = on_stream(stream, &targets);
    executor.execute(&list).unwrap();
    let other = support::stream(cu);
    on_stream(other, &targets).execute(&list).unwrap();
    assert!(cu.end_capture(raw), "the capture was broken");
    other.wait().unwrap();
    assert_eq!(atomic(host).load(SeqCst), 4, "what was captured is not executed");
    drop(Capture::begin(stream).unwrap());
    let capture = Capture::begin(stream).unwrap();
    executor.execute(&list).unwrap();
    assert_eq!(capture.end().unwrap().nodes().unwrap().len(), 2);
}

#[test]
fn a_poll_holds_up_streams_of_its_hardware_channel_alone() {
    let (_alone, cu) = alone();
    let host = cu.alloc_host(64);
    let targets = Arc::new(Targets::new());
    // SAFETY: it is there until the end of the test, and accessed by atomics.
    unsafe { targets.register(host, 64, Reach::Cpu) }.unwrap();
    for (channels, passes) in [(1, false), (2, true), (0, true)] {
        atomic(host).store(0, SeqCst);
        cu.channels(channels);
        let (first, second) = (stream(cu), stream(cu));
        cu.channels(0);
        let poll = Op::Poll { at: place(0, 0), until: Until::And, value: 1 };
        on_stream(first, &targets).execute(&[poll]).unwrap();
        on_stream(second, &targets).execute(&[Op::Store32 { to: place(0, 1), value: 1 }]).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(second.is_done().unwrap(), passes, "{channels}");
        assert!(!first.is_done().unwrap());
        atomic(host).store(1, SeqCst);
        first.wait().unwrap();
        second.wait().unwrap();
        [first, second].into_iter().for_each(|s| cu.drop_stream(s.handle()));
    }
}

#[test]
fn memory_that_is_not_registered_any_more_is_refused() {
    let (_alone, cu) = alone();
    let host = cu.alloc_host(64);
    let targets = Arc::new(Targets::new());
    // SAFETY: it is there until the end of the test, and accessed by atomics.
    let id = unsafe { targets.register(host, 64, Reach::Device) }.unwrap();
    let list = [Op::Store32 { to: place(0, 0), value: 3 }];
    let stream = stream(cu);
    on_stream(stream, &targets).execute(&list).unwrap();
    stream.wait().unwrap();
    let mut cpu = Cpu::within(targets.clone(), Duration::ZERO);
    assert_eq!(cpu.execute(&list).unwrap_err().error, Error::NotForCpu(id));
    targets.unregister(id).unwrap();
    assert_eq!(targets.unregister(id), Err(Error::NoTarget(id)));
    for failed in [cpu.execute(&list), on_stream(stream, &targets).execute(&list)] {
        let failed = failed.unwrap_err();
        assert_eq!((failed.done, failed.error), (0, Error::NoTarget(id)));
    }
}

fn captured(stream: Stream, targets: &Arc<Targets>, ops: &[Op]) -> Graph {
    let mut executor = on_stream(stream, targets);
    let capture = Capture::begin(stream).unwrap();
    executor.execute(ops).unwrap();
    capture.end().unwrap()
}

fn on_stream(stream: Stream, targets: &Arc<Targets>) -> CudaStream {
    // SAFETY: these tests wait for streams before memory goes.
    unsafe { CudaStream::new(stream, targets.clone()) }.unwrap()
}

fn by_nodes(stream: Stream, targets: &Arc<Targets>) -> CudaGraph {
    // SAFETY: as above.
    unsafe { CudaGraph::new(Graph::new(stream).unwrap(), &[], stream, targets.clone()) }.unwrap()
}
