//! The sockets of connections, of whatever library.

use std::collections::HashMap;
use std::net::{IpAddr, Shutdown, TcpStream};
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// The sockets of this process that are connected to or from this address, each by a descriptor of its own.
fn connected(ip: [u8; 4]) -> Vec<TcpStream> {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    let fds: Vec<i32> = fds.filter_map(|fd| fd.ok()?.file_name().to_str()?.parse().ok()).collect();
    let copies = fds.into_iter().filter_map(|fd| {
        // SAFETY: the descriptor is open while the links are, or the copy fails.
        let stream = TcpStream::from(unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().ok()?);
        let ends = [stream.local_addr().ok()?, stream.peer_addr().ok()?];
        ends.iter().any(|end| end.ip() == IpAddr::from(ip)).then_some((ends, stream))
    });
    // A copy that was made here, or by another test at the same time, may be among those descriptors.
    copies.collect::<HashMap<_, _>>().into_values().collect()
}

/// They get buffers of so many bytes, or the fewest there may be; how many of them.
pub fn narrow(ip: [u8; 4], bytes: i32) -> usize {
    let all = connected(ip);
    for stream in &all {
        for option in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
            // SAFETY: a valid option of its length.
            let done = unsafe {
                let at = (&raw const bytes).cast();
                libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, option, at, size_of::<i32>() as u32)
            };
            assert_eq!(done, 0);
        }
    }
    all.len()
}

/// They are shut down; how many.
pub fn cut(ip: [u8; 4]) -> usize {
    let all = connected(ip);
    all.iter().for_each(|stream| stream.shutdown(Shutdown::Both).unwrap());
    all.len()
}
