//! Peer memory clients: a program's own kind of memory.

#![allow(non_camel_case_types, reason = "names of C")]

use std::ffi::CStr;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;

use c_abi::{guard, sized};
use hmem::client::{self, Client, Importer, Place, Registered, Segment};
use libc::{c_char, c_int, c_void};

/// strait_sg.kind: the CPU of this process may follow `addr`; no other process gets it.
pub const STRAIT_SG_CPU: u32 = 0;
/// strait_sg.kind: `fd` may be mapped, from byte `addr` on, here and by other processes of the same
/// user: a dma-buf, or a memfd with F_SEAL_SHRINK. It stays open until put_pages.
pub const STRAIT_SG_FD: u32 = 1;
/// strait_sg.kind: only the client's `copy` gets there.
pub const STRAIT_SG_OPAQUE: u32 = 2;

/// strait_importer.kind: a process of this host.
pub const STRAIT_IMPORTER_PROCESS: u32 = 0;
/// strait_importer.kind: an adapter, of a client with STRAIT_CLIENT_DEVICES alone. dma_map leaves what it
/// registers: pieces of STRAIT_SG_FD, which are of dma-bufs; of STRAIT_SG_CPU, whose address is registered;
/// or of STRAIT_SG_OPAQUE, for which export_dmabuf is called. An errno if it may not have the memory: after
/// -EOPNOTSUPP, -ENOSYS or -ENODEV the client's dma_map is called for no adapter any more.
pub const STRAIT_IMPORTER_DEVICE: u32 = 1;

/// strait_peer_memory_client.flags: adapters may have memory of this client, as its dma_map says of each
/// registration. A buffer then has up to two registrations at a time, one for each strait_importer.kind, each
/// with its own acquire and its own core_context.
pub const STRAIT_CLIENT_DEVICES: u64 = 1;

/// A piece of a client's memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct strait_sg {
    /// Bytes.
    pub len: u64,
    /// One of STRAIT_SG_.
    pub kind: u32,
    /// Of STRAIT_SG_FD.
    pub fd: i32,
    /// An address, or an offset in `fd`.
    pub addr: u64,
}

/// The pieces of a registration, in order and without a gap.
#[repr(C)]
#[derive(Debug)]
pub struct strait_sg_table {
    /// In: sizeof(struct strait_sg_table).
    pub size: usize,
    /// In: how many there is room for at `sg`. A client that needs more returns -ENOSPC from
    /// get_pages with the number in `count`, and is asked again (up to 256).
    pub room: u32,
    /// Out: how many there are.
    pub count: u32,
    /// The pieces.
    pub sg: *mut strait_sg,
}

/// What is to reach the memory.
#[repr(C)]
#[derive(Debug)]
pub struct strait_importer {
    /// sizeof(struct strait_importer).
    pub size: usize,
    /// One of STRAIT_IMPORTER_.
    pub kind: u32,
    /// 0.
    pub zero: u32,
}

/// A client: the callbacks of PeerDirect's struct peer_memory_client, for user space.
///
/// For each registration they come in this order: acquire, get_pages, dma_map, any number of copies,
/// dma_unmap, put_pages, release; what fails ends it with the opposites of what went before. Callbacks
/// for different registrations may come at once and from any thread. They may not call
/// strait_register_..., strait_unregister_... or strait_invalidate, which answer -EDEADLK there, nor wait
/// for a thread that is in one of these calls, nor call libfabric, whose operations call them with a
/// domain's lock held.
/// Those that return int return 0, or an errno below 0 (acquire also 1).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct strait_peer_memory_client {
    /// sizeof(struct strait_peer_memory_client).
    pub size: usize,
    /// For people: at most 64 characters are kept.
    pub name: *const c_char,
    /// Handed to acquire.
    pub arg: *mut c_void,
    /// Whether `addr` is this client's: 1, with *context set; 0 if not; an errno below 0 if it is but
    /// cannot be used now. Asked about buffers of every operation that are in no registration yet, so it
    /// should be quick; never about the heap that grows with brk(2) and the main thread's stack.
    pub acquire: Option<
        unsafe extern "C" fn(arg: *mut c_void, addr: u64, len: usize, context: *mut *mut c_void) -> c_int,
    >,
    /// Pins the memory and says where it is. `core_context` is what strait_invalidate takes; with
    /// STRAIT_CLIENT_DEVICES the same memory may have one for processes and one for adapters.
    pub get_pages: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            addr: u64,
            len: usize,
            write: c_int,
            sgt: *mut strait_sg_table,
            core_context: u64,
        ) -> c_int,
    >,
    /// Makes it reachable for that one; may change the pieces, not their number or lengths.
    pub dma_map: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            importer: *const strait_importer,
            sgt: *mut strait_sg_table,
        ) -> c_int,
    >,
    /// The opposite of dma_map.
    pub dma_unmap: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            importer: *const strait_importer,
            sgt: *mut strait_sg_table,
        ) -> c_int,
    >,
    /// The opposite of get_pages.
    pub put_pages: Option<unsafe extern "C" fn(context: *mut c_void, sgt: *mut strait_sg_table)>,
    /// The opposite of acquire.
    pub release: Option<unsafe extern "C" fn(context: *mut c_void)>,
    /// May be NULL. Copies between the memory and `host`, and returns when that is done. Without it,
    /// the pieces are read and written by the CPU.
    pub copy: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            addr: u64,
            host: *mut c_void,
            len: usize,
            to_host: c_int,
        ) -> c_int,
    >,
    /// May be NULL. A new dma-buf of the memory in *fd, which the caller closes, and where in it `addr`
    /// is in *offset.
    pub export_dmabuf: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            addr: u64,
            len: usize,
            fd: *mut c_int,
            offset: *mut u64,
        ) -> c_int,
    >,
    /// STRAIT_CLIENT_DEVICES, or 0. A `size` that ends before it is 0, too.
    pub flags: u64,
}

/// A client that is registered.
#[derive(Debug)]
pub struct strait_client {
    registered: Registered,
}

/// All of the first version, whose last field is `export_dmabuf`.
const LEAST: usize = std::mem::offset_of!(strait_peer_memory_client, flags);

const NONE: strait_peer_memory_client = strait_peer_memory_client {
    size: 0,
    name: ptr::null(),
    arg: ptr::null_mut(),
    acquire: None,
    get_pages: None,
    dma_map: None,
    dma_unmap: None,
    put_pages: None,
    release: None,
    copy: None,
    export_dmabuf: None,
    flags: 0,
};

/// Most pieces a registration may have.
const MOST: u32 = 256;

/// The program's callbacks as `hmem` calls them.
struct Callbacks {
    of: strait_peer_memory_client,
    name: String,
}

// SAFETY: the header demands callbacks that may be called from any thread.
unsafe impl Send for Callbacks {}
// SAFETY: the header demands callbacks that may be called from any thread.
unsafe impl Sync for Callbacks {}

/// What a callback answered.
fn answer(code: c_int) -> Result<(), i32> {
    match code {
        0 => Ok(()),
        bad @ ..0 => Err(bad.saturating_neg()),
        _ => Err(libc::EINVAL),
    }
}

fn to_c(s: &Segment) -> strait_sg {
    let (kind, fd, addr) = match s.place {
        Place::Cpu(at) => (STRAIT_SG_CPU, -1, at as u64),
        Place::File(fd, off) => (STRAIT_SG_FD, fd, off),
        Place::Opaque => (STRAIT_SG_OPAQUE, -1, 0),
    };
    strait_sg { len: s.len as u64, kind, fd, addr }
}

fn from_c(s: &strait_sg) -> Result<Segment, i32> {
    let place = match s.kind {
        STRAIT_SG_CPU => Place::Cpu(s.addr as usize),
        STRAIT_SG_FD => Place::File(s.fd, s.addr),
        STRAIT_SG_OPAQUE => Place::Opaque,
        _ => return Err(libc::EINVAL),
    };
    Ok(Segment { len: usize::try_from(s.len).map_err(|_| libc::EINVAL)?, place })
}

fn table(sg: &mut [strait_sg], count: u32) -> strait_sg_table {
    strait_sg_table { size: size_of::<strait_sg_table>(), room: sg.len() as u32, count, sg: sg.as_mut_ptr() }
}

fn importer(by: Importer) -> strait_importer {
    let kind = match by {
        Importer::Process => STRAIT_IMPORTER_PROCESS,
        Importer::Device => STRAIT_IMPORTER_DEVICE,
    };
    strait_importer { size: size_of::<strait_importer>(), kind, zero: 0 }
}

fn context(ctx: usize) -> *mut c_void {
    ptr::with_exposed_provenance_mut(ctx)
}

/// Callbacks that have to be there were seen to be when it was registered.
const HERE: &str = "a callback that was there";

impl Client for Callbacks {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn serves_devices(&self) -> bool {
        self.of.flags & STRAIT_CLIENT_DEVICES != 0
    }

    fn acquire(&self, addr: usize, len: usize) -> Result<Option<usize>, i32> {
        let mut context = ptr::null_mut();
        // SAFETY: the program's function, called as the header says.
        match unsafe { self.of.acquire.expect(HERE)(self.of.arg, addr as u64, len, &mut context) } {
            0 => Ok(None),
            1 => Ok(Some(context.expose_provenance())),
            bad @ ..0 => Err(bad.saturating_neg()),
            _ => Err(libc::EINVAL),
        }
    }

    fn get_pages(
        &self,
        ctx: usize,
        addr: usize,
        len: usize,
        write: bool,
        name: u64,
    ) -> Result<Vec<Segment>, i32> {
        let mut room = 16;
        loop {
            let mut sg = vec![strait_sg { len: 0, kind: 0, fd: -1, addr: 0 }; room as usize];
            let mut sgt = table(&mut sg, 0);
            let get = self.of.get_pages.expect(HERE);
            // SAFETY: the program's function, called as the header says; there is room for as many.
            let code = unsafe { get(context(ctx), addr as u64, len, write.into(), &mut sgt, name) };
            if code == -libc::ENOSPC && room < sgt.count && sgt.count <= MOST {
                room = sgt.count;
                continue;
            }
            answer(code)?;
            let pieces = sg.get(..sgt.count as usize).ok_or(libc::EINVAL);
            let segments = pieces.and_then(|p| p.iter().map(from_c).collect());
            if segments.is_err() {
                // It has pinned something all the same.
                sgt.count = sgt.count.min(room);
                // SAFETY: as above.
                unsafe { self.of.put_pages.expect(HERE)(context(ctx), &mut sgt) };
            }
            return segments;
        }
    }

    fn dma_map(&self, ctx: usize, by: Importer, segments: &mut Vec<Segment>) -> Result<(), i32> {
        let mut sg: Vec<strait_sg> = segments.iter().map(to_c).collect();
        let mut sgt = table(&mut sg, segments.len() as u32);
        // SAFETY: the program's function, called as the header says.
        answer(unsafe { self.of.dma_map.expect(HERE)(context(ctx), &importer(by), &mut sgt) })?;
        let mapped: Result<Vec<Segment>, i32> = sg.iter().map(from_c).collect();
        // The lengths are compared in `hmem`.
        *segments = mapped.inspect_err(|_| self.dma_unmap(ctx, by, segments))?;
        Ok(())
    }

    fn dma_unmap(&self, ctx: usize, by: Importer, segments: &[Segment]) {
        let mut sg: Vec<strait_sg> = segments.iter().map(to_c).collect();
        let mut sgt = table(&mut sg, segments.len() as u32);
        // What it answers changes nothing.
        // SAFETY: the program's function, called as the header says.
        let _ = unsafe { self.of.dma_unmap.expect(HERE)(context(ctx), &importer(by), &mut sgt) };
    }

    fn put_pages(&self, ctx: usize, segments: &[Segment]) {
        let mut sg: Vec<strait_sg> = segments.iter().map(to_c).collect();
        let mut sgt = table(&mut sg, segments.len() as u32);
        // SAFETY: the program's function, called as the header says.
        unsafe { self.of.put_pages.expect(HERE)(context(ctx), &mut sgt) }
    }

    fn release(&self, ctx: usize) {
        // SAFETY: the program's function, called as the header says.
        unsafe { self.of.release.expect(HERE)(context(ctx)) }
    }

    unsafe fn copy(
        &self,
        ctx: usize,
        addr: usize,
        host: *mut u8,
        len: usize,
        to_host: bool,
    ) -> Option<Result<(), i32>> {
        let copy = self.of.copy?;
        // SAFETY: the program's function, called as the header says; the caller's promise for `host`.
        Some(answer(unsafe { copy(context(ctx), addr as u64, host.cast(), len, to_host.into()) }))
    }

    fn export_dmabuf(&self, ctx: usize, addr: usize, len: usize) -> Result<(OwnedFd, u64), i32> {
        let export = self.of.export_dmabuf.ok_or(libc::EOPNOTSUPP)?;
        let (mut fd, mut off) = (-1, 0);
        // SAFETY: the program's function, called as the header says.
        answer(unsafe { export(context(ctx), addr as u64, len, &mut fd, &mut off) })?;
        if fd < 0 {
            return Err(libc::EBADF);
        }
        // SAFETY: it is the caller's to close, says the header.
        Ok((unsafe { OwnedFd::from_raw_fd(fd) }, off))
    }
}

/// Registers a client: from now on Strait's libraries in this process ask it about buffers, whether they
/// were loaded before or are later. The structure is copied; what it points to stays as it is until
/// the client is unregistered. The first registration of a process takes some milliseconds.
///
/// 0; -EINVAL: a callback that has to be there is not, or `size` is none; -ENOSYS: the structure has
/// fields set that this library is too old to know; -EDEADLK: called from a callback.
///
/// # Safety
/// As said of the structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_register_peer_memory_client(
    client: *const strait_peer_memory_client,
    registered: *mut *mut strait_client,
) -> c_int {
    guard(|| {
        // SAFETY: the program's promise.
        let of = unsafe { sized(client, LEAST, NONE)? };
        let there = of.acquire.is_some()
            && of.get_pages.is_some()
            && of.dma_map.is_some()
            && of.dma_unmap.is_some()
            && of.put_pages.is_some()
            && of.release.is_some();
        if registered.is_null() || of.name.is_null() || !there {
            return Err(libc::EINVAL);
        }
        if of.flags & !STRAIT_CLIENT_DEVICES != 0 {
            return Err(libc::ENOSYS);
        }
        // SAFETY: the program passes a string.
        let name = unsafe { CStr::from_ptr(of.name) }.to_string_lossy().chars().take(64).collect();
        let client = strait_client { registered: client::register(Box::new(Callbacks { of, name }))? };
        // SAFETY: the program has a place for it.
        unsafe { registered.write(Box::into_raw(Box::new(client))) };
        Ok(())
    })
}

/// Ends a registration of a client: what is in use of its memory is invalidated. When this returns, no
/// callback of the client runs in any thread, and none will: operations, evictions and invalidations of
/// other threads that are in one are waited for. `registered` is gone then, and no other thread may
/// begin a call with it.
///
/// The caller must hold no lock that a callback takes.
///
/// 0; -EINVAL; -EDEADLK: called from a callback, and the client stays registered.
///
/// # Safety
/// `registered` is NULL or came from strait_register_peer_memory_client, and was not unregistered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_unregister_peer_memory_client(registered: *mut strait_client) -> c_int {
    guard(|| {
        // SAFETY: the program's promise.
        let client = unsafe { registered.as_ref() }.ok_or(libc::EINVAL)?.registered;
        client.unregister()?;
        // SAFETY: the program's promise; now that it is unregistered there is no other reference.
        drop(unsafe { Box::from_raw(registered) });
        Ok(())
    })
}

/// The client takes memory away: the `core_context` that get_pages got is passed back
/// (dma_unmap, put_pages, release) before this returns, after copies in progress have ended.
/// Operations on the memory fail from then on with FI_EIO; a registration of it gives that, or
/// FI_ESTALE, even if other memory comes to the same address, until that registration is closed. A
/// transfer that another process has already begun from a mapping of `fd` reads what is in there.
///
/// With STRAIT_CLIENT_DEVICES, `core_context` of an adapter's registration: queue pairs with requests under
/// way that name it are put in error, with all else that is under way with those peers, and ibv_dereg_mr ends
/// each key before dma_unmap. A peer that uses its key later loses its connection. To take back a buffer,
/// acquire refuses it with an errno until both registrations have been invalidated: else an operation of
/// another thread registers it again in between.
///
/// The caller must hold no lock that a callback takes.
///
/// 0; -ENOENT: it is not registered any more, and has been given back also where another thread ended
/// it; -EINVAL; -EDEADLK: called from a callback, and nothing is invalidated.
///
/// # Safety
/// `registered` is NULL or came from strait_register_peer_memory_client, and was not unregistered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_invalidate(registered: *mut strait_client, core_context: u64) -> c_int {
    guard(|| {
        // SAFETY: the program's promise.
        let client = unsafe { registered.as_ref() }.ok_or(libc::EINVAL)?.registered;
        // From here on another thread may unregister it.
        client.invalidate(core_context)
    })
}
