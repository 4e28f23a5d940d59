//! What this process lends, and what was lent to it: how memory is offered, taken over and given back, by the
//! messages of `messages`.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use super::messages::{
    ATOMIC, BACK, DONE, LEND, Name, OVER, TAKEN, decode, decode_answer, decode_offer, decode_request,
    encode_answer, encode_offer, encode_request, is_one,
};
use super::thread::Helper;
use crate::core::{Context, HEAP_MOST, Net, Service, TOKENS, forked};
use crate::{Atomic, Error, Get, Grant, Promise, Put, Rank, Region, RegionId, Token};

/// Offers of one lender that are not borrowed yet.
const OFFERS_MOST: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct Lends {
    lent: HashMap<Name, Offer>,
    borrowed: HashMap<Name, Borrow>,
    last: u32,
    last_id: u32,
    /// For what is lent over paths whose operations take this process's progress, until none is reached.
    helper: Option<Helper>,
    /// The process leaves the job: no thread is started any more.
    leaves: bool,
}

/// Memory of this process, which others of its borrowers have, too.
#[derive(Debug)]
struct Offer {
    region: Region,
    /// Where there are several borrowers: the one that has the book.
    keeper: Option<Rank>,
    offered: bool,
    taken: bool,
    /// The borrower needs it no more.
    back: bool,
    /// The lender has taken it back.
    closed: bool,
    /// The thread makes progress for it.
    helped: bool,
}

/// Memory of a peer.
#[derive(Debug)]
struct Borrow {
    len: usize,
    /// Where there are several borrowers: the one that has the book.
    keeper: Option<Rank>,
    /// `None`: what came with the offer is less than it says.
    grant: Option<Grant>,
    /// What tokens have; 0: it is not borrowed yet.
    id: u32,
    /// The lender has taken it back.
    over: bool,
    under_way: bool,
    outcome: Option<Result<(), Error>>,
    /// The last atomic operation that the lender has answered.
    answer: Option<(u32, Option<u64>)>,
    /// It is closed, and the operation under way uses this region of the borrower's.
    leaves: Option<RegionId>,
}

/// What was lent, for its borrower.
#[derive(Clone, Debug)]
pub(super) struct Loan {
    pub(super) name: Name,
    pub(super) len: usize,
    /// Where there are several borrowers: the one that has the book.
    pub(super) keeper: Option<Rank>,
    pub(super) grant: Grant,
    pub(super) promise: Promise,
}

/// An operation on borrowed memory, from or to memory of this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Move {
    pub(super) write: bool,
    pub(super) local: (RegionId, usize),
    pub(super) at: usize,
    pub(super) len: usize,
}

/// How far an offer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offered {
    /// The borrower is not in the job yet.
    Unmet,
    Sent,
    Taken,
}

fn send(net: &mut Net, name: Name, kind: u8) -> Result<(), Error> {
    let peer = if name.lender == net.rank() { name.borrower } else { name.lender };
    net.backend().send(peer, &name.encode(kind), &[])
}

fn check_partner(net: &Net, peer: Rank) -> Result<(), Error> {
    forked::check()?;
    net.check_rank(peer)?;
    if peer == net.rank() {
        return Err(Error::Invalid("memory is lent to another process, and not to the lender itself".into()));
    }
    net.check_peer(peer)
}

impl Lends {
    /// Makes memory to be lent. `shared`: each borrower knows of the others, and the first has the book.
    pub(super) fn lend(
        &mut self,
        net: &mut Net,
        borrowers: &[Rank],
        len: usize,
        shared: bool,
    ) -> Result<Vec<Name>, Error> {
        if borrowers.is_empty() {
            return Err(Error::Invalid("memory is lent to one process at least".into()));
        }
        for (at, borrower) in borrowers.iter().enumerate() {
            check_partner(net, *borrower)?;
            if borrowers[..at].contains(borrower) {
                return Err(Error::Invalid(format!("rank {borrower} is twice among the borrowers")));
            }
        }
        if len == 0 || len > HEAP_MOST {
            return Err(Error::Invalid(format!("{len} bytes to be lent: the least is 1, the most 16 GiB")));
        }
        let region = net.backend().expose(len.next_multiple_of(64))?;
        self.last += 1;
        let name = |borrower: &Rank| Name { lender: net.rank(), borrower: *borrower, ordinal: self.last };
        let names: Vec<Name> = borrowers.iter().map(name).collect();
        let keeper = if shared { borrowers.first().copied() } else { None };
        for name in &names {
            let region = region.clone();
            let (offered, taken, back, closed, helped) = (false, false, false, false, false);
            let offer = Offer { region, keeper, offered, taken, back, closed, helped };
            self.lent.insert(*name, offer);
        }
        Ok(names)
    }

    /// Offers it, once. An error if the borrower never takes it.
    pub(super) fn offer(&mut self, net: &mut Net, name: Name) -> Result<Offered, Error> {
        let offer = self.lent.get_mut(&name).ok_or_else(|| Error::Invalid("it is not lent".into()))?;
        if offer.taken {
            // The borrower may have ended since.
            return Ok(Offered::Taken);
        }
        net.check_peer(name.borrower)?;
        if offer.back {
            return Err(Error::Full(format!(
                "rank {} does not take the memory: {OFFERS_MOST} others wait to be borrowed there (rborrow)",
                name.borrower
            )));
        }
        if !offer.offered {
            match net.meet(name.borrower) {
                Err(Error::Again) => return Ok(Offered::Unmet),
                other => other?,
            }
            let bytes = encode_offer(name, offer.region.memory.len(), offer.keeper);
            net.backend().send(name.borrower, &bytes, &[offer.region.id])?;
            offer.offered = true;
        }
        Ok(Offered::Sent)
    }

    /// Whether the borrower needs it no more; an error if it has ended, or the lender has taken it back.
    pub(super) fn is_back(&self, net: &Net, name: Name) -> Result<bool, Error> {
        match self.lent.get(&name) {
            Some(offer) if offer.back => Ok(true),
            Some(offer) if !offer.closed => net.check_peer(name.borrower).map(|()| false),
            _ => Err(Error::Invalid("the memory was taken back (rlend_close)".into())),
        }
    }

    /// A thread makes progress for those borrowers whose operations take it; whether there are such.
    pub(super) fn help(
        &mut self,
        net: &mut Net,
        context: &Arc<Context>,
        names: &[Name],
    ) -> Result<bool, Error> {
        let mut wakes = None;
        for name in names {
            let promise = net.promise(name.borrower);
            match self.lent.get_mut(name) {
                Some(offer) if offer.offered && promise.peer_progress => offer.helped = true,
                _ => continue,
            }
            wakes = Some(wakes.unwrap_or(true) && promise.wakes);
        }
        let Some(wakes) = wakes.filter(|_| !self.leaves) else { return Ok(false) };
        net.backend().allows_thread()?;
        match &self.helper {
            Some(helper) => helper.add(wakes),
            None => self.helper = Some(Helper::start(context, wakes)?),
        }
        Ok(true)
    }

    /// The thread, if it ends. It is dropped when the job is not locked: that waits for it.
    pub(super) fn take_ended_helper(&mut self) -> Option<Helper> {
        self.helper.take_if(|helper| helper.ends())
    }

    /// The thread, to be dropped like one that ends. No other one is started.
    pub(super) fn take_last_helper(&mut self) -> Option<Helper> {
        self.leaves = true;
        self.helper.take()
    }

    /// Takes it back: at once where nothing reaches it, else when the borrower says so.
    pub(super) fn take_back(&mut self, net: &mut Net, name: Name) -> Result<(), Error> {
        let Some(offer) = self.lent.get_mut(&name) else { return Ok(()) };
        let reached = offer.offered && !offer.back && !net.is_gone(name.borrower);
        let again = std::mem::replace(&mut offer.closed, true);
        if forked::is_child() || !net.is_open() || again && reached {
            return Ok(());
        }
        if reached { send(net, name, OVER) } else { self.withdraw(net, name) }
    }

    /// No borrower of this name reaches it any more; it goes with the last one.
    fn withdraw(&mut self, net: &mut Net, name: Name) -> Result<(), Error> {
        let Some(offer) = self.lent.remove(&name) else { return Ok(()) };
        if let Some(helper) = self.helper.as_ref().filter(|_| !self.lent.values().any(|other| other.helped)) {
            helper.end();
        }
        let is_reached = self.lent.values().any(|other| other.region.id == offer.region.id);
        if is_reached { Ok(()) } else { net.backend().withdraw(offer.region.id) }
    }

    /// The oldest memory that this lender offers, which is borrowed from now on; `None`: there is none yet.
    pub(super) fn borrow_next(&mut self, net: &mut Net, lender: Rank) -> Result<Option<Loan>, Error> {
        check_partner(net, lender)?;
        let offers = self.borrowed.iter().filter(|(name, one)| name.lender == lender && one.id == 0);
        let Some(name) = offers.map(|(name, _)| *name).min_by_key(|name| name.ordinal) else {
            // A lender that has left before it offered anything is found out by a connection to it.
            return match net.meet(lender) {
                Ok(()) | Err(Error::Again) => Ok(None),
                Err(fault) => Err(fault),
            };
        };
        let promise = net.promise(lender);
        self.last_id += 1;
        let id = self.last_id;
        let Some(one) = self.borrowed.get_mut(&name) else { return Ok(None) };
        let Some(grant) = one.grant.clone() else {
            self.give_back(net, name, None)?;
            return Err(Error::Broken(format!(
                "rank {lender} lends less memory than it says, or in no rank's book"
            )));
        };
        one.id = id;
        Ok(Some(Loan { name, len: one.len, keeper: one.keeper, grant, promise }))
    }

    /// It can be borrowed again.
    pub(super) fn not_borrowed(&mut self, name: Name) {
        if let Some(one) = self.borrowed.get_mut(&name) {
            one.id = 0;
        }
    }

    /// An error if the memory is not to be used any more.
    pub(super) fn is_lent(&self, net: &Net, name: Name) -> Result<(), Error> {
        match self.borrowed.get(&name) {
            Some(one) if one.over => {
                Err(Error::Gone(format!("rank {} has taken its memory back", name.lender)))
            }
            Some(_) => net.check_peer(name.lender),
            None => Err(Error::Invalid("the memory was given back".into())),
        }
    }

    /// Starts an operation, behind which no other is under way.
    pub(super) fn start_move(&mut self, net: &mut Net, loan: &Loan, op: &Move) -> Result<(), Error> {
        self.is_lent(net, loan.name)?;
        let (from, remote) = (loan.name.lender, (loan.grant.remote, op.at));
        let Some(one) = self.borrowed.get_mut(&loan.name) else { return Err(Error::Again) };
        let token = Token(TOKENS + (u64::from(one.id) << 32));
        let (len, local) = (op.len, op.local);
        if op.write {
            let put = Put { to: from, from: local, remote, len, behind: false, notify: None, token };
            net.backend().put(&put)?;
        } else {
            net.backend().get(&Get { from, remote, to: local, len, token })?;
        }
        (one.under_way, one.outcome) = (true, None);
        Ok(())
    }

    /// What came of the operation, once it is over; `None`: it is under way. An error if it does not end.
    pub(super) fn moved(&mut self, net: &Net, name: Name) -> Result<Option<Result<(), Error>>, Error> {
        match self.borrowed.get_mut(&name).and_then(|one| one.outcome.take()) {
            Some(outcome) => Ok(Some(outcome)),
            None => self.is_lent(net, name).map(|()| None),
        }
    }

    /// Asks the lender for an atomic operation, with the word at byte `at`.
    pub(super) fn ask(
        &mut self,
        net: &mut Net,
        name: Name,
        number: u32,
        (at, atomic): (usize, &Atomic),
    ) -> Result<(), Error> {
        self.is_lent(net, name)?;
        net.backend().send(name.lender, &encode_request(name, number, at, atomic), &[])
    }

    /// The lender's answer: what the word was, or `None` inside, if it refuses. `None`: it has not answered
    /// yet. An error if it never does.
    pub(super) fn answer(
        &mut self,
        net: &Net,
        name: Name,
        number: u32,
    ) -> Result<Option<Option<u64>>, Error> {
        let mine = self.borrowed.get_mut(&name);
        let answer = mine.and_then(|one| one.answer.take_if(|(answered, _)| *answered == number));
        match answer {
            Some((_, was)) => Ok(Some(was)),
            None => self.is_lent(net, name).map(|()| None),
        }
    }

    /// Gives borrowed memory back, with the region of this process that operations on it used: both once none
    /// is under way.
    pub(super) fn give_back(
        &mut self,
        net: &mut Net,
        name: Name,
        region: Option<RegionId>,
    ) -> Result<(), Error> {
        let Some(one) = self.borrowed.get_mut(&name) else { return Ok(()) };
        if forked::is_child() || !net.is_open() {
            return Ok(());
        }
        if one.under_way {
            one.leaves = region;
            return Ok(());
        }
        let (grant, has_said) = (one.grant.take(), one.over && one.leaves.is_none());
        self.borrowed.remove(&name);
        net.forget(grant);
        let withdrawn = region.map_or(Ok(()), |region| net.backend().withdraw(region));
        if has_said || net.is_gone(name.lender) { withdrawn } else { withdrawn.and(send(net, name, BACK)) }
    }

    fn offered(&mut self, net: &mut Net, name: Name, rest: &[u8], grant: Option<Grant>) -> Result<(), Error> {
        let is_offer = |(of, one): &(&Name, &Borrow)| of.lender == name.lender && one.id == 0;
        let waiting = self.borrowed.iter().filter(is_offer).count();
        if self.borrowed.contains_key(&name) || waiting >= OFFERS_MOST {
            net.forget(grant);
            return send(net, name, BACK);
        }
        let (len, keeper) = decode_offer(rest);
        let is_there = |rank| net.check_rank(rank).is_ok() && rank != name.lender;
        let right = (64..=HEAP_MOST).contains(&len) && len % 64 == 0 && keeper.is_none_or(is_there);
        let (grant, less): (Vec<Grant>, Vec<Grant>) =
            grant.into_iter().partition(|grant| right && grant.len >= len);
        net.forget(less);
        let grant = grant.into_iter().next();
        let one = Borrow {
            len,
            keeper,
            grant,
            id: 0,
            over: false,
            under_way: false,
            outcome: None,
            answer: None,
            leaves: None,
        };
        self.borrowed.insert(name, one);
        send(net, name, TAKEN)
    }

    fn called_back(&mut self, net: &mut Net, name: Name) -> Result<(), Error> {
        let Some(one) = self.borrowed.get_mut(&name) else { return Ok(()) };
        if one.id == 0 {
            return self.give_back(net, name, None);
        }
        let again = std::mem::replace(&mut one.over, true);
        if again || one.under_way { Ok(()) } else { send(net, name, BACK) }
    }

    fn answered(&mut self, net: &mut Net, kind: u8, name: Name) -> Result<(), Error> {
        let Some(offer) = self.lent.get_mut(&name) else { return Ok(()) };
        match kind {
            TAKEN => offer.taken = true,
            _ => offer.back = true,
        }
        if offer.back && offer.closed { self.withdraw(net, name) } else { Ok(()) }
    }

    /// Does an atomic operation that a borrower asks for; the answer.
    fn atomic(&mut self, name: Name, rest: &[u8]) -> Option<Vec<u8>> {
        let (number, wanted) = decode_request(rest)?;
        let lent = self.lent.get(&name).filter(|offer| offer.offered && !offer.back && !offer.closed);
        let was = lent.zip(wanted).and_then(|(offer, (at, atomic))| atomic.apply(&offer.region.memory, at));
        Some(encode_answer(name, number, was))
    }

    fn take_answer(&mut self, name: Name, rest: &[u8]) {
        if let Some(one) = self.borrowed.get_mut(&name).filter(|one| one.id != 0) {
            one.answer = decode_answer(rest);
        }
    }

    /// Whether any memory of this process is lent, or was and may still be reached.
    #[cfg(all(test, not(loom)))]
    pub(super) fn is_lending(&self) -> bool {
        !self.lent.is_empty()
    }
}

impl Service for Lends {
    fn takes(&self, bytes: &[u8]) -> bool {
        is_one(bytes)
    }

    fn control(&mut self, net: &mut Net, from: Rank, bytes: &[u8], mut grants: Vec<Grant>) {
        let me = net.rank();
        let known = decode(bytes).filter(|(kind, name, _)| match *kind {
            LEND | OVER | DONE => (name.lender, name.borrower) == (from, me),
            _ => (name.borrower, name.lender) == (from, me),
        });
        let grant = if let Some((LEND, ..)) = known { grants.pop() } else { None };
        net.forget(grants);
        let outcome = match known {
            Some((LEND, name, rest)) => self.offered(net, name, rest, grant),
            Some((OVER, name, _)) => self.called_back(net, name),
            Some((ATOMIC, name, rest)) => match self.atomic(name, rest) {
                Some(answer) => net.backend().send(from, &answer, &[]),
                None => Ok(()),
            },
            Some((DONE, name, rest)) => {
                self.take_answer(name, rest);
                Ok(())
            }
            Some((kind, name, _)) => self.answered(net, kind, name),
            None => {
                log::warn!("rpipe: a message of rank {from} of lent memory makes no sense and is ignored");
                Ok(())
            }
        };
        if let Err(fault) = outcome {
            log::warn!("rpipe: memory lent between this process and rank {from}: {fault}");
        }
    }

    fn completed(&mut self, net: &mut Net, token: Token, outcome: Result<u64, Error>) {
        let id = ((token.0 - TOKENS) >> 32) as u32;
        let mut all = self.borrowed.iter_mut();
        let Some((name, one)) = all.find(|(_, one)| one.id == id && one.under_way) else { return };
        (one.under_way, one.outcome) = (false, Some(outcome.map(|_| ())));
        let (name, over, leaves) = (*name, one.over, one.leaves);
        if let Some(region) = leaves {
            let _ = self.give_back(net, name, Some(region));
        } else if over {
            let _ = send(net, name, BACK);
        }
    }

    fn gone(&mut self, net: &mut Net, peer: Rank) {
        let closed = self.lent.iter().filter(|(name, offer)| name.borrower == peer && offer.closed);
        for name in closed.map(|(name, _)| *name).collect::<Vec<_>>() {
            let _ = self.withdraw(net, name);
        }
        let offers = self.borrowed.iter().filter(|(name, one)| name.lender == peer && one.id == 0);
        for name in offers.map(|(name, _)| *name).collect::<Vec<_>>() {
            let _ = self.give_back(net, name, None);
        }
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}
