//! The output of the job's processes, one line at a time or as it comes.

use std::io::{BufRead, BufReader, Read, Write};
use std::thread::JoinHandle;

/// Longest line that is kept together.
const LINE: u64 = 64 << 10;

/// Copies lines until the end of `from`, each behind `label`. If they can go nowhere any more `from` is
/// closed, so that the process that writes them gets SIGPIPE or EPIPE as if it had written there itself, and
/// the thread ends with the error.
pub fn copy(
    from: impl Read + Send + 'static,
    to: impl Fn(&[u8]) -> std::io::Result<()> + Send + 'static,
    label: String,
) -> std::io::Result<JoinHandle<std::io::Result<()>>> {
    std::thread::Builder::new().name("strait-output".into()).stack_size(256 << 10).spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        loop {
            line.clear();
            line.extend(label.as_bytes());
            match from.by_ref().take(LINE).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return Ok(()),
                Ok(_) => {}
            }
            if line.last() != Some(&b'\n') {
                line.push(b'\n');
            }
            to(&line)?;
        }
    })
}

/// As [`copy`], and what has come goes on at once.
pub fn copy_bytes(
    mut from: impl Read + Send + 'static,
    to: impl Fn(&[u8]) -> std::io::Result<()> + Send + 'static,
) -> std::io::Result<JoinHandle<std::io::Result<()>>> {
    std::thread::Builder::new().name("strait-output".into()).stack_size(256 << 10).spawn(move || {
        let mut bytes = vec![0; LINE as usize];
        loop {
            match from.read(&mut bytes) {
                Ok(0) | Err(_) => return Ok(()),
                Ok(n) => to(&bytes[..n])?,
            }
        }
    })
}

/// To standard output, as a whole.
pub fn stdout(line: &[u8]) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(line).and_then(|()| out.flush())
}

/// To standard error, as a whole.
pub fn stderr(line: &[u8]) -> std::io::Result<()> {
    std::io::stderr().lock().write_all(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_has_its_label_and_an_end() {
        let (sent, got) = std::sync::mpsc::channel();
        let thread = copy(
            &b"one\n\ntwo"[..],
            move |line| sent.send(line.to_vec()).map_err(std::io::Error::other),
            "[3] ".into(),
        );
        thread.unwrap().join().unwrap().unwrap();
        let lines: Vec<_> = got.iter().collect();
        assert_eq!(lines, [&b"[3] one\n"[..], b"[3] \n", b"[3] two\n"]);
    }
}
