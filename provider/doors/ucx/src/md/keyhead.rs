//! The first bytes of packed keys, by which keys of host memory and of device memory differ.

use wire::ucx::{DeviceKey, HostKey};

/// How everything begins that an `uct_rkey_t` of ours points to: what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head([u8; 4]);

impl Head {
    pub(crate) const HOST: Head = Head(HostKey::TAG);
    pub(crate) const DEVICE: Head = Head(DeviceKey::TAG);

    /// What a key is.
    ///
    /// # Safety
    /// It must be one that `unpack` made.
    pub(crate) unsafe fn of(rkey: usize) -> Head {
        // SAFETY: the caller's promise.
        unsafe { *(rkey as *const Head) }
    }
}
