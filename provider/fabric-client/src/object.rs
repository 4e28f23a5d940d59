//! An object of libfabric, closed when dropped.

use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use libc::c_int;
use libfabric_sys as sys;

use crate::{Error, Info, Library};

/// Structures whose first member is a `struct fid`.
///
/// # Safety
///
/// That is so: the layout is C's and `fid` is at offset 0.
pub unsafe trait Object {
    const NAME: &'static str;
}

macro_rules! objects {
    ($($type:ident $name:literal)*) => { $(
        const _: () = assert!(std::mem::offset_of!(sys::$type, fid) == 0);
        // SAFETY: checked by the line above.
        unsafe impl Object for sys::$type {
            const NAME: &'static str = $name;
        }
    )* };
}

objects! {
    fid_fabric "fabric"
    fid_domain "domain"
    fid_av "address vector"
    fid_cq "completion queue"
    fid_ep "endpoint"
    fid_mr "memory region"
}

/// An open object, which this owns.
#[derive(Debug)]
pub struct Own<T: Object> {
    raw: NonNull<T>,
    // The code behind the object's tables stays loaded as long as the object.
    library: Arc<Library>,
}

impl<T: Object> Own<T> {
    /// Takes what `open` makes: it gets a place for the pointer and answers 0 or a negative error.
    ///
    /// # Safety
    ///
    /// If `open` answers 0 it has put a pointer there to a new object of libfabric, which nothing
    /// else closes.
    pub unsafe fn open(
        library: &Arc<Library>,
        open: impl FnOnce(*mut *mut T) -> c_int,
    ) -> Result<Own<T>, Error> {
        let mut place = null_mut();
        library.check(open(&mut place), &format!("opening the {}", T::NAME))?;
        let raw = NonNull::new(place)
            .ok_or_else(|| Error::Failed(format!("opening the {} gave nothing", T::NAME)))?;
        Ok(Own { raw, library: library.clone() })
    }

    pub fn as_ptr(&self) -> *mut T {
        self.raw.as_ptr()
    }

    pub fn fid(&self) -> *mut sys::fid {
        self.raw.as_ptr().cast()
    }

    /// `fi_*_bind`
    pub fn bind<To: Object>(&self, to: &Own<To>, flags: u64, what: &str) -> Result<(), Error> {
        // SAFETY: the object is open, so its `fid` and the table in it are valid.
        let bind = unsafe { (*(*self.fid()).ops).bind };
        let bind = self.library.have(bind, "bind")?;
        // SAFETY: both are open objects of the same domain.
        let rc = unsafe { bind(self.fid(), to.fid(), flags) };
        self.library.check(rc, &format!("binding {what}"))
    }

    /// `fi_enable` and `fi_mr_enable`
    pub fn enable(&self) -> Result<(), Error> {
        // SAFETY: the object is open, so its `fid` and the table in it are valid.
        let control = unsafe { (*(*self.fid()).ops).control };
        let control = self.library.have(control, "control")?;
        // SAFETY: the object is open and FI_ENABLE takes no argument.
        let rc = unsafe { control(self.fid(), sys::FI_ENABLE, null_mut()) };
        self.library.check(rc, &format!("enabling the {}", T::NAME))
    }
}

impl Own<sys::fid_fabric> {
    /// The fabric of an info.
    pub fn fabric(info: &Info) -> Result<Own<sys::fid_fabric>, Error> {
        let library = info.library();
        // SAFETY: fi_fabric makes a new object on success.
        unsafe { Own::open(library, |place| library.open_fabric(info, place)) }
    }
}

impl<T: Object> Drop for Own<T> {
    fn drop(&mut self) {
        // SAFETY: the object is open and ours; what was opened from it is closed before it, by
        // the order of the fields of `Endpoint`. A provider that cannot close it keeps it.
        unsafe {
            if let Some(close) = (*(*self.fid()).ops).close {
                close(self.fid());
            }
        }
    }
}
