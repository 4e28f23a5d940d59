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
    if word.wrapping_add(1) <= 4096 {
        return word != 0;
    }
    settings::is_off() || !hmem::may_be_device(word)
}
