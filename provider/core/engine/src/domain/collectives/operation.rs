//! A collective operation under way: its parts are messages of the engine's own, which no receive of the
//! application's matches.

use collective::{Local, Part, Place, Round, Schedule, Transfer};
use hmem::{AtomicOp, Datatype, Scratch, Span};

use super::group::{Among, Group};
use super::shared::Then;
use crate::core::Tally;
use crate::domain::opened::Opened;
use crate::types::*;
use link_api::RmaLink;

/// Nothing counts a part.
const UNCOUNTED: Tally = Tally { endpoint: false, also: None };

/// What is to be done with an operation after it went on as far as it could.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Wait for its parts.
    Wait,
    /// There was no room: go on in the next call of progress.
    Again,
    /// It is over.
    End,
}

/// Where an operation's bytes are.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) input: Span,
    pub(super) result: Span,
    pub(super) scratch: Scratch,
}

impl Memory {
    fn span(&self, part: &Part) -> Result<Span, Error> {
        let whole = match part.place {
            Place::Input => self.input,
            Place::Result => self.result,
            Place::Scratch => self.scratch.span(),
        };
        if part.len == 0 {
            return Ok(Span::EMPTY);
        }
        whole.part(part.at, part.len).ok_or(Error::Invalid)
    }
}

#[derive(Debug)]
pub(super) struct Operation {
    pub(super) group: GroupId,
    pub(super) ep: EpId,
    /// Of the group's operations.
    pub(super) number: u64,
    pub(super) ctx: Ctx,
    pub(super) flags: OpFlags,
    tag: u64,
    schedule: Schedule,
    among: Among,
    memory: Memory,
    reduces: Option<(AtomicOp, Datatype)>,
    round: Round,
    /// Transfers of the round that were posted, and of these how many are not over.
    posted: usize,
    pending: usize,
    /// Bytes that the round has received.
    received: usize,
    failed: Option<Error>,
    withdrawn: bool,
}

impl Operation {
    pub(super) fn new(
        (group, ep): (GroupId, EpId),
        (number, tag): (u64, u64),
        (ctx, flags): (Ctx, OpFlags),
        (schedule, among): (Schedule, Among),
        memory: Memory,
        reduces: Option<(AtomicOp, Datatype)>,
    ) -> Operation {
        let (posted, pending, received, failed, withdrawn) = (0, 0, 0, None, false);
        let round = Round::default();
        Operation {
            group,
            ep,
            number,
            ctx,
            flags,
            tag,
            schedule,
            among,
            memory,
            reduces,
            round,
            posted,
            pending,
            received,
            failed,
            withdrawn,
        }
    }

    /// It is not to go on. What is under way is taken back first.
    pub(super) fn fail(&mut self, err: Error) {
        self.failed.get_or_insert(err);
    }

    pub(super) fn failure(&self) -> Option<Error> {
        self.failed
    }

    /// What is behind its messages.
    pub(super) fn then(&self) -> Then {
        match self.among {
            Among::All => Then::End,
            Among::Leaders { then, .. } => then,
        }
    }

    /// Transfers of its round that were posted.
    pub(super) fn posted(&self) -> usize {
        self.posted
    }

    /// A part is over. Whether the operation may go on.
    pub(super) fn part_done(&mut self, entry: &Completion) -> bool {
        self.pending -= 1;
        if entry.what.contains(What::RECV) {
            self.received += entry.len;
        }
        if let Some(err) = entry.err {
            self.fail(err);
        }
        self.pending == 0 || self.failed.is_some()
    }

    /// Goes on as far as that is possible without waiting. `name`: what its parts are posted as.
    pub(super) fn go_on<L: RmaLink>(&mut self, opened: &mut Opened<L>, name: Ctx, group: &Group) -> Next {
        loop {
            if self.failed.is_some() {
                self.stop(opened, name);
                return if self.pending == 0 { Next::End } else { Next::Wait };
            }
            while let Some(&transfer) = self.round.transfers.get(self.posted) {
                // The part may be over when the call returns.
                match self.post(opened, name, group, &transfer) {
                    Ok(()) => (self.posted, self.pending) = (self.posted + 1, self.pending + 1),
                    Err(Error::Again) => return Next::Again,
                    Err(err) => {
                        self.fail(err);
                        break;
                    }
                }
            }
            if self.failed.is_some() {
                continue;
            }
            if self.pending > 0 {
                return Next::Wait;
            }
            match self.end_round() {
                Ok(true) => {}
                Ok(false) => return Next::End,
                Err(err) => self.fail(err),
            }
        }
    }

    fn post<L: RmaLink>(
        &self,
        opened: &mut Opened<L>,
        ctx: Ctx,
        group: &Group,
        transfer: &Transfer,
    ) -> Result<(), Error> {
        let peer = group.member(self.among, transfer.member).ok_or(Error::Invalid)?;
        let span = self.memory.span(&transfer.part)?;
        let (iov, flags) = (&[span][..], OpFlags::PART);
        if transfer.sends {
            let op = Send { to: peer, iov, tag: Some(self.tag), data: None, ctx, flags };
            let ep = opened.eps.get_mut(self.ep.at()).ok_or(Error::NotFound)?;
            return ep.send(&mut opened.core, &op, UNCOUNTED);
        }
        receive(opened, self.ep, Pattern { src: peer, tag: Some((self.tag, 0)) }, iov, ctx)?;
        let ep = opened.eps.get_mut(self.ep.at()).ok_or(Error::NotFound)?;
        ep.directed().expect_member(&mut opened.core, peer);
        Ok(())
    }

    /// All parts of the round are over: runs what is behind them, and begins the next round. `false`: there
    /// is none.
    fn end_round(&mut self) -> Result<bool, Error> {
        let round = std::mem::take(&mut self.round);
        let expected: usize = round.transfers.iter().filter(|t| !t.sends).map(|t| t.part.len).sum();
        if self.received != expected {
            // A member has posted fewer elements.
            return Err(Error::Invalid);
        }
        round.locals.iter().try_for_each(|local| self.run_local(local))?;
        (self.posted, self.received) = (0, 0);
        let Some(mut next) = self.schedule.next_round() else { return Ok(false) };
        // What comes finds its place.
        next.transfers.sort_by_key(|t| t.sends);
        self.round = next;
        Ok(true)
    }

    fn run_local(&self, local: &Local) -> Result<(), Error> {
        let (Local::Copy { into, from } | Local::Reduce { into, from }) = local;
        let (into, from) = (self.memory.span(into)?, self.memory.span(from)?);
        if into.is_empty() {
            return Ok(());
        }
        if matches!(local, Local::Copy { .. }) {
            let same = into.addr() == from.addr();
            return if same || hmem::copy(&[into], 0, &[from], 0, into.len()) == into.len() {
                Ok(())
            } else {
                Err(Error::Io)
            };
        }
        let (op, datatype) = self.reduces.ok_or(Error::Invalid)?;
        hmem::reduce(into, op, datatype, from).map_err(|why| match why {
            hmem::NotApplied::Unsupported => Error::Unsupported,
            hmem::NotApplied::Fault => Error::Io,
        })
    }

    /// Takes back what is under way: receives that nothing has come for, and messages that have yet to be
    /// fetched. What is being moved ends by itself.
    fn stop<L: RmaLink>(&mut self, opened: &mut Opened<L>, name: Ctx) {
        if std::mem::replace(&mut self.withdrawn, true) {
            return;
        }
        self.pending -= unpost(opened, self.ep, name);
        let Some(ep) = opened.eps.get_mut(self.ep.at()) else { return };
        for part in ep.requests.parts_of(name) {
            // One that is being read ends when its reader has it.
            let _ = ep.cancel(&mut opened.core, name, &mut Some(Cancelling(part)), Error::Cancelled);
        }
    }
}

/// Posts a receive of a part.
pub(super) fn receive<L: RmaLink>(
    opened: &mut Opened<L>,
    ep: EpId,
    pattern: Pattern,
    iov: &[Span],
    ctx: Ctx,
) -> Result<(), Error> {
    let rx = opened.eps.get(ep.at()).and_then(|ep| ep.bind.collective()).ok_or(Error::NotFound)?;
    let flags = OpFlags::PART | OpFlags::COMPLETION;
    opened.recv(rx, &Recv { pattern, iov, ctx, flags }, UNCOUNTED)
}

/// Takes receives of parts back; returns how many.
pub(super) fn unpost<L: RmaLink>(opened: &mut Opened<L>, ep: EpId, ctx: Ctx) -> usize {
    let rx = opened.eps.get(ep.at()).and_then(|ep| ep.bind.collective());
    let Some(rx) = rx.and_then(|rx| opened.core.rxs.get_mut(rx.at())) else { return 0 };
    rx.tagged.unpost_all(|recv| recv.ctx == ctx).len()
}

/// Sends a notice, which nothing answers.
pub(super) fn notify<L: RmaLink>(
    opened: &mut Opened<L>,
    ep: EpId,
    to: FiAddr,
    tag: u64,
    data: u64,
) -> Result<(), Error> {
    let Some(ep) = opened.eps.get_mut(ep.at()) else { return Ok(()) };
    let op = Send { to, iov: &[], tag: Some(tag), data: Some(data), ctx: NOTICE_SENT, flags: OpFlags::PART };
    let sent = ep.send(&mut opened.core, &op, UNCOUNTED);
    if sent == Err(Error::Exhausted) {
        ep.directed().hang_up(to);
    }
    sent
}

/// What a notice is sent as.
pub(super) const NOTICE_SENT: Ctx = Ctx(usize::MAX);
