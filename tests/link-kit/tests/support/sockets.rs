//! The sockets below links of this process.

use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, TcpStream};
use std::os::fd::BorrowedFd;

/// The sockets of this process that are connected to or from this address, each by a descriptor of its own.
pub fn connected_at(ip: [u8; 4]) -> Vec<TcpStream> {
    let fds = fs::read_dir("/proc/self/fd").unwrap();
    let fds: Vec<i32> = fds.filter_map(|fd| fd.ok()?.file_name().to_str()?.parse().ok()).collect();
    let connected = fds.into_iter().filter_map(|fd| {
        // SAFETY: the descriptor is open while the links are, or the copy fails.
        let stream = TcpStream::from(unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().ok()?);
        let ends = [stream.local_addr().ok()?, stream.peer_addr().ok()?];
        ends.iter().any(|end| end.ip() == IpAddr::from(ip)).then_some((ends, stream))
    });
    // A copy that was made here, or by another test at the same time, may be among those descriptors.
    connected.collect::<HashMap<_, _>>().into_values().collect()
}
