//! When a device sees what an adapter has written to its memory (GPUDirect RDMA).
//!
//! The processor may know of such a write, by a completion, before the device sees it. Whether it may, and
//! whether a call of the host ends that, are attributes of the device.

use std::ffi::{CStr, c_char, c_int};

use super::api::{Api, Error, NOT_FOUND, loaded};
use super::info::{Sort, info};
use super::stream::{Entered, context_of};
use crate::memory::AdapterWrites;

/// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS`, and its
/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST`.
const FLUSH_OPTIONS: c_int = 117;
const BY_HOST: c_int = 1;
/// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING`, and its
/// `CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER`: the device itself need not be flushed.
const ORDERING: c_int = 118;
const OWNER: c_int = 100;
/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX`, `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER`.
const CURRENT_CTX: c_int = 0;
const TO_OWNER: c_int = 100;

/// Bytes of `0000:1b:00.0` and its NUL, and more.
const PCI: usize = 32;

/// The device of the calling thread's context, on the PCI bus.
pub(super) fn current_pci() -> Option<String> {
    let (api, mut device) = (loaded()?, 0);
    api.ctx_device(&mut device).ok()?;
    let mut text: [c_char; PCI] = [0; PCI];
    api.device_pci(text.as_mut_ptr(), PCI as c_int - 1, device).ok()?;
    // SAFETY: the driver has written fewer bytes than there are, and the last one is 0.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) };
    Some(text.to_str().ok()?.to_lowercase()).filter(|text| !text.is_empty())
}

/// Whether the device sees what an adapter has written when the processor knows of it.
pub(super) fn is_ordered(api: &Api, device: c_int) -> bool {
    api.attribute(ORDERING, device) >= OWNER
}

/// When the device of this memory sees what an adapter has written there.
pub(super) fn writes(addr: usize) -> AdapterWrites {
    let is_of_one = |sort| !matches!(sort, Sort::Managed | Sort::Host);
    let Some((api, of)) = loaded().zip(info(addr)).filter(|(_, of)| is_of_one(of.sort) && of.device >= 0)
    else {
        return AdapterWrites::Unknown;
    };
    if is_ordered(api, of.device) {
        AdapterWrites::Seen
    } else if api.attribute(FLUSH_OPTIONS, of.device) & BY_HOST != 0 && api.has_flush_writes() {
        AdapterWrites::Flushed
    } else {
        AdapterWrites::Unknown
    }
}

/// Has the device of this memory see what adapters have written before the call.
pub(super) fn flush(addr: usize) -> Result<(), Error> {
    let (api, of) = loaded().zip(info(addr)).ok_or(Error(NOT_FOUND))?;
    let _entered = Entered::new(api, context_of(api, &of)?)?;
    api.flush_writes(CURRENT_CTX, TO_OWNER)
}
