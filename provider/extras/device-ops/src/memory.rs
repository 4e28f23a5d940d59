//! Memory that kernels access.

use crate::error::Error;

/// Memory that kernels of a stream's device may access: of the device, of a peer that it has access to,
/// managed, or page-locked host memory. Its bytes are numbered from an origin, which need not be inside.
///
/// The type's invariant, promised by the caller of [`Memory::new`] and [`Memory::around`]: the bytes stay
/// valid for the accesses of the work that they are passed to until that work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    origin: u64,
    lower: i64,
    upper: i64,
}

impl Memory {
    /// `len` bytes from `addr` on.
    ///
    /// # Safety
    /// The type's invariant.
    pub unsafe fn new(addr: usize, len: usize) -> Memory {
        Memory { origin: addr as u64, lower: 0, upper: i64::try_from(len).unwrap_or(i64::MAX) }
    }

    /// The bytes from `origin + lower` to `origin + upper`. An origin of 0 with displacements that are
    /// addresses is MPI_BOTTOM.
    ///
    /// # Safety
    /// The type's invariant.
    pub unsafe fn around(origin: usize, lower: i64, upper: i64) -> Memory {
        Memory { origin: origin as u64, lower, upper: upper.max(lower) }
    }

    /// The address of byte 0.
    pub fn origin(&self) -> u64 {
        self.origin
    }

    /// Refuses bytes that are not all inside.
    pub(crate) fn check(&self, what: &str, lower: i64, upper: i64) -> Result<(), Error> {
        if lower >= upper || (lower >= self.lower && upper <= self.upper) {
            return Ok(());
        }
        Err(Error::Argument(format!(
            "the {what} has bytes {} to {}, and {lower} to {upper} are accessed: pass all of the buffer",
            self.lower, self.upper
        )))
    }

    /// Whether the bytes 0 to `len` here and there are partly the same, but not the same ones.
    pub(crate) fn overlaps(&self, other: &Memory, len: u64) -> bool {
        self.origin != other.origin && self.origin.abs_diff(other.origin) < len
    }
}
