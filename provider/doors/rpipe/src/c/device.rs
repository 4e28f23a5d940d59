//! Memory of any kind, and what kernels need.

use std::ptr::{null, with_exposed_provenance, with_exposed_provenance_mut};

use libc::{c_int, c_void};

use super::handles::{status, with};
use super::types::*;
use crate::{Error, Patience};

/// Writes `size` bytes of memory of any kind, the host's or a device's, as a message, without a block of the
/// program's: to a heap that is mapped or in memory of a device they are copied once, by the device where
/// that has part. The memory may be used again when this returns. Waits for room as rmalloc does, and fails
/// as rmalloc and rwrite do.
///
/// # Safety
/// `rp` is NULL or came from rpipe; so many bytes are readable at `from`, by the processor or by the device
/// whose memory it is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rwrite_from(rp: rpipe_t, from: *const c_void, size: usize) -> c_int {
    status(|| {
        if from.is_null() && size > 0 {
            return Err(Error::Invalid("there are no bytes to write".into()));
        }
        // SAFETY: the program's promise.
        with(rp, |pipe, _| unsafe { pipe.write_from(from.cast(), size, Patience::Forever) })
    })
}

/// The heap of a reader's end with RPIPE_DEVICE, for kernels; waits until the writer has begun. EINVAL: the
/// heap is the host's, or this is a writer's end.
///
/// # Safety
/// `rp` is NULL or came from rpipe; `device` is NULL or a structure whose first field is its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpipe_on_device(rp: rpipe_t, device: *mut rpipe_device) -> c_int {
    status(|| {
        // SAFETY: the program's promise.
        let to = unsafe { device.as_mut() }.filter(|device| device.size >= size_of::<rpipe_device>());
        let to = to.ok_or_else(|| {
            Error::Invalid("rpipe_device.size has to be sizeof(struct rpipe_device)".into())
        })?;
        let of = with(rp, |pipe, _| pipe.on_device(Patience::Forever))?;
        *to = rpipe_device {
            size: size_of::<rpipe_device>(),
            heap: with_exposed_provenance_mut(of.heap),
            heap_size: of.heap_len,
            granule: of.granule,
            numbers: of.numbers.map_or(null(), with_exposed_provenance),
            slots: of.slots,
            next: of.next + 1,
            device: of.device,
        };
        Ok(())
    })
}
