//! Waiting for a peer: looking, then yielding the core, then sleeping.

use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use crate::Error;
use crate::core::context::Context;

/// How long a call may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// It polls once.
    Poll,
    /// Until then.
    Until(Instant),
    /// As long as the peer is there.
    Forever,
    /// Until then, or as long as the peer is there, and while no other thread waits for the lock that the
    /// call has.
    #[doc(hidden)]
    InTurns(Option<Instant>, Turns),
}

/// Threads that wait for the lock of a call, as the call sees them that has it and itself waits.
pub(crate) trait Contenders: std::fmt::Debug + Sync {
    /// Whether one waits now.
    fn wait_now(&self) -> bool;
    /// Whether one ever did.
    fn were_met(&self) -> bool;
}

/// The threads that wait for the lock of a call.
#[derive(Clone, Copy, Debug)]
pub struct Turns(&'static dyn Contenders);

impl PartialEq for Turns {
    fn eq(&self, other: &Turns) -> bool {
        std::ptr::addr_eq(self.0, other.0)
    }
}

impl Eq for Turns {}

impl Patience {
    /// So long from now on.
    pub fn for_a(time: Duration) -> Patience {
        Instant::now().checked_add(time).map_or(Patience::Forever, Patience::Until)
    }

    /// The same for a call of several waits: its time is that of all together.
    pub(crate) fn of_call(self) -> Patience {
        if self == Patience::Poll { Patience::for_a(Duration::ZERO) } else { self }
    }

    /// Whether the time is over.
    pub(crate) fn is_over(self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }

    fn left(self) -> Option<Duration> {
        match self {
            Patience::Poll => Some(Duration::ZERO),
            Patience::Until(until) | Patience::InTurns(Some(until), _) => {
                Some(until.saturating_duration_since(Instant::now()))
            }
            Patience::Forever | Patience::InTurns(None, _) => None,
        }
    }

    /// Such a time, which is over (`Again`) also when another thread waits for the lock.
    pub(crate) fn in_turns(self, others: &'static dyn Contenders) -> Patience {
        match self {
            Patience::Poll | Patience::InTurns(..) => self,
            Patience::Until(until) => Patience::InTurns(Some(until), Turns(others)),
            Patience::Forever => Patience::InTurns(None, Turns(others)),
        }
    }

    fn others(&self) -> Option<&'static dyn Contenders> {
        if let Patience::InTurns(_, Turns(others)) = self { Some(*others) } else { None }
    }
}

/// Looks between two calls of progress, where a look finds what comes without it.
const LOOKS: u32 = 512;
/// Looks before the core is yielded.
const SPINS: u32 = 4096;
/// Steps of yielding before the thread sleeps.
const YIELDS: u32 = 200;
/// How long it sleeps at most: some paths do not wake it.
const SLEEP: Duration = Duration::from_millis(100);
const SHORT_SLEEP: Duration = Duration::from_micros(500);
/// The same where another thread may come to wait for the lock, which wakes none.
const NAP: Duration = Duration::from_millis(1);

/// What a step of waiting was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitStep {
    /// Poll again.
    Poll,
    /// The same, and ask whether the peer is there: progress was made.
    Ask,
    /// Prepare to be woken, poll again, and call [`Waiting::sleep`] if there is still nothing.
    Sleep,
}

/// One call that waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    patience: Patience,
    /// A look finds what comes by itself.
    mapped: bool,
    looks: u32,
    yields: u32,
}

impl Waiting {
    pub(crate) fn new(patience: Patience, mapped: bool) -> Waiting {
        Waiting { patience, mapped, looks: 0, yields: 0 }
    }

    /// After a look that has found nothing. `Again`: the time is over.
    #[inline]
    pub(crate) fn step(&mut self, context: &Context) -> Result<WaitStep, Error> {
        self.looks += 1;
        if self.mapped && self.looks % LOOKS != 0 && self.looks < SPINS && self.patience != Patience::Poll {
            pause();
            return Ok(WaitStep::Poll);
        }
        self.slow_step(context)
    }

    #[cold]
    fn slow_step(&mut self, context: &Context) -> Result<WaitStep, Error> {
        context.progress()?;
        if self.patience == Patience::Poll {
            // The look after the progress that was made decides.
            return if self.looks > 1 { Err(Error::Again) } else { Ok(WaitStep::Ask) };
        }
        // Also of a call whose looks take long by themselves.
        if self.patience.is_over() {
            return Err(Error::Again);
        }
        if self.looks >= LOOKS && self.patience.others().is_some_and(Contenders::wait_now) {
            return Err(Error::Again);
        }
        if self.looks < SPINS {
            std::hint::spin_loop();
            return Ok(WaitStep::Ask);
        }
        self.yields += 1;
        if self.yields < YIELDS {
            std::thread::yield_now();
            return Ok(WaitStep::Ask);
        }
        Ok(WaitStep::Sleep)
    }

    /// Sleeps until the descriptor is readable, or some time. `wakes`: the peer makes it readable.
    pub(crate) fn sleep(&self, context: &Context, wakes: bool) {
        let (fd, armed) = {
            let mut inner = context.lock();
            (inner.backend().descriptor(), inner.backend().arm())
        };
        if armed {
            let is_shared = self.patience.others().is_some_and(Contenders::were_met);
            let most = match wakes {
                true if is_shared => NAP,
                true => SLEEP,
                false => SHORT_SLEEP,
            };
            nap(fd, self.patience.left().map_or(most, |left| left.min(most)));
        }
    }
}

/// Between two looks at memory. An instruction for pausing takes 140 cycles on some processors.
#[inline(always)]
fn pause() {
    if cfg!(target_arch = "x86_64") { link::speculation_barrier() } else { std::hint::spin_loop() }
}

fn nap(fd: Option<RawFd>, time: Duration) {
    let Some(fd) = fd.filter(|_| time >= Duration::from_millis(1)) else { return std::thread::sleep(time) };
    let mut p = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: `p` is one valid pollfd.
    unsafe { libc::poll(&mut p, 1, time.as_millis().min(1000) as i32) };
}
