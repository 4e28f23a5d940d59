//! An application's hints, read once into something safe to look at.

use std::ffi::CStr;

use libc::{c_char, c_int};
use libfabric_sys as fi;
use wire::Addr;

use super::addr;
use super::auth::AuthKey;
use super::models::Models;
use crate::errno::Errno;
use crate::ffi;

/// Hints; an attribute structure the application left out is as one full of zeros.
#[derive(Clone, Default)]
pub(crate) struct Hints {
    pub caps: u64,
    /// Whether a kind of device memory is here that can be recognised and copied.
    pub devices: bool,
    pub addr_format: u32,
    pub src: Option<Addr>,
    pub dest: Option<Addr>,
    pub tx: fi::fi_tx_attr,
    pub rx: fi::fi_rx_attr,
    pub ep: EpHints,
    pub domain: DomainHints,
    pub fabric: FabricHints,
    /// Keys that endpoints, and the domain, are to have.
    pub ep_key: Option<AuthKey>,
    pub domain_key: Option<AuthKey>,
    /// If they carry a `nic`; and its device's name, if it has one.
    pub nic: Option<Option<String>>,
}

/// Of `fi_ep_attr`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EpHints {
    pub kind: fi::fi_ep_type,
    pub protocol: u32,
    pub protocol_version: u32,
    pub max_msg_size: usize,
    pub max_order_raw_size: usize,
    pub max_order_war_size: usize,
    pub max_order_waw_size: usize,
    pub mem_tag_format: u64,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub auth_key_size: usize,
}

/// Of `fi_domain_attr`.
#[derive(Clone, Debug, Default)]
pub(crate) struct DomainHints {
    pub object: Object,
    pub name: Option<String>,
    pub models: Models,
    pub resource_mgmt: fi::fi_resource_mgmt,
    pub av_type: fi::fi_av_type,
    pub mr_mode: c_int,
    pub cq_data_size: usize,
    pub cntr_cnt: usize,
    pub mr_iov_limit: usize,
    pub mr_cnt: usize,
    pub caps: u64,
    pub auth_key_size: usize,
    pub max_err_data: usize,
    pub tclass: u32,
    pub max_ep_auth_key: usize,
}

/// Of `fi_fabric_attr`.
#[derive(Clone, Debug, Default)]
pub(crate) struct FabricHints {
    pub object: Object,
    pub name: Option<String>,
    pub prov_version: u32,
}

/// An open object the answer is to be for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Object {
    #[default]
    Any,
    /// Where it is; of a domain, the registration modes it was opened with.
    Ours(usize, c_int),
    /// Another provider's.
    Foreign,
}

impl Hints {
    /// # Safety
    /// `h` and everything it points to is valid, and in the layout of the core, which is at least that of
    /// 1.17; `api` is the version that the application requests and `core` the running core's version.
    pub(crate) unsafe fn read(h: &fi::fi_info, api: u32, core: u32) -> Result<Hints, Errno> {
        let mut hints = Hints { caps: h.caps, addr_format: h.addr_format, ..Hints::default() };
        // SAFETY: the caller's promise covers every pointer in here; each is NULL or valid.
        unsafe {
            hints.src = addr::optional(h.src_addr, h.src_addrlen)?;
            hints.dest = addr::optional(h.dest_addr, h.dest_addrlen)?;
            if let Some(tx) = h.tx_attr.as_ref() {
                hints.tx = *tx;
            }
            if let Some(rx) = h.rx_attr.as_ref() {
                hints.rx = *rx;
            }
            if !h.ep_attr.is_null() {
                hints.ep = EpHints::read(h.ep_attr);
                hints.ep_key =
                    AuthKey::read((*h.ep_attr).auth_key, (*h.ep_attr).auth_key_size).unwrap_or(None);
            }
            if !h.domain_attr.is_null() {
                let newer = api.min(core) >= fi::FI_VERSION(1, 20);
                hints.domain = DomainHints::read(h.domain_attr, newer);
                let d = h.domain_attr;
                hints.domain_key = AuthKey::read((*d).auth_key, (*d).auth_key_size).unwrap_or(None);
            }
            if !h.fabric_attr.is_null() {
                hints.fabric = FabricHints::read(h.fabric_attr);
            }
            if let Some(nic) = h.nic.as_ref() {
                hints.nic =
                    Some(nic.device_attr.as_ref().and_then(|d| name(d.name)).filter(|n| !n.is_empty()));
            }
        }
        Ok(hints)
    }
}

// These take pointers, not references: older cores' structures are shorter than ours.

impl EpHints {
    /// # Safety
    /// `a` points to a `fi_ep_attr` as old as 1.17.
    unsafe fn read(a: *const fi::fi_ep_attr) -> EpHints {
        // SAFETY: only fields that 1.17 has are read, through places that form no reference.
        unsafe {
            EpHints {
                kind: (*a).type_,
                protocol: (*a).protocol,
                protocol_version: (*a).protocol_version,
                max_msg_size: (*a).max_msg_size,
                max_order_raw_size: (*a).max_order_raw_size,
                max_order_war_size: (*a).max_order_war_size,
                max_order_waw_size: (*a).max_order_waw_size,
                mem_tag_format: (*a).mem_tag_format,
                tx_ctx_cnt: (*a).tx_ctx_cnt,
                rx_ctx_cnt: (*a).rx_ctx_cnt,
                auth_key_size: (*a).auth_key_size,
            }
        }
    }
}

impl DomainHints {
    /// # Safety
    /// `a` points to a `fi_domain_attr` as old as 1.17, or as 1.20 if `newer`.
    unsafe fn read(a: *const fi::fi_domain_attr, newer: bool) -> DomainHints {
        // SAFETY: only fields that the caller vouched for are read, through places that form no
        // reference; an object named here is open, as fi_getinfo(3) demands.
        unsafe {
            DomainHints {
                object: Object::read((*a).domain, |d: &crate::domain::DomainFid| d.shared.mr_mode),
                name: name((*a).name),
                models: Models {
                    threading: (*a).threading,
                    control_progress: (*a).control_progress,
                    data_progress: (*a).anon1.data_progress,
                },
                resource_mgmt: (*a).resource_mgmt,
                av_type: (*a).av_type,
                mr_mode: (*a).mr_mode,
                cq_data_size: (*a).cq_data_size,
                cntr_cnt: (*a).cntr_cnt,
                mr_iov_limit: (*a).mr_iov_limit,
                mr_cnt: (*a).mr_cnt,
                caps: (*a).caps,
                auth_key_size: (*a).auth_key_size,
                max_err_data: (*a).max_err_data,
                tclass: (*a).tclass,
                max_ep_auth_key: if newer { (*a).max_ep_auth_key } else { 0 },
            }
        }
    }
}

impl FabricHints {
    /// # Safety
    /// `a` points to a `fi_fabric_attr`.
    unsafe fn read(a: *const fi::fi_fabric_attr) -> FabricHints {
        // SAFETY: the caller's promise; an object named here is open.
        unsafe {
            FabricHints {
                object: Object::read((*a).fabric, |_: &crate::fabric::FabricFid| 0),
                name: name((*a).name),
                prov_version: (*a).prov_version,
            }
        }
    }
}

impl Object {
    /// # Safety
    /// `p` is NULL or an open object of any provider.
    unsafe fn read<T: ffi::Fid, P>(p: *const P, mr_mode: impl FnOnce(&T) -> c_int) -> Object {
        if p.is_null() {
            return Object::Any;
        }
        // SAFETY: the caller's promise is `obj`'s.
        match unsafe { ffi::obj::<T, P>(p) } {
            Ok(object) => Object::Ours(p.expose_provenance(), mr_mode(object)),
            Err(_) => Object::Foreign,
        }
    }
}

/// # Safety
/// `s` is NULL or a string.
unsafe fn name(s: *const c_char) -> Option<String> {
    // SAFETY: the caller's promise.
    (!s.is_null()).then(|| unsafe { CStr::from_ptr(s) }.to_string_lossy().into_owned())
}
