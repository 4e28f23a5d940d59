//! What a kind of memory is to the rest: the trait that each one implements to be in the [`crate::registry`].
//!
//! Its calls are those of PeerDirect's peer memory client (Daoud and Romanovsky, OFA 2017), for user
//! space, where "the peer that does DMA" is another process of this host or a device that takes a
//! dma-buf:
//!
//! | the client's callback | here |
//! |---|---|
//! | acquire, release | [`Memory::acquire`], which remembers nothing that would have to be released |
//! | get_pages, put_pages | [`Memory::get_pages`]; dropping what it returns |
//! | dma_map | [`Handles::export_ipc`] for another process, [`Handles::export_dmabuf`] for a device |
//! | dma_unmap | the end of the allocation, which closes what these keep open |
//! | invalidate | called by a [`crate::client`]; the other kinds find replaced allocations by their number |
//!
//! Addresses are of this process, unless a text says otherwise, and lengths are in bytes. An [`Error`] is a
//! code of the kind's own interface, and has the errno nearest to it; a call that a kind does not have is
//! EOPNOTSUPP ([`Error::UNSUPPORTED`]).

use std::any::Any;
use std::os::fd::OwnedFd;

use crate::error::Error;
use crate::kind::Kind;
use crate::pending::{Part, PendingCopy};
use crate::share::{Export, Mapped, Opened};

/// Keeps memory as it was when it was registered, until it is dropped.
pub type Pages = Box<dyn Any + Send + Sync>;

/// Memory of a device that was made here. It goes back when it is dropped, unless it is gone by then.
pub struct Exportable {
    /// First byte.
    pub addr: usize,
    /// Its number ([`Memory::number`]), by which it is known to be still there.
    pub number: u64,
    pub(crate) _keep: Pages,
}

impl std::fmt::Debug for Exportable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Exportable({:#x}, {})", self.addr, self.number)
    }
}

/// When the device of some memory sees what an adapter has written there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterWrites {
    /// When the processor knows that it was written.
    Seen,
    /// When it was flushed after that ([`Memory::flush_adapter_writes`]).
    Flushed,
    /// That is not known.
    Unknown,
}

/// A kind of memory: what it is, and whose an address is.
pub trait Memory: Handles + Copies + Allocate + Sync {
    /// Which one.
    fn kind(&self) -> Kind;

    /// Whether what it needs is in this process, of which it loads nothing. Asked until it has been found.
    fn find(&self) -> bool;

    /// What there is of it, for people; in `Err`, why there is none.
    fn describe(&self) -> Result<String, String>;

    /// What its interface means by a code.
    fn error(&self, code: i32) -> Error {
        Error::os(code)
    }

    /// Whether memory of this kind is at `addr`. The `len` bytes from there on are to be used.
    fn acquire(&self, addr: usize, len: usize) -> bool;

    /// The same for a registration: what it has to be asked once where it may not be asked later.
    fn acquire_to_register(&self, addr: usize, len: usize) -> bool {
        self.acquire(addr, len)
    }

    /// Makes sure that `addr..addr+len` can be read, and with `write` written, and stays what it is for as
    /// long as what is returned lives.
    fn get_pages(&self, addr: usize, len: usize, write: bool) -> Result<Pages, Error> {
        let _ = (addr, len, write);
        Ok(Box::new(()))
    }

    /// The number of the allocation that `addr` is in, if no other ever has it: that of its handle. Quicker
    /// than to ask for the handle.
    fn number(&self, addr: usize) -> Option<u64> {
        let _ = addr;
        None
    }

    /// The device that `addr` is on, by a name that all processes of the host have for it, where processes
    /// have that device in turns. `None` where it is not known, where the memory moves between devices and
    /// the host, and where the device runs the copies of several processes at once.
    fn device_in_turns(&self, addr: usize) -> Option<[u8; 16]> {
        let _ = addr;
        None
    }

    /// The device that `addr..addr+len` is on as its interface numbers devices: the driver's number, 0 where
    /// there is one alone, and the device's there. For memory that an adapter is to access from now on: what
    /// the program has done to it by synchronous calls is there then. `None` where an adapter had better not
    /// access it, since it moves, or is on several devices, or since that takes calls which are not to be
    /// made now.
    fn to_adapter(&self, addr: usize, len: usize) -> Option<(u32, u32)> {
        let _ = (addr, len);
        None
    }

    /// When the device that `addr` is on sees what an adapter has written there.
    fn adapter_writes(&self, addr: usize) -> AdapterWrites {
        let _ = addr;
        AdapterWrites::Unknown
    }

    /// The device that the calling thread uses now, as it is called on the PCI bus: `0000:1b:00.0`. `None`
    /// where it uses none.
    fn current_pci(&self) -> Option<String> {
        None
    }

    /// Has the device that `addr` is on see what adapters have written to its memory before the call.
    fn flush_adapter_writes(&self, addr: usize) -> Result<(), Error> {
        let _ = addr;
        Err(Error::UNSUPPORTED)
    }
}

/// How other processes and devices reach memory, by handles for its allocations.
pub trait Handles {
    /// How another process reaches `addr..addr+len`: a handle for each allocation, in order. More than `most`
    /// allocations, and a byte that is in none, are an error.
    fn export_ipc(&self, addr: usize, len: usize, most: usize) -> Result<Vec<Export>, Error> {
        let _ = (addr, len, most);
        Err(Error::UNSUPPORTED)
    }

    /// A dma-buf for a device, and the byte of it at which `addr` is. With `pcie`, one that is sure to be
    /// reachable over PCIe.
    fn export_dmabuf(&self, addr: usize, len: usize, pcie: bool) -> Result<(OwnedFd, u64), Error> {
        let _ = (addr, len, pcie);
        Err(Error::UNSUPPORTED)
    }

    /// Where a copy is to be done that has `export` on one side and `local` on the other (0: none in
    /// particular). A mapping is found by this value.
    fn context(&self, export: &Export, local: usize) -> Result<usize, Error> {
        let _ = (export, local);
        Ok(0)
    }

    /// A number of what [`Handles::context`] named. It changes when that is replaced under the same name:
    /// mappings made for the former are gone.
    fn place_id(&self, ctx: usize) -> u64 {
        let _ = ctx;
        0
    }

    /// Maps what the process `pid` exported (`owner` differs between processes that had the same pid), for
    /// use in `ctx`. Nothing in `export` is trusted.
    fn import(&self, pid: i32, owner: u64, export: &Export, ctx: usize) -> Result<Mapped, Error> {
        let _ = (pid, owner, export, ctx);
        Err(Error::UNSUPPORTED)
    }

    /// That process is gone.
    fn forget(&self, owner: u64) {
        let _ = owner;
    }

    /// Whether this process's own memory still is what it exported.
    fn is_still(&self, export: &Export) -> bool {
        let _ = export;
        false
    }
}

/// How memory is copied, and host memory page-locked for that.
pub trait Copies {
    /// Copies `len` bytes between two addresses of this kind, or one and host memory, and waits for it.
    fn copy_now(&self, dst: usize, src: usize, len: usize) -> Result<(), Error>;

    /// Page-locks host memory, so that its devices copy from and to there without a copy in between.
    ///
    /// # Safety
    /// `addr..addr+len` is mapped, and stays so for longer than what is returned.
    unsafe fn lock_host(&self, addr: usize, len: usize) -> Option<Pages> {
        let _ = (addr, len);
        None
    }

    /// Whether host memory at `addr`, which was page-locked, still is: that ends with the context it was done
    /// in.
    fn is_host_locked(&self, addr: usize) -> bool {
        let _ = addr;
        true
    }

    /// Starts a copy. `host`: some of the memory may be the host's.
    ///
    /// # Safety
    /// As of [`crate::pending::start`].
    unsafe fn start(
        &self,
        parts: &[Part],
        keep: Vec<Opened>,
        host: bool,
    ) -> Result<Box<dyn PendingCopy>, Error> {
        let _ = (parts, keep, host);
        Err(Error::UNSUPPORTED)
    }

    /// Starts a copy to host memory alone, in which the processor may have a part.
    ///
    /// # Safety
    /// As of [`crate::pending::start`], and the processor may write where the parts go to.
    unsafe fn start_to_host(&self, parts: &[Part], keep: Vec<Opened>) -> Result<Box<dyn PendingCopy>, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.start(parts, keep, true) }
    }
}

/// How memory is made where other processes, or kernels, reach it.
pub trait Allocate {
    /// Which of its places (devices, contexts) `addr` is in, if memory can be made there that other processes
    /// reach.
    fn place(&self, addr: usize) -> Option<usize> {
        let _ = addr;
        None
    }

    /// Makes `len` bytes that other processes reach ([`Handles::export_ipc`]) in the place that `near` is in.
    fn make_exportable(&self, near: usize, len: usize) -> Result<Exportable, Error> {
        let _ = (near, len);
        Err(Error::UNSUPPORTED)
    }

    /// Makes `len` bytes, all 0, in the calling thread's context, or in one of the device with that number:
    /// for kernels of that device.
    fn make_for_kernels(&self, device: Option<i32>, len: usize) -> Result<Exportable, Error> {
        let _ = (device, len);
        Err(Error::UNSUPPORTED)
    }
}

impl std::fmt::Debug for dyn Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Memory({:?})", self.kind())
    }
}
