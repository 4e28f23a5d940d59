//! A copy of libfabric under another name, loaded with `RTLD_LOCAL`, as MPI libraries embed it; and
//! which of several copies is the one that called.

use libfabric_sys::{Core, FI_VERSION, Found};
use std::ffi::{CString, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = r#"
#include <stdint.h>
#include <stddef.h>
#define EXPORT __attribute__((visibility("default")))
EXPORT uint32_t fi_version(void) { return VERSION; }
EXPORT int fi_getinfo(void) { return 0; }
EXPORT void *fi_dupinfo(const void *info) { return NULL; }
EXPORT void fi_freeinfo(void *info) { }
EXPORT int fi_param_define(const void *p, const char *n, int t, const char *h, ...) { return 0; }
EXPORT int fi_param_get(void *p, const char *n, void *v) { return -61; }
EXPORT void fi_log(const void *p, int l, int s, const char *f, int line, const char *m, ...) { }
EXPORT int fi_log_enabled(const void *p, int l, int s) { return 1; }
EXPORT const char *fi_strerror(int e) { return "stub"; }
/* As the core calls fi_prov_ini; what follows keeps it from being a tail call. */
EXPORT int call(int (*ini)(void *), void *arg) { return ini(arg) + 1; }
"#;

fn build(name: &str, minor: u32) -> Option<PathBuf> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, library) = (dir.join(format!("{name}.c")), dir.join(format!("{name}.so")));
    std::fs::write(&source, SOURCE).unwrap();
    let status = Command::new("cc")
        .args(["-w", "-O2", "-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(format!("-DVERSION={:#x}", FI_VERSION(7, minor)))
        .arg(&source)
        .status();
    match status {
        Ok(status) => assert!(status.success()),
        Err(_) => return None,
    }
    Some(library)
}

fn load(library: &Path) -> *mut c_void {
    let path = CString::new(library.to_str().unwrap()).unwrap();
    // SAFETY: our own library, without initialisers.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null());
    handle
}

extern "C" fn ini(out: *mut c_void) -> i32 {
    // SAFETY: `call` passes on the pointer to an Option<Core> that `called_by` gives it.
    unsafe { *out.cast::<Option<Core>>() = Core::find(None) };
    0
}

fn called_by(handle: *mut c_void) -> Option<Core> {
    type Call = unsafe extern "C" fn(extern "C" fn(*mut c_void) -> i32, *mut c_void) -> i32;
    let mut found: Option<Core> = None;
    // SAFETY: `call` is of that type, and passes `found` to `ini` only.
    let answer = unsafe {
        let call = libc::dlsym(handle, c"call".as_ptr());
        let call: Call = std::mem::transmute(call);
        call(ini, (&raw mut found).cast())
    };
    assert_eq!(answer, 1);
    found
}

#[test]
fn other_names() {
    let Some(first) = build("embedded-first", 1) else {
        eprintln!("skipped: no C compiler");
        return;
    };
    let second = build("embedded-second", 2).unwrap();

    if Core::find(None).is_some() {
        eprintln!("skipped: a libfabric is loaded already");
        return;
    }

    let first = load(&first);
    let core = Core::find(None).expect("found among the loaded objects");
    assert_eq!(core.found(), Found::Loaded);
    assert_eq!(core.version(), FI_VERSION(7, 1));
    assert_eq!(core.strerror(3), "stub");

    let second = load(&second);
    for (handle, minor) in [(first, 1), (second, 2)] {
        let core = called_by(handle).expect("the caller is a core");
        assert_eq!(core.found(), Found::Caller);
        assert_eq!(core.version(), FI_VERSION(7, minor));

        // SAFETY: the handle is open.
        let inside = unsafe { libc::dlsym(handle, c"call".as_ptr()) };
        let core = Core::find(Some(inside)).expect("the address is in a core");
        assert_eq!(core.version(), FI_VERSION(7, minor));
        assert_eq!(core.found(), Found::Caller);
    }

    // An address that is in no core does not hide the ones there are.
    let own = other_names as fn() as *const c_void;
    assert_eq!(Core::find(Some(own)).unwrap().found(), Found::Loaded);

    // The search holds nothing: closed once, an object is gone.
    // SAFETY: open, and closed once; no Core of theirs is used any more.
    unsafe {
        libc::dlclose(first);
        libc::dlclose(second);
    }
    assert!(Core::find(None).is_none());
}
