//! What the daemon answers.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use ipc::rights::{self, Packet};
use ipc::socket;

use super::publications::Publication;
use super::{CHECK, Server, Stop};
use crate::daemon::wire::{
    Answer, Ask, Descriptor, Handle, How, MOST_LISTED, MOST_SEGMENTS, Published, Reach,
};
use crate::error::Error;
use crate::orchestrator::{Buffer, Client, Drain, Reached, Request};
use crate::publisher::descriptor::{self, Class};
use crate::publisher::{Kind, Lease, Source};

impl Server {
    pub(super) fn answer(&mut self, id: u64, ask: Ask, packet: Packet) -> Result<(), Stop> {
        let peer = self.peers.get(id).ok_or(Stop::Peer)?;
        match ask {
            Ask::Allocate { len, align, segments, host, others, job, clients } => {
                let (uid, rules) = (peer.cred.uid, peer.rules());
                self.peers.room(id)?;
                self.descriptors_left(id, uid)?;
                let clients = self.clients(&clients)?;
                let segments = usize::from(segments.min(MOST_SEGMENTS));
                let request = Request { clients, len, align, segments, uid, job, host, others, rules };
                let buffer = self.orchestrator.grant(&request)?;
                self.grant(id, buffer)
            }
            Ask::Free { handle } => {
                self.peers.free(id, handle)?;
                self.send(id, &Answer::Done { count: 1 })
            }
            Ask::Widen { handle, clients } => {
                let buffer = peer.buffer(handle)?.clone();
                self.peers.room(id)?;
                let wider = buffer.share(&self.clients(&clients)?)?;
                self.grant(id, wider)
            }
            Ask::Offer { handle } => {
                let token = self.peers.share(id, handle)?;
                self.send(id, &Answer::Token { token })
            }
            Ask::Open { token } => {
                self.peers.room(id)?;
                let buffer = self.peers.open(id, token)?;
                self.grant(id, buffer)
            }
            Ask::List { from, clients } => {
                let uid = peer.cred.uid;
                let clients = self.clients(&clients)?;
                let all = self.orchestrator.reached(&clients, uid);
                let count = all.len() as u64;
                for reached in all.into_iter().skip(from.into()).take(MOST_LISTED) {
                    self.send(id, &Answer::Publisher(published(reached, uid)))?;
                }
                self.send(id, &Answer::Done { count })
            }
            Ask::Unpublish { publisher, how } => {
                let of_user = self.publications.is_of(&publisher, peer.cred.uid);
                if !of_user && !peer.is_trusted() {
                    let why =
                        "only root, the daemon's own user, and the user that published it may unpublish";
                    return Err(Error::Forbidden(why.into()).into());
                }
                let drain = match how {
                    How::IfIdle => Drain::IfIdle,
                    // The daemon waits for no buffer: its client asks again.
                    How::Drain => Drain::Wait(Duration::ZERO),
                    How::Revoke => Drain::Revoke,
                };
                let count = self.orchestrator.unpublish(&publisher, drain)? as u64;
                self.publications.remove(&publisher);
                // All owners get their notices before the answer.
                self.send_notices();
                self.send(id, &Answer::Done { count })
            }
            Ask::Publish { name, function, kind, offset, len, all_users } => {
                let publication = Publication { name, function, kind, offset, len, all_users };
                self.publish(id, publication, packet)?;
                self.send(id, &Answer::Done { count: 1 })
            }
            Ask::PublishHandle { name, function, kind, export, offset, len } => {
                let publication = Publication { name, function, kind, offset, len, all_users: false };
                self.publish_handle(id, publication, &export)?;
                self.send(id, &Answer::Done { count: 1 })
            }
            Ask::Rule { text } => {
                self.peers.add_rule(id, &text)?;
                self.send(id, &Answer::Done { count: 1 })
            }
            Ask::Route { publisher, client } => {
                let client = self.clients(&[client])?.swap_remove(0);
                let route = self.orchestrator.route(&publisher, &client)?;
                let (map, distance) = (route.map as u8, route.distance);
                self.send(id, &Answer::Route { map, distance, why: route.to_string() })
            }
            Ask::Dmabuf { handle, piece } => {
                let (fd, offset) = peer.buffer(handle)?.dmabuf(piece.into())?;
                let answer = Answer::Dmabuf { offset }.to_bytes();
                rights::send_fd(&peer.sock, &answer, fd.as_fd()).map_err(|_| Stop::Peer)
            }
        }
    }

    /// Whether this user may have another descriptor of the daemon's.
    fn descriptors_left(&self, id: u64, uid: u32) -> Result<(), Error> {
        let free = self.woken.try_clone().map_or(RawFd::MAX, |fd| fd.as_raw_fd());
        self.peers.descriptors_left(id, self.pieces(uid), free)
    }

    /// Descriptors of a user's that are no connections.
    pub(super) fn pieces(&self, uid: u32) -> usize {
        self.orchestrator.descriptors(uid) + self.publications.of_user(uid)
    }

    /// Adds a publisher of a process. Nothing that this says of its memory is trusted.
    fn publish(&mut self, id: u64, publication: Publication, mut packet: Packet) -> Result<(), Error> {
        let Some(peer) = self.peers.get(id) else { return Ok(()) };
        let (cred, trusted) = (peer.cred, peer.is_trusted());
        let mut fds = packet.fds.drain(..);
        let (first, others) = (fds.next(), fds.collect::<Vec<_>>());
        self.publications.close(cred.uid, others);
        let Some(fd) = first else {
            self.publications.room(cred.uid)?;
            return Err(match packet.lacks {
                true => Error::Os(
                    "the daemon has no room for a descriptor (ulimit -n)".into(),
                    io::Error::from_raw_os_error(libc::EMFILE),
                ),
                false => Error::Invalid("a publication comes with a descriptor".into()),
            });
        };
        // The class is found first: only of what is memory is it known that it can be closed at once.
        let class = match descriptor::class(&fd) {
            Ok(class) => class,
            Err(why) => {
                self.publications.close(cred.uid, vec![fd]);
                return Err(why);
            }
        };
        self.publications.room(cred.uid)?;
        self.descriptors_left(id, cred.uid)?;
        if cred.is_of_many() {
            return Err(Error::Forbidden(format!("uid {}: {}", cred.uid, ipc::credentials::UNMAPPED)));
        }
        let region = publication.region(class, fd, cred.uid, trusted)?;
        self.orchestrator.publish(Arc::new(region))?;
        self.publications.add(publication.name, id, cred.uid);
        Ok(())
    }

    /// The same of an allocation that a driver opens by a token, which the drivers of its users check.
    fn publish_handle(&mut self, id: u64, publication: Publication, export: &Handle) -> Result<(), Error> {
        let Some(peer) = self.peers.get(id) else { return Ok(()) };
        let (cred, trusted) = (peer.cred, peer.is_trusted());
        self.publications.room(cred.uid)?;
        if cred.is_of_many() {
            return Err(Error::Forbidden(format!("uid {}: {}", cred.uid, ipc::credentials::UNMAPPED)));
        }
        let region = publication.region_of_handle(export, cred.uid, trusted)?;
        self.orchestrator.publish(Arc::new(region))?;
        self.publications.add(publication.name, id, cred.uid);
        Ok(())
    }

    /// Devices by their names. For one that is not known the host is read anew, once in a while: to read all
    /// of it takes longer than to ask for names that there are not.
    pub(super) fn clients(&mut self, names: &[String]) -> Result<Vec<Client>, Error> {
        let mut all = Vec::with_capacity(names.len());
        for name in names {
            let known = self.orchestrator.known_client(name);
            let soon = self.asked.is_some_and(|then| then.elapsed() < CHECK);
            all.push(match known {
                Err(_) if !soon => {
                    self.asked = Some(Instant::now());
                    self.orchestrator.client(name)?
                }
                known => known?,
            });
        }
        Ok(all)
    }

    /// Hands a buffer to a connection.
    fn grant(&mut self, id: u64, buffer: Buffer) -> Result<(), Stop> {
        // Nothing of another process's address space can be given.
        let source = |lease: &Lease| lease.source().clone();
        let sources: Vec<Source> = buffer.leases().iter().map(source).collect();
        // And by a device's descriptor all of the device is controlled.
        if sources.iter().any(|s| matches!(s, Source::Here(_) | Source::Bar { .. })) {
            return Err(Error::Unsupported(
                "memory of the daemon's own process, or of a device that it controls, cannot be given away"
                    .into(),
            )
            .into());
        }
        self.may_have_files(id, &buffer)?;
        let handle = self.number();
        let reach = buffer.routes().iter().map(|(client, route)| Reach {
            client: client.clone(),
            map: route.map as u8,
            distance: route.distance,
        });
        let granted = Answer::Granted {
            handle,
            publisher: buffer.publisher().into(),
            kind: buffer.kind().name().into(),
            segments: sources.len() as u16,
            reach: reach.collect(),
        };
        self.send(id, &granted)?;
        let peer = self.peers.get_mut(id).ok_or(Stop::Peer)?;
        let is_host = buffer.kind() == Kind::Host;
        for (lease, source) in buffer.leases().iter().zip(&sources) {
            let (of, fd, offset) = match source {
                Source::File { fd, offset } if is_host => (Descriptor::Fixed, fd, *offset),
                Source::File { fd, offset } => (described(fd), fd, *offset),
                Source::Window(fd) => (Descriptor::Window, fd, 0),
                Source::Handle { export, offset } => {
                    let (export, offset, len) = (export.to_bytes(), *offset, lease.len());
                    let handle = Answer::Handle { export, offset, len }.to_bytes();
                    socket::send(&peer.sock, &handle).map_err(|_| Stop::Peer)?;
                    continue;
                }
                Source::Here(_) | Source::Bar { .. } => continue,
            };
            let segment = Answer::Segment { of, offset, len: lease.len() };
            rights::send_fd(&peer.sock, &segment.to_bytes(), fd.as_fd()).map_err(|_| Stop::Peer)?;
        }
        let notices = self.notices.clone();
        let notice = buffer.on_revoke(move |why| {
            let mut list = notices.list.lock().unwrap_or_else(PoisonError::into_inner);
            list.push((id, handle, why.to_owned()));
            // If it is full the daemon wakes up all the same.
            let _ = socket::send(&notices.wake, &[1]);
        });
        peer.hold(handle, buffer, notice);
        Ok(())
    }

    /// A descriptor reaches all of its file. So a part of one goes to root and the daemon's own user alone.
    fn may_have_files(&self, id: u64, buffer: &Buffer) -> Result<(), Stop> {
        let peer = self.peers.get(id).ok_or(Stop::Peer)?;
        // What a process has published was judged by whose it is.
        let published = buffer.leases().iter().any(|lease| lease.owner().is_some());
        if buffer.kind() != Kind::File || published || peer.is_trusted() {
            return Ok(());
        }
        let whole = |lease: &Lease| match lease.source() {
            Source::File { fd, offset } => is_whole(fd, *offset, lease.len()),
            _ => true,
        };
        if buffer.leases().iter().all(whole) {
            return Ok(());
        }
        let why = "a part of a file would give all of it away: only root and the daemon's own user get parts of this publisher";
        Err(Error::Forbidden(why.into()).into())
    }
}

/// What is said of a publisher to a user.
fn published(of: Reached, uid: u32) -> Published {
    let listed = of.listed;
    Published {
        name: listed.name,
        kind: listed.kind.into(),
        function: listed.function.map(|f| f.to_string()).unwrap_or_default(),
        size: listed.size,
        available: listed.available,
        buffers: listed.buffers as u64,
        draining: listed.draining,
        own: listed.owner.is_some_and(|owner| owner.uid == uid),
        map: of.map as u8,
        distance: of.distance,
        why: of.why,
    }
}

/// What the descriptor of a file is for the process that gets it.
fn described(fd: &OwnedFd) -> Descriptor {
    match descriptor::class(fd) {
        Ok(Class::Memfd(_)) => Descriptor::Kept,
        Ok(Class::Dmabuf(_)) => Descriptor::Dmabuf,
        // The daemon's own process has published it.
        Err(_) => Descriptor::File,
    }
}

/// Whether that part of a file is all of it.
pub(super) fn is_whole(fd: &OwnedFd, offset: u64, len: u64) -> bool {
    let size = fd.try_clone().and_then(|fd| std::fs::File::from(fd).metadata()).map(|m| m.len());
    offset == 0 && size.is_ok_and(|size| size <= len)
}
