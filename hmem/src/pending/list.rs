//! The pending copies of one user, and which of them is polled next.

use std::time::{Duration, Instant};

use super::PendingCopy;
use crate::error::Error;

/// Time without a completed copy after which copies count as held.
const LONG: Duration = Duration::from_secs(10);
/// Empty polls between two readings of the clock.
const POLLS_PER_CHECK: u32 = 256;

#[derive(Debug)]
struct Entry<T> {
    name: T,
    flight: Box<dyn PendingCopy>,
    /// Known to be over.
    over: bool,
}

/// Pending copies, each under a name of its user's.
#[derive(Debug)]
pub struct PendingCopies<T> {
    all: Vec<Entry<T>>,
    /// Empty polls since a copy completed.
    empty_polls: u32,
    /// When the first of these was noticed.
    since: Option<Instant>,
    /// It has been said that they are held.
    warned: bool,
}

impl<T> Default for PendingCopies<T> {
    fn default() -> Self {
        PendingCopies::new()
    }
}

impl<T> PendingCopies<T> {
    /// None yet.
    pub const fn new() -> PendingCopies<T> {
        PendingCopies { all: Vec::new(), empty_polls: 0, since: None, warned: false }
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// One more.
    pub fn add(&mut self, name: T, flight: Box<dyn PendingCopy>) {
        self.all.push(Entry { name, flight, over: false });
    }

    /// One that is known to be over already. Asks no driver.
    pub fn over(&mut self) -> Option<T> {
        let at = self.all.iter().position(|f| f.over)?;
        Some(self.all.remove(at).name)
    }

    /// One that is over, if there is one, and how it ended: asks for the first of each queue.
    pub fn poll_done(&mut self) -> Option<(T, Result<(), Error>)> {
        // Queues whose first is not over.
        let mut busy = [None; 8];
        let mut at = 0;
        while at < self.all.len() {
            let queue = self.all[at].flight.queue();
            if queue.is_some() && busy.contains(&queue) {
                at += 1;
                continue;
            }
            let how = match self.all[at].flight.poll() {
                Ok(false) => {
                    if let Some(free) = busy.iter_mut().find(|q| q.is_none()) {
                        *free = queue;
                    }
                    at += 1;
                    continue;
                }
                Ok(true) => Ok(()),
                Err(why) => Err(why),
            };
            if how.is_ok() && queue.is_some() {
                self.overtake(at, queue);
            }
            (self.empty_polls, self.since) = (0, None);
            // In order, by which the first of a queue is found.
            return Some((self.all.remove(at).name, how));
        }
        None
    }

    /// Whether no copy has completed for 10 s though they were polled; true once. To be called after
    /// [`PendingCopies::poll_done`] has found none.
    pub fn held(&mut self) -> bool {
        self.held_for(LONG)
    }

    fn held_for(&mut self, long: Duration) -> bool {
        self.empty_polls = self.empty_polls.wrapping_add(1);
        if self.warned || self.all.is_empty() || self.empty_polls % POLLS_PER_CHECK != 0 {
            return false;
        }
        let now = Instant::now();
        self.warned = now.duration_since(*self.since.get_or_insert(now)) > long;
        self.warned
    }

    /// The copy at `at` of that queue is over: if the last one there is as well, so are those between.
    fn overtake(&mut self, at: usize, queue: Option<usize>) {
        let Some(last) = self.all.iter().rposition(|f| f.flight.queue() == queue) else { return };
        if last == at || !matches!(self.all[last].flight.poll(), Ok(true)) {
            return;
        }
        self.all[last].over = true;
        for f in &mut self.all[at + 1..last] {
            if f.flight.queue() == queue {
                f.over |= f.flight.on_later_done();
            }
        }
    }

    /// The name of the first for which `which` says so.
    pub fn find(&mut self, mut which: impl FnMut(&T) -> bool) -> Option<&mut T> {
        self.all.iter_mut().map(|f| &mut f.name).find(|name| which(name))
    }

    /// Waits for those for which `which` is true. [`PendingCopies::poll_done`] still returns them.
    pub fn wait(&mut self, mut which: impl FnMut(&T) -> bool) {
        for f in self.all.iter_mut().filter(|f| !f.over && which(&f.name)) {
            // An error is found again by the next poll.
            while matches!(f.flight.poll(), Ok(false)) {
                std::hint::spin_loop();
            }
        }
    }

    /// Ends those for which `which` says so, after waiting until the device has let go of the memory.
    pub fn cancel(&mut self, mut which: impl FnMut(&T) -> bool) {
        self.all.retain(|f| !which(&f.name));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    /// Of a queue that has done so many of its copies; counts how often it is asked.
    #[derive(Debug)]
    struct Numbered {
        queue: usize,
        number: u32,
        done: Arc<AtomicU32>,
        asked: Arc<AtomicU32>,
    }

    impl PendingCopy for Numbered {
        fn poll(&mut self) -> Result<bool, Error> {
            self.asked.fetch_add(1, Relaxed);
            match self.done.load(Relaxed) {
                u32::MAX => Err(Error::FAULT),
                done => Ok(self.number < done),
            }
        }

        fn queue(&self) -> Option<usize> {
            Some(self.queue)
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "counts what is done in a time that Miri takes for one step")]
    fn copies_that_are_held_are_reported_once() {
        let (done, asked) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let mut all = PendingCopies::new();
        // Of so many polls that the clock is read several times.
        let said = |all: &mut PendingCopies<u32>, long| {
            let mut said = 0;
            for _ in 0..8 * POLLS_PER_CHECK {
                assert_eq!(all.poll_done(), None);
                said += u32::from(all.held_for(long));
            }
            said
        };
        assert_eq!(said(&mut all, Duration::ZERO), 0, "there is none");
        for number in [0, 1] {
            all.add(
                number,
                Box::new(Numbered { queue: 0, number, done: done.clone(), asked: asked.clone() }),
            );
        }
        assert_eq!(said(&mut all, Duration::from_secs(60)), 0, "not for long");
        done.store(1, Relaxed);
        assert_eq!(all.poll_done(), Some((0, Ok(()))));
        assert_eq!((all.empty_polls, all.since), (0, None), "one that lands is a new beginning");
        let mut times = said(&mut all, Duration::from_millis(10));
        while times == 0 {
            times = said(&mut all, Duration::from_millis(10));
        }
        assert_eq!(times, 1);
        assert_eq!(said(&mut all, Duration::ZERO), 0, "once");
    }

    #[test]
    fn the_first_of_a_queue_is_asked_for_and_then_the_last() {
        let asked = Arc::new(AtomicU32::new(0));
        let done = [0, 1].map(|_| Arc::new(AtomicU32::new(0)));
        let mut all = PendingCopies::new();
        for number in 0..10 {
            for queue in [0, 1] {
                let (done, asked) = (done[queue].clone(), asked.clone());
                all.add((queue, number), Box::new(Numbered { queue, number, done, asked }));
            }
        }
        let questions = |all: &mut PendingCopies<(usize, u32)>| (all.poll_done(), asked.swap(0, Relaxed));
        assert_eq!(questions(&mut all), (None, 2));
        // One of the second queue: it, and the last, which is not over.
        done[1].store(1, Relaxed);
        assert_eq!(questions(&mut all), (Some(((1, 0), Ok(()))), 3));
        assert_eq!(all.over(), None);
        // All of the first one: those between need not be asked for.
        done[0].store(10, Relaxed);
        assert_eq!(questions(&mut all), (Some(((0, 0), Ok(()))), 2));
        let rest: Vec<_> = std::iter::from_fn(|| all.over()).collect();
        assert_eq!(rest, (1..10).map(|n| (0, n)).collect::<Vec<_>>());
        // An error ends one.
        done[1].store(u32::MAX, Relaxed);
        assert_eq!(questions(&mut all).0, Some(((1, 1), Err(Error::FAULT))));
        all.cancel(|(_, number)| *number < 9);
        assert_eq!(all.poll_done(), Some(((1, 9), Err(Error::FAULT))));
        assert!(all.is_empty());
    }
}
