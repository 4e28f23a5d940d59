//! Devices of this host.

use core::ptr::NonNull;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::text;
use crate::{Error, Library, ibv_device};

/// What ibv_get_device_list(3) gave; freed with the last device of it. Contexts hold their devices by
/// themselves.
struct List {
    library: Library,
    first: NonNull<*mut ibv_device>,
}

// SAFETY: the list and its devices are constant while the list is there, and are no thread's.
unsafe impl Send for List {}
// SAFETY: as above.
unsafe impl Sync for List {}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the library's own list, with no device of it in use but by contexts.
        unsafe { (self.library.functions().ibv_free_device_list)(self.first.as_ptr()) };
    }
}

/// A device that may be opened.
#[derive(Clone)]
pub struct Device {
    list: Arc<List>,
    raw: NonNull<ibv_device>,
}

// SAFETY: a constant entry of the list, which is held.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// The devices of this host that the process may see. None is no error: then the list is empty.
    pub fn list(library: &Library) -> Result<Vec<Device>, Error> {
        const CALL: &str = "ibv_get_device_list";
        let mut count = 0;
        // SAFETY: the count is valid for a write.
        let list = unsafe { (library.functions().ibv_get_device_list)(&raw mut count) };
        let Some(list) = NonNull::new(list) else {
            let error = Error::last(CALL);
            // A kernel without RDMA.
            return if error.errno() == libc::ENOSYS { Ok(Vec::new()) } else { Err(error) };
        };
        // SAFETY: the library's list of `count` devices, which is handed over.
        Ok(unsafe { Self::all(library.clone(), list, usize::try_from(count).unwrap_or(0)) })
    }

    /// # Safety
    ///
    /// `first` is a list of `count` devices of this library, which nothing else frees.
    unsafe fn all(library: Library, first: NonNull<*mut ibv_device>, count: usize) -> Vec<Device> {
        let list = Arc::new(List { library, first });
        // SAFETY: the caller's promise.
        let devices = (0..count).filter_map(|at| NonNull::new(unsafe { *first.as_ptr().add(at) }));
        devices.map(|raw| Device { list: list.clone(), raw }).collect()
    }

    /// The library that it is of.
    pub fn library(&self) -> &Library {
        &self.list.library
    }

    pub(crate) fn raw(&self) -> *mut ibv_device {
        self.raw.as_ptr()
    }

    fn fields(&self) -> &ibv_device {
        // SAFETY: constant while the list is there.
        unsafe { self.raw.as_ref() }
    }

    /// Its name, as in /sys/class/infiniband.
    pub fn name(&self) -> String {
        text(&self.fields().name)
    }

    /// Where sysfs has it.
    pub fn sysfs(&self) -> PathBuf {
        text(&self.fields().ibdev_path).into()
    }

    /// Its node GUID, in the host's order.
    pub fn guid(&self) -> u64 {
        // SAFETY: a device of this library.
        u64::from_be(unsafe { (self.library().functions().ibv_get_device_guid)(self.raw()) })
    }

    /// Whether its connections are iWARP's, which librdmacm alone can make.
    pub fn is_iwarp(&self) -> bool {
        self.fields().transport_type == crate::IBV_TRANSPORT_IWARP
    }

    /// Whether it has queue pairs of InfiniBand or RoCE.
    pub fn is_infiniband(&self) -> bool {
        self.fields().transport_type == crate::IBV_TRANSPORT_IB
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.name()).finish()
    }
}
