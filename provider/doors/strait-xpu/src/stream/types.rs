//! Structures and constants.

use libc::{c_char, c_int, c_void};
use stream::{Abort, Endpoint, List, Page};

/// strait_stream_options.flags: messages go through host memory even if a device's can be mapped.
pub const STRAIT_STREAM_HOST_MEMORY: u32 = 1;

/// strait_stream_options.flags: an agent carries messages even if the peer's memory can be mapped.
pub const STRAIT_STREAM_BY_AGENT: u32 = 2;

/// strait_stream_options.flags: memory operations of streams wait, which take no multiprocessor, and no
/// kernel does. Of either side it holds for both.
pub const STRAIT_STREAM_MEMORY_OPERATIONS: u32 = 4;

/// strait_stream_path.path: through memory of the receiver's device, which the sender maps.
pub const STRAIT_STREAM_DEVICE: u32 = 1;
/// strait_stream_path.path: through host memory that both map.
pub const STRAIT_STREAM_HOST: u32 = 2;
/// strait_stream_path.path: through host memory of each process, which an agent of each copies.
pub const STRAIT_STREAM_AGENT: u32 = 3;

/// strait_stream_transfer.signal: none.
pub const STRAIT_STREAM_NO_SIGNAL: u32 = 0xffffffff;

/// strait_stream_failure.operation: the endpoint as a whole.
pub const STRAIT_STREAM_OP_NONE: u32 = 0;
/// strait_stream_failure.operation: a send, which waited for the credit of its slot.
pub const STRAIT_STREAM_OP_SEND: u32 = 1;
/// strait_stream_failure.operation: a receive.
pub const STRAIT_STREAM_OP_RECEIVE: u32 = 2;
/// strait_stream_failure.operation: a put, which waited for the credit of its signal, or for its agent.
pub const STRAIT_STREAM_OP_PUT: u32 = 3;
/// strait_stream_failure.operation: a wait for a signal.
pub const STRAIT_STREAM_OP_WAIT: u32 = 4;
/// strait_stream_failure.operation: a get, which waited for its agent.
pub const STRAIT_STREAM_OP_GET: u32 = 5;

/// The condition of a wait for a word: its difference to the value, as a signed number, is not negative.
pub const STRAIT_STREAM_GEQ: u32 = 0;
/// The condition of a wait for a word: it is the value.
pub const STRAIT_STREAM_EQ: u32 = 1;
/// The condition of a wait for a word: it has a bit of the value.
pub const STRAIT_STREAM_AND: u32 = 2;
/// The condition of a wait for a word: there is a bit that neither it nor the value has.
pub const STRAIT_STREAM_NOR: u32 = 3;
/// With a condition: what adapters have written to the device's memory before the word was raised is visible
/// behind the wait.
pub const STRAIT_STREAM_FLUSH: u32 = 8;

/// One side of a connection between two processes of a host.
#[derive(Debug)]
#[allow(non_camel_case_types, reason = "C's name")]
pub struct strait_stream {
    pub(super) endpoint: Endpoint,
    /// Used by any thread, also while another one uses the endpoint.
    pub(super) abort: Abort,
}

/// A list of operations, which a stream, a graph or the CPU executes any number of times.
#[derive(Debug)]
#[allow(non_camel_case_types, reason = "C's name")]
pub struct strait_stream_list {
    pub(super) list: List,
}

/// Memory for words that streams access.
#[derive(Debug)]
#[allow(non_camel_case_types, reason = "C's name")]
pub struct strait_stream_words {
    pub(super) _page: Page,
}

/// How an endpoint is opened. Both sides have the same slots, slot_bytes and signals. 0: the default.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "C's name")]
pub struct strait_stream_options {
    /// Of this structure.
    pub size: usize,
    /// Messages that may be on the way in each direction; 32.
    pub slots: u32,
    /// Bytes of a slot, a multiple of 16; 65536. A longer message takes several slots.
    pub slot_bytes: u32,
    /// Signals of puts; 16.
    pub signals: u32,
    /// STRAIT_STREAM_HOST_MEMORY, STRAIT_STREAM_BY_AGENT, STRAIT_STREAM_MEMORY_OPERATIONS.
    pub flags: u32,
    /// How long a stream waits at most for one operation, in nanoseconds; 30 seconds.
    pub timeout_ns: u64,
    /// A secret that both processes have, by which a peer of another host is reached by TCP; NULL: none is.
    pub key: *const c_char,
}

/// Which way messages go.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "C's name")]
pub struct strait_stream_path {
    /// Of this structure.
    pub size: usize,
    /// STRAIT_STREAM_DEVICE, STRAIT_STREAM_HOST, STRAIT_STREAM_AGENT.
    pub path: u32,
    /// 0.
    pub unused: u32,
    /// Why, as a string.
    pub why: [c_char; 240],
    /// How often the agent has polled; 0: there is none.
    pub polls: u64,
}

/// What a put or a get moves.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "C's name")]
pub struct strait_stream_transfer {
    /// Of this structure.
    pub size: usize,
    /// Memory of this process.
    pub local: *mut c_void,
    /// Bytes.
    pub length: usize,
    /// Bytes from the first one of the peer's registration.
    pub offset: u64,
    /// The number of the peer's registration.
    pub region: u32,
    /// The signal that a put raises behind the data, or STRAIT_STREAM_NO_SIGNAL.
    pub signal: u32,
}

/// What ended an endpoint.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "C's name")]
pub struct strait_stream_failure {
    /// Of this structure.
    pub size: usize,
    /// 0: nothing did. ETIMEDOUT, ECONNRESET (the peer ended), EPIPE (the peer closed), EMSGSIZE, ECANCELED,
    /// or what a call of the driver's failed with.
    pub code: c_int,
    /// STRAIT_STREAM_OP_SEND and others.
    pub operation: u32,
    /// The slot or signal that it waited for.
    pub index: u32,
    /// The peer's process.
    pub peer: u32,
    /// 1: it failed in the peer.
    pub by_peer: u32,
    /// 0.
    pub unused: u32,
}
