//! A thread that looks into the domains of the process while the application is in a call, or makes none:
//! what a person gets that asks why a program hangs. It exists only where that was requested when the process
//! began.

use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};
use std::time::{Duration, Instant};

use engine::Pending;

use crate::progress::Signals;
use crate::{Error, Host, Poisoned};

/// Between two attempts to enter a domain in which a thread is.
const NAP: Duration = Duration::from_micros(50);

/// What a look into a domain found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observed {
    /// Operations that are not over.
    Pending(Vec<Pending>),
    /// A thread was inside for all of the time that there was.
    Busy,
    /// A call has panicked inside, or the application keeps its calls apart, so that no thread may enter.
    Closed,
}

/// A domain, whatever its links are.
trait Observable: Send + Sync {
    fn observe(&self, most: usize, within: Duration) -> Observed;
}

impl<H: Host> Observable for H {
    fn observe(&self, most: usize, within: Duration) -> Observed {
        let begin = Instant::now();
        loop {
            match self.runtime().enter_unless_busy() {
                Err(Poisoned) => return Observed::Closed,
                Ok(Some(engine)) => return Observed::Pending(engine::pending(&engine, most)),
                Ok(None) if begin.elapsed() >= within => return Observed::Busy,
                Ok(None) => std::thread::sleep(NAP),
            }
        }
    }
}

static ALL: Mutex<Vec<Weak<dyn Observable>>> = Mutex::new(Vec::new());

/// The list, unless it is held for long, as by a thread that a forked child has not.
fn list() -> Option<MutexGuard<'static, Vec<Weak<dyn Observable>>>> {
    for _ in 0..1000 {
        match ALL.try_lock() {
            Ok(all) => return Some(all),
            Err(TryLockError::Poisoned(all)) => return Some(all.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(NAP),
        }
    }
    None
}

/// Includes a domain in what [`observe`] looks at, as long as it is open.
pub fn observable<H: Host>(host: &Arc<H>) {
    if let Some(mut all) = list() {
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(host) as Weak<dyn Observable>);
    }
}

/// What each of the domains waits for: up to `most` operations and some more, with no longer than this for
/// each.
pub fn observe(most: usize, within: Duration) -> Vec<Observed> {
    let all: Vec<_> = list().map(|all| all.iter().filter_map(Weak::upgrade).collect()).unwrap_or_default();
    all.iter().map(|domain: &Arc<dyn Observable>| domain.observe(most, within)).collect()
}

/// Starts a thread of the library's own, to which no signal of the application goes.
pub fn start_observer(body: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let _blocked = Signals::block();
    let spawned =
        std::thread::Builder::new().name("strait-observer".into()).stack_size(256 << 10).spawn(body);
    spawned.map(drop).map_err(|e| Error::system("pthread_create", &e))
}

#[cfg(test)]
mod tests {
    use engine::{Config, Domain};
    use link::ShmLink;

    use super::*;
    use crate::{Progress, Runtime};

    #[test]
    fn a_domain_is_looked_into_unless_a_thread_stays_inside() {
        let config = Config { virt_addr: false, rma_order: false };
        let host: Arc<Runtime<ShmLink>> = Arc::new(Runtime::new(Domain::new(config), Progress::Manual));
        let within = Duration::from_millis(20);
        assert_eq!(host.observe(10, within), Observed::Pending(vec![]));
        std::thread::scope(|threads| {
            let inside = host.lock();
            let looked = threads.spawn(|| host.observe(10, within)).join().unwrap();
            assert_eq!(looked, Observed::Busy);
            drop(inside);
        });
        observable(&host);
        assert!(observe(10, within).contains(&Observed::Pending(vec![])));
    }
}
