//! Operations of a group whose members share memory: steps, one operation after the other, in the order in
//! which they were posted.

use std::collections::VecDeque;

use collective::{Part, Place, Plan, Put, Run, Sequence, Shape, Slots, Take, Use};
use hmem::{AtomicOp, Datatype, Span};
use link_api::{Arrival, GroupMemory, GroupShape, InSlot, SLOTS};

use crate::types::*;

/// Memory, and how it is laid out.
pub(super) type Made = (GroupShape, Box<dyn GroupMemory>);

/// How elements are reduced.
pub(super) type By = Option<(AtomicOp, Datatype)>;

/// What is behind the steps of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// The operation is over.
    End,
    /// Messages: the operation of this name begins.
    Begin(u64),
    /// More steps, which are posted.
    GoOn,
}

/// An operation, as it is posted, or some steps of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Post {
    /// Of the group's operations.
    pub(super) number: u64,
    pub(super) ctx: Ctx,
    pub(super) flags: OpFlags,
    pub(super) shape: Shape,
    pub(super) input: Span,
    pub(super) result: Span,
    pub(super) by: By,
    pub(super) failed: Option<Error>,
    pub(super) then: Then,
    /// The messages that are to be over before it begins.
    pub(super) behind: Option<u64>,
}

/// An operation that is posted or under way.
#[derive(Debug)]
struct Posted {
    post: Post,
    run: Run,
    print: u64,
}

/// One that is over.
#[derive(Debug)]
pub(super) struct Over {
    pub(super) number: u64,
    pub(super) ctx: Ctx,
    pub(super) flags: OpFlags,
    pub(super) err: Option<Error>,
    pub(super) then: Then,
}

/// What a call of progress found.
#[derive(Debug)]
pub(super) enum Went {
    /// Nothing to do.
    Nowhere,
    /// Some steps, and the operation waits.
    On,
    Over(Over),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Shared {
    memory: Box<dyn GroupMemory>,
    shape: GroupShape,
    /// The group's members that share it.
    members: Vec<usize>,
    sequence: Sequence,
    posted: VecDeque<Posted>,
    /// Calls that have found nothing since members were polled that may have left.
    idle: u32,
}

/// A member that has closed the group says to have finished this step.
const LEFT: u64 = u64::MAX;
/// Calls that find nothing, from one to the next that polls whether a member has left.
const IDLE: u32 = 256;

/// What the operation is, as all members have to say it.
fn print(shape: &Shape, by: By, number: u64) -> u64 {
    let (op, datatype) = by.map_or((0, 0), |(op, datatype)| (op as u64 + 1, datatype as u64 + 1));
    let parts = [
        shape.kind as u64 + 1,
        shape.root as u64,
        shape.count as u64,
        shape.size as u64,
        op << 8 | datatype,
        number,
    ];
    parts.iter().fold(0xcbf2_9ce4_8422_2325, |hash, part| {
        (hash ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    })
}

impl Shared {
    pub(super) fn new((shape, memory): Made, members: Vec<usize>) -> Shared {
        Shared { memory, shape, members, sequence: Sequence::new(SLOTS), posted: VecDeque::new(), idle: 0 }
    }

    /// Bytes of a slot.
    pub(super) fn slot(&self) -> usize {
        self.shape.slot
    }

    /// How an operation goes by this memory. What is too long goes by messages, behind a step without bytes:
    /// whether it is too long depends on the count, and members that have posted other counts are to find
    /// that. `None`: no operation of this kind goes by this memory.
    pub(super) fn plan(&self, shape: Shape) -> Option<Plan> {
        let plan = |shape| Plan::new(shape, self.shape.slot);
        plan(shape).or_else(|| plan(Shape { count: 0, ..shape }))
    }

    pub(super) fn post(&mut self, plan: Plan, post: Post) {
        let print = print(&post.shape, post.by, post.number);
        self.posted.push_back(Posted { post, run: Run::new(plan), print });
    }

    pub(super) fn is_idle(&self) -> bool {
        self.posted.is_empty()
    }

    /// The number of the first operation.
    pub(super) fn first(&self) -> Option<u64> {
        self.posted.front().map(|posted| posted.post.number)
    }

    /// Fails those that are not to go on.
    pub(super) fn fail(&mut self, why: impl Fn(u64) -> Option<Error>) {
        for posted in &mut self.posted {
            let post = &mut posted.post;
            post.failed = post.failed.or_else(|| why(post.number));
        }
    }

    /// These messages are over: what is behind them may begin.
    pub(super) fn begin_behind(&mut self, name: u64) {
        let behind = self.posted.iter_mut().filter(|posted| posted.post.behind == Some(name));
        behind.for_each(|posted| posted.post.behind = None);
    }

    /// Goes on with the first operation; `gone`: members that have ended.
    pub(super) fn go_on(&mut self, gone: &[usize]) -> Went {
        let Shared { memory, shape, members, sequence, posted, idle } = self;
        let Some(first) = posted.front_mut().filter(|first| first.post.behind.is_none()) else {
            return Went::Nowhere;
        };
        let before = first.run;
        let err = match first.post.failed {
            Some(err) => Some(err),
            None => {
                let Posted { print, post: Post { input, result, by, .. }, .. } = *first;
                let (memory, rank) = (&**memory, shape.rank);
                let may_leave = *idle == 0;
                *idle = (*idle + 1) % IDLE;
                let view = View { memory, rank, members, gone, may_leave, print, input, result, by };
                let went = first.run.go_on(sequence, &view);
                match went {
                    Ok(false) if first.run == before => return Went::Nowhere,
                    Ok(false) => return Went::On,
                    Ok(true) => None,
                    Err(err) => Some(err),
                }
            }
        };
        let Some(Posted { post, .. }) = posted.pop_front() else { return Went::Nowhere };
        let Post { number, ctx, flags, then, .. } = post;
        Went::Over(Over { number, ctx, flags, err, then })
    }

    /// After [`Shared::go_on`] went on: the next member from place `from` on that is to be woken by a frame,
    /// with its place.
    pub(super) fn wake_next(&self, from: usize) -> Option<(usize, usize)> {
        if from == 0 && !self.memory.may_sleep() {
            return None;
        }
        let place = self.memory.wake_next(from)?;
        Some((place, self.members[place]))
    }

    /// This member is to be woken from now on. What it waits for is to be polled once more.
    pub(super) fn sleep(&mut self) {
        self.memory.sleep();
        self.idle = 0;
    }

    /// This member closes the group: what others expect of it beyond what it has published does not come.
    pub(super) fn leave(&self) {
        self.memory.finish(LEFT);
    }
}

/// The slots, for one operation.
struct View<'a> {
    memory: &'a dyn GroupMemory,
    rank: usize,
    members: &'a [usize],
    gone: &'a [usize],
    /// Whether members that have left are to be found.
    may_leave: bool,
    print: u64,
    input: Span,
    result: Span,
    by: By,
}

impl View<'_> {
    fn is_gone(&self, place: usize) -> bool {
        self.gone.contains(&self.members[place])
    }

    fn span(&self, part: &Part) -> Result<Span, Error> {
        let whole = if part.place == Place::Input { self.input } else { self.result };
        if part.len == 0 {
            return Ok(Span::EMPTY);
        }
        whole.part(part.at, part.len).ok_or(Error::Invalid)
    }
}

impl Slots for View<'_> {
    type Error = Error;

    fn arrived(&self, member: usize, step: u64) -> Result<bool, Error> {
        let arrival = || self.memory.arrival(member, step, self.print);
        match arrival() {
            Arrival::Here => Ok(true),
            // What it has published came before.
            Arrival::Awaited if self.may_leave && self.memory.finished(member) == LEFT => match arrival() {
                Arrival::Here => Ok(true),
                _ => Err(Error::Cancelled),
            },
            Arrival::Awaited if self.is_gone(member) => Err(Error::Reset),
            Arrival::Awaited => Ok(false),
            Arrival::Wrong => Err(Error::Invalid),
        }
    }

    fn finished(&self, member: usize) -> u64 {
        if self.is_gone(member) { u64::MAX } else { self.memory.finished(member) }
    }

    fn begin(&self, step: u64) -> Result<(), Error> {
        let place = |member| self.members.iter().position(|m| m == member);
        self.gone.iter().filter_map(place).try_for_each(|place| self.arrived(place, step).map(drop))
    }

    fn put(&self, step: u64, used: usize, put: &Put) -> Result<(), Error> {
        let to = InSlot { member: self.rank, step, used, at: put.at, len: put.from.len };
        self.memory.put(to, self.span(&put.from)?).then_some(()).ok_or(Error::Io)
    }

    fn take(&self, step: u64, used: usize, take: &Take) -> Result<(), Error> {
        let &Take { member, earlier, at, len, then } = take;
        let from = InSlot { member, step: step - u64::from(earlier), used, at, len };
        let into = match then {
            Use::Copy(part) => {
                return self.memory.get(from, self.span(&part)?).then_some(()).ok_or(Error::Io);
            }
            Use::Wait => return Ok(()),
            _ if len == 0 => return Ok(()),
            Use::Reduce(part) => Some(self.span(&part)?),
            Use::ReduceHere => None,
        };
        let by = self.by.ok_or(Error::Invalid)?;
        self.memory.reduce(from, into, by).map_err(|why| match why {
            hmem::NotApplied::Unsupported => Error::Unsupported,
            hmem::NotApplied::Fault => Error::Io,
        })
    }

    fn publish(&self, step: u64) {
        self.memory.publish(step, self.print);
    }

    fn finish(&self, step: u64) {
        self.memory.finish(step);
    }
}
