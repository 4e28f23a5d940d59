//! The log: standard error. UCX's own log takes no part in this, since its functions for it are
//! among what changes between releases.

use std::fmt::Arguments;
use std::io::Write;
use std::sync::OnceLock;

use ::log::{LevelFilter, Log, Metadata, Record};

/// Standard error, for lines of up to this level.
struct Stderr(OnceLock<LevelFilter>);

static STDERR: Stderr = Stderr(OnceLock::new());

impl Log for Stderr {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        if link::journal::is_open() && record.level() <= LevelFilter::Info {
            link::journal::note_line(record.level(), record.target(), &record.args().to_string());
        }
        if self.0.get().is_none_or(|shown| record.level() > *shown) {
            return;
        }
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
    let _ = STDERR.0.set(level);
    if ::log::set_logger(&STDERR).is_ok() {
        let journal = if link::journal::is_open() { LevelFilter::Info } else { LevelFilter::Off };
        ::log::set_max_level(level.max(journal));
    }
}
