//! The job.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI32};

use libc::c_int;

use super::handles::{close_all, guard, here, job, job_place, status, words};
use super::types::*;
use super::{borrow, groups, lend, many};
use crate::{Context, Error, Settings, backends, start};

/// The process that has called rinit: a forked child is not it.
static PID: AtomicI32 = AtomicI32::new(0);
/// It has left its job by rfinalize.
static LEFT: AtomicBool = AtomicBool::new(false);

/// Joins the job that this process was started in, and gives its rank. `attr` may be NULL. Once that has
/// succeeded it is an error, also after rfinalize.
///
/// 0, or an errno below 0; rerror has its words.
///
/// # Safety
/// `rank` is NULL or valid for a write; `attr` is NULL or a structure that begins with its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rinit(rank: *mut c_int, attr: *const rinit_attr) -> c_int {
    status(|| {
        here()?;
        let mut settings = Settings::from_environment()?;
        // SAFETY: the program's promise.
        if let Some(attr) = unsafe { attr.as_ref() } {
            if attr.size < size_of::<rinit_attr>() {
                return Err(Error::Invalid("rinit_attr.size has to be sizeof(struct rinit_attr)".into()));
            }
            // SAFETY: the program's promise: NULL or a C string.
            if let Some(name) = unsafe { words(attr.backend)? } {
                name.clone_into(&mut settings.backend);
            }
        }
        let mut job = job_place();
        if job.is_some() {
            return Err(Error::Invalid("this process is in its job already: rinit is called once".into()));
        }
        if LEFT.load(Relaxed) {
            return Err(Error::Invalid(
                "this process has left its job (rfinalize): rinit is called once".into(),
            ));
        }
        let bootstrap = start::find()?;
        let backend = backends::open(&settings, bootstrap.rank())?;
        let context = Context::new(backend, bootstrap, settings)?;
        if !rank.is_null() {
            // SAFETY: the program's promise.
            unsafe { rank.write(context.rank() as c_int) };
        }
        *job = Some(Arc::new(context));
        // SAFETY: getpid(2) and atexit(3) touch no memory of ours; the library is never unloaded.
        unsafe {
            if PID.swap(libc::getpid(), Relaxed) == 0 {
                libc::atexit(at_exit);
            }
        }
        Ok(())
    })
}

/// A program that ends without rfinalize.
extern "C" fn at_exit() {
    // SAFETY: getpid(2) touches no memory.
    if PID.load(Relaxed) == unsafe { libc::getpid() } {
        if let Some(Err(fault @ Error::TimedOut(_))) = c_abi::caught(leave) {
            // Nothing else can report it.
            eprintln!("strait_rpipe: exit: {fault}");
        }
    }
}

fn leave() -> Result<(), Error> {
    let Some(context) = job_place().take() else { return Ok(()) };
    let until = context.leaves_by();
    borrow::close_all();
    lend::close_all(&context);
    let groups = groups::close_all();
    many::forget_all();
    groups.and(close_all(until)).and(context.close_by(until))
}

/// Leaves the job: closes all pipes, after what was written has left. Peers read what was written before. A
/// program that ends without it has left too. ETIMEDOUT: it has left, and some of what was written may be
/// lost (STRAIT_RPIPE_LINGER).
#[unsafe(no_mangle)]
pub extern "C" fn rfinalize() -> c_int {
    status(|| {
        job()?;
        LEFT.store(true, Relaxed);
        leave()
    })
}

/// Processes of the job, or an errno below 0.
#[unsafe(no_mangle)]
pub extern "C" fn rcount() -> c_int {
    guard(|| Ok(job()?.size() as c_int)).unwrap_or_else(|code| code)
}
