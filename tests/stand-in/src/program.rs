//! A stand-in as a program's library: loaded at run time, called through its symbols, as a program that
//! uses the real one calls that.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;

/// The file that Cargo has built beside the test that asks.
///
/// # Panics
/// If it is not there.
pub fn path(name: &str) -> PathBuf {
    let exe = std::env::current_exe().expect("no executable");
    let file = format!("lib{name}.so");
    let near = exe.ancestors().skip(1).take(2);
    let mut places = near.flat_map(|d| [d.join(&file), d.join("deps").join(&file)]);
    places
        .find(|p| p.exists())
        .unwrap_or_else(|| panic!("no {file} beside the test: is it among its dependencies?"))
}

/// The library, as a program has it.
#[derive(Clone, Copy, Debug)]
pub struct Program(*mut c_void);

// SAFETY: a library's handle may be used from any thread.
unsafe impl Send for Program {}
// SAFETY: a library's handle may be used from any thread.
unsafe impl Sync for Program {}

/// Calls `$name`, whose parameters have these types; panics if it refuses.
#[macro_export]
macro_rules! call {
    ($program:expr, $name:literal ($($ty:ty),*) ($($arg:expr),*)) => {{
        let f = $program.symbol($name);
        let f: unsafe extern "C" fn($($ty),*) -> std::ffi::c_int = unsafe { std::mem::transmute(f) };
        let code = unsafe { f($($arg),*) };
        assert_eq!(code, 0, "{}", $name);
    }};
}

impl Program {
    /// Loads it, for good.
    pub fn load(name: &str) -> Program {
        Program::open(path(name))
    }

    /// Loads a library by its path, or one that the linker finds by its name.
    pub fn open(path: PathBuf) -> Program {
        let path = CString::new(path.into_os_string().into_encoded_bytes()).expect("a path");
        let lib = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!lib.is_null(), "{path:?} cannot be loaded");
        Program(lib)
    }

    /// A symbol.
    pub fn symbol(&self, name: &str) -> *mut c_void {
        let name = CString::new(name).expect("a name");
        let at = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!at.is_null(), "no {name:?}");
        at
    }

    /// Has the `nth` call of `name` from now on fail (0: each of them); code 0: none any more.
    pub fn fail(&self, name: &CStr, nth: u64, code: c_int) {
        let f = self.symbol("stand_in_fail");
        let f: unsafe extern "C" fn(*const c_char, u64, c_int) = unsafe { std::mem::transmute(f) };
        unsafe { f(name.as_ptr(), nth, code) }
    }

    /// How often `name` was called.
    pub fn calls(&self, name: &CStr) -> u64 {
        let f = self.symbol("stand_in_calls");
        let f: unsafe extern "C" fn(*const c_char) -> u64 = unsafe { std::mem::transmute(f) };
        unsafe { f(name.as_ptr()) }
    }
}
