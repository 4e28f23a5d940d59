//! The core is found in an installed libfabric, loaded as a plugin would load it.

use libfabric_sys::*;
use std::ptr::{null, null_mut};

#[test]
fn installed() {
    // SAFETY: nothing else runs in this test program, so nothing reads the environment meanwhile.
    unsafe { std::env::set_var("FI_STRAITTEST_KNOB", "42") };

    // SAFETY: libfabric's initialisers are fit to run anywhere.
    let library = unsafe { libc::dlopen(c"libfabric.so.1".as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        eprintln!("skipped: libfabric.so.1 is not installed (apt install libfabric1)");
        return;
    }
    // SAFETY: the handle is open and the name ends in NUL.
    let getinfo = unsafe { libc::dlsym(library, c"fi_getinfo".as_ptr()) };
    assert!(!getinfo.is_null());

    // No core is on the stack here: it is found by name, and by an address inside it.
    let core = Core::find(None).expect("libfabric.so.1 is loaded");
    assert_eq!(core.found(), Found::Loaded);
    let by_address = Core::find(Some(getinfo)).expect("it is loaded");
    assert_eq!(by_address.found(), Found::Caller);
    assert_eq!(core.path(), by_address.path());
    println!("{:?} is of version {:#x}", core.path(), core.version());

    assert!(core.at_least(1, 5));
    assert!(!core.at_least(99, 0));
    assert_eq!(core.strerror(FI_ENOCQ), core.strerror(-FI_ENOCQ));
    assert!(!core.strerror(FI_EAGAIN).is_empty());

    type GetInfo = unsafe extern "C" fn(
        u32,
        *const libc::c_char,
        *const libc::c_char,
        u64,
        *const fi_info,
        *mut *mut fi_info,
    ) -> libc::c_int;
    let mut infos: *mut fi_info = null_mut();
    // SAFETY: this is fi_getinfo's type; it also starts the core, which parameters need.
    unsafe {
        let getinfo: GetInfo = std::mem::transmute(getinfo);
        getinfo(core.version(), null(), null(), 0, null(), &mut infos);
        core.freeinfo(infos);
    }

    let info = core.allocinfo();
    assert!(!info.is_null());
    // SAFETY: just allocated by the core with all its attributes, and freed once.
    unsafe {
        assert!(!(*info).domain_attr.is_null() && !(*info).ep_attr.is_null());
        (*info).caps = FI_MSG | FI_TAGGED;
        let copy = core.dupinfo(info);
        assert_eq!((*copy).caps, FI_MSG | FI_TAGGED);
        let text = core.tostr((&raw const (*copy).caps).cast(), FI_TYPE_CAPS);
        assert!(text.is_none_or(|text| text.contains("FI_TAGGED")));
        core.freeinfo(copy);
        core.freeinfo(info);
    }

    let provider =
        Box::leak(Box::new(fi_provider { name: c"straittest".as_ptr(), ..fi_provider::default() }));
    // SAFETY: the provider is named and lives for ever; no parameter is defined with two types.
    unsafe {
        let help = c"a test, 100%s sure";
        assert_eq!(core.param_string(provider, c"knob", help).as_deref(), Some(c"42"));
        assert_eq!(core.param_string(provider, c"other", help), None);

        let errno = libc::__errno_location();
        *errno = libc::EXDEV;
        core.log_enabled(provider, FI_LOG_WARN, FI_LOG_CORE);
        core.log(provider, FI_LOG_WARN, FI_LOG_CORE, c"installed", 1, c"100%s sure");
        assert_eq!(*errno, libc::EXDEV);
        let mut showtime = 0;
        core.log_ready(provider, FI_LOG_DEBUG, FI_LOG_CORE, &mut showtime);
    }
}
