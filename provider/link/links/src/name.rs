//! An endpoint's name: an IP address and a port of this host, reserved as long as the endpoint is open.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd as _, OwnedFd};

use ipc::socket::socket;
use ipc::{Ports, Unshared, cvt};
use wire::Addr;

use crate::{net, pacing};

/// Whether the port of a name listens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Port {
    /// It does not.
    Reserved,
    /// It may do so later ([`Links::add_tcp_later`](crate::Links::add_tcp_later)).
    ListensLater,
    /// It does, for a [`crate::TcpLink`].
    Listens,
}

/// A name that no other endpoint of this host has, and the socket that keeps it so.
#[derive(Debug)]
pub struct Name {
    addr: Addr,
    bound: SocketAddr,
    port: Unshared,
    /// What it was chosen among, if the port was not named.
    ports: Ports,
    /// Listens on the same port of a further address.
    further: Option<Unshared>,
}

/// Connections that wait for this process to look, at most: as many as net.core.somaxconn lets it have.
const BACKLOG: libc::c_int = 65_535;

impl Name {
    /// Takes the name `bind`: port 0 takes a free one of `ports`, an unspecified address serves all of the
    /// host's, and `None` is `0.0.0.0:0`. `listen` opens what answers under the name; where it finds that
    /// taken (`AddrInUse`), another free port is tried. The answer's second part is what it returned.
    pub fn claim<T>(
        bind: Option<SocketAddr>,
        (port, ports): (Port, Ports),
        listen: impl Fn(SocketAddr) -> io::Result<T>,
    ) -> io::Result<(Name, T)> {
        let bind = bind.unwrap_or((Ipv4Addr::UNSPECIFIED, 0).into());
        let listens = port == Port::Listens;
        let (mut name, listener) = first_free(bind, ports, |at| {
            let (fd, bound) = reserve(at, listens)?;
            let listener = listen(bound)?;
            if listens {
                listen_on(&fd)?;
            }
            let mut called = bound;
            if bound.ip().is_unspecified() {
                called.set_ip(net::primary_ip(bound.is_ipv6()));
            }
            Ok((Name { addr: Addr::new(called), bound, port: fd, ports, further: None }, listener))
        })?;
        // A port that was chosen is taken on no interface but the one that was chosen.
        if port != Port::Reserved && (bind.port() == 0 || bind.ip().is_unspecified()) {
            name.claim_further(listens);
        }
        Ok((name, listener))
    }

    /// Has peers that do not get through to the host's first address find the endpoint at another one: at
    /// once, or where the port is to listen later, if that takes no further socket. An endpoint that was
    /// given any other address is found there alone.
    fn claim_further(&mut self, listens: bool) {
        let first = self.addr.ip();
        if first != net::primary_ip(first.is_ipv6()) {
            return;
        }
        let Some(ip) = net::further_ip(first) else { return };
        if !self.is_wildcard() {
            if !listens {
                return;
            }
            let claimed =
                reserve((ip, self.addr.port()).into(), true).and_then(|(fd, _)| listen_on(&fd).map(|()| fd));
            match claimed {
                Ok(fd) => self.further = Some(fd),
                Err(e) => return log::debug!("{}: not at {ip} as well: {e}", self.addr),
            }
        }
        self.addr = self.addr.with_further(ip);
    }

    /// The port listens from now on, if it does not yet. Until then it could be used by no other socket,
    /// since this one does not allow that.
    pub(crate) fn listen(&mut self) -> io::Result<()> {
        reuse(&self.port)?;
        listen_on(&self.port)
    }

    /// The socket that listens on a further address, if there is one.
    pub(crate) fn further_socket(&self) -> io::Result<Option<Unshared>> {
        self.further.as_ref().map(Unshared::try_clone).transpose()
    }

    /// What peers call the endpoint.
    pub fn addr(&self) -> Addr {
        self.addr
    }

    /// The socket that keeps the port.
    pub fn socket(&self) -> io::Result<Unshared> {
        self.port.try_clone()
    }

    /// The ports among which one for another socket of the endpoint's is chosen.
    pub(crate) fn ports(&self) -> Ports {
        self.ports
    }

    /// Whether the endpoint serves every address of the host.
    pub fn is_wildcard(&self) -> bool {
        self.bound.ip().is_unspecified()
    }
}

/// A bound TCP socket, and what it is bound to. `listens`: it may listen, and ended connections of an earlier
/// one do not keep a port that was chosen.
pub(crate) fn reserve(bind: SocketAddr, listens: bool) -> io::Result<(Unshared, SocketAddr)> {
    let (raw, len) = net::raw(bind);
    let fd = Unshared::make(|| socket(i32::from(raw.ss_family), libc::SOCK_STREAM))?;
    let chosen = bind.port() != 0;
    if listens && chosen {
        reuse(&fd)?;
    }
    let mut found = raw;
    let mut room = size_of_val(&found) as libc::socklen_t;
    // SAFETY: `raw` holds an address of `len` bytes, and `found` has room for any.
    unsafe {
        cvt(libc::bind(fd.as_raw_fd(), (&raw const raw).cast(), len))?;
        cvt(libc::getsockname(fd.as_raw_fd(), (&raw mut found).cast(), &mut room))?;
    }
    if listens && !chosen {
        reuse(&fd)?;
    }
    let place = &raw const found;
    // SAFETY: both address types start with family and port at the same places, and the family is
    // the one bound.
    let port = u16::from_be(unsafe { (*place.cast::<libc::sockaddr_in>()).sin_port });
    let mut bound = bind;
    bound.set_port(port);
    Ok((fd, bound))
}

/// A socket that listens on a free port of this address.
pub(crate) fn listen_at(ip: IpAddr, ports: Ports) -> io::Result<(Unshared, SocketAddr)> {
    first_free((ip, 0).into(), ports, |at| {
        let (fd, at) = reserve(at, true)?;
        listen_on(&fd)?;
        Ok((fd, at))
    })
}

/// Takes the address, with the first of the ports that is not in use if it names none.
fn first_free<T>(at: SocketAddr, ports: Ports, take: impl Fn(SocketAddr) -> io::Result<T>) -> io::Result<T> {
    if at.port() != 0 {
        return take(at);
    }
    ports.first_free(|port| {
        let mut next = at;
        next.set_port(port);
        take(next)
    })
}

fn reuse(fd: &OwnedFd) -> io::Result<()> {
    let (yes, len) = (1i32, size_of::<i32>() as libc::socklen_t);
    let (level, name) = (libc::SOL_SOCKET, libc::SO_REUSEADDR);
    // SAFETY: `yes` is a valid option of `len` bytes.
    cvt(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const yes).cast(), len) })?;
    Ok(())
}

fn listen_on(fd: &OwnedFd) -> io::Result<()> {
    // What is accepted has the algorithm that the socket had when the connection was made.
    pacing::unpace(fd);
    // SAFETY: listen(2) touches no memory.
    cvt(unsafe { libc::listen(fd.as_raw_fd(), BACKLOG) })?;
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn ports_are_those_of_the_range_and_its_end_is_said() {
        let here = Some((Ipv4Addr::LOCALHOST, 0).into());
        // Ports that were free just now.
        let (held, at) = reserve((Ipv4Addr::LOCALHOST, 0).into(), false).unwrap();
        let taken = at.port();
        let ports = Ports::between(taken.saturating_sub(2), taken);
        let claim = || Name::claim(here, (Port::Listens, ports), |_| Ok(()));
        let mut names = Vec::new();
        let why = loop {
            match claim() {
                Ok((name, ())) => names.push(name),
                Err(e) => break e,
            }
            assert!(names.len() <= 2, "{names:?}");
        };
        for name in &names {
            let port = name.addr().port();
            assert!((taken - 2..taken).contains(&port), "{port} of {ports:?}");
        }
        assert_eq!(why.kind(), io::ErrorKind::AddrInUse);
        let range = format!("no port from {} to {taken} is free (FI_STRAIT_PORTS)", taken - 2);
        assert!(why.to_string().starts_with(&range), "{why}");
        // A port that is named is taken, wherever it is.
        drop(held);
        let named = Some((Ipv4Addr::LOCALHOST, taken).into());
        let elsewhere = Ports::between(1024, 1025);
        assert_eq!(
            Name::claim(named, (Port::Listens, elsewhere), |_| Ok(())).unwrap().0.addr().port(),
            taken
        );
    }
}
