//! Pools, and their memory in other processes.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::memory::{self, Region, Sort, find, inode};
use crate::{INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, Ptr, SUCCESS, context, devices};
use crate::{enter, enter_in_context};

/// The name of the pool there always is, which cannot be shared.
const DEFAULT: u64 = 1;

struct Pool {
    /// What stands for it in other processes, if it can be shared.
    file: Option<OwnedFd>,
    /// It came from another process.
    theirs: bool,
    /// Its handle was asked for: before that, the driver refuses to export pointers of it.
    exported: bool,
}

impl Pool {
    /// A pool of this process that was made for sharing.
    fn to_share(&self) -> Option<&OwnedFd> {
        self.file.as_ref().filter(|_| !self.theirs)
    }
}

#[derive(Default)]
struct All {
    /// By name.
    pools: HashMap<u64, Pool>,
    /// Of allocations: by number.
    of: HashMap<u64, u64>,
}

fn all() -> MutexGuard<'static, All> {
    static ALL: OnceLock<Mutex<All>> = OnceLock::new();
    ALL.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pool that memory is of; 0 if of none.
pub(crate) fn of(r: &Region) -> u64 {
    match r.sort {
        Sort::Pool => all().of.get(&r.id).copied().unwrap_or(DEFAULT),
        _ => 0,
    }
}

/// Whether it is memory of a pool of this process that was made for sharing.
pub(crate) fn is_shareable(r: &Region) -> bool {
    let pool = of(r);
    all().pools.get(&pool).is_some_and(|p| p.to_share().is_some())
}

fn add(file: Option<OwnedFd>, theirs: bool) -> u64 {
    let mut all = all();
    // As the driver's, the name of one that is gone comes again.
    let name =
        (1..).map(|n| 0x9000 + 16 * n).find(|name| !all.pools.contains_key(name)).expect("a free name");
    all.pools.insert(name, Pool { file, theirs, exported: false });
    name
}

/// `CUmemPoolProps`, as far as it is looked at.
#[repr(C)]
#[derive(Debug)]
pub struct PoolProps {
    kind: u32,
    handle_types: u32,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolCreate(out: *mut u64, props: *const PoolProps) -> i32 {
    enter_in_context!("cuMemPoolCreate");
    let fd = match unsafe { (*props).handle_types } {
        0 => None,
        1 => {
            let fd = unsafe { libc::memfd_create(c"stand-in-pool".as_ptr(), libc::MFD_CLOEXEC) };
            Some(unsafe { OwnedFd::from_raw_fd(fd) })
        }
        _ => return NOT_SUPPORTED,
    };
    unsafe { *out = add(fd, false) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolDestroy(pool: u64) -> i32 {
    enter!("cuMemPoolDestroy");
    all().pools.remove(&pool).map_or(INVALID_HANDLE, |_| SUCCESS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocFromPoolAsync(out: *mut u64, len: usize, pool: u64, _stream: Ptr) -> i32 {
    enter_in_context!("cuMemAllocFromPoolAsync");
    if all().pools.get(&pool).is_none_or(|p| p.theirs) {
        return INVALID_HANDLE;
    }
    let code = memory::alloc_in_pool(out, len);
    if code == SUCCESS {
        if let Some(r) = find(unsafe { *out } as usize) {
            all().of.insert(r.id, pool);
        }
    }
    code
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolExportToShareableHandle(
    out: *mut c_int,
    pool: u64,
    kind: u32,
    _flags: u64,
) -> i32 {
    enter!("cuMemPoolExportToShareableHandle");
    let mut all = all();
    let Some(p) = all.pools.get_mut(&pool).filter(|_| kind == 1) else { return NOT_SUPPORTED };
    let Some(fd) = p.to_share().and_then(|fd| fd.try_clone().ok()) else { return NOT_SUPPORTED };
    p.exported = true;
    unsafe { *out = fd.into_raw_fd() };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolImportFromShareableHandle(
    out: *mut u64,
    fd: Ptr,
    kind: u32,
    _flags: u64,
) -> i32 {
    enter_in_context!("cuMemPoolImportFromShareableHandle");
    match unsafe { BorrowedFd::borrow_raw(fd as usize as c_int) }.try_clone_to_owned() {
        Ok(fd) if kind == 1 => {
            unsafe { *out = add(Some(fd), true) };
            SUCCESS
        }
        _ => INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolSetAccess(pool: u64, _desc: *const c_void, _count: usize) -> i32 {
    enter!("cuMemPoolSetAccess");
    all().pools.get(&pool).map_or(INVALID_HANDLE, |_| SUCCESS)
}

/// Which pool, whose process, which file of it, how long, on which device.
type Words = [u64; 8];

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolExportPointer(out: *mut Words, at: u64) -> i32 {
    enter!("cuMemPoolExportPointer");
    let Some(r) = find(at as usize).filter(|r| r.base == at as usize) else { return INVALID_VALUE };
    let pool = of(&r);
    let all = all();
    let Some(fd) = all.pools.get(&pool).filter(|p| p.exported).and_then(Pool::to_share) else {
        return INVALID_VALUE;
    };
    let Some(b) = &r.backing else { return INVALID_VALUE };
    let (pid, file) = (u64::from(std::process::id()), b.fd.as_raw_fd());
    let (pool, ino) = (inode(fd.as_raw_fd()), inode(file));
    unsafe { *out = [pool, pid, file as u64, ino, r.len as u64, u64::from(b.device), 0, 0] };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolImportPointer(out: *mut u64, pool: u64, from: *const Words) -> i32 {
    enter_in_context!("cuMemPoolImportPointer");
    let [of, pid, file, ino, len, number, ..] = unsafe { *from };
    let is_it = |p: &Pool| p.theirs && p.file.as_ref().is_some_and(|fd| inode(fd.as_raw_fd()) == of);
    if !all().pools.get(&pool).is_some_and(is_it) {
        return INVALID_VALUE;
    }
    if !devices::visible().contains(&(number as u32)) {
        return INVALID_VALUE;
    }
    let Ok(file) = File::options().read(true).write(true).open(format!("/proc/{pid}/fd/{file}")) else {
        return INVALID_VALUE;
    };
    if inode(file.as_raw_fd()) != ino {
        return INVALID_VALUE;
    }
    let ctx = context::current().map_or(0, |c| c.name);
    let Some(base) = memory::open(file.into(), len as usize, ctx, 0, number as u32) else {
        return OUT_OF_MEMORY;
    };
    unsafe { *out = base as u64 };
    SUCCESS
}
