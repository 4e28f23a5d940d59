//! Streams and listeners of both families, as one.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use ipc::credentials::Cred;

use crate::Address;

/// A connection.
#[derive(Debug)]
pub(crate) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// What takes connections.
#[derive(Debug)]
pub(crate) enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Stream {
    /// Connects to a place that is no file.
    pub(crate) fn connect(address: &Address) -> io::Result<Stream> {
        match address {
            Address::Path(path) => UnixStream::connect(path).map(Stream::Unix),
            Address::Abstract(name) => {
                let name = SocketAddr::from_abstract_name(name)?;
                UnixStream::connect_addr(&name).map(Stream::Unix)
            }
            Address::Tcp(place) => {
                let stream = TcpStream::connect(place.as_str())?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
            Address::File(_) => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    pub(crate) fn try_clone(&self) -> io::Result<Stream> {
        match self {
            Stream::Unix(stream) => stream.try_clone().map(Stream::Unix),
            Stream::Tcp(stream) => stream.try_clone().map(Stream::Tcp),
        }
    }

    pub(crate) fn read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Unix(stream) => stream.set_read_timeout(limit),
            Stream::Tcp(stream) => stream.set_read_timeout(limit),
        }
    }

    pub(crate) fn write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Unix(stream) => stream.set_write_timeout(limit),
            Stream::Tcp(stream) => stream.set_write_timeout(limit),
        }
    }

    /// Whether calls on it wait.
    pub(crate) fn set_blocking(&self, on: bool) -> io::Result<()> {
        match self {
            Stream::Unix(stream) => stream.set_nonblocking(!on),
            Stream::Tcp(stream) => stream.set_nonblocking(!on),
        }
    }

    /// Where it comes from: an address of another host, or of this one; `None`: a process of this host, by a
    /// socket of its own.
    pub(crate) fn origin(&self) -> Option<IpAddr> {
        match self {
            Stream::Unix(_) => None,
            Stream::Tcp(stream) => stream.peer_addr().ok().map(|at| at.ip()),
        }
    }

    /// Whether a process of this user, or of root, is at the other end. True for TCP, which has no such
    /// information.
    pub(crate) fn of_this_user(&self) -> bool {
        let Stream::Unix(stream) = self else { return true };
        // SAFETY: geteuid(2) takes nothing and cannot fail.
        Cred::of(stream).is_ok_and(|other| other.uid == unsafe { libc::geteuid() } || other.uid == 0)
    }

    /// Ends the connection for all that hold it.
    pub(crate) fn end(&self) {
        let _ = match self {
            Stream::Unix(stream) => stream.shutdown(std::net::Shutdown::Both),
            Stream::Tcp(stream) => stream.shutdown(std::net::Shutdown::Both),
        };
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.read(bytes),
            Stream::Tcp(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.write(bytes),
            Stream::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Listener {
    /// Listens at a place that is no file.
    pub(crate) fn bind(address: &Address) -> io::Result<Listener> {
        let listener = Listener::bind_to(address)?;
        // Calls that come faster than they are taken wait in the kernel, as many as net.core.somaxconn lets
        // it have. SAFETY: listen(2) touches no memory; that of the standard library takes 128.
        unsafe { libc::listen(listener.as_raw_fd(), 65_535) };
        match &listener {
            Listener::Unix(listener) => listener.set_nonblocking(true)?,
            Listener::Tcp(listener) => listener.set_nonblocking(true)?,
        }
        Ok(listener)
    }

    fn bind_to(address: &Address) -> io::Result<Listener> {
        match address {
            Address::Path(path) => UnixListener::bind(path).map(Listener::Unix),
            Address::Abstract(name) => {
                let name = SocketAddr::from_abstract_name(name)?;
                UnixListener::bind_addr(&name).map(Listener::Unix)
            }
            Address::Tcp(place) => match place.strip_suffix(":0") {
                Some(host) => listen_at_any(host).map(Listener::Tcp),
                None => TcpListener::bind(place.as_str()).map(Listener::Tcp),
            },
            Address::File(_) => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// The next connection; it does not wait for one, and calls on the connection do not wait either.
    pub(crate) fn accept(&self) -> io::Result<Stream> {
        let stream = self.accept_any()?;
        stream.set_blocking(false)?;
        Ok(stream)
    }

    fn accept_any(&self) -> io::Result<Stream> {
        match self {
            Listener::Unix(listener) => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
        }
    }

    /// The port, of TCP.
    pub(crate) fn port(&self) -> Option<u16> {
        match self {
            Listener::Unix(_) => None,
            Listener::Tcp(listener) => listener.local_addr().ok().map(|address| address.port()),
        }
    }
}

/// Listens at a free port: one of FI_STRAIT_PORTS, if that is set.
fn listen_at_any(host: &str) -> io::Result<TcpListener> {
    let text = std::env::var(settings::PORTS.variable()).unwrap_or_default();
    listen_among(host, &settings::PORTS.read(&text))
}

fn listen_among(host: &str, ports: &settings::Reading) -> io::Result<TcpListener> {
    let invalid = |why: &String| io::Error::new(io::ErrorKind::InvalidInput, why.clone());
    ports.complaint.as_ref().map_or(Ok(()), |why| Err(invalid(why)))?;
    let Some((first, last)) = ports.ports() else { return TcpListener::bind(format!("{host}:0")) };
    for port in first..=last {
        match TcpListener::bind(format!("{host}:{port}")) {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {}
            done => return done,
        }
    }
    let why = format!("no port from {first} to {last} is free (FI_STRAIT_PORTS)");
    Err(io::Error::new(io::ErrorKind::AddrInUse, why))
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Stream::Unix(stream) => stream.as_raw_fd(),
            Stream::Tcp(stream) => stream.as_raw_fd(),
        }
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Listener::Unix(listener) => listener.as_raw_fd(),
            Listener::Tcp(listener) => listener.as_raw_fd(),
        }
    }
}

/// The addresses of this host by which others may reach it, as text for [`Address::Tcp`] without the port.
pub fn addresses() -> Vec<String> {
    let mut list = std::ptr::null_mut();
    // SAFETY: a place for the list, which is freed below.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Vec::new();
    }
    let (mut found, mut next) = (Vec::new(), list);
    while !next.is_null() {
        // SAFETY: an entry of the list, which stays until it is freed.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        let up = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_uint;
        let useful = entry.ifa_flags & up == up && entry.ifa_flags & libc::IFF_LOOPBACK as libc::c_uint == 0;
        if !useful || entry.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: an address that getifaddrs(3) made has a family, and the length that belongs to it.
        unsafe {
            if i32::from((*entry.ifa_addr).sa_family) == libc::AF_INET {
                let address = std::ptr::read_unaligned(entry.ifa_addr.cast::<libc::sockaddr_in>());
                found.push(std::net::Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)).to_string());
            }
        }
    }
    // SAFETY: the list that getifaddrs(3) made, freed once.
    unsafe { libc::freeifaddrs(list) };
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_port_is_one_of_the_range() {
        let any = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = any.local_addr().unwrap().port();
        let range = |first: u16, last: u16| settings::PORTS.read(&format!("{first}-{last}"));
        let why = listen_among("127.0.0.1", &range(taken, taken)).unwrap_err();
        assert!(why.to_string().contains("(FI_STRAIT_PORTS)"), "{why}");
        drop(any);
        let listener = listen_among("127.0.0.1", &range(taken, taken)).unwrap();
        assert_eq!(listener.local_addr().unwrap().port(), taken);
        assert!(listen_among("127.0.0.1", &settings::PORTS.read("many")).is_err());
        assert!(listen_among("127.0.0.1", &settings::Reading::default()).is_ok());
    }
}
