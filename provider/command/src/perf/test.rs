//! The tests there are.

use libfabric_sys as sys;
use serde::{Deserialize, Serialize};

use crate::fabric::AtomicKind;

/// Most operations of a window.
pub const WINDOW: usize = 64;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    Lat,
    MsgLat,
    Bw,
    Rate,
    RmaWriteLat,
    PutLat,
    RmaWrite,
    RmaReadLat,
    RmaRead,
    Atomic,
    FetchAtomic,
    CompareAtomic,
    Stream,
    Window,
    Incast,
    Ring,
    Exchange,
    Storm,
    CacheLine,
    Memcpy,
    Readv,
}

/// How a result is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Unit {
    /// Microseconds; lower is better.
    #[serde(rename = "us")]
    Micros,
    /// 10^6 bytes a second; higher is better.
    #[serde(rename = "MB/s")]
    Megabytes,
    /// 10^6 messages a second; higher is better.
    #[serde(rename = "Mmsg/s")]
    Megamessages,
}

impl Unit {
    pub fn name(self) -> &'static str {
        match self {
            Unit::Micros => "µs",
            Unit::Megabytes => "MB/s",
            Unit::Megamessages => "million/s",
        }
    }

    pub fn better(self) -> &'static str {
        match self {
            Unit::Micros => "lower is better",
            Unit::Megabytes | Unit::Megamessages => "higher is better",
        }
    }

    /// How many times as fast `a` is as `b`; both are above 0.
    pub fn speed(self, a: f64, b: f64) -> f64 {
        match self {
            Unit::Micros => b / a,
            Unit::Megabytes | Unit::Megamessages => a / b,
        }
    }
}

/// How a test goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Both sides in turn.
    PingPong,
    /// Windows of messages, each answered by a short one.
    Stream,
    /// Operations of one side, one at a time.
    Single,
    /// Windows of operations of one side.
    Window,
    /// A pattern among any number of processes.
    Crowd,
    /// No provider is involved.
    Floor,
}

use Test::*;

impl Test {
    pub const ALL: [Test; 18] = [
        Lat,
        MsgLat,
        Bw,
        Rate,
        RmaWriteLat,
        PutLat,
        RmaWrite,
        RmaReadLat,
        RmaRead,
        Atomic,
        FetchAtomic,
        CompareAtomic,
        Stream,
        Window,
        Incast,
        Ring,
        Exchange,
        Storm,
    ];
    pub const FLOORS: [Test; 3] = [CacheLine, Memcpy, Readv];
    pub fn name(self) -> &'static str {
        match self {
            Lat => "lat",
            MsgLat => "msg-lat",
            Bw => "bw",
            Rate => "rate",
            RmaWriteLat => "rma-write-lat",
            PutLat => "put-lat",
            RmaWrite => "rma-write",
            RmaReadLat => "rma-read-lat",
            RmaRead => "rma-read",
            Atomic => "atomic",
            FetchAtomic => "fetch-atomic",
            CompareAtomic => "compare-atomic",
            Stream => "stream",
            Window => "window",
            Incast => "incast",
            Ring => "ring",
            Exchange => "exchange",
            Storm => "storm",
            CacheLine => "cache-line",
            Memcpy => "memcpy",
            Readv => "process_vm_readv",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Lat => "tagged ping-pong, half a round trip",
            MsgLat => "untagged ping-pong, half a round trip",
            Bw => "tagged messages one way, window of 64",
            Rate => "tagged messages of 8 bytes one way, window of 64",
            RmaWriteLat => "ping-pong of writes with remote completion, half a round trip",
            PutLat => "one write until its completion",
            RmaWrite => "writes, window of 64",
            RmaReadLat => "one read until its completion",
            RmaRead => "reads, window of 64",
            Atomic => "atomic add of 64 bits until its completion",
            FetchAtomic => "atomic fetch-and-add of 64 bits until its completion",
            CompareAtomic => "atomic compare-and-swap of 64 bits until its completion",
            Stream => "one way, one message at a time, each received by itself; per message",
            Window => "one way, 64 messages posted and 64 receives; per message",
            Incast => "all to one process, which receives from any source; per message",
            Ring => "each to its right neighbour and from its left one; per step",
            Exchange => "each to and from both neighbours at once; per step",
            Storm => "each to all others, then received from any source; per step",
            CacheLine => "one cache line between the two cores, half a round trip",
            Memcpy => "memcpy within one process",
            Readv => "process_vm_readv from the other process",
        }
    }

    pub fn parse(text: &str) -> Option<Test> {
        Self::ALL.into_iter().find(|test| test.name() == text)
    }

    pub fn is_floor(self) -> bool {
        Self::FLOORS.contains(&self)
    }

    /// The only size, for a test that has just one.
    pub fn only_size(self) -> Option<usize> {
        match self {
            Rate | Atomic | FetchAtomic | CompareAtomic | CacheLine => Some(8),
            _ => None,
        }
    }

    pub fn unit(self) -> Unit {
        match self {
            Bw | RmaWrite | RmaRead => Unit::Megabytes,
            Rate => Unit::Megamessages,
            _ => Unit::Micros,
        }
    }

    pub fn shape(self) -> Shape {
        match self {
            Lat | MsgLat | RmaWriteLat => Shape::PingPong,
            Bw | Rate => Shape::Stream,
            PutLat | RmaReadLat | Atomic | FetchAtomic | CompareAtomic => Shape::Single,
            RmaWrite | RmaRead => Shape::Window,
            Stream | Window | Incast | Ring | Exchange | Storm => Shape::Crowd,
            CacheLine | Memcpy | Readv => Shape::Floor,
        }
    }

    pub fn atomic(self) -> Option<AtomicKind> {
        match self {
            Atomic => Some(AtomicKind::Plain),
            FetchAtomic => Some(AtomicKind::Fetch),
            CompareAtomic => Some(AtomicKind::Compare),
            _ => None,
        }
    }

    /// What the provider has to be capable of.
    pub fn caps(self) -> u64 {
        match self {
            Lat | Bw | Rate => sys::FI_TAGGED,
            MsgLat => sys::FI_MSG,
            Stream | Window | Incast | Ring | Exchange | Storm => sys::FI_TAGGED | sys::FI_DIRECTED_RECV,
            RmaWriteLat | PutLat | RmaWrite | RmaReadLat | RmaRead => sys::FI_MSG | sys::FI_RMA,
            Atomic | FetchAtomic | CompareAtomic => sys::FI_MSG | sys::FI_ATOMIC,
            CacheLine | Memcpy | Readv => 0,
        }
    }

    /// Operations in flight at a size: 64, but at most 64 MiB.
    pub fn window(self, size: usize) -> usize {
        match self.shape() {
            Shape::Stream | Shape::Window => ((64 << 20) / size.max(1)).clamp(4, WINDOW),
            _ => 1,
        }
    }

    /// Messages of one step that the time of a step is divided by, among so many processes.
    pub fn per_step(self, procs: usize) -> usize {
        match self {
            Window => WINDOW,
            Incast => procs - 1,
            _ => 1,
        }
    }

    /// The result in [`Test::unit`] of `ops` operations.
    pub fn value(self, size: usize, ops: u64, seconds: f64) -> f64 {
        let seconds = seconds.max(1e-9);
        match self.unit() {
            Unit::Micros => seconds * 1e6 / ops.max(1) as f64,
            Unit::Megabytes => ops as f64 * size as f64 / seconds / 1e6,
            Unit::Megamessages => ops as f64 / seconds / 1e6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_again() {
        for test in Test::ALL {
            assert_eq!(Test::parse(test.name()), Some(test));
        }
        assert_eq!(Test::parse("memcpy"), None);
        assert_eq!(Test::parse(""), None);
    }

    #[test]
    fn windows_keep_within_memory() {
        assert_eq!(Test::Bw.window(8), 64);
        assert_eq!(Test::Bw.window(1 << 20), 64);
        assert_eq!(Test::RmaRead.window(4 << 20), 16);
        assert_eq!(Test::Bw.window(1 << 30), 4);
        assert_eq!(Test::Lat.window(8), 1);
    }

    #[test]
    fn values() {
        assert_eq!(Test::Lat.value(8, 1000, 0.001), 1.0);
        assert_eq!(Test::Bw.value(1000, 1000, 1.0), 1.0);
        assert_eq!(Test::Rate.value(8, 2_000_000, 1.0), 2.0);
    }
}
