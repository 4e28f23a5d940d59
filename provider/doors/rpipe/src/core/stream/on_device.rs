//! What a device has part in at a writer's end.

use std::sync::Arc;

use super::Mode;
use crate::core::context::Ready;
use crate::core::control::Shape;
use crate::device::{self, Locked};
use crate::{DeviceMemory, Error, Memory, PeerMemory};

/// Longer heaps are not page-locked: the driver copies from there by way of memory of its own.
const LOCKED_MOST: usize = 64 << 20;

/// What a device has part in.
#[derive(Debug)]
pub(super) struct OnDevice {
    /// The reader's heap.
    pub(super) theirs: Option<Arc<PeerMemory>>,
    /// Where the program finds blocks.
    pub(super) local: Option<Arc<DeviceMemory>>,
    /// What keeps the blocks' memory page-locked, if it is the host's, and goes before that.
    _locked: Option<(Locked, Memory)>,
}

impl OnDevice {
    /// `local`: the blocks, unless they are to be memory of `device`. `None`: no device has part.
    pub(super) fn new(
        ready: &Ready,
        device: Option<i32>,
        local: &Memory,
        shape: Shape,
    ) -> Result<Option<Box<OnDevice>>, Error> {
        let theirs = ready.their_device.clone();
        if theirs.is_none() && device.is_none() {
            return Ok(None);
        }
        if ready.met.manner.mode != Mode::Store {
            return Err(Error::Unsupported(crate::core::backend::NO_DEVICES.into()));
        }
        let made = device.map(|device| DeviceMemory::new(device, shape.heap)).transpose()?;
        if let Some(theirs) = &theirs {
            let source = match &made {
                Some(made) => made.span(0, shape.heap)?,
                None => device::host(local.address(0), local.len()),
            };
            theirs.open(source)?;
        }
        let lock = made.is_none() && shape.heap <= LOCKED_MOST;
        let locked = if lock { device::lock(local.address(0), local.len()) } else { None };
        let locked = locked.map(|locked| (locked, local.clone()));
        Ok(Some(Box::new(OnDevice { theirs, local: made, _locked: locked })))
    }

    /// For people.
    pub(super) fn told(&self) -> String {
        let mut told = String::new();
        if self.theirs.is_some() {
            told.push_str("; the reader's heap is memory of a device, which copies");
        }
        if let Some(local) = &self.local {
            told.push_str(&format!("; blocks are memory of device {}", local.device()));
        }
        told
    }

    /// This end's blocks, if they are memory of a device.
    pub(super) fn local(&self) -> Option<&DeviceMemory> {
        self.local.as_deref()
    }
}
