//! What pipes stand on: memory of a peer that can be written and read, by whatever moves the bytes.
//!
//! A backend exposes memory of its own ([`Backend::expose`]), grants it to single peers by control messages,
//! and moves bytes between its regions and those that peers have granted. The layers above choose how data
//! and flags travel from what the path to a peer promises ([`Promise`]); nothing above asks which backend it
//! is.
//!
//! A backend is called by one thread at a time. No call waits, but [`Backend::connect`] and
//! [`Backend::expose`], which may take as long as a system call or a connection takes. Every operation ends
//! with one event, also if the peer dies: within a second of that the backend reports [`Event::Gone`], after
//! the events of all that the peer did before.

use std::fmt;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Instant;

use crate::{Atomic, DeviceMemory, Error, Memory, PeerMemory};

/// A process of the job.
pub type Rank = u32;

/// A region of this process, exposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegionId(pub u32);

/// A region of a peer that was granted to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteId(pub u32);

/// Comes back with the event that ends an operation. The backend never looks into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

/// The longest control message, in bytes.
pub const CONTROL_MOST: usize = 512;
/// The most regions that one control message grants.
pub const GRANTS_MOST: usize = 4;

/// Where there is no memory of devices.
pub(crate) const NO_DEVICES: &str =
    "a heap in memory of a device is for peers on this host that map memory: STRAIT_RPIPE_BACKEND=strait";

/// Whether a control message is within these limits.
pub(crate) fn check_control(bytes: &[u8], grants: &[RegionId]) -> Result<(), Error> {
    let (len, count) = (bytes.len(), grants.len());
    if len > CONTROL_MOST || count > GRANTS_MOST {
        return Err(Error::Invalid(format!("a control message of {len} bytes with {count} grants")));
    }
    Ok(())
}

/// What the path to a peer promises. A backend that does not know promises nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Promise {
    /// What the path is, for people: `shared memory`, `tcp`, `cxi`.
    pub path: String,
    /// Why it is this one, for people.
    pub why: String,
    /// Regions that this peer grants are mapped here ([`Grant::mapped`]): a store is a put, a load is a get,
    /// and what the processor orders is ordered.
    pub mapped: bool,
    /// The bytes of one put become visible in the order of their addresses, the last 8 (aligned) at once and
    /// last, for puts up to this long; 0: no such promise.
    pub within: usize,
    /// Of two puts to this peer the later one, if [`Put::behind`] is set, becomes visible after the earlier
    /// ones.
    pub between: bool,
    /// [`Event::Done`] of a put says that its bytes are visible at the peer; else only that the source may be
    /// reused.
    pub delivered: bool,
    /// A get that starts after a put has ended finds its bytes.
    pub settled: bool,
    /// [`Put::notify`] works.
    pub notify: bool,
    /// [`Rma::fetch_add`] works.
    pub fetch: bool,
    /// What arrives makes the descriptor of an armed backend readable at the peer.
    pub wakes: bool,
    /// The peer has to call [`Backend::progress`] for operations to come to an end.
    pub peer_progress: bool,
    /// The most bytes that [`Rma::put_bytes`] takes; 64 at least.
    pub inject: usize,
    /// Up to so many bytes [`Rma::put_bytes`] takes no longer than [`Rma::put`], as measured by
    /// `suite thresholds`.
    pub eager: usize,
    /// The longest put or get.
    pub most: usize,
}

/// A region of this process.
#[derive(Clone, Debug)]
pub struct Region {
    /// Its name in the backend.
    pub id: RegionId,
    /// Its bytes, all zero at first.
    pub memory: Memory,
}

/// A region of a peer.
#[derive(Clone, Debug)]
pub struct Grant {
    /// Its name in this backend.
    pub remote: RemoteId,
    /// Its bytes.
    pub len: usize,
    /// Its bytes, where this process has them mapped. The backend has checked that an access to them cannot
    /// fault.
    pub mapped: Option<Memory>,
    /// Memory of a device: it is neither mapped for the processor nor put to and got from by the backend.
    pub device: Option<Arc<PeerMemory>>,
}

/// Bytes to write to a region of a peer.
#[derive(Clone, Copy, Debug)]
pub struct Put {
    /// The peer that has granted it.
    pub to: Rank,
    /// Where from: region and offset.
    pub from: (RegionId, usize),
    /// Where to: region and offset.
    pub remote: (RemoteId, usize),
    /// How many; not 0.
    pub len: usize,
    /// Becomes visible after all earlier puts to this peer; only where [`Promise::between`].
    pub behind: bool,
    /// Raises [`Event::Notified`] at the peer, with this number, once the bytes are visible there; only where
    /// [`Promise::notify`]. Only the lower 32 bits count.
    pub notify: Option<u32>,
    /// Comes back.
    pub token: Token,
}

/// Bytes to read from a region of a peer.
#[derive(Clone, Copy, Debug)]
pub struct Get {
    /// The peer that has granted it.
    pub from: Rank,
    /// Where from: region and offset.
    pub remote: (RemoteId, usize),
    /// Where to: region and offset.
    pub to: (RegionId, usize),
    /// How many; not 0.
    pub len: usize,
    /// Comes back.
    pub token: Token,
}

/// What has happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// A put or a get is over: the source may be reused, or the bytes are there. See [`Promise::delivered`].
    Done(Token),
    /// A fetch-add is over; what was there before.
    Fetched(Token, u64),
    /// An operation has failed, and the peer may still be there.
    Failed(Token, Error),
    /// A peer's notified put is visible here.
    Notified { from: Rank, data: u32 },
    /// A control message. Each peer's come in order, none is lost. The bytes are a copy, and not to be
    /// trusted.
    Control { from: Rank, bytes: Vec<u8>, grants: Vec<Grant> },
    /// A peer has ended, or left. What it has put before is visible; its regions stay mapped until they are
    /// forgotten.
    Gone { peer: Rank, why: String },
    /// There is no descriptor, or no memory, for what this peer, or one that is not known yet, has sent: it
    /// waits, and nothing of that peer comes before it. Raised by each [`Backend::progress`] as long as that
    /// is so.
    Lack { peer: Option<Rank>, why: Error },
}

/// What moves bytes between processes.
pub trait Backend: Rma + Wakeup + Send + fmt::Debug {
    /// Its name, for people, with the library or provider it uses: `strait`, `strait (tcp)`, `mpi (Open
    /// MPI 4.1.4)`.
    fn name(&self) -> String;

    /// What peers reach this process by, for [`Bootstrap::publish`](crate::Bootstrap::publish).
    fn card(&self) -> Vec<u8>;

    /// Introduces a peer. Called once per peer, before any other call that names it, and on one side before
    /// the other: an event may come from a peer that was not introduced here, and answers to it are then
    /// possible without.
    fn connect(&mut self, peer: Rank, card: &[u8]) -> Result<(), Error>;

    /// What the path to a peer promises. It does not change once a control message from that peer has
    /// arrived.
    fn promise(&self, peer: Rank) -> Promise;

    /// Makes a region of zeros, of a whole number of 64 bytes, that a peer can reach once it is granted.
    fn expose(&mut self, len: usize) -> Result<Region, Error>;

    /// Makes memory of a device a region, whose peers map it by its driver ([`Grant::device`]): that alone
    /// can be done with it.
    fn expose_device(&mut self, memory: &Arc<DeviceMemory>) -> Result<RegionId, Error> {
        let _ = memory;
        Err(Error::Unsupported(NO_DEVICES.into()))
    }

    /// Takes a region back. Peers' operations on it fail from now on; where it is mapped by a peer, that peer
    /// keeps memory which this process no longer uses.
    fn withdraw(&mut self, region: RegionId) -> Result<(), Error>;

    /// A peer's region is not needed any more.
    fn forget(&mut self, remote: RemoteId);

    /// Sends a control message of [`CONTROL_MOST`] bytes at most, and grants regions to its receiver. It is
    /// queued if it cannot leave now.
    fn send(&mut self, to: Rank, bytes: &[u8], grants: &[RegionId]) -> Result<(), Error>;

    /// Makes progress, and adds what has happened to `events`. It does not wait.
    fn progress(&mut self, events: &mut Vec<Event>) -> Result<(), Error>;

    /// Whether a thread of this library's may make progress while the program is not in a call, as a lender
    /// needs whose peers' operations take its progress; why not.
    fn allows_thread(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Leaves, when what was put is there, or at that time, and peers see [`Event::Gone`].
    /// [`Error::TimedOut`]: some of it may be lost.
    fn close(&mut self, until: Instant) -> Result<(), Error>;
}

/// One-sided operations on regions of peers.
pub trait Rma {
    /// Starts a put. [`Error::Again`]: make progress and call again; nothing was started.
    fn put(&mut self, put: &Put) -> Result<(), Error>;

    /// Puts a few bytes, [`Promise::inject`] at most, that may be reused at once; there is no event. It is
    /// behind all earlier puts to this peer where [`Promise::between`], and keeps [`Promise::within`].
    /// [`Error::Again`] as above.
    fn put_bytes(
        &mut self,
        to: Rank,
        remote: (RemoteId, usize),
        bytes: &[u8],
        notify: Option<u32>,
    ) -> Result<(), Error>;

    /// Starts a get. [`Error::Again`] as above.
    fn get(&mut self, get: &Get) -> Result<(), Error>;

    /// Adds to a word (8 bytes, aligned) of a peer's region, and fetches what was there; 0 to read it alone.
    /// Ends with [`Event::Fetched`]. Only where [`Promise::fetch`]. [`Error::Again`] as above.
    fn fetch_add(
        &mut self,
        peer: Rank,
        remote: (RemoteId, usize),
        add: u64,
        token: Token,
    ) -> Result<(), Error>;

    /// Does an atomic operation with an aligned word of a peer's region, now and by this process's processor;
    /// what the word was. Only where the peer does not have to make progress ([`Promise::peer_progress`]).
    fn atomic(&mut self, peer: Rank, remote: (RemoteId, usize), atomic: &Atomic) -> Result<u64, Error> {
        let _ = (peer, remote, atomic);
        Err(Error::Unsupported("the peer has to do it".into()))
    }
}

/// How a thread sleeps until something may have happened.
pub trait Wakeup {
    /// A descriptor that is readable once something may have happened, after [`Wakeup::arm`] has said yes.
    fn descriptor(&self) -> Option<RawFd>;

    /// Whether a thread may sleep on the descriptor now; no: call [`Backend::progress`] first.
    fn arm(&mut self) -> bool;

    /// Makes the descriptor of an armed peer readable.
    fn wake(&mut self, peer: Rank) -> Result<(), Error>;
}
