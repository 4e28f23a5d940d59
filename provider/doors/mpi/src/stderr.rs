//! Lines on stderr.

use std::io::Write;

/// Writes to stderr. Where that is a closed pipe or a full disk the text is lost, and the call goes on.
pub fn say(text: &str) {
    to(&mut std::io::stderr().lock(), text);
}

fn to(file: &mut dyn Write, text: &str) {
    let _ = file.write_all(format!("libstrait_mpi: {text}").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_takes_nothing_ends_no_call() {
        let mut full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        to(&mut full, "text\n");
        let mut text = Vec::new();
        to(&mut text, "text\n");
        assert_eq!(text, b"libstrait_mpi: text\n");
    }
}
