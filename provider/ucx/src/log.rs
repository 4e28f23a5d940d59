//! The log: standard error. UCX's own log takes no part in this, since its functions for it are
//! among what changes between releases.

use ::log::{LevelFilter, Log, Metadata, Record};

struct Stderr;

impl Log for Stderr {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        eprintln!("[strait:{}] {:<5} {}", std::process::id(), record.level(), record.args());
    }

    fn flush(&self) {}
}

/// Once in a process; later calls do nothing.
pub(crate) fn open(level: LevelFilter) {
    if ::log::set_logger(&Stderr).is_ok() {
        ::log::set_max_level(level);
    }
}
