//! Which kernels a context has: each is compiled when it is first launched there, and stays.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hmem::cuda::{Function, Stream};

use crate::error::{Error, driver};
use crate::ptx::{PackKernel, PairKernel, ReduceKernel};

/// Which one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kernel {
    Reduce(ReduceKernel),
    Pack(PackKernel),
    Pair(PairKernel),
}

/// Threads of a block.
const THREADS: u32 = 256;
/// Blocks for each multiprocessor, which has room for 2048 threads; a thread does what is left.
const BLOCKS: u32 = 8;
/// Multiprocessors of a device whose driver does not say how many it has.
const MULTIPROCESSORS: u32 = 64;

/// A kernel and the most blocks of its grid, once it is compiled. One thread compiles it at a time.
type Slot = Arc<Mutex<Option<(Function, u32)>>>;

/// By the context's handle and number. The table is not locked while a kernel is compiled: the driver may
/// wait for kernels that run, and other threads have theirs meanwhile.
type Loaded = HashMap<(usize, u64, Kernel), Slot>;

static LOADED: Mutex<Option<Loaded>> = Mutex::new(None);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Kernel {
    fn name(self) -> String {
        match self {
            Kernel::Reduce(kernel) => kernel.name(),
            Kernel::Pack(kernel) => kernel.name(),
            Kernel::Pair(kernel) => kernel.name(),
        }
    }

    fn text(self) -> CString {
        match self {
            Kernel::Reduce(kernel) => kernel.text(),
            Kernel::Pack(kernel) => kernel.text(),
            Kernel::Pair(kernel) => kernel.text(),
        }
    }

    /// The kernel for a stream's context, and the most blocks of its grid.
    fn get(self, stream: Stream) -> Result<(Function, u32), Error> {
        let id = stream.context_id().map_err(driver("entering the stream's context"))?;
        let key = (stream.context(), id, self);
        let slot = {
            let mut loaded = locked(&LOADED);
            let loaded = loaded.get_or_insert_default();
            if !loaded.contains_key(&key) {
                // A context of that handle with another number is gone, and its kernels with it.
                loaded.retain(|(ctx, of, _), _| *ctx != key.0 || *of == id);
            }
            loaded.entry(key).or_default().clone()
        };
        let mut made = locked(&slot);
        if let Some(found) = *made {
            return Ok(found);
        }
        let name = CString::new(self.name()).unwrap_or_default();
        let function = stream
            .load(&self.text(), &name)
            .map_err(|cause| Error::NotCompiled { kernel: self.name(), cause })?;
        let count = stream.multiprocessors().ok().filter(|n| *n > 0).unwrap_or(MULTIPROCESSORS);
        Ok(*made.insert((function, count.saturating_mul(BLOCKS))))
    }

    /// Compiles it, unless the stream's context has it.
    pub(crate) fn load(self, stream: Stream) -> Result<(), Error> {
        self.get(stream).map(|_| ())
    }

    /// Queues it, with a thread for each of `items`, or as many as the device has room for.
    ///
    /// # Safety
    /// The arguments are those of the kernel's text, and what it accesses is valid for that until it is done.
    pub(crate) unsafe fn launch(self, stream: Stream, items: u64, arguments: &[u64]) -> Result<(), Error> {
        if items == 0 {
            return Ok(());
        }
        let (_, most) = self.get(stream)?;
        let blocks = u32::try_from(items.div_ceil(u64::from(THREADS))).unwrap_or(u32::MAX).min(most);
        // SAFETY: the caller's promise.
        unsafe { self.launch_as(stream, blocks, THREADS, arguments) }
    }

    /// Queues it, with that grid.
    ///
    /// # Safety
    /// As of [`Kernel::launch`].
    pub(crate) unsafe fn launch_as(
        self,
        stream: Stream,
        blocks: u32,
        threads: u32,
        arguments: &[u64],
    ) -> Result<(), Error> {
        let (function, _) = self.get(stream)?;
        // SAFETY: the caller's promise.
        let launched = unsafe { stream.launch(function, blocks, threads, arguments) };
        launched.map_err(driver("launching a kernel"))
    }
}
