//! libfabric's provider ABI: what a provider outside libfabric's tree needs of it, and nothing that
//! links to it.
//!
//! * Structures, enums and flags of the public headers, from `bindings.rs`: checked-in output of
//!   bindgen (`regen.sh`), so that building needs neither libfabric's headers nor libclang. All names
//!   are libfabric's and at the root of this crate.
//! * Constants that bindgen cannot see, restated by hand: `consts.rs`.
//! * [`Core`]: the functions of the core that runs in this process, found at load time.
//! * [`NO_OPS`] and its siblings: tables of operations that answer `-FI_ENOSYS`.
//!
//! # Conventions
//!
//! * A C enum is an alias of `c_uint` with constants. Applications pass what they like, and a Rust
//!   enum with a value it does not know would be undefined behaviour.
//! * Capabilities, operation and object flags, mode and order bits are `u64`. The bits of `mr_mode`
//!   (`FI_MR_LOCAL`, not the flags `FI_MR_DMABUF` and `FI_MR_SINGLE_USE`), error numbers, control
//!   commands and options are `c_int`. `FI_CLASS_*` is `usize` as `fid.fclass` is, address formats,
//!   protocols, traffic classes and EQ events are `u32`, tag formats `u64`.
//! * Error numbers are positive, as in C: return `-FI_EAGAIN`.
//! * A field named as a Rust keyword has an underscore at its end (`type_`). The unnamed unions are
//!   `fi_domain_attr.anon1` (`progress`, `data_progress`) and `fi_mr_attr.anon1` (`mr_iov`,
//!   `dmabuf`).
//! * A slot of a table is an `Option<unsafe extern "C" fn(…)>`. `Default` is all zero, which for a
//!   table means unusable: start from the `NO_OPS_*` one.
//!
//! # Layouts and versions
//!
//! The layouts are those of the headers named at the top of `bindings.rs`. libfabric only appends to
//! its structures, so an older core or application has a shorter version of the same one. Nothing
//! here stops code from touching a field the other side does not have; the rules are:
//!
//! * `fi_info` and its attributes, as the core passes them to a provider or as [`Core::allocinfo`]
//!   returns them, are in the core's layout: ask [`Core::at_least`] before touching a newer field.
//! * What the application passes to an object's functions is in the application's layout: compare
//!   with the `api_version` that the fabric was opened with.
//!
//! | structure | field | since |
//! |---|---|---|
//! | `fi_domain_attr` | `max_ep_auth_key` | 1.20 |
//! | | `max_group_id` | 2.0 |
//! | | `max_cntr_value`, `max_err_cntr_value` | 2.5 |
//! | | `max_xpu_ctx_cnt` | after 2.6 |
//! | `fi_ep_attr`, `fi_cq_attr`, `fi_cntr_attr` | `xpu_ctx` | after 2.6 |
//! | `fi_mr_attr` | `hmem_data` | 1.20 |
//! | | `page_size` | 1.22 |
//! | | `base_mr`, `sub_mr_cnt` | 2.0 |
//! | `fi_cq_err_entry` | `src_addr` | 1.20 |
//!
//! The peer interface (`fi_peer_*`, `fid_peer_*`, `fi_ops_srx_*`) is declared unstable:
//! `fi_peer_rx_entry` and the tables of a shared receive context have their layout since 2.5 only.
//!
//! A newer core than these headers is harmless in the other direction: [`Core::allocinfo`] gives its
//! full size, zeroed.
//!
//! Tables of operations are read by the core and the application, which look at `size` before a slot
//! that came late: the full-size tables here suit every version.

#[allow(
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    missing_debug_implementations,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unsafe_op_in_unsafe_fn
)]
#[rustfmt::skip]
mod bindings;
mod consts;
mod core;
mod no_ops;

pub use crate::core::{
    Core, DupInfoFn, FabricFn, Found, FreeInfoFn, GetInfoFn, LogEnabledFn, LogFn, LogReadyFn, ParamDefineFn,
    ParamGetFn, StrErrorFn, ToStrRFn, VersionFn,
};
pub use bindings::*;
pub use consts::*;
pub use no_ops::*;
