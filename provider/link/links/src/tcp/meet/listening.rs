//! Where an endpoint is called: by its name, and for rails.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use ipc::{Poller, Unshared};
use meet::{Lacking, Shortage, Spare};

use crate::name::{self, Name};
use crate::pacing::Control;
use crate::tcp::options::TcpOptions;
use crate::tcp::sock;
use crate::tcp::watched::token;
use crate::{net, pacing};

/// For how long it is said that callers wait for a descriptor.
const LACKING: Duration = Duration::from_secs(1);

/// The sockets that connections are made to, and what lacks for callers.
#[derive(Debug)]
pub(in crate::tcp) struct Listening {
    listener: Unshared,
    /// Those of further addresses.
    further: Vec<Unshared>,
    /// Given up to take in a caller for which there is no other descriptor, so as to answer it.
    spare: Spare<Unshared>,
    /// Whether the listener is watched: not while there are no descriptors, or too many guests.
    listens: bool,
    /// What lacks for peers that call, and that are called.
    shortage: Shortage,
    /// What connections between two addresses have, and the sockets have not ([`pacing`]).
    usual: Option<Control>,
}

impl Listening {
    /// Watches the sockets of this name, and these `further` ones.
    pub(in crate::tcp) fn new(
        name: &Name,
        further: Vec<Unshared>,
        options: &TcpOptions,
        poller: &Poller,
    ) -> io::Result<Listening> {
        let listener = name.socket()?;
        poller.add(&listener, token::LISTENER)?;
        // What is accepted has the options of the socket that it was accepted on (tcp(7)): that is once for
        // all callers.
        sock::tune(&listener, options.timeout)?;
        let mut further = further;
        further.extend(name.further_socket()?);
        for further in &further {
            sock::tune(further, options.timeout)?;
            poller.add(further, token::FURTHER)?;
        }
        let spare = Spare::new(listener.try_clone().ok());
        let (shortage, usual) = (Shortage::default(), pacing::usual()?);
        Ok(Listening { listener, further, spare, listens: true, shortage, usual })
    }

    /// The next connection, of any of the sockets.
    pub(in crate::tcp) fn accept(&self) -> io::Result<Unshared> {
        // A fork by another thread finds it with the others.
        let accept = |listener: &Unshared| {
            let fd = Unshared::make(|| ipc::socket::accept(listener))?;
            if let Some(usual) = self.usual {
                pacing::pace_between(sock::ends(&fd), &fd, usual);
            }
            Ok(fd)
        };
        let mut found: io::Result<Unshared> = accept(&self.listener);
        for further in &self.further {
            match found {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => found = accept(further),
                found => return found,
            }
        }
        found
    }

    /// Has a descriptor to give up, if there are any.
    pub(in crate::tcp) fn keep_spare(&mut self) {
        self.spare.renew(|| self.listener.try_clone());
    }

    /// Whether there is a descriptor to give up.
    pub(in crate::tcp) fn has_spare(&self) -> bool {
        self.spare.is_there()
    }

    /// Gives a descriptor up for another use; whether there was one.
    pub(in crate::tcp) fn give_spare(&mut self) -> bool {
        self.spare.give()
    }

    /// Whether new connections are taken in.
    pub(in crate::tcp) fn is_on(&self) -> bool {
        self.listens
    }

    /// Watches the listener, or leaves new connections with the kernel for now.
    pub(in crate::tcp) fn set(&mut self, on: bool, poller: &Poller) {
        let further = self.further.iter().map(|fd| (fd, token::FURTHER));
        let all = [(&self.listener, token::LISTENER)].into_iter().chain(further);
        let added = on && all.clone().all(|(fd, token)| poller.add(fd, token).is_ok());
        if !added {
            all.for_each(|(fd, _)| poller.remove(fd));
        }
        self.listens = added;
    }

    /// What lacks for peers that call, and that are called.
    pub(in crate::tcp) fn shortage_mut(&mut self) -> &mut Shortage {
        &mut self.shortage
    }

    /// What peers wait for, as an errno. Callers that were turned away call again.
    pub(in crate::tcp) fn lack(&self) -> Option<i32> {
        let waits =
            |callers: &Lacking| callers.last.elapsed() < LACKING && self.listener.try_clone().is_err();
        self.shortage.called().or_else(|| self.shortage.callers().filter(waits).map(|callers| callers.errno))
    }

    /// For a forked process that holds them, too.
    pub(in crate::tcp) fn shut_down(&self) {
        std::iter::once(&self.listener)
            .chain(&self.further)
            .for_each(|listener| ipc::socket::shutdown(listener));
    }
}

/// The sockets at which an endpoint is called for rails besides that of its name, and the addresses.
pub(in crate::tcp) fn for_rails(name: &Name, asked: &TcpOptions) -> (Vec<Unshared>, Vec<SocketAddr>) {
    let (own, further) = (name.addr(), name.addr().further());
    let mut all = Vec::new();
    let mut sockets = Vec::new();
    if asked.rails < 2 {
        return (sockets, all);
    }
    let ips = if asked.rails_at.is_empty() { net::each_interface(own.ip()) } else { asked.rails_at.clone() };
    for ip in ips {
        if name.is_wildcard() || ip == own.ip() || Some(ip) == further.map(Into::into) {
            all.push((ip, own.port()).into());
            continue;
        }
        match name::listen_at(ip, name.ports()) {
            Ok((socket, at)) => {
                sockets.push(socket);
                all.push(at);
            }
            Err(e) => log::debug!("{own}: not at {ip} as well, for rails: {e}"),
        }
    }
    (sockets, all)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::net::Ipv4Addr;

    use wire::session::JobKey;

    use super::*;
    use crate::pacing::tests::{near_and_far, of};
    use crate::{Port, Ports};

    #[test]
    fn a_connection_within_the_host_is_never_paced_and_one_between_addresses_is_as_the_host_has_it() {
        let (near, far) = near_and_far();
        let at = |last| SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), 0));
        let listening = |last| {
            let name = Name::claim(Some(at(last)), (Port::Listens, Ports::default()), |_| Ok(())).unwrap().0;
            let options = TcpOptions::new(JobKey::from_secret(b"of the tests"));
            let poller = Poller::new().unwrap();
            let all = Listening::new(&name, Vec::new(), &options, &poller).unwrap();
            (name.addr().sock(), all)
        };
        let (to, all) = listening(1);
        let called = sock::connect(to, None).unwrap();
        // Before anything but the kernel has had it.
        let accepted = ipc::socket::accept(&all.listener).unwrap();
        assert_eq!((of(&called), of(&accepted)), (near, near));
        let called = sock::connect(to, None).unwrap();
        assert_eq!((of(&called), of(&all.accept().unwrap())), (near, near));
        let called = sock::connect(to, Some(at(2))).unwrap();
        assert_eq!((of(&called), of(&all.accept().unwrap())), (far, far));
    }
}
