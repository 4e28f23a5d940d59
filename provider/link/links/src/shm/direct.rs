//! Direct access to peers' memory, and taking our own back from them.
//!
//! Each access is by process_vm_readv(2) or process_vm_writev(2) to an address space that was proved to be
//! the peer's (`space`), and between two stores of a word that the peer can read (`access`). What allows
//! it, a [`link_api::Grant`], can be ended by the peer at any time:
//!
//! | grant | the owner ends it by | and waits for |
//! |---|---|---|
//! | a request of the owner's | its generation in the owner's channel | the word of the receiver |
//! | a registration | its entry in the published table | the word of the sender in each channel |
//! | any | a word for each direction of a channel, set for good | both words |
//!
//! After that, nothing of the owner's is accessed any more. Memory that a device copies is waited for by a
//! count of copies in flight.
//!
//! No wait is longer than the caller has said ([`link_api::Patience`]): a peer that was stopped inside an
//! access is reported by [`link_api::InUse`], and memory stays the library's until it has left. A peer that
//! has ended, or whose address space has, is not waited for.

use ipc::access;
use link_api::{Direct, NoDirect, PeerId, Way};

use crate::cma;
use crate::shm::meet::own::Own;
use crate::shm::memory::access::Access;
use crate::shm::options::OpenOptions;
use crate::shm::peer::{Inbound, Outbound, SURE};
use crate::shm::peers::Peers;
use crate::space::Target;

/// Why the memory of a process in another pid namespace is not reached directly.
pub(super) const NO_PID: &str = "its pid is not visible here (another pid namespace)";

/// Bytes accessed before it is checked again whether that is still allowed.
const STRETCH: usize = 2 << 20;

/// Reaches memory of peers.
pub(super) struct PeerMemory<'a> {
    pub(super) own: &'a Own,
    pub(super) options: &'a OpenOptions,
    pub(super) peers: &'a mut Peers,
    pub(super) access: &'a mut Access,
}

impl PeerMemory<'_> {
    /// How a peer's memory is reached. The proof that it is the peer's is not older than some milliseconds.
    #[inline]
    fn target(&mut self, id: PeerId) -> Result<Target, NoDirect> {
        let peer = &mut self.peers[id.0];
        if !self.options.cma || peer.no_cma.is_some() {
            return Err(NoDirect::Never);
        }
        if peer.dying.is_some() {
            return Err(NoDirect::Fault);
        }
        match peer.target {
            Some((target, seen)) if target.guarded || ipc::tick().saturating_sub(seen) <= SURE => Ok(target),
            _ => self.find_target(id),
        }
    }

    #[cold]
    fn find_target(&mut self, id: PeerId) -> Result<Target, NoDirect> {
        let peer = &mut self.peers[id.0];
        let (pid, space) = match (&peer.inb, &peer.out) {
            (Some(Inbound { pid, space, .. }), _) => (*pid, *space),
            (None, Some(Outbound { pid, space: Some(space), .. })) => (*pid, *space),
            // It has not said yet which address space is its own.
            (None, Some(_)) => return Err(NoDirect::Memory),
            (None, None) => return Err(NoDirect::Fault),
        };
        if pid <= 0 {
            self.frames_only(id, NO_PID.into());
            return Err(NoDirect::Never);
        }
        let now = ipc::tick();
        let target = peer.target.map_or_else(|| Target::new(pid, space), |(target, _)| target);
        cma::verify(&target).map_err(|fault| self.not_moved(id, &target, fault))?;
        self.peers[id.0].target = Some((target, now));
        Ok(target)
    }

    pub(super) fn transfer(&mut self, way: Way, id: PeerId, access: &Direct<'_>) -> Result<(), NoDirect> {
        let mut done = 0;
        loop {
            // Each time, since a proof that it is the peer's address space is not good for long.
            let target = self.target(id)?;
            let n = (access.len - done).min(STRETCH);
            let part = Direct { len: n, ..access.at(access.roff.saturating_add(done), access.loff + done) };
            let inside = self.peers[id.0].enter(access.grant)?;
            let moved = cma::transfer(way, &target, &part);
            access::leave(inside);
            moved.map_err(|fault| self.not_moved(id, &target, fault))?;
            done += n;
            if done >= access.len {
                return Ok(());
            }
        }
    }

    #[cold]
    fn not_moved(&mut self, id: PeerId, target: &Target, fault: cma::Fault) -> NoDirect {
        match &fault {
            cma::Fault::Forbidden(e) => self.frames_only(id, cma::why_not(e)),
            // By its pid a process is not found any more once its main thread has ended.
            cma::Fault::Gone if target.guarded && !self.peers[id.0].has_ended() && cma::lives(target.id) => {
                self.frames_only(id, "its main thread has ended".into());
                return NoDirect::Never;
            }
            cma::Fault::Gone => self.peers[id.0].lost = true,
            cma::Fault::Memory => {}
        }
        fault.into()
    }

    /// A peer's memory cannot be reached directly. Said aloud once, since it is mostly so of all.
    #[cold]
    fn frames_only(&mut self, id: PeerId, why: String) {
        let peer = &mut self.peers[id.0];
        let level = if self.access.warns() { log::Level::Warn } else { log::Level::Debug };
        log::log!(level, "{}: frames only to {}: {why}", self.own.addr(), peer.addr);
        peer.no_cma = Some(why);
    }
}
