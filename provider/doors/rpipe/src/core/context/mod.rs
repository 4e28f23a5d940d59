//! The process's part in a job: its backend, and the streams whose ends are here. Control messages are
//! answered here, whichever call makes progress, so that two processes meet though each of them is busy with
//! another pipe.

mod answering;
mod lending;
mod parting;
mod setup;
mod unheard;

pub(crate) use parting::Fate;

use std::collections::{HashMap, HashSet, VecDeque};
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ipc::fence::Barrier;

use crate::core::control::{Class, Control, Key, Manner, Reason, Shape, closed};
use crate::core::forked;
use crate::core::settings::{Settings, Sync};
use crate::core::stream::Mode;
use crate::lend::loans::{self, Lends};
use crate::{
    Backend, Bootstrap, DeviceMemory, Error, Event, Grant, PeerMemory, Promise, Rank, Region, RegionId, Token,
};

/// For how long a peer may take to publish its card.
const MEET: Duration = Duration::from_secs(60);
/// Streams that this process has not opened yet, of one peer, whose messages are kept: as many as there may
/// be pipes in a process.
const EARLY_MOST: usize = if cfg!(test) { 1 << 8 } else { 1 << 15 };

/// An operation whose success is of no interest.
pub(crate) const UNAWAITED: u32 = 0;

/// So many ends may be opened before one has a number that another one had.
const ENTERED: u32 = 1 << 15;

/// The place of the end of this number.
fn place(no: u32) -> usize {
    usize::from(no as u16)
}

/// What the ends of this process share.
#[derive(Debug)]
pub struct Context {
    rank: Rank,
    size: Rank,
    pub(crate) settings: Settings,
    pub(crate) barrier: Barrier,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    rank: Rank,
    size: Rank,
    fences: bool,
    pub(crate) backend: ManuallyDrop<Box<dyn Backend>>,
    bootstrap: Box<dyn Bootstrap>,
    met: HashMap<Rank, ()>,
    streams: Vec<Option<Stream>>,
    /// Ends that were opened, modulo `ENTERED`.
    entered: u32,
    keys: HashMap<Key, u32>,
    early: HashMap<Key, Vec<(Control, Vec<Grant>)>>,
    /// How many of them are of a peer.
    early_of: HashMap<Rank, usize>,
    ordinals: HashMap<(Class, Rank, Rank), u32>,
    gone: HashMap<Rank, String>,
    /// What the last call of progress could not take in: of which peer, and why.
    lacks: Vec<(Option<Rank>, Error)>,
    /// Numbers of ends that were closed with operations under way: what comes of these is no other end's.
    spent: Vec<u32>,
    /// What writers' ends that are closed had, and their readers use; whether they have messages to get from
    /// there.
    wanted: Vec<(Key, Region, bool)>,
    /// Ends that were closed, and of which a peer was told since.
    refused: HashSet<Key>,
    /// Memory that was lent, to peers and to this process.
    lends: Lends,
    /// By path and its reason: the longest message that it copies when it is written, and why that is.
    pub(crate) injects: HashMap<(String, String), (usize, String)>,
    events: Vec<Event>,
    /// Of peers that were not met when they said it.
    unheard: Vec<Event>,
    open: bool,
}

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

/// An end, as far as control messages and events go.
#[derive(Debug)]
struct Stream {
    /// Its place, and in the upper half what tells it from those that had it before: operations of these may
    /// end later.
    no: u32,
    key: Key,
    peer: Rank,
    end: End,
    /// The first message of this end has been sent.
    said: bool,
    /// Since when the end is to be set up.
    since: Option<Instant>,
    mine: Option<Region>,
    on_device: Option<(RegionId, Arc<DeviceMemory>)>,
    theirs: Option<Grant>,
    their_device: Option<Arc<PeerMemory>>,
    met: Option<Met>,
    fault: Option<Error>,
    closed: Option<Reason>,
    done: HashMap<u32, Result<u64, Error>>,
    notified: VecDeque<u16>,
}

/// What the two ends have agreed on.
#[derive(Clone, Debug)]
pub(crate) struct Met {
    pub(crate) shape: Shape,
    pub(crate) manner: Manner,
    pub(crate) mode_why: String,
    /// What notifications carry.
    pub(crate) no: u16,
    /// The reader uses membarrier(2) before it sleeps.
    pub(crate) fences: bool,
}

/// An end that can be used.
#[derive(Clone, Debug)]
pub(crate) struct Ready {
    pub(crate) mine: Region,
    pub(crate) theirs: Grant,
    /// Reader: its heap, if that is memory of a device. Writer: the reader's, if that is such memory.
    pub(crate) on_device: Option<Arc<DeviceMemory>>,
    pub(crate) their_device: Option<Arc<PeerMemory>>,
    pub(crate) met: Met,
    pub(crate) promise: Promise,
}

impl Context {
    /// Opens: a backend, whose card is published.
    pub fn new(
        backend: Box<dyn Backend>,
        mut bootstrap: Box<dyn Bootstrap>,
        settings: Settings,
    ) -> Result<Context, Error> {
        let (rank, size) = (bootstrap.rank(), bootstrap.size());
        forked::watch();
        bootstrap.publish(&backend.card())?;
        let barrier = Barrier::probe();
        let inner = Inner {
            rank,
            size,
            fences: barrier.usable,
            backend: ManuallyDrop::new(backend),
            bootstrap,
            met: HashMap::new(),
            streams: Vec::new(),
            entered: 0,
            keys: HashMap::new(),
            early: HashMap::new(),
            early_of: HashMap::new(),
            ordinals: HashMap::new(),
            gone: HashMap::new(),
            lacks: Vec::new(),
            spent: Vec::new(),
            wanted: Vec::new(),
            refused: HashSet::new(),
            lends: Lends::default(),
            injects: HashMap::new(),
            events: Vec::new(),
            unheard: Vec::new(),
            open: true,
        };
        Ok(Context { rank, size, settings, barrier, inner: Mutex::new(inner) })
    }

    pub fn rank(&self) -> Rank {
        self.rank
    }

    pub fn size(&self) -> Rank {
        self.size
    }

    /// The backend's name.
    pub fn backend(&self) -> String {
        self.lock().backend.name()
    }

    /// The descriptor that is readable once something may have happened, if the backend has one.
    pub fn descriptor(&self) -> Option<RawFd> {
        self.lock().backend.descriptor()
    }

    /// Whether a thread may sleep on the descriptor now.
    pub fn arm(&self) -> bool {
        self.lock().backend.arm()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        // What a panic has left is consistent: every change of a stream is one assignment.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes progress.
    pub fn progress(&self) -> Result<(), Error> {
        self.lock().progress()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !forked::is_child() {
            // SAFETY: nothing uses it any more.
            unsafe { ManuallyDrop::drop(&mut self.backend) };
        }
    }
}

impl Inner {
    /// The next stream of this kind between two ranks.
    pub(crate) fn next_key(&mut self, class: Class, writer: Rank, reader: Rank) -> Key {
        let ordinal = self.ordinals.entry((class, writer, reader)).or_insert(0);
        *ordinal += 1;
        Key { class, writer, reader, ordinal: *ordinal - 1 }
    }

    /// Enters an end; nothing is sent yet. What the peer has sent already is dealt with.
    pub(crate) fn enter(&mut self, key: Key, end: End) -> Result<u32, Error> {
        let peer = if matches!(end, End::Writer { .. }) { key.reader } else { key.writer };
        if peer >= self.size {
            return Err(Error::Invalid(format!(
                "there is no rank {peer}: the job has {} processes",
                self.size
            )));
        }
        let stream = Stream {
            no: 0,
            key,
            peer,
            end,
            said: false,
            since: None,
            mine: None,
            on_device: None,
            theirs: None,
            their_device: None,
            met: None,
            fault: None,
            closed: None,
            done: HashMap::new(),
            notified: VecDeque::new(),
        };
        let free = self.free_place();
        let at = free.unwrap_or(self.streams.len());
        if at >= usize::from(u16::MAX) {
            return Err(Error::Exhausted("there are 65535 open ends already; close some".into()));
        }
        self.entered = (self.entered + 1) % ENTERED;
        let no = self.entered << 16 | at as u32;
        let stream = Some(Stream { no, ..stream });
        match free {
            Some(at) => self.streams[at] = stream,
            None => self.streams.push(stream),
        }
        self.keys.insert(key, no);
        let early = self.early.remove(&key);
        if let Some(count) = self.early_of.get_mut(&peer).filter(|_| early.is_some()) {
            *count -= 1;
        }
        for (control, grants) in early.unwrap_or_default() {
            self.take_control(key, control, grants);
        }
        Ok(no)
    }

    /// The end of this number, if it is open.
    fn stream(&mut self, no: u32) -> Option<&mut Stream> {
        self.streams.get_mut(place(no))?.as_mut().filter(|stream| stream.no == no)
    }

    fn say(&mut self, no: u32, control: &Control, grant: bool) -> Result<(), Error> {
        forked::check()?;
        let Some(stream) = self.stream(no) else { return Ok(()) };
        let (peer, bytes) = (stream.peer, control.encode(&stream.key));
        let device = stream.on_device.iter().map(|(id, _)| *id);
        let mine = stream.mine.iter().map(|region| region.id);
        let grants: Vec<_> = mine.chain(device).filter(|_| grant).collect();
        stream.said = true;
        match self.meet_now(peer) {
            // Close can still go by the connection that the peer has made to this process.
            Err(_) if matches!(control, Control::Close(_)) => {}
            other => other?,
        }
        self.backend.send(peer, &bytes, &grants)
    }

    /// The end, once its peer's is known.
    pub(crate) fn ready(&mut self, no: u32) -> Result<Option<Ready>, Error> {
        self.begin(no)?;
        let Some(stream) = self.stream(no) else { return Err(Error::Invalid("the pipe is closed".into())) };
        if let Some(fault) = &stream.fault {
            return Err(fault.clone());
        }
        let (peer, mine, theirs, met) =
            (stream.peer, stream.mine.clone(), stream.theirs.clone(), stream.met.clone());
        let on_device = stream.on_device.as_ref().map(|(_, memory)| memory.clone());
        let their_device = stream.their_device.clone();
        match (mine, theirs, met) {
            (Some(mine), Some(theirs), Some(met)) => {
                let promise = self.backend.promise(peer);
                Ok(Some(Ready { mine, theirs, on_device, their_device, met, promise }))
            }
            _ => {
                self.still_there(no)?;
                self.takes_in(peer).map(|()| None)
            }
        }
    }

    /// What came of an operation, once it is over.
    pub(crate) fn take_done(&mut self, no: u32, op: u32) -> Option<Result<u64, Error>> {
        self.stream(no)?.done.remove(&op)
    }

    /// The next notification.
    pub(crate) fn take_notified(&mut self, no: u32) -> Option<u16> {
        self.stream(no)?.notified.pop_front()
    }

    /// The end breaks with its peer, which broke the protocol.
    pub(crate) fn break_off(&mut self, no: u32, fault: &Error) {
        let _ = self.say(no, &Control::Close(Reason::Protocol), false);
        self.fail(no, fault);
    }

    pub(crate) fn progress(&mut self) -> Result<(), Error> {
        forked::check()?;
        if !self.open {
            return Err(Error::Invalid("the job was left (rfinalize)".into()));
        }
        let mut events = std::mem::take(&mut self.events);
        events.append(&mut self.unheard);
        self.lacks.clear();
        let outcome = self.backend.progress(&mut events);
        for event in events.drain(..) {
            if let Some(event) = self.hear(event) {
                self.take_event(event);
            }
        }
        self.events = events;
        outcome
    }

    fn take_event(&mut self, event: Event) {
        match event {
            Event::Done(token) => self.ended(token, Ok(0)),
            Event::Fetched(token, value) => self.ended(token, Ok(value)),
            Event::Failed(token, error) => self.ended(token, Err(error)),
            Event::Notified { from, data } => {
                let stream = self.streams.get_mut((data >> 16) as usize).and_then(Option::as_mut);
                if let Some(stream) = stream.filter(|stream| stream.peer == from) {
                    stream.notified.push_back(data as u16);
                }
            }
            Event::Control { from, bytes, grants } if loans::is_one(&bytes) => {
                self.take_lending(from, &bytes, grants);
            }
            Event::Control { from, bytes, grants } => match Control::decode(&bytes) {
                Some((key, control)) if self.concerns(from, &key) => self.take_control(key, control, grants),
                _ => {
                    log::warn!("rpipe: a control message of rank {from} makes no sense and is ignored");
                    self.forget(grants);
                }
            },
            Event::Lack { peer, why } => self.lacks.push((peer, why)),
            Event::Gone { peer, why } => {
                self.gone.entry(peer).or_insert(why);
                self.unwanted(|key| key.reader == peer);
                self.lender_or_borrower_gone(peer);
            }
        }
    }

    fn ended(&mut self, token: Token, outcome: Result<u64, Error>) {
        if loans::is_token(token) {
            return self.lending_ended(token, outcome);
        }
        let Some(stream) = self.stream((token.0 >> 32) as u32) else { return };
        // What fails on memory that the peer has taken back fails because its end is closed.
        let outcome = match stream.closed {
            Some(reason) => outcome.map_err(|_| closed(reason, "HD_PIPE or FD_PIPE")),
            None => outcome,
        };
        match (token.0 as u32, outcome) {
            (UNAWAITED, Ok(_)) => {}
            (UNAWAITED, Err(fault)) => drop(stream.fault.get_or_insert(fault)),
            (op, outcome) => drop(stream.done.insert(op, outcome)),
        }
    }

    fn forget(&mut self, grants: Vec<Grant>) {
        grants.iter().for_each(|grant| self.backend.forget(grant.remote));
    }
}
