//! What the engine asks of shared memory for a group.

use std::io;

use ipc::socket;
use link_api::{GroupLink, GroupMemory, GroupName, GroupShape, Opening, PeerId, Refused};
use wire::channel::{Packet, WindowId};

use super::memory::Memory;
use crate::shm::link::ShmLink;

/// The link, for calls of [`GroupLink`].
#[derive(Debug)]
pub(in crate::shm) struct Calls<'a>(pub(in crate::shm) &'a mut ShmLink);

fn id_of(name: GroupName) -> WindowId {
    WindowId { maker: name.maker, number: name.number }
}

impl GroupLink for Calls<'_> {
    fn shares(&self, _peer: PeerId) -> bool {
        true
    }

    fn create(&mut self, shape: GroupShape, to: &[PeerId]) -> io::Result<(GroupName, Box<dyn GroupMemory>)> {
        let (memory, fd) = Memory::create(shape)?;
        let id = self.0.channels.groups.offer(fd, to.iter().map(|peer| peer.0).collect());
        Ok((GroupName { maker: id.maker, number: id.number }, Box::new(memory)))
    }

    fn open(&mut self, shape: GroupShape, maker: PeerId, name: GroupName) -> Opening {
        let id = id_of(name);
        if let Some(came) = self.0.channels.groups.take(id) {
            let memory = came.and_then(|fd| Memory::adopt(shape, &fd).map_err(|why| why.to_string()));
            return memory.map_or_else(Opening::Denied, |memory| Opening::Open(Box::new(memory)));
        }
        if self.0.channels.peers[maker.0].out.is_none() {
            match self.0.calls().open_channel(maker.0) {
                Ok(()) => {}
                Err(Refused::Gone(why)) => return Opening::Denied(format!("{why:?}")),
                Err(_) => return Opening::Pending,
            }
        }
        if self.0.channels.groups.is_to_ask(id, maker.0) {
            if let Some(out) = &self.0.channels.peers[maker.0].out {
                socket::notify(&out.sock, &Packet::Want(id).encode());
            }
        }
        self.0.service().run();
        Opening::Pending
    }

    fn withdraw(&mut self, name: GroupName) {
        self.0.channels.groups.withdraw(id_of(name));
    }
}
