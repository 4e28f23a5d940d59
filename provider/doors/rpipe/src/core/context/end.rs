//! An end, as far as control messages and events go.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use super::ready::{Met, Ready};
use super::regions::Regions;
use crate::core::control::{Control, Key, Reason, Shape, closed};
use crate::core::settings::Sync;
use crate::core::stream::Mode;
use crate::{Error, Promise, Rank, RegionId};

/// An operation whose success is of no interest.
pub(crate) const UNAWAITED: u32 = 0;

/// What an end wants.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Writer {
        width: u64,
        asked: Option<Mode>,
        sync: Sync,
        pull: bool,
    },
    /// `device`: that whose memory the heap is, if it is one's.
    Reader {
        shape: Shape,
        device: Option<i32>,
    },
}

#[derive(Debug)]
pub(super) struct Stream {
    /// Its place, and in the upper half the generation of that place: operations of the ends that had it
    /// before may end later.
    no: u32,
    key: Key,
    peer: Rank,
    end: End,
    /// The first message of this end has been sent.
    said: bool,
    /// Since when the end is to be set up.
    since: Option<Instant>,
    regions: Regions,
    met: Option<Met>,
    fault: Option<Error>,
    closed: Option<Reason>,
    done: HashMap<u32, Result<u64, Error>>,
    notified: VecDeque<u16>,
}

impl Stream {
    pub(super) fn new(no: u32, key: Key, end: End) -> Stream {
        Stream {
            no,
            key,
            peer: peer_of(&key, &end),
            end,
            said: false,
            since: None,
            regions: Regions::default(),
            met: None,
            fault: None,
            closed: None,
            done: HashMap::new(),
            notified: VecDeque::new(),
        }
    }

    pub(super) fn no(&self) -> u32 {
        self.no
    }

    pub(super) fn key(&self) -> Key {
        self.key
    }

    pub(super) fn peer(&self) -> Rank {
        self.peer
    }

    pub(super) fn end(&self) -> End {
        self.end
    }

    pub(super) fn has_said(&self) -> bool {
        self.said
    }

    /// A message to the peer, with what it grants; it counts as sent.
    pub(super) fn say(&mut self, control: &Control, grant: bool) -> (Vec<u8>, Vec<RegionId>) {
        self.said = true;
        (control.encode(&self.key), if grant { self.regions.granted() } else { Vec::new() })
    }

    pub(super) fn unsay(&mut self) {
        self.said = false;
    }

    /// Whether its setting up is to begin; since when, from now on.
    pub(super) fn due_since(&mut self) -> Option<Instant> {
        if self.said || self.fault.is_some() {
            return None;
        }
        Some(*self.since.get_or_insert_with(Instant::now))
    }

    pub(super) fn regions(&mut self) -> &mut Regions {
        &mut self.regions
    }

    pub(super) fn is_on_device(&self) -> bool {
        self.regions.has_peer_device() || matches!(self.end, End::Reader { device: Some(_), .. })
    }

    pub(super) fn has_met(&self) -> bool {
        self.met.is_some()
    }

    pub(super) fn meet(&mut self, met: Met) {
        self.met = Some(met);
    }

    /// The end, once its peer's is known.
    pub(super) fn ready(&self, promise: impl FnOnce() -> Promise) -> Option<Ready> {
        let met = self.met.as_ref()?;
        self.regions.ready(met, promise())
    }

    pub(super) fn fault(&self) -> Option<&Error> {
        self.fault.as_ref()
    }

    /// The end has failed: the first fault stays.
    pub(super) fn fail(&mut self, fault: &Error) {
        self.fault.get_or_insert_with(|| fault.clone());
    }

    pub(super) fn closed(&self) -> Option<Reason> {
        self.closed
    }

    pub(super) fn close(&mut self, reason: Reason) {
        self.closed.get_or_insert(reason);
    }

    /// An operation is over.
    pub(super) fn complete(&mut self, op: u32, outcome: Result<u64, Error>) {
        // What fails on memory that the peer has taken back fails because its end is closed.
        let outcome = match self.closed {
            Some(reason) => outcome.map_err(|_| closed(reason, "HD_PIPE or FD_PIPE")),
            None => outcome,
        };
        match (op, outcome) {
            (UNAWAITED, Ok(_)) => {}
            (UNAWAITED, Err(fault)) => self.fail(&fault),
            (op, outcome) => drop(self.done.insert(op, outcome)),
        }
    }

    pub(super) fn take_done(&mut self, op: u32) -> Option<Result<u64, Error>> {
        self.done.remove(&op)
    }

    pub(super) fn notify(&mut self, data: u16) {
        self.notified.push_back(data);
    }

    pub(super) fn take_notified(&mut self) -> Option<u16> {
        self.notified.pop_front()
    }

    /// Whether the peer's operations reach this end's memory, also when the peer has closed its end: a writer
    /// that has closed keeps what a reader uses that does not store there itself.
    pub(super) fn is_reached(&self) -> bool {
        matches!(self.end, End::Reader { .. })
            && self.met.as_ref().is_some_and(|met| met.manner.mode != Mode::Store)
    }

    /// What is left of an end that is closed.
    pub(super) fn into_regions(self) -> Regions {
        self.regions
    }
}

/// The rank at the other end.
pub(super) fn peer_of(key: &Key, end: &End) -> Rank {
    if matches!(end, End::Writer { .. }) { key.reader } else { key.writer }
}
