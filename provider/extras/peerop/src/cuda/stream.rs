//! The executor that queues lists in a stream.

use std::sync::Arc;

use hmem::cuda::Stream;
use hmem::cuda::memops::queue_batch;

use super::kit::{Kit, driver};
use super::lower::Step;
use crate::error::Error;
use crate::exec::{Executor, Failed};
use crate::memory::Targets;
use crate::op::Op;
use crate::place::Caps;

/// Queues lists in a stream, each behind what is queued there. A stream that is being captured
/// ([`Stream::captured_too`]) makes them part of the graph.
///
/// A poll holds up what is behind it in the stream, and may hold up streams of the same hardware channel.
#[derive(Debug)]
pub struct CudaStream {
    stream: Stream,
    kit: Kit,
}

impl CudaStream {
    /// Of a stream of the program's, for lists with places in `targets`.
    ///
    /// # Safety
    /// Memory stays registered until all lists are done that name it, or as long as the graph is used that
    /// they become part of.
    pub unsafe fn new(stream: Stream, targets: Arc<Targets>) -> Result<CudaStream, Error> {
        Ok(CudaStream { stream, kit: Kit::new(stream, targets)? })
    }
}

impl Executor for CudaStream {
    fn caps(&self) -> Caps {
        self.kit.caps()
    }

    fn execute(&mut self, ops: &[Op]) -> Result<(), Failed> {
        let mut before = 0;
        for lowered in self.kit.steps(ops).map_err(Failed::at_once)? {
            let queued = match &lowered.step {
                // SAFETY: the promise of `new`; places were resolved in registered memory.
                Step::Batch(ops) => unsafe { queue_batch(self.stream, ops) }
                    .map_err(driver("queueing memory operations in a stream")),
                Step::Add { to, value } => self.kit.add().and_then(|add| {
                    // SAFETY: as above; the kernel has two parameters.
                    unsafe { self.stream.launch(add, 1, 1, &[*to, (*value).into()]) }
                        .map_err(driver("launching the kernel that adds"))
                }),
            };
            queued.map_err(|error| Failed { done: before, error })?;
            before = lowered.done;
        }
        Ok(())
    }
}
