//! The log that FI_STRAIT_LOG asks for: this provider's lines alone, on standard error or in a file.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use ::log::{Level, LevelFilter};
use settings::{LOG, LOG_FILE, Setting};

/// Where lines go, and down to which level.
#[derive(Debug)]
pub(super) struct Own {
    level: LevelFilter,
    /// `None`: standard error.
    file: Option<File>,
    host: String,
}

impl Own {
    /// What the environment asks for, and what is wrong with the file. What is wrong with the level is found
    /// where all parameters are checked.
    pub(super) fn from_environment() -> Option<(Own, Option<String>)> {
        // SAFETY: asks for a number that the kernel gave to the process.
        let is_trusted = unsafe { libc::getauxval(libc::AT_SECURE) } == 0;
        Own::from(|setting| std::env::var_os(setting.variable()), is_trusted)
    }

    /// A program with rights that its caller lacks (set-user-ID) writes no file for it.
    fn from(set: impl Fn(&Setting) -> Option<OsString>, is_trusted: bool) -> Option<(Own, Option<String>)> {
        let text = |setting: &Setting| set(setting)?.into_string().ok().map(|text| text.trim().to_owned());
        let file = text(&LOG_FILE).filter(|name| !name.is_empty() && is_trusted);
        let level = text(&LOG).unwrap_or_default();
        let level = match level.to_ascii_lowercase().as_str() {
            "warn" => LevelFilter::Warn,
            "info" => LevelFilter::Info,
            "debug" => LevelFilter::Trace,
            "" if file.is_some() => LevelFilter::Warn,
            _ => return None,
        };
        let open = |name: String| {
            let name = name.replace("%p", &std::process::id().to_string());
            link::usage::open_to_append(Path::new(&name))
                .map_err(|e| format!("{}={name}: {e}; the log goes to standard error", LOG_FILE.variable()))
        };
        let (file, complaint) = match file.map(open) {
            Some(Err(complaint)) => (None, Some(complaint)),
            Some(Ok(file)) => (Some(file), None),
            None => (None, None),
        };
        let host = Some(link::host_name()).filter(|name| !name.is_empty()).unwrap_or_else(|| "?".into());
        Some((Own { level, file, host }, complaint))
    }

    pub(super) fn level(&self) -> LevelFilter {
        self.level
    }

    /// Writes a line in one call, since other processes write there, too.
    pub(super) fn write(&self, level: Level, text: &str) {
        let word = match level {
            Level::Error | Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug | Level::Trace => "debug",
        };
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = utc(i64::try_from(since.as_secs()).unwrap_or(i64::MAX));
        let (ms, host, pid) = (since.subsec_millis(), &self.host, std::process::id());
        let line = format!("{time}.{ms:03}Z {host} strait[{pid}] {word}: {text}\n");
        // There is no place to say that the log cannot be written.
        let _ = match &self.file {
            Some(file) => (&mut &*file).write_all(line.as_bytes()),
            None => io::stderr().write_all(line.as_bytes()),
        };
    }
}

/// Date and time of a number of seconds since 1970. gmtime_r(3) takes a lock, which a forked child may find
/// held for ever.
fn utc(seconds: i64) -> String {
    let days = seconds.div_euclid(86_400);
    let of_day = seconds.rem_euclid(86_400);
    // Years begin in March, so that the leap day is a year's last.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year + era * 400 + later;
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(level: &str, file: &str) -> Option<(Own, Option<String>)> {
        Own::from(|s| Some(if *s == LOG { level.into() } else { file.into() }), true)
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00"),
            (951_782_400, "2000-02-29T00:00:00"),
            (1_709_251_199, "2024-02-29T23:59:59"),
            (4_102_444_800, "2100-01-01T00:00:00"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }

    #[test]
    fn lines_go_to_the_file_from_the_level_on() {
        let path = std::env::temp_dir().join(format!("strait-log-{}", std::process::id()));
        let name = path.to_str().unwrap().replace(&std::process::id().to_string(), "%p");
        let (own, complaint) = with("info", &name).unwrap();
        assert_eq!((own.level(), complaint), (LevelFilter::Info, None));
        own.write(Level::Warn, "a peer does not answer");
        own.write(Level::Info, "and again");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let ends = format!(" strait[{}] warn: a peer does not answer", std::process::id());
        assert!(lines.len() == 2 && lines[0].ends_with(&ends) && lines[1].contains(" info: and"), "{text}");
    }

    #[test]
    fn a_file_that_would_block_leaves_the_log_on_standard_error() {
        let path = std::env::temp_dir().join(format!("strait-log-fifo-{}", std::process::id()));
        let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: a string that ends in NUL.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let (own, complaint) = with("info", path.to_str().unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(own.file.is_none());
        let complaint = complaint.unwrap();
        assert!(complaint.ends_with("or a socket; the log goes to standard error"), "{complaint}");
    }

    #[test]
    fn what_is_not_set_or_not_understood_leaves_libfabric_its_log() {
        assert!(with("", "").is_none() && with("no", "").is_none() && with("loud", "").is_none());
        let (own, complaint) = with("", "/nonexistent/log").unwrap();
        assert_eq!((own.level(), own.file.is_none()), (LevelFilter::Warn, true));
        assert!(complaint.unwrap().starts_with("FI_STRAIT_LOG_FILE=/nonexistent/log: No such"));
        let (own, _) =
            Own::from(|_| Some("/tmp/x".into()), false).map_or((None, ()), |(own, _)| (Some(own), ()));
        assert!(own.is_none(), "a file of a program with further rights");
    }
}
