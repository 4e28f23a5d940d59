//! What an end is once its peer's is known.

use std::sync::Arc;

use crate::core::control::{Manner, Shape};
use crate::{DeviceMemory, Grant, PeerMemory, Promise, Region};

/// What the two ends have agreed on.
#[derive(Clone, Debug)]
pub(crate) struct Met {
    pub(crate) shape: Shape,
    pub(crate) manner: Manner,
    pub(crate) mode_why: String,
    /// What notifications carry.
    pub(crate) no: u16,
    /// The reader uses membarrier(2) before it sleeps.
    pub(crate) fences: bool,
}

/// An end that can be used.
#[derive(Clone, Debug)]
pub(crate) struct Ready {
    pub(crate) mine: Region,
    pub(crate) theirs: Grant,
    /// Reader: its heap, if that is memory of a device. Writer: the reader's, if that is such memory.
    pub(crate) on_device: Option<Arc<DeviceMemory>>,
    pub(crate) their_device: Option<Arc<PeerMemory>>,
    pub(crate) met: Met,
    pub(crate) promise: Promise,
}
