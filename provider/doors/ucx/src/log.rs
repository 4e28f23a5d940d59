//! The log: standard error. UCX's own log takes no part in this, since its functions for it are
//! among what changes between releases.

use std::fmt::Arguments;
use std::io::Write;

use ::log::{LevelFilter, Log, Metadata, Record};

struct Stderr;

impl Log for Stderr {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        line(format_args!("[strait:{}] {:<5} {}", std::process::id(), record.level(), record.args()));
    }

    fn flush(&self) {}
}

/// Writes a line at once: standard error has no buffer, and processes that share it would mix their
/// lines piece by piece.
pub(crate) fn line(text: Arguments<'_>) {
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Once in a process; later calls do nothing.
pub(crate) fn open(level: LevelFilter) {
    if ::log::set_logger(&Stderr).is_ok() {
        ::log::set_max_level(level);
    }
}
