//! Sockets between processes: each sends by those that it has opened, and receives by those that it has accepted.

pub mod calls;
mod manager;

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::packet::{Address, LARGEST, Packet};
use crate::settings::settings;

const TYPE: i32 = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;

/// The abstract name of a device of a process.
fn name(at: Address) -> (libc::sockaddr_un, libc::socklen_t) {
    let Address { host, device, instance } = at;
    abstract_name(&format!("{host}/{device}/{instance}"))
}

fn abstract_name(of: &str) -> (libc::sockaddr_un, libc::socklen_t) {
    let text = format!("\0verbs-stand-in/{}/{of}", settings().fabric);
    let mut name: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    name.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let len = text.len().min(name.sun_path.len());
    name.sun_path.iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from as libc::c_char);
    (name, (size_of::<libc::sa_family_t>() + len) as libc::socklen_t)
}

fn socket() -> Option<OwnedFd> {
    let fd = unsafe { libc::socket(libc::AF_UNIX, TYPE, 0) };
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Listens at the first number that no other process has.
pub fn listen(host: u8, device: u8) -> Option<(OwnedFd, Address)> {
    (0..=u8::MAX).find_map(|instance| {
        let at = Address { host, device, instance };
        let fd = socket()?;
        let (name, len) = name(at);
        let bound = unsafe {
            libc::bind(fd.as_raw_fd(), (&raw const name).cast(), len) == 0
                && libc::listen(fd.as_raw_fd(), 1024) == 0
        };
        bound.then_some((fd, at))
    })
}

/// Packets to one device of one process.
#[derive(Debug, Default)]
struct Out {
    fd: Option<OwnedFd>,
    waiting: VecDeque<Vec<u8>>,
}

/// All of one process.
#[derive(Debug, Default)]
pub struct Connections {
    out: HashMap<Address, Out>,
    accepted: Vec<OwnedFd>,
}

/// So many packets wait for one receiver before nothing is added.
const ROOM: usize = 8;

impl Connections {
    pub fn has_room(&self, to: Address) -> bool {
        self.out.get(&to).is_none_or(|out| out.waiting.len() < ROOM)
    }

    /// A packet to where no process is, is lost.
    pub fn send(&mut self, to: Address, packet: &Packet) {
        let out = self.out.entry(to).or_default();
        out.waiting.push_back(packet.encode());
        out.flush(to);
    }

    pub fn flush(&mut self) {
        self.out.iter_mut().for_each(|(to, out)| out.flush(*to));
    }

    pub fn accept(&mut self, listener: &OwnedFd) {
        loop {
            let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
            let (none, no_len) = (std::ptr::null_mut(), std::ptr::null_mut());
            let fd = unsafe { libc::accept4(listener.as_raw_fd(), none, no_len, flags) };
            if fd < 0 {
                return;
            }
            self.accepted.push(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }

    /// Reads what has arrived; drops what hung up.
    pub fn receive(&mut self) -> Vec<Packet> {
        let mut packets = Vec::new();
        if self.accepted.is_empty() {
            return packets;
        }
        let mut buffer = vec![0u8; LARGEST + 1];
        self.accepted.retain(|fd| {
            for _ in 0..16 {
                let n = unsafe { libc::recv(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
                match n {
                    0 => return false,
                    n if n < 0 => {
                        let error = std::io::Error::last_os_error();
                        return error.kind() == std::io::ErrorKind::WouldBlock;
                    }
                    n if n as usize > LARGEST => {}
                    n => packets.extend(Packet::decode(&buffer[..n as usize])),
                }
            }
            true
        });
        packets
    }

    /// What poll(2) is to wait for.
    pub fn polled(&self) -> Vec<(RawFd, i16)> {
        let out = self.out.values().filter(|out| !out.waiting.is_empty()).filter_map(|out| out.fd.as_ref());
        let out = out.map(|fd| (fd.as_raw_fd(), libc::POLLOUT));
        self.accepted.iter().map(|fd| (fd.as_raw_fd(), libc::POLLIN)).chain(out).collect()
    }
}

impl Out {
    fn flush(&mut self, to: Address) {
        while let Some(packet) = self.waiting.front() {
            let Some(fd) = self.fd.as_ref() else {
                self.fd = connect(to);
                if self.fd.is_none() {
                    self.waiting.clear();
                }
                continue;
            };
            let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
            let sent = unsafe { libc::send(fd.as_raw_fd(), packet.as_ptr().cast(), packet.len(), flags) };
            if sent >= 0 {
                self.waiting.pop_front();
                continue;
            }
            if std::io::Error::last_os_error().kind() == std::io::ErrorKind::WouldBlock {
                return;
            }
            // The process is gone, and what was to be sent with it.
            self.fd = None;
            self.waiting.clear();
        }
    }
}

fn connect(to: Address) -> Option<OwnedFd> {
    let fd = socket()?;
    let (name, len) = name(to);
    (unsafe { libc::connect(fd.as_raw_fd(), (&raw const name).cast(), len) } == 0).then_some(fd)
}
