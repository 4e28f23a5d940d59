//! fi_open_ops(3) of counters: what a stream or a kernel raises and waits for, by include/strait_fi_stream.h.

use std::ffi::CStr;

use libc::{c_char, c_int, c_void};
use libfabric_sys as fi;
use xpu::layout;

use super::Counter;
use crate::cntr::CntrFid;
use crate::ep::iov;
use crate::errno::Errno;
use crate::ffi::{guard, obj, open_ops, put};

/// `FI_STRAIT_CNTR_OPS`.
pub(crate) const NAME: &CStr = c"strait_cntr_ops_v1";

/// Of a counter of the strait provider, by fi_open_ops(&cntr->fid, FI_STRAIT_CNTR_OPS, 0, &ops, NULL). The first two
/// members are those of the cxi provider's table. The first call for a counter that was opened without a context of
/// fi_xpu(3) starts the thread that polls for streams; a domain of FI_THREAD_DOMAIN has none (-FI_EOPNOTSUPP).
#[repr(C)]
pub(crate) struct CntrOps {
    /// Has the provider write the write-back word to `buf`, too, from now on; it has the word when the call returns.
    /// `buf` has at least 8 bytes, aligned to 8, of host or device memory (-FI_EINVAL), and stays until another buffer
    /// is set or the counter is closed. NULL: no buffer.
    pub set_wb_buffer: unsafe extern "C" fn(fid: *mut fi::fid, buf: *mut c_void, len: usize) -> c_int,
    /// Where the device raises the counter: the first word has what the device has added in all, and the second, 8
    /// bytes behind it, the failures. A stream stores the sum (1, 2, 3, ...) and a kernel adds. Valid until the
    /// domain is closed.
    pub get_mmio_addr:
        unsafe extern "C" fn(fid: *mut fi::fid, addr: *mut *mut c_void, len: *mut usize) -> c_int,
    /// The counter's own write-back word, for programs that set no buffer, in host memory that the device maps. Valid
    /// until the domain is closed.
    pub get_wb_addr:
        unsafe extern "C" fn(fid: *mut fi::fid, addr: *mut *mut c_void, len: *mut usize) -> c_int,
}

static TABLE: CntrOps = CntrOps { set_wb_buffer, get_mmio_addr, get_wb_addr };

/// `fi_ops::ops_open` of a counter.
pub(crate) unsafe extern "C" fn ops_open(
    _fid: *mut fi::fid,
    name: *const c_char,
    flags: u64,
    ops: *mut *mut c_void,
    _context: *mut c_void,
) -> c_int {
    let table = |n: &CStr| (n == NAME).then(|| (&raw const TABLE).cast());
    // SAFETY: the application passes a string, and a place for the answer.
    unsafe { open_ops(name, flags, ops, table) }
}

/// The counter's words, which devices find from now on.
///
/// # Safety
/// `fid` is NULL or a live fid.
unsafe fn words<'a>(fid: *mut fi::fid) -> Result<&'a Counter, Errno> {
    // SAFETY: the caller's promise.
    let cntr = unsafe { obj::<CntrFid, _>(fid) }?;
    if let Some(counter) = cntr.xpu.get() {
        return Ok(counter);
    }
    let made = Counter::without_context(&cntr.shared, cntr.id)?;
    // Where two threads come here at once, both have those of the first.
    Ok(cntr.xpu.get_or_init(|| made))
}

unsafe extern "C" fn set_wb_buffer(fid: *mut fi::fid, buf: *mut c_void, len: usize) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open counter.
        let counter = unsafe { words(fid) }?;
        // SAFETY: include/strait_fi_stream.h: the buffer has that length, and stays until another one is set, or until
        // the counter is closed.
        let set = unsafe {
            let memory = (!buf.is_null()).then(|| iov::span(buf, len));
            counter.side.set_buffer(memory)
        };
        set.map_err(|e| {
            log::info!("set_wb_buffer: {e}");
            Errno::INVAL
        })
    })
}

/// Hands a device address of so many bytes out.
///
/// # Safety
/// `addr` and `len` are NULL or valid for a write.
unsafe fn answer(at: u64, bytes: usize, addr: *mut *mut c_void, len: *mut usize) -> Result<(), Errno> {
    if addr.is_null() || len.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller's promise.
    unsafe {
        put(len, bytes)?;
        put(addr, std::ptr::with_exposed_provenance_mut(at as usize))
    }
}

unsafe extern "C" fn get_mmio_addr(fid: *mut fi::fid, addr: *mut *mut c_void, len: *mut usize) -> c_int {
    let bytes = std::mem::offset_of!(layout::CounterDevice, unused);
    // SAFETY: the application passes an open counter, and places for the answers.
    guard(|| unsafe { answer(words(fid)?.side.device_added(), bytes, addr, len) })
}

unsafe extern "C" fn get_wb_addr(fid: *mut fi::fid, addr: *mut *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: as above.
    guard(|| unsafe { answer(words(fid)?.side.device_word(), size_of::<u64>(), addr, len) })
}
