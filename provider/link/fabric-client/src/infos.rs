//! Lists of fi_info, freed when dropped.

use std::ffi::{CStr, CString, c_char};
use std::ptr::NonNull;

use libfabric_sys as fi;

/// A list of what a core has given out: hints, what it found, or a copy.
#[derive(Debug)]
pub struct Infos {
    core: fi::Core,
    first: NonNull<fi::fi_info>,
}

// SAFETY: memory of the core's that nothing else refers to, and that is no thread's.
unsafe impl Send for Infos {}

impl Infos {
    /// Empty hints with all their attributes, for this provider if one is named.
    pub fn hints(core: &fi::Core, provider: Option<&str>) -> Result<Infos, i32> {
        let first = NonNull::new(core.allocinfo()).ok_or(-fi::FI_ENOMEM)?;
        let hints = Infos { core: *core, first };
        if let Some(provider) = provider {
            let name = CString::new(provider).map_err(|_| -fi::FI_EINVAL)?;
            // SAFETY: just made, with its attributes. The name is a copy on C's heap, as fi_freeinfo(3) frees
            // it.
            unsafe { (*(*hints.at()).fabric_attr).prov_name = libc::strdup(name.as_ptr()) };
        }
        Ok(hints)
    }

    /// What fits these hints: one entry at least.
    pub fn find(&self, version: u32, node: Option<&CStr>, flags: u64) -> Result<Infos, i32> {
        // SAFETY: hints of this core's.
        let found = unsafe { self.core.getinfo(version, node, flags, self.at()) }?;
        let first = NonNull::new(found).ok_or(-fi::FI_ENODATA)?;
        Ok(Infos { core: self.core, first })
    }

    /// A copy of one entry.
    ///
    /// # Safety
    /// `info` is one that this core has given out.
    pub unsafe fn copy(core: &fi::Core, info: *const fi::fi_info) -> Option<Infos> {
        // SAFETY: the caller's promise.
        let first = NonNull::new(unsafe { core.dupinfo(info) })?;
        Some(Infos { core: *core, first })
    }

    /// The core that it is of.
    pub fn core(&self) -> &fi::Core {
        &self.core
    }

    /// The first entry.
    pub fn at(&self) -> *mut fi::fi_info {
        self.first.as_ptr()
    }

    /// All entries, best first.
    pub fn iter(&self) -> impl Iterator<Item = *mut fi::fi_info> + '_ {
        std::iter::successors(Some(self.at()), |at| {
            // SAFETY: an entry of the list, which lives as long as `self`.
            let next = unsafe { (**at).next };
            (!next.is_null()).then_some(next)
        })
    }
}

impl Drop for Infos {
    fn drop(&mut self) {
        // SAFETY: the core's own list, which nothing refers to any more.
        unsafe { self.core.freeinfo(self.at()) };
    }
}

/// The name of the provider that an entry is of.
///
/// # Safety
/// `info` is an entry of a list that is still there.
pub unsafe fn provider_of(info: *const fi::fi_info) -> String {
    // SAFETY: the caller's promise: attributes are there or null, and strings end in NUL.
    unsafe {
        let attr = (*info).fabric_attr;
        if attr.is_null() { String::new() } else { text((*attr).prov_name).unwrap_or_default() }
    }
}

/// The name of the fabric that an entry is of.
///
/// # Safety
/// `info` is an entry of a list that is still there.
pub unsafe fn fabric_of(info: *const fi::fi_info) -> String {
    // SAFETY: the caller's promise: attributes are there or null, and strings end in NUL.
    unsafe {
        let attr = (*info).fabric_attr;
        if attr.is_null() { String::new() } else { text((*attr).name).unwrap_or_default() }
    }
}

/// # Safety
///
/// The pointer is null or to a string that ends in NUL.
pub(crate) unsafe fn text(pointer: *const c_char) -> Option<String> {
    // SAFETY: the caller's promise.
    (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned())
}
