//! Collective calls of processes, over pipes between each two of them.
//!
//! A pipe is set up when a message first goes that way: a broadcast and a reduction use those along a
//! binomial tree. Bytes go from the memory of one member's caller to the heap of the other's pipe, and from
//! there to where they are used; no call has a buffer of its own. A member that ends, or whose call fails,
//! ends the calls of all that wait for it: each member gets a message with the rank that it began with, and
//! all pipes of the group are closed. From then on each call of the group is that error.

mod agreement;
#[cfg(all(test, not(loom)))]
mod collective_tests;
mod collectives;
mod members;
mod number;
mod pieces;
mod reduction;
#[cfg(all(test, not(loom)))]
mod tests;
mod transfer;
mod tree;

use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::core::Context;
use crate::core::Patience;
use crate::core::{Reason, closed};
use crate::{Error, Pipe, PipeOptions, Rank, Side};

use agreement::Agreement;
pub use collectives::Combine;
pub(crate) use collectives::parts;
use members::{Fault, HEAP, Member, Members, SLOTS};
pub(crate) use number::{Elements, FUNCTION, How, predefined};
pub use number::{Number, Operation};
use pieces::{Incoming, Kind, Outgoing};
use transfer::{Also, Transfers};
use tree::Tree;

/// For how long a group that is over waits for the messages by which it ends at each member.
const LEAVING: Duration = Duration::from_secs(1);

/// Members that call collectively.
#[derive(Debug)]
pub struct Group {
    transfers: Transfers,
    over: Option<Error>,
}

/// A neighbour, what it gets, and where what it sends goes.
#[derive(Debug)]
pub struct Neighbor<'a> {
    pub rank: Rank,
    pub send: &'a [u8],
    pub receive: &'a mut [u8],
    /// Bytes that came.
    pub received: usize,
}

/// The same by addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exchange {
    pub(crate) rank: Rank,
    pub(crate) send: (*const u8, usize),
    pub(crate) receive: (*mut u8, usize),
    pub(crate) received: usize,
}

impl Group {
    /// The group of these ranks, in this order at each of them. Nothing is sent. Each member opens its groups
    /// with another in the same order, and full-duplex pipes to it count as such.
    pub fn open(context: &Arc<Context>, ranks: &[Rank]) -> Result<Group, Error> {
        let me = ranks.iter().position(|rank| *rank == context.rank());
        let me = me.ok_or_else(|| {
            Error::Invalid(format!("rank {} is not in the group that it opens", context.rank()))
        })?;
        let mut sorted = ranks.to_vec();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|two| two[0] == two[1]) {
            return Err(Error::Invalid(format!("rank {} is in the group twice", twice[0])));
        }
        let settings = context.settings();
        let (heap, slots) = (Some(settings.heap.max(HEAP)), Some(settings.slots.max(SLOTS)));
        let options = PipeOptions { heap, slots, ..PipeOptions::new(Side::Both) };
        let mut members = Vec::with_capacity(ranks.len());
        for (at, rank) in ranks.iter().enumerate() {
            let pipe = if at == me { None } else { Some(Pipe::open(context, *rank, &options)?) };
            members.push(Member::new(*rank, pipe));
        }
        let (incoming, outgoing) = (Vec::new(), Vec::new());
        let agreement = Agreement::new();
        let members = Members { context: context.clone(), me, all: members, agreement };
        let transfers = Transfers { members, incoming, outgoing };
        Ok(Group { transfers, over: None })
    }

    /// Members.
    pub fn size(&self) -> usize {
        self.transfers.members.all.len()
    }

    /// Sends the bytes of one member, the root, to all. Each member calls it, with the same root and length.
    pub fn bcast(&mut self, root: Rank, bytes: &mut [u8]) -> Result<(), Error> {
        self.bcast_timed(root, bytes, Patience::Forever)
    }

    /// As [`Group::bcast`], within a time. [`Error::TimedOut`]: it was not enough, and the group is over.
    pub fn bcast_timed(&mut self, root: Rank, bytes: &mut [u8], patience: Patience) -> Result<(), Error> {
        // SAFETY: a slice of this call's.
        unsafe { self.bcast_at(root, bytes.as_mut_ptr(), bytes.len(), patience) }
    }

    /// As [`Group::bcast`].
    ///
    /// # Safety
    /// `len` bytes are readable at the root, and writable at the others, and nothing else uses them
    /// meanwhile.
    pub(crate) unsafe fn bcast_at(
        &mut self,
        root: Rank,
        bytes: *mut u8,
        len: usize,
        patience: Patience,
    ) -> Result<(), Error> {
        let root = self.place(root)?;
        let what = self.begin_call(Kind::Bcast, root, 0)?;
        let tree = self.tree(root);
        let parent = tree.parent();
        self.transfers.incoming.extend(parent.map(|place| Incoming::new(place, what, (bytes, len), true)));
        let children = tree.children().rev();
        self.transfers.outgoing.extend(children.map(|place| Outgoing::new(place, what, (bytes, len))));
        self.run(if parent.is_some() { Also::Relay } else { Also::Nothing }, patience)
    }

    /// The tree along which a call goes from this root, or to it.
    fn tree(&self, root: usize) -> Tree {
        Tree::new(self.size(), root, self.transfers.members.me)
    }

    /// Sends to each neighbour, and receives from each; they call it, too, and have this member among theirs.
    /// Of several that are one rank the first sent is the first received.
    pub fn neighbor_exchange(&mut self, neighbors: &mut [Neighbor<'_>]) -> Result<(), Error> {
        self.neighbor_exchange_timed(neighbors, Patience::Forever)
    }

    /// As [`Group::neighbor_exchange`], within a time. [`Error::TimedOut`]: it was not enough, and the group
    /// is over.
    pub fn neighbor_exchange_timed(
        &mut self,
        neighbors: &mut [Neighbor<'_>],
        patience: Patience,
    ) -> Result<(), Error> {
        let mut all: Vec<Exchange> = neighbors
            .iter_mut()
            .map(|one| Exchange {
                rank: one.rank,
                send: (one.send.as_ptr(), one.send.len()),
                receive: (one.receive.as_mut_ptr(), one.receive.len()),
                received: 0,
            })
            .collect();
        // SAFETY: slices of this call's, none of which is another.
        let done = unsafe { self.exchange_at(&mut all, patience) };
        neighbors.iter_mut().zip(all).for_each(|(one, other)| one.received = other.received);
        done
    }

    /// As [`Group::neighbor_exchange`].
    ///
    /// # Safety
    /// What is sent is readable, what is received writable, and nothing else uses either meanwhile.
    pub(crate) unsafe fn exchange_at(
        &mut self,
        all: &mut [Exchange],
        patience: Patience,
    ) -> Result<(), Error> {
        for one in all.iter() {
            let place = self.place(one.rank)?;
            if place == self.transfers.members.me && one.send.1 > one.receive.1 {
                return Err(Error::TooLong(format!(
                    "{} bytes from this member to itself, which has room for {}",
                    one.send.1, one.receive.1
                )));
            }
        }
        self.begin()?;
        let what = pieces::EXCHANGE;
        for one in all.iter_mut() {
            let place = self.place(one.rank)?;
            if place == self.transfers.members.me {
                // SAFETY: the caller's promise, and the lengths were compared.
                unsafe { ptr::copy(one.send.0, one.receive.0, one.send.1) };
                one.received = one.send.1;
                continue;
            }
            let number = self.transfers.incoming.len();
            let last = self.transfers.members.all[place].last.replace(number);
            self.transfers.incoming.push(Incoming::new(place, what, one.receive, false).behind(last));
            self.transfers.outgoing.push(Outgoing::new(place, what, one.send).behind(last));
        }
        let done = self.run(Also::Nothing, patience);
        let others = all.iter_mut().filter(|one| one.rank != self.rank());
        others.zip(&self.transfers.incoming).for_each(|(one, came)| one.received = came.got);
        done
    }

    /// This member.
    pub fn rank(&self) -> Rank {
        self.transfers.members.context.rank()
    }

    fn place(&self, rank: Rank) -> Result<usize, Error> {
        let mut members = self.transfers.members.all.iter();
        members
            .position(|member| member.rank == rank)
            .ok_or_else(|| Error::Invalid(format!("rank {rank} is not in this group")))
    }

    /// Begins a call.
    fn begin(&mut self) -> Result<(), Error> {
        self.transfers.clear();
        self.over.clone().map_or(Ok(()), Err)
    }

    /// Begins a call of all members, and returns what its messages begin with.
    fn begin_call(&mut self, kind: Kind, root: usize, detail: u8) -> Result<u64, Error> {
        self.begin()?;
        let agreement = &mut self.transfers.members.agreement;
        let what = pieces::call(kind, root, detail, agreement.next());
        agreement.begin(what);
        Ok(what)
    }

    /// Moves all that was begun.
    fn run(&mut self, also: Also<'_, '_>, patience: Patience) -> Result<(), Error> {
        self.transfers.move_all(also, patience).map_err(|fault| self.end(fault))
    }

    /// The group is over for this: each member gets a message that says so.
    #[cold]
    fn end(&mut self, (place, error): Fault) -> Error {
        // It may have said why before it ended, on a connection that is not accepted yet: what comes there is
        // taken by the second.
        for _ in 0..2 {
            let _ = self.transfers.members.context.progress();
        }
        let member = &self.transfers.members.all[place];
        let (rank, reported) = (member.rank, member.pipe.as_ref().and_then(Pipe::over_for));
        let error = match (reported, matches!(error, Error::Gone(_))) {
            (Some(cause), true) => closed(Reason::Over(cause), ""),
            // It names those that were waited for.
            (_, false) if matches!(error, Error::TimedOut(_)) => error,
            _ => error.of(rank),
        };
        // What is wrong with a message is for this member to report: to the others its call has failed.
        let cause = if matches!(error, Error::Gone(_)) { reported.unwrap_or(rank) } else { self.rank() };
        for member in &mut self.transfers.members.all {
            if let Some(mut pipe) = member.pipe.take() {
                pipe.say_over(cause);
                let _ = pipe.close_by(Instant::now() + LEAVING);
            }
        }
        self.over = Some(error.clone());
        error
    }

    /// Closes the group.
    pub fn close(&mut self) -> Result<(), Error> {
        self.over.get_or_insert_with(|| Error::Invalid("the group is closed".into()));
        let until = self.transfers.members.context.leaves_by();
        let pipes = self.transfers.members.all.iter_mut().filter_map(|member| member.pipe.take());
        pipes.map(|mut pipe| pipe.close_by(until)).fold(Ok(()), Result::and)
    }
}
