//! The process's part in a job: its backend, and the streams whose ends are here. Control messages are
//! answered here, whichever call makes progress, so that two processes meet though each of them is busy with
//! another pipe.

mod answering;
mod early;
mod end;
mod ends;
mod injects;
mod kept;
mod net;
mod parting;
mod ready;
mod regions;
mod service;
mod setup;
mod unheard;

pub(crate) use end::{End, UNAWAITED};
pub(crate) use net::Net;
pub(crate) use parting::Fate;
pub(crate) use ready::Ready;
pub(crate) use service::{Service, TOKENS};

use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ipc::fence::Barrier;

use crate::core::control::{Class, Control, Reason};
use crate::core::forked;
use crate::core::settings::Settings;
use crate::{Backend, Bootstrap, Error, Event, Rank, Token};

use answering::Answers;
use early::Early;
use ends::Ends;
use injects::Injects;
use kept::Kept;
use parting::Parting;
use setup::Setup;
use unheard::Unheard;

/// What the ends of this process share.
#[derive(Debug)]
pub struct Context {
    rank: Rank,
    size: Rank,
    settings: Settings,
    barrier: Barrier,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    net: Net,
    ends: Ends,
    early: Early,
    kept: Kept,
    unheard: Unheard,
    injects: Injects,
    /// The tier above.
    service: Box<dyn Service>,
    events: Vec<Event>,
    /// This process uses membarrier(2).
    fences: bool,
}

impl Context {
    /// Opens: a backend, whose card is published, with a tier above that has messages of its own.
    pub(crate) fn with_service(
        backend: Box<dyn Backend>,
        mut bootstrap: Box<dyn Bootstrap>,
        settings: Settings,
        service: Box<dyn Service>,
    ) -> Result<Context, Error> {
        let (rank, size) = (bootstrap.rank(), bootstrap.size());
        forked::watch();
        bootstrap.publish(&backend.card())?;
        let barrier = Barrier::probe();
        let inner = Inner {
            net: Net::new(backend, bootstrap),
            ends: Ends::default(),
            early: Early::default(),
            kept: Kept::default(),
            unheard: Unheard::default(),
            injects: Injects::default(),
            service,
            events: Vec::new(),
            fences: barrier.usable,
        };
        Ok(Context { rank, size, settings, barrier, inner: Mutex::new(inner) })
    }

    pub fn rank(&self) -> Rank {
        self.rank
    }

    pub fn size(&self) -> Rank {
        self.size
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn barrier(&self) -> Barrier {
        self.barrier
    }

    /// The backend's name.
    pub fn backend(&self) -> String {
        self.lock().backend().name()
    }

    /// The descriptor that is readable once something may have happened, if the backend has one.
    pub fn descriptor(&self) -> Option<RawFd> {
        self.lock().backend().descriptor()
    }

    /// Whether a thread may sleep on the descriptor now.
    pub fn arm(&self) -> bool {
        self.lock().backend().arm()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        // What a panic has left is consistent: every change of a stream is one assignment.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes progress.
    pub fn progress(&self) -> Result<(), Error> {
        self.lock().progress()
    }

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
        let waits = |inner: &Inner| inner.net.is_open() && inner.some_are_wanted();
        while waits(&inner) && Instant::now() < until && inner.progress().is_ok() {
            std::thread::yield_now();
        }
        let left = match waits(&inner) {
            true => {
                Err(Error::TimedOut("a reader has not fetched all that was written to it: it is lost".into()))
            }
            false => Ok(()),
        };
        left.and(inner.net.close(until))
    }
}

impl Inner {
    pub(crate) fn backend(&mut self) -> &mut dyn Backend {
        self.net.backend()
    }

    pub(crate) fn injects(&mut self) -> &mut Injects {
        &mut self.injects
    }

    /// The tier above, if it is this one, for its own calls.
    pub(crate) fn service<S: Service>(&mut self) -> Result<(&mut S, &mut Net), Error> {
        let Inner { service, net, .. } = self;
        let service = service.as_any().downcast_mut();
        let none = || Error::Unsupported("this job was opened without this kind of memory".into());
        Ok((service.ok_or_else(none)?, net))
    }

    fn setup(&mut self) -> Setup<'_> {
        let Inner { net, ends, fences, .. } = self;
        Setup { net, ends, fences: *fences }
    }

    fn answers(&mut self) -> Answers<'_> {
        let Inner { net, ends, early, kept, fences, .. } = self;
        Answers { setup: Setup { net, ends, fences: *fences }, early, kept }
    }

    /// Opens the end of the next stream to a peer; nothing is sent yet. What the peer has sent already is
    /// dealt with.
    pub(crate) fn open(&mut self, class: Class, peer: Rank, end: End) -> Result<u32, Error> {
        let me = self.net.rank();
        let key = match end {
            End::Writer { .. } => self.ends.next_key(class, me, peer),
            End::Reader { .. } => self.ends.next_key(class, peer, me),
        };
        let no = self.ends.enter(key, end, &self.net)?;
        self.answers().take_early(peer, key);
        Ok(no)
    }

    /// Begins to set a stream up.
    pub(crate) fn begin(&mut self, no: u32) -> Result<(), Error> {
        self.setup().begin(no)
    }

    /// The end, once its peer's is known.
    pub(crate) fn ready(&mut self, no: u32) -> Result<Option<Ready>, Error> {
        self.begin(no)?;
        let Inner { ends, net, .. } = self;
        let Some(stream) = ends.get(no) else { return Err(Error::Invalid("the pipe is closed".into())) };
        if let Some(fault) = stream.fault() {
            return Err(fault.clone());
        }
        let peer = stream.peer();
        if let Some(ready) = stream.ready(|| net.promise(peer)) {
            return Ok(Some(ready));
        }
        self.still_there(no)?;
        self.takes_in(peer).map(|()| None)
    }

    /// What came of an operation, once it is over.
    pub(crate) fn take_done(&mut self, no: u32, op: u32) -> Option<Result<u64, Error>> {
        self.ends.get_mut(no)?.take_done(op)
    }

    /// The next notification.
    pub(crate) fn take_notified(&mut self, no: u32) -> Option<u16> {
        self.ends.get_mut(no)?.take_notified()
    }

    /// The end breaks with its peer, which broke the protocol.
    pub(crate) fn break_off(&mut self, no: u32, fault: &Error) {
        let _ = self.ends.say(&mut self.net, no, &Control::Close(Reason::Protocol), false);
        self.ends.fail_if_said(no, fault);
    }

    pub(crate) fn progress(&mut self) -> Result<(), Error> {
        forked::check()?;
        self.net.check_open()?;
        let mut events = std::mem::take(&mut self.events);
        self.unheard.take(&mut events);
        let outcome = self.net.progress(&mut events);
        for event in events.drain(..) {
            if let Some(event) = self.unheard.hear(&mut self.net, event) {
                self.take_event(event);
            }
        }
        self.events = events;
        outcome
    }

    fn take_event(&mut self, event: Event) {
        match event {
            Event::Done(token) => self.completed(token, Ok(0)),
            Event::Fetched(token, value) => self.completed(token, Ok(value)),
            Event::Failed(token, error) => self.completed(token, Err(error)),
            Event::Notified { from, data } => self.ends.notify(from, data),
            Event::Control { from, bytes, grants } if self.service.takes(&bytes) => {
                self.service.control(&mut self.net, from, &bytes, grants);
            }
            Event::Control { from, bytes, grants } => self.answers().hear(from, &bytes, grants),
            Event::Lack { peer, why } => self.net.add_lack(peer, why),
            Event::Gone { peer, why } => {
                self.net.add_gone(peer, why);
                self.kept.unwanted(self.net.backend(), |key| key.reader == peer);
                self.service.gone(&mut self.net, peer);
            }
        }
    }

    fn completed(&mut self, token: Token, outcome: Result<u64, Error>) {
        if token.0 >= TOKENS {
            self.service.completed(&mut self.net, token, outcome);
        } else if let Some(stream) = self.ends.get_mut((token.0 >> 32) as u32) {
            stream.complete(token.0 as u32, outcome);
        }
    }

    /// An error if nothing comes from the peer any more.
    pub(crate) fn still_there(&mut self, no: u32) -> Result<(), Error> {
        self.ends.still_there(&self.net, no)
    }

    /// An error if operations on the peer's memory end in nothing: it is gone. One that has closed its end
    /// ends them itself.
    pub(crate) fn can_reach(&mut self, no: u32) -> Result<(), Error> {
        self.ends.can_reach(&self.net, no)
    }

    /// An error if there is no descriptor, or no memory, for what the peer has sent, now: what is waited for
    /// may be behind it. Nothing is lost, and a call that is made once there is one goes on.
    pub(crate) fn takes_in(&mut self, peer: Rank) -> Result<(), Error> {
        if !self.net.has_lacks() {
            return Ok(());
        }
        // It may have been long ago.
        self.progress()?;
        self.net.lack_of(peer).map_or(Ok(()), Err)
    }

    /// An error if nothing comes from the peer any more, or nothing can be taken in.
    pub(crate) fn still_comes(&mut self, no: u32) -> Result<(), Error> {
        self.still_there(no)?;
        self.ends.get(no).map(|stream| stream.peer()).map_or(Ok(()), |peer| self.takes_in(peer))
    }

    /// Whether the peer's end has begun to set the stream up, or never will, or not before there are
    /// descriptors.
    pub(crate) fn has_begun(&mut self, no: u32) -> bool {
        self.ends.get(no).is_some_and(|stream| stream.has_met()) || self.still_comes(no).is_err()
    }

    /// Whether the peer's end may begin yet. A peer that has left the job before is found out by a connection
    /// to it.
    pub(crate) fn may_begin(&mut self, no: u32) -> bool {
        let Some(peer) = self.ends.get(no).map(|stream| stream.peer()) else { return false };
        if self.has_begun(no) || forked::is_child() {
            return false;
        }
        match self.net.meet(peer) {
            Ok(()) | Err(Error::Again) => true,
            Err(fault) => {
                self.ends.fail(no, &fault);
                false
            }
        }
    }

    /// Sends the peer that the group of this end is over for this rank, also to a peer that was not met yet.
    pub(crate) fn say_over(&mut self, no: u32, rank: Rank) {
        let Some(peer) = self.ends.get(no).map(|stream| stream.peer()) else { return };
        // Of a process that has not begun yet there is no card, and nothing to wait for.
        if !forked::is_child() && !self.net.is_gone(peer) && self.net.meet(peer).is_ok() {
            let _ = self.ends.say(&mut self.net, no, &Control::Close(Reason::Over(rank)), false);
        }
    }

    /// The rank for which the peer has said that the group is over.
    pub(crate) fn over_for(&mut self, no: u32) -> Option<Rank> {
        match self.ends.get(no)?.closed()? {
            Reason::Over(rank) => Some(rank),
            _ => None,
        }
    }

    /// Closes an end, and does with its memory as `fate` says.
    pub(crate) fn leave(&mut self, no: u32, fate: Fate) -> Result<(), Error> {
        let Inner { net, ends, kept, .. } = self;
        Parting { net, ends, kept }.leave(no, fate)
    }

    /// Whether messages of closed ends are still to be got from here.
    pub(crate) fn some_are_wanted(&self) -> bool {
        self.kept.some_are_wanted()
    }

    /// Ends that are closed, and whose memory is kept for their readers.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn kept(&self) -> usize {
        self.kept.len()
    }
}
