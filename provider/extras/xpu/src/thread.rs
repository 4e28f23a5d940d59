//! The thread that polls drains: it looks often while there is something, and sleeps between looks when there
//! is not. A device cannot wake it, so its sleep is bounded. Where it may rest, it sleeps longer once nothing
//! has happened for [`QUIET`]; peers and [`Drains::wake`] end that (`rest`).

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ipc::fence::full_fence;
use ipc::process::Name;
use runtime::{Deadline, Host, Wait, catch};

use crate::counter::CounterSide;
use crate::drain::Drain;
use crate::error::{Error, code};
use crate::port::BEAT;

mod pace;
mod rest;

pub use pace::Pace;
use pace::{Lull, Step};

/// What the thread sleeps on while it rests.
#[derive(Debug, Default)]
struct Bell {
    woken: AtomicU32,
    asleep: AtomicU32,
    wait: Arc<Wait>,
}

impl Bell {
    fn notify(&self) {
        if rest::wake(&self.woken, &self.asleep, full_fence) {
            self.wait.raise();
        }
    }

    /// Rests, unless there is something to do; whether the thread is to poll at once, and for
    /// some time.
    fn rest(&self, most: Duration, poll: impl FnOnce() -> bool) -> bool {
        self.wait.lower();
        if !rest::may_sleep(&self.woken, &self.asleep, full_fence, poll) {
            return true;
        }
        let ms = most.min(BEAT / 4).as_micros().div_ceil(1000).max(1);
        if self.wait.sleep(Deadline::after_ms(ms as i32)).is_err() {
            thread::park_timeout(BEAT / 4);
        }
        let woken = self.woken.load(Ordering::SeqCst) != 0;
        rest::awake(&self.woken, &self.asleep);
        woken
    }
}

/// What is polled before the drains are, by the same thread: it looks at memory and writes commands.
pub trait Feed: Send {
    /// How much there was to do.
    fn feed(&mut self) -> usize;
}

/// Drains of one runtime, and what else is looked at for them.
pub struct Drains {
    /// Whose: a forked child has no such thread, and shares the rings' memory with its parent.
    pid: u32,
    all: Mutex<Vec<(u64, Drain)>>,
    /// Callers that wait for `all`: the thread would take the mutex again before any of them wakes.
    callers: AtomicU32,
    peers: Mutex<Vec<(u32, Name)>>,
    /// Locked after `all`.
    feed: Mutex<Option<Box<dyn Feed>>>,
    /// Counters that devices add to, whether or not an endpoint is bound to them. Locked after `all`, and
    /// before the engine.
    counters: Mutex<Vec<Arc<CounterSide>>>,
    /// The next poll compares the counters' time limits.
    times: AtomicBool,
    stop: AtomicBool,
    bell: Bell,
}

impl Default for Drains {
    fn default() -> Drains {
        Drains {
            pid: std::process::id(),
            all: Mutex::default(),
            callers: AtomicU32::new(0),
            peers: Mutex::default(),
            feed: Mutex::default(),
            counters: Mutex::default(),
            times: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            bell: Bell::default(),
        }
    }
}

impl std::fmt::Debug for Drains {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Drains").field("all", &self.all).field("peers", &self.peers).finish_non_exhaustive()
    }
}

impl Drains {
    /// One more, under a name.
    pub fn add(&self, name: u64, drain: Drain) {
        self.enter().push((name, drain));
    }

    /// Takes one out, after its devices can read that it ends. None in a forked child: the rings are its
    /// parent's, and the thread may have been in the lock.
    pub fn remove(&self, name: u64) -> Option<Drain> {
        if self.pid != std::process::id() {
            return None;
        }
        let mut all = self.enter();
        let at = all.iter().position(|(n, _)| *n == name)?;
        let (_, mut drain) = all.swap_remove(at);
        drain.end(code::CANCELED);
        Some(drain)
    }

    /// Calls with one of them.
    pub fn with<T>(&self, name: u64, f: impl FnOnce(&mut Drain) -> T) -> Option<T> {
        self.enter().iter_mut().find(|(n, _)| *n == name).map(|(_, d)| f(d))
    }

    /// Ends a rest of the thread, or keeps it from the next one: commands come. For any thread, also one that
    /// may call no function of a device's runtime.
    pub fn wake(&self) {
        self.bell.notify();
    }

    /// What the thread sleeps on while it rests: links that are attached to it wake it.
    pub fn wait(&self) -> &Arc<Wait> {
        &self.bell.wait
    }

    /// Has all drains lose that peer once the process has ended.
    pub fn watch(&self, peer: u32, process: Name) {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner).push((peer, process));
    }

    /// Has the thread poll that, too; `None`: nothing any more.
    pub fn set_feed(&self, feed: Option<Box<dyn Feed>>) {
        // In a forked child the thread may have been in the lock, and polls nothing.
        if self.pid == std::process::id() {
            *self.feed.lock().unwrap_or_else(PoisonError::into_inner) = feed;
        }
    }

    /// Has the thread take what a device adds to a counter.
    pub fn add_counter(&self, counter: Arc<CounterSide>) {
        self.counters().push(counter);
    }

    /// The thread looks at that counter no more.
    pub fn remove_counter(&self, counter: &Arc<CounterSide>) {
        // In a forked child the thread may have been in the lock, and looks at nothing.
        if self.pid == std::process::id() {
            self.counters().retain(|c| !Arc::ptr_eq(c, counter));
        }
    }

    fn counters(&self) -> MutexGuard<'_, Vec<Arc<CounterSide>>> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For callers: the thread polls no more until they have been in.
    fn enter(&self) -> MutexGuard<'_, Vec<(u64, Drain)>> {
        self.callers.fetch_add(1, Ordering::SeqCst);
        let all = self.all();
        self.callers.fetch_sub(1, Ordering::SeqCst);
        all
    }

    fn all(&self) -> MutexGuard<'_, Vec<(u64, Drain)>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One look at all of them. Returns how much there was to do. Of a domain that a panic was inside, it
    /// ends them.
    pub fn poll<H: Host>(&self, host: &H) -> usize {
        let mut all = self.all();
        let counters = self.counters();
        let polled = catch(|| {
            let fed =
                self.feed.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map_or(0, |f| f.feed());
            let mut engine = host.runtime().enter_to_poll().ok()?;
            let taken = counters.iter().filter(|c| c.take(&mut *engine)).count();
            let mut polled: usize = all.iter_mut().map(|(_, d)| d.poll(&mut *engine)).sum();
            if all.is_empty() && !counters.is_empty() {
                // Deferred work that a device releases completes without a call of the host.
                polled += engine.progress();
            }
            // Behind progress: what has come meanwhile counts.
            if self.times.swap(false, Ordering::Relaxed) {
                let now = Instant::now();
                counters.iter().for_each(|c| c.expire(&mut *engine, now));
            }
            counters.iter().for_each(|c| c.show(&*engine));
            drop(engine);
            counters.iter().for_each(|c| c.write_back());
            Some(fed + taken + polled)
        });
        polled.ok().flatten().unwrap_or_else(|| {
            all.iter_mut().for_each(|(_, d)| d.end(code::IO));
            counters.iter().for_each(|c| c.end(code::IO));
            0
        })
    }

    /// Shows the devices that the thread runs, and which peers' processes have ended; has the next poll
    /// compare time limits.
    pub fn beat(&self) {
        self.times.store(true, Ordering::Relaxed);
        let mut all = self.all();
        all.iter_mut().for_each(|(_, d)| d.beat());
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        peers.retain(|(peer, process)| {
            let ended = process.has_ended();
            if ended {
                all.iter_mut().for_each(|(_, d)| d.lose(*peer, code::CONNRESET));
            }
            !ended
        });
    }
}

/// A thread that polls drains, until it is stopped or dropped.
#[derive(Debug)]
pub struct DrainThread {
    drains: Arc<Drains>,
    thread: Option<(JoinHandle<()>, u32)>,
}

impl DrainThread {
    /// Starts it. It never sleeps so long that a device misses its beat.
    pub fn start<H: Host>(host: Arc<H>, drains: Arc<Drains>, pace: Pace) -> Result<DrainThread, Error> {
        drains.stop.store(false, Ordering::SeqCst);
        if pace.rests() {
            // Now, so that the lack of a descriptor is the opener's error.
            drains.bell.wait.fd()?;
        }
        let theirs = drains.clone();
        let body = move || {
            let arm =
                || catch(|| host.runtime().enter().is_ok_and(|mut engine| engine.arm())).unwrap_or(false);
            run(&theirs, pace, || theirs.poll(&*host), arm);
        };
        let handle = thread::Builder::new().name("strait-xpu".into()).spawn(body)?;
        Ok(DrainThread { drains, thread: Some((handle, std::process::id())) })
    }

    /// Ends it.
    pub fn stop(&mut self) {
        self.drains.stop.store(true, Ordering::SeqCst);
        let Some((handle, pid)) = self.thread.take() else { return };
        if pid != std::process::id() {
            // A forked child has no such thread.
            return std::mem::forget(handle);
        }
        handle.thread().unpark();
        self.drains.wake();
        // Its body catches panics.
        let _ = handle.join();
    }
}

impl Drop for DrainThread {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The kernel ends sleeps of the calling thread when they are over, and not up to 50 microseconds later.
fn sleep_exactly() {
    const SLACK: libc::c_ulong = 1_000;
    // SAFETY: no pointers; of this thread alone.
    let set = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, SLACK) };
    if set != 0 {
        log::debug!("sleeps of this thread may last 50 microseconds longer");
    }
}

/// `poll` looks at all of them. `arm` has peers wake this thread; whether it may sleep then.
fn run(drains: &Drains, pace: Pace, poll: impl Fn() -> usize, arm: impl Fn() -> bool) {
    sleep_exactly();
    let (mut lull, mut beaten) = (Lull::new(pace), None::<Instant>);
    while !drains.stop.load(Ordering::SeqCst) {
        if drains.callers.load(Ordering::SeqCst) > 0 {
            thread::yield_now();
            continue;
        }
        let (step, now) = lull.polled(poll() > 0, Instant::now);
        if let Some(now) = now.filter(|now| beaten.is_none_or(|then| now.duration_since(then) > BEAT / 4)) {
            beaten = Some(now);
            drains.beat();
        }
        match step {
            Step::Spin => std::hint::spin_loop(),
            Step::Yield => thread::yield_now(),
            Step::Sleep(sleep) => thread::park_timeout(sleep.min(BEAT / 4)),
            Step::Rest(most) => {
                let found = || drains.stop.load(Ordering::SeqCst) || poll() > 0 || !arm();
                if drains.bell.rest(most, found) {
                    lull.end();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sleep without a limit of time ends.
    #[test]
    fn a_call_of_a_waker_ends_the_sleep_of_a_thread_that_rests() {
        let bell = Bell::default();
        bell.wait.fd().unwrap();
        for _ in 0..3 {
            bell.wait.lower();
            assert!(rest::may_sleep(&bell.woken, &bell.asleep, full_fence, || false));
            thread::scope(|s| {
                s.spawn(|| bell.notify());
                bell.wait.sleep(Deadline::NEVER).unwrap();
            });
            assert_eq!(bell.woken.load(Ordering::SeqCst), 1);
            rest::awake(&bell.woken, &bell.asleep);
        }
    }

    #[test]
    fn a_call_of_a_waker_is_for_the_rest_under_way_or_the_next_and_for_no_other() {
        let bell = Bell::default();
        let rests = || bell.rest(Duration::from_millis(1), || false);
        assert!(!rests());
        bell.notify();
        assert!(rests(), "the thread sleeps although it was woken before");
        assert!(!rests());
        assert!(
            bell.rest(Duration::from_millis(1), || true),
            "the thread sleeps although there is something"
        );
        assert!(!rests());
    }

    /// Otherwise a drain with much to do keeps fi_enable and fi_close waiting: the mutex is not fair.
    #[test]
    fn the_thread_lets_a_caller_in_that_waits() {
        let drains = Drains::default();
        let polls = AtomicU32::new(0);
        thread::scope(|s| {
            let held = drains.all();
            let caller = s.spawn(|| drains.with(1, |_| ()));
            while drains.callers.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            s.spawn(|| {
                let poll = || polls.fetch_add(1, Ordering::SeqCst) as usize;
                run(&drains, Pace::adapts(Duration::from_millis(1)), poll, || false)
            });
            thread::sleep(Duration::from_millis(50));
            let before = polls.load(Ordering::SeqCst);
            drop(held);
            let _ = caller.join();
            while polls.load(Ordering::SeqCst) == before {
                thread::yield_now();
            }
            drains.stop.store(true, Ordering::SeqCst);
            assert_eq!(before, 0, "polled although a caller waits");
        });
    }
}
