//! Which calls were made, and which are to fail.

use std::collections::HashMap;
use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

#[derive(Default)]
struct Plan {
    calls: HashMap<String, u64>,
    /// By name: which call (0: all), and its code.
    fail: HashMap<String, Vec<(u64, i32)>>,
}

/// Whether the library was initialised.
pub static READY: AtomicBool = AtomicBool::new(false);

fn plan(lib: &str) -> MutexGuard<'static, Plan> {
    static PLAN: OnceLock<Mutex<Plan>> = OnceLock::new();
    let fresh = || {
        let mut plan = Plan::default();
        for item in std::env::var(format!("{lib}_STAND_IN_FAIL")).unwrap_or_default().split(',') {
            let Some((call, code)) = item.split_once('=') else { continue };
            let (name, nth) = call.split_once('@').unwrap_or((call, "0"));
            let at = (nth.parse().unwrap_or(0), code.parse().unwrap_or(999));
            plan.fail.entry(name.to_owned()).or_default().push(at);
        }
        Mutex::new(plan)
    };
    PLAN.get_or_init(fresh).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts a call to `lib`; `Err` is what it is to answer at once, `early` if it was not initialised.
pub fn enter(lib: &str, name: &str, early: i32) -> Result<(), i32> {
    let mut plan = plan(lib);
    let n = plan.calls.entry(name.to_owned()).or_insert(0);
    *n += 1;
    let n = *n;
    let planned = plan.fail.get(name).and_then(|f| f.iter().find(|(at, _)| *at == 0 || *at == n));
    if let Some(&(_, code)) = planned {
        return Err(code);
    }
    if READY.load(Ordering::Acquire) { Ok(()) } else { Err(early) }
}

/// From now on, `name` fails with `code`: the `nth` call from now on, or each if that is 0. A code
/// of 0 takes back what was planned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stand_in_fail(name: *const c_char, nth: u64, code: i32) {
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    let mut plan = plan("");
    if code == 0 {
        plan.fail.remove(&name);
        return;
    }
    let at = if nth == 0 { 0 } else { plan.calls.get(&name).copied().unwrap_or(0) + nth };
    plan.fail.entry(name).or_default().push((at, code));
}

/// How often `name` was called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stand_in_calls(name: *const c_char) -> u64 {
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    plan("").calls.get(&name).copied().unwrap_or(0)
}
