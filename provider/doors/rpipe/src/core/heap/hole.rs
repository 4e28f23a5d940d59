//! What is known of a block, and of one that is free.

/// A free block.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Hole {
    pub(super) at: u32,
    pub(super) len: u32,
}

/// What is known where a granule begins a block.
///
/// `kind` has the state (2 bits, 0: no block begins here), the slack, which is how many bytes of the last
/// granule are beyond the block (8 bits from bit 8), and the generation (16 bits from bit 16), which outlives
/// the block.
pub(super) type Entry = [u32; 3];
/// The length of the block.
pub(super) const LEN: usize = 0;

/// Where in a free block `want` granules fit on a multiple of `align`, a power of two.
#[inline]
pub(super) fn fit(at: u32, len: u32, want: u32, align: u32) -> Option<u32> {
    let lead = at.wrapping_neg() & (align - 1);
    (len >= want && len - want >= lead).then_some(at + lead)
}
