//! How memory is lent, offered, taken over and given back, by the messages of `loans`.

use super::Inner;
use crate::RegionId;
use crate::core::forked;
use crate::core::settings::HEAP_MOST;
use crate::lend::loans::{
    BACK, Borrowed, LEND, Lent, Loan, Move, Name, OFFERS_MOST, OVER, TAKEN, TOKENS, decode,
};
use crate::{Error, Get, Grant, Put, Rank, Token};

impl Inner {
    fn peer_of(&self, name: Name) -> Rank {
        if name.lender == self.rank { name.borrower } else { name.lender }
    }

    fn say_of(&mut self, name: Name, kind: u8) -> Result<(), Error> {
        let peer = self.peer_of(name);
        self.backend.send(peer, &name.encode(kind), &[])
    }

    fn is_there(&self, peer: Rank) -> Result<(), Error> {
        if !self.open {
            return Err(Error::Invalid("the job was left (rfinalize)".into()));
        }
        match self.gone.get(&peer) {
            Some(why) => Err(Error::Gone(format!("rank {peer} is gone: {why}"))),
            None => Ok(()),
        }
    }

    fn check_partner(&self, peer: Rank) -> Result<(), Error> {
        forked::check()?;
        if peer >= self.size {
            let size = self.size;
            return Err(Error::Invalid(format!("there is no rank {peer}: the job has {size} processes")));
        }
        if peer == self.rank {
            return Err(Error::Invalid(
                "memory is lent to another process, and not to the lender itself".into(),
            ));
        }
        self.is_there(peer)
    }

    /// Makes memory to be lent.
    pub(crate) fn lend(&mut self, borrower: Rank, len: usize) -> Result<Name, Error> {
        self.check_partner(borrower)?;
        if len == 0 || len > HEAP_MOST {
            return Err(Error::Invalid(format!("{len} bytes to be lent: the least is 1, the most 16 GiB")));
        }
        let region = self.backend.expose(len.next_multiple_of(64))?;
        self.lends.last += 1;
        let name = Name { lender: self.rank, borrower, ordinal: self.lends.last };
        let lent = Lent { region, offered: false, taken: false, back: false, closed: false };
        self.lends.lent.insert(name, lent);
        Ok(name)
    }

    /// Offers it, once; whether the borrower has it. An error if it never will.
    pub(crate) fn is_taken(&mut self, name: Name) -> Result<bool, Error> {
        // The borrower may have ended since.
        let there = self.is_there(name.borrower);
        let Some(lent) = self.lends.lent.get(&name) else {
            return Err(Error::Invalid("it is not lent".into()));
        };
        if lent.taken {
            return Ok(true);
        }
        there?;
        if lent.back {
            return Err(Error::Full(format!(
                "rank {} does not take the memory: {OFFERS_MOST} others wait to be borrowed there (rborrow)",
                name.borrower
            )));
        }
        if !lent.offered {
            let (id, len) = (lent.region.id, lent.region.memory.len());
            match self.meet_now(name.borrower) {
                Err(Error::Again) => return Ok(false),
                other => other?,
            }
            let mut bytes = name.encode(LEND);
            bytes.extend((len as u64).to_le_bytes());
            self.backend.send(name.borrower, &bytes, &[id])?;
        }
        if let Some(lent) = self.lends.lent.get_mut(&name) {
            lent.offered = true;
        }
        self.takes_in(name.borrower).map(|()| false)
    }

    /// Whether the borrower needs it no more; an error if it has ended.
    pub(crate) fn is_back(&mut self, name: Name) -> Result<bool, Error> {
        match self.lends.lent.get(&name) {
            Some(lent) if lent.back => Ok(true),
            _ => self.is_there(name.borrower).and_then(|()| self.takes_in(name.borrower)).map(|()| false),
        }
    }

    /// Takes it back: at once where nothing reaches it, else when the borrower says so.
    pub(crate) fn take_back(&mut self, name: Name) -> Result<(), Error> {
        let Some(lent) = self.lends.lent.get_mut(&name) else { return Ok(()) };
        let reached = lent.offered && !lent.back && !self.gone.contains_key(&name.borrower);
        lent.closed = true;
        if forked::is_child() || !self.open {
            return Ok(());
        }
        if reached { self.say_of(name, OVER) } else { self.withdraw_lent(name) }
    }

    fn withdraw_lent(&mut self, name: Name) -> Result<(), Error> {
        match self.lends.lent.remove(&name) {
            Some(lent) => self.backend.withdraw(lent.region.id),
            None => Ok(()),
        }
    }

    /// The oldest memory that this lender offers, which is borrowed from now on; `None`: there is none yet.
    pub(crate) fn borrow_next(&mut self, lender: Rank) -> Result<Option<Loan>, Error> {
        self.check_partner(lender)?;
        let offers = self.lends.borrowed.iter().filter(|(name, one)| name.lender == lender && one.id == 0);
        let Some(name) = offers.map(|(name, _)| *name).min_by_key(|name| name.ordinal) else {
            // A lender that has left before it offered anything is found out by a connection to it.
            return match self.meet_now(lender) {
                Ok(()) | Err(Error::Again) => self.takes_in(lender).map(|()| None),
                Err(fault) => Err(fault),
            };
        };
        let promise = self.backend.promise(lender);
        self.lends.last_id += 1;
        let id = self.lends.last_id;
        let Some(one) = self.lends.borrowed.get_mut(&name) else { return Ok(None) };
        let Some(grant) = one.grant.clone() else {
            self.give_back(name, None)?;
            return Err(Error::Broken(format!("rank {lender} lends less memory than it says")));
        };
        one.id = id;
        Ok(Some(Loan { name, len: one.len, grant, promise }))
    }

    /// It can be borrowed again.
    pub(crate) fn not_borrowed(&mut self, name: Name) {
        if let Some(one) = self.lends.borrowed.get_mut(&name) {
            one.id = 0;
        }
    }

    /// An error if the memory is not to be used any more.
    pub(crate) fn is_lent(&mut self, name: Name) -> Result<(), Error> {
        match self.lends.borrowed.get(&name) {
            Some(one) if one.over => {
                Err(Error::Gone(format!("rank {} has taken its memory back", name.lender)))
            }
            Some(_) => self.is_there(name.lender),
            None => Err(Error::Invalid("the memory was given back".into())),
        }
    }

    /// An error if an operation that is under way does not end.
    pub(crate) fn is_alive(&mut self, name: Name) -> Result<(), Error> {
        self.is_there(name.lender)
    }

    /// Starts an operation, behind which no other is under way.
    pub(crate) fn start_move(&mut self, loan: &Loan, op: &Move) -> Result<(), Error> {
        self.is_lent(loan.name)?;
        let (from, remote) = (loan.name.lender, (loan.grant.remote, op.at));
        let Some(one) = self.lends.borrowed.get_mut(&loan.name) else { return Err(Error::Again) };
        let token = Token(TOKENS + (u64::from(one.id) << 32));
        let (len, local) = (op.len, op.local);
        let started = if op.write {
            let put = Put { to: from, from: local, remote, len, behind: false, notify: None, token };
            self.backend.put(&put)
        } else {
            self.backend.get(&Get { from, remote, to: local, len, token })
        };
        if started.is_ok() {
            if let Some(one) = self.lends.borrowed.get_mut(&loan.name) {
                (one.under_way, one.outcome) = (true, None);
            }
        }
        started
    }

    /// What came of the operation, once it is over; `None`: it is under way.
    pub(crate) fn moved(&mut self, name: Name) -> Option<Result<(), Error>> {
        let one = self.lends.borrowed.get_mut(&name)?;
        one.outcome.take()
    }

    pub(super) fn lending_ended(&mut self, token: Token, outcome: Result<u64, Error>) {
        let id = ((token.0 - TOKENS) >> 32) as u32;
        let mut all = self.lends.borrowed.iter_mut();
        let Some((name, one)) = all.find(|(_, one)| one.id == id && one.under_way) else { return };
        (one.under_way, one.outcome) = (false, Some(outcome.map(|_| ())));
        let (name, over, leaves) = (*name, one.over, one.leaves);
        if let Some(region) = leaves {
            let _ = self.give_back(name, Some(region));
        } else if over {
            let _ = self.say_of(name, BACK);
        }
    }

    /// Gives borrowed memory back, with the region of this process that operations on it used: both once none
    /// is under way.
    pub(crate) fn give_back(&mut self, name: Name, region: Option<RegionId>) -> Result<(), Error> {
        let Some(one) = self.lends.borrowed.get_mut(&name) else { return Ok(()) };
        if forked::is_child() || !self.open {
            return Ok(());
        }
        if one.under_way {
            one.leaves = region;
            return Ok(());
        }
        let (grant, told) = (one.grant.take(), one.over && one.leaves.is_none());
        self.lends.borrowed.remove(&name);
        self.forget(grant.into_iter().collect());
        let withdrawn = region.map_or(Ok(()), |region| self.backend.withdraw(region));
        if told || self.gone.contains_key(&name.lender) {
            withdrawn
        } else {
            withdrawn.and(self.say_of(name, BACK))
        }
    }

    pub(super) fn take_lending(&mut self, from: Rank, bytes: &[u8], mut grants: Vec<Grant>) {
        let known = decode(bytes).filter(|(kind, name, _)| {
            let (lender, borrower) = (name.lender, name.borrower);
            match *kind {
                LEND | OVER => (lender, borrower) == (from, self.rank),
                _ => (borrower, lender) == (from, self.rank),
            }
        });
        let grant = grants.pop();
        self.forget(grants);
        let outcome = match known {
            Some((LEND, name, rest)) => self.offered(name, rest, grant),
            Some((OVER, name, _)) => self.called_back(name),
            Some((kind, name, _)) => self.answered(kind, name),
            None => {
                log::warn!("rpipe: a message of rank {from} of lent memory makes no sense and is ignored");
                self.forget(grant.into_iter().collect());
                Ok(())
            }
        };
        if let Err(fault) = outcome {
            log::warn!("rpipe: memory lent between this process and rank {from}: {fault}");
        }
    }

    fn offered(&mut self, name: Name, rest: &[u8], grant: Option<Grant>) -> Result<(), Error> {
        let offers = |(of, one): (&Name, &Borrowed)| of.lender == name.lender && one.id == 0;
        let waiting = self.lends.borrowed.iter().filter(|entry| offers(*entry)).count();
        if self.lends.borrowed.contains_key(&name) || waiting >= OFFERS_MOST {
            self.forget(grant.into_iter().collect());
            return self.say_of(name, BACK);
        }
        let said = rest.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte));
        let len = usize::try_from(said).unwrap_or(usize::MAX);
        let right = (64..=HEAP_MOST).contains(&len) && len % 64 == 0;
        let (grant, less): (Vec<Grant>, Vec<Grant>) =
            grant.into_iter().partition(|grant| right && grant.len >= len);
        self.forget(less);
        let grant = grant.into_iter().next();
        let one = Borrowed { len, grant, id: 0, over: false, under_way: false, outcome: None, leaves: None };
        self.lends.borrowed.insert(name, one);
        self.say_of(name, TAKEN)
    }

    fn called_back(&mut self, name: Name) -> Result<(), Error> {
        let Some(one) = self.lends.borrowed.get_mut(&name) else { return Ok(()) };
        if one.id == 0 {
            return self.give_back(name, None);
        }
        let again = std::mem::replace(&mut one.over, true);
        if again || one.under_way { Ok(()) } else { self.say_of(name, BACK) }
    }

    fn answered(&mut self, kind: u8, name: Name) -> Result<(), Error> {
        let Some(lent) = self.lends.lent.get_mut(&name) else { return Ok(()) };
        match kind {
            TAKEN => lent.taken = true,
            _ => lent.back = true,
        }
        if lent.back && lent.closed { self.withdraw_lent(name) } else { Ok(()) }
    }

    /// Whether any memory of this process is lent, or was and may still be reached.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn is_lending(&self) -> bool {
        !self.lends.lent.is_empty()
    }

    pub(super) fn lender_or_borrower_gone(&mut self, peer: Rank) {
        let closed = self.lends.lent.iter().filter(|(name, lent)| name.borrower == peer && lent.closed);
        for name in closed.map(|(name, _)| *name).collect::<Vec<_>>() {
            let _ = self.withdraw_lent(name);
        }
        let offers = self.lends.borrowed.iter().filter(|(name, one)| name.lender == peer && one.id == 0);
        for name in offers.map(|(name, _)| *name).collect::<Vec<_>>() {
            let _ = self.give_back(name, None);
        }
    }
}
