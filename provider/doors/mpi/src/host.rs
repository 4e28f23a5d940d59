//! Which addresses cannot be device memory.

use crate::settings;

/// Whether an argument is no address: MPI_IN_PLACE and its like. MPI_BOTTOM, 0, may stand for any memory.
#[inline(always)]
pub fn is_no_address(word: usize) -> bool {
    word.wrapping_add(1) <= 4096 && word != 0
}

/// Whether a buffer there is host memory for sure, without a call of a driver: most are seen to be on the
/// heap, on the stack or of the program. Where it is not sure, the data decide: a datatype may begin
/// anywhere.
#[inline(always)]
pub fn is_host(word: usize) -> bool {
    hmem::is_never_a_device(word) || is_host_elsewhere(word)
}

fn is_host_elsewhere(word: usize) -> bool {
    is_no_address(word) || settings::is_off() || !hmem::may_have_a_device()
}
