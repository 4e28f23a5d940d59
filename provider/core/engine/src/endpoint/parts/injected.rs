//! Injected messages that were only offered: their buffers are the application's again, or will be when the
//! call returns.

use link_api::PeerId;

use crate::hash::Map;

#[derive(Debug, Default)]
pub(in crate::endpoint) struct Injected {
    /// The bytes of those that a frame does not hold, by request.
    kept: Map<u64, Vec<u8>>,
    /// A message that was injected just now and has not left its buffer.
    leaving: Option<(PeerId, u64)>,
}

impl Injected {
    pub(in crate::endpoint) fn has_kept(&self) -> bool {
        !self.kept.is_empty()
    }

    pub(in crate::endpoint) fn keep(&mut self, name: u64, bytes: Vec<u8>) {
        self.kept.insert(name, bytes);
    }

    pub(in crate::endpoint) fn kept(&self, name: u64) -> Option<&[u8]> {
        self.kept.get(&name).map(Vec::as_slice)
    }

    pub(in crate::endpoint) fn take_kept(&mut self, name: u64) -> Option<Vec<u8>> {
        self.kept.remove(&name)
    }

    pub(in crate::endpoint) fn set_leaving(&mut self, peer: PeerId, name: u64) {
        self.leaving = Some((peer, name));
    }

    #[inline(always)]
    pub(in crate::endpoint) fn take_leaving(&mut self) -> Option<(PeerId, u64)> {
        self.leaving.take()
    }
}
