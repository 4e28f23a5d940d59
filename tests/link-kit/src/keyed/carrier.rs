//! What is on its way between endpoints, and how it is carried.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use link_api::{Gone, OpId};
use wire::Addr;

use super::flight::Flight;
use super::key::{Exposed, Id};

/// How slow a net is.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The carrier's pause between two rounds.
    pub pause: Duration,
    /// Bytes that it moves in a round, of each stream and of each access.
    pub stretch: usize,
    /// Bytes that fit between two endpoints, each way.
    pub window: usize,
    /// How long a peer that a receive waits for may take to appear.
    pub patience: Duration,
}

impl Default for Pace {
    fn default() -> Pace {
        let (pause, patience) = (Duration::from_micros(20), Duration::from_millis(40));
        Pace { pause, stretch: 4 << 10, window: 48 << 10, patience }
    }
}

/// One direction between two endpoints.
#[derive(Debug, Default)]
pub(super) struct Way {
    /// Which was made first.
    pub(super) number: u64,
    pub(super) transit: VecDeque<u8>,
    pub(super) arrived: VecDeque<u8>,
    /// Nothing more is sent, and why.
    pub(super) end: Option<Gone>,
    /// The receiver was woken for that.
    pub(super) notified: bool,
    /// The sender found no room for so many bytes.
    pub(super) starved: Option<usize>,
}

impl Way {
    pub(super) fn in_flight(&self) -> usize {
        self.transit.len() + self.arrived.len()
    }

    /// Whether there is something for its receiver.
    pub(super) fn is_ready(&self) -> bool {
        !self.arrived.is_empty() || self.has_ended()
    }

    /// Whether all that will ever come has.
    pub(super) fn has_ended(&self) -> bool {
        self.end.is_some() && self.transit.is_empty()
    }
}

/// An endpoint, as the net has it.
#[derive(Debug)]
pub(super) struct Station {
    pub(super) addr: Addr,
    /// What makes its descriptor readable.
    bell: UnixStream,
    pub(super) armed: bool,
    /// Something happened since its last poll.
    pub(super) nudged: bool,
    pub(super) done: VecDeque<(OpId, bool)>,
    pub(super) exposed: Exposed,
    /// When it is to look for peers that receives wait for.
    pub(super) alarm: Option<Instant>,
}

impl Station {
    pub(super) fn new(addr: Addr, bell: UnixStream) -> Station {
        let (done, exposed) = Default::default();
        Station { addr, bell, armed: false, nudged: false, done, exposed, alarm: None }
    }
}

/// All that is on its way.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) pace: Pace,
    pub(super) stations: BTreeMap<Id, Station>,
    pub(super) names: HashMap<Addr, Id>,
    /// The name of each endpoint, also once it has ended.
    pub(super) known: HashMap<Id, Addr>,
    /// By sender and receiver.
    pub(super) ways: BTreeMap<(Id, Id), Way>,
    /// Channels that are being made.
    pub(super) calls: Vec<(Id, Id)>,
    pub(super) flights: Vec<Flight>,
    /// The byte that no access goes beyond.
    pub(super) halt: usize,
    pub(super) started: u64,
    numbers: u64,
    users: usize,
}

impl Wire {
    /// A number that nothing has.
    pub(super) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Something happened at an endpoint.
    pub(super) fn wake(&mut self, id: Id) {
        if let Some(station) = self.stations.get_mut(&id) {
            station.nudged = true;
            if std::mem::take(&mut station.armed) {
                // If the pipe is full it is readable already.
                let _ = station.bell.write(&[1]);
            }
        }
    }

    /// The ways to an endpoint, the first made first: the sender, and whether it has something.
    pub(super) fn ways_to(&self, id: Id) -> Vec<(Id, bool)> {
        let mut ways: Vec<(u64, Id, bool)> = Vec::new();
        for (&(from, to), way) in &self.ways {
            if to == id {
                ways.push((way.number, from, way.is_ready()));
            }
        }
        ways.sort_unstable();
        ways.into_iter().map(|(_, from, ready)| (from, ready)).collect()
    }

    /// An endpoint is no more: what it has sent still arrives.
    fn remove(&mut self, id: Id) {
        let Some(station) = self.stations.remove(&id) else { return };
        if self.names.get(&station.addr) == Some(&id) {
            self.names.remove(&station.addr);
        }
        self.ways.retain(|(_, to), _| *to != id);
        for (_, way) in self.ways.iter_mut().filter(|((from, _), _)| *from == id) {
            way.end.get_or_insert(Gone::Reset);
        }
        self.flights.retain(|f| f.from != id);
        let callers: Vec<Id> = self.calls.iter().filter(|(_, to)| *to == id).map(|(from, _)| *from).collect();
        self.calls.retain(|(from, to)| *from != id && *to != id);
        callers.into_iter().for_each(|from| self.wake(from));
    }

    fn has_work(&self) -> bool {
        let moves = |way: &Way| !way.transit.is_empty() || way.end.is_some() && !way.notified;
        !self.calls.is_empty() || !self.flights.is_empty() || self.ways.values().any(moves)
    }

    /// One round of the carrier.
    fn step(&mut self) {
        for (from, to) in std::mem::take(&mut self.calls) {
            self.connect(from, to);
        }
        let mut woken = Vec::new();
        for (&(_, to), way) in &mut self.ways {
            let n = way.transit.len().min(self.pace.stretch);
            way.arrived.extend(way.transit.drain(..n));
            let ends = way.has_ended() && !way.notified;
            way.notified |= ends;
            if n > 0 || ends {
                woken.push(to);
            }
        }
        for mut flight in std::mem::take(&mut self.flights) {
            let target = self.stations.get(&flight.to).map(|station| &station.exposed);
            match flight.go_on(target, self.pace.stretch, self.halt) {
                None => self.flights.push(flight),
                Some(ok) => {
                    if let Some(station) = self.stations.get_mut(&flight.from) {
                        station.done.push_back((flight.op, ok));
                    }
                    woken.push(flight.from);
                }
            }
        }
        woken.into_iter().for_each(|id| self.wake(id));
    }

    /// Makes a channel, once what was left of the last one between the two is gone.
    fn connect(&mut self, from: Id, to: Id) {
        let left = self.ways.get(&(from, to)).or(self.ways.get(&(to, from)));
        match left {
            Some(way) if way.end.is_none() && self.ways.contains_key(&(to, from)) => {}
            Some(_) => self.calls.push((from, to)),
            None => {
                for key in [(from, to), (to, from)] {
                    let number = self.number();
                    self.ways.insert(key, Way { number, ..Way::default() });
                }
                self.wake(from);
                self.wake(to);
            }
        }
    }

    /// Wakes those whose alarm goes off; when the next one does.
    fn alarms(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let over = |s: &Station| s.alarm.is_some_and(|at| at <= now);
        let late: Vec<Id> = self.stations.iter().filter(|(_, s)| over(s)).map(|(id, _)| *id).collect();
        for id in late {
            if let Some(station) = self.stations.get_mut(&id) {
                station.alarm = None;
            }
            self.wake(id);
        }
        self.stations.values().filter_map(|s| s.alarm).min()
    }
}

#[derive(Debug)]
pub(super) struct Shared {
    wire: Mutex<Wire>,
    work: Condvar,
}

impl Shared {
    /// A net without endpoints, and with one user: what made it.
    pub(super) fn new(pace: Pace) -> Shared {
        let (stations, names, known, ways, calls, flights) = Default::default();
        let (started, numbers, users) = (0, 0, 1);
        let halt = usize::MAX;
        let wire = Wire { pace, stations, names, known, ways, calls, flights, halt, started, numbers, users };
        Shared { wire: Mutex::new(wire), work: Condvar::new() }
    }

    /// One user less. The last one ends the carrier.
    pub(super) fn part(&self) {
        self.lock().users -= 1;
        self.hurry();
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Wire> {
        self.wire.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is something to carry.
    pub(super) fn hurry(&self) {
        self.work.notify_one();
    }

    /// An endpoint of this name, unless there is one: its number and its end of the bell.
    pub(super) fn join(&self, addr: Addr) -> Option<(Id, UnixStream)> {
        let (bell, heard) = UnixStream::pair().ok()?;
        bell.set_nonblocking(true).ok()?;
        heard.set_nonblocking(true).ok()?;
        let mut wire = self.lock();
        if wire.names.contains_key(&addr) {
            return None;
        }
        let id = wire.number();
        wire.names.insert(addr, id);
        wire.known.insert(id, addr);
        wire.stations.insert(id, Station::new(addr, bell));
        wire.users += 1;
        Some((id, heard))
    }

    pub(super) fn leave(&self, id: Id) {
        self.lock().remove(id);
        self.part();
    }

    /// Carries what is on its way, as long as there are users.
    pub(super) fn carry(&self) {
        let mut wire = self.lock();
        while wire.users > 0 {
            let next = wire.alarms();
            if wire.has_work() {
                let pause = wire.pace.pause;
                drop(wire);
                thread::sleep(pause);
                wire = self.lock();
                wire.step();
                continue;
            }
            let rest = next.map_or(Duration::from_secs(1), |at| at.saturating_duration_since(Instant::now()));
            wire = self.work.wait_timeout(wire, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
