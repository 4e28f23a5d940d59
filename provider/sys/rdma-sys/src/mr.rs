//! Protection domains, and memory registered in them.

use core::ffi::{c_int, c_void};
use core::ptr::NonNull;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::{fmt, fs};

use crate::{
    Context, Error, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_MW_BIND, IBV_ACCESS_ON_DEMAND,
    IBV_ACCESS_OPTIONAL_FIRST, IBV_ACCESS_RELAXED_ORDERING, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE, ibv_mr, ibv_pd,
};

/// Where the kernel lists the clients that know memory of other devices, and the module of one that older
/// kernels do not list.
pub const PEER_MEMORY: &str = "/sys/kernel/mm/memory_peers";
const PEERMEM: &str = "/sys/module/nvidia_peermem";

/// Whether the kernel has a client that knows memory of other devices by its address; `clients`: where it
/// lists them, [`PEER_MEMORY`].
pub fn has_peer_memory(clients: &Path) -> bool {
    let is_listed = fs::read_dir(clients).is_ok_and(|mut all| all.next().is_some());
    is_listed || fs::metadata(PEERMEM).is_ok()
}

struct PdInner {
    raw: NonNull<ibv_pd>,
    context: Context,
}

// SAFETY: libibverbs' calls may be made from any thread.
unsafe impl Send for PdInner {}
// SAFETY: as above.
unsafe impl Sync for PdInner {}

impl Drop for PdInner {
    fn drop(&mut self) {
        // SAFETY: allocated by this library, and all objects made of it are gone: each holds this.
        if unsafe { (self.context.functions().ibv_dealloc_pd)(self.raw.as_ptr()) } != 0 {
            core::mem::forget(self.context.clone());
        }
    }
}

/// A protection domain. Clones are the same one.
#[derive(Clone)]
pub struct Pd(Arc<PdInner>);

/// What a registration lets the device and peers do. It may always read locally.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Access(u32);

impl Access {
    /// The device reads, as for the source of a send.
    pub const LOCAL_READ: Access = Access(0);
    /// The device writes: receives, and what reads and atomics return.
    pub const LOCAL_WRITE: Access = Access(IBV_ACCESS_LOCAL_WRITE);
    /// Peers read.
    pub const REMOTE_READ: Access = Access(IBV_ACCESS_REMOTE_READ);
    /// Peers write, which includes that the device does.
    pub const REMOTE_WRITE: Access = Access(IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE);
    /// Peers use atomics, which includes that the device writes.
    pub const REMOTE_ATOMIC: Access = Access(IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_LOCAL_WRITE);
    /// Peers access parts of it by memory windows ([`crate::Mw`]).
    pub const WINDOWS: Access = Access(IBV_ACCESS_MW_BIND);
    /// Pages are not pinned: the device faults them in.
    pub const ON_DEMAND: Access = Access(IBV_ACCESS_ON_DEMAND);
    /// Writes may become visible in another order. A kernel or device without it ignores it.
    pub const RELAXED_ORDERING: Access = Access(IBV_ACCESS_RELAXED_ORDERING);

    /// Both.
    pub const fn and(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }

    /// `enum ibv_access_flags`.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Without the flags that a kernel may ignore.
    fn required(self) -> c_int {
        // Below 1 << 20.
        (self.0 & (IBV_ACCESS_OPTIONAL_FIRST - 1)) as c_int
    }

    fn has_optional(self) -> bool {
        self.0 >= IBV_ACCESS_OPTIONAL_FIRST
    }
}

/// A part of a dma-buf.
#[derive(Clone, Copy, Debug)]
pub struct Dmabuf<'a> {
    /// The dma-buf.
    pub fd: BorrowedFd<'a>,
    /// The byte of the dma-buf at which the part begins.
    pub offset: u64,
    /// Bytes of the part.
    pub len: usize,
    /// The address that work requests and peers name its first byte by. It and the offset agree below the
    /// page.
    pub iova: u64,
}

impl Pd {
    /// A protection domain of the device.
    pub fn new(context: &Context) -> Result<Pd, Error> {
        // SAFETY: an open context.
        let raw = unsafe { (context.functions().ibv_alloc_pd)(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_alloc_pd"))?;
        Ok(Pd(Arc::new(PdInner { raw, context: context.clone() })))
    }

    pub(crate) fn raw(&self) -> *mut ibv_pd {
        self.0.raw.as_ptr()
    }

    /// The device.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Registers `len` bytes at this address. ENOMEM: the limit of locked memory (ulimit -l), or the device
    /// has no more room. EFAULT: not mapped, or of a device whose memory the kernel does not know.
    ///
    /// # Safety
    /// Until the [`Mr`] is gone, the memory is mapped, and what holds it expects that the device and, as
    /// far as `access` says, peers read and write it. On demand, and where peers do not, both are needed
    /// from the posting of each request that names it until that has completed.
    pub unsafe fn register(&self, address: *mut c_void, len: usize, access: Access) -> Result<Mr, Error> {
        let functions = self.context().functions();
        let (call, raw) = match functions.reg_mr_iova2 {
            Some(register) if access.has_optional() => {
                // SAFETY: a domain of this library; the caller's promise for the memory.
                let raw = unsafe { register(self.raw(), address, len, address as u64, access.0) };
                ("ibv_reg_mr_iova2", raw)
            }
            _ => {
                // SAFETY: as above.
                let raw = unsafe { (functions.ibv_reg_mr)(self.raw(), address, len, access.required()) };
                ("ibv_reg_mr", raw)
            }
        };
        self.registered(call, raw)
    }

    /// Registers a part of a dma-buf. Without the library's function the error is [`Error::Missing`]; where
    /// the driver takes none, EOPNOTSUPP; [`Error::Invalid`] where offset and iova differ below the page.
    ///
    /// # Safety
    /// Until the [`Mr`] is gone, what holds the memory of the dma-buf expects that the device and, as far
    /// as `access` says, peers read and write it.
    pub unsafe fn register_dmabuf(&self, part: Dmabuf<'_>, access: Access) -> Result<Mr, Error> {
        const CALL: &str = "ibv_reg_dmabuf_mr";
        let register = self.context().functions().reg_dmabuf_mr.ok_or(Error::Missing(CALL))?;
        if part.offset % 4096 != part.iova % 4096 {
            let why = "offset and iova must be equal below the page: give an iova that is";
            return Err(Error::Invalid { call: CALL, why });
        }
        let Dmabuf { fd, offset, len, iova } = part;
        // The optional flags are this call's too: it has no variant for them.
        let access = access.0 as c_int;
        // SAFETY: a domain of this library, and an open descriptor; the caller's promise for the memory.
        self.registered(CALL, unsafe { register(self.raw(), offset, len, iova, fd.as_raw_fd(), access) })
    }

    fn registered(&self, call: &'static str, raw: *mut ibv_mr) -> Result<Mr, Error> {
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(call))?;
        Ok(Mr { raw, pd: self.clone() })
    }
}

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pd").field(self.context()).finish()
    }
}

/// A registration, which ends when this is dropped.
pub struct Mr {
    raw: NonNull<ibv_mr>,
    pd: Pd,
}

// SAFETY: libibverbs' calls may be made from any thread, and the fields are constant.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

impl Mr {
    fn fields(&self) -> &ibv_mr {
        // SAFETY: constant until it is deregistered.
        unsafe { self.raw.as_ref() }
    }

    pub(crate) fn raw(&self) -> *mut ibv_mr {
        self.raw.as_ptr()
    }

    /// For work requests of this process.
    pub fn lkey(&self) -> u32 {
        self.fields().lkey
    }

    /// For peers.
    pub fn rkey(&self) -> u32 {
        self.fields().rkey
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.fields().length
    }

    /// Whether it has no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends the registration. Where that is refused the memory stays registered, and this is leaked.
    pub fn deregister(self) -> Result<(), Error> {
        let this = core::mem::ManuallyDrop::new(self);
        // SAFETY: of this library, and its one end. `this` is not used behind a success but for the domain,
        // which is read out once.
        unsafe {
            Error::check("ibv_dereg_mr", (this.pd.context().functions().ibv_dereg_mr)(this.raw.as_ptr()))?;
            drop(core::ptr::read(&raw const this.pd));
        }
        Ok(())
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: of this library, and its one end.
        if unsafe { (self.pd.context().functions().ibv_dereg_mr)(self.raw.as_ptr()) } != 0 {
            core::mem::forget(self.pd.clone());
        }
    }
}

impl fmt::Debug for Mr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ibv_mr { addr, length, lkey, rkey, .. } = self.fields();
        write!(f, "Mr({addr:p}+{length}, lkey {lkey:#x}, rkey {rkey:#x})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_writers_imply_local_write() {
        for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
            assert_eq!(access.bits() & IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_LOCAL_WRITE);
        }
        assert_eq!(Access::REMOTE_READ.bits() & IBV_ACCESS_LOCAL_WRITE, 0);
    }

    #[test]
    fn optional_flags_are_left_out_where_they_would_be_refused() {
        let access = Access::REMOTE_READ.and(Access::RELAXED_ORDERING);
        assert!(access.has_optional() && !Access::REMOTE_READ.has_optional());
        assert_eq!(access.required(), Access::REMOTE_READ.bits() as c_int);
    }
}
