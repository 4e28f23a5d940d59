//! What is asked of an adapter.

use std::fmt;

use hmem::registry::AdapterWrites;
use hmem::share::has_dmabuf;
use hmem::{Caps, Kind, Span};

/// A way to register memory, from the best one on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Way {
    /// As the dma-buf that the program has named.
    Own = 0,
    /// As a dma-buf that is sure to be reachable over PCIe.
    DmabufPcie = 1,
    /// As a dma-buf.
    Dmabuf = 2,
    /// As the client that the program has registered for it says (dma_map): a dma-buf, or an address.
    Client = 3,
    /// By its address, which a peer-memory client of the kernel knows.
    PeerMemory = 4,
    /// By its address; the adapter faults pages in, and none is pinned.
    OnDemand = 5,
    /// By its address, as memory of the process.
    Plain = 6,
}

impl Way {
    /// How many there are.
    pub const COUNT: usize = 7;
    /// All of them, in the order in which they are tried.
    pub const ALL: [Way; Way::COUNT] =
        [Way::Own, Way::DmabufPcie, Way::Dmabuf, Way::Client, Way::PeerMemory, Way::OnDemand, Way::Plain];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Way::Own => "the program's dma-buf",
            Way::DmabufPcie => "dma-buf over PCIe",
            Way::Dmabuf => "dma-buf",
            Way::Client => "its client's mapping",
            Way::PeerMemory => "peer memory",
            Way::OnDemand => "on demand",
            Way::Plain => "address",
        }
    }

    /// Whether peers access it in a domain of each one's alone: no memory window is bound to a dma-buf, nor
    /// to what ends from one moment to the next.
    pub fn is_apart(self) -> bool {
        [Way::Own, Way::DmabufPcie, Way::Dmabuf, Way::Client].contains(&self)
    }

    /// Whether this way is one for such memory at all. The host's is registered by its address alone, unless
    /// the program has named a dma-buf that it is of: that is memory which no adapter faults in. A client's
    /// is registered as the client says alone, which may take it back.
    pub fn is_for(self, span: &Span) -> bool {
        if (self == Way::Client) != (span.kind() == Kind::Client) {
            return false;
        }
        match self {
            Way::Client => true,
            Way::Own => has_dmabuf(*span),
            Way::DmabufPcie | Way::Dmabuf => span.can(Caps::DMABUF),
            Way::PeerMemory => span.can(Caps::DEVICE),
            Way::OnDemand => span.kind() == Kind::System && span.can(Caps::CPU) && !has_dmabuf(*span),
            Way::Plain => span.can(Caps::CPU),
        }
    }
}

/// What a registration is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// The adapter writes it for this side. It may always read it.
    pub local_write: bool,
    /// Peers read it.
    pub remote_read: bool,
    /// Peers write it.
    pub remote_write: bool,
    /// The domain of the adapter's that it belongs to, and requests that name it: 0 is the one that peers
    /// share, and another one is a peer's alone.
    pub domain: u32,
}

impl Uses {
    /// Whether what is registered for these serves for `other`.
    pub fn include(self, other: Uses) -> bool {
        self.domain == other.domain
            && (self.local_write || !other.local_write)
            && (self.remote_read || !other.remote_read)
            && (self.remote_write || !other.remote_write)
    }

    /// Whether peers access it.
    pub fn is_for_peers(self) -> bool {
        self.remote_read || self.remote_write
    }

    /// Whether the adapter writes it.
    pub fn writes(self) -> bool {
        self.local_write || self.remote_write
    }
}

/// Why memory was not registered by a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The way; `None`: no way was tried.
    pub way: Option<Way>,
    /// The call, or the path, that refused.
    pub call: &'static str,
    /// Its errno.
    pub errno: i32,
}

impl Refusal {
    /// Whether the call would refuse any other memory of that kind as well.
    pub fn is_for_good(&self) -> bool {
        [libc::ENOSYS, libc::EOPNOTSUPP, libc::ENODEV].contains(&self.errno)
    }

    /// Whether there was no room, which may be otherwise later.
    pub fn is_for_now(&self) -> bool {
        is_for_now(self.errno) && !self.is_of_client()
    }

    /// Whether a client has refused its memory, and not the device: no request's end gives it room.
    pub fn is_of_client(&self) -> bool {
        self.way == Some(Way::Client) && !self.call.starts_with("ibv_")
    }
}

/// Whether this errno says that there was no room, which may be otherwise later.
pub fn is_for_now(errno: i32) -> bool {
    [libc::EAGAIN, libc::ENOMEM, libc::ENOSPC].contains(&errno)
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = std::io::Error::from_raw_os_error(self.errno);
        self.way.map_or(Ok(()), |way| write!(f, "{}: ", way.name()))?;
        write!(f, "{}: {text}", self.call)
    }
}

/// An adapter.
pub trait Device {
    /// What it gives for a registration.
    type Key;

    /// When the owner of this memory sees what the adapter has written there. Of memory that is none for an
    /// adapter, whatever other memory of its kind is, the call that says so, and an errno.
    fn sees(&mut self, span: Span) -> Result<AdapterWrites, (&'static str, i32)>;

    /// Has the owner see what the adapter has written, where that is [`AdapterWrites::Flushed`].
    fn flush(&mut self, span: Span) -> Result<(), (&'static str, i32)>;

    /// Registers memory by this way and no other: of a refusal the call and its errno. On demand the adapter
    /// has accessed it when this returns, since a page that it cannot fault in is no refusal of the call that
    /// registers.
    fn register(&mut self, way: Way, span: Span, uses: Uses) -> Result<Self::Key, (&'static str, i32)>;

    /// Whether what it was given for is registered still: a client may have taken it back.
    fn is_there(&self, key: &Self::Key) -> bool {
        let _ = key;
        true
    }

    /// No request that names it is under way any more.
    fn note_idle(&mut self, key: &Self::Key) {
        let _ = key;
    }

    /// Ends a registration: when this returns, the adapter accesses its memory no more. An error says that
    /// it may go on to.
    fn deregister(&mut self, key: Self::Key) -> Result<(), (&'static str, i32)>;
}
