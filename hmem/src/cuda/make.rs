//! Memory of a device that is made here, for other processes to map.
//!
//! [`Made`] is made by hand (cuMemCreate), since what goes by a descriptor is counted: the memory is there as
//! long as this process or another has it mapped, and is given back when the last of them has let go, also by
//! its end.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::api::{
    ACCESS_READ_WRITE, AccessDesc, AllocationProp, Api, Error, HANDLE_POSIX_FD, LOCATION_DEVICE, NOT_FOUND,
    loaded,
};
use super::info::info;
use super::stream::{self, Entered, INVALID_CONTEXT};
use crate::share::{Export, HandleType, nameless};

/// `CUDA_ERROR_OUT_OF_MEMORY`, `CUDA_ERROR_INVALID_DEVICE`.
const OUT_OF_MEMORY: i32 = 2;
const INVALID_DEVICE: i32 = 101;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`, `CU_MEM_ALLOC_GRANULARITY_MINIMUM`.
const PINNED: u32 = 1;
const MINIMUM: u32 = 0;

/// The number of a device of which this process has a context: `wanted`, or that of the calling thread's
/// context, or of any. An error is why there is none. To be called after [`crate::cuda::find_driver`].
pub fn device(wanted: Option<c_int>) -> Result<c_int, Error> {
    let api = loaded().ok_or(Error(NOT_FOUND))?;
    let Some(number) = wanted else {
        let ctx = stream::any(api).ok_or(Error(INVALID_CONTEXT))?;
        return Entered::new(api, ctx)?.device();
    };
    let mut count = 0;
    api.device_count(&mut count)?;
    if !(0..count).contains(&number) {
        return Err(Error(INVALID_DEVICE));
    }
    context(api, number).map(|_| number)
}

/// A context of the device: the calling thread's if it is one, else the primary one if that is active.
fn context(api: &Api, device: c_int) -> Result<usize, Error> {
    let own = stream::any(api).filter(|ctx| {
        Entered::new(api, *ctx).and_then(|entered| entered.device()).is_ok_and(|of| of == device)
    });
    own.or_else(|| stream::primary(api, device)).ok_or(Error(INVALID_CONTEXT))
}

/// Memory of a device, mapped in this process until it is dropped. Nothing is known of what is in there.
#[derive(Debug)]
pub struct Made {
    export: Export,
    fd: OwnedFd,
    device: c_int,
    ctx: usize,
}

impl Made {
    /// At least `len` bytes of the device with this number, of which the process has a context ([`device`]).
    pub fn new(device: c_int, len: usize) -> Result<Made, Error> {
        let api = loaded().ok_or(Error(NOT_FOUND))?;
        let ctx = context(api, device)?;
        let _entered = Entered::new(api, ctx)?;
        let prop = AllocationProp {
            kind: PINNED,
            handle_types: HANDLE_POSIX_FD,
            location: LOCATION_DEVICE,
            device,
            win32: 0,
            flags: 0,
        };
        let (mut granularity, mut handle) = (0, 0);
        let uuid = stream::uuid_of(api, device)?;
        api.mem_granularity(&mut granularity, &prop, MINIMUM)?;
        let len = len.max(1).checked_next_multiple_of(granularity.max(1)).ok_or(Error(OUT_OF_MEMORY))?;
        api.mem_create(&mut handle, len, &prop, 0)?;
        let made = map(api, handle, device, len);
        // The mapping and the descriptor, if they are there, keep it.
        let _ = api.mem_release(handle);
        let (at, fd) = made?;
        let export = Export {
            handle_type: HandleType::Descriptor,
            // Address and descriptor may be those of earlier memory that an importer has mapped.
            id: nameless(),
            base: at,
            len: len as u64,
            fd: fd.as_raw_fd(),
            device: uuid,
            token: [0; 64],
        };
        Ok(Made { export, fd, device, ctx })
    }

    /// Where it is in this process.
    pub fn addr(&self) -> usize {
        self.export.base as usize
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.export.len as usize
    }

    /// The device's number in this process.
    pub fn device(&self) -> c_int {
        self.device
    }

    /// Its description, by which another process opens it, with a copy of [`Made::fd`].
    pub fn export(&self) -> Export {
        self.export
    }

    /// What another process opens it by ([`crate::share::Passed`]).
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Memory as cudaMalloc makes it, beside other memory, until it is dropped: others need no permission to
/// fetch a descriptor of it.
pub(super) struct Plain {
    at: u64,
    number: u64,
    ctx: usize,
}

impl Plain {
    /// `len` bytes in the context that `near` is of.
    pub(super) fn new(near: usize, len: usize) -> Result<Plain, Error> {
        let api = loaded().ok_or(Error(NOT_FOUND))?;
        let of = info(near).ok_or(Error(NOT_FOUND))?;
        Plain::in_context(api, stream::context_of(api, &of)?, len)
    }

    /// `len` bytes in the calling thread's context, or in one of that device's.
    pub(super) fn for_kernels(device: Option<c_int>, len: usize) -> Result<Plain, Error> {
        let api = loaded().ok_or(Error(NOT_FOUND))?;
        let ctx = match device {
            Some(device) => context(api, device)?,
            None => Some(stream::current(api)).filter(|c| *c != 0).ok_or(Error(INVALID_CONTEXT))?,
        };
        Plain::in_context(api, ctx, len)
    }

    fn in_context(api: &Api, ctx: usize, len: usize) -> Result<Plain, Error> {
        let _entered = Entered::new(api, ctx)?;
        let mut at = 0;
        api.mem_alloc(&mut at, len)?;
        let mut made = Plain { at, number: 0, ctx };
        // Without a number it would not be known from what comes after it.
        made.number = info(at as usize).map(|i| i.id).filter(|id| *id != 0).ok_or(Error(NOT_FOUND))?;
        Ok(made)
    }

    pub(super) fn addr(&self) -> usize {
        self.at as usize
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        let Some(api) = loaded() else { return };
        // It may have gone with its context, and other memory be there.
        let is_still = self.number == 0 || info(self.at as usize).is_some_and(|i| i.id == self.number);
        if let (true, Ok(_entered)) = (is_still, Entered::new(api, self.ctx)) {
            let _ = api.mem_free(self.at);
        }
    }
}

/// Maps what a handle stands for, for its device, and makes a descriptor of it.
fn map(api: &Api, handle: u64, device: c_int, len: usize) -> Result<(u64, OwnedFd), Error> {
    let mut fd = -1;
    api.mem_export(&mut fd, handle, HANDLE_POSIX_FD, 0)?;
    // SAFETY: the driver has just opened it, for this call alone.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut at = 0;
    api.mem_reserve(&mut at, len, 0, 0, 0)?;
    let desc = AccessDesc { kind: LOCATION_DEVICE, device, flags: ACCESS_READ_WRITE };
    let mapped = api.mem_map(at, len, 0, handle, 0).and_then(|()| {
        api.mem_access(at, len, &desc, 1).inspect_err(|_| {
            let _ = api.mem_unmap(at, len);
        })
    });
    match mapped {
        Ok(()) => Ok((at, fd)),
        Err(e) => {
            let _ = api.mem_unreserve(at, len);
            Err(e)
        }
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let Some(api) = loaded() else { return };
        // Should the context be gone, there is no need of one.
        let _entered = Entered::new(api, self.ctx);
        let (at, len) = (self.export.base, self.len());
        let _ = api.mem_unmap(at, len).and_then(|()| api.mem_unreserve(at, len));
    }
}
