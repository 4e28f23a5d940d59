//! Descriptors that travel with packets (SCM_RIGHTS).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::socket::receive;

/// Room for a few descriptors in a control message, aligned as it must be.
#[repr(C, align(8))]
struct Ancillary([u8; 64]);

/// Sends a packet with a descriptor.
pub fn send_fd(sock: &OwnedFd, bytes: &[u8], fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut room = Ancillary([0; 64]);
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: a `msghdr` is plain data, for which zeros are a value.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = &mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = room.0.as_mut_ptr().cast();
    // SAFETY: 1. CMSG_SPACE of 4 bytes is 24, less than the room there is. 2. So CMSG_FIRSTHDR is
    // the start of `room`, aligned, with place for a header and a descriptor.
    unsafe {
        msg.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as _;
        let cmsg = libc::CMSG_FIRSTHDR(&msg);
        (*cmsg).cmsg_level = libc::SOL_SOCKET;
        (*cmsg).cmsg_type = libc::SCM_RIGHTS;
        (*cmsg).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
        libc::CMSG_DATA(cmsg).cast::<RawFd>().write_unaligned(fd.as_raw_fd());
    }
    // SAFETY: `msg` points to `bytes`, which sendmsg(2) only reads, and to `room`.
    let n = unsafe { libc::sendmsg(sock.as_raw_fd(), &msg, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives a packet and the descriptor with it, if there is one; 0 bytes is the end. Where there is no
/// place for the descriptor (EMFILE) the packet stays, to be received later.
pub fn recv_fd(sock: &OwnedFd, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    // What is received is gone, and a descriptor that finds no place with it: so it is looked at first,
    // for which the kernel makes the descriptor all the same.
    let seen = peek(sock, bytes)?;
    if seen.len == 0 {
        return Ok((0, None));
    }
    if seen.cut && !seen.full {
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    // All descriptors but the first are closed again.
    Ok((receive(sock, bytes)?, seen.fds.into_iter().next()))
}

/// A packet, and what came with it.
#[derive(Debug)]
pub struct Packet {
    pub len: usize,
    /// All of its descriptors, up to 12. The kernel closes the others.
    pub fds: Vec<OwnedFd>,
    /// This process had no place for one of them.
    pub lacks: bool,
}

/// Receives a packet with all of its descriptors; 0 bytes is the end. To close a descriptor of another
/// process may take as long as that process likes (a file of FUSE), so that is the caller's.
pub fn recv_all(sock: &OwnedFd, bytes: &mut [u8]) -> io::Result<Packet> {
    let seen = peek(sock, bytes)?;
    let lacks = seen.cut && !seen.full;
    let len = if seen.len == 0 { 0 } else { receive(sock, bytes)? };
    Ok(Packet { len, fds: seen.fds, lacks })
}

/// The next packet, which stays.
struct Seen {
    len: usize,
    fds: Vec<OwnedFd>,
    /// Not all of its descriptors are in `fds`.
    cut: bool,
    /// As many as there was room for are.
    full: bool,
}

fn peek(sock: &OwnedFd, bytes: &mut [u8]) -> io::Result<Seen> {
    let mut room = Ancillary([0; 64]);
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: a `msghdr` is plain data, for which zeros are a value.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = &mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = room.0.as_mut_ptr().cast();
    msg.msg_controllen = room.0.len() as _;
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT | libc::MSG_PEEK;
    // SAFETY: `msg` points to `bytes` and `room`, with their lengths.
    let n = unsafe { libc::recvmsg(sock.as_raw_fd(), &mut msg, flags) };
    if n < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut fds = Vec::new();
    // SAFETY: `msg` is as the kernel left it: its control messages are inside `room`.
    let mut cmsg = unsafe { libc::CMSG_FIRSTHDR(&msg) };
    while !cmsg.is_null() {
        // SAFETY: `cmsg` is a header inside `room`, followed by as much data as it says; for
        // SCM_RIGHTS these are descriptors that are ours from now on.
        unsafe {
            if (*cmsg).cmsg_level == libc::SOL_SOCKET && (*cmsg).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(cmsg).cast::<RawFd>();
                let bytes = ((*cmsg).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                for i in 0..bytes / size_of::<RawFd>() {
                    fds.push(OwnedFd::from_raw_fd(data.add(i).read_unaligned()));
                }
            }
            cmsg = libc::CMSG_NXTHDR(&msg, cmsg);
        }
    }
    // SAFETY: this computes a number.
    let most = (room.0.len() - unsafe { libc::CMSG_LEN(0) } as usize) / size_of::<RawFd>();
    let (cut, full) = (msg.msg_flags & libc::MSG_CTRUNC != 0, fds.len() == most);
    Ok(Seen { len: n as usize, fds, cut, full })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::memfd::{self, Writers};
    use crate::socket;

    fn pair() -> (OwnedFd, OwnedFd) {
        let mut ends = [-1; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: a valid place for two descriptors, which are new.
        unsafe {
            crate::cvt(libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr())).unwrap();
            (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
        }
    }

    fn inode(fd: impl AsFd) -> u64 {
        use std::os::unix::fs::MetadataExt as _;
        std::fs::File::from(fd.as_fd().try_clone_to_owned().unwrap()).metadata().unwrap().ino()
    }

    /// Sends a packet with many descriptors.
    fn send_fds(sock: &OwnedFd, fds: &[RawFd]) {
        #[repr(C, align(8))]
        struct Room([u8; 512]);
        let (mut room, mut byte) = (Room([0; 512]), 1u8);
        let mut iov = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let len = size_of_val(fds) as u32;
        // SAFETY: a `msghdr` is plain data; there is room for a header and 100 descriptors, and `msg` points
        // to what lives as long as the call.
        unsafe {
            let mut msg: libc::msghdr = std::mem::zeroed();
            (msg.msg_iov, msg.msg_iovlen) = (&mut iov, 1);
            msg.msg_control = room.0.as_mut_ptr().cast();
            msg.msg_controllen = libc::CMSG_SPACE(len) as _;
            let cmsg = libc::CMSG_FIRSTHDR(&msg);
            (*cmsg).cmsg_level = libc::SOL_SOCKET;
            (*cmsg).cmsg_type = libc::SCM_RIGHTS;
            (*cmsg).cmsg_len = libc::CMSG_LEN(len) as _;
            std::ptr::copy_nonoverlapping(fds.as_ptr(), libc::CMSG_DATA(cmsg).cast(), fds.len());
            assert_eq!(libc::sendmsg(sock.as_raw_fd(), &msg, 0), 1);
        }
    }

    #[test]
    fn a_descriptor_arrives_with_its_packet() {
        let (near, far) = pair();
        let memory = memfd::create(c"test", 4096, Writers::All).unwrap();
        send_fd(&near, b"with", memory.as_fd()).unwrap();
        socket::notify(&near, b"without");
        let mut bytes = [0; 16];
        let (n, fd) = recv_fd(&far, &mut bytes).unwrap();
        assert_eq!((&bytes[..n], inode(fd.unwrap())), (&b"with"[..], inode(&memory)));
        let (n, fd) = recv_fd(&far, &mut bytes).unwrap();
        assert_eq!((&bytes[..n], fd.is_none()), (&b"without"[..], true));
        drop(near);
        assert_eq!(recv_fd(&far, &mut bytes).unwrap().0, 0);
    }

    #[test]
    fn of_many_descriptors_the_first_is_kept_and_the_others_are_closed() {
        let (near, far) = pair();
        let memory = memfd::create(c"test", 4096, Writers::All).unwrap();
        let (reader, writer) = pair();
        // More than there is room for.
        let mut fds = [writer.as_raw_fd(); 40];
        fds[0] = memory.as_raw_fd();
        send_fds(&near, &fds);
        drop(writer);
        let (n, fd) = recv_fd(&far, &mut [0; 4]).unwrap();
        assert_eq!((n, inode(fd.unwrap())), (1, inode(&memory)));
        assert!(socket::hung_up(&reader), "a copy is still open");
    }

    #[test]
    fn all_descriptors_of_a_packet_are_the_callers_to_close() {
        let (near, far) = pair();
        let (reader, writer) = pair();
        send_fds(&near, &[writer.as_raw_fd(); 3]);
        drop(writer);
        let packet = recv_all(&far, &mut [0; 4]).unwrap();
        assert_eq!((packet.len, packet.fds.len(), packet.lacks), (1, 3, false));
        assert!(!socket::hung_up(&reader));
        drop(packet);
        assert!(socket::hung_up(&reader), "a copy is still open");
        drop(near);
        assert_eq!(recv_all(&far, &mut [0; 4]).unwrap().len, 0);
    }
}
