//! How often the dynamic linker is asked for the devices' libraries: after it has loaded something, and not
//! otherwise. A process of its own, since it counts.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use cuda_stand_in::driver::Driver;
use hmem::{Kind, classify, cuda, registry};

/// Calls of dlopen(3) in this process.
static ASKED: AtomicUsize = AtomicUsize::new(0);

type Open = unsafe extern "C" fn(*const libc::c_char, libc::c_int) -> *mut libc::c_void;

/// In the place of the C library's, for all of this program.
///
/// # Safety
/// As for dlopen(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn dlopen(name: *const libc::c_char, flags: libc::c_int) -> *mut libc::c_void {
    ASKED.fetch_add(1, Relaxed);
    // SAFETY: the C library's function of that name has this type; the caller's promise.
    unsafe {
        let next = libc::dlsym(libc::RTLD_NEXT, c"dlopen".as_ptr());
        let next: Open = std::mem::transmute::<*mut libc::c_void, Open>(next);
        next(name, flags)
    }
}

/// What registering and setting up ask.
fn set_up(at: usize) {
    registry::find_runtimes();
    assert!(!registry::is_here(Kind::Rocr));
    registry::any_device();
    cuda::find_driver();
    registry::classify_to_register(at, 8);
    classify(at, 8);
}

#[test]
fn libraries_are_asked_for_once_for_each_time_that_one_is_loaded() {
    let buffer = vec![0u8; 1 << 20];
    let at = buffer.as_ptr().addr();
    set_up(at);
    let first = ASKED.swap(0, Relaxed);
    assert!(first > 0, "nothing was looked for, or dlopen is another one");
    for _ in 0..1000 {
        set_up(at);
    }
    assert_eq!(ASKED.swap(0, Relaxed), 0, "asked again, and nothing was loaded");
    // One that is no device's.
    // SAFETY: a small library of the C library's, whose initialisers do nothing to this process.
    let other = unsafe { libc::dlopen(c"libBrokenLocale.so.1".as_ptr(), libc::RTLD_NOW) };
    ASKED.store(0, Relaxed);
    set_up(at);
    let again = ASKED.swap(0, Relaxed);
    assert!(again <= first, "asked {again} times for what took {first}");
    assert!(other.is_null() || again > 0, "a library was loaded, and none was looked for");
    set_up(at);
    assert_eq!(ASKED.swap(0, Relaxed), 0);
    // A device's, between two registrations: known at once, without a clock's tick.
    Driver::load();
    registry::find_runtimes();
    assert!(registry::is_here(Kind::Cuda));
    let cu = Driver::start();
    let device = cu.alloc(8);
    assert_eq!(registry::classify_to_register(device, 8), Kind::Cuda);
    ASKED.store(0, Relaxed);
    set_up(at);
    let rest = ASKED.swap(0, Relaxed);
    set_up(at);
    assert!(rest < first, "what is known is looked for again");
    assert_eq!(ASKED.swap(0, Relaxed), 0);
}
