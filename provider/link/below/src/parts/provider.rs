//! What is known of the provider below.

use hmem::{Caps, Kind, Span};

use crate::channel::BEFORE;
use crate::network::{Below, Usage};

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
    /// Memory of devices goes in frames alone.
    stages: bool,
}

impl Provider {
    /// Of this fabric, or of none, and why.
    pub(crate) fn new<F: Below>(below: Result<&F, &String>) -> Provider {
        let lacks = below.err().cloned().unwrap_or_default();
        let about = below.ok().map(F::about);
        Provider {
            max_frame: about.map_or(0, |about| about.most.saturating_sub(BEFORE)),
            window: about.map_or(0, |about| about.window),
            lacks,
            failed: false,
            stages: false,
        }
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

    /// Memory of devices goes in frames alone from now on.
    pub(crate) fn stage_devices(&mut self) {
        self.stages = true;
    }

    /// Whether this fabric may access memory of some kind of devices so, as far as is known.
    pub(crate) fn reaches_devices<F: Below>(&self, below: &F, usage: Usage) -> bool {
        let kinds = [Kind::Cuda, Kind::Rocr, Kind::Ze, Kind::Fake, Kind::Client];
        !self.stages && kinds.into_iter().any(|kind| below.reaches(kind, usage))
    }

    /// Whether this fabric may access this memory so. What may vanish is better copied, by what can bear
    /// that.
    pub(crate) fn reaches<F: Below>(&self, below: &F, span: &Span, usage: Usage) -> bool {
        let fits = match span.can(Caps::DEVICE) {
            true => !self.stages,
            false => span.can(Caps::CPU) && span.stays(),
        };
        fits && below.reaches_memory(span, usage)
    }
}
