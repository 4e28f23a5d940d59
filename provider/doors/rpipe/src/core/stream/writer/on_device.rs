//! What a device has part in at a writer's end: the reader's heap is memory of one, or this end's blocks are.
//! The bytes are copied to the reader's heap by the device; the slot is stored once they are visible there.

use std::sync::Arc;

use hmem::Span;

use crate::core::control::{NUMBER, Shape};
use crate::core::slot::{INLINE, Notice};
use crate::device::{self, Locked};
use crate::{DeviceMemory, Error, Memory, PeerMemory};

/// Longer heaps are not page-locked: the driver copies from there by way of memory of its own.
const LOCKED_MOST: usize = 64 << 20;

#[derive(Debug)]
pub(super) struct OnDevice {
    /// The reader's heap.
    theirs: Option<Arc<PeerMemory>>,
    /// Where the program finds blocks.
    local: Option<Arc<DeviceMemory>>,
    /// What keeps the blocks' memory page-locked, if it is the host's, and goes before that.
    _locked: Option<(Locked, Memory)>,
}

impl OnDevice {
    /// `theirs`: the reader's heap, if it is memory of a device; `is_stored`: the reader's slots are mapped.
    /// `local`: the blocks, unless they are to be memory of `device`. `None`: no device has part.
    pub(super) fn new(
        theirs: Option<Arc<PeerMemory>>,
        is_stored: bool,
        device: Option<i32>,
        local: &Memory,
        shape: Shape,
    ) -> Result<Option<Box<OnDevice>>, Error> {
        if theirs.is_none() && device.is_none() {
            return Ok(None);
        }
        if !is_stored {
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
    pub(super) fn description(&self) -> String {
        let mut text = String::new();
        if self.theirs.is_some() {
            text.push_str("; the reader's heap is memory of a device, which copies");
        }
        if let Some(local) = &self.local {
            text.push_str(&format!("; blocks are memory of device {}", local.device()));
        }
        text
    }

    /// This end's blocks, if they are memory of a device.
    pub(super) fn local(&self) -> Option<&DeviceMemory> {
        self.local.as_deref()
    }

    /// Copies a message's bytes to `offset` of the reader's heap, whose region is `mapped`, or gives the
    /// words of its slot. `number`: that of the message, from 0.
    pub(super) fn copy(
        &self,
        shape: Shape,
        mapped: &Memory,
        (offset, from): (usize, Span),
        notice: Notice,
        number: u64,
    ) -> Result<[u64; INLINE / 8], Error> {
        let len = notice.len as usize;
        let mut data = [0u8; INLINE];
        let mut words = [0u64; INLINE / 8];
        match &self.theirs {
            Some(theirs) => {
                theirs.put(shape.device_heap_at() + offset, from)?;
                if let Some(at) = shape.number(number) {
                    theirs.put(at, device::host(kernels_number(notice, number + 1).as_ptr(), NUMBER))?;
                }
            }
            None if notice.is_inline => {
                device::copy(device::host(data.as_mut_ptr(), len), from)?;
                for (word, bytes) in words.iter_mut().zip(data.chunks_exact(8)) {
                    *word = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
                }
            }
            None => {
                let to = mapped.place(shape.heap_at() + offset).filter(|_| len <= shape.heap - offset);
                device::copy(device::host(to.ok_or(Error::Again)?, len), from)?;
            }
        }
        Ok(words)
    }
}

/// The bytes by which a kernel finds a message: see `NUMBER`.
fn kernels_number(notice: Notice, flag: u64) -> [u8; NUMBER] {
    let mut bytes = [0; NUMBER];
    let words = [notice.len, flag as u32, notice.granule, flag as u32];
    for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}
