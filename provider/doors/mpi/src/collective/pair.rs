//! MPI_Allreduce and MPI_Reduce_scatter_block of two ranks whose devices access each other's memory: one
//! kernel of each, and no message.
//!
//! The first such call of a communicator that both ranks agree on makes what it needs, and goes by messages
//! itself. Whether there is one is the same at both ranks.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use device_ops::nccl::Rank;
use device_ops::pair::{self, Host, Pair as Kernels};
use device_ops::{Memory, Op, Type};
use hmem::Kind;
use hmem::cuda::{OwnStream, Stream};
use hmem::registry::{self, Exportable};
use hmem::share::{self, Export, Opened, Owner};

use super::marks::Marks;
use super::messages::Failed;
use crate::abi::{Abi, Handle};
use crate::buffer::sync;
use crate::library::pmpi;
use crate::settings;

/// Polls between two searches for ranks that have ended.
const SEARCH: u32 = 1 << 14;
/// Between two questions whether the device has failed.
const PAUSE: Duration = Duration::from_millis(1);

/// The handle and the number of a context.
pub(super) type Context = (usize, u64);

/// The context of the memory at `near`.
pub(super) fn context_of(near: usize) -> Option<Context> {
    let legacy = Stream::legacy(near).ok()?;
    Some((legacy.context(), legacy.context_id().ok()?))
}

/// Whether a thread has the process's permit. Kernels that wait for others take a device's multiprocessors
/// meanwhile, and a thread in cudaFree, or in what loads a module, has the driver's locks while it waits for
/// all kernels. So a process has one such kernel at a time, of whatever communicator: a rank takes the permit
/// before it posts that it has a kernel, and does not wait for it. Without it the rank posts that it has
/// none, and both go by messages. Where both ranks have theirs, all other kernels of their processes end by
/// themselves, and what waits for them does: so both launch.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// That no other thread of this process has a kernel that waits for a peer's, until this is dropped.
#[derive(Debug)]
pub(super) struct Permit(());

impl Permit {
    /// `None` while another thread has it.
    pub(super) fn take() -> Option<Permit> {
        TAKEN.compare_exchange(false, true, Acquire, Relaxed).ok().map(|_| Permit(()))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        TAKEN.store(false, Release);
    }
}

/// What is reduced: the operation, the addresses of results, of operands and of those that are the peer's,
/// and how many elements there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) of: (Op, Type),
    pub(super) to: usize,
    pub(super) from: usize,
    pub(super) sent: usize,
    pub(super) count: u64,
}

impl Call {
    /// Waits for what `STRAIT_MPI_SYNC` says.
    pub(super) fn wait(&self) {
        sync::wait_for(self.from);
    }
}

/// Memory that the peer may have open, which is freed when neither rank has the other's any more: this one's
/// is closed before this is dropped. The peer's may be closed later, and no rank waits for another in
/// MPI_Comm_free: what is left is freed by the next communicator's.
#[derive(Debug)]
struct Shared {
    memory: Option<Exportable>,
    marks: Marks,
}

static LEFT: Mutex<Vec<(Exportable, Marks)>> = Mutex::new(Vec::new());

/// Frees what no rank has open any more.
fn free_closed() {
    let is_closed = |(_, marks): &(Exportable, Marks)| marks.have_all_closed();
    let closed: Vec<_> = {
        let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
        let (closed, open) = std::mem::take(&mut *left).into_iter().partition(is_closed);
        *left = open;
        closed
    };
    drop(closed);
}

impl Drop for Shared {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        if self.marks.one_failed().is_some() {
            // The peer may write there still.
            return std::mem::forget(memory);
        }
        self.marks.mark_closed();
        let marks = self.marks.clone();
        LEFT.lock().unwrap_or_else(PoisonError::into_inner).push((memory, marks));
        free_closed();
    }
}

/// One rank's side.
#[derive(Debug)]
pub(super) struct Pair {
    kernels: Kernels,
    /// Of its own: its kernels wait for the peer's, and others are not behind them.
    stream: OwnStream,
    context: Context,
    /// Closed first.
    _peers: Opened,
    shared: Shared,
}

/// What a rank has made, and says of it.
struct Own {
    context: Context,
    addr: usize,
    shared: Shared,
    stream: OwnStream,
    export: Export,
    host: Host,
    blocks: u64,
}

/// Bytes of what a rank says: a handle of its memory, where in it, its process, and most blocks: 0 if it has
/// none.
const SAID: usize = Export::LEN + 24;

impl Own {
    fn new((of, near): ((Op, Type), usize), rank: usize, marks: &Marks) -> Option<Own> {
        let (context, stream) = (context_of(near)?, OwnStream::non_blocking(Some(near)).ok()?);
        // With kernels of other processes this one's would have to share the device's multiprocessors.
        if stream.stream().is_by_mps().ok()? {
            return None;
        }
        // The driver would end a kernel that waits for seconds, and with it the context.
        if stream.stream().has_time_limit().ok()? {
            return None;
        }
        // A launch that waits for its kernel is none that this could end.
        if std::env::var_os("CUDA_LAUNCH_BLOCKING").is_some_and(|value| value != "0") {
            return None;
        }
        let host = Host::new(stream.stream())?;
        // Devices that do other kernels may not do these.
        pair::prepare(stream.stream(), of, rank == 0, [near; 3]).ok()?;
        let at_once = stream.stream().multiprocessors().ok()?;
        let blocks = pair::blocks(at_once.into(), settings::reduce_memory() as u64)?;
        let len = pair::bytes(blocks) as usize;
        let cuda = registry::of(Kind::Cuda);
        let memory = cuda.make_exportable(near, len).ok()?;
        // SAFETY: so many bytes of the device's.
        unsafe { Kernels::clear(memory.addr, blocks) }.ok()?;
        let addr = memory.addr;
        let export = cuda.export_ipc(addr, len, 1).ok()?.pop()?;
        let shared = Shared { memory: Some(memory), marks: marks.clone() };
        Some(Own { context, addr, shared, stream, export, host, blocks })
    }

    fn says(&self) -> [u8; SAID] {
        let mut said = [0; SAID];
        said[..Export::LEN].copy_from_slice(&self.export.to_bytes());
        let words = [self.addr as u64, u64::from(std::process::id()), self.blocks];
        for (to, word) in said[Export::LEN..].chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        said
    }

    /// With what the peer says, in this order: of rank 0 and rank 1.
    fn with(self, rank: usize, said: &[u8; SAID]) -> Option<Pair> {
        let word =
            |n: usize| said[Export::LEN..].chunks_exact(8).nth(n)?.try_into().ok().map(u64::from_le_bytes);
        let (at, process, blocks) = (word(0)?, i32::try_from(word(1)?).ok()?, word(2)?.min(self.blocks));
        let export = Export::from_bytes(said.first_chunk()?)?;
        // Kernels of two processes are not in a device at the same time.
        if blocks == 0 || export.device == self.export.device {
            return None;
        }
        let own = self.addr;
        let peers = share::open_uncached(process, Owner::now(process).id, &export, own).ok()?;
        let (there, room) = peers.place(at)?;
        if (room as u64) < pair::bytes(blocks) {
            return None;
        }
        let Own { context, shared, stream, host, .. } = self;
        // SAFETY: both are mapped while this lives, and of these two ranks alone.
        let kernels = unsafe { Kernels::new(own, there, blocks, rank == 0, host) };
        Some(Pair { kernels, stream, context, _peers: peers, shared })
    }
}

impl Pair {
    /// For such operations first, with memory near that of this rank; `None` where this rank has none, or no
    /// kernel, or cannot reach the other's.
    ///
    /// # Safety
    /// Both ranks of `comm` do the same, in a collective of it.
    pub(super) unsafe fn new(
        abi: &Abi,
        comm: Handle,
        at: Rank,
        computed: ((Op, Type), usize),
        marks: Marks,
    ) -> Option<Pair> {
        free_closed();
        let own = Own::new(computed, at.rank, &marks);
        if own.is_none() {
            marks.mark_closed();
        }
        let says = own.as_ref().map_or([0; SAID], Own::says);
        let (mut all, byte) = ([[0u8; SAID]; 2], abi.handles.byte);
        // SAFETY: places of so many bytes; the caller's promise.
        let got =
            unsafe { pmpi!("Allgather", says.as_ptr(), SAID, byte, all.as_mut_ptr(), SAID, byte, comm) };
        got.ok()?;
        own?.with(at.rank, all.get(1 - at.rank)?)
    }

    /// That of the memory which it is for.
    pub(super) fn context(&self) -> Context {
        self.context
    }

    /// Reduces, as the peer does. It ends where the peer has failed, or its process has ended.
    ///
    /// # Safety
    /// The buffers are valid, of the device that this was made for, both ranks have agreed, and each has its
    /// [`Permit`].
    pub(super) unsafe fn run(&self, call: &Call) -> Result<(), Failed> {
        let (Call { of, count, .. }, stream) = (*call, self.stream.stream());
        let len = count.saturating_mul(of.1.extent()) as usize;
        // SAFETY: the caller's promise, until the stream is waited for.
        let [to, from, sent] = [call.to, call.from, call.sent].map(|at| unsafe { Memory::new(at, len) });
        if self.kernels.reduce(stream, of, to, from, sent, count).is_err() {
            // There is no kernel to wait for; the peer's ends by this.
            self.shared.marks.mark_failed();
            return Err(Failed::Device);
        }
        if !self.is_over(Some(SEARCH), || false) {
            self.wait_long(stream);
        }
        if self.shared.marks.one_failed().is_none() { Ok(()) } else { Err(Failed::Device) }
    }

    /// Whether the kernel is done, or none will be, in so many polls. What ends it calls nothing of the
    /// driver's: a thread in cudaFree has the driver's lock for as long as the kernel goes on.
    fn is_over(&self, most: Option<u32>, is_lost: impl Fn() -> bool) -> bool {
        let mut polls = 0u32;
        while !self.kernels.is_done() {
            // The kernel may have ended before that was found.
            if is_lost() && !self.kernels.is_done() {
                self.shared.marks.mark_failed();
                break;
            }
            polls = polls.wrapping_add(1);
            let is_gone = || polls % SEARCH == 0 && self.shared.marks.one_gone().is_some();
            if self.shared.marks.one_failed().is_some() || is_gone() {
                self.shared.marks.mark_failed();
                self.kernels.end();
            }
            if most == Some(polls) {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    /// Waits for any time, in which another thread asks the driver whether the device has failed, and may
    /// wait for the driver's lock there.
    fn wait_long(&self, stream: Stream) {
        let [is_over, is_lost] = [false; 2].map(AtomicBool::new);
        std::thread::scope(|scope| {
            let asks = || {
                while !is_over.load(Acquire) {
                    if stream.is_done() != Ok(false) {
                        return is_lost.store(true, Release);
                    }
                    std::thread::sleep(PAUSE);
                }
            };
            let begins = || std::thread::Builder::new().name("strait-mpi".into()).spawn_scoped(scope, asks);
            // Without one the failure of the device alone would not be found.
            let _thread = ipc::without_signals(begins);
            self.is_over(None, || is_lost.load(Acquire));
            is_over.store(true, Release);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_of_the_process_has_the_permit_at_a_time() {
        let permit = Permit::take().unwrap();
        std::thread::scope(|scope| assert!(scope.spawn(Permit::take).join().unwrap().is_none()));
        drop(permit);
        assert!(Permit::take().is_some() && Permit::take().is_some());
    }
}
