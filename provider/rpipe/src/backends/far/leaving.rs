//! The end of the backend: what was put is there, or is told of.

use std::time::{Duration, Instant};

use super::{BYE, Far, Op};
use crate::{Error, Rank};

/// For how long what is under way besides puts is waited for.
const LEAVING: Duration = Duration::from_secs(1);

impl Far {
    /// A rank that has not ended, as far as is known, and to which bytes were put that are not there yet.
    fn unheard(&self) -> Option<Rank> {
        let ends = |rank| self.gone.contains(rank) || self.ending.iter().any(|(of, ..)| of == rank);
        self.ops.values().find_map(|op| match op {
            Op::Move(to, ..) if !ends(to) => Some(*to),
            _ => None,
        })
    }

    pub(in super::super) fn close(&mut self, until: Instant) -> Result<(), Error> {
        let soon = until.min(Instant::now() + LEAVING);
        let (mut names, mut events) = (u32::MAX / 2, Vec::new());
        for rank in self.peers.keys().copied().collect::<Vec<_>>() {
            let _ = self.message(rank, BYE, &[], &[]);
        }
        let busy = |far: &Far| {
            !far.waiting.is_empty() || far.enter().is_ok_and(|engine| engine.ep_under_way(far.ep) > 0)
        };
        let late = |far: &Far| Instant::now() >= if far.unheard().is_none() { soon } else { until };
        loop {
            // Also of what has ended by now: it is no longer under way, and not taken note of yet.
            let _ = self.progress(&mut events, &mut names);
            if !busy(self) || late(self) {
                break;
            }
            std::thread::yield_now();
        }
        let (ep, unheard, lost) = (self.ep, self.unheard(), link::lost_at_ends());
        let mut link = None;
        if self.runtime.take_back(|engine| engine.ep_part(ep).map(|parted| link = Some(parted))).is_err() {
            // Peers may still be inside the buffers.
            std::mem::forget(std::mem::take(&mut self.ops));
            std::mem::forget(std::mem::take(&mut self.regions));
            std::mem::forget(std::mem::take(&mut self.withdrawn));
        }
        drop(link);
        let lost = link::lost_at_ends() - lost;
        match unheard {
            Some(rank) => Err(Error::TimedOut(format!(
                "rank {rank} has not taken in what was written within STRAIT_RPIPE_LINGER: it may be lost"
            ))),
            None if lost > 0 => Err(Error::TimedOut(format!(
                "{lost} bytes to other hosts are not acknowledged within STRAIT_RPIPE_LINGER: they may be lost"
            ))),
            None => Ok(()),
        }
    }
}
