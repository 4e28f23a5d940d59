//! What a provider says when it opens a domain, an endpoint or a registration.

use hmem::Span;

use crate::types::*;

/// How a domain is tuned; fixed when it is opened.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Registrations are addressed by virtual address (else by offset).
    pub virt_addr: bool,
    /// RMA and atomics to one peer take effect in the order they were posted.
    pub rma_order: bool,
}

/// Counters of an endpoint, by what they count.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Cntrs {
    /// Sends.
    pub send: Option<CntrId>,
    /// Receives.
    pub recv: Option<CntrId>,
    /// RMA reads, fetching atomics.
    pub read: Option<CntrId>,
    /// RMA writes, atomics.
    pub write: Option<CntrId>,
    /// Reads by peers.
    pub remote_read: Option<CntrId>,
    /// Writes by peers.
    pub remote_write: Option<CntrId>,
}

impl Cntrs {
    pub(crate) fn all(&self) -> [Option<CntrId>; 6] {
        [self.send, self.recv, self.read, self.write, self.remote_read, self.remote_write]
    }
}

/// What an endpoint is made of.
#[derive(Debug)]
pub struct EpConfig<L> {
    /// Its way to peers.
    pub link: L,
    /// Their addresses.
    pub av: AvId,
    /// A shared receive context; `None`: its own.
    pub rx: Option<RxId>,
    /// Where sends, RMA and atomics complete.
    pub tx_cq: Option<CqId>,
    /// Where receives and remote CQ data complete.
    pub rx_cq: Option<CqId>,
    /// What else counts.
    pub cntrs: Cntrs,
}

/// A registration.
#[derive(Clone, Copy, Debug)]
pub struct Reg<'a> {
    /// The memory.
    pub iov: &'a [Span],
    /// What peers may do.
    pub access: Access,
    /// The key requested; `None`: the engine chooses one.
    pub key: Option<u64>,
}

/// A registration's name here: unlike its key it is never ambiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MrId(pub(crate) u64);
