//! What the program's objects are, to the device.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rdma_sys as ibv;

use crate::packet::{Address, Kind};
use crate::pinned::Pinned;

/// A piece of memory that a request names.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub addr: u64,
    pub len: u32,
    pub key: u32,
}

/// A client of the kernel's for memory of other devices: where bytes are, and of which allocation.
#[derive(Clone, Copy, Debug)]
pub struct PeerMemory {
    pub find: extern "C" fn(u64, usize) -> *mut c_void,
    pub id: extern "C" fn(u64) -> u64,
}

/// Memory of a device that no processor maps: what copies it, and of which allocation an address is.
#[derive(Clone, Copy, Debug)]
pub struct DeviceMemory {
    pub copy: extern "C" fn(u64, u64, usize) -> bool,
    pub id: extern "C" fn(u64) -> u64,
}

/// A registration. Its key is in the table.
#[derive(Debug)]
pub struct Mr {
    pub pd: usize,
    pub iova: u64,
    pub len: u64,
    pub access: u32,
    /// On demand: the driver copies from and to where the page begins, whatever the address.
    pub is_page: bool,
    pub backing: Backing,
}

#[derive(Debug)]
pub enum Backing {
    /// Pages of the process, from this address on.
    Host(u64),
    /// The pages that were at this address.
    Pinned(u64, Pinned),
    /// Memory of another device, by its address: where it is, of which allocation, and what knows that.
    Peer { first: u64, at: u64, id: u64, of: PeerMemory },
    /// A dma-buf that cannot be mapped: its allocation, and what copies its bytes, by the address of requests.
    Device { first: u64, id: u64, of: DeviceMemory },
    /// A mapping of a dma-buf, which file it is, and where in the mapping the part begins.
    Dmabuf { map: usize, map_len: usize, skip: usize, inode: u64, revoked: bool },
}

/// A window. Its key in the table is the one that it has now.
#[derive(Debug)]
pub struct Window {
    pub raw: usize,
    pub pd: usize,
    pub bound: Option<Bound>,
}

/// What a window is bound to: of which queue pair, a part of which registration.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    pub qpn: u32,
    pub lkey: u32,
    pub addr: u64,
    pub len: u64,
    pub access: u32,
}

/// What a request does to a window.
#[derive(Clone, Copy, Debug)]
pub enum Local {
    Bind { window: usize, rkey: u32, to: Bound },
    Invalidate(u32),
}

/// A posted receive.
#[derive(Clone, Debug)]
pub struct Receive {
    pub id: u64,
    pub pieces: Vec<Piece>,
}

#[derive(Debug)]
pub struct Srq {
    pub raw: usize,
    pub pd: usize,
    pub max_wr: u32,
    pub max_sge: u32,
    pub limit: u32,
    pub posted: VecDeque<Receive>,
}

/// What a completion of a send request frees: of which queue pair, and up to which request.
pub type Frees = Option<(u32, u64)>;

#[derive(Debug)]
pub struct Cq {
    pub raw: usize,
    pub entries: usize,
    pub ready: VecDeque<(Plain, Frees)>,
    pub delayed: Vec<(Instant, Plain, Frees, bool)>,
    /// The channel, if it has one.
    pub channel: Option<u32>,
    pub armed: Option<Armed>,
    pub overrun: bool,
    /// Events taken by the program, and those acknowledged.
    pub events: (u32, u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    Any,
    Solicited,
}

/// A completion, as far as this device fills it in.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain {
    pub id: u64,
    pub status: u32,
    pub opcode: u32,
    pub len: u32,
    pub imm: Option<u32>,
    pub qpn: u32,
    pub from: u32,
}

#[derive(Debug)]
pub struct Channel {
    pub fd: OwnedFd,
    /// Queues, by number, that have an event.
    pub waiting: VecDeque<u32>,
    pub users: u32,
}

/// A send request, from its posting to its completion.
#[derive(Clone, Debug)]
pub struct Request {
    pub id: u64,
    pub index: u64,
    pub kind: Kind,
    pub signaled: bool,
    pub solicited: bool,
    pub fence: bool,
    /// The program has polled the completions of all that it has posted before.
    pub is_alone: bool,
    pub imm: Option<u32>,
    pub pieces: Vec<Piece>,
    pub inline: Option<Vec<u8>>,
    pub total: u32,
    pub remote: u64,
    pub rkey: u32,
    pub operands: [u64; 2],
    /// What it does to a window, until that is done.
    pub local: Option<Local>,
    /// What a test wants it to end with.
    pub planned: Option<u32>,
    pub sent: u32,
    pub answered: u32,
    pub done: bool,
}

/// What `ibv_modify_qp` sets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Path {
    pub peer: Address,
    pub peer_port: u8,
    pub qpn: u32,
    pub mtu: u32,
    pub access: u32,
    pub port: u8,
    pub rnr_timer: u8,
    pub rnr_retry: u8,
    pub retry: u8,
    pub timeout: u8,
    pub max_reads: (u8, u8),
}

/// The sending half.
#[derive(Debug, Default)]
pub struct Sending {
    pub requests: VecDeque<Request>,
    /// Posted in all, and freed by completions that the program has polled.
    pub posted: u64,
    pub freed: u64,
    /// The sequence number of the first request that is there, and of the next to be sent: a place in `requests`.
    pub psn: u32,
    pub next: usize,
    pub tries: u8,
    pub rnr_tries: u8,
    /// Nothing is sent before.
    pub paused: Option<Instant>,
    /// When the first request is taken for lost.
    pub deadline: Option<Instant>,
    /// Memory that a device which `repeats` still reads: of a long write that has completed last.
    pub again: Vec<Piece>,
}

/// The receiving half.
#[derive(Debug, Default)]
pub struct Receiving {
    pub posted: VecDeque<Receive>,
    pub psn: u32,
    /// How much of the message at `psn` has arrived, and the receive that it goes to.
    pub arrived: u32,
    pub into: Option<Receive>,
    /// What the last atomics returned, by their numbers.
    pub atomics: VecDeque<(u32, u64)>,
    /// Reads that are being answered, and answers behind them.
    pub answers: VecDeque<Answer>,
    /// The key of the newest request, if that is a read: a peer which `repeats` sends it once more.
    pub again: Option<u32>,
}

#[derive(Debug)]
pub enum Answer {
    Read { psn: u32, remote: u64, rkey: u32, total: u32, sent: u32 },
    Packet(crate::packet::Packet),
}

#[derive(Debug)]
pub struct Qp {
    pub raw: usize,
    pub pd: usize,
    pub device: usize,
    pub cap: ibv::ibv_qp_cap,
    pub signal_all: bool,
    pub send_cq: u32,
    pub recv_cq: u32,
    pub srq: Option<u32>,
    pub state: u32,
    pub path: Path,
    pub sending: Sending,
    pub receiving: Receiving,
    /// When its newest completion is due: later ones are not before.
    pub due: Option<Instant>,
}
