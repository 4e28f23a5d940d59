//! Memory of groups: among peers that are reached by shared memory.

use std::io;

use link_api::{GroupLink, GroupMemory, GroupName, GroupShape, Opening, PeerId, RmaLink as _};

use super::route::Routes;
use crate::shm::ShmLink;

/// The links, for calls of [`GroupLink`].
#[derive(Debug)]
pub(super) struct Groups<'a> {
    pub(super) shm: &'a mut ShmLink,
    pub(super) routes: &'a Routes,
}

fn none() -> io::Error {
    io::ErrorKind::Unsupported.into()
}

impl GroupLink for Groups<'_> {
    fn shares(&self, peer: PeerId) -> bool {
        self.routes.far_of(peer).is_none()
    }

    fn create(&mut self, shape: GroupShape, to: &[PeerId]) -> io::Result<(GroupName, Box<dyn GroupMemory>)> {
        self.shm.groups().ok_or_else(none)?.create(shape, to)
    }

    fn open(&mut self, shape: GroupShape, maker: PeerId, name: GroupName) -> Opening {
        if !self.shares(maker) {
            return Opening::Denied("it is reached by another link".into());
        }
        self.shm
            .groups()
            .map_or_else(|| Opening::Denied(none().to_string()), |mut g| g.open(shape, maker, name))
    }

    fn withdraw(&mut self, name: GroupName) {
        if let Some(mut groups) = self.shm.groups() {
            groups.withdraw(name);
        }
    }
}
