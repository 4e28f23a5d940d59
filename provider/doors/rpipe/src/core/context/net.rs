//! The processes of the job, by the backend: which of them were met, which have ended, and what of theirs
//! cannot be taken in.

use std::collections::{HashMap, HashSet};
use std::mem::ManuallyDrop;
use std::time::Instant;

use crate::core::forked;
use crate::{Backend, Bootstrap, Error, Event, Grant, Promise, Rank};

#[derive(Debug)]
pub(crate) struct Net {
    rank: Rank,
    size: Rank,
    backend: ManuallyDrop<Box<dyn Backend>>,
    bootstrap: Box<dyn Bootstrap>,
    met: HashSet<Rank>,
    /// Processes that have ended, and why.
    gone: HashMap<Rank, String>,
    /// What the last call of progress could not take in: of which peer, and why.
    lacks: Vec<(Option<Rank>, Error)>,
    /// The job was not left.
    open: bool,
}

impl Net {
    pub(super) fn new(backend: Box<dyn Backend>, bootstrap: Box<dyn Bootstrap>) -> Net {
        Net {
            rank: bootstrap.rank(),
            size: bootstrap.size(),
            backend: ManuallyDrop::new(backend),
            bootstrap,
            met: HashSet::new(),
            gone: HashMap::new(),
            lacks: Vec::new(),
            open: true,
        }
    }

    pub(crate) fn rank(&self) -> Rank {
        self.rank
    }

    pub(crate) fn backend(&mut self) -> &mut dyn Backend {
        &mut **self.backend
    }

    pub(crate) fn promise(&self, peer: Rank) -> Promise {
        self.backend.promise(peer)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// An error if the job was left.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.open { Ok(()) } else { Err(Error::Invalid("the job was left (rfinalize)".into())) }
    }

    /// An error if the job has no such rank.
    pub(crate) fn check_rank(&self, peer: Rank) -> Result<(), Error> {
        if peer < self.size {
            return Ok(());
        }
        Err(Error::Invalid(format!("there is no rank {peer}: the job has {} processes", self.size)))
    }

    /// An error if the peer has ended, or the job was left.
    pub(crate) fn check_peer(&self, peer: Rank) -> Result<(), Error> {
        self.check_open()?;
        self.gone_error(peer).map_or(Ok(()), Err)
    }

    pub(crate) fn is_gone(&self, peer: Rank) -> bool {
        self.gone.contains_key(&peer)
    }

    pub(super) fn gone_error(&self, peer: Rank) -> Option<Error> {
        self.gone.get(&peer).map(|why| Error::Gone(format!("rank {peer} is gone: {why}")))
    }

    pub(super) fn add_gone(&mut self, peer: Rank, why: String) {
        self.gone.entry(peer).or_insert(why);
    }

    pub(super) fn is_met(&self, peer: Rank) -> bool {
        self.met.contains(&peer)
    }

    /// Connects to a peer that is in the job by now; [`Error::Again`]: it is not.
    pub(crate) fn meet(&mut self, peer: Rank) -> Result<(), Error> {
        if !self.is_met(peer) {
            let card = self.bootstrap.card(peer, Instant::now())?;
            self.backend.connect(peer, &card)?;
            self.met.insert(peer);
        }
        Ok(())
    }

    /// Makes progress; what could not be taken in is that of this call alone.
    pub(super) fn progress(&mut self, events: &mut Vec<Event>) -> Result<(), Error> {
        self.lacks.clear();
        self.backend.progress(events)
    }

    pub(super) fn add_lack(&mut self, peer: Option<Rank>, why: Error) {
        self.lacks.push((peer, why));
    }

    pub(super) fn has_lacks(&self) -> bool {
        !self.lacks.is_empty()
    }

    /// Why what this peer has sent could not be taken in.
    pub(super) fn lack_of(&self, peer: Rank) -> Option<Error> {
        let mut lacks = self.lacks.iter();
        lacks.find(|(of, _)| of.is_none_or(|of| of == peer)).map(|(_, why)| why.clone())
    }

    pub(crate) fn forget(&mut self, grants: impl IntoIterator<Item = Grant>) {
        grants.into_iter().for_each(|grant| self.backend.forget(grant.remote));
    }

    /// Leaves the job, once.
    pub(super) fn close(&mut self, until: Instant) -> Result<(), Error> {
        if !std::mem::take(&mut self.open) {
            return Ok(());
        }
        let closed = self.backend.close(until);
        closed.and(self.bootstrap.finalize())
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        if !forked::is_child() {
            // SAFETY: nothing uses it any more.
            unsafe { ManuallyDrop::drop(&mut self.backend) };
        }
    }
}
