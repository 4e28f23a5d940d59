//! The core this provider runs in, and where the lines of the `log` crate go: to its log, or to
//! [`own::Own`].

mod own;

use std::ffi::CString;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use ::log::{Level, LevelFilter, Log, Metadata, Record};
use libc::c_int;
use libfabric_sys as fi;

use own::Own;

/// The log that FI_STRAIT_LOG asks for.
static OWN: OnceLock<Option<Own>> = OnceLock::new();
static CORE: OnceLock<fi::Core> = OnceLock::new();
static CLOSED: AtomicBool = AtomicBool::new(false);
static PROVIDER: AtomicPtr<fi::fi_provider> = AtomicPtr::new(ptr::null_mut());

/// The core, from `fi_prov_ini` to its `cleanup`.
pub(crate) fn core() -> Option<fi::Core> {
    if CLOSED.load(Ordering::Acquire) { None } else { CORE.get().copied() }
}

/// Has everything logged go to the core from now on, or where FI_STRAIT_LOG says.
pub(crate) fn open(core: fi::Core, provider: *mut fi::fi_provider) {
    PROVIDER.store(provider, Ordering::Release);
    let mut complaint = None;
    OWN.get_or_init(|| {
        let (own, wrong) = Own::from_environment()?;
        complaint = wrong;
        Some(own)
    });
    if CORE.set(core).is_ok() && ::log::set_logger(&Sink).is_ok() {
        ::log::set_max_level(filter().max(crate::journal::level()));
    }
    CLOSED.store(false, Ordering::Release);
    if let Some(complaint) = complaint {
        ::log::warn!("{complaint}");
    }
}

fn own() -> Option<&'static Own> {
    OWN.get().and_then(Option::as_ref)
}

/// The core is about to go.
pub(crate) fn close() {
    CLOSED.store(true, Ordering::Release);
}

/// The most that any subsystem would show, so that the rest costs one comparison.
fn filter() -> LevelFilter {
    if let Some(own) = own() {
        return own.level();
    }
    let shows = |level| (fi::FI_LOG_CORE..=fi::FI_LOG_CNTR).any(|subsys| enabled(level, subsys));
    if shows(fi::FI_LOG_DEBUG) {
        LevelFilter::Trace
    } else if shows(fi::FI_LOG_INFO) {
        LevelFilter::Info
    } else {
        LevelFilter::Warn
    }
}

fn enabled(level: fi::fi_log_level, subsys: fi::fi_log_subsys) -> bool {
    let provider = PROVIDER.load(Ordering::Acquire);
    // SAFETY: it is the structure returned from fi_prov_ini, which is static.
    core().is_some_and(|core| !provider.is_null() && unsafe { core.log_enabled(provider, level, subsys) })
}

struct Sink;

fn level(l: Level) -> fi::fi_log_level {
    match l {
        Level::Error | Level::Warn => fi::FI_LOG_WARN,
        Level::Info => fi::FI_LOG_INFO,
        Level::Debug | Level::Trace => fi::FI_LOG_DEBUG,
    }
}

/// The subsystem a module belongs to.
fn subsystem(target: &str) -> fi::fi_log_subsys {
    const OF: [(&str, fi::fi_log_subsys); 10] = [
        ("strait_fi::info", fi::FI_LOG_CORE),
        ("strait_fi::fabric", fi::FI_LOG_FABRIC),
        ("strait_fi::domain", fi::FI_LOG_DOMAIN),
        ("strait_fi::ep", fi::FI_LOG_EP_CTRL),
        ("strait_fi::av", fi::FI_LOG_AV),
        ("strait_fi::cq", fi::FI_LOG_CQ),
        ("strait_fi::eq", fi::FI_LOG_EQ),
        ("strait_fi::mr", fi::FI_LOG_MR),
        ("strait_fi::cntr", fi::FI_LOG_CNTR),
        ("strait_fi", fi::FI_LOG_CORE),
    ];
    OF.iter().find(|(module, _)| target.starts_with(module)).map_or(fi::FI_LOG_EP_DATA, |(_, s)| *s)
}

/// Whether FI_STRAIT_LOG, or else the core, wants it.
fn wanted(m: &Metadata<'_>) -> bool {
    match own() {
        Some(own) => m.level() <= own.level(),
        None => enabled(level(m.level()), subsystem(m.target())),
    }
}

impl Log for Sink {
    fn enabled(&self, m: &Metadata<'_>) -> bool {
        m.level() <= crate::journal::level() || wanted(m)
    }

    fn log(&self, r: &Record<'_>) {
        if r.level() <= crate::journal::level() {
            link::journal::note_line(r.level(), r.target(), &r.args().to_string());
        }
        if !wanted(r.metadata()) {
            return;
        }
        if let Some(own) = own() {
            return own.write(r.level(), &r.args().to_string());
        }
        let text = |s: String| CString::new(s.replace('\0', " ")).unwrap_or_default();
        let place = text(r.module_path().unwrap_or("strait").to_owned());
        let line = r.line().and_then(|l| c_int::try_from(l).ok()).unwrap_or(0);
        let message = text(r.args().to_string());
        let Some(core) = core() else { return };
        let provider = PROVIDER.load(Ordering::Acquire);
        // SAFETY: as in `enabled`; level and subsystem are the core's own.
        unsafe {
            core.log(provider, level(r.level()), subsystem(r.target()), &place, line, &message);
        }
    }

    fn flush(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_have_their_subsystem() {
        assert_eq!(subsystem("strait_fi::cq"), fi::FI_LOG_CQ);
        assert_eq!(subsystem("strait_fi::ep::bind"), fi::FI_LOG_EP_CTRL);
        assert_eq!(subsystem("link::shm"), fi::FI_LOG_EP_DATA);
        assert_eq!(subsystem("strait_fi"), fi::FI_LOG_CORE);
    }
}
