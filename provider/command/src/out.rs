//! Standard output and standard error, either of which may be full, or read by no program any more.

use std::io::{ErrorKind, Write};

use crate::fabric::Error;

/// Writes all of a result to standard output. Where its reader has gone this is the end, without a word.
pub fn print(text: &str) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(1),
        Err(error) => Err(Error::Failed(format!("cannot write to standard output: {error}"))),
    }
}

/// A line on standard error, if that takes it.
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}
pub(crate) use say;

/// A word of a shell's.
pub fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:*@%=".contains(c);
    // No shell takes the asterisk of an assignment for a pattern.
    if !text.is_empty() && text.chars().all(is_plain) {
        text.into()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}
