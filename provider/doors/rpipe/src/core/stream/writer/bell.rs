//! The word by which a reader asks to be woken.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::compiler_fence;

use crate::Memory;
use crate::core::context::{Context, Ready};
use crate::core::slot::Words as _;

#[derive(Debug)]
pub(super) struct Bell {
    /// This end's region, which begins with the word.
    state: Memory,
    /// This process takes part in membarrier(2), and the reader uses it: no fence is needed here.
    fenceless: bool,
}

impl Bell {
    pub(super) fn new(context: &Context, ready: &Ready) -> Bell {
        let fenceless = context.barrier().registered && ready.met.fences;
        Bell { state: ready.mine.memory.clone(), fenceless }
    }

    /// Behind the flag of a message: whether the reader sleeps.
    #[inline(always)]
    pub(super) fn is_due(&self) -> bool {
        if !self.fenceless {
            ipc::fence::full_fence();
        }
        // The reader's word that it sleeps is loaded behind the flag.
        compiler_fence(SeqCst);
        self.is_set()
    }

    #[inline(always)]
    pub(super) fn is_set(&self) -> bool {
        self.state.line(0).is_some_and(|state| state.load(0, Relaxed) != 0)
    }

    /// Takes the word back: the reader is woken.
    pub(super) fn clear(&self) {
        self.state.store(0, 0, Relaxed);
    }
}
