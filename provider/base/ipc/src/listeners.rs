//! Which unix sockets of this network namespace listen, by the kernel's own list (sock_diag(7)).
//!
//! The table in /proc has a line for every unix socket of the host, of which a job may have tens of thousands
//! that are connected: to write and to read it takes about a microsecond for each. The kernel leaves those
//! out here before it writes anything, and names come with their length, so that none reads like another one.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::cvt;

// linux/sock_diag.h, linux/unix_diag.h and net/tcp_states.h, as far as libc does not have them.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const UDIAG_SHOW_NAME: u32 = 1;
const UNIX_DIAG_NAME: u16 = 0;
const LISTEN: u32 = 1 << 10;

/// Bytes of the head of a message of netlink, of what a socket's message has before its attributes, and of an
/// attribute's head.
pub(crate) const HEAD: usize = 16;
const ENTRY: usize = 16;
const ATTRIBUTE: usize = 4;
/// Where the number of the socket is in an entry.
const INODE: usize = 4;
/// As much as the kernel puts into one answer.
const ROOM: usize = 32 << 10;

/// The number of the first socket that listens under an abstract name and that is it, by its number and name.
/// An error where the kernel has no such list, or the process may not ask for it.
pub fn find(mut is_it: impl FnMut(u64, &[u8]) -> bool) -> io::Result<Option<u64>> {
    let kernel = ask()?;
    let mut bytes = vec![0; ROOM];
    loop {
        // SAFETY: a place of so many bytes.
        let n = unsafe { libc::recv(kernel.as_raw_fd(), bytes.as_mut_ptr().cast(), ROOM, libc::MSG_TRUNC) };
        let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
        match read(bytes.get(..n).ok_or_else(cut)?, &mut is_it)? {
            Answer::Found(inode) => return Ok(Some(inode)),
            Answer::Over => return Ok(None),
            Answer::Further => {}
        }
    }
}

/// Asks for all unix sockets that listen, with their names.
fn ask() -> io::Result<OwnedFd> {
    let mut request = vec![libc::AF_UNIX as u8, 0, 0, 0];
    // Which states, which socket (all), what of it, and a cookie that is not used.
    [LISTEN, 0, UDIAG_SHOW_NAME, u32::MAX, u32::MAX]
        .iter()
        .for_each(|word| request.extend(word.to_ne_bytes()));
    ask_for(libc::NLM_F_DUMP, &request)
}

/// Asks the kernel for sockets. A socket that nothing but its answers reach.
pub(crate) fn ask_for(flags: i32, request: &[u8]) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: socket(2) touches no memory of ours.
    let fd = cvt(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_SOCK_DIAG) })?;
    // SAFETY: a descriptor just made, which nothing else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: plain data, for which zeros are a value: the kernel's own address.
    let mut addr: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    addr.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    let len = HEAD + request.len();
    let mut message = Vec::with_capacity(len);
    message.extend((len as u32).to_ne_bytes());
    message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend(((libc::NLM_F_REQUEST | flags) as u16).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(request);
    // SAFETY: `addr` is an address of that length, and `message` has so many bytes.
    unsafe {
        let size = size_of_val(&addr) as libc::socklen_t;
        cvt(libc::connect(fd.as_raw_fd(), (&raw const addr).cast(), size))?;
        if libc::send(fd.as_raw_fd(), message.as_ptr().cast(), len, 0) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(fd)
}

/// What an answer of the kernel says.
#[derive(Debug, PartialEq)]
enum Answer {
    Found(u64),
    /// That was the last one.
    Over,
    Further,
}

fn cut() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

fn read(mut bytes: &[u8], is_it: &mut impl FnMut(u64, &[u8]) -> bool) -> io::Result<Answer> {
    if bytes.is_empty() {
        return Err(cut());
    }
    while !bytes.is_empty() {
        let len = word(bytes, 0).ok_or_else(cut)? as usize;
        let message = bytes.get(HEAD..len).ok_or_else(cut)?;
        match half(bytes, 4).map(i32::from) {
            // Where the list ends early its last message says why.
            Some(kind @ (libc::NLMSG_DONE | libc::NLMSG_ERROR)) => {
                return match word(message, 0).ok_or_else(cut)? as i32 {
                    0.. if kind == libc::NLMSG_DONE => Ok(Answer::Over),
                    errno => Err(io::Error::from_raw_os_error(errno.wrapping_neg())),
                };
            }
            _ => {
                let inode = u64::from(word(message, INODE).ok_or_else(cut)?);
                if name(message).is_some_and(|name| is_it(inode, name)) {
                    return Ok(Answer::Found(inode));
                }
            }
        }
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(Answer::Further)
}

/// The abstract name of an entry, without the zero byte that it starts with.
fn name(entry: &[u8]) -> Option<&[u8]> {
    let mut rest = entry.get(ENTRY..)?;
    loop {
        let (len, kind) = (usize::from(half(rest, 0)?), half(rest, 2)?);
        let body = rest.get(ATTRIBUTE..len)?;
        if kind == UNIX_DIAG_NAME {
            return body.strip_prefix(&[0]);
        }
        rest = rest.get(len.next_multiple_of(4)..)?;
    }
}

pub(crate) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().map(u32::from_ne_bytes).ok()
}

pub(crate) fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().map(u16::from_ne_bytes).ok()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::socket::{accept, connect, listen};

    #[test]
    fn the_socket_that_listens_is_found_and_none_that_is_connected() {
        let name = format!("strait-test/listeners/{}", std::process::id());
        let listening = listen(&name).unwrap();
        let accepted: Vec<_> = (0..20)
            .map(|_| {
                let near = connect(&name).unwrap();
                (near, accept(&listening).unwrap())
            })
            .collect();
        let mut found = Vec::new();
        let all = find(|inode, found_name| {
            found.extend((found_name == name.as_bytes()).then_some(inode));
            false
        });
        if let Err(e) = all {
            return eprintln!("skipped: the kernel has no list of unix sockets: {e}");
        }
        let link = std::fs::read_link(format!("/proc/self/fd/{}", listening.as_raw_fd())).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(link.to_str().unwrap(), format!("socket:[{}]", found[0]));
        let is_it = |inode, found: &[u8]| inode != 0 && found == name.as_bytes();
        assert_eq!(find(is_it).unwrap(), Some(found[0]));
        drop((listening, accepted));
        assert_eq!(find(is_it).unwrap(), None);
    }

    /// One answer has room for some hundreds.
    #[test]
    fn each_of_many_that_listen_is_listed() {
        let name = |n| format!("strait-test/listeners/{}/{n:060}", std::process::id());
        let listening: Vec<_> = (0..400).map(|n| listen(&name(n)).unwrap()).collect();
        let mut found = std::collections::HashSet::new();
        let all = find(|_, name| {
            found.insert(name.to_vec());
            false
        });
        if let Err(e) = all {
            return eprintln!("skipped: the kernel has no list of unix sockets: {e}");
        }
        for n in 0..listening.len() {
            assert!(found.contains(name(n).as_bytes()), "{n}");
        }
    }

    /// An entry as the kernel writes it, of a name and another attribute before it.
    fn message(inode: u32, name: &[u8]) -> Vec<u8> {
        let mut body = vec![1, 5, 10, 0];
        body.extend(inode.to_ne_bytes());
        body.extend([0; 8]);
        for (kind, bytes) in [(3u16, &[7u8; 5][..]), (UNIX_DIAG_NAME, name)] {
            body.extend((ATTRIBUTE as u16 + bytes.len() as u16).to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend(bytes);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        framed(SOCK_DIAG_BY_FAMILY, &body)
    }

    fn framed(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut all = ((HEAD + body.len()) as u32).to_ne_bytes().to_vec();
        all.extend(kind.to_ne_bytes());
        all.extend([0; 10]);
        all.extend(body);
        all
    }

    #[test]
    fn an_answer_is_read_to_its_end_and_not_beyond() {
        let (one, other) = (message(5, b"\0abc"), message(6, b"/a/path"));
        let done = framed(libc::NLMSG_DONE as u16, &[0; 4]);
        let mut seen = Vec::new();
        let mut see = |inode, name: &[u8]| {
            seen.push((inode, name.to_vec()));
            false
        };
        assert_eq!(read(&[one.clone(), other.clone()].concat(), &mut see).unwrap(), Answer::Further);
        assert_eq!(read(&[other, done].concat(), &mut see).unwrap(), Answer::Over);
        assert_eq!(seen, [(5, b"abc".to_vec())], "only abstract names");
        let error = framed(libc::NLMSG_ERROR as u16, &(-libc::ENOENT).to_ne_bytes());
        assert_eq!(read(&error, &mut |_, _| true).unwrap_err().raw_os_error(), Some(libc::ENOENT));
        let early = framed(libc::NLMSG_DONE as u16, &(-libc::EPERM).to_ne_bytes());
        assert_eq!(read(&early, &mut |_, _| true).unwrap_err().raw_os_error(), Some(libc::EPERM));
        // Cut anywhere it is an error, or an entry without a name.
        for n in 0..one.len() {
            assert!(!matches!(read(&one[..n], &mut |_, _| true), Ok(Answer::Over)), "{n}");
        }
        // A length of nothing is no reason to go round for ever.
        for len in [0u32, 3, 15] {
            let mut bad = one.clone();
            bad[..4].copy_from_slice(&len.to_ne_bytes());
            assert!(read(&bad, &mut |_, _| false).is_err(), "{len}");
        }
        let mut bad = one;
        bad[HEAD + ENTRY..][..2].copy_from_slice(&0u16.to_ne_bytes());
        assert_eq!(read(&bad, &mut |_, _| true).unwrap(), Answer::Further);
    }
}
