//! Registered memory: what the places of operations are.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};
use std::sync::{Arc, PoisonError, RwLock};

use crate::error::Error;
use crate::place::{Place, TargetId};

/// Memory as the CPU accesses it. Accesses are atomic, and have no order among each other but by
/// [`Memory::fence`]: what relies on an order has a fence in its operations.
pub trait Memory {
    /// Whether the CPU can access so many bytes there, aligned to `align`; in `Err`, why not.
    fn check(&self, place: Place, len: u64, align: u64) -> Result<(), Error>;

    /// Loads a word of 4 bytes.
    fn load32(&self, at: Place) -> Result<u32, Error>;

    /// Stores one.
    fn store32(&self, to: Place, value: u32) -> Result<(), Error>;

    /// Stores 8 bytes.
    fn store64(&self, to: Place, value: u64) -> Result<(), Error>;

    /// Adds to a word of 4 bytes.
    fn add32(&self, to: Place, value: u32) -> Result<(), Error>;

    /// Orders all accesses before it and all after it.
    fn fence(&self);
}

impl<M: Memory + ?Sized> Memory for Arc<M> {
    fn check(&self, place: Place, len: u64, align: u64) -> Result<(), Error> {
        (**self).check(place, len, align)
    }

    fn load32(&self, at: Place) -> Result<u32, Error> {
        (**self).load32(at)
    }

    fn store32(&self, to: Place, value: u32) -> Result<(), Error> {
        (**self).store32(to, value)
    }

    fn store64(&self, to: Place, value: u64) -> Result<(), Error> {
        (**self).store64(to, value)
    }

    fn add32(&self, to: Place, value: u32) -> Result<(), Error> {
        (**self).add32(to, value)
    }

    fn fence(&self) {
        (**self).fence();
    }
}

/// What accesses registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The CPU, and devices.
    Cpu,
    /// A device alone: memory of its own that is not mapped for the CPU.
    Device,
}

#[derive(Clone, Copy, Debug)]
struct Region {
    addr: u64,
    len: u64,
    reach: Reach,
}

/// Memory that is registered for bytecode, by its number. A number is never used again.
#[derive(Debug, Default)]
pub struct Targets(RwLock<Vec<Option<Region>>>);

impl Targets {
    /// None yet.
    pub fn new() -> Targets {
        Targets::default()
    }

    /// Registers memory, which the device finds at the same address as the CPU.
    ///
    /// # Safety
    /// Until it is unregistered the memory is there for what `reach` says, to be read and written, and in
    /// this process all accesses of it by the CPU are atomic.
    pub unsafe fn register(&self, addr: usize, len: usize, reach: Reach) -> Result<TargetId, Error> {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if addr == 0 || len == 0 || addr.checked_add(len).is_none() {
            return Err(Error::Setup("no memory can be at this address: pass an address and a length"));
        }
        let id = u32::try_from(all.len()).map_err(|_| Error::Setup("too many registrations were made"))?;
        all.push(Some(Region { addr: addr as u64, len: len as u64, reach }));
        Ok(TargetId(id))
    }

    /// Ends a registration. Lists that name it are refused from now on; those that a device has queued are
    /// to be over.
    pub fn unregister(&self, id: TargetId) -> Result<(), Error> {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all.get_mut(id.0 as usize).and_then(Option::take).map(drop).ok_or(Error::NoTarget(id))
    }

    /// The address of `len` bytes that are aligned to `align`.
    pub fn resolve(&self, place: Place, len: u64, align: u64) -> Result<u64, Error> {
        self.region(place, len, align).map(|(addr, _)| addr)
    }

    fn region(&self, place: Place, len: u64, align: u64) -> Result<(u64, Reach), Error> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let found = all.get(place.target.0 as usize).copied().flatten();
        let region = found.ok_or(Error::NoTarget(place.target))?;
        let inside = place.offset.checked_add(len).is_some_and(|end| end <= region.len);
        let addr = region.addr.wrapping_add(place.offset);
        if inside && addr % align == 0 {
            Ok((addr, region.reach))
        } else {
            Err(Error::OutOfPlace(place, len))
        }
    }

    /// Has `with` access a place that the CPU reaches.
    fn access<T, R>(&self, place: Place, with: impl FnOnce(*mut T) -> R) -> Result<R, Error> {
        let size = size_of::<T>() as u64;
        self.check(place, size, size)?;
        let addr = self.resolve(place, size, size)?;
        Ok(with(std::ptr::with_exposed_provenance_mut(addr as usize)))
    }
}

impl Memory for Targets {
    fn check(&self, place: Place, len: u64, align: u64) -> Result<(), Error> {
        match self.region(place, len, align)? {
            (_, Reach::Cpu) => Ok(()),
            (_, Reach::Device) => Err(Error::NotForCpu(place.target)),
        }
    }

    fn load32(&self, at: Place) -> Result<u32, Error> {
        // SAFETY: `access` checked that the word is inside and aligned; what registered it promised that it
        // is there and that accesses are atomic.
        self.access(at, |p| unsafe { AtomicU32::from_ptr(p) }.load(Relaxed))
    }

    fn store32(&self, to: Place, value: u32) -> Result<(), Error> {
        // SAFETY: as in load32.
        self.access(to, |p| unsafe { AtomicU32::from_ptr(p) }.store(value, Relaxed))
    }

    fn store64(&self, to: Place, value: u64) -> Result<(), Error> {
        // SAFETY: as in load32, of 8 bytes.
        self.access(to, |p| unsafe { AtomicU64::from_ptr(p) }.store(value, Relaxed))
    }

    fn add32(&self, to: Place, value: u32) -> Result<(), Error> {
        // SAFETY: as in load32.
        self.access(to, |p| unsafe { AtomicU32::from_ptr(p) }.fetch_add(value, Relaxed)).map(drop)
    }

    fn fence(&self) {
        fence(SeqCst);
    }
}
