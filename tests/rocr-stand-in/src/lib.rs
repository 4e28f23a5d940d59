//! A stand-in for ROCm's HSA runtime, on machines that have no AMD GPU.
//!
//! It has the entry points that Strait and its tests call, with the runtime's names and signatures (HSA
//! Runtime Programmer's Reference Manual, hsa_ext_amd.h's public interface), and is as strict: a call
//! before `hsa_init` fails. Agent 1 is the CPU, 2 and 3 are GPUs. Memory and handles are those of the
//! crate `stand-in`.
//!
//! | variable | |
//! |---|---|
//! | `ROCR_STAND_IN_DELAY_US` | how long each copy in flight takes (0) |
//! | `ROCR_STAND_IN_FAIL` | `name=code` or `name@n=code`, with commas: calls that fail, always or the n-th time |
#![allow(clippy::missing_safety_doc, reason = "the runtime's names; its manual is the documentation")]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "a test's library: every function trusts its caller as the runtime does"
)]

/// What a Rust test calls.
pub mod runtime;

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::fs::File;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use stand_in::memory::{self, Region, Sort, find};
use stand_in::{Work, fault};

type Ptr = *mut c_void;

const SUCCESS: c_int = 0;
const ERROR: c_int = 0x1000;
const INVALID_ARGUMENT: c_int = 0x1001;
const INVALID_ALLOCATION: c_int = 0x1003;
const INVALID_AGENT: c_int = 0x1004;
const INVALID_SIGNAL: c_int = 0x1006;
const OUT_OF_RESOURCES: c_int = 0x1008;
const NOT_INITIALIZED: c_int = 0x100b;

const CPU: u64 = 1;
const GPUS: u64 = 2;

/// Stops a call that comes too early or that is to fail.
macro_rules! enter {
    ($name:literal) => {
        if let Err(code) = fault::enter("ROCR", $name, NOT_INITIALIZED) {
            return code;
        }
    };
}

struct Signal {
    value: i64,
    todo: Vec<Work>,
}

impl Signal {
    /// Does what is due.
    fn run(&mut self, wait: bool) {
        let mut left = Vec::new();
        for work in self.todo.drain(..) {
            match work.run(wait) {
                None => left.push(work),
                Some(true) => self.value -= 1,
                Some(false) => self.value = -1,
            }
        }
        self.todo = left;
    }
}

#[derive(Default)]
struct State {
    signals: HashMap<u64, Signal>,
    made: u64,
    /// What is called when the memory at an address goes.
    watchers: Vec<(usize, unsafe extern "C" fn(Ptr, Ptr), usize)>,
}

fn state() -> MutexGuard<'static, State> {
    static STATE: OnceLock<Mutex<State>> = OnceLock::new();
    STATE.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_gpu(agent: u64) -> bool {
    (CPU + 1..=CPU + GPUS).contains(&agent)
}

fn owner(r: &Region) -> u64 {
    r.device as u64
}

#[unsafe(no_mangle)]
pub extern "C" fn hsa_init() -> c_int {
    fault::READY.store(true, Ordering::Release);
    enter!("hsa_init");
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_status_string(status: c_int, text: *mut *const c_char) -> c_int {
    let known = match status {
        INVALID_ARGUMENT => c"HSA_STATUS_ERROR_INVALID_ARGUMENT",
        OUT_OF_RESOURCES => c"HSA_STATUS_ERROR_OUT_OF_RESOURCES",
        _ => return INVALID_ARGUMENT,
    };
    unsafe { *text = known.as_ptr() };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_iterate_agents(
    each: unsafe extern "C" fn(u64, Ptr) -> c_int,
    user: Ptr,
) -> c_int {
    enter!("hsa_iterate_agents");
    for agent in CPU..=CPU + GPUS {
        let code = unsafe { each(agent, user) };
        if code != SUCCESS {
            return code;
        }
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_agent_get_info(agent: u64, what: u32, to: *mut u32) -> c_int {
    enter!("hsa_agent_get_info");
    match (agent, what) {
        (CPU, 17) => unsafe { *to = 0 },
        (a, 17) if is_gpu(a) => unsafe { *to = 1 },
        (_, 17) => return INVALID_AGENT,
        _ => return INVALID_ARGUMENT,
    }
    SUCCESS
}

/// `hsa_amd_memory_pool_allocate`, whose pools are numbered as the agents here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_amd_memory_pool_allocate(
    pool: u64,
    len: usize,
    _flags: u32,
    at: *mut Ptr,
) -> c_int {
    enter!("hsa_amd_memory_pool_allocate");
    let made = match pool {
        CPU => memory::alloc_host(len, Sort::Host, 0, CPU as c_int),
        gpu if is_gpu(gpu) => memory::alloc(len, Sort::Plain, 0, gpu as c_int, gpu as u32),
        _ => return INVALID_ARGUMENT,
    };
    let Some(made) = made else { return OUT_OF_RESOURCES };
    unsafe { *at = made as Ptr };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_amd_memory_pool_free(at: Ptr) -> c_int {
    enter!("hsa_amd_memory_pool_free");
    if find(at as usize).is_none_or(|r| r.base != at as usize) {
        return INVALID_ALLOCATION;
    }
    let called = {
        let mut state = state();
        let (called, kept) = state.watchers.drain(..).partition(|(a, ..)| *a == at as usize);
        state.watchers = kept;
        let called: Vec<(usize, unsafe extern "C" fn(Ptr, Ptr), usize)> = called;
        called
    };
    for (_, call, user) in called {
        unsafe { call(at, user as Ptr) };
    }
    memory::free(at as usize);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_register_deallocation_callback(
    at: Ptr,
    call: unsafe extern "C" fn(Ptr, Ptr),
    user: Ptr,
) -> c_int {
    enter!("hsa_amd_register_deallocation_callback");
    if find(at as usize).is_none() {
        return INVALID_ALLOCATION;
    }
    state().watchers.push((at as usize, call, user as usize));
    SUCCESS
}

/// `hsa_amd_pointer_info_t`.
#[repr(C)]
#[derive(Debug)]
pub struct PointerInfo {
    size: u32,
    kind: u32,
    base: usize,
    host_base: usize,
    len: usize,
    user: usize,
    owner: u64,
    flags: u32,
    registered: bool,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_amd_pointer_info(
    at: *const c_void,
    to: *mut PointerInfo,
    _alloc: Ptr,
    _count: *mut u32,
    _agents: *mut Ptr,
) -> c_int {
    enter!("hsa_amd_pointer_info");
    let room = unsafe { (*to).size } as usize;
    let (mut info, found) = (PointerInfo { ..unsafe { std::mem::zeroed() } }, find(at as usize));
    if let Some(r) = found {
        info.kind = if r.sort == Sort::Opened { 4 } else { 1 };
        (info.base, info.len, info.owner) = (r.base, r.len, owner(&r));
        info.host_base = if r.sort == Sort::Host { r.base } else { 0 };
    }
    // As the runtime: no more than either side knows.
    info.size = room.min(size_of::<PointerInfo>()) as u32;
    unsafe { (&raw const info).cast::<u8>().copy_to(to.cast(), info.size as usize) };
    SUCCESS
}

/// `hsa_amd_ipc_memory_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Ipc([u32; 8]);

const MAGIC: u32 = 0x5354_414e;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_amd_ipc_memory_create(at: Ptr, len: usize, to: *mut Ipc) -> c_int {
    enter!("hsa_amd_ipc_memory_create");
    let Some(r) = find(at as usize).filter(|r| r.base == at as usize && r.len == len) else {
        return INVALID_ARGUMENT;
    };
    let Some(b) = r.backing.filter(|_| r.sort == Sort::Plain) else { return INVALID_ARGUMENT };
    let (fd, ino) = (b.fd.as_raw_fd(), memory::inode(b.fd.as_raw_fd()));
    let words = [
        MAGIC,
        std::process::id(),
        fd as u32,
        ino as u32,
        (ino >> 32) as u32,
        len as u32,
        (len >> 32) as u32,
    ];
    let mut ipc = Ipc([0; 8]);
    ipc.0[..7].copy_from_slice(&words);
    ipc.0[7] = r.device as u32;
    unsafe { *to = ipc };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_amd_ipc_memory_attach(
    from: *const Ipc,
    len: usize,
    _count: u32,
    _agents: *const u64,
    at: *mut Ptr,
) -> c_int {
    enter!("hsa_amd_ipc_memory_attach");
    let [magic, pid, fd, low, high, len_low, len_high, device] = unsafe { (*from).0 };
    if magic != MAGIC || len as u64 != u64::from(len_low) | u64::from(len_high) << 32 {
        return INVALID_ARGUMENT;
    }
    let Ok(file) = File::options().read(true).write(true).open(format!("/proc/{pid}/fd/{fd}")) else {
        return INVALID_ARGUMENT;
    };
    if memory::inode(file.as_raw_fd()) != u64::from(low) | u64::from(high) << 32 {
        return INVALID_ARGUMENT;
    }
    let Some(base) = memory::open(file.into(), len, 0, device as c_int, device) else {
        return OUT_OF_RESOURCES;
    };
    unsafe { *at = base as Ptr };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_ipc_memory_detach(at: Ptr) -> c_int {
    enter!("hsa_amd_ipc_memory_detach");
    match find(at as usize) {
        Some(r) if r.sort == Sort::Opened && r.base == at as usize => {
            memory::free(r.base);
            SUCCESS
        }
        _ => INVALID_ARGUMENT,
    }
}

/// A memfd in the dma-buf's place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_amd_portable_export_dmabuf(
    at: *const c_void,
    len: usize,
    fd: *mut c_int,
    off: *mut u64,
) -> c_int {
    enter!("hsa_amd_portable_export_dmabuf");
    let Some(r) = find(at as usize).filter(|r| at as usize + len <= r.base + r.len) else {
        return INVALID_ALLOCATION;
    };
    let Some(copy) = r.backing.and_then(|b| b.fd.try_clone().ok()) else { return ERROR };
    unsafe {
        *fd = copy.into_raw_fd();
        *off = (at as usize - r.base) as u64;
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn hsa_memory_copy(dst: Ptr, src: *const c_void, len: usize) -> c_int {
    enter!("hsa_memory_copy");
    if memory::copy(dst as usize, src as usize, len) { SUCCESS } else { INVALID_ARGUMENT }
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub extern "C" fn hsa_amd_memory_async_copy(
    dst: Ptr,
    dst_agent: u64,
    src: *const c_void,
    src_agent: u64,
    len: usize,
    _count: u32,
    _after: *const u64,
    done: u64,
) -> c_int {
    enter!("hsa_amd_memory_async_copy");
    // Only memory that the agents can reach.
    for (at, agent) in [(dst as usize, dst_agent), (src as usize, src_agent)] {
        match find(at) {
            Some(r) if owner(&r) == agent => {}
            Some(_) => return INVALID_AGENT,
            None => return INVALID_ARGUMENT,
        }
    }
    let mut state = state();
    let Some(signal) = state.signals.get_mut(&done) else { return INVALID_SIGNAL };
    signal.todo.push(Work::new("ROCR", dst as usize, src as usize, len));
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_signal_create(
    initial: i64,
    _consumers: u32,
    _who: *const u64,
    to: *mut u64,
) -> c_int {
    enter!("hsa_signal_create");
    let mut state = state();
    state.made += 1;
    let name = 0x5000 + state.made;
    state.signals.insert(name, Signal { value: initial, todo: Vec::new() });
    unsafe { *to = name };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn hsa_signal_destroy(signal: u64) -> c_int {
    enter!("hsa_signal_destroy");
    state().signals.remove(&signal).map_or(INVALID_SIGNAL, |_| SUCCESS)
}

#[unsafe(no_mangle)]
pub extern "C" fn hsa_signal_load_scacquire(signal: u64) -> i64 {
    // It has no way to fail but by the value that a copy leaves.
    let failed = fault::enter("ROCR", "hsa_signal_load_scacquire", NOT_INITIALIZED).is_err();
    let mut state = state();
    let Some(s) = state.signals.get_mut(&signal) else { return i64::MIN };
    s.run(false);
    if failed { -1 } else { s.value }
}

#[unsafe(no_mangle)]
pub extern "C" fn hsa_signal_wait_scacquire(
    signal: u64,
    _condition: u32,
    _than: i64,
    _most: u64,
    _how: u32,
) -> i64 {
    let mut state = state();
    let Some(s) = state.signals.get_mut(&signal) else { return i64::MIN };
    s.run(true);
    s.value
}
