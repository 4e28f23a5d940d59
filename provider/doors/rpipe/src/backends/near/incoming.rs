//! What peers send: connections, and packets of the sockets.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use ipc::rights::recv_fd;
use ipc::{memfd, socket};
use meet::Life;

use super::held::has_packet;
use super::{
    BYE, CONTROL, DEVICE, GREETING_IN_NEED, GUESTS, HELLO, Near, PACKETS, REGION, REGION_MOST, WAKE,
    of_mapping,
};
use crate::{CONTROL_MOST, Error, Event, GRANTS_MOST, Grant, PeerMemory, Rank, RemoteId};

impl Near {
    /// Takes connections that wait.
    pub(super) fn accept(&mut self, events: &mut Vec<Event>) {
        loop {
            match self.listener.as_ref().map(socket::accept) {
                Some(Ok(fd)) => {
                    if let Err(why) = self.add(fd, None) {
                        log::warn!("rpipe: a connection is refused: {why}");
                    }
                    if self.guests.len() > GUESTS {
                        self.greet_all(events);
                    }
                    if self.guests.len() > GUESTS {
                        self.dismiss_oldest(events);
                    }
                }
                Some(Err(e)) if socket::is_lack(&e) => {
                    if self.dismiss(GREETING_IN_NEED, events) {
                        continue;
                    }
                    return events.push(Event::Lack { peer: None, why: Error::lack("accept4", &e) });
                }
                _ => return,
            }
        }
    }

    /// Takes the hellos that are there.
    fn greet_all(&mut self, events: &mut Vec<Event>) {
        for at in self.guests.iter().map(|(_, at)| *at).collect::<Vec<_>>() {
            if self.receive(at, events) {
                self.end(at, events);
            }
        }
    }

    fn dismiss_oldest(&mut self, events: &mut Vec<Event>) {
        if let Some(at) = self.guests.oldest().and_then(|(place, _)| self.guests.get(place).copied()) {
            log::warn!("rpipe: a connection that has said nothing makes room for others");
            self.end(at, events);
        }
    }

    /// Ends connections that have said nothing for so long; whether there was one.
    pub(super) fn dismiss(&mut self, most: Duration, events: &mut Vec<Event>) -> bool {
        let late = self.guests.late(Instant::now(), most);
        let late: Vec<usize> = late.iter().filter_map(|place| self.guests.get(*place).copied()).collect();
        for at in &late {
            // Its hello may have come just now.
            let over = self.receive(*at, events);
            if over || self.sockets[*at].as_ref().is_some_and(|socket| socket.peer.is_none()) {
                self.end(*at, events);
            }
        }
        !late.is_empty()
    }

    /// Takes what a socket has; whether its peer is at its end.
    pub(super) fn receive(&mut self, at: usize, events: &mut Vec<Event>) -> bool {
        let mut bytes = [0; CONTROL_MOST + 1];
        for _ in 0..PACKETS {
            let Some(Some(socket)) = self.sockets.get_mut(at) else { return false };
            let again = socket.unmapped.take().map(|fd| {
                bytes[0] = REGION;
                Ok((1, Some(fd)))
            });
            let (len, fd) = match again.unwrap_or_else(|| recv_fd(&socket.fd, &mut bytes)) {
                Ok((0, _)) => return true,
                Ok(got) => got,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    return socket.life.as_ref().is_some_and(Life::has_ended) && !has_packet(socket);
                }
                // The peer has closed its end without reading all. What it sent before is still to be read:
                // the error is reported once.
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => continue,
                Err(e) => {
                    // The packet stays in the socket; each call of progress raises `Lack` until its
                    // descriptor can be received.
                    if socket::is_lack(&e) {
                        let why = Error::lack("recvmsg", &e);
                        events.push(Event::Lack { peer: socket.peer, why });
                        return false;
                    }
                    log::warn!("rpipe: receiving from a peer: {e}");
                    return true;
                }
            };
            if let Err(why) = self.take(at, &bytes[..len], fd, events) {
                log::warn!("rpipe: a peer is closed: {why}");
                return true;
            }
            if self.sockets[at].as_ref().is_some_and(|socket| socket.unmapped.is_some()) {
                return false;
            }
        }
        false
    }

    /// One packet.
    fn take(
        &mut self,
        at: usize,
        bytes: &[u8],
        fd: Option<OwnedFd>,
        events: &mut Vec<Event>,
    ) -> Result<(), Error> {
        let map = self.map;
        let Some(Some(socket)) = self.sockets.get_mut(at) else { return Ok(()) };
        let (kind, rest) = bytes.split_first().unwrap_or((&0, &[]));
        match (*kind, socket.peer, fd) {
            (HELLO, None, None) => {
                let rank = rest.try_into().map(Rank::from_le_bytes);
                let rank = rank.map_err(|_| Error::Broken("a hello of another length".into()))?;
                socket.peer = Some(rank);
                socket.guest.take().map(|place| self.guests.take(place));
                self.by_peer.entry(rank).or_insert(at);
                Ok(())
            }
            (REGION, Some(peer), Some(fd)) if socket.grants.len() < GRANTS_MOST => {
                let mapping = match memfd::adopt(&fd, 64..=REGION_MOST) {
                    Err(memfd::Unfit::NoRoom(e)) => {
                        socket.unmapped = Some(fd);
                        events.push(Event::Lack { peer: Some(peer), why: Error::lack("mmap", &e) });
                        return Ok(());
                    }
                    other => other.map_err(|e| Error::Broken(e.to_string()))?,
                };
                let memory = of_mapping(mapping)?;
                let (len, mapped) = (memory.len(), map.then(|| memory.clone()));
                self.last += 1;
                socket.grants.push(Grant { remote: RemoteId(self.last), len, mapped, device: None });
                self.remotes.insert(self.last, (peer, memory));
                Ok(())
            }
            (DEVICE, Some(_), Some(fd)) if socket.grants.len() < GRANTS_MOST => {
                let memory = PeerMemory::adopt(rest, fd)?;
                self.last += 1;
                let (remote, len) = (RemoteId(self.last), memory.len());
                socket.grants.push(Grant { remote, len, mapped: None, device: Some(memory) });
                Ok(())
            }
            (CONTROL, Some(from), None) => {
                let grants = std::mem::take(&mut socket.grants);
                events.push(Event::Control { from, bytes: rest.to_vec(), grants });
                Ok(())
            }
            (WAKE, Some(_), None) => Ok(()),
            (BYE, Some(_), None) => Err(Error::Gone("it has left the job".into())),
            _ => Err(Error::Broken("a packet that makes no sense".into())),
        }
    }
}
