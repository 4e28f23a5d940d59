//! Groups, and the collective operations that are under way in them.
//!
//! An operation is a [`Schedule`] whose transfers are parts ([`operation`]). Where a member ends, the parts
//! fail that it was to send or to take. The member at which one fails notifies all others ([`group`]), whose
//! operation fails then too, whomever it waits for: none waits for ever.
//!
//! Members of one host share memory ([`join`]). Then an operation is steps ([`shared`]), which calls of
//! progress go on with; messages are for what is too long, for the end of a member, and to wake one that
//! sleeps. On several hosts some operations are steps at each, and messages of one member of each
//! ([`posting`]).

mod group;
mod join;
mod notices;
mod operation;
mod posting;
mod shared;

use std::collections::{BTreeMap, HashMap};

use collective::{Kind, Plan, Schedule, Shape};
use hmem::{AtomicOp, Datatype};
use wire::Addr;

use self::group::{Among, Group, Name};
use self::notices::{Notices, Said, group_of, notices_of, watches_of};
use self::operation::{Memory, NOTICE_SENT, Next, Operation};
use self::shared::{Over, Post, Then, Went};
use crate::core::Message;
use crate::domain::opened::Opened;
use crate::pool::Pool;
use crate::types::*;
use link_api::RmaLink;

/// Groups and operations.
#[derive(Debug)]
pub(super) struct Collectives {
    /// A number is not used again: what an application holds of a group names no other.
    groups: BTreeMap<u32, Group>,
    next_group: u32,
    operations: Pool<Operation>,
    /// Operations that have something to go on with.
    ready: Vec<u64>,
    notices: Notices,
    /// How often an endpoint has joined the same members.
    joins: HashMap<(EpId, Name), u64>,
    joined: Vec<Joined>,
    /// Groups that wait for memory that another member made.
    opening: Vec<GroupId>,
    /// Groups with operations by shared memory.
    sharing: Vec<GroupId>,
    /// Each of these wakes this process.
    armed: bool,
    /// Bytes of a slot of memory that this endpoint makes; 0: it shares none.
    slot: usize,
}

impl Collectives {
    pub(super) fn new() -> Collectives {
        Collectives {
            groups: BTreeMap::new(),
            next_group: 0,
            operations: Pool::with_capacity(0),
            ready: Vec::new(),
            notices: Notices::default(),
            joins: HashMap::new(),
            joined: Vec::new(),
            opening: Vec::new(),
            sharing: Vec::new(),
            armed: false,
            slot: 0,
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
        let vote = Collectives::words()?;
        let addrs = || members.iter().map(|(_, addr)| *addr);
        let nth = self.joins.entry((ep, Name::new(addrs(), 0))).or_default();
        let name = Name::new(addrs(), *nth);
        *nth += 1;
        let is_taken = self.groups.values().any(|g| g.ep == ep && g.name == name);
        let members = members.into_iter().map(|(at, _)| at).collect();
        let group = GroupId(self.next_group);
        self.next_group = self.next_group.checked_add(1).ok_or(Error::Exhausted)?;
        let joins = Group::new(ep, name, members, rank, vote, ctx);
        let objections = joins.objections(opened, is_taken, self.slot);
        self.groups.insert(group.0, joins);
        self.receive_notices(opened, group)?;
        self.agree(group, Kind::AllReduce, [objections, 0, 0, 0])?;
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
        (ep, id): (EpId, GroupId),
        op: &Collective,
    ) -> Result<(), Error> {
        let shape = self.shape(opened, (ep, id), op)?;
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
        let Collective { ctx, flags, input, result, .. } = *op;
        let (number, failed, then, behind) = (0, None, Then::End, None);
        let post = Post { number, ctx, flags, shape, input, result, by: reduces, failed, then, behind };
        post.start(self, opened, id)
    }

    fn post_shared(&mut self, id: GroupId, plan: Plan, post: Post) {
        let Some(shared) = self.groups.get_mut(&id.0).and_then(|group| group.shared.as_mut()) else { return };
        if shared.is_idle() {
            self.sharing.push(id);
            self.armed = false;
        }
        shared.post(plan, post);
    }

    /// Goes on with operations by shared memory. Returns how much was done.
    fn run_shared<L: RmaLink>(&mut self, opened: &mut Opened<L>) -> usize {
        let (mut n, mut at) = (0, 0);
        while let Some(&id) = self.sharing.get(at) {
            let went = self.groups.get_mut(&id.0).and_then(Group::go_on).unwrap_or(Went::Nowhere);
            if !matches!(went, Went::Nowhere) {
                n += 1;
                self.wake_members(id);
            }
            if let Went::Over(over) = went {
                self.go_to(opened, id, &over);
                continue;
            }
            let idle = |g: &Group| g.shared.as_ref().is_none_or(|s| s.is_idle());
            if self.groups.get(&id.0).is_none_or(idle) {
                self.sharing.swap_remove(at);
            } else {
                at += 1;
            }
        }
        self.armed &= n == 0;
        n
    }

    /// Members that sleep may have something to go on with.
    fn wake_members(&mut self, id: GroupId) {
        let Some(group) = self.groups.get(&id.0) else { return };
        let wake_next = |from| group.shared.as_ref()?.wake_next(from);
        let mut from = 0;
        while let Some((place, rank)) = wake_next(from) {
            self.notices.add_wake(group, rank);
            from = place + 1;
        }
    }

    /// Says what the next calls of progress have to do.
    fn settle_later<L: RmaLink>(&self, opened: &mut Opened<L>) {
        let busy = !self.ready.is_empty() || !self.notices.is_empty() || !self.opening.is_empty();
        opened.core.later.set_collective(busy);
        opened.core.later.set_shared(!self.sharing.is_empty());
    }

    /// Has other members wake this process; whether it waits for nothing else, and nothing came meanwhile.
    pub(super) fn arm<L: RmaLink>(&mut self, opened: &mut Opened<L>) -> bool {
        for id in &self.sharing {
            let shared = self.groups.get_mut(&id.0).and_then(|group| group.shared.as_mut());
            shared.into_iter().for_each(|shared| shared.sleep());
        }
        let came = !self.sharing.is_empty() && self.run_shared(opened) > 0;
        if came {
            self.settle_later(opened);
        }
        self.armed = !came;
        !came && !opened.core.later.has_collective()
    }

    /// Whether the last [`Collectives::arm`] holds.
    pub(super) fn is_armed<L>(&self, opened: &Opened<L>) -> bool {
        !opened.core.later.has_collective() && (self.sharing.is_empty() || self.armed)
    }

    /// Sets how much memory each member of a group shares, in bytes: of groups that are joined from now on.
    pub(super) fn set_memory(&mut self, bytes: usize) {
        self.slot = bytes / link_api::SLOTS as usize / 4096 * 4096;
    }

    /// An operation by messages may begin, or fails with all behind it.
    fn begin_parts(&mut self, id: GroupId, name: u64, err: Option<Error>) {
        let Some(operation) = self.operations.get_mut(name) else { return };
        if let Some(err) = err {
            operation.fail(err);
            let number = operation.number;
            self.break_group(id, number, err);
        }
        self.ready.push(name);
    }

    fn begin(
        &mut self,
        id: GroupId,
        of: (Ctx, OpFlags),
        schedule: (Schedule, Among),
        memory: Memory,
        reduces: Option<(AtomicOp, Datatype)>,
    ) -> Result<u64, Error> {
        let group = self.groups.get_mut(&id.0).ok_or(Error::NotFound)?;
        let begun = group.begin();
        self.insert(id, begun, of, schedule, memory, reduces)
    }

    /// An operation by messages, of this number, which fails if it has an error already.
    fn insert(
        &mut self,
        id: GroupId,
        (number, err): (u64, Option<Error>),
        of: (Ctx, OpFlags),
        schedule: (Schedule, Among),
        memory: Memory,
        reduces: Option<(AtomicOp, Datatype)>,
    ) -> Result<u64, Error> {
        let group = self.groups.get(&id.0).ok_or(Error::NotFound)?;
        let place = (number, group.name.tag(number));
        let mut operation = Operation::new((id, group.ep), place, of, schedule, memory, reduces);
        if let Some(err) = err {
            operation.fail(err);
        }
        Ok(self.operations.insert(operation))
    }

    /// Goes on with all that has something to go on with. Returns how much was done.
    pub(super) fn run<L: RmaLink>(&mut self, opened: &mut Opened<L>) -> usize {
        let (mut again, mut n) = (Vec::new(), 0);
        loop {
            n += self.run_shared(opened) + self.open_requested(opened);
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
                let next = operation.go_on(opened, Ctx(name as usize), group);
                n += usize::from(before != operation.posted());
                match next {
                    Next::Wait => {}
                    Next::Again => again.push(name),
                    Next::End => self.end(opened, name),
                }
            }
        }
        self.ready = again;
        n += self.notices.send(opened);
        self.settle_later(opened);
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
        let Some((id, watches)) = group_of(entry.ctx) else { return };
        let Some(group) = self.groups.get_mut(&id.0) else { return };
        let Some(from) = group.rank_of(entry.src) else {
            let _ = self.receive_notices(opened, id);
            return;
        };
        if watches && entry.err.is_some() {
            return self.has_ended(id, from, true);
        }
        if entry.err.is_none() {
            match Said::by(entry.data) {
                Said::Failed(err, unreached) => {
                    group.break_from(entry.tag, err);
                    unreached.into_iter().for_each(|to| self.notices.add_failed_to(group, entry.tag, to));
                    self.fail_broken(id);
                }
                Said::Woken => {}
                Said::Ended(member) => self.has_ended(id, member, false),
            }
        }
        if watches {
            let (ep, tag) = (self.groups[&id.0].ep, Some(self.groups[&id.0].name.notices()));
            let _ = operation::receive(opened, ep, Pattern { src: entry.src, tag }, &[], watches_of(id));
        } else {
            let _ = self.receive_notices(opened, id);
        }
    }

    /// A member of a group with shared memory has ended; those that have no channel with it do not see that.
    fn has_ended(&mut self, id: GroupId, rank: usize, is_seen: bool) {
        let Some(group) = self.groups.get_mut(&id.0).filter(|group| group.may_share()) else { return };
        group.note_gone(rank);
        if is_seen {
            self.notices.add_ended(group, rank);
        }
    }

    /// An address of the vector is removed, and is called `next` from now on if it has another entry. A group
    /// fails whose member has none: nothing comes from it any more. That member is notified while it has one.
    pub(super) fn address_removed<L: RmaLink>(
        &mut self,
        opened: &mut Opened<L>,
        av: AvId,
        (at, next): (FiAddr, FiAddr),
    ) {
        let uses = |ep: EpId| opened.eps.get(ep.at()).is_some_and(|ep| ep.bind.av() == av);
        let groups = self.groups.iter_mut().filter(|(_, group)| uses(group.ep));
        let lacking = groups.filter_map(|(id, group)| Some((GroupId(*id), group.rename(at, next)?)));
        for (id, member) in lacking.collect::<Vec<_>>() {
            let parts = self.operations.names(|op| op.group == id).into_iter();
            let parts = parts.filter_map(|name| Some(self.operations.get_mut(name)?.number));
            let Some(group) = self.groups.get_mut(&id.0) else { continue };
            let steps = group.shared.as_ref().and_then(|shared| shared.first());
            let first = parts.chain(steps).min().unwrap_or(group.begun());
            if group.break_from(first, Error::Cancelled) {
                self.notices.add_removed(group, first, member);
            }
            self.fail_broken(id);
        }
        self.notices.send(opened);
        self.settle_later(opened);
    }

    /// Fails an operation of a group with all behind it, and notifies the other members.
    fn break_group(&mut self, id: GroupId, number: u64, err: Error) {
        let Some(group) = self.groups.get_mut(&id.0) else { return };
        if group.break_from(number, err) {
            self.notices.add_failed(group, number, err);
        }
        self.fail_broken(id);
    }

    /// Fails the operations of a group that are not to go on.
    fn fail_broken(&mut self, id: GroupId) {
        let Some(group) = self.groups.get_mut(&id.0) else { return };
        if let Some(mut shared) = group.shared.take() {
            shared.fail(|number| group.failure(number));
            (group.shared, self.armed) = (Some(shared), false);
        }
        let Some(group) = self.groups.get(&id.0) else { return };
        for name in self.operations.names(|op| op.group == id) {
            let Some(operation) = self.operations.get_mut(name) else { continue };
            if let Some(err) = group.failure(operation.number) {
                operation.fail(err);
                self.ready.push(name);
            }
        }
    }

    /// An operation by messages is over.
    fn end<L: RmaLink>(&mut self, opened: &mut Opened<L>, name: u64) {
        let Some(operation) = self.operations.remove(name) else { return };
        let (err, then) = (operation.failure(), operation.then());
        let Operation { group, number, ctx, flags, .. } = operation;
        self.go_to(opened, group, &Over { number, ctx, flags, err, then });
        if then == Then::GoOn {
            let shared = self.groups.get_mut(&group.0).and_then(|group| group.shared.as_mut());
            shared.into_iter().for_each(|shared| shared.begin_behind(name));
        }
    }

    /// Goes to what is behind steps or messages of an operation.
    fn go_to<L: RmaLink>(&mut self, opened: &mut Opened<L>, id: GroupId, over: &Over) {
        match (over.then, over.err) {
            (Then::Begin(name), err) => self.begin_parts(id, name, err),
            (Then::GoOn, None) => {}
            (Then::GoOn, Some(err)) => self.break_group(id, over.number, err),
            (Then::End, _) => self.is_over(opened, id, over),
        }
    }

    fn is_over<L: RmaLink>(&mut self, opened: &mut Opened<L>, id: GroupId, over: &Over) {
        let &Over { number, ctx, flags, err, .. } = over;
        let Some(group) = self.groups.get_mut(&id.0) else { return };
        let (ep, joins) = (group.ep, !group.is_joined());
        group.end();
        if let Some(err) = err {
            self.break_group(id, number, err);
        }
        if joins {
            self.join_goes_on(opened, id, err);
        } else if let Some(ep) = opened.eps.get(ep.at()) {
            opened.core.count(ep.bind.cntrs().write, err.is_some());
            if err.is_some() || flags.contains(OpFlags::COMPLETION) {
                let entry = Completion { ctx, what: What::COLLECTIVE, err, ..Completion::BLANK };
                opened.core.complete(ep.bind.tx_cq(), entry);
            }
        }
    }

    /// How many operations are under way that count in that counter.
    pub(super) fn counted_in<L: RmaLink>(&self, opened: &Opened<L>, cntr: CntrId) -> usize {
        let counts = |group: &&Group| {
            let ep = opened.eps.get(group.ep.at());
            group.is_joined() && ep.is_some_and(|ep| ep.bind.cntrs().write == Some(cntr))
        };
        self.groups.values().filter(counts).map(Group::under_way).sum()
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
        self.groups.get(&id.0).and_then(|g| g.shared.as_ref()).into_iter().for_each(|shared| shared.leave());
        self.wake_members(id);
        self.settle_later(opened);
        let Some(group) = self.groups.remove(&id.0) else { return Err(Error::NotFound) };
        operation::unpost(opened, group.ep, notices_of(id));
        operation::unpost(opened, group.ep, watches_of(id));
        self.joined.retain(|joined| joined.group != id);
        // Parts of operations that failed here, and what came late for groups that were closed before.
        let is_open = |tag| self.groups.values().any(|g| g.ep == group.ep && g.name.is_of(tag));
        let picks = |m: &Message| {
            group.name.is_of(m.tag)
                || notices::is_of_joined(m.tag, m.data) && m.ep == group.ep && !is_open(m.tag)
        };
        let ep = opened.eps.get_mut(group.ep.at());
        let Some((ep, rx)) = ep.and_then(|ep| ep.bind.collective().map(|rx| (ep, rx))) else { return Ok(()) };
        while let Some(message) = opened.core.rxs.get_mut(rx.at()).and_then(|rx| rx.tagged.take_oldest(picks))
        {
            ep.unexpected().discard(&mut opened.core, message);
        }
        Ok(())
    }

    /// The endpoint is closed: what it had under way has no completion.
    pub(super) fn forget(&mut self, ep: EpId) {
        let of_it = self.operations.names(|op| op.ep == ep);
        of_it.into_iter().for_each(|name| drop(self.operations.remove(name)));
        self.groups.retain(|_, group| group.ep != ep);
        self.joined.retain(|joined| self.groups.contains_key(&joined.group.0));
        self.notices.forget(ep);
        self.joins.retain(|(of, _), _| *of != ep);
        self.opening.retain(|group| self.groups.contains_key(&group.0));
        self.sharing.retain(|group| self.groups.contains_key(&group.0));
    }
}
