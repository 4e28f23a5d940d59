//! What communicators do: queued in a stream, and done in the thread that runs its functions.

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::time::Duration;

use crate::cuda;
use crate::meet::{exchange, wait};
use crate::number::{reduce, size};
use crate::shared::{READ, SLOT, Shared, WRITTEN};
use crate::state::{Comm, INVALID_ARGUMENT, Inner, SUCCESS, UNHANDLED_CUDA_ERROR, enter};

type Ptr = *mut c_void;

#[derive(Clone, Copy)]
enum Kind {
    AllReduce,
    Reduce(usize),
    Broadcast(usize),
    AllGather,
    ReduceScatter,
    Send(usize),
    Recv(usize),
}

struct Work {
    kind: Kind,
    from: usize,
    to: usize,
    /// Bytes of each rank.
    len: usize,
    ty: c_int,
    op: c_int,
}

struct Job {
    comm: Arc<Inner>,
    work: Vec<Work>,
}

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static GROUP: RefCell<Vec<(Arc<Inner>, usize, Work)>> = const { RefCell::new(Vec::new()) };
}

fn bytes<'a>(at: *mut u8, len: usize) -> &'a mut [u8] {
    unsafe { std::slice::from_raw_parts_mut(at, len) }
}

/// One rank's part of what all do, in pieces of a slot.
fn together(of: &Inner, shared: &Shared, work: &Work) -> Option<()> {
    // Pieces of reductions are whole elements: a slot is a multiple of each size.
    let (ranks, rank) = (shared.ranks, shared.rank);
    let parts = if matches!(work.kind, Kind::ReduceScatter) { ranks } else { 1 };
    for part in 0..parts {
        for begin in (0..work.len).step_by(SLOT) {
            let n = SLOT.min(work.len - begin);
            let writes = !matches!(work.kind, Kind::Broadcast(root) if root != rank);
            if writes {
                let from = cuda::find(work.from + part * work.len + begin, n);
                bytes(shared.slot_of_rank(rank), n).copy_from_slice(bytes(from, n));
            }
            let sum = || {
                let mut all = bytes(shared.slot_of_rank(0), n).to_vec();
                (1..ranks).for_each(|r| reduce(work.ty, work.op, &mut all, bytes(shared.slot_of_rank(r), n)));
                all
            };
            let put = |at: usize, what: &[u8]| bytes(cuda::find(at, n), n).copy_from_slice(what);
            exchange(of, shared, || match work.kind {
                Kind::AllReduce => put(work.to + begin, &sum()),
                Kind::Reduce(root) if root == rank => put(work.to + begin, &sum()),
                Kind::ReduceScatter if part == rank => put(work.to + begin, &sum()),
                Kind::Broadcast(root) => put(work.to + begin, bytes(shared.slot_of_rank(root), n)),
                Kind::AllGather => (0..ranks)
                    .for_each(|r| put(work.to + r * work.len + begin, bytes(shared.slot_of_rank(r), n))),
                _ => {}
            })?;
        }
    }
    Some(())
}

/// Sends and receives, each as far as its peer is.
fn pairs(of: &Inner, shared: &Shared, all: &[&Work]) -> Option<()> {
    let mut done = vec![0usize; all.len()];
    wait(of, shared, || {
        for (i, work) in all.iter().enumerate() {
            // Of two with one peer the first one goes first.
            let before = all[..i].iter().zip(&done).any(|(w, d)| *d < w.len && same(w.kind, work.kind));
            let n = SLOT.min(work.len - done[i]);
            if n == 0 || before {
                continue;
            }
            let (from, to) = match work.kind {
                Kind::Send(to) => (shared.rank, to),
                Kind::Recv(from) => (from, shared.rank),
                _ => continue,
            };
            let [written, read] = [WRITTEN, READ].map(|w| shared.of_pair(from, to, w));
            let slot = bytes(shared.slot_of_pair(from, to), n);
            match work.kind {
                Kind::Send(_) if written.load(Acquire) == read.load(Acquire) => {
                    slot.copy_from_slice(bytes(cuda::find(work.from + done[i], n), n));
                    written.fetch_add(1, Release);
                }
                Kind::Recv(_) if written.load(Acquire) > read.load(Acquire) => {
                    bytes(cuda::find(work.to + done[i], n), n).copy_from_slice(slot);
                    read.fetch_add(1, Release);
                }
                _ => continue,
            }
            done[i] += n;
        }
        all.iter().zip(&done).all(|(w, d)| *d == w.len)
    })
}

fn same(a: Kind, b: Kind) -> bool {
    match (a, b) {
        (Kind::Send(a), Kind::Send(b)) | (Kind::Recv(a), Kind::Recv(b)) => a == b,
        _ => false,
    }
}

/// The code with which the n-th piece of work makes its communicator fail.
fn injected() -> Option<c_int> {
    static DONE: AtomicU64 = AtomicU64::new(0);
    let text = std::env::var("NCCL_STAND_IN_ASYNC").ok()?;
    let (code, nth) = text.split_once('@')?;
    let n = DONE.fetch_add(1, SeqCst) + 1;
    if nth.parse() == Ok(n) { code.parse().ok() } else { None }
}

unsafe extern "C" fn run(job: Ptr) {
    let job = unsafe { Box::from_raw(job.cast::<Job>()) };
    let of = &*job.comm;
    if let Some(shared) = of.shared.get() {
        let _turn = of.turn.lock();
        if let Some(code) = injected() {
            of.state.store(code, Release);
            while !of.aborted.load(SeqCst) {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        let is_pair = |w: &&Work| matches!(w.kind, Kind::Send(_) | Kind::Recv(_));
        let of_pairs: Vec<&Work> = job.work.iter().filter(is_pair).collect();
        let rest = job.work.iter().filter(|w| !is_pair(w));
        let done = rest.map(|w| together(of, shared, w)).collect::<Option<Vec<()>>>();
        if done.is_some() && !of_pairs.is_empty() {
            let _ = pairs(of, shared, &of_pairs);
        }
    }
    of.open.fetch_sub(1, SeqCst);
}

fn queue(comm: &Arc<Inner>, stream: usize, work: Vec<Work>) -> c_int {
    comm.open.fetch_add(1, SeqCst);
    let job = Box::into_raw(Box::new(Job { comm: comm.clone(), work }));
    if cuda::queue(stream as Ptr, run, job.cast()) {
        return SUCCESS;
    }
    drop(unsafe { Box::from_raw(job) });
    comm.open.fetch_sub(1, SeqCst);
    UNHANDLED_CUDA_ERROR
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupStart() -> c_int {
    enter!("ncclGroupStart");
    DEPTH.set(DEPTH.get() + 1);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupEnd() -> c_int {
    DEPTH.set(DEPTH.get().saturating_sub(1));
    let mut left = if DEPTH.get() == 0 { GROUP.take() } else { Vec::new() };
    enter!("ncclGroupEnd");
    while let Some((comm, stream, _)) = left.first() {
        let (comm, stream) = (comm.clone(), *stream);
        let (own, others): (Vec<_>, Vec<_>) =
            left.into_iter().partition(|(c, s, _)| Arc::ptr_eq(c, &comm) && *s == stream);
        left = others;
        let code = queue(&comm, stream, own.into_iter().map(|(_, _, w)| w).collect());
        if code != SUCCESS {
            return code;
        }
    }
    SUCCESS
}

unsafe fn post(comm: *mut Comm, stream: Ptr, work: Work) -> c_int {
    let of = &unsafe { &*comm }.0;
    let Some(shared) = of.shared.get() else { return INVALID_ARGUMENT };
    let peer = match work.kind {
        Kind::Reduce(p) | Kind::Broadcast(p) | Kind::Send(p) | Kind::Recv(p) => p,
        _ => 0,
    };
    if peer >= shared.ranks || !(0..4).contains(&work.op) {
        return INVALID_ARGUMENT;
    }
    let state = of.state.load(Acquire);
    if state != SUCCESS {
        return state;
    }
    if DEPTH.get() > 0 {
        GROUP.with_borrow_mut(|g| g.push((of.clone(), stream as usize, work)));
        return SUCCESS;
    }
    queue(of, stream as usize, vec![work])
}

/// Declares a function, whose work is made of its parameters and the size of its elements.
macro_rules! collective {
    ($name:ident $text:literal ($($arg:ident: $ty:ty),*) $count:ident $of:ident => $kind:expr, $from:expr, $to:expr, $op:expr) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty,)* comm: *mut Comm, stream: Ptr) -> c_int {
            enter!($text);
            let Some(len) = size($of).and_then(|n| n.checked_mul($count)) else { return INVALID_ARGUMENT };
            let work = Work { kind: $kind, from: $from as usize, to: $to as usize, len, ty: $of, op: $op };
            unsafe { post(comm, stream, work) }
        }
    };
}

collective!(ncclAllReduce "ncclAllReduce" (from: Ptr, to: Ptr, count: usize, ty: c_int, op: c_int)
    count ty => Kind::AllReduce, from, to, op);
collective!(ncclReduce "ncclReduce" (from: Ptr, to: Ptr, count: usize, ty: c_int, op: c_int, root: c_int)
    count ty => Kind::Reduce(root as usize), from, to, op);
collective!(ncclBroadcast "ncclBroadcast" (from: Ptr, to: Ptr, count: usize, ty: c_int, root: c_int)
    count ty => Kind::Broadcast(root as usize), from, to, 0);
collective!(ncclAllGather "ncclAllGather" (from: Ptr, to: Ptr, count: usize, ty: c_int)
    count ty => Kind::AllGather, from, to, 0);
collective!(ncclReduceScatter "ncclReduceScatter" (from: Ptr, to: Ptr, count: usize, ty: c_int, op: c_int)
    count ty => Kind::ReduceScatter, from, to, op);
collective!(ncclSend "ncclSend" (from: Ptr, count: usize, ty: c_int, peer: c_int)
    count ty => Kind::Send(peer as usize), from, 0usize, 0);
collective!(ncclRecv "ncclRecv" (to: Ptr, count: usize, ty: c_int, peer: c_int)
    count ty => Kind::Recv(peer as usize), 0usize, to, 0);
