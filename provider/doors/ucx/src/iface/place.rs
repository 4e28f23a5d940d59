//! Where this process is, and what is said of an interface that is not reached from there.

use std::ffi::c_char;
use std::sync::OnceLock;

use ucx_sys::{self as ucx, AddrParams};
use wire::ucx::Place;

/// Where this process is, as far as shared memory and sockets go: the host's boot, the network
/// namespace (abstract unix sockets belong to one) and the user.
pub(crate) fn place() -> Place {
    static PLACE_CELL: OnceLock<Place> = OnceLock::new();
    *PLACE_CELL.get_or_init(|| {
        // FNV-1a: all that is needed is that two boots differ.
        let hash = link::boot_id()
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        let namespace = |name: &str| {
            std::fs::metadata(format!("/proc/self/ns/{name}"))
                .map_or(0, |m| std::os::unix::fs::MetadataExt::ino(&m))
        };
        let net = namespace("net");
        // Where uids of different users look the same, another user namespace may be another user's.
        let hash = if link::other_uids_coincide() { hash ^ namespace("user") } else { hash };
        // SAFETY: geteuid(2) cannot fail and touches no memory.
        let uid = unsafe { libc::geteuid() };
        Place { host: hash.into(), namespace: (net as u32).into(), uid: uid.into() }
    })
}

/// Bytes of a device address.
pub(crate) const PLACE: usize = size_of::<Place>();

/// Writes the reason into UCX's buffer, if it passes one; `text` ends in NUL.
///
/// # Safety
/// `p` must be UCX's.
pub(crate) unsafe fn unreachable_because(p: &AddrParams, text: &[u8]) {
    let both = ucx::ADDR_PARAMS_INFO | ucx::ADDR_PARAMS_INFO_LENGTH;
    let n = text.len().min(p.info_string_length);
    if p.field_mask & both == both && n > 0 && !p.info_string.is_null() {
        // SAFETY: UCX gives room for that many characters; the last one ends the text.
        unsafe {
            p.info_string.copy_from_nonoverlapping(text.as_ptr().cast::<c_char>(), n);
            p.info_string.add(n - 1).write(0);
        }
    }
}
