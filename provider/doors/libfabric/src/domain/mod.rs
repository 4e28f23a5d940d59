//! The access domain: one engine under one lock, and everything opened in it.

mod open;

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use libc::c_int;
use libfabric_sys as fi;
use link::Links;
use runtime::Runtime;
use wire::Addr;

use crate::eq::EqFid;
use crate::fabric::FabricShared;
use crate::ffi::{Ref, Refs};
use crate::info::auth::AuthKey;
use crate::xpu::Streams;
pub(crate) use open::open;

pub(crate) type Engine = engine::Domain<link::Links>;
pub(crate) type Guard<'a> = runtime::Guard<'a, link::Links>;

/// `struct fid_domain`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct DomainFid {
    pub fid: fi::fid_domain,
    pub shared: Arc<Shared>,
    /// Where registrations complete, once a queue is bound for that.
    pub mr_eq: OnceLock<Ref<EqFid>>,
    eq: OnceLock<Ref<EqFid>>,
    fabric: Arc<FabricShared>,
}

/// What a domain and everything opened in it have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    runtime: Runtime<Links>,
    /// The version of the application's headers, as passed to fi_getinfo.
    pub api_version: u32,
    pub caps: u64,
    pub addr_format: u32,
    /// The address that it was opened with, if any: endpoints of the same info are there.
    pub at: Option<Addr>,
    /// Registrations get keys of the engine's choice.
    pub prov_key: bool,
    /// The registration modes it was opened with.
    pub mr_mode: c_int,
    /// Memory that is registered stays until its registration is closed.
    pub allocated: bool,
    /// The authorization key of endpoints that have none.
    pub auth_key: Option<AuthKey>,
    /// Its application keeps its calls apart, so that no thread of ours may enter.
    pub one_thread: bool,
    /// Objects open in the domain (endpoints and shared receive contexts too).
    pub children: Refs,
    /// What counters have for streams that wait.
    pub streams: Streams,
}

impl Deref for Shared {
    type Target = Runtime<Links>;
    #[inline(always)]
    fn deref(&self) -> &Runtime<Links> {
        &self.runtime
    }
}

impl runtime::Host for Shared {
    type Link = Links;
    fn runtime(&self) -> &Runtime<Links> {
        &self.runtime
    }
}
