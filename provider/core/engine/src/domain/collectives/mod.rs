//! Groups, and the collective operations that are under way in them.
//!
//! An operation is a [`Schedule`] whose transfers are parts ([`operation`]). Where a member ends, the parts
//! fail that it was to send or to take. The member at which one fails notifies all others ([`group`]), whose
//! operation fails then too, whomever it waits for: none waits for ever.

mod group;
mod operation;

use std::collections::{BTreeMap, HashMap};

use collective::{Kind, Schedule, Shape};
use hmem::{AtomicOp, Datatype, Scratch};
use wire::Addr;

use self::group::{Group, Name};
use self::operation::{Memory, NOTICE_SENT, Next, Operation};
use crate::domain::opened::Opened;
use crate::pool::Pool;
use crate::types::*;
use link_api::RmaLink;

/// A notice that is to be sent.
#[derive(Clone, Copy, Debug)]
struct Notice {
    ep: EpId,
    to: FiAddr,
    tag: u64,
    /// Whether a member is gone.
    data: u64,
}

/// Groups and operations.
#[derive(Debug)]
pub(super) struct Collectives {
    /// A number is not used again: what an application holds of a group names no other.
    groups: BTreeMap<u32, Group>,
    next_group: u32,
    operations: Pool<Operation>,
    /// Operations that have something to go on with.
    ready: Vec<u64>,
    notices: Vec<Notice>,
    /// How often an endpoint has joined the same members.
    joins: HashMap<(EpId, Name), u64>,
    joined: Vec<Joined>,
}

/// What receives of notices are posted as.
fn notices_of(group: GroupId) -> Ctx {
    Ctx(NOTICE_SENT.0 - 1 - group.at())
}

impl Collectives {
    pub(super) fn new() -> Collectives {
        Collectives {
            groups: BTreeMap::new(),
            next_group: 0,
            operations: Pool::with_capacity(0),
            ready: Vec::new(),
            notices: Vec::new(),
            joins: HashMap::new(),
            joined: Vec::new(),
        }
    }

    /// Joins a group of these, whose addresses are with them; `rank`: this endpoint's place.
    pub(super) fn join<L: RmaLink>(
        &mut self,
        opened: &mut Opened<L>,
        ep: EpId,
        members: Vec<(FiAddr, Addr)>,
        rank: usize,
        ctx: Ctx,
    ) -> Result<GroupId, Error> {
        let shape = Shape { kind: Kind::AllReduce, members: members.len(), rank, root: 0, count: 1, size: 8 };
        let schedule = Schedule::new(shape).ok_or(Error::Invalid)?;
        let scratch = Scratch::new(schedule.scratch()).ok_or(Error::Exhausted)?;
        let vote = Scratch::new(8).ok_or(Error::Exhausted)?;
        let addrs = || members.iter().map(|(_, addr)| *addr);
        let nth = self.joins.entry((ep, Name::new(addrs(), 0))).or_default();
        let name = Name::new(addrs(), *nth);
        *nth += 1;
        let is_taken = self.groups.values().any(|g| g.ep == ep && g.name == name);
        let (vote_span, flags) = (vote.span(), OpFlags::empty());
        hmem::write(&[vote_span], 0, &u64::from(is_taken).to_ne_bytes());
        let members = members.into_iter().map(|(at, _)| at).collect();
        let group = GroupId(self.next_group);
        self.next_group = self.next_group.checked_add(1).ok_or(Error::Exhausted)?;
        self.groups.insert(group.0, Group::new(ep, name, members, rank, vote, ctx));
        self.receive_notices(opened, group)?;
        let memory = Memory { input: vote_span, result: vote_span, scratch };
        self.begin(group, (ctx, flags), schedule, memory, Some((AtomicOp::Bor, Datatype::Uint64)))?;
        self.run(opened);
        Ok(group)
    }

    fn receive_notices<L: RmaLink>(&mut self, opened: &mut Opened<L>, id: GroupId) -> Result<(), Error> {
        let group = self.groups.get(&id.0).ok_or(Error::NotFound)?;
        let pattern = Pattern { src: ADDR_UNSPEC, tag: Some(group.name.notices()) };
        operation::receive(opened, group.ep, pattern, &[], notices_of(id))
    }

    /// What a member of a group is in an operation.
    pub(super) fn shape<L>(
        &self,
        opened: &Opened<L>,
        (ep, id): (EpId, GroupId),
        op: &Collective,
    ) -> Result<Shape, Error> {
        let group = self.groups.get(&id.0).filter(|g| g.ep == ep && g.is_joined()).ok_or(Error::NotFound)?;
        let root = if op.kind.has_root() {
            let av = opened.eps.get(group.ep.at()).and_then(|ep| opened.avs.get(ep.bind.av().at()));
            let root = av.ok_or(Error::NotFound)?.canonical(op.root);
            group.rank_of(root).ok_or(Error::Invalid)?
        } else {
            0
        };
        let (members, rank) = (group.members.len(), group.rank);
        let shape = Shape { kind: op.kind, members, rank, root, count: op.count, size: op.datatype.size() };
        shape.checked_bytes().ok_or(Error::TooBig)?;
        Ok(shape)
    }

    /// Starts an operation.
    pub(super) fn start<L: RmaLink>(
        &mut self,
        opened: &mut Opened<L>,
        (ep, group): (EpId, GroupId),
        op: &Collective,
    ) -> Result<(), Error> {
        let shape = self.shape(opened, (ep, group), op)?;
        let (input, result) = shape.lengths();
        if op.input.len() < input || op.result.len() < result {
            return Err(Error::Invalid);
        }
        let reduces = op.op.filter(|_| op.kind.reduces()).map(|by| (by, op.datatype));
        if op.kind.reduces() && !reduces.is_some_and(|(by, datatype)| hmem::reduces(by, datatype)) {
            return Err(Error::Unsupported);
        }
        let ep = opened.eps.get(ep.at()).ok_or(Error::NotFound)?;
        if op.flags.contains(OpFlags::COMPLETION) && opened.core.is_full(ep.bind.tx_cq()) {
            return Err(Error::Again);
        }
        let schedule = Schedule::new(shape).ok_or(Error::TooBig)?;
        let scratch = Scratch::new(schedule.scratch()).ok_or(Error::Exhausted)?;
        let memory = Memory { input: op.input, result: op.result, scratch };
        self.begin(group, (op.ctx, op.flags), schedule, memory, reduces)?;
        self.run(opened);
        Ok(())
    }

    fn begin(
        &mut self,
        id: GroupId,
        of: (Ctx, OpFlags),
        schedule: Schedule,
        memory: Memory,
        reduces: Option<(AtomicOp, Datatype)>,
    ) -> Result<(), Error> {
        let group = self.groups.get_mut(&id.0).ok_or(Error::NotFound)?;
        let (number, err) = group.begin();
        let place = (number, group.name.tag(number));
        let mut operation = Operation::new((id, group.ep), place, of, schedule, memory, reduces);
        if let Some(err) = err {
            operation.fail(err);
        }
        self.ready.push(self.operations.insert(operation));
        Ok(())
    }

    /// Goes on with all that has something to go on with. Returns how much was done.
    pub(super) fn run<L: RmaLink>(&mut self, opened: &mut Opened<L>) -> usize {
        let (mut again, mut n) = (Vec::new(), 0);
        loop {
            for entry in opened.core.later.take_done() {
                self.part_done(opened, &entry);
                n += 1;
            }
            let ready = std::mem::take(&mut self.ready);
            if ready.is_empty() {
                break;
            }
            for name in ready {
                let Some(operation) = self.operations.get_mut(name) else { continue };
                let Some(group) = self.groups.get(&operation.group.0) else { continue };
                let before = operation.posted();
                let next = operation.go_on(opened, Ctx(name as usize), &group.members);
                n += usize::from(before != operation.posted());
                match next {
                    Next::Wait => {}
                    Next::Again => again.push(name),
                    Next::End => self.end(opened, name),
                }
            }
        }
        self.ready = again;
        n += self.notices.len();
        self.notices.retain(|n| operation::notify(opened, n.ep, n.to, n.tag, n.data) == Err(Error::Again));
        n -= self.notices.len();
        opened.core.later.set_collective(!self.ready.is_empty() || !self.notices.is_empty());
        n
    }

    /// A part, or a notice, has come or gone.
    fn part_done<L: RmaLink>(&mut self, opened: &mut Opened<L>, entry: &Completion) {
        if entry.ctx == NOTICE_SENT {
            return;
        }
        let name = entry.ctx.0 as u64;
        if let Some(operation) = self.operations.get_mut(name) {
            if operation.part_done(entry) {
                self.ready.push(name);
            }
            return;
        }
        let Ok(id) = u32::try_from(NOTICE_SENT.0 - 1 - entry.ctx.0).map(GroupId) else { return };
        let Some(group) = self.groups.get_mut(&id.0) else { return };
        if entry.err.is_none() && group.rank_of(entry.src).is_some() {
            let err = if entry.data == 0 { Error::Io } else { Error::Reset };
            group.break_from(entry.tag, err);
            self.fail_broken(id);
        }
        let _ = self.receive_notices(opened, id);
    }

    /// Fails the operations of a group that are not to go on.
    fn fail_broken(&mut self, id: GroupId) {
        let Some(group) = self.groups.get(&id.0) else { return };
        for name in self.operations.names(|op| op.group == id) {
            let Some(operation) = self.operations.get_mut(name) else { continue };
            if let Some(err) = group.failure(operation.number) {
                operation.fail(err);
                self.ready.push(name);
            }
        }
    }

    /// An operation is over.
    fn end<L: RmaLink>(&mut self, opened: &mut Opened<L>, name: u64) {
        let Some(operation) = self.operations.remove(name) else { return };
        let Operation { group: id, ep, number, ctx, flags, .. } = operation;
        let mut err = operation.failure();
        let Some(group) = self.groups.get_mut(&id.0) else { return };
        let joins = !group.is_joined() && number == 0;
        if joins && err.is_none() {
            let mut taken = [0; 8];
            hmem::read(&[group.vote.span()], 0, &mut taken);
            err = (taken != [0; 8]).then_some(Error::KeyInUse);
        }
        if group.end(number, err) {
            let (tag, data) = (group.name.notice(number), u64::from(err.and_then(Error::gone).is_some()));
            let others = group.members.iter().enumerate().filter(|(rank, _)| *rank != group.rank);
            self.notices.extend(others.map(|(_, to)| Notice { ep, to: *to, tag, data }));
        }
        if joins {
            self.joined.push(group.join(id, err));
        } else if let Some(ep) = opened.eps.get(ep.at()) {
            opened.core.count(ep.bind.cntrs().write, err.is_some());
            if err.is_some() || flags.contains(OpFlags::COMPLETION) {
                let entry = Completion { ctx, what: What::COLLECTIVE, err, ..Completion::BLANK };
                opened.core.complete(ep.bind.tx_cq(), entry);
            }
        }
        if err.is_some() {
            self.fail_broken(id);
        }
    }

    /// How many operations are under way that count in that counter.
    pub(super) fn counted_in<L: RmaLink>(&self, opened: &Opened<L>, cntr: CntrId) -> usize {
        let counts = |op: &Operation| {
            self.groups.get(&op.group.0).is_some_and(|group| group.is_joined() || op.number > 0)
                && opened.eps.get(op.ep.at()).is_some_and(|ep| ep.bind.cntrs().write == Some(cntr))
        };
        self.operations.iter().filter(|(_, op)| counts(op)).count()
    }

    /// The end of a join, unless it was taken.
    pub(super) fn take_joined(&mut self, group: GroupId) -> Option<Joined> {
        let at = self.joined.iter().position(|joined| joined.group == group)?;
        Some(self.joined.swap_remove(at))
    }

    /// Closes a group. [`Error::Busy`]: operations are under way, or the join is.
    pub(super) fn close<L: RmaLink>(&mut self, opened: &mut Opened<L>, id: GroupId) -> Result<(), Error> {
        if !self.groups.get(&id.0).ok_or(Error::NotFound)?.is_idle() {
            return Err(Error::Busy);
        }
        let Some(group) = self.groups.remove(&id.0) else { return Err(Error::NotFound) };
        operation::unpost(opened, group.ep, notices_of(id));
        self.joined.retain(|joined| joined.group != id);
        // Parts of operations that failed here.
        let Some(ep) = opened.eps.get_mut(group.ep.at()) else { return Ok(()) };
        let Some(rx) = ep.bind.collective() else { return Ok(()) };
        while let Some(message) =
            opened.core.rxs.get_mut(rx.at()).and_then(|rx| rx.tagged.take_oldest(|m| group.name.is_of(m.tag)))
        {
            ep.unexpected().discard(&mut opened.core, message);
        }
        Ok(())
    }

    /// The endpoint is closed: what it had under way has no completion.
    pub(super) fn forget(&mut self, ep: EpId) {
        self.operations
            .names(|op| op.ep == ep)
            .into_iter()
            .for_each(|name| drop(self.operations.remove(name)));
        self.groups.retain(|_, group| group.ep != ep);
        self.joined.retain(|joined| self.groups.contains_key(&joined.group.0));
        self.notices.retain(|notice| notice.ep != ep);
        self.joins.retain(|(of, _), _| *of != ep);
    }
}
