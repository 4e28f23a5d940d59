//! Memory, registered as the provider wants it.

use std::ptr::null_mut;
use std::rc::Rc;

use fabric_client::Own;
use libfabric_sys as sys;

use super::super::pages::pages;
use super::open::{Domain, Opened, failed};
use crate::{Error, Memory};

/// Memory that the endpoint may use, and peers if it is for them.
#[derive(Debug)]
pub struct Registered {
    // Before the memory, which the adapter uses until this is closed, and the domain.
    mr: Option<Own<sys::fid_mr>>,
    pub memory: Memory,
    _domain: Rc<Domain>,
    /// What operations from and to it are given.
    pub desc: *mut libc::c_void,
    /// What peers have to know.
    pub key: u64,
    pub address: u64,
}

impl Registered {
    /// `key` is the one to choose where the provider lets the program choose.
    pub fn new(with: &Opened, len: usize, remote: bool, key: u64) -> Result<Registered, Error> {
        let memory = pages(len)?;
        let mode = with.limits.mr_mode;
        let _domain = with.domain.clone();
        let mut registered = Registered { mr: None, memory, _domain, desc: null_mut(), key: 0, address: 0 };
        let local = mode & sys::FI_MR_LOCAL != 0;
        if !local && !remote {
            return Ok(registered);
        }
        let mut access = sys::FI_SEND | sys::FI_RECV | sys::FI_READ | sys::FI_WRITE;
        if remote {
            access |= sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE;
        }
        // SAFETY: the domain is open, so its table is valid; this slot was there in 1.0.
        let reg = unsafe { (*(*with.domain.domain.as_ptr()).mr).reg };
        let reg = with.library.have(reg, "mr_reg").map_err(failed)?;
        let wanted = if mode & sys::FI_MR_PROV_KEY != 0 { 0 } else { key };
        // SAFETY: fi_mr_reg makes a new object on success. The memory outlives it: it is closed first, by the
        // order of the fields.
        let mr = unsafe {
            let (fid, base) = (with.domain.domain.fid(), registered.memory.address(0));
            Own::<sys::fid_mr>::open(&with.library, |place| {
                reg(fid, base.cast_const().cast(), len, access, 0, wanted, 0, place, null_mut())
            })
        };
        let mr = mr.map_err(failed)?;
        if mode & sys::FI_MR_ENDPOINT != 0 {
            mr.bind(&with.ep, 0, "the memory region").map_err(failed)?;
            mr.enable().map_err(failed)?;
        }
        // SAFETY: the region is open and was enabled where that matters.
        let (desc, key) = unsafe { ((*mr.as_ptr()).mem_desc, (*mr.as_ptr()).key) };
        if local {
            registered.desc = desc;
        }
        registered.key = key;
        registered.address = match mode & sys::FI_MR_VIRT_ADDR != 0 {
            true => registered.memory.address(0).addr() as u64,
            false => 0,
        };
        registered.mr = Some(mr);
        Ok(registered)
    }

    /// Closes the registration; the memory stays.
    pub fn deregister(&mut self) {
        self.mr = None;
    }

    /// The address of `len` bytes at `at`, if they are inside.
    pub fn place(&self, at: usize, len: usize) -> Result<*mut u8, Error> {
        match at <= self.memory.len() && len <= self.memory.len() - at {
            true => Ok(self.memory.address(at)),
            false => Err(Error::Invalid(format!(
                "{len} bytes at {at} are outside of a region of {}",
                self.memory.len()
            ))),
        }
    }
}
