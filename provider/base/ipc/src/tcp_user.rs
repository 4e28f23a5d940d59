//! Which user has the other end of a TCP connection of this host, by the kernel's word.
//!
//! TCP has no SO_PEERCRED. Both ends of a connection of one network namespace are sockets of its, and the
//! kernel says which user has each: by sock_diag(7), for one socket, or else in /proc/net/tcp. The owner of a
//! socket is the user that its process ran as when it made or accepted the socket; fchown(2) to another user
//! takes CAP_CHOWN.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd as _;
use std::sync::OnceLock;

use crate::credentials::{User, other_uids_coincide};
use crate::listeners::{HEAD, ask_for, half, word};
use crate::socket::is_lack;

// linux/inet_diag.h and net/tcp_states.h.
const ESTABLISHED: u8 = 1;
/// Bytes of a message before its attributes; where the state, the user and the number of the socket are in
/// there.
const ENTRY: usize = 72;
const STATE: usize = 1;
const UID: usize = 64;
const INODE: usize = 68;

/// Which user has the other end of a connection from `here` to `there`. `None`: that is no socket of this
/// network namespace. An error where it is not to be found out: its process has closed it, the kernel answers
/// neither way, or this process lacks a descriptor.
pub fn of_other_end(here: SocketAddr, there: SocketAddr) -> io::Result<Option<User>> {
    let (here, there) = (canonical(here), canonical(there));
    let found = if kernel_lists(here, there)? { by_kernel(there, here)? } else { by_table(there, here)? };
    let Some(uid) = found else { return Ok(None) };
    // SAFETY: geteuid(2) cannot fail and touches no memory.
    let me = unsafe { libc::geteuid() };
    Ok(Some(match uid == me {
        false => User::Other,
        true if other_uids_coincide() => User::Unknown,
        true => User::Ours,
    }))
}

/// Whether the kernel finds one socket of many by sock_diag(7), as it does one that is there for sure: else
/// it says of each one that there is none, or refuses to be asked. The tables in /proc then serve, which take
/// a microsecond or more for each connection of the host.
fn kernel_lists(here: SocketAddr, there: SocketAddr) -> io::Result<bool> {
    static LISTS: OnceLock<bool> = OnceLock::new();
    if let Some(known) = LISTS.get() {
        return Ok(*known);
    }
    match by_kernel(here, there) {
        Ok(Some(_)) => Ok(*LISTS.get_or_init(|| true)),
        Err(e) if is_lack(&e) => Err(e),
        // This end may have ended just now, which says nothing of others.
        _ => Ok(false),
    }
}

/// An IPv4 address that is mapped into IPv6 is the IPv4 one, as the kernel looks for it.
fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

fn not_there() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "its process has closed the connection")
}

/// The user of a socket. One that has no process any more has the kernel's own user, root, and counts for
/// none.
fn user_of(state: u8, uid: u32, inode: u64) -> io::Result<u32> {
    if state == ESTABLISHED && inode != 0 { Ok(uid) } else { Err(not_there()) }
}

fn by_kernel(local: SocketAddr, remote: SocketAddr) -> io::Result<Option<u32>> {
    let kernel = ask_for(0, &request(local, remote))?;
    let mut bytes = [0u8; 4096];
    // SAFETY: a place of so many bytes.
    let n = unsafe { libc::recv(kernel.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
    match read(bytes.get(..n).unwrap_or_default()) {
        Ok(uid) => Ok(Some(uid)),
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Asks for the one socket with these addresses.
fn request(local: SocketAddr, remote: SocketAddr) -> Vec<u8> {
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut bytes = vec![family as u8, libc::IPPROTO_TCP as u8, 0, 0];
    bytes.extend(u32::MAX.to_ne_bytes());
    bytes.extend(local.port().to_be_bytes());
    bytes.extend(remote.port().to_be_bytes());
    for ip in [local.ip(), remote.ip()] {
        let mut field = [0; 16];
        match ip {
            IpAddr::V4(ip) => field[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => field = ip.octets(),
        }
        bytes.extend(field);
    }
    // Any interface, and no cookie.
    [0, u32::MAX, u32::MAX].iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
    bytes
}

fn read(bytes: &[u8]) -> io::Result<u32> {
    let cut = || io::Error::from(io::ErrorKind::InvalidData);
    let entry = bytes.get(HEAD..).ok_or_else(cut)?;
    if half(bytes, 4).map(i32::from) == Some(libc::NLMSG_ERROR) {
        let errno = word(entry, 0).ok_or_else(cut)? as i32;
        return Err(io::Error::from_raw_os_error(errno.wrapping_neg()));
    }
    let entry = entry.get(..ENTRY).ok_or_else(cut)?;
    let (uid, inode) = (word(entry, UID).ok_or_else(cut)?, word(entry, INODE).ok_or_else(cut)?);
    user_of(entry[STATE], uid, inode.into())
}

fn by_table(local: SocketAddr, remote: SocketAddr) -> io::Result<Option<u32>> {
    // An IPv4 connection of a socket that serves both versions of IP is in the table of IPv6.
    let mut found = Ok(None);
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        match std::fs::read_to_string(table) {
            Ok(text) => {
                if let Some((state, uid, inode)) = text.lines().find_map(|line| row(line, local, remote)) {
                    return user_of(state, uid, inode).map(Some);
                }
            }
            // Not `NotFound`, which is the connection's.
            Err(e) if table.ends_with("tcp") => found = Err(io::Error::other(format!("{table}: {e}"))),
            // A host without IPv6 has no such table.
            Err(_) => {}
        }
    }
    found
}

/// State, user and number of the socket of a line, if it has these addresses.
fn row(line: &str, local: SocketAddr, remote: SocketAddr) -> Option<(u8, u32, u64)> {
    let mut words = line.split_whitespace().skip(1);
    let is = |text: Option<&str>, addr: SocketAddr| text.and_then(address) == Some(addr);
    if !is(words.next(), local) || !is(words.next(), remote) {
        return None;
    }
    let state = u8::from_str_radix(words.next()?, 16).ok()?;
    let uid = words.nth(3)?.parse().ok()?;
    Some((state, uid, words.nth(1)?.parse().ok()?))
}

/// An address as the tables have it: words of 32 bits in the order of the host, each in hexadecimal.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| Some(u32::from_str_radix(ip.get(8 * at..8 * at + 8)?, 16).ok()?.to_ne_bytes());
    let ip: IpAddr = match ip.len() {
        8 => word(0)?.into(),
        32 => {
            let mut all = [0; 16];
            for at in 0..4 {
                all[4 * at..4 * at + 4].copy_from_slice(&word(at)?);
            }
            IpAddr::from(all)
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip.to_canonical(), port))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn pair(at: &str) -> Option<(TcpStream, TcpStream)> {
        let listener = TcpListener::bind(at).ok()?;
        let to = SocketAddr::new(
            listener.local_addr().ok()?.ip().to_canonical(),
            listener.local_addr().ok()?.port(),
        );
        let to =
            if to.ip().is_unspecified() { (std::net::Ipv4Addr::LOCALHOST, to.port()).into() } else { to };
        let caller = TcpStream::connect(to).ok()?;
        Some((caller, listener.accept().ok()?.0))
    }

    fn ends(of: &TcpStream) -> (SocketAddr, SocketAddr) {
        (of.local_addr().unwrap(), of.peer_addr().unwrap())
    }

    /// `[::]`: a socket that serves both versions of IP, of which one end has addresses that are mapped.
    const PLACES: [&str; 4] = ["127.0.0.1:0", "127.0.0.2:0", "[::1]:0", "[::]:0"];

    #[test]
    fn both_ends_are_ours() {
        for (caller, answerer) in PLACES.iter().filter_map(|at| pair(at)) {
            for end in [&caller, &answerer] {
                let (here, there) = ends(end);
                assert_eq!(of_other_end(here, there).unwrap(), Some(User::Ours), "{here} {there}");
                let (here, there) = (canonical(here), canonical(there));
                // SAFETY: geteuid(2) cannot fail and touches no memory.
                let me = unsafe { libc::geteuid() };
                assert_eq!(by_table(there, here).unwrap(), Some(me), "{here} {there}");
            }
        }
    }

    #[test]
    fn the_end_that_another_user_made_is_that_users() {
        // SAFETY: geteuid(2) cannot fail and touches no memory.
        if unsafe { libc::geteuid() } != 0 {
            return;
        }
        let (caller, answerer) = pair("127.0.0.1:0").unwrap();
        // SAFETY: fchown(2) of a descriptor that is open here.
        assert_eq!(unsafe { libc::fchown(caller.as_raw_fd(), 65534, u32::MAX) }, 0);
        let (here, there) = ends(&answerer);
        assert_eq!(of_other_end(here, there).unwrap(), Some(User::Other));
        assert_eq!(by_table(there, here).unwrap(), Some(65534));
        assert_eq!(of_other_end(there, here).unwrap(), Some(User::Ours), "the other one is still ours");
    }

    /// The kernel gives a socket that no process has to root.
    #[test]
    fn an_end_that_was_closed_is_of_no_user() {
        let (caller, answerer) = pair("127.0.0.1:0").unwrap();
        let (here, there) = ends(&answerer);
        drop(caller);
        assert!(of_other_end(here, there).is_err());
        assert!(by_table(canonical(there), canonical(here)).is_err());
        // One in the queue of a socket that listens has no process either.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (here, there) = ends(&caller);
        assert!(of_other_end(here, there).is_err());
        assert!(by_table(there, here).is_err());
    }

    #[test]
    fn a_socket_of_another_host_is_none_of_this_one() {
        let (caller, _answerer) = pair("127.0.0.1:0").unwrap();
        let here = ends(&caller).0;
        let elsewhere: SocketAddr = "198.51.100.1:7".parse().unwrap();
        assert_eq!(of_other_end(here, ends(&caller).1).unwrap(), Some(User::Ours));
        assert_eq!(of_other_end(here, elsewhere).unwrap(), None);
        assert_eq!(by_table(elsewhere, here).unwrap(), None);
    }

    #[test]
    fn an_answer_that_is_cut_off_is_none() {
        for n in 0..HEAD + ENTRY {
            assert!(read(&vec![0; n]).is_err(), "{n}");
        }
        let mut answer = vec![0; HEAD + ENTRY];
        answer[HEAD + STATE] = ESTABLISHED;
        answer[HEAD + UID] = 7;
        assert!(read(&answer).is_err(), "a socket without a process");
        answer[HEAD + INODE] = 1;
        assert_eq!(read(&answer).unwrap(), 7);
        answer[HEAD + STATE] = 10;
        assert!(read(&answer).is_err(), "one that listens");
    }
}
