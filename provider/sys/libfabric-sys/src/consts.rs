//! Constants bindgen cannot carry over, restated by hand. The comment on each is the header's text.

use crate::bindings::{FI_EP_UNSPEC, fi_addr_t, fi_ep_type};
use libc::c_int;

/// `#define FI_VERSION(major, minor) (((major) << 16) | (minor))`
#[allow(non_snake_case)]
pub const fn FI_VERSION(major: u32, minor: u32) -> u32 {
    (major << 16) | minor
}

/// `#define FI_MAJOR(version) (version >> 16)`
#[allow(non_snake_case)]
pub const fn FI_MAJOR(version: u32) -> u32 {
    version >> 16
}

/// `#define FI_MINOR(version) (version & 0xFFFF)`
#[allow(non_snake_case)]
pub const fn FI_MINOR(version: u32) -> u32 {
    version & 0xffff
}

// fabric.h: addresses and keys.

/// `#define FI_ADDR_UNSPEC ((uint64_t) -1)`
pub const FI_ADDR_UNSPEC: fi_addr_t = u64::MAX;
/// `#define FI_ADDR_NOTAVAIL ((uint64_t) -1)`
pub const FI_ADDR_NOTAVAIL: fi_addr_t = u64::MAX;
/// `#define FI_KEY_NOTAVAIL ((uint64_t) -1)`
pub const FI_KEY_NOTAVAIL: u64 = u64::MAX;
/// `#define FI_SHARED_CONTEXT SIZE_MAX`: a value of `fi_ep_attr.tx_ctx_cnt` and `rx_ctx_cnt`.
pub const FI_SHARED_CONTEXT: usize = usize::MAX;
/// `#define FI_AV_AUTH_KEY SIZE_MAX`: a value of `fi_ep_attr.auth_key_size`.
pub const FI_AV_AUTH_KEY: usize = usize::MAX;

// fabric.h: values of `fi_domain_attr.mr_mode` from before the bits. Deprecated, still sent.

/// `#define FI_MR_UNSPEC (0)`
pub const FI_MR_UNSPEC: c_int = 0;
/// `#define FI_MR_BASIC (1 << 0)`
pub const FI_MR_BASIC: c_int = 1 << 0;
/// `#define FI_MR_SCALABLE (1 << 1)`
pub const FI_MR_SCALABLE: c_int = 1 << 1;

// fabric.h: message and completion order, deprecated names.

/// `#define FI_ORDER_NONE 0ULL`
pub const FI_ORDER_NONE: u64 = 0;
/// `#define FI_ORDER_STRICT 0x1FF`
pub const FI_ORDER_STRICT: u64 = 0x1ff;
/// `#define FI_ORDER_DATA (1ULL << 16)`
pub const FI_ORDER_DATA: u64 = 1 << 16;

// fabric.h: mode bits, deprecated names.

/// `#define FI_LOCAL_MR (1ULL << 55)`: superseded by `FI_MR_LOCAL`, which is an `mr_mode` bit.
pub const FI_LOCAL_MR: u64 = 1 << 55;
/// `#define FI_BUFFERED_RECV (1ULL << 51)`: gone from the headers in 2.0; a 1.x client may set it.
pub const FI_BUFFERED_RECV: u64 = 1 << 51;
/// `#define FI_EP_SOCK_STREAM FI_EP_UNSPEC`
pub const FI_EP_SOCK_STREAM: fi_ep_type = FI_EP_UNSPEC;

// fi_domain.h.

/// `#define FI_REG_MR (1ULL << 59)`: a flag of `fi_domain_bind`.
pub const FI_REG_MR: u64 = 1 << 59;
/// `#define FI_COLLECTIVE_OFFSET 256`: where the collective-only data types and operations start.
pub const FI_COLLECTIVE_OFFSET: u32 = 256;

// fi_tagged.h.

/// `#define FI_MPI_IGNORE_TAG ((uint64_t) UINT32_MAX)`
pub const FI_MPI_IGNORE_TAG: u64 = u32::MAX as u64;
/// `#define FI_MPI_IGNORE_PAYLOAD (((uint64_t) UINT8_MAX) << 32)`
pub const FI_MPI_IGNORE_PAYLOAD: u64 = (u8::MAX as u64) << 32;

// Not in the public headers (include/ofi.h), and what in-tree providers answer in `mem_tag_format`.

/// `#define FI_TAG_GENERIC 0xAAAAAAAAAAAAAAAAULL`: every bit of the tag is a field of its own.
pub const FI_TAG_GENERIC: u64 = 0xaaaa_aaaa_aaaa_aaaa;
