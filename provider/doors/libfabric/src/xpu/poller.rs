//! The thread that looks at what devices write, and what a domain keeps for streams.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use runtime::Host;
use xpu::{DrainThread, Drains, Pace, Words};

use crate::errno::Errno;
use crate::param::{self, XpuMode};

/// Between two looks of the thread at rings and counters in which nothing happens.
const SLEEP: Duration = Duration::from_micros(50);
/// The same in economy mode.
const LONG_SLEEP: Duration = Duration::from_micros(100);

/// What the mode is to the thread.
fn pace(mode: XpuMode) -> Pace {
    match mode {
        XpuMode::Auto => Pace::adapts(SLEEP),
        XpuMode::Performance => Pace::POLLS,
        XpuMode::Economy => Pace::sleeps(LONG_SLEEP),
    }
}

/// Rings and counters of devices, and the thread that looks at them for as long as this lives.
#[derive(Debug)]
pub(crate) struct Poller {
    pub drains: Arc<Drains>,
    _thread: DrainThread,
}

impl Poller {
    pub(super) fn start<H: Host>(host: &Arc<H>) -> Result<Arc<Poller>, Errno> {
        let drains = Arc::<Drains>::default();
        let thread = DrainThread::start(host.clone(), drains.clone(), pace(param::get().xpu_mode));
        Ok(Arc::new(Poller { drains, _thread: thread.map_err(|e| Errno(e.errno()))? }))
    }
}

/// What a domain has for streams.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    /// That of counters that were opened without a context.
    poller: Mutex<Weak<Poller>>,
    /// Words of closed counters: a stream may poll one later than its counter closes.
    kept: Mutex<Vec<Arc<Words>>>,
}

impl Streams {
    /// The poller of counters without a context.
    pub(super) fn poller<H: Host>(&self, host: &Arc<H>) -> Result<Arc<Poller>, Errno> {
        let mut known = self.poller.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(poller) = known.upgrade() {
            return Ok(poller);
        }
        let poller = Poller::start(host)?;
        *known = Arc::downgrade(&poller);
        Ok(poller)
    }

    /// Keeps the words of a counter until the domain is gone.
    pub(super) fn keep(&self, words: Arc<Words>) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(words);
    }
}
