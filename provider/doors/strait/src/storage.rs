//! Files to memory of any kind and back: `include/strait_storage.h`, which `ci/check/header` makes of it.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use c_abi::guard;
use libc::{c_char, c_int, c_void};
use p2pmem::storage::{File, Op, Options, Request, Results, Way};

use crate::peer::{errno, fill, has_size, not_null, refused, wrong};

/// strait_storage_open: the file is to be written too.
pub const STRAIT_STORAGE_WRITE: u32 = 1;
/// strait_storage_open: it is made if it is not there. Only with STRAIT_STORAGE_WRITE.
pub const STRAIT_STORAGE_CREATE: u32 = 2;
/// strait_storage_open: without O_DIRECT.
pub const STRAIT_STORAGE_NO_DIRECT: u32 = 4;
/// strait_storage_open: without cuFile.
pub const STRAIT_STORAGE_NO_CUFILE: u32 = 8;

/// strait_storage_info.path: nothing has been transferred yet.
pub const STRAIT_STORAGE_PATH_NONE: u32 = 0;
/// strait_storage_info.path: O_DIRECT into the memory itself.
pub const STRAIT_STORAGE_PATH_DIRECT: u32 = 1;
/// strait_storage_info.path: by cuFile.
pub const STRAIT_STORAGE_PATH_CUFILE: u32 = 2;
/// strait_storage_info.path: through buffers in host memory.
pub const STRAIT_STORAGE_PATH_BOUNCE: u32 = 3;
/// strait_storage_info.path: through the page cache.
pub const STRAIT_STORAGE_PATH_CACHED: u32 = 4;

/// An open file.
#[allow(non_camel_case_types)]
#[derive(Debug)]
pub struct strait_storage {
    file: Arc<File>,
}

/// Transfers that are under way.
#[allow(non_camel_case_types)]
#[derive(Debug)]
pub struct strait_storage_request {
    request: Request,
    /// Where results go, as the program said: where, and how many.
    ops: usize,
    count: usize,
}

/// One transfer of a batch.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct strait_storage_op {
    /// The memory: a device's, a buffer of strait_p2pmem.h, or the host's.
    pub addr: *mut c_void,
    /// Bytes.
    pub len: usize,
    /// Where in the file.
    pub offset: u64,
    /// 1: from memory to the file.
    pub write: u32,
    /// 0.
    pub reserved: u32,
    /// Out: bytes, or an errno below 0.
    pub result: i64,
}

/// Which ways a file's bytes have taken.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Debug)]
pub struct strait_storage_info {
    /// In: sizeof(struct strait_storage_info).
    pub size: usize,
    /// Out: that of the last transfer, of STRAIT_STORAGE_PATH_.
    pub path: u32,
    /// Out: 0.
    pub reserved: u32,
    /// Out: bytes by O_DIRECT into the memory itself.
    pub direct: u64,
    /// Out: bytes by cuFile.
    pub cufile: u64,
    /// Out: bytes through buffers in host memory.
    pub bounce: u64,
    /// Out: bytes through the page cache.
    pub cached: u64,
    /// Out: why the last transfer took no better way, or "".
    pub why: [c_char; 240],
}

/// The words of the last error that a function of this header returned in this thread. Valid until the next
/// one.
#[unsafe(no_mangle)]
pub extern "C" fn strait_storage_error() -> *const c_char {
    crate::peer::strait_p2pmem_error()
}

/// Opens a file or a disk. `flags` are of STRAIT_STORAGE_.
///
/// 0, or an errno below 0: -EINVAL also for a pipe, a socket, a character device or a directory.
/// The bytes of `path` are taken as they are: they need not be UTF-8.
///
/// # Safety
/// `path` is NULL or a C string; `opened` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_storage_open(
    path: *const c_char,
    flags: u32,
    opened: *mut *mut strait_storage,
) -> c_int {
    guard(|| {
        if path.is_null() || opened.is_null() {
            return Err(wrong("`path` or `opened` is NULL"));
        }
        if flags > 15 {
            return Err(wrong("`flags` has others than those of STRAIT_STORAGE_"));
        }
        // SAFETY: the program's promise. A path is bytes of any kind.
        let path = OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes());
        let has = |flag: u32| flags & flag != 0;
        let options = Options {
            write: has(STRAIT_STORAGE_WRITE),
            create: has(STRAIT_STORAGE_CREATE),
            direct: !has(STRAIT_STORAGE_NO_DIRECT),
            cufile: !has(STRAIT_STORAGE_NO_CUFILE),
        };
        let file = Arc::new(errno(File::open(Path::new(path), options))?);
        // SAFETY: it is not NULL: valid for a write by the program's promise.
        unsafe { opened.write(Box::into_raw(Box::new(strait_storage { file }))) };
        Ok(())
    })
}

/// Closes a file. What was submitted goes on.
///
/// # Safety
/// `opened` is NULL or came from strait_storage_open, was not closed, and no other function is being called
/// with it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_storage_close(opened: *mut strait_storage) -> c_int {
    guard(|| {
        if !opened.is_null() {
            // SAFETY: the program's promise.
            drop(unsafe { Box::from_raw(opened) });
        }
        Ok(())
    })
}

/// # Safety
/// `opened` is NULL or a file that is open; the memory is as the header says.
unsafe fn transfer(opened: *mut strait_storage, op: Op) -> i64 {
    let mut bytes = 0;
    let code = guard(|| {
        // SAFETY: the caller's promise.
        let file = not_null(unsafe { opened.as_ref() }, "`opened`").map(|o| &o.file)?;
        // SAFETY: the caller's promise: the memory is as the header says.
        let done = unsafe {
            match op.write {
                true => file.write(op.addr, op.len, op.offset),
                false => file.read(op.addr, op.len, op.offset),
            }
        };
        bytes = errno(done)? as i64;
        Ok(())
    });
    if code == 0 { bytes } else { code.into() }
}

/// Reads `len` bytes of the file, from byte `offset` on, into memory of any kind.
///
/// How many bytes, fewer at the end of the file; or an errno below 0: -EIO also if the memory's device has
/// gone.
///
/// # Safety
/// `opened` is NULL or a file that is open. The memory may be written, and stays until this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_storage_read(
    opened: *mut strait_storage,
    addr: *mut c_void,
    len: usize,
    offset: u64,
) -> i64 {
    // SAFETY: the program's promise.
    unsafe { transfer(opened, Op { write: false, addr: addr.expose_provenance(), len, offset }) }
}

/// Writes `len` bytes of memory of any kind to the file, from its byte `offset` on. Else as
/// strait_storage_read.
///
/// # Safety
/// `opened` is NULL or a file that is open. The memory may be read, and stays until this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_storage_write(
    opened: *mut strait_storage,
    addr: *const c_void,
    len: usize,
    offset: u64,
) -> i64 {
    // SAFETY: the program's promise.
    unsafe { transfer(opened, Op { write: true, addr: addr.expose_provenance(), len, offset }) }
}

/// The program's transfers, and what they mean.
///
/// # Safety
/// `ops` is NULL or has `count` entries, which nothing else uses meanwhile.
unsafe fn asked<'a>(
    ops: *mut strait_storage_op,
    count: usize,
) -> Result<(&'a mut [strait_storage_op], Vec<Op>), c_int> {
    if count == 0 {
        return Ok((&mut [], Vec::new()));
    }
    // No array is longer than half of the address space.
    let whole = count.checked_mul(size_of::<strait_storage_op>()).filter(|n| isize::try_from(*n).is_ok());
    if ops.is_null() || !ops.is_aligned() || whole.is_none() {
        return Err(wrong("`ops` is NULL or not aligned, or `count` is too large"));
    }
    // SAFETY: the caller's promise.
    let ops = unsafe { std::slice::from_raw_parts_mut(ops, count) };
    if ops.iter().any(|op| op.write > 1 || op.reserved != 0) {
        return Err(wrong("`write` of a transfer is neither 0 nor 1, or its `reserved` is not 0"));
    }
    let asked = ops.iter().map(|op| Op {
        write: op.write == 1,
        addr: op.addr.expose_provenance(),
        len: op.len,
        offset: op.offset,
    });
    let asked = asked.collect();
    Ok((ops, asked))
}

/// Each one's result.
fn report(ops: &mut [strait_storage_op], done: Results) {
    for (op, done) in ops.iter_mut().zip(done) {
        op.result = match done {
            Ok(bytes) => bytes as i64,
            Err(e) => -i64::from(errno::<()>(Err(e)).unwrap_err()),
        };
    }
}

/// Does `count` transfers, several at once and in any order, and returns when all are done. Each one's
/// `result` is what strait_storage_read or strait_storage_write would have returned.
///
/// 0, or -EINVAL.
///
/// # Safety
/// `opened` is NULL or a file that is open; `ops` has `count` entries, with memory as of strait_storage_read
/// or strait_storage_write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_storage_batch(
    opened: *mut strait_storage,
    ops: *mut strait_storage_op,
    count: usize,
) -> c_int {
    guard(|| {
        // SAFETY: the program's promise.
        let file = not_null(unsafe { opened.as_ref() }, "`opened`").map(|o| &o.file)?;
        if count == 0 {
            return Ok(());
        }
        // SAFETY: the program's promise: `count` operations.
        let (ops, asked) = unsafe { asked(ops, count)? };
        // SAFETY: the program's promise: the memory of each operation is as the header says.
        let done = unsafe { file.batch(&asked) };
        report(ops, done);
        Ok(())
    })
}

/// Begins `count` transfers and returns: they go on, several at once and in any order. `*request` is to be
/// released.
///
/// 0, or an errno below 0. What each transfer comes to is in `ops` when strait_storage_poll or
/// strait_storage_wait has said that the request is done.
///
/// # Safety
/// As of strait_storage_batch; `ops` and the memory stay until the request is done or released. `request` is
/// NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_storage_submit(
    opened: *mut strait_storage,
    ops: *mut strait_storage_op,
    count: usize,
    request: *mut *mut strait_storage_request,
) -> c_int {
    // SAFETY: the program's promise.
    unsafe { submit(opened, ops, count, None, request) }
}

/// Begins `count` transfers of several files: that of `ops[n]` is with `files[n]`. A few threads do all of
/// them, in pieces, so that a hundred files take no more threads and buffers than one. Else as
/// strait_storage_submit; strait_storage_error names the file of a transfer that failed.
///
/// # Safety
/// As of strait_storage_submit; `files` is NULL or has `count` entries, each of which is NULL or a file that
/// is open, and which may be closed when this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_storage_submit_files(
    files: *const *mut strait_storage,
    ops: *mut strait_storage_op,
    count: usize,
    request: *mut *mut strait_storage_request,
) -> c_int {
    guard(|| {
        if request.is_null() || (count > 0 && (files.is_null() || !files.is_aligned())) {
            return Err(wrong("`request` or `files` is NULL, or `files` is not aligned"));
        }
        // SAFETY: the program's promise.
        let (_, asked) = unsafe { asked(ops, count)? };
        let mut all = Vec::with_capacity(count);
        for (n, op) in asked.into_iter().enumerate() {
            // SAFETY: the program's promise: so many entries, each NULL or open.
            let file = not_null(unsafe { (*files.add(n)).as_ref() }, "a file")?;
            all.push((Arc::clone(&file.file), op));
        }
        // SAFETY: the memory of the operations is the program's promise, too.
        let begun = unsafe { Request::submit_files(&all) };
        let made = strait_storage_request { request: begun, ops: ops.expose_provenance(), count };
        // SAFETY: the program has a place for it.
        unsafe { request.write(Box::into_raw(Box::new(made))) };
        Ok(())
    })
}

/// Queues `count` transfers on a stream of CUDA's (a CUstream or cudaStream_t): they begin when all that was
/// queued there before is done, and what is queued there later waits for them. Else as strait_storage_submit.
///
/// A read ends where the file ends, as far as that is known now; what was queued by this function to be
/// written counts. The memory is CUDA's, a buffer of strait_p2pmem.h, or the host's; with other kinds
/// -EOPNOTSUPP, as with a stream that is being captured. A transfer that fails does not stop the stream: its
/// result is an errno, and its memory's contents are undefined.
///
/// # Safety
/// As of strait_storage_submit; `stream` is a stream of this process, and is destroyed after the request is
/// done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_storage_submit_on_stream(
    opened: *mut strait_storage,
    ops: *mut strait_storage_op,
    count: usize,
    stream: *mut c_void,
    request: *mut *mut strait_storage_request,
) -> c_int {
    // SAFETY: the program's promise.
    unsafe { submit(opened, ops, count, Some(stream.expose_provenance()), request) }
}

/// # Safety
/// As of the two above.
unsafe fn submit(
    opened: *mut strait_storage,
    ops: *mut strait_storage_op,
    count: usize,
    stream: Option<usize>,
    request: *mut *mut strait_storage_request,
) -> c_int {
    guard(|| {
        // SAFETY: the program's promise.
        let file = not_null(unsafe { opened.as_ref() }, "`opened`").map(|o| &o.file)?;
        if request.is_null() {
            return Err(wrong("`request` is NULL"));
        }
        // SAFETY: the program's promise: `count` operations.
        let (_, asked) = unsafe { asked(ops, count)? };
        // SAFETY: the program's promise: the memory of each stays until the request is over.
        let begun = unsafe {
            match stream {
                None => Request::submit(file, &asked),
                Some(stream) => errno(Request::submit_on(file, &asked, stream))?,
            }
        };
        let made = strait_storage_request { request: begun, ops: ops.expose_provenance(), count };
        // SAFETY: it is not NULL: valid for a write by the program's promise.
        unsafe { request.write(Box::into_raw(Box::new(made))) };
        Ok(())
    })
}

/// # Safety
/// `request` is NULL, or as the header says.
unsafe fn finished(request: *mut strait_storage_request, most: Option<Duration>) -> Result<bool, c_int> {
    // SAFETY: the caller's promise.
    let of = not_null(unsafe { request.as_ref() }, "`request`")?;
    if !of.request.wait(most) {
        return Ok(false);
    }
    let results = of.request.take().unwrap_or_default();
    if !results.is_empty() {
        let ops = std::ptr::with_exposed_provenance_mut(of.ops);
        // SAFETY: the program's promise: they stay until their completion, and it does not use them before.
        report(unsafe { std::slice::from_raw_parts_mut(ops, of.count) }, results);
    }
    Ok(true)
}

/// Whether all of a request's transfers are done. Their results are in the program's strait_storage_op then,
/// and strait_storage_error has the words of one that failed.
///
/// 1 if so, 0 if not, -EINVAL.
///
/// # Safety
/// `request` is NULL or not released, and in use by no other thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_storage_poll(request: *mut strait_storage_request) -> c_int {
    let mut done = false;
    let code = guard(|| {
        // SAFETY: the program's promise.
        done = unsafe { finished(request, Some(Duration::ZERO))? };
        Ok(())
    });
    if code == 0 { done.into() } else { code }
}

/// Waits until all of a request's transfers are done, for at most `timeout_ms` milliseconds, or for ever if
/// that is below 0. Else as strait_storage_poll.
///
/// 0 if they are, -ETIMEDOUT if not, -EINVAL.
///
/// # Safety
/// As of strait_storage_poll. Not within a function that a stream calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_storage_wait(
    request: *mut strait_storage_request,
    timeout_ms: c_int,
) -> c_int {
    guard(|| {
        let most = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        // SAFETY: the program's promise.
        if unsafe { finished(request, most)? } {
            Ok(())
        } else {
            Err(refused(libc::ETIMEDOUT, &"the transfers are not done"))
        }
    })
}

/// Gives a request back; waits for its transfers, if they are not done. NULL is ignored.
///
/// 0.
///
/// # Safety
/// `request` is NULL or not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_storage_release(request: *mut strait_storage_request) -> c_int {
    guard(|| {
        if !request.is_null() {
            // SAFETY: the program's promise.
            drop(unsafe { Box::from_raw(request) });
        }
        Ok(())
    })
}

/// Which ways the file's bytes have taken, and why no better one.
///
/// 0, or -EINVAL.
///
/// # Safety
/// `opened` is NULL or a file that is open; `info` is NULL or points to as many bytes as its `size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_storage_query(
    opened: *mut strait_storage,
    info: *mut strait_storage_info,
) -> c_int {
    guard(|| {
        // SAFETY: the program's promise.
        let file = unsafe {
            has_size(info)?;
            not_null(opened.as_ref(), "`opened`").map(|o| &o.file)?
        };
        let report = file.report();
        // SAFETY: the program's promise; by its size it has all of these fields.
        let info = unsafe { &mut *info };
        info.path = report.last.map_or(STRAIT_STORAGE_PATH_NONE, |way| way as u32 + 1);
        info.reserved = 0;
        [info.direct, info.cufile, info.bounce, info.cached] = report.bytes;
        fill(&mut info.why, &report.why);
        Ok(())
    })
}

const _: () = assert!(
    STRAIT_STORAGE_PATH_DIRECT == Way::Direct as u32 + 1
        && STRAIT_STORAGE_PATH_CUFILE == Way::Cufile as u32 + 1
        && STRAIT_STORAGE_PATH_BOUNCE == Way::Bounce as u32 + 1
        && STRAIT_STORAGE_PATH_CACHED == Way::Cached as u32 + 1
);
