//! What a program does on the host for kernels that send: `libstrait_xpu.so`, and `include/strait_xpu.h`,
//! which `ci/check/header` makes of this file.

pub mod stream;

use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use c_abi::{guard, sized};
use libc::{c_char, c_int, c_void};
use wire::session::JobKey;
use xpu::{Context, Options, Pace, RingRequest, Waker, Words};

/// strait_xpu_ring_options.flags: commands are taken up to the ring's bell only, and not as soon as they are
/// written.
pub const STRAIT_XPU_WITH_BELL: u32 = 1;
/// strait_xpu_ring_options.flags: the ring has a queue of completions.
pub const STRAIT_XPU_WITH_QUEUE: u32 = 2;
/// strait_xpu_ring_options.flags: kernels of any device, and code of this process, post to the ring. Without
/// it, or STRAIT_XPU_WITH_BELL, a ring that a thread with a current CUDA context adds is for kernels of that
/// context, which reserve their slots in its memory: each reservation in host memory takes as long as a
/// command's way to the host.
pub const STRAIT_XPU_ANY_DEVICE: u32 = 4;

/// A context: an endpoint, memory that peers reach, rings, and the tables that a device reads.
#[derive(Debug)]
#[allow(non_camel_case_types, reason = "C's name")]
pub struct strait_xpu {
    /// For any thread, also while another one is in a call.
    waker: Waker,
    /// For one thread at a time.
    own: UnsafeCell<Own>,
}

#[derive(Debug)]
struct Own {
    context: Context,
    /// Memory that the program got: kept as long as the context.
    memory: Vec<Arc<Words>>,
}

/// How a context is opened.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "C's name")]
pub struct strait_xpu_options {
    /// Of this structure.
    pub size: usize,
    /// A secret that all processes have, with which peers of other hosts are reached by TCP; NULL: none are.
    pub key: *const c_char,
    /// Of waits of a device that name no time, in nanoseconds; 0: 30 seconds.
    pub timeout_ns: u64,
    /// How long a thread that drains rings sleeps at most between two looks, in nanoseconds; 0: 50
    /// microseconds.
    pub sleep_ns: u64,
    /// How many threads drain the rings, at most 16; 0: one. Ring r is drained by thread r modulo this.
    /// Messages and data for a peer's queue are for the rings of thread 0.
    pub threads: u32,
    /// 0.
    pub unused: u32,
    /// How long a thread sleeps at most once nothing has happened for 10 milliseconds, in nanoseconds, taken
    /// as whole milliseconds, 1 to 25; 0: as long as before. A command of a kernel waits so long, unless
    /// strait_xpu_wake was called.
    pub idle_ns: u64,
}

/// How a ring is made.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "C's name")]
pub struct strait_xpu_ring_options {
    /// Of this structure.
    pub size: usize,
    /// The ring has 2^log2_slots slots; at most 20.
    pub log2_slots: u32,
    /// Its queue has 2^log2_entries entries; at most 20.
    pub log2_entries: u32,
    /// STRAIT_XPU_WITH_BELL, STRAIT_XPU_WITH_QUEUE, STRAIT_XPU_ANY_DEVICE.
    pub flags: u32,
    /// 0.
    pub unused: u32,
    /// Memory for the slots, 64 bytes each, at a multiple of 64, which stays until strait_xpu_close: where
    /// the CPU finds it. NULL: host memory, page-locked where the process has a device.
    pub slots: *mut c_void,
    /// The same memory, where the device finds it.
    pub slots_device: *mut c_void,
    /// Its bytes.
    pub slots_size: usize,
}

/// Why the last call of this thread failed. Valid until its next.
#[unsafe(no_mangle)]
pub extern "C" fn strait_xpu_error() -> *const c_char {
    c_abi::last_error()
}

/// An errno, and its words for [`strait_xpu_error`].
fn errno<T>(outcome: Result<T, xpu::Error>) -> Result<T, c_int> {
    outcome.map_err(|e| {
        c_abi::keep_error(&e);
        e.errno()
    })
}

/// # Safety
/// `of` is NULL or came from strait_xpu_open, was not closed, and is used by no other thread during 'a.
unsafe fn open<'a>(of: *mut strait_xpu) -> Result<&'a mut Own, c_int> {
    if of.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the program's promise: nothing else refers to what is in the cell, and no reference is made to
    // what is around it but to other fields.
    Ok(unsafe { &mut *UnsafeCell::raw_get(&raw const (*of).own) })
}

/// # Safety
/// `at` is NULL or valid for a write.
unsafe fn put<T>(at: *mut T, value: T) -> Result<(), c_int> {
    if at.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the program's promise.
    unsafe { at.write(value) };
    Ok(())
}

/// Opens a context. A device's runtime is to be initialized before.
///
/// # Safety
/// `options` is NULL or as said of the structure; `opened` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_xpu_open(
    options: *const strait_xpu_options,
    opened: *mut *mut strait_xpu,
) -> c_int {
    guard(|| {
        let mut wanted = Options::default();
        if !options.is_null() {
            let none = strait_xpu_options {
                size: 0,
                key: ptr::null(),
                timeout_ns: 0,
                sleep_ns: 0,
                threads: 0,
                unused: 0,
                idle_ns: 0,
            };
            // The fields from here on are newer.
            let least = std::mem::offset_of!(strait_xpu_options, threads);
            // SAFETY: the program's promise.
            let options = unsafe { sized(options, least, none)? };
            if !options.key.is_null() {
                // SAFETY: a string, by the program's promise.
                wanted.key = Some(JobKey::from_secret(unsafe { CStr::from_ptr(options.key) }.to_bytes()));
            }
            if options.timeout_ns > 0 {
                wanted.timeout = Duration::from_nanos(options.timeout_ns);
            }
            if options.sleep_ns > 0 {
                wanted.pace = Pace::adapts(Duration::from_nanos(options.sleep_ns));
            }
            if options.unused != 0 {
                return Err(libc::EINVAL);
            }
            wanted.threads = options.threads.max(1) as usize;
            wanted.idle = (options.idle_ns > 0).then(|| Duration::from_nanos(options.idle_ns));
        }
        if opened.is_null() {
            return Err(libc::EINVAL);
        }
        let context = errno(Context::open(wanted))?;
        let waker = context.waker();
        let own = UnsafeCell::new(Own { context, memory: Vec::new() });
        // SAFETY: the program has a place for it.
        unsafe { put(opened, Box::into_raw(Box::new(strait_xpu { waker, own }))) }
    })
}

/// Registers memory of a device's or the host's for peers. Regions have the numbers 0, 1 and so on; all
/// processes register theirs in the same order.
///
/// # Safety
/// `context` is open; `address` to `address` + `length` stays allocated until strait_xpu_close; `region` is
/// NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_xpu_register(
    context: *mut strait_xpu,
    address: *mut c_void,
    length: usize,
    region: *mut u32,
) -> c_int {
    guard(|| {
        // SAFETY: the program's promise.
        let x = unsafe { open(context)? };
        let at = address.expose_provenance();
        if region.is_null() || at == 0 || at.checked_add(length).is_none() {
            return Err(libc::EINVAL);
        }
        // SAFETY: as above; C has no references.
        let number = errno(unsafe { x.context.register(at, length) })?;
        // SAFETY: as above.
        unsafe { put(region, number) }
    })
}

/// Allocates and registers zeroed memory of the host's, which devices of this process, and peers of this
/// host, may map.
///
/// # Safety
/// `context` is open; `region` and `address` are NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_xpu_allocate(
    context: *mut strait_xpu,
    length: usize,
    region: *mut u32,
    address: *mut *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the program's promise.
        let x = unsafe { open(context)? };
        if region.is_null() || address.is_null() || length == 0 {
            return Err(libc::EINVAL);
        }
        let (number, memory) = errno(x.context.allocate(length.div_ceil(8)))?;
        let at = memory.get(0).as_ptr().cast();
        x.memory.push(memory);
        // SAFETY: as above.
        unsafe { put(region, number).and(put(address, at)) }
    })
}

/// Adds a ring. Rings have the numbers 0, 1 and so on.
///
/// # Safety
/// `context` is open; `options` is as said of the structure; `ring` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_xpu_add_ring(
    context: *mut strait_xpu,
    options: *const strait_xpu_ring_options,
    ring: *mut u32,
) -> c_int {
    guard(|| {
        let none = strait_xpu_ring_options {
            size: 0,
            log2_slots: 0,
            log2_entries: 0,
            flags: 0,
            unused: 0,
            slots: ptr::null_mut(),
            slots_device: ptr::null_mut(),
            slots_size: 0,
        };
        // SAFETY: the program's promise.
        let (x, o) = unsafe { (open(context)?, sized(options, size_of_val(&none), none)?) };
        const ALL: u32 = STRAIT_XPU_WITH_BELL | STRAIT_XPU_WITH_QUEUE | STRAIT_XPU_ANY_DEVICE;
        if ring.is_null() || o.unused != 0 || o.flags & !ALL != 0 {
            return Err(libc::EINVAL);
        }
        let slots = match o.slots.is_null() {
            true => None,
            // SAFETY: the program's promise: memory that stays; nothing here but atomics touches it.
            false => Some(errno(unsafe {
                Words::from_caller(o.slots.expose_provenance(), o.slots_size, o.slots_device.addr() as u64)
            })?),
        };
        let request = RingRequest {
            bell: o.flags & STRAIT_XPU_WITH_BELL != 0,
            log2_entries: (o.flags & STRAIT_XPU_WITH_QUEUE != 0).then_some(o.log2_entries),
            slots,
            near: o.flags & STRAIT_XPU_ANY_DEVICE == 0,
            ..RingRequest::new(o.log2_slots)
        };
        let handle = errno(x.context.open_ring(request))?;
        // SAFETY: as above.
        unsafe { put(ring, handle.id) }
    })
}

/// What peers have to know of this process, to be called when all its memory is registered. `length` is the
/// size of `buffer`, and becomes that of the blob; -ENOSPC: it is too small, and nothing was written.
///
/// # Safety
/// `context` is open; `buffer` is valid for writes of `length` bytes; `length` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_xpu_blob(
    context: *mut strait_xpu,
    buffer: *mut c_void,
    length: *mut usize,
) -> c_int {
    guard(|| {
        if length.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the program's promise.
        let (blob, room) = unsafe { (open(context)?.context.blob(), length.read()) };
        // SAFETY: as above.
        unsafe { length.write(blob.len()) };
        if room < blob.len() || buffer.is_null() {
            return Err(libc::ENOSPC);
        }
        // SAFETY: there is room for so many bytes.
        unsafe { buffer.cast::<u8>().copy_from_nonoverlapping(blob.as_ptr(), blob.len()) };
        Ok(())
    })
}

/// Comes to know all processes, of which this is number `rank`: `count` blobs, in the order of their numbers.
/// Memory of peers on this host is mapped, where that can be done. To be called once, before
/// strait_xpu_begin.
///
/// # Safety
/// `context` is open; `blobs` and `lengths` are `count` pointers and lengths of readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_xpu_connect(
    context: *mut strait_xpu,
    rank: u32,
    count: u32,
    blobs: *const *const c_void,
    lengths: *const usize,
) -> c_int {
    guard(|| {
        // SAFETY: the program's promise.
        let x = unsafe { open(context)? };
        if blobs.is_null() || lengths.is_null() {
            return Err(libc::EINVAL);
        }
        let mut all = Vec::new();
        for at in 0..count as usize {
            // SAFETY: as above: `count` of each.
            let (blob, length) = unsafe { (*blobs.add(at), *lengths.add(at)) };
            if blob.is_null() || length > isize::MAX as usize {
                return Err(libc::EINVAL);
            }
            // SAFETY: as above; nothing writes them during the call.
            all.push(unsafe { std::slice::from_raw_parts(blob.cast::<u8>(), length) });
        }
        errno(x.context.connect(rank, &all))
    })
}

/// Ends the setting up, and starts the thread that drains the rings. `view` gets the address, in the device's
/// space, of a struct strait_xpu_context (strait_xpu_layout.h), for kernels. It stays until strait_xpu_close.
///
/// # Safety
/// `context` is open; `view` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_xpu_begin(context: *mut strait_xpu, view: *mut *mut c_void) -> c_int {
    guard(|| {
        // SAFETY: the program's promise.
        let x = unsafe { open(context)? };
        if view.is_null() {
            return Err(libc::EINVAL);
        }
        let at = errno(x.context.begin())?;
        // SAFETY: as above.
        unsafe { put(view, ptr::with_exposed_provenance_mut(at as usize)) }
    })
}

/// Commands come: the threads that drain the rings do not sleep long for the next 10 milliseconds, and one
/// that does ends that. To be called before a kernel that posts is started, where strait_xpu_options.idle_ns
/// is given. Any thread may call it at any time from strait_xpu_open to strait_xpu_close, also one that calls
/// for cuLaunchHostFunc: it calls nothing of the device's runtime, waits for nothing, and costs a fence where
/// the threads are awake.
///
/// # Safety
/// `context` is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_xpu_wake(context: *const strait_xpu) -> c_int {
    guard(|| {
        if context.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the program's promise; this field is never changed, and other threads refer to the other.
        unsafe { (*context).waker.wake() };
        Ok(())
    })
}

/// Where the device finds a region of a peer's: NULL in `address` if it is reached by commands alone.
///
/// # Safety
/// `context` is open, and strait_xpu_connect was called; `address` and `length` are NULL or valid for a
/// write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_xpu_mapped(
    context: *mut strait_xpu,
    peer: u32,
    region: u32,
    address: *mut *mut c_void,
    length: *mut usize,
) -> c_int {
    guard(|| {
        // SAFETY: the program's promise.
        let x = unsafe { open(context)? };
        let entry = x.context.peer(peer, region).ok_or(libc::ENOENT)?;
        // SAFETY: as above.
        unsafe {
            put(address, ptr::with_exposed_provenance_mut(entry.mapped as usize))?;
            put(length, entry.length as usize)
        }
    })
}

/// Ends a context: each ring and each peer get an error word, so that kernels which wait return, and no peer
/// reaches memory of this process any more. What kernels use stays until strait_xpu_close.
///
/// # Safety
/// `context` is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_xpu_end(context: *mut strait_xpu) -> c_int {
    // SAFETY: the program's promise.
    guard(|| errno(unsafe { open(context)? }.context.close()))
}

/// Closes a context. No kernel that uses it runs any more. -EBUSY: a peer is stopped while it accesses memory
/// of this process; the context is still open.
///
/// # Safety
/// `context` is NULL or open, and is not used any more if this returns 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_xpu_close(context: *mut strait_xpu) -> c_int {
    guard(|| {
        if context.is_null() {
            return Ok(());
        }
        // SAFETY: the program's promise.
        errno(unsafe { open(context)? }.context.close())?;
        // SAFETY: as above; it came from a box.
        drop(unsafe { Box::from_raw(context) });
        Ok(())
    })
}
