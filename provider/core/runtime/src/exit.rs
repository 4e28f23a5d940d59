//! exit(3), and the end of main, with endpoints open: what was sent arrives, within a limit.
//!
//! A handler of atexit(3) makes progress in the links of the domains that were registered for it, which is
//! sound then:
//!
//! - A provider below still works. libfabric's core and its providers end in destructors of their libraries,
//!   which the dynamic linker runs behind all handlers of atexit(3). Where a provider has such a handler
//!   itself, it was registered when the provider was opened, before this one, and handlers run in the
//!   opposite order.
//! - No other thread is inside: the handler takes the domain's lock, and tries for no longer than the limit.
//!   A domain whose application promised to keep its calls apart has no lock to rely on, since no thread
//!   promised to be out of its calls at exit(3): it is left alone unless the process has no other thread.
//! - A forked child has none of it: neither the list, nor the locks of its parent's domains.
//! - What comes meanwhile stays with the links, and the domains as they are: handlers that run later may
//!   call.

use std::mem::forget;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::{Host, Poisoned, catch};

/// Between two looks, at first and later on.
const NAPS: std::ops::RangeInclusive<Duration> = Duration::from_micros(20)..=Duration::from_millis(1);
/// How long another thread may hold the list of domains: it adds to it.
const MOMENT: Duration = Duration::from_millis(100);
/// So often the handler is registered, with domains that are opened one after the other: it has to run before
/// those of a provider that was opened with a later one.
const HANDLERS: u32 = 8;

/// What is to arrive of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// Nothing any more.
    All,
    /// Something.
    Not,
    /// No thread may enter.
    Never,
    /// Another thread is inside now.
    Busy,
}

/// A domain, whatever its links are.
trait Settles: Send + Sync {
    fn settle(&self, last: bool) -> Settled;
}

impl<H: Host> Settles for H {
    fn settle(&self, last: bool) -> Settled {
        match self.runtime().enter_unless_busy() {
            Err(Poisoned) => Settled::Never,
            Ok(None) => Settled::Busy,
            Ok(Some(mut engine)) => {
                if engine.settle(last) {
                    Settled::All
                } else {
                    Settled::Not
                }
            }
        }
    }
}

static ALL: Mutex<Vec<Weak<dyn Settles>>> = Mutex::new(Vec::new());
/// The longest that one of them waits, in milliseconds.
static MOST: AtomicU64 = AtomicU64::new(0);
/// The process that they are of.
static OF: AtomicU32 = AtomicU32::new(0);

/// The list, unless it is held for long, as by a thread that a forked child has not.
fn list(most: Duration) -> Option<MutexGuard<'static, Vec<Weak<dyn Settles>>>> {
    let start = Instant::now();
    loop {
        match ALL.try_lock() {
            Ok(all) => return Some(all),
            Err(TryLockError::Poisoned(all)) => return Some(all.into_inner()),
            Err(TryLockError::WouldBlock) if start.elapsed() >= most => return None,
            Err(TryLockError::WouldBlock) => sleep(*NAPS.start()),
        }
    }
}

/// What the endpoints of this domain have sent arrives also where the process exits without closing them, if
/// that takes no longer than `most`. The caller is a library that is never unloaded, or a program.
pub fn settle_at_exit<H: Host>(host: &Arc<H>, most: Duration) {
    static HANDLER: AtomicU32 = AtomicU32::new(0);
    let Some(mut all) = list(MOMENT) else {
        return log::warn!("exit(3) does not wait for what was sent: the list of domains is held for ever");
    };
    if OF.swap(std::process::id(), Ordering::Relaxed) != std::process::id() {
        // Those of a parent process.
        all.clear();
    }
    MOST.fetch_max(u64::try_from(most.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    all.retain(|one| one.strong_count() > 0);
    if all.iter().any(|one| std::ptr::addr_eq(one.as_ptr(), Arc::as_ptr(host))) {
        return;
    }
    all.push(Arc::downgrade(host) as Weak<dyn Settles>);
    if HANDLER.load(Ordering::Relaxed) < HANDLERS {
        HANDLER.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the function is there when the process exits, since its object is never unloaded.
        if unsafe { libc::atexit(at_exit) } != 0 {
            log::warn!("exit(3) does not wait for what was sent: atexit(3) has no room");
        }
    }
}

extern "C" fn at_exit() {
    static ONCE: AtomicBool = AtomicBool::new(false);
    if OF.load(Ordering::Relaxed) == std::process::id() && !ONCE.swap(true, Ordering::Relaxed) {
        // A panic has been logged.
        let _ = catch(|| settle_all(Duration::from_millis(MOST.load(Ordering::Relaxed))));
    }
}

fn settle_all(most: Duration) {
    let start = Instant::now();
    let Some(all) = list(most.min(MOMENT)) else { return };
    let hosts: Vec<Arc<dyn Settles>> = all.iter().filter_map(Weak::upgrade).collect();
    drop(all);
    for found in settle_each(&hosts, most, start) {
        match found {
            Settled::Busy => log::warn!("exit does not wait for what was sent: a thread is in a call"),
            Settled::Never => log::info!(
                "exit does not wait for what was sent: the calls of a domain are not kept apart from other threads'"
            ),
            Settled::All | Settled::Not => {}
        }
    }
    // Nothing is closed here: that is left to the application.
    forget(hosts);
}

/// How far each is when all have settled, or when the time is over. One that has settled is asked again with
/// the others: what another one waits for may be its answer.
fn settle_each(hosts: &[Arc<dyn Settles>], most: Duration, start: Instant) -> Vec<Settled> {
    let mut found = vec![Settled::Not; hosts.len()];
    let mut nap = *NAPS.start();
    loop {
        let last = start.elapsed() >= most;
        for (host, found) in hosts.iter().zip(&mut found) {
            if *found != Settled::Never {
                // A panic inside poisons that domain alone.
                let now = catch(|| host.settle(last)).unwrap_or(Settled::Never);
                if (*found, now) != (Settled::All, Settled::Busy) {
                    *found = now;
                }
            }
        }
        if last || found.iter().all(|found| matches!(found, Settled::All | Settled::Never)) {
            return found;
        }
        sleep(nap.min(most.saturating_sub(start.elapsed())));
        nap = (2 * nap).min(*NAPS.end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Settles once its peer of this process was asked so often.
    struct End {
        asked: Arc<AtomicU32>,
        peer: Arc<AtomicU32>,
        needs: u32,
    }

    impl Settles for End {
        fn settle(&self, _last: bool) -> Settled {
            self.asked.fetch_add(1, Ordering::Relaxed);
            if self.peer.load(Ordering::Relaxed) >= self.needs { Settled::All } else { Settled::Not }
        }
    }

    #[test]
    fn a_domain_that_has_settled_answers_another_one_of_the_process() {
        let (one, two) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let end = |asked: &Arc<AtomicU32>, peer: &Arc<AtomicU32>, needs| {
            Arc::new(End { asked: asked.clone(), peer: peer.clone(), needs }) as Arc<dyn Settles>
        };
        let hosts = [end(&one, &two, 3), end(&two, &one, 0)];
        let found = settle_each(&hosts, Duration::from_secs(2), Instant::now());
        assert_eq!(found, [Settled::All, Settled::All]);
    }
}
