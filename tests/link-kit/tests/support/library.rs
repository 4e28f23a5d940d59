//! The libfabric that STRAIT_TEST_LIBFABRIC names.

use std::sync::OnceLock;

use libfabric_sys::Core;

pub fn core() -> Core {
    static CORE: OnceLock<Core> = OnceLock::new();
    *CORE.get_or_init(|| {
        let name = std::env::var("STRAIT_TEST_LIBFABRIC").unwrap_or_else(|_| "libfabric.so.1".into());
        // SAFETY: a libfabric, whose initialisers may run here.
        let library = unsafe { libloading::Library::new(&name) }.expect("a libfabric: see ci/get/libfabric");
        std::mem::forget(library);
        Core::find(None).expect("what was just loaded")
    })
}
