//! The thread that looks at what devices write, and what a domain keeps for streams.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use xpu::{DrainThread, Drains, Pace, Words};

use crate::domain::Shared;
use crate::errno::Errno;
use crate::param;

/// Between two looks of the thread at rings and counters in which nothing happens.
const SLEEP: Duration = Duration::from_micros(50);
/// The same in economy mode.
const LONG_SLEEP: Duration = Duration::from_micros(100);

/// `FI_STRAIT_XPU_MODE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Auto,
    Performance,
    Economy,
}

impl Mode {
    /// Of its name.
    pub(crate) fn of(name: &str) -> Option<Mode> {
        match name {
            "auto" => Some(Mode::Auto),
            "performance" => Some(Mode::Performance),
            "economy" => Some(Mode::Economy),
            _ => None,
        }
    }

    fn pace(self) -> Pace {
        match self {
            Mode::Auto => Pace::adapts(SLEEP),
            Mode::Performance => Pace::POLLS,
            Mode::Economy => Pace::sleeps(LONG_SLEEP),
        }
    }
}

/// Rings and counters of devices, and the thread that looks at them for as long as this lives.
#[derive(Debug)]
pub(crate) struct Poller {
    pub drains: Arc<Drains>,
    _thread: DrainThread,
}

impl Poller {
    pub(super) fn start(shared: &Arc<Shared>) -> Result<Arc<Poller>, Errno> {
        if shared.one_thread {
            log::info!(
                "a device's context or counter: a domain of FI_THREAD_DOMAIN without FI_XPU in fi_info::caps; ask for \
                 FI_THREAD_SAFE"
            );
            return Err(Errno::OPNOTSUPP);
        }
        let drains = Arc::<Drains>::default();
        let thread = DrainThread::start(shared.clone(), drains.clone(), param::get().xpu_mode.pace());
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
    pub(super) fn poller(&self, shared: &Arc<Shared>) -> Result<Arc<Poller>, Errno> {
        let mut known = self.poller.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(poller) = known.upgrade() {
            return Ok(poller);
        }
        let poller = Poller::start(shared)?;
        *known = Arc::downgrade(&poller);
        Ok(poller)
    }

    /// Keeps the words of a counter until the domain is gone.
    pub(super) fn keep(&self, words: Arc<Words>) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(words);
    }
}
