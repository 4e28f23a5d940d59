//! A fabric inside a process, which brings messages in another order than they were sent in.

use std::collections::{HashMap, VecDeque};
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use below::{
    About, Below, Buffer, Dest, Did, Lease, Message, Next, NotSent, Piece, Poll, Remote, Stop, Usage, Waits,
};
use hmem::{Kind, Span};
use link_api::Way;

const MOST: usize = 20_000;
const WINDOW: u32 = 16;
/// Longest read, and bytes of one that a poll moves.
const READ: usize = 150_000;
const STRETCH: usize = 4 << 10;

#[derive(Debug)]
struct Inbox {
    messages: Vec<Vec<u8>>,
    bell: UnixStream,
}

/// A read or write under way.
#[derive(Debug)]
struct Flight {
    by: u64,
    who: u64,
    piece: Piece,
    done: usize,
}

impl Flight {
    /// What it accesses of this memory, if it is lent for that: `n` bytes.
    fn part(&self, lent: Option<&(Span, Way)>, n: usize) -> Option<Span> {
        let (span, _) = lent.filter(|(_, way)| *way == self.piece.way)?;
        span.part(self.piece.addr as usize + self.done, n)
    }
}

#[derive(Debug, Default)]
struct Net {
    inboxes: HashMap<u64, Inbox>,
    next: u64,
    /// By key, with the way that peers access it.
    lent: HashMap<u64, (Span, Way)>,
    flights: Vec<Flight>,
    /// The byte that no read goes beyond.
    halt: Option<usize>,
    /// The byte at which the next read to come there fails.
    breaks: Option<usize>,
    /// Reads of memory that is not lent any more have no completion.
    silent: bool,
    /// Memory that its owner's provider goes on to access for accesses that have ended before their time, or
    /// whose registration was closed meanwhile, by owner.
    tails: Vec<(u64, (Span, Way))>,
}

impl Net {
    /// Moves some bytes of each read of an endpoint's; one that is over, and whether its bytes are there.
    fn fly(&mut self, by: u64) -> Option<(u64, bool)> {
        let mut over = None;
        for (at, flight) in self.flights.iter_mut().enumerate().filter(|(_, f)| f.by == by) {
            let Piece { way, key, local, .. } = flight.piece;
            let end = local.len().min(flight.done + STRETCH).min(self.halt.unwrap_or(usize::MAX));
            let n = end.saturating_sub(flight.done);
            let there = flight.part(self.lent.get(&key), n);
            if self.breaks.is_some_and(|at| flight.done >= at) {
                self.breaks = None;
                self.tails.extend(self.lent.get(&key).map(|lent| (key >> 32, *lent)));
                over = Some((at, false));
                break;
            }
            match (there, way) {
                (Some(from), Way::Get) => flight.done += hmem::copy(&[local], flight.done, &[from], 0, n),
                (Some(to), Way::Put) => flight.done += hmem::copy(&[to], 0, &[local], flight.done, n),
                (None, _) if self.silent => {}
                (None, _) => over = Some((at, false)),
            }
            if flight.done == local.len() {
                over = Some((at, true));
            }
        }
        over.map(|(at, ok)| (self.flights.swap_remove(at).who, ok))
    }
}

impl Net {
    /// Ends an endpoint's reads, which those whose memory it reads do not know yet.
    fn stop_reads(&mut self, by: u64) {
        let (lent, tails) = (&self.lent, &mut self.tails);
        self.flights.retain(|flight| {
            if flight.by == by {
                let key = flight.piece.key;
                tails.extend(lent.get(&key).map(|lent| (key >> 32, *lent)));
            }
            flight.by != by
        });
    }
}

/// All endpoints of a test.
#[derive(Clone, Debug, Default)]
pub struct FakeNet(Arc<Mutex<Net>>);

impl FakeNet {
    fn lock(&self) -> MutexGuard<'_, Net> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has every read stop at so many bytes, or go on.
    #[allow(dead_code)]
    pub fn halt(&self, at: Option<usize>) {
        self.lock().halt = at;
    }

    /// Whether reads of memory that is not lent any more have no completion.
    #[allow(dead_code)]
    pub fn silence(&self, on: bool) {
        self.lock().silent = on;
    }

    /// Has the next read that comes to so many bytes fail.
    #[allow(dead_code)]
    pub fn breaks(&self, at: usize) {
        self.lock().breaks = Some(at);
    }

    /// Whether bytes of this memory still go another way, or (`into`) come there.
    fn is_accessed(&self, memory: Span, into: bool) -> bool {
        let net = self.lock();
        let overlaps = |s: &Span| {
            s.addr() < memory.addr() + memory.len() as u64 && memory.addr() < s.addr() + s.len() as u64
        };
        let pieces = || net.flights.iter().map(|flight| &flight.piece);
        let lent = pieces().filter_map(|piece| net.lent.get(&piece.key));
        let theirs = net.tails.iter().map(|(_, lent)| lent).chain(lent);
        let ours = pieces().filter(|piece| (piece.way == Way::Get) == into).map(|piece| &piece.local);
        theirs.filter(|(_, way)| (*way == Way::Put) == into).map(|(span, _)| span).chain(ours).any(overlaps)
    }

    /// Whether anything still reads this memory.
    #[allow(dead_code)]
    pub fn is_read(&self, memory: Span) -> bool {
        self.is_accessed(memory, false)
    }

    /// Whether anything puts bytes there still.
    #[allow(dead_code)]
    pub fn is_filled(&self, memory: Span) -> bool {
        self.is_accessed(memory, true)
    }

    pub fn open(&self) -> Fake {
        let (bell, heard) = UnixStream::pair().expect("descriptors");
        bell.set_nonblocking(true).and_then(|()| heard.set_nonblocking(true)).expect("sockets");
        let mut net = self.lock();
        net.next += 1;
        let own = net.next;
        net.inboxes.insert(own, Inbox { messages: Vec::new(), bell });
        Fake {
            net: self.clone(),
            own,
            address: own.to_ne_bytes(),
            heard,
            buffers: Vec::new(),
            free: Vec::new(),
            turn: 0,
            deaf: false,
            failing: false,
            fails: 0,
            drops: 0,
            sent: 0,
            dead: false,
            lost: Vec::new(),
            slow: false,
            stuck: false,
            staying: VecDeque::new(),
            stingy: false,
            hasty: false,
            finds: 0,
            taken: VecDeque::new(),
            noisy: false,
            reads: false,
            writes: false,
            void: false,
            lends: true,
            devices: false,
            name: "fake",
            polls: 0,
        }
    }
}

/// One of them.
#[derive(Debug)]
pub struct Fake {
    net: FakeNet,
    own: u64,
    address: [u8; 8],
    heard: UnixStream,
    buffers: Vec<Vec<u8>>,
    free: Vec<u32>,
    turn: u64,
    /// Nothing that is sent comes.
    pub deaf: bool,
    /// Each message is lost, which is reported.
    pub failing: bool,
    /// So many messages are lost, which is reported; and then so many, which is not.
    pub fails: u32,
    pub drops: u32,
    /// Messages that it took.
    pub sent: u32,
    /// It does nothing any more.
    pub dead: bool,
    lost: Vec<u64>,
    /// Messages leave one by one, when it is called.
    pub slow: bool,
    /// As of `slow`, and none leaves now.
    pub stuck: bool,
    /// Those that have not left: to where, what is reported if they fail, and whether they are frames.
    staying: VecDeque<(Dest, u64, bool, Vec<u8>)>,
    /// Now and then there is no room.
    pub stingy: bool,
    /// [`Poll::Soon`] reports nothing in two of three calls.
    pub hasty: bool,
    /// [`Below::poll_next`] finds messages, and takes so many reports at once; 0: it finds none.
    pub finds: usize,
    /// Reports that were taken with a message.
    taken: VecDeque<Did>,
    /// Its descriptor stays readable, whatever was taken.
    pub noisy: bool,
    /// Memory can be read without its owner.
    pub reads: bool,
    /// And written.
    pub writes: bool,
    /// What is lent is not there when it is read.
    pub void: bool,
    /// Memory can be registered for others to read.
    pub lends: bool,
    /// Memory of devices, too.
    pub devices: bool,
    pub name: &'static str,
    /// How often it was asked what has happened.
    pub polls: u64,
}

impl Fake {
    /// Whether there is an endpoint of that address.
    fn deliver(&self, to: Dest, bytes: Vec<u8>) -> bool {
        let mut net = self.net.lock();
        let Some(inbox) = net.inboxes.get_mut(&to.0) else { return false };
        if self.deaf {
            return true;
        }
        // Some overtake those before them.
        let at = inbox.messages.len().saturating_sub((self.turn % 3) as usize);
        inbox.messages.insert(at, bytes);
        let _ = inbox.bell.write(&[1]);
        true
    }

    /// A message has come, before all others that are not taken.
    #[allow(dead_code)]
    pub fn comes_first(&self, bytes: Vec<u8>) {
        if let Some(inbox) = self.net.lock().inboxes.get_mut(&self.own) {
            inbox.messages.insert(0, bytes);
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let mut net = self.net.lock();
        net.inboxes.remove(&self.own);
        let own = self.own;
        net.stop_reads(own);
        net.lent.retain(|key, _| key >> 32 != own);
        net.tails.retain(|(owner, _)| *owner != own);
    }
}

impl Below for Fake {
    const LINK: &'static str = "ofi";

    fn about(&self) -> About<'_> {
        About {
            name: self.name,
            detail: "",
            dialect: (1, 2),
            address: &self.address,
            most: MOST,
            window: WINDOW,
            reads: self.reads.then_some(READ),
            writes: self.writes,
            publishes: false,
            data: false,
            atomics: false,
            rails: false,
        }
    }

    fn meet(&mut self, address: &[u8]) -> Result<Dest, String> {
        Ok(Dest(u64::from_ne_bytes(address.try_into().map_err(|_| "no address")?)))
    }

    fn part(&mut self, _dest: Dest) {}

    fn send(&mut self, to: Dest, message: &Message<'_>) -> Result<(), NotSent> {
        self.turn += 1;
        if self.stingy && self.turn % 11 == 0 {
            return Err(NotSent::Busy);
        }
        let mut bytes = vec![0; message.total()];
        if !message.copy_to(&mut bytes) {
            return Err(NotSent::Fault);
        }
        self.sent += 1;
        if self.failing || self.fails > 0 {
            self.fails = self.fails.saturating_sub(1);
            self.lost.push(message.who);
            return Ok(());
        }
        if self.drops > 0 {
            self.drops -= 1;
            return Ok(());
        }
        if self.slow {
            self.staying.push_back((to, message.who, message.is_frame, bytes));
        } else {
            self.deliver(to, bytes);
        }
        Ok(())
    }

    fn keeps(&self, who: u64) -> bool {
        self.lost.contains(&who) || self.staying.iter().any(|(_, of, is_frame, _)| *is_frame && *of == who)
    }

    fn poll(&mut self, how: Poll) -> Option<Did> {
        if let Some(did) = self.taken.pop_front() {
            return Some(did);
        }
        if how == Poll::Taken {
            return None;
        }
        self.polls += 1;
        if how == Poll::Soon && self.hasty && (self.polls - 1) % 3 > 0 {
            return None;
        }
        if self.dead {
            return Some(Did::Dead("it is dead".into()));
        }
        let leaves = if self.stuck { None } else { self.staying.pop_front() };
        if let Some((to, who, _, bytes)) = leaves {
            if !self.deliver(to, bytes) {
                self.lost.push(who);
            }
        }
        if let Some(who) = self.lost.pop() {
            return Some(Did::Failed(who, "it failed".into()));
        }
        let mut net = self.net.lock();
        if let Some((who, ok)) = net.fly(self.own) {
            return Some(Did::Over(who, ok));
        }
        let inbox = net.inboxes.get_mut(&self.own)?;
        if inbox.messages.is_empty() {
            if !self.noisy {
                let _ = self.heard.read(&mut [0; 64]);
            }
            return None;
        }
        let bytes = inbox.messages.remove(0);
        let (at, len) = (self.free.pop().unwrap_or(self.buffers.len() as u32), bytes.len());
        if at as usize == self.buffers.len() {
            self.buffers.push(Vec::new());
        }
        self.buffers[at as usize] = bytes;
        Some(Did::Came(Buffer(at), len, None))
    }

    fn poll_next(&mut self) -> Next {
        if self.finds == 0 || !self.taken.is_empty() {
            return Next::Other;
        }
        match self.poll(Poll::All) {
            None => Next::Nothing,
            Some(Did::Came(buffer, len, by)) => {
                // In a list of its own, since `poll` returns what is in the other one.
                let mut taken = VecDeque::new();
                taken.extend((1..self.finds).map_while(|_| self.poll(Poll::All)));
                self.taken = taken;
                Next::Came(buffer, len, by)
            }
            Some(did) => {
                self.taken.push_back(did);
                Next::Other
            }
        }
    }

    fn has_taken(&self) -> bool {
        self.finds == 0 || !self.taken.is_empty()
    }

    fn bytes(&self, buffer: Buffer) -> &[u8] {
        &self.buffers[buffer.0 as usize]
    }

    fn give_back(&mut self, buffer: Buffer) {
        assert!(!self.free.contains(&buffer.0), "a buffer that was given back");
        self.buffers[buffer.0 as usize].fill(0xee);
        self.free.push(buffer.0);
    }

    fn try_wait(&mut self) -> bool {
        // No descriptor shows the end of a read, nor of what has not left.
        if !self.staying.is_empty() || !self.taken.is_empty() {
            return false;
        }
        if self.net.lock().flights.iter().any(|flight| flight.by == self.own) {
            return false;
        }
        self.net.lock().inboxes.get(&self.own).is_none_or(|inbox| inbox.messages.is_empty())
    }

    fn waits(&self) -> Waits {
        Waits { own: Some(self.heard.as_raw_fd()), ..Waits::default() }
    }
}

impl Remote for Fake {
    fn reaches(&self, kind: Kind, _: Usage) -> bool {
        kind == Kind::System || kind == Kind::Fake && self.devices
    }

    fn lend(&mut self, _to: Dest, span: Span, way: Way) -> Option<Lease> {
        let mut net = self.net.lock();
        net.next += 1;
        let number = net.next;
        if !self.lends {
            return None;
        }
        if !self.void {
            net.lent.insert(self.own << 32 | number, (span, way));
        }
        Some(Lease { number, key: self.own << 32 | number, base: 0, lender: self.address.into() })
    }

    fn end_lease(&mut self, number: u64, _is_known: bool) -> bool {
        let (mut net, key) = (self.net.lock(), self.own << 32 | number);
        let lent = net.lent.remove(&key);
        if net.flights.iter().any(|flight| flight.piece.key == key) {
            net.tails.extend(lent.map(|lent| (self.own, lent)));
        }
        true
    }

    fn access(&mut self, who: u64, piece: &Piece) -> Result<(), NotSent> {
        self.turn += 1;
        if self.stingy && self.turn % 3 == 0 {
            return Err(NotSent::Busy);
        }
        self.net.lock().flights.push(Flight { by: self.own, who, piece: *piece, done: 0 });
        Ok(())
    }

    fn stop(&mut self, what: Stop) -> bool {
        let (mut net, own) = (self.net.lock(), self.own);
        match what {
            Stop::Accesses | Stop::Connection(_) => net.stop_reads(own),
            Stop::Leases => {
                net.lent.retain(|key, _| key >> 32 != own);
                net.tails.retain(|(owner, _)| *owner != own);
            }
        }
        true
    }
}
