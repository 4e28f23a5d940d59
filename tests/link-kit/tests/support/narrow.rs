//! Sockets with little room.

use std::net::TcpStream;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// The sockets of this process that are connected to or from this address get buffers of so many bytes, or the fewest there may be; how many of them.
pub fn narrow(ip: [u8; 4], bytes: i32) -> usize {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    let fds = fds.filter_map(|fd| fd.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let mut found = 0;
    for fd in fds {
        // SAFETY: the descriptor is open while the links are, or the copy fails.
        let Ok(copy) = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned() else { continue };
        let stream = TcpStream::from(copy);
        let ends = [stream.local_addr(), stream.peer_addr()];
        if !ends.iter().any(|end| end.as_ref().is_ok_and(|end| end.ip() == std::net::IpAddr::from(ip))) {
            continue;
        }
        for option in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
            // SAFETY: a valid option of its length.
            let done = unsafe {
                let at = (&raw const bytes).cast();
                libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, option, at, size_of::<i32>() as u32)
            };
            assert_eq!(done, 0);
        }
        found += 1;
    }
    found
}
