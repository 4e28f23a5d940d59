//! The sockets of connections, of whatever library.

use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// Copies of the sockets of this process that are connected to or from this address.
fn connected(ip: [u8; 4]) -> Vec<TcpStream> {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    let fds = fds.filter_map(|fd| fd.ok()?.file_name().to_str()?.parse::<i32>().ok());
    // SAFETY: the descriptor is open while the links are, or the copy fails.
    let copies = fds.filter_map(|fd| unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().ok());
    let is_of = |stream: &TcpStream| {
        let (Ok(here), Ok(there)) = (stream.local_addr(), stream.peer_addr()) else { return false };
        [here, there].iter().any(|end| end.ip() == std::net::IpAddr::from(ip))
    };
    copies.map(TcpStream::from).filter(is_of).collect()
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
