//! The boundary: no panic leaves the crate, no pointer enters it unchecked.
//!
//! Every object an application holds is a `#[repr(C)]` struct whose first field is libfabric's
//! `fid_*`, in a `Box`. The application sees a pointer to that field; [`obj`] is the way back.

use std::any::type_name_of_val;
use std::ffi::CStr;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_char, c_int, c_void};
use libfabric_sys as fi;

use crate::errno::Errno;

/// What an entry point may return: 0 or a count, or an error below zero.
pub(crate) trait Code {
    fn fail(e: Errno) -> Self;
    fn done(n: usize) -> Self;
    /// Of calls that open, bind, control or close something, not of those that move data or poll.
    const CONTROLS: bool;
}

impl Code for c_int {
    fn fail(e: Errno) -> c_int {
        -e.0
    }
    fn done(n: usize) -> c_int {
        n.try_into().unwrap_or(c_int::MAX)
    }
    const CONTROLS: bool = true;
}

impl Code for isize {
    fn fail(e: Errno) -> isize {
        -(e.0 as isize)
    }
    fn done(n: usize) -> isize {
        n.try_into().unwrap_or(isize::MAX)
    }
    const CONTROLS: bool = false;
}

/// What an entry point's body may answer.
pub(crate) trait Answer {
    fn count(self) -> usize;
}

impl Answer for () {
    fn count(self) -> usize {
        0
    }
}

impl Answer for usize {
    fn count(self) -> usize {
        self
    }
}

/// The body of an entry point: `Ok` becomes 0 or the count, an error its negative number, and a
/// panic, once logged, `-FI_EOTHER`.
#[inline]
pub(crate) fn guard<A: Answer, C: Code>(body: impl FnOnce() -> Result<A, Errno>) -> C {
    let name = type_name_of_val(&body);
    // The number is made inside: an answer would be passed on in memory.
    let number = || match body() {
        Ok(a) => C::done(a.count()),
        Err(e) => {
            if C::CONTROLS {
                crate::journal::failed(name, e.0, crate::errno::text);
            }
            C::fail(e)
        }
    };
    catch_unwind(AssertUnwindSafe(number)).unwrap_or_else(|what| C::fail(panicked(what)))
}

/// The body of an entry point that has no way to answer an error but a value of its own.
#[inline]
pub(crate) fn guard_or<T>(on_panic: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|what| {
        panicked(what);
        on_panic
    })
}

#[cold]
fn panicked(what: Box<dyn std::any::Any + Send>) -> Errno {
    runtime::caught(what).into()
}

/// An object applications hold by its `fid`.
///
/// # Safety
/// The type is `#[repr(C)]`, starts with a `fid_*` struct, lives in a `Box`, and every one of them
/// has `fid.fclass == CLASS` and `fid.ops == ops()`, which no other type has.
pub(crate) unsafe trait Fid {
    const CLASS: usize;
    fn ops() -> *const fi::fi_ops;
}

/// The object behind a `fid_*` pointer, or `FI_EINVAL` if it is not one of ours of that type.
///
/// # Safety
/// `p` is NULL or points to a live `fid` (of any provider), whose object nothing closes during `'a`.
#[inline]
pub(crate) unsafe fn obj<'a, T: Fid, P>(p: *const P) -> Result<&'a T, Errno> {
    let head = p.cast::<fi::fid>();
    if head.is_null() || !head.is_aligned() {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller says that it points to a live fid.
    let head = unsafe { &*head };
    if head.fclass != T::CLASS || !std::ptr::eq(head.ops, T::ops()) {
        return Err(Errno::INVAL);
    }
    // SAFETY: class and ops together are only in objects of type `T` (`Fid`'s promise), whose first
    // field this is, and which stays alive for 'a by the caller's word.
    Ok(unsafe { &*p.cast::<T>() })
}

/// The object behind a `fid_*` pointer by whose own table of functions the call came: which it is
/// need not be asked, and is asked only where that costs no time.
///
/// # Safety
/// `p` is the first argument of a function that is in no table but `T`'s, and of a call made through the
/// table of the object it points to; nothing closes that object during `'a`.
#[inline(always)]
pub(crate) unsafe fn this<'a, T: Fid, P>(p: *const P) -> Result<&'a T, Errno> {
    if cfg!(debug_assertions) {
        // SAFETY: the caller's promise says more than `obj` asks for.
        return unsafe { obj(p) };
    }
    if p.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: only objects of type `T` have such a table, by the caller's promise, and `Fid`'s says that
    // the object begins there.
    Ok(unsafe { &*p.cast::<T>() })
}

/// Whether the `fid` is one of ours of that type.
///
/// # Safety
/// As for [`obj`].
#[inline]
pub(crate) unsafe fn is<T: Fid, P>(p: *const P) -> bool {
    // SAFETY: the caller's promise is `obj`'s.
    unsafe { obj::<T, P>(p) }.is_ok()
}

/// Hands a new object to the application.
pub(crate) fn publish<T: Fid, P>(object: Box<T>) -> *mut P {
    Box::into_raw(object).cast()
}

/// Takes an object back to drop it.
///
/// # Safety
/// `object` came from [`publish`] by way of [`obj`], and nothing uses it from now on.
pub(crate) unsafe fn reclaim<T: Fid>(object: *const T) -> Box<T> {
    // SAFETY: the caller's promise.
    unsafe { Box::from_raw(object.cast_mut()) }
}

/// A `fid` header.
pub(crate) fn header<T: Fid>(context: *mut c_void) -> fi::fid {
    fi::fid { fclass: T::CLASS, context, ops: T::ops().cast_mut() }
}

/// How many other objects refer to one: it cannot be closed before they are.
#[derive(Debug, Default)]
pub(crate) struct Refs(AtomicUsize);

impl Refs {
    pub(crate) fn inc(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn dec(&self) {
        let before = self.0.fetch_sub(1, Ordering::Release);
        debug_assert!(before > 0, "one reference too many was given up");
    }

    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }

    /// `FI_EBUSY` while there are any.
    pub(crate) fn none(&self) -> Result<(), Errno> {
        if self.any() { Err(Errno::BUSY) } else { Ok(()) }
    }
}

/// An object that counts the references to it, and whose `close` answers `FI_EBUSY` while there are any.
pub(crate) trait Counted {
    fn refs(&self) -> &Refs;
}

/// A reference to an object, which it keeps open.
#[derive(Debug)]
pub(crate) struct Ref<T: Counted>(NonNull<T>);

impl<T: Counted> Ref<T> {
    pub(crate) fn new(to: &T) -> Self {
        to.refs().inc();
        Ref(NonNull::from(to))
    }
}

impl<T: Counted> Deref for Ref<T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: made from a reference to an object in a `Box`, and since then its `refs` have
        // kept `close` from freeing it.
        unsafe { self.0.as_ref() }
    }
}

impl<T: Counted> Drop for Ref<T> {
    fn drop(&mut self) {
        self.refs().dec();
    }
}

// SAFETY: it gives out nothing but `&T`, and is as good on any thread.
unsafe impl<T: Counted + Sync> Send for Ref<T> {}
// SAFETY: as above.
unsafe impl<T: Counted + Sync> Sync for Ref<T> {}

/// A reference to read through, or `FI_EINVAL` for NULL.
///
/// # Safety
/// `p` is NULL or points to a `T` that nothing writes during `'a`.
pub(crate) unsafe fn arg<'a, T>(p: *const T) -> Result<&'a T, Errno> {
    // SAFETY: the caller's promise.
    unsafe { p.as_ref() }.ok_or(Errno::INVAL)
}

/// Flags of a call that knows these, or `FI_EBADFLAGS`.
#[inline]
pub(crate) fn known(flags: u64, of: u64) -> Result<(), Errno> {
    if flags & !of != 0 { Err(Errno::BADFLAGS) } else { Ok(()) }
}

/// Stores a result where the application asked, or answers `FI_EINVAL` for NULL.
///
/// # Safety
/// `at` is NULL or valid for a write.
pub(crate) unsafe fn put<T>(at: *mut T, value: T) -> Result<(), Errno> {
    if at.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller's promise.
    unsafe { at.write(value) };
    Ok(())
}

/// fi_open_ops(3) of an object that has these tables.
///
/// # Safety
/// `name` is NULL or a string, `ops` NULL or a place for the answer.
pub(crate) unsafe fn open_ops(
    name: *const c_char,
    flags: u64,
    ops: *mut *mut c_void,
    table: impl FnOnce(&CStr) -> Option<*const c_void>,
) -> c_int {
    guard(|| {
        if name.is_null() || flags != 0 {
            return Err(Errno::INVAL);
        }
        // SAFETY: the caller's promise.
        let table = table(unsafe { CStr::from_ptr(name) }).ok_or(Errno::NOSYS)?;
        // SAFETY: the caller's promise: `ops` is NULL or a place for the answer.
        unsafe { put(ops, table.cast_mut()) }
    })
}
