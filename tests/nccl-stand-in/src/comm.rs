//! Communicators: their life and their errors.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use crate::meet::exchange;
use crate::shared::{Shared, VALUE};
use crate::state::{
    Comm, IN_PROGRESS, INVALID_ARGUMENT, INVALID_USAGE, Inner, REMOTE_ERROR, SUCCESS, SYSTEM_ERROR,
    UNHANDLED_CUDA_ERROR, enter,
};

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct UniqueId([u8; 128]);

/// `ncclConfig_t`, as far as it is read.
#[repr(C)]
#[derive(Debug)]
pub struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

fn begin(name: String, ranks: usize, rank: usize, blocking: bool) -> *mut Comm {
    let inner = Arc::new(Inner {
        shared: OnceLock::new(),
        name,
        state: AtomicI32::new(IN_PROGRESS),
        aborted: AtomicBool::new(false),
        open: AtomicUsize::new(0),
        step: AtomicU64::new(0),
        turn: Mutex::new(()),
        splits: AtomicU64::new(0),
    });
    let of = inner.clone();
    let thread = std::thread::spawn(move || match Shared::meet(&of.name, ranks, rank) {
        Some(shared) => {
            let _ = of.shared.set(shared);
            of.state.store(SUCCESS, Release);
        }
        None => of.state.store(SYSTEM_ERROR, Release),
    });
    if blocking {
        let _ = thread.join();
    }
    Box::into_raw(Box::new(Comm(inner)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> c_int {
    enter!("ncclGetVersion");
    let text = std::env::var("NCCL_STAND_IN_VERSION").unwrap_or_default();
    unsafe { *version = text.parse().unwrap_or(22005) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> c_int {
    enter!("ncclGetUniqueId");
    let mut random = [0u8; 16];
    unsafe { libc::getrandom(random.as_mut_ptr().cast(), 16, 0) };
    let mut bytes = [0; 128];
    bytes[..16].copy_from_slice(&random);
    unsafe { *id = UniqueId(bytes) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(code: c_int) -> *const c_char {
    let text = match code {
        SUCCESS => c"no error",
        UNHANDLED_CUDA_ERROR => c"unhandled cuda error",
        SYSTEM_ERROR => c"unhandled system error",
        3 => c"internal error",
        INVALID_ARGUMENT => c"invalid argument",
        INVALID_USAGE => c"invalid usage",
        REMOTE_ERROR => c"remote process exited or there was a network error",
        IN_PROGRESS => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

unsafe fn init(comm: *mut *mut Comm, ranks: c_int, id: UniqueId, rank: c_int, blocking: bool) -> c_int {
    if ranks < 1 || !(0..ranks).contains(&rank) || id.0 == [0; 128] {
        return INVALID_ARGUMENT;
    }
    let hex: String = id.0[..16].iter().map(|b| format!("{b:02x}")).collect();
    let made = begin(format!("nccl-stand-in-{hex}"), ranks as usize, rank as usize, blocking);
    unsafe { *comm = made };
    if blocking { unsafe { &*made }.0.state.load(Acquire) } else { IN_PROGRESS }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRank(
    comm: *mut *mut Comm,
    ranks: c_int,
    id: UniqueId,
    rank: c_int,
) -> c_int {
    enter!("ncclCommInitRank");
    unsafe { init(comm, ranks, id, rank, true) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankConfig(
    comm: *mut *mut Comm,
    ranks: c_int,
    id: UniqueId,
    rank: c_int,
    config: *const Config,
) -> c_int {
    enter!("ncclCommInitRankConfig");
    let known = config.is_null() || unsafe { (*config).size >= 20 && (*config).magic == 0xcafe_beef };
    if !known {
        return INVALID_ARGUMENT;
    }
    let blocking = config.is_null() || unsafe { (*config).blocking != 0 };
    unsafe { init(comm, ranks, id, rank, blocking) }
}

/// Blocks, whatever the configuration is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommSplit(
    comm: *mut Comm,
    color: c_int,
    key: c_int,
    made: *mut *mut Comm,
    _config: *const Config,
) -> c_int {
    enter!("ncclCommSplit");
    let of = unsafe { &*comm }.0.clone();
    let Some(shared) = of.shared.get() else { return INVALID_USAGE };
    let _turn = of.turn.lock();
    let number = of.splits.fetch_add(1, Relaxed);
    let own = (color as u32 as u64) << 32 | key as u32 as u64;
    shared.of_rank(shared.rank, VALUE).store(own, Release);
    let mut all = Vec::new();
    let seen = exchange(&of, shared, || {
        all = (0..shared.ranks).map(|r| (shared.of_rank(r, VALUE).load(Acquire), r)).collect();
    });
    if seen.is_none() {
        return REMOTE_ERROR;
    }
    unsafe { *made = std::ptr::null_mut() };
    if color < 0 {
        return SUCCESS;
    }
    let mut same: Vec<(i32, usize)> =
        all.into_iter().filter(|(v, _)| (v >> 32) as i32 == color).map(|(v, r)| (v as i32, r)).collect();
    same.sort_unstable();
    let rank = same.iter().position(|(_, r)| *r == shared.rank).unwrap_or(0);
    let new = begin(format!("{}-{number}-{color}", of.name), same.len(), rank, true);
    unsafe { *made = new };
    unsafe { &*new }.0.state.load(Acquire)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(comm: *mut Comm, state: *mut c_int) -> c_int {
    enter!("ncclCommGetAsyncError");
    unsafe { *state = (&*comm).0.state.load(Acquire) };
    SUCCESS
}

/// Waits for its work, and gives it back.
unsafe fn end(comm: *mut Comm) -> c_int {
    let comm = unsafe { Box::from_raw(comm) };
    while comm.0.open.load(SeqCst) > 0 {
        std::thread::sleep(Duration::from_micros(100));
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommAbort(comm: *mut Comm) -> c_int {
    enter!("ncclCommAbort");
    unsafe { &*comm }.0.aborted.store(true, SeqCst);
    unsafe { end(comm) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommDestroy(comm: *mut c_void) -> c_int {
    enter!("ncclCommDestroy");
    unsafe { end(comm.cast()) }
}
