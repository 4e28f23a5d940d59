//! fi_open_ops(3) of counters: what a stream or a kernel raises and waits for, by include/strait_fi_stream.h.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use hmem::cuda;
use libc::{c_int, c_void};
use libfabric_sys as fi;
use xpu::layout;

use super::Counter;
use crate::ep::iov;
use crate::errno::Errno;
use crate::ffi::{Fid, guard, obj, put};

/// `FI_STRAIT_CNTR_OPS`.
pub(crate) const NAME: &CStr = c"strait_cntr_ops_v2";
/// The name of programs that do not know `set_limit`.
pub(crate) const FIRST_NAME: &CStr = c"strait_cntr_ops_v1";

/// Of a counter of the strait provider, by fi_open_ops(&cntr->fid, FI_STRAIT_CNTR_OPS, 0, &ops, NULL). The
/// first two members are those of the cxi provider's table. The first call for a counter that was opened
/// without a context of fi_xpu(3) starts the thread that polls for streams; a domain of FI_THREAD_DOMAIN has
/// none (-FI_EOPNOTSUPP).
#[repr(C)]
pub(crate) struct CntrOps {
    /// Has the provider write the write-back word to `buf`, too, from now on; it has the word when the call
    /// returns. `buf` has at least 8 bytes, aligned to 8, of host or device memory (-FI_EINVAL), and stays
    /// until another buffer is set or the counter is closed. NULL: no buffer.
    pub set_wb_buffer: unsafe extern "C" fn(fid: *mut fi::fid, buf: *mut c_void, len: usize) -> c_int,
    /// Where the device raises the counter: the first word has what the device has added in all, and the
    /// second, 8 bytes behind it, the failures. A stream stores the sum (1, 2, 3, ...) and a kernel adds.
    /// Valid until the domain is closed.
    pub get_mmio_addr:
        unsafe extern "C" fn(fid: *mut fi::fid, addr: *mut *mut c_void, len: *mut usize) -> c_int,
    /// The counter's own write-back word, for programs that set no buffer, in host memory that the device
    /// maps. Valid until the domain is closed.
    pub get_wb_addr:
        unsafe extern "C" fn(fid: *mut fi::fid, addr: *mut *mut c_void, len: *mut usize) -> c_int,
    /// A stream waits for `value`, and is to wait no longer once nothing has changed in the counter for
    /// `timeout_ns`, looked at every 25 ms. Then the counter has a failure, and what it was to count ends
    /// with FI_ETIMEDOUT: deferred work that has not started; all that waits for the counter, or for another
    /// one in which such work was to count, whatever else counts there; receives without a message; sends
    /// whose bytes are still here. The limit ends when the counter has reached `value` or has a failure, also
    /// one from before (fi_cntr_seterr clears it); it takes the place of the one before. `timeout_ns` 0: no
    /// limit, as at first.
    pub set_limit: unsafe extern "C" fn(fid: *mut fi::fid, value: u64, timeout_ns: u64) -> c_int,
}

/// An object whose words a device may find.
pub(crate) trait HasWords: Fid {
    /// The words, which devices find from now on.
    fn words(&self) -> Result<&Counter, Errno>;
}

/// The table of such an object.
pub(crate) const fn table<T: HasWords>() -> CntrOps {
    CntrOps {
        set_wb_buffer: set_wb_buffer::<T>,
        get_mmio_addr: get_mmio_addr::<T>,
        get_wb_addr: get_wb_addr::<T>,
        set_limit: set_limit::<T>,
    }
}

unsafe extern "C" fn set_wb_buffer<T: HasWords>(fid: *mut fi::fid, buf: *mut c_void, len: usize) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open counter.
        let counter = unsafe { obj::<T, _>(fid) }?.words()?;
        // SAFETY: include/strait_fi_stream.h: the buffer has that length, and stays until another one is set,
        // or until the counter is closed.
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

/// Says once what ends no exchange. A stream that waits for a word has no limit of time.
fn warn_of_one_queue() {
    static KNOWN: AtomicBool = AtomicBool::new(false);
    if KNOWN.load(Relaxed) || !cuda::find_driver() {
        return;
    }
    let Ok(Some(one)) = cuda::has_one_queue(None) else { return };
    if !KNOWN.swap(true, Relaxed) && one {
        log::warn!(
            "streams share one hardware queue, and one that waits holds up the others, also those that copy device \
             memory: set CUDA_DEVICE_MAX_CONNECTIONS to 2 or more, unset it, or raise counters before a stream waits"
        );
    }
}

/// Hands a device address of so many bytes out.
///
/// # Safety
/// `addr` and `len` are NULL or valid for a write.
unsafe fn answer(at: u64, bytes: usize, addr: *mut *mut c_void, len: *mut usize) -> Result<(), Errno> {
    if addr.is_null() || len.is_null() {
        return Err(Errno::INVAL);
    }
    warn_of_one_queue();
    // SAFETY: the caller's promise.
    unsafe {
        put(len, bytes)?;
        put(addr, std::ptr::with_exposed_provenance_mut(at as usize))
    }
}

unsafe extern "C" fn get_mmio_addr<T: HasWords>(
    fid: *mut fi::fid,
    addr: *mut *mut c_void,
    len: *mut usize,
) -> c_int {
    let bytes = std::mem::offset_of!(layout::CounterDevice, unused);
    // SAFETY: the application passes an open counter, and places for the answers.
    guard(|| unsafe { answer(obj::<T, _>(fid)?.words()?.side.device_added(), bytes, addr, len) })
}

unsafe extern "C" fn get_wb_addr<T: HasWords>(
    fid: *mut fi::fid,
    addr: *mut *mut c_void,
    len: *mut usize,
) -> c_int {
    // SAFETY: as above.
    guard(|| unsafe { answer(obj::<T, _>(fid)?.words()?.side.device_word(), size_of::<u64>(), addr, len) })
}

unsafe extern "C" fn set_limit<T: HasWords>(fid: *mut fi::fid, value: u64, timeout_ns: u64) -> c_int {
    guard(|| {
        if value > xpu::counter::VALUE_MOST {
            log::info!("set_limit: {value} is more than a write-back word has: {}", xpu::counter::VALUE_MOST);
            return Err(Errno::INVAL);
        }
        // SAFETY: the application passes an open counter.
        let counter = unsafe { obj::<T, _>(fid) }?.words()?;
        counter.side.set_limit(value, (timeout_ns != 0).then(|| Duration::from_nanos(timeout_ns)));
        Ok(())
    })
}
