//! Which addresses cannot be device memory.

use hmem::Kind;

use crate::settings;

/// Whether an address cannot be device memory: most are seen to be on the heap, the stack or of the program.
/// MPI_BOTTOM is not, since the data may be anywhere; values that are no addresses, as MPI_IN_PLACE, are.
#[inline(always)]
pub fn is_host(address: usize) -> bool {
    // Of -1 to 4095 only MPI_BOTTOM, 0, may stand for device memory.
    if address.wrapping_add(1) <= 4096 {
        return address != 0;
    }
    settings::is_off() || hmem::classify(address, 1) == Kind::System
}
