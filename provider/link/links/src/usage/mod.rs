//! What the endpoints of a process have carried, and its report.

mod counts;
mod file;
mod page;
mod report_at_exit;
mod state;
mod text;

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use link_api::{Fallback, How, Meter, Side};
use wire::Addr;

use counts::row_of;
pub use counts::{Counts, ROWS, SIDES, row_name};
pub use file::open_to_append;
use page::Page;
pub use page::{Sums, is_page, read};
pub use report_at_exit::{Place, Unclear};
use state::State;
pub use text::{Path, Report, Way, bytes_text, json_string};

/// Peers that are kept apart; what more there are is added up under the last one's name.
const MOST: usize = 4096;
/// The link whose paths are counted apart.
const SHM: &str = "shm";

/// The sums of a process.
#[derive(Debug)]
pub struct Usage {
    state: Mutex<State>,
    /// `None`: there is no memory for it, and other processes do not see the sums.
    page: Option<Page>,
    /// The process whose page it is.
    pid: u32,
    /// This is a process forked from that one, and has opened an endpoint of its own.
    forked: AtomicBool,
}

impl Usage {
    /// Nothing yet.
    pub fn new() -> Arc<Usage> {
        let (state, page) = (Mutex::default(), Page::new().ok());
        Arc::new(Usage { state, page, pid: std::process::id(), forked: AtomicBool::new(false) })
    }

    /// One endpoint more was opened.
    pub fn opened(&self) {
        if std::process::id() != self.pid {
            self.forked.store(true, Relaxed);
        }
        self.lock().endpoints += 1;
    }

    /// Counts for one endpoint more.
    pub fn meter(self: &Arc<Usage>) -> Box<dyn Meter> {
        self.opened();
        Box::new(Handle(self.clone()))
    }

    /// As [`Meter::path`].
    pub fn path(&self, peer: &Addr, link: &'static str, words: String) {
        let mut state = self.lock();
        if state.peers.len() < MOST || state.peers.contains_key(peer) {
            let peer = state.peers.entry(*peer).or_default();
            // What is said of a channel that is not there, or no more, says less.
            if peer.words.is_empty() || !words.contains("not connected") {
                (peer.link, peer.words) = (link, words);
            }
        }
    }

    /// As [`Meter::count`].
    pub fn count(&self, peer: &Addr, side: Side, how: How, bytes: usize) -> bool {
        let mut state = self.lock();
        let full = state.peers.len() >= MOST;
        let link = match state.peers.get_mut(peer) {
            Some(peer) => {
                let first = !std::mem::replace(&mut peer.carried, true);
                let link = peer.link;
                state.with_counts += usize::from(first);
                link
            }
            None if full => SHM,
            None => return false,
        };
        let row = row_of(link == SHM, how);
        let side = side as usize;
        state.counts[side][row].add(bytes as u64);
        if let Some(page) = self.page.as_ref().filter(|_| !self.forked.load(Relaxed)) {
            page.set_counts(side, row, state.counts[side][row]);
            page.set_peers(state.with_counts);
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sums as they are now; `None` if a thread that is in the midst of counting does not go on.
    pub fn report(&self) -> Option<Report> {
        for _ in 0..100 {
            match self.state.try_lock() {
                Ok(state) => return Some(Report::of(&state)),
                Err(TryLockError::Poisoned(state)) => return Some(Report::of(&state.into_inner())),
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        None
    }
}

/// The meter of an endpoint.
#[derive(Debug)]
struct Handle(Arc<Usage>);

impl Meter for Handle {
    fn path(&mut self, peer: &Addr, link: &'static str, words: String) {
        self.0.path(peer, link, words);
    }

    fn count(&mut self, peer: &Addr, side: Side, how: How, bytes: usize) -> bool {
        self.0.count(peer, side, how, bytes)
    }

    fn fell_back(&mut self, peer: &Addr, why: Fallback) {
        if let Some(peer) = self.0.lock().peers.get_mut(peer) {
            peer.fell_back[why as usize] += 1;
        }
    }
}

#[cfg(test)]
mod tests;
