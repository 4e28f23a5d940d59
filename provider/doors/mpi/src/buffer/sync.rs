//! Waiting for a device before a call takes its memory: `STRAIT_MPI_SYNC`.

use hmem::cuda::Stream;

use crate::settings::{self, Sync};

/// Waits for what was queued before for the device that `address` is on, as far as `STRAIT_MPI_SYNC` says.
/// Memory that is not CUDA's is not waited for. What fails of the work is the program's to find.
pub fn wait_for(address: usize) {
    let sync = settings::sync();
    if sync == Sync::Off {
        return;
    }
    let Ok(stream) = Stream::legacy(address) else { return };
    let _ = if sync == Sync::Stream { stream.wait() } else { stream.wait_for_context() };
}
