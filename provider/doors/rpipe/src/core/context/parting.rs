//! Ends that are closed, here or at the peer, and what remains of them.

use std::time::Instant;

use super::{Context, End, Inner, place};
use crate::core::control::{Control, Key, Reason, closed};
use crate::core::forked;
use crate::core::stream::Mode;
use crate::{Error, Rank};

/// What becomes of the memory of an end that is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is given back.
    Back,
    /// The reader has messages to get from there: it is given back when that closes its end, or is gone.
    Wanted,
    /// The reader puts there what it frees, as long as it has its end open. Leaving the job does not
    /// wait for it.
    Reached,
    /// An operation of this process has not ended, and may write there: it stays until the job is left.
    InUse,
}

impl Context {
    /// Until when what was written is waited for by a process that begins to leave now.
    pub(crate) fn leaves_by(&self) -> Instant {
        Instant::now() + self.settings.linger
    }

    /// Leaves the job. A forked child is not in it. [`Error::TimedOut`]: what was written has not been taken
    /// in within the time for that.
    pub fn close(&self) -> Result<(), Error> {
        self.close_by(self.leaves_by())
    }

    /// Leaves the job as [`Context::close`] does, with this limit.
    pub(crate) fn close_by(&self, until: Instant) -> Result<(), Error> {
        if forked::is_child() {
            return Ok(());
        }
        let mut inner = self.lock();
        while inner.open && inner.some_are_wanted() && Instant::now() < until && inner.progress().is_ok() {
            std::thread::yield_now();
        }
        if !std::mem::take(&mut inner.open) {
            return Ok(());
        }
        let left = if inner.some_are_wanted() {
            Err(Error::TimedOut("a reader has not fetched all that was written to it: it is lost".into()))
        } else {
            Ok(())
        };
        let closed = inner.backend.close(until);
        left.and(closed).and(inner.bootstrap.finalize())
    }
}

impl Inner {
    /// A place of an end that is closed, with nothing of it to come.
    pub(super) fn free_place(&self) -> Option<usize> {
        let is_free = |at: usize| self.streams[at].is_none() && !self.spent.contains(&(at as u32));
        (0..self.streams.len()).find(|at| is_free(*at))
    }

    /// An error if nothing comes from the peer any more.
    pub(crate) fn still_there(&mut self, no: u32) -> Result<(), Error> {
        let Some(stream) = self.stream(no) else { return Err(Error::Invalid("the pipe is closed".into())) };
        if let Some(fault) = &stream.fault {
            return Err(fault.clone());
        }
        let (peer, reason) = (stream.peer, stream.closed);
        match (reason, self.gone.get(&peer)) {
            (Some(reason), None) => Err(closed(reason, "HD_PIPE or FD_PIPE")),
            (Some(reason @ (Reason::Mismatch | Reason::Protocol)), _) => {
                Err(closed(reason, "HD_PIPE or FD_PIPE"))
            }
            (_, Some(why)) => Err(Error::Gone(format!("rank {peer} is gone: {why}"))),
            (None, None) => Ok(()),
        }
    }

    /// An error if there is no descriptor, or no memory, for what the peer has sent, now: what is waited for
    /// may be behind it. Nothing is lost, and a call that is made once there is one goes on.
    pub(crate) fn takes_in(&mut self, peer: Rank) -> Result<(), Error> {
        if self.lacks.is_empty() {
            return Ok(());
        }
        // It may have been long ago.
        self.progress()?;
        match self.lacks.iter().find(|(of, _)| of.is_none_or(|of| of == peer)) {
            Some((_, why)) => Err(why.clone()),
            None => Ok(()),
        }
    }

    /// An error if nothing comes from the peer any more, or nothing can be taken in.
    pub(crate) fn still_comes(&mut self, no: u32) -> Result<(), Error> {
        self.still_there(no)?;
        self.stream(no).map(|stream| stream.peer).map_or(Ok(()), |peer| self.takes_in(peer))
    }

    /// Whether the peer's end has begun to set the stream up, or never will, or not before there are
    /// descriptors.
    pub(crate) fn has_begun(&mut self, no: u32) -> bool {
        let met = self.stream(no).is_some_and(|stream| stream.met.is_some());
        met || self.still_comes(no).is_err()
    }

    /// Tells the peer that the group of this end is over for this rank, also a peer that was not met yet.
    pub(crate) fn say_over(&mut self, no: u32, rank: Rank) {
        let Some(peer) = self.stream(no).map(|stream| stream.peer) else { return };
        // Of a process that has not begun yet there is no card, and nothing to wait for.
        if !forked::is_child() && !self.is_gone(no) && self.meet_now(peer).is_ok() {
            let _ = self.say(no, &Control::Close(Reason::Over(rank)), false);
        }
    }

    /// Connects to a peer that is in the job by now; [`Error::Again`]: it is not.
    pub(super) fn meet_now(&mut self, peer: Rank) -> Result<(), Error> {
        if !self.met.contains_key(&peer) {
            let card = self.bootstrap.card(peer, Instant::now())?;
            self.backend.connect(peer, &card)?;
            self.met.insert(peer, ());
        }
        Ok(())
    }

    /// Whether the peer's end may begin yet. A peer that has left the job before is found out by a connection
    /// to it.
    pub(crate) fn may_begin(&mut self, no: u32) -> bool {
        let Some(peer) = self.stream(no).map(|stream| stream.peer) else { return false };
        if self.has_begun(no) || forked::is_child() {
            return false;
        }
        match self.meet_now(peer) {
            Ok(()) | Err(Error::Again) => true,
            Err(fault) => {
                if let Some(stream) = self.stream(no) {
                    stream.fault.get_or_insert(fault);
                }
                false
            }
        }
    }

    /// The end has failed, if its peer may wait for it: each of its calls returns that.
    pub(super) fn fail(&mut self, no: u32, fault: &Error) {
        if let Some(stream) = self.stream(no).filter(|stream| stream.said) {
            stream.fault.get_or_insert_with(|| fault.clone());
        }
    }

    /// The rank for which the peer has said that the group is over.
    pub(crate) fn over_for(&mut self, no: u32) -> Option<Rank> {
        match self.stream(no)?.closed? {
            Reason::Over(rank) => Some(rank),
            _ => None,
        }
    }

    /// A message for an end that was closed before its peer's was set up: the peer is sent `Close`, once.
    pub(super) fn is_late(&mut self, key: Key, control: &Control) {
        let peer = if key.writer == self.rank { key.reader } else { key.writer };
        if matches!(control, Control::Hello | Control::Reader { .. }) && self.refused.insert(key) {
            let _ = self.backend.send(peer, &Control::Close(Reason::Done).encode(&key), &[]);
        }
    }

    /// An error if operations on the peer's memory end in nothing: it is gone. One that has closed its end
    /// ends them itself.
    pub(crate) fn can_reach(&mut self, no: u32) -> Result<(), Error> {
        let closed = self.stream(no).is_some_and(|stream| stream.closed == Some(Reason::Done));
        let gone = self.stream(no).is_some_and(|stream| stream.fault.is_some()) || self.is_gone(no);
        if closed && !gone { Ok(()) } else { self.still_there(no) }
    }

    pub(super) fn is_gone(&self, no: u32) -> bool {
        let stream = self.streams.get(place(no)).and_then(Option::as_ref).filter(|stream| stream.no == no);
        let peer = stream.map(|stream| stream.peer);
        peer.is_some_and(|peer| self.gone.contains_key(&peer))
    }

    /// Closes an end, and does with its memory as `fate` says.
    pub(crate) fn leave(&mut self, no: u32, fate: Fate) -> Result<(), Error> {
        if forked::is_child() {
            return Ok(());
        }
        let gone = self.is_gone(no);
        let Some(stream) = self.stream(no) else { return Ok(()) };
        let (peer, said, over) = (stream.peer, stream.said, stream.closed.is_some());
        // An operation may have found that before the peer's end is reported.
        let lost = matches!(stream.fault, Some(Error::Gone(_)));
        // A writer that has closed keeps what one reaches that does not store there itself.
        let reaches = matches!(stream.end, End::Reader { .. })
            && stream.met.as_ref().is_some_and(|met| met.manner.mode != Mode::Store);
        if (!over || reaches) && !gone && (said || self.met.contains_key(&peer)) {
            let _ = self.say(no, &Control::Close(Reason::Done), false);
        }
        let Some(stream) = self.streams[place(no)].take() else { return Ok(()) };
        self.keys.remove(&stream.key);
        if let Some((id, _)) = stream.on_device {
            self.backend.withdraw(id)?;
        }
        if let Some(theirs) = stream.theirs {
            self.backend.forget(theirs.remote);
        }
        match stream.mine {
            // Once the peer is gone all operations have ended.
            Some(_) if fate == Fate::InUse && !gone => {
                self.spent.push(place(no) as u32);
                Ok(())
            }
            Some(region) if matches!(fate, Fate::Wanted | Fate::Reached) && !over && !gone && !lost => {
                self.wanted.push((stream.key, region, fate == Fate::Wanted));
                Ok(())
            }
            Some(region) => self.backend.withdraw(region.id),
            None => Ok(()),
        }
    }

    /// Gives back what no reader wants any more: of this stream, or of this peer.
    pub(super) fn unwanted(&mut self, is_it: impl Fn(&Key) -> bool) {
        while let Some(at) = self.wanted.iter().position(|(key, ..)| is_it(key)) {
            let (_, region, _) = self.wanted.swap_remove(at);
            let _ = self.backend.withdraw(region.id);
        }
    }

    /// Whether messages of closed ends are still to be got from here.
    pub(crate) fn some_are_wanted(&self) -> bool {
        self.wanted.iter().any(|(_, _, messages)| *messages)
    }

    /// Ends that are closed, and whose memory is kept for their readers.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn kept(&self) -> usize {
        self.wanted.len()
    }
}
