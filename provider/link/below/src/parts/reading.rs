//! Accesses to peers' memory that are not over.

use std::collections::VecDeque;
use std::time::Instant;

use link_api::{OpId, Patience, PeerId, Way};

use crate::lent::ALL;
use crate::network::{Below, Did, NotSent, Piece};

/// The version of a registration that is named, if it is none of a request: names of requests have a part
/// above 32 bits.
pub(crate) fn number_of(name: u64) -> Option<u32> {
    u32::try_from(name).ok().filter(|number| *number != 0)
}

/// How an access ends, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ended {
    /// All its bytes are where they belong.
    Whole,
    /// They are not, or need not be, and another access, or frames, may move them.
    Failed,
    /// Its connection is gone: whether they are is not known.
    Cut,
}

/// An access that is not over.
#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) id: OpId,
    pub(crate) peer: PeerId,
    pub(crate) request: u64,
    /// The last generation of the peer's memory that it has a part of.
    pub(crate) generation: u64,
    /// What was not posted yet.
    pub(crate) queue: VecDeque<Piece>,
    /// Pieces that are under way.
    pub(crate) flying: usize,
    pub(crate) ended: Ended,
    /// It writes by more than one connection: what is sent by the first overtakes parts of it.
    pub(crate) spread: bool,
    /// Its end is not reported.
    pub(crate) mute: bool,
    /// It is to be over, and is ended if it is not by then.
    pub(crate) until: Option<Instant>,
}

impl Op {
    pub(crate) fn is_over(&self) -> bool {
        self.flying == 0 && self.queue.is_empty()
    }

    /// It cannot be posted.
    fn fail(&mut self, why: &NotSent) {
        log::debug!("an access cannot be posted: {why:?}");
        self.queue.clear();
        self.ended = self.ended.max(Ended::Failed);
    }

    /// What was not posted of it is not posted any more; what was may still be done.
    fn give_up(&mut self, how: Ended) {
        if !self.queue.is_empty() {
            self.queue.clear();
            self.ended = self.ended.max(how);
        }
    }

    /// Whether it accesses a registration that the peer publishes, and not memory of a request.
    fn is_published(&self) -> bool {
        number_of(self.request).is_some()
    }

    /// Whether it accesses memory of a request of this peer's, or of [`ALL`].
    pub(crate) fn is_of(&self, peer: PeerId, request: u64) -> bool {
        self.peer == peer && (request == ALL || self.request == request)
    }
}

/// Posts an access. Where the rail of its key refuses it, it has the key of the first connection from then
/// on.
fn access<F: Below>(below: &mut F, who: u64, piece: &mut Piece) -> Result<(), NotSent> {
    let outcome = below.access(who, piece);
    if !matches!(outcome, Err(NotSent::ByFirst)) || piece.key == piece.first {
        return outcome;
    }
    piece.key = piece.first;
    below.access(who, piece)
}

/// Accesses to peers' memory: reads, and writes where there are any.
#[derive(Debug)]
pub(crate) struct Reading {
    /// Longest one, if there are any.
    most: Option<usize>,
    /// There are writes, too.
    writes: bool,
    ops: Vec<Op>,
    /// How many of these are spread.
    spread: usize,
    /// Requests that peers have taken back, which are answered when no memory is accessed by them any more.
    leaving: Vec<(PeerId, u64)>,
    /// How many were started.
    number: u64,
    /// What a provider has reported while only the end of an access was awaited.
    stash: VecDeque<Did>,
    patience: Patience,
    /// How often what is lent was ended.
    generation: u64,
}

impl Reading {
    /// With reads of so many bytes, or none; with writes, too, if `writes`.
    pub(crate) fn new(most: Option<usize>, writes: bool) -> Reading {
        Reading {
            most,
            writes: writes && most.is_some(),
            ops: Vec::new(),
            spread: 0,
            leaving: Vec::new(),
            number: 0,
            stash: VecDeque::new(),
            patience: Patience::Second,
            generation: 0,
        }
    }

    /// Whether some are to be posted, or ended, at a time that no descriptor reports.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        self.ops.iter().any(|op| !op.queue.is_empty() || op.until.is_some())
    }

    /// Whether messages to a peer are to wait, which would overtake what is written there.
    #[inline]
    pub(crate) fn holds(&self, peer: PeerId) -> bool {
        let is_one = |op: &Op| op.spread && op.peer == peer && !op.is_over();
        self.spread > 0 && self.ops.iter().any(is_one)
    }

    /// Longest one, if there are any.
    pub(crate) fn most(&self) -> Option<usize> {
        self.most
    }

    /// Whether there are such accesses.
    pub(crate) fn has(&self, way: Way) -> bool {
        match way {
            Way::Get => self.most.is_some(),
            Way::Put => self.writes,
        }
    }

    pub(crate) fn patience(&self) -> Patience {
        self.patience
    }

    pub(crate) fn set_patience(&mut self, patience: Patience) {
        self.patience = patience;
    }

    /// How often what is lent was ended.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// What is lent is ended; in which generation it was lent.
    pub(crate) fn end_generation(&mut self) -> u64 {
        self.generation += 1;
        self.generation - 1
    }

    /// Keeps what a provider has reported for the next poll.
    pub(crate) fn stash(&mut self, did: Did) {
        self.stash.push_back(did);
    }

    #[inline]
    pub(crate) fn take_stashed(&mut self) -> Option<Did> {
        self.stash.pop_front()
    }

    #[inline]
    pub(crate) fn has_stashed(&self) -> bool {
        !self.stash.is_empty()
    }

    /// Whether one of these is not over.
    pub(crate) fn any(&self, which: impl Fn(&Op) -> bool) -> bool {
        self.ops.iter().any(which)
    }

    /// The number of the next one.
    pub(crate) fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number - 1
    }

    /// One has begun, of which all was posted.
    pub(crate) fn add(&mut self, op: Op) {
        self.ops.push(op);
    }

    /// One begins, with this piece; whether one is over. Of most it is the only piece, which needs no list.
    pub(crate) fn begin<F: Below>(
        &mut self,
        below: &mut Option<F>,
        mut op: Op,
        first: Option<Piece>,
    ) -> bool {
        let is_long = !op.queue.is_empty();
        if let (Some(mut piece), Some(below)) = (first, &mut *below) {
            match access(below, op.id.0, &mut piece) {
                Ok(()) => op.flying += 1,
                Err(NotSent::Busy) => op.queue.push_front(piece),
                Err(why) => op.fail(&why),
            }
        }
        let is_over = op.is_over();
        self.spread += usize::from(op.spread);
        self.ops.push(op);
        is_long && self.post(below) || is_over
    }

    /// Posts what can be posted; whether one is over.
    pub(crate) fn post<F: Below>(&mut self, below: &mut Option<F>) -> bool {
        let mut some_over = false;
        for op in &mut self.ops {
            let Some(below) = below else { break };
            while let Some(piece) = op.queue.front_mut() {
                match access(below, op.id.0, piece) {
                    Ok(()) => {
                        op.queue.pop_front();
                        op.flying += 1;
                    }
                    // Another peer's may be posted nevertheless: this one may be connecting, or gone.
                    Err(NotSent::Busy) => break,
                    Err(why) => op.fail(&why),
                }
            }
            some_over |= op.is_over();
        }
        some_over
    }

    /// A piece of an access is over, and how: whether the whole one is, and of which peer and generation it
    /// is.
    pub(crate) fn count(&mut self, who: u64, how: Ended) -> Option<(bool, PeerId, u64)> {
        let op = self.ops.iter_mut().find(|op| op.id.0 == who)?;
        op.flying = op.flying.saturating_sub(1);
        if how != Ended::Whole {
            op.ended = op.ended.max(how);
            op.queue.clear();
        }
        Some((op.is_over(), op.peer, op.generation))
    }

    /// The peers of some that are under way, each once.
    pub(crate) fn peers_of(&self, which: impl Fn(&Op) -> bool) -> Vec<PeerId> {
        let mut peers: Vec<PeerId> =
            self.ops.iter().filter(|op| op.flying > 0 && which(op)).map(|op| op.peer).collect();
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    /// Of these all that are under way have ended before their time, and how: of which peers and generations
    /// they were.
    pub(crate) fn cut(&mut self, which: impl Fn(&Op) -> bool, how: Ended) -> Vec<(PeerId, u64)> {
        let mut owners = Vec::new();
        for op in self.ops.iter_mut().filter(|op| op.flying > 0 && which(op)) {
            (op.flying, op.ended) = (0, op.ended.max(how));
            op.queue.clear();
            owners.push((op.peer, op.generation));
        }
        owners
    }

    /// Removes those that are over; each that is to be reported is, with its outcome.
    pub(crate) fn remove_over(&mut self, mut report: impl FnMut(OpId, Ended)) {
        let spread = &mut self.spread;
        self.ops.retain(|op| {
            if op.is_over() {
                *spread -= usize::from(op.spread);
                if !op.mute {
                    report(op.id, op.ended);
                }
            }
            !op.is_over()
        });
    }

    /// Posts no more of some, which have failed then, and are to be over by then. Those of requests that were
    /// taken back, if `revoked`, have failed; one of a registration that was posted as a whole may be done.
    pub(crate) fn let_end(&mut self, which: impl Fn(&Op) -> bool, revoked: bool, until: Instant) {
        for op in self.ops.iter_mut().filter(|op| which(op)) {
            op.give_up(Ended::Failed);
            if revoked && !op.is_published() {
                op.ended = op.ended.max(Ended::Failed);
            }
            op.until.get_or_insert(until);
        }
    }

    /// Posts no more of some, which end so then; whether there are any. Those that were posted as a whole end
    /// as their pieces do.
    pub(crate) fn give_up(&mut self, which: impl Fn(&Op) -> bool, how: Ended, reports: bool) -> bool {
        let mut found = false;
        for op in self.ops.iter_mut().filter(|op| which(op)) {
            op.give_up(how);
            (op.mute, found) = (!reports, true);
        }
        found
    }

    /// A peer has taken a request back, and is answered when no memory is accessed by it any more.
    pub(crate) fn leave(&mut self, peer: PeerId, request: u64) {
        if !self.leaving.contains(&(peer, request)) {
            self.leaving.push((peer, request));
        }
    }

    /// The requests that peers have taken back, and by which no memory is accessed any more.
    pub(crate) fn take_left(&mut self) -> Vec<(PeerId, u64)> {
        if self.leaving.is_empty() {
            return Vec::new();
        }
        let ops = &self.ops;
        let (stay, left) = std::mem::take(&mut self.leaving)
            .into_iter()
            .partition(|(peer, request)| ops.iter().any(|op| op.is_of(*peer, *request)));
        self.leaving = stay;
        left
    }

    /// Whether a peer is to get an answer.
    pub(crate) fn is_leaving(&self, peer: PeerId) -> bool {
        self.leaving.iter().any(|(of, _)| *of == peer)
    }

    /// A peer gets no answer any more.
    pub(crate) fn forget_leaving(&mut self, peer: PeerId) {
        self.leaving.retain(|(of, _)| *of != peer);
    }
}
