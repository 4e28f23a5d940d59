//! An engine under its lock, and those that sleep until something happens in it.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::{Abandoned, Ctx, Domain, EpId, Error as EngineError};
use link_api::{Patience, RmaLink};

use crate::lock::{self, Lock};
use crate::thread::ProgressThread;
use crate::watched::{Idle, Step, Watched};
use crate::{Attached, Deadline, Error, Poisoned, Wait, catch};

/// How often a blocking call looks before it sleeps.
const SPINS: u32 = 100;
/// For how long a peer is waited for that is inside an access of memory which is taken back, and between two
/// looks.
const PATIENCE: Patience = Patience::Second;
const PAUSE: Duration = Duration::from_micros(100);
/// Between two looks of a thread while another one sleeps on the same object.
const NAP: Duration = Duration::from_millis(1);

/// An engine's domain that several threads may use.
#[derive(Debug)]
pub struct Runtime<L: RmaLink> {
    lock: Lock<State<L>>,
    progress: Option<ProgressThread>,
}

/// What makes progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The application, by its calls.
    Manual,
    /// A thread too, while the application makes no calls; [`start`](crate::start) starts it.
    Auto,
}

/// What is under the lock.
#[repr(C)]
struct State<L: RmaLink> {
    /// Leaving takes more than unlocking: a caller or the progress thread sleeps.
    watched: bool,
    /// The progress thread sleeps, and was not woken yet.
    asleep: bool,
    /// The thread that is in is the progress thread, which needs no waking.
    by_progress_thread: bool,
    /// The thread that is in has just armed all links.
    armed_now: bool,
    /// The progress thread runs: it arms the links again when other threads' calls have ceased.
    kept: bool,
    engine: Domain<L>,
    /// What the progress thread sleeps on, where there is one.
    progress: Option<Arc<Wait>>,
    /// Those that sleep, or are about to, and for what: each is woken once.
    sleepers: Vec<(Watched, Arc<Wait>)>,
    /// Endpoints of a poisoned domain that are still to be closed.
    abandoned: Vec<Abandoned<L>>,
}

impl<L: RmaLink> Runtime<L> {
    /// A domain that any thread may enter at any time.
    pub fn new(engine: Domain<L>, progress: Progress) -> Self {
        let progress = (progress == Progress::Auto).then(ProgressThread::default);
        let wait = progress.as_ref().map(|p| p.wait.clone());
        Runtime { lock: Lock::shared(State::new(engine, wait)), progress }
    }

    /// A domain with manual progress whose caller keeps its calls apart: entering takes no atomic exchange.
    ///
    /// # Safety
    /// From the beginning of a call of this runtime to its end, or that of the guard it returns, no other
    /// thread calls, and each of these comes before the next as a synchronization between threads has it.
    pub unsafe fn serialized(engine: Domain<L>) -> Self {
        // SAFETY: the caller's promise; there is no thread of ours that enters by itself.
        Runtime { lock: unsafe { Lock::serialized(State::new(engine, None)) }, progress: None }
    }

    /// Enters the domain. What happens to completion queues and counters while the guard lives wakes their
    /// sleepers when it goes. Of a poisoned domain it unwinds with [`Poisoned`], which [`catch`] or the
    /// provider's own boundary turns into an error: the quickest way where there is such a boundary.
    ///
    /// [`catch`]: crate::catch
    #[inline(always)]
    pub fn lock(&self) -> Guard<'_, L> {
        Guard { state: self.lock.lock(|| ()) }
    }

    /// As [`Runtime::lock`], for a call by which the application makes progress itself. A domain whose caller
    /// keeps its calls apart has no progress thread.
    #[inline(always)]
    pub fn lock_to_poll(&self) -> Guard<'_, L> {
        Guard { state: self.lock.lock(|| self.polled()) }
    }

    /// As [`Runtime::lock`], but a poisoned domain is an error.
    #[inline]
    pub fn enter(&self) -> Result<Guard<'_, L>, Error> {
        match self.lock.enter() {
            Ok(state) => Ok(Guard { state }),
            Err(Poisoned) => Err(Error::Poisoned),
        }
    }

    /// As [`Runtime::enter`], for a call by which the application makes progress itself.
    #[inline]
    pub fn enter_to_poll(&self) -> Result<Guard<'_, L>, Error> {
        self.polled();
        self.enter()
    }

    #[inline(always)]
    fn polled(&self) {
        if let Some(progress) = &self.progress {
            progress.polled();
        }
    }

    /// As [`Runtime::lock`], for the progress thread, which needs no waking.
    pub(crate) fn lock_for_progress_thread(&self) -> Guard<'_, L> {
        let mut state = self.lock.lock(|| ());
        state.by_progress_thread = true;
        // So that the guard's end resets it.
        state.watched = true;
        Guard { state }
    }

    pub(crate) fn progress_thread(&self) -> Option<&ProgressThread> {
        self.progress.as_ref()
    }

    /// Includes the descriptor of an endpoint's link in what the progress thread sleeps on, if there is one.
    pub fn attach(&self, fd: RawFd) -> Result<Option<Attached>, Error> {
        let Some(progress) = &self.progress else { return Ok(None) };
        let attached = Attached::new(&progress.wait, fd)?;
        // It wakes, and arms that link too.
        self.enter()?.leave();
        Ok(Some(attached))
    }

    /// Links that the progress thread sleeps on.
    pub fn attached(&self) -> usize {
        self.progress.as_ref().map_or(0, |p| p.wait.attached())
    }

    /// Ends the progress thread, if there is one.
    pub fn close(&self) {
        if let Some(progress) = &self.progress {
            progress.stop();
        }
    }

    /// Makes progress, and returns whether an application may now sleep on the descriptor of `wait` until
    /// what is `watched` comes. If not, there is something to look at first.
    pub fn try_wait(
        &self,
        watched: impl FnOnce(&Domain<L>) -> Watched,
        wait: &Arc<Wait>,
    ) -> Result<bool, Error> {
        wait.fd()?;
        let mut engine = self.enter_to_poll()?;
        let watched = watched(&engine);
        if watched.is_awaited(&engine) {
            engine.progress();
        }
        let quiet = watched.is_awaited(&engine) && engine.watch(watched, wait);
        if quiet {
            // Not before: another thread may sleep on the descriptor, and what has woken it is to do so until
            // this one has registered both.
            wait.lower();
        }
        Ok(quiet)
    }

    /// Closes something that is in the domain and that no peer accesses; `wait`: what its sleepers sleep on.
    /// In a poisoned domain there is nothing to be done about it.
    pub fn close_in(
        &self,
        wait: Option<&Arc<Wait>>,
        close: impl FnOnce(&mut Domain<L>) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let Ok(mut engine) = self.enter() else { return Ok(()) };
        if let Some(wait) = wait {
            engine.unwatch_all(wait);
        }
        close(&mut engine)
    }

    /// Closes something that peers access: an endpoint, or a registration. While one is inside an access,
    /// `close` answers [`Busy`](EngineError::Busy), and is called again for a second, with the domain left in
    /// between. In a poisoned domain it is not called: the first of these calls closes all of its endpoints.
    pub fn take_back(
        &self,
        mut close: impl FnMut(&mut Domain<L>) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        in_turns(|patience| match self.enter() {
            Ok(mut engine) => engine.with_patience(patience, &mut close),
            Err(_) => self.lock.remains().map_or(Ok(()), |mut state| state.abandon(patience)),
        })
    }

    /// Cancels what was posted to an endpoint, as [`Domain::ep_cancel`] does. While the receiver of a send is
    /// inside an access the domain is left in between, for a second at most. Of a poisoned domain it unwinds,
    /// as [`Runtime::lock`] does.
    pub fn cancel(&self, ep: EpId, ctx: Ctx) -> Result<(), EngineError> {
        let mut begun = None;
        in_turns(|patience| {
            self.lock().with_patience(patience, |engine| engine.ep_cancel_in_turns(ep, ctx, &mut begun))
        })
    }

    /// As [`Runtime::enter`], for a thread that the application knows nothing of, and for exit(3). `None`:
    /// another thread is in.
    pub(crate) fn enter_unless_busy(&self) -> Result<Option<Guard<'_, L>>, Poisoned> {
        let state = self.lock.enter_at_exit()?;
        Ok(state.map(|state| Guard { state }))
    }

    /// Takes a sleeper that does not sleep any more off the list; to be called before its queue or
    /// counter is closed.
    pub fn forget(&self, wait: &Arc<Wait>) -> Result<(), Error> {
        self.enter()?.unwatch_all(wait);
        Ok(())
    }

    /// A blocking call: looks until there is something, and sleeps in between. `None`: the deadline has
    /// passed, after one look at least.
    ///
    /// A look makes progress, and finds out by itself what else ends the call. [`Wait::raise`] has it look
    /// again. Of several threads that wait on one object in such calls one sleeps, and the others look each
    /// millisecond.
    pub fn block<T>(
        &self,
        wait: &Arc<Wait>,
        idle: Idle,
        until: Deadline,
        mut poll: impl FnMut() -> Step<T>,
    ) -> Result<Option<T>, Error> {
        let wait = wait.calls();
        let mut spins = 0;
        let mut held = wait.hold();
        loop {
            if held.is_some() {
                wait.lower();
            }
            let watched = match poll() {
                Step::Done(found) => return Ok(Some(found)),
                Step::Wait(watched) => watched,
            };
            if until.passed() {
                return Ok(None);
            }
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
            } else if idle == Idle::Yield {
                std::thread::yield_now();
            } else if held.is_some() && wait.fd().is_ok() {
                self.sleep(watched, wait, until)?;
            } else {
                // Also where no descriptor is free to sleep on: the application may have made its own in
                // time, and what the looks have taken for it would be lost with an error.
                std::thread::sleep(until.left().map_or(NAP, |left| left.min(NAP)));
                held = held.or_else(|| wait.hold());
            }
        }
    }

    /// Sleeps until what is watched may have come. The descriptor is there: another thread may set the timer
    /// from the moment on at which this one is registered.
    fn sleep(&self, watched: Watched, wait: &Arc<Wait>, until: Deadline) -> Result<(), Error> {
        let mut engine = self.enter()?;
        let quiet = watched.is_awaited(&engine) && engine.watch(watched, wait);
        drop(engine);
        if !quiet {
            std::thread::yield_now();
            return Ok(());
        }
        let slept = wait.sleep(until);
        self.enter()?.unwatch(wait);
        slept
    }
}

/// Calls what answers [`Busy`](EngineError::Busy) while a peer is inside an access, again and again for a
/// second.
fn in_turns(mut attempt: impl FnMut(Patience) -> Result<(), EngineError>) -> Result<(), EngineError> {
    let (begin, mut turns) = (Instant::now(), 0u32);
    loop {
        let patience = if begin.elapsed() < PATIENCE.time() { Patience::Retried } else { Patience::Final };
        let outcome = attempt(patience);
        if outcome != Err(EngineError::Busy) || patience == Patience::Final {
            return outcome;
        }
        turns += 1;
        if turns < SPINS { std::thread::yield_now() } else { std::thread::sleep(PAUSE) }
    }
}

impl<L: RmaLink> State<L> {
    fn new(engine: Domain<L>, progress: Option<Arc<Wait>>) -> Self {
        State {
            engine,
            watched: false,
            progress,
            asleep: false,
            by_progress_thread: false,
            armed_now: false,
            kept: false,
            sleepers: Vec::new(),
            abandoned: Vec::new(),
        }
    }

    /// Closes the endpoints of a poisoned domain, of which nothing else is done any more.
    fn abandon(&mut self, patience: Patience) -> Result<(), EngineError> {
        while let Ok(Some(ep)) = catch(|| self.engine.ep_abandon()) {
            self.abandoned.push(ep);
        }
        let mut outcome = Ok(());
        for mut ep in std::mem::take(&mut self.abandoned) {
            if catch(|| ep.close(patience)) == Ok(Err(EngineError::Busy)) {
                outcome = Err(EngineError::Busy);
                self.abandoned.push(ep);
            } else {
                // Where that has panicked too, the sockets end at least.
                let _ = catch(|| drop(ep));
            }
        }
        outcome
    }

    #[cold]
    fn wake(&mut self) {
        let engine = &self.engine;
        self.sleepers.retain(|(watched, wait)| {
            let sleeps_on = watched.is_awaited(engine);
            if !sleeps_on {
                wait.raise_own();
            }
            sleeps_on
        });
        // What this thread did may have disarmed the links, or left something to do, and may have been its
        // last call.
        let tended = self.kept || self.armed_now;
        if !tended && !self.sleepers.is_empty() && !self.engine.is_armed() {
            self.sleepers.iter().for_each(|(_, wait)| wait.poll_soon());
        } else if self.armed_now {
            // Else sleepers have each other look for ever.
            self.sleepers.iter().for_each(|(_, wait)| wait.cancel_poll());
        }
    }
}

impl<L: RmaLink> fmt::Debug for State<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("sleepers", &self.sleepers).finish_non_exhaustive()
    }
}

/// The engine, while this thread is in.
#[derive(Debug)]
pub struct Guard<'a, L: RmaLink> {
    state: lock::Guard<'a, State<L>>,
}

impl<L: RmaLink> Guard<'_, L> {
    /// A call that takes memory back and waits for peers no longer than this.
    fn with_patience<T>(&mut self, patience: Patience, call: impl FnOnce(&mut Domain<L>) -> T) -> T {
        self.set_patience(patience);
        let outcome = call(self);
        self.set_patience(PATIENCE);
        outcome
    }

    /// Leaves: the end of those calls that count, which need not ask whether they panic.
    #[inline(always)]
    pub fn leave(mut self) {
        if self.state.watched {
            notify(self.state.apart());
        }
        // Nothing but the lock is given back.
        ManuallyDrop::new(self).state.leave();
    }

    /// Whether the progress thread runs.
    pub(crate) fn set_kept(&mut self, kept: bool) {
        self.state.kept = kept;
    }

    /// The progress thread goes to sleep: the next thread that was in wakes it. Or it does not.
    pub(crate) fn set_asleep(&mut self, asleep: bool) {
        self.state.asleep = asleep;
        self.state.armed_now |= asleep;
        self.state.watched |= asleep;
    }

    /// Registers a sleeper and has peers wake it. `false`: there is something to do first.
    fn watch(&mut self, watched: Watched, wait: &Arc<Wait>) -> bool {
        if watched.is_silent(&self.state.engine) {
            return false;
        }
        let quiet = self.state.engine.arm();
        if quiet {
            // Not else: another thread may sleep on the descriptor, and is to hear of what is done first.
            self.unwatch(wait);
            self.state.sleepers.push((watched, wait.clone()));
            self.state.watched = true;
            self.state.armed_now = true;
        }
        quiet
    }

    /// It does not sleep any more.
    fn unwatch(&mut self, wait: &Arc<Wait>) {
        self.state.sleepers.retain(|(_, w)| !Arc::ptr_eq(w, wait));
    }

    /// Nor does a blocking call on the same object.
    fn unwatch_all(&mut self, wait: &Arc<Wait>) {
        self.state.sleepers.retain(|(_, w)| !w.is_of(wait));
    }
}

/// The guard goes, and there are sleepers, or the progress thread sleeps.
#[cold]
#[inline(never)]
fn notify<L: RmaLink>(mut state: lock::Apart<'_, State<L>>) {
    let state = &mut *state;
    if std::thread::panicking() {
        // What they wait for may never come; they look, and hear why.
        state.sleepers.iter().for_each(|(_, wait)| wait.raise_own());
    } else if !state.sleepers.is_empty() {
        state.wake();
    }
    state.armed_now = false;
    // What was done may leave more to do.
    if let (false, Some(wait)) = (std::mem::take(&mut state.by_progress_thread), &state.progress) {
        if std::mem::take(&mut state.asleep) {
            wait.raise();
        }
    }
    state.watched = state.asleep || !state.sleepers.is_empty();
}
impl<L: RmaLink> Deref for Guard<'_, L> {
    type Target = Domain<L>;
    #[inline]
    fn deref(&self) -> &Domain<L> {
        &self.state.engine
    }
}

impl<L: RmaLink> DerefMut for Guard<'_, L> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Domain<L> {
        &mut self.state.engine
    }
}

impl<L: RmaLink> Drop for Guard<'_, L> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.state.watched {
            notify(self.state.apart());
        }
    }
}
