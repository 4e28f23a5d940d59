//! One endpoint with everything it needs.

use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::time::Duration;

use fabric_client::{Object, Objects, Queue, made, step};
use libfabric_sys as sys;
use serde::{Deserialize, Serialize};

use super::context::{AtomicKind, Contexts, Counts};
use super::{Error, Info, Library, Region};

/// What a peer has to know of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remote {
    /// As from `fi_getname`.
    pub name: Vec<u8>,
    /// Address of the start of the region in RMA operations.
    pub base: u64,
    /// Bytes of the region.
    pub len: usize,
    /// Its key, if it is registered for RMA.
    pub key: u64,
}

/// An endpoint, the memory its operations use, and the peers it talks to.
// The order of the fields is that in which they are closed.
#[derive(Debug)]
pub struct Endpoint {
    // Before the endpoint, to which it is bound with FI_MR_ENDPOINT.
    mr: Option<Object<sys::fid_mr>>,
    pub(super) objects: Objects,
    pub(super) library: Arc<Library>,
    // Operations that never completed may still name these: they outlive the endpoint.
    pub(super) region: Region,
    pub(super) contexts: Contexts,
    pub(super) desc: *mut libc::c_void,
    pub(super) peer: sys::fi_addr_t,
    /// All peers of one of many.
    pub(super) peers: Vec<sys::fi_addr_t>,
    pub(super) remote: Remote,
    pub(super) inject_size: usize,
    pub(super) timeout: Duration,
    /// Two ends on one core: an idle one must let the other run.
    pub(super) shares_core: bool,
    pub(super) counts: Counts,
    mr_mode: libc::c_int,
}

impl Endpoint {
    /// Opens and enables an endpoint. `slots` operations can be in flight at a time; `region` is
    /// the memory they may use.
    pub fn open(
        info: &Info,
        region: Region,
        slots: usize,
        timeout: Duration,
        shares_core: bool,
    ) -> Result<Endpoint, Error> {
        let library = info.library().clone();
        let queue = Queue { entries: 4 * slots.max(256), format: sys::FI_CQ_FORMAT_DATA, waits: false };
        // SAFETY: an entry of a list of this library's.
        let objects = unsafe { Objects::open(library.core(), info.as_ptr(), queue)? };
        step(library.core(), "fi_enable", objects.ep.enable())?;
        let mut endpoint = Endpoint {
            mr: None,
            objects,
            library,
            region,
            contexts: Contexts::new(slots),
            desc: null_mut(),
            peer: sys::FI_ADDR_UNSPEC,
            peers: Vec::new(),
            remote: Remote::default(),
            inject_size: info.inject_size(),
            timeout,
            shares_core,
            counts: Counts::default(),
            mr_mode: info.mr_mode(),
        };
        endpoint.register(info.caps())?;
        Ok(endpoint)
    }

    /// Registers the region if the provider wants that for local use, or if a peer may reach it.
    fn register(&mut self, caps: u64) -> Result<(), Error> {
        let local = self.mr_mode & sys::FI_MR_LOCAL != 0;
        let remote = caps & (sys::FI_RMA | sys::FI_ATOMIC) != 0;
        if !local && !remote {
            return Ok(());
        }
        let mut access = 0;
        if caps & (sys::FI_MSG | sys::FI_TAGGED) != 0 {
            access |= sys::FI_SEND | sys::FI_RECV;
        }
        if remote {
            access |= sys::FI_READ | sys::FI_WRITE | sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE;
        }
        // SAFETY: the domain is open, so its table is valid; this slot was there in 1.0.
        let reg = unsafe { (*(*self.objects.domain.at()).mr).reg };
        let reg = self.library.have(reg, "mr_reg")?;
        // A key of our choice is ignored with FI_MR_PROV_KEY.
        let key = if self.mr_mode & sys::FI_MR_PROV_KEY != 0 { 0 } else { 0x5af };
        let all = super::Part { offset: 0, len: self.region.len() };
        let core = self.library.core();
        // SAFETY: fi_mr_reg makes a new object on success. The region outlives it: it is closed
        // first, by the order of the fields.
        let mr: Object<sys::fid_mr> = unsafe {
            let (fid, base, len) = (self.objects.domain.fid(), self.region.at(all), all.len);
            step(core, "fi_mr_reg", made(|at| reg(fid, base.cast(), len, access, 0, key, 0, at, null_mut())))?
        };
        if self.mr_mode & sys::FI_MR_ENDPOINT != 0 {
            step(core, "fi_mr_bind", mr.bind(&self.objects.ep, 0))?;
            step(core, "fi_mr_enable", mr.enable())?;
        }
        // SAFETY: the region is open and was enabled where that matters.
        let (desc, key) = unsafe { ((*mr.at()).mem_desc, (*mr.at()).key) };
        if local {
            self.desc = desc;
        }
        self.remote.key = key;
        self.mr = Some(mr);
        Ok(())
    }

    /// What the peer has to know.
    pub fn name(&self) -> Result<Remote, Error> {
        let name = step(self.library.core(), "fi_getname", self.objects.ep.name(512))?;
        let virt = self.mr_mode & sys::FI_MR_VIRT_ADDR != 0;
        Ok(Remote {
            name,
            base: if virt { self.region.address() } else { 0 },
            len: self.region.len(),
            key: self.remote.key,
        })
    }

    /// Makes `remote` the peer that operations go to.
    pub fn connect(&mut self, remote: Remote) -> Result<(), Error> {
        self.peer = self.insert(&remote)?;
        self.remote = remote;
        Ok(())
    }

    /// Makes these the peers that messages go to and come from, by their place in the list.
    pub fn connect_all(&mut self, all: Vec<Remote>) -> Result<(), Error> {
        self.peers = all.iter().map(|remote| self.insert(remote)).collect::<Result<_, _>>()?;
        Ok(())
    }

    fn insert(&self, remote: &Remote) -> Result<sys::fi_addr_t, Error> {
        // SAFETY: the vector is open, so its table is valid.
        let insert = unsafe { (*(*self.objects.av.at()).ops).insert };
        let insert = self.library.have(insert, "av_insert")?;
        // A provider reads as many bytes as its address format has, whatever the length was.
        let mut name = remote.name.clone();
        name.resize(name.len() + 64, 0);
        let mut place = sys::FI_ADDR_UNSPEC;
        // SAFETY: one address, in the format of this provider, and a place for one; with room for
        // longer ones behind it.
        let rc = unsafe { insert(self.objects.av.at(), name.as_ptr().cast(), 1, &mut place, 0, null_mut()) };
        if rc != 1 {
            return Err(Error::Failed(format!(
                "inserting the peer's address: {}",
                match rc {
                    ..0 => self.library.strerror(rc.into()),
                    _ => "it was not accepted".into(),
                }
            )));
        }
        Ok(place)
    }

    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Whether atomic `op` on one 64-bit number can be done: plain, fetching or comparing.
    pub fn atomic_valid(&self, kind: AtomicKind) -> Result<(), Error> {
        use AtomicKind::{Compare, Fetch, Plain};
        // SAFETY: the endpoint is open; the table was there in 1.0 but a provider without atomics
        // may leave it null.
        let ops = unsafe { (*self.objects.ep.at()).atomic };
        let ops =
            NonNull::new(ops).ok_or_else(|| Error::Unsupported("the provider has no atomics".into()))?;
        // SAFETY: the table is valid, and these slots were there in 1.0.
        let valid = unsafe {
            match kind {
                Plain => (*ops.as_ptr()).writevalid,
                Fetch => (*ops.as_ptr()).readwritevalid,
                Compare => (*ops.as_ptr()).compwritevalid,
            }
        };
        let valid = self.library.have(valid, "atomicvalid")?;
        let mut count = 0;
        // SAFETY: the endpoint is open and the place is ours.
        let rc = unsafe { valid(self.objects.ep.at(), sys::FI_UINT64, kind.op(), &mut count) };
        match rc {
            0 if count > 0 => Ok(()),
            _ => Err(Error::Unsupported("not on 64-bit integers with this provider".into())),
        }
    }
}
