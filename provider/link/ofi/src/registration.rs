//! How memory is registered with a provider below: for peers, or for accesses of this side.

use std::ptr::null_mut;

use fabric_client::{Object, made};
use hmem::{Caps, Kind, Span, registry};
use libfabric_sys as fi;

/// How memory is registered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Modes {
    /// FI_MR_*.
    pub(crate) mr_mode: i32,
    /// Bytes of a key.
    pub(crate) key_size: usize,
}

impl Modes {
    /// Whether the provider asks for this.
    pub(crate) fn has(self, mode: i32) -> bool {
        self.mr_mode & mode != 0
    }

    /// Registers memory; with an endpoint where registrations belong to one.
    ///
    /// A device's is registered as that also where the provider would find out by itself (without
    /// FI_MR_HMEM): so one that has not what it takes says so before it accesses any.
    pub(crate) fn register(
        self,
        domain: &Object<fi::fid_domain>,
        ep: &Object<fi::fid_ep>,
        (span, device): (Span, Option<Device>),
        access: u64,
    ) -> Result<Object<fi::fid_mr>, i32> {
        let mask = u64::MAX >> (64 - 8 * self.key_size.min(8));
        // A key that was taken already is refused, and another one tried.
        for _ in 0..4 {
            let key = match ipc::random() {
                Ok(bytes) if !self.has(fi::FI_MR_PROV_KEY) => u64::from_le_bytes(bytes) & mask,
                _ => 0,
            };
            let (at, len) = (span.as_ptr().cast(), span.len());
            let found = match device {
                // SAFETY: an open domain; the memory is there, as its owner promised with the span.
                None => unsafe {
                    let reg = (*(*domain.at()).mr).reg.ok_or(-fi::FI_ENOSYS)?;
                    made(|mr| reg(domain.fid(), at, len, access, 0, key, 0, mr, null_mut()))
                },
                Some((iface, device)) => {
                    let iov = libc::iovec { iov_base: at, iov_len: len };
                    let attr = fi::fi_mr_attr {
                        anon1: fi::fi_mr_attr__bindgen_ty_1 { mr_iov: &raw const iov },
                        iov_count: 1,
                        access,
                        requested_key: key,
                        iface,
                        device,
                        ..Default::default()
                    };
                    // SAFETY: likewise, and a device's is not followed here.
                    unsafe {
                        let reg = (*(*domain.at()).mr).regattr.ok_or(-fi::FI_ENOSYS)?;
                        made(|mr| reg(domain.fid(), &raw const attr, 0, mr))
                    }
                }
            };
            let region: Object<fi::fid_mr> = match found {
                Err(e) if e == -fi::FI_ENOKEY => continue,
                other => other?,
            };
            if self.has(fi::FI_MR_ENDPOINT) {
                region.bind(ep, 0)?;
                region.enable()?;
            }
            return Ok(region);
        }
        Err(-fi::FI_ENOKEY)
    }
}

/// What libfabric calls the interface of a device's memory, and the device.
pub(crate) type Device = (fi::fi_hmem_iface, fi::fi_mr_attr__bindgen_ty_2);

/// Of a device's memory, what that is called; of the host's nothing. `None` where an adapter is not to access
/// it.
pub(crate) fn of_device(span: &Span) -> Option<Option<Device>> {
    if !span.can(Caps::DEVICE) {
        return Some(None);
    }
    let (driver, number) = registry::of(span.kind()).to_adapter(span.addr() as usize, span.len())?;
    let (driver, number) = (i32::try_from(driver).ok()?, i32::try_from(number).ok()?);
    Some(Some(match span.kind() {
        Kind::Cuda => (fi::FI_HMEM_CUDA, fi::fi_mr_attr__bindgen_ty_2 { cuda: number }),
        Kind::Rocr => (fi::FI_HMEM_ROCR, fi::fi_mr_attr__bindgen_ty_2 { reserved: 0 }),
        // As fi_hmem_ze_device of libfabric's headers has it.
        Kind::Ze => (fi::FI_HMEM_ZE, fi::fi_mr_attr__bindgen_ty_2 { ze: driver << 16 | number }),
        _ => return None,
    }))
}
