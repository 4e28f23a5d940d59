//! What is known of the provider below.

use crate::below::Below;
use crate::channel::BEFORE;

/// The limits of the provider below, and why there is none, or none any more.
#[derive(Debug)]
pub(crate) struct Provider {
    /// Longest frame that its buffers can hold.
    max_frame: usize,
    window: u32,
    /// Why there is no fabric, or no better one.
    lacks: String,
    /// The fabric does nothing any more.
    failed: bool,
}

impl Provider {
    /// Of this fabric, or of none, and why.
    pub(crate) fn new<F: Below>(below: Result<&F, &String>) -> Provider {
        let lacks = below.err().cloned().unwrap_or_default();
        let max_frame = below.map_or(0, |b| b.most().saturating_sub(BEFORE));
        Provider { max_frame, window: below.map_or(0, F::window), lacks, failed: false }
    }

    /// Longest frame.
    #[inline]
    pub(crate) fn max_frame(&self) -> usize {
        self.max_frame
    }

    /// How many messages of one peer it has room for.
    #[inline]
    pub(crate) fn window(&self) -> u32 {
        self.window
    }

    /// Why there is no fabric, or no better one.
    pub(crate) fn lacks(&self) -> &str {
        &self.lacks
    }

    pub(crate) fn set_lacks(&mut self, lacks: String) {
        self.lacks = lacks;
    }

    /// Whether the fabric does nothing any more.
    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    pub(crate) fn fail(&mut self) {
        self.failed = true;
    }
}
