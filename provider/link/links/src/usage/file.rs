//! A file that the environment names, to which lines are appended.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Opens a file to append to, without a wait: a FIFO that no process reads, and a socket, are refused. A FIFO
/// with a reader stays non-blocking, so that a reader that does not read loses lines and stops no process.
pub fn open_to_append(path: &Path) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().append(true).create(true).custom_flags(flags).open(path);
    let file = file.map_err(|e| match e.raw_os_error() {
        Some(libc::ENXIO) => io::Error::other("it is a FIFO that no process reads, or a socket"),
        _ => e,
    })?;
    if !file.metadata()?.file_type().is_fifo() {
        // SAFETY: fcntl(2) takes numbers; the descriptor is that of `file`, and its open file description is
        // of this call.
        let done = unsafe {
            let flags = libc::fcntl(file.as_raw_fd(), libc::F_GETFL);
            flags >= 0 && libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags & !libc::O_NONBLOCK) == 0
        };
        if !done {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn is_non_blocking(file: &File) -> bool {
        // SAFETY: fcntl(2) takes numbers.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) & libc::O_NONBLOCK != 0 }
    }

    #[test]
    fn a_fifo_without_a_reader_and_a_socket_are_refused_at_once() {
        let dir = std::env::temp_dir().join(format!("strait-append-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let (fifo, socket, plain) = (dir.join("fifo"), dir.join("socket"), dir.join("plain"));
        let name = std::ffi::CString::new(fifo.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: a string that ends in NUL.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let refused = [&fifo, &socket].map(|path| open_to_append(path).unwrap_err().to_string());
        let reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&fifo).unwrap();
        let mut read = open_to_append(&fifo).unwrap();
        let mut file = open_to_append(&plain).unwrap();
        let null = open_to_append(Path::new("/dev/null")).unwrap();
        read.write_all(b"line\n").unwrap();
        file.write_all(b"line\n").unwrap();
        let text = std::fs::read_to_string(&plain).unwrap();
        drop((listener, reader));
        std::fs::remove_dir_all(&dir).unwrap();

        assert!(refused.iter().all(|why| why.contains("a FIFO that no process reads")), "{refused:?}");
        assert_eq!(text, "line\n");
        assert_eq!(
            [is_non_blocking(&read), is_non_blocking(&file), is_non_blocking(&null)],
            [true, false, false]
        );
    }
}
