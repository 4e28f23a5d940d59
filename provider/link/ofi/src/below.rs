//! What is asked of a provider below.

use std::os::fd::RawFd;

use hmem::{Kind, Span};

/// A peer, as the provider below knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dest(pub u64);

/// A buffer in which a message has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer(pub u32);

/// Memory that peers may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// What it is called here.
    pub number: u64,
    /// Its key.
    pub key: u64,
    /// What its first byte is called by those that read it.
    pub base: u64,
}

/// Longest address of an endpoint by which memory is lent.
pub const LENDER: usize = 39;

/// Why a message was not sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotSent {
    /// There is no room now.
    Busy,
    /// Its bytes could not be read.
    Fault,
    /// The provider says no.
    Error(String),
}

/// What a provider reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Did {
    /// A message of so many bytes came.
    Came(Buffer, usize),
    /// A message was not delivered, by what [`Message::who`] was.
    Failed(u64, String),
    /// A read is over: which, and whether its bytes are there.
    Read(u64, bool),
    /// Nothing can be had of it any more.
    Dead(String),
}

/// A message: three parts, one behind the other.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// What [`Did::Failed`] has if it fails.
    pub who: u64,
    /// Whether [`Below::keeps`] counts it.
    pub is_frame: bool,
    /// The first part.
    pub front: &'a [u8],
    /// The second one.
    pub middle: &'a [u8],
    /// Of this, `len` bytes from `off` on.
    pub body: &'a [Span],
    /// See `body`.
    pub off: usize,
    /// See `body`.
    pub len: usize,
}

impl Message<'_> {
    /// Bytes of all parts.
    pub fn total(&self) -> usize {
        self.front.len() + self.middle.len() + self.len
    }

    /// Copies all of it to the front of `into`; whether it could be read.
    pub fn copy_to(&self, into: &mut [u8]) -> bool {
        let (front, rest) = into.split_at_mut(self.front.len());
        let (middle, body) = rest.split_at_mut(self.middle.len());
        front.copy_from_slice(self.front);
        middle.copy_from_slice(self.middle);
        self.len == 0 || hmem::read(self.body, self.off, &mut body[..self.len]) == self.len
    }
}

/// What memory is registered for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// Peers read it.
    Lent,
    /// What is read is put there.
    ReadInto,
}

/// An endpoint of datagrams that arrive, but not in order: one of a provider's.
pub trait Below: Send {
    /// The provider's name.
    fn name(&self) -> &str;

    /// What else there is to say of it, for people.
    fn detail(&self) -> &str {
        ""
    }

    /// Which protocol it speaks, and what sort of addresses it has: both ends have to agree.
    fn dialect(&self) -> (u32, u32);

    /// The endpoint's address.
    fn address(&self) -> &[u8];

    /// Longest message.
    fn most(&self) -> usize;

    /// How many messages of one peer it has room for, all in all.
    fn window(&self) -> u32;

    /// Makes a peer known.
    fn meet(&mut self, address: &[u8]) -> Result<Dest, String>;

    /// It is not needed any more.
    fn part(&mut self, dest: Dest);

    /// Sends a message. When this returns `Ok` all bytes have been copied.
    fn send(&mut self, to: Dest, message: &Message<'_>) -> Result<(), NotSent>;

    /// Whether a frame was taken that has this [`Message::who`], and whose end the provider has not reported:
    /// calls may be needed for it to leave.
    fn keeps(&self, who: u64) -> bool;

    /// Whether memory can be read without its owner, and how much in one go at most.
    fn reads(&self) -> Option<usize> {
        None
    }

    /// Whether memory of this kind may be used so, as far as is known: of a device it may be refused
    /// nevertheless.
    fn reaches(&self, kind: Kind, _usage: Usage) -> bool {
        kind == Kind::System
    }

    /// From now on of the host's alone.
    fn stage_devices(&mut self) {}

    /// Lets peers read memory, by the endpoint of the address [`Below::lender`]; `None` if that cannot be.
    fn lend(&mut self, _span: Span) -> Option<Lease> {
        None
    }

    /// They read it no more.
    fn end_lease(&mut self, _number: u64) {}

    /// Where memory is read that was lent: an address of at most [`LENDER`] bytes, another one after
    /// [`Below::stop_lending`].
    fn lender(&self) -> &[u8] {
        self.address()
    }

    /// Ends all that is lent, and all reads of it. Whether none accesses memory any more; if not, this is to
    /// be called again.
    fn stop_lending(&mut self) -> bool {
        true
    }

    /// Reads `into.len()` bytes of memory that a peer has lent, from this address on. [`Did::Read`] reports
    /// its end.
    fn read(&mut self, _who: u64, _from: Dest, _lent: (u64, u64), _into: Span) -> Result<(), NotSent> {
        Err(NotSent::Error("it has no reads".into()))
    }

    /// Ends all reads, which are not reported any more. Whether none accesses memory any more; if not, they
    /// are reported.
    fn stop_reads(&mut self) -> bool {
        true
    }

    /// What has happened next.
    fn poll(&mut self) -> Option<Did>;

    /// What has happened next, by few calls of the provider: `None` does not mean that nothing more has.
    fn poll_soon(&mut self) -> Option<Did> {
        self.poll()
    }

    /// What has happened next, of what was taken from the provider already, which [`Below::poll`] returns
    /// first: without a call of the provider.
    fn poll_taken(&mut self) -> Option<Did> {
        None
    }

    /// The bytes of a buffer that a message came in, which was not given back.
    fn bytes(&self, buffer: Buffer) -> &[u8];

    /// The buffer serves another message.
    fn give_back(&mut self, buffer: Buffer);

    /// Whether it is safe to sleep on [`Below::wait_fd`].
    fn try_wait(&mut self) -> bool;

    /// What is readable when there is something; `None`: it has to be polled.
    fn wait_fd(&self) -> Option<RawFd>;

    /// What is readable when there is something to do for peers that read, the same one all the time; `None`:
    /// there never is.
    fn lender_fd(&self) -> Option<RawFd> {
        None
    }

    /// Whether peers may be reading for whom something has to be done that no descriptor reports.
    fn is_read_unseen(&self) -> bool {
        false
    }

    /// [`Below::lender_fd`] is not to be readable any more.
    fn unwatch_lender(&mut self) {}
}
