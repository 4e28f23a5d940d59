//! Memory windows: by which key one peer, and no other, accesses a registration.
//!
//! A registration itself serves no peer. For each peer that is to access it a window of type 2 is bound to
//! the queue pair of that peer, by a request that is ahead of the frame with the key: a key that another peer
//! has learnt or guessed is refused by the device. The end of a window is a call, not a request: when that
//! returns the device reaches the memory no more, in whatever state the queue pair is.

use std::collections::BTreeMap;

use rdma_sys::{Bind, Context, Error, Mw, Pd};

/// Whether the device has windows that are bound to a queue pair and to its domain; why not, if not.
pub(crate) fn check(context: &Context, pd: &Pd) -> Result<(), String> {
    if !context.has_windows() {
        return Err("no memory windows of type 2B".into());
    }
    pd.window().map(drop).map_err(|e| format!("no memory windows: {e}"))
}

/// A window of one queue pair.
#[derive(Debug)]
struct Window {
    mw: Mw,
    key: u32,
    /// The request that binds it has not completed.
    is_binding: bool,
    /// It ends, with its registration, when that has completed.
    is_parked: bool,
}

/// All windows, by the number of the registration and that of the queue pair.
#[derive(Debug)]
pub(crate) struct Windows {
    pd: Pd,
    all: BTreeMap<(u64, u32), Window>,
    /// The last refusal was logged.
    is_logged: bool,
}

impl Windows {
    pub(crate) fn new(pd: &Pd) -> Windows {
        Windows { pd: pd.clone(), all: BTreeMap::new(), is_logged: false }
    }

    fn of(&self, lease: u64) -> impl Iterator<Item = (&(u64, u32), &Window)> {
        self.all.range((lease, 0)..=(lease, u32::MAX))
    }

    /// The key by which this queue pair's peer accesses the registration, if it has one.
    pub(crate) fn key(&self, lease: u64, pair: u32) -> Option<u32> {
        self.all.get(&(lease, pair)).map(|window| window.key)
    }

    /// Makes a window for this queue pair's peer, which `post` binds: its key. `None`: it was refused.
    pub(crate) fn open(
        &mut self,
        (lease, pair): (u64, u32),
        post: impl FnOnce(&Mw) -> Result<Bind, String>,
    ) -> Option<u32> {
        let made = self.pd.window().map_err(|e| e.to_string());
        let found = made.and_then(|mw| post(&mw).map(|bind| (mw, bind.rkey())));
        match found {
            Ok((mw, key)) => {
                self.is_logged = false;
                let window = Window { mw, key, is_binding: true, is_parked: false };
                self.all.insert((lease, pair), window);
                Some(key)
            }
            Err(why) => {
                if !std::mem::replace(&mut self.is_logged, true) {
                    log::info!("no memory window for a peer, whose payloads go in frames: {why}");
                }
                None
            }
        }
    }

    /// The request that binds a window has completed, done or not. Whether the registration ends with it.
    pub(crate) fn note_done(&mut self, lease: u64, pair: u32) -> bool {
        let Some(window) = self.all.get_mut(&(lease, pair)) else { return false };
        window.is_binding = false;
        let ends = window.is_parked;
        if ends {
            if let Some(Err(e)) = self.all.remove(&(lease, pair)).map(|window| window.mw.deallocate()) {
                log::error!("{e}: a window stays that no peer knows the key of");
            }
        }
        ends
    }

    /// A queue pair that has yet to bind a window of this registration.
    pub(crate) fn binding(&self, lease: u64) -> Option<u32> {
        self.of(lease).find(|(_, window)| window.is_binding).map(|(which, _)| which.1)
    }

    /// Whether a queue pair has yet to bind a window.
    pub(crate) fn is_binding_of(&self, pair: u32) -> bool {
        self.all.iter().any(|(which, window)| which.1 == pair && window.is_binding)
    }

    /// The window of this registration, which no peer knows the key of, ends when it was bound, and the
    /// registration with it; `false` if it has several.
    pub(crate) fn park(&mut self, lease: u64) -> bool {
        let is_one = self.of(lease).count() == 1;
        if is_one {
            let all = self.all.range_mut((lease, 0)..=(lease, u32::MAX));
            all.for_each(|(_, window)| window.is_parked = true);
        }
        is_one
    }

    /// Ends all windows of a registration, for whatever peer, which were bound. An error says that one may
    /// still be used.
    pub(crate) fn end_lease(&mut self, lease: u64) -> Result<(), Error> {
        let mut outcome = Ok(());
        let all: Vec<(u64, u32)> = self.of(lease).map(|(which, _)| *which).collect();
        for window in all.into_iter().filter_map(|which| self.all.remove(&which)) {
            outcome = outcome.and(window.mw.deallocate());
        }
        outcome
    }

    /// Ends all windows of a queue pair, which is about to be destroyed: the registrations that end with
    /// them.
    pub(crate) fn end_pair(&mut self, pair: u32) -> Vec<u64> {
        let own: Vec<(u64, u32)> = self.all.keys().filter(|which| which.1 == pair).copied().collect();
        let mut ended = Vec::new();
        for which in own {
            let Some(window) = self.all.remove(&which) else { continue };
            ended.extend(window.is_parked.then_some(which.0));
            if let Err(e) = window.mw.deallocate() {
                log::error!("{e}: a window stays, and with it its queue pair");
            }
        }
        ended
    }
}
