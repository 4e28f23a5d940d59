//! What is staged at an endpoint: see `staged`.

use std::collections::VecDeque;

use hmem::Span;
use hmem::stage::{Pool, Transfer};
use link_api::{Frame, PeerId};

use crate::endpoint::device::bounces::Bounces;
use crate::types::EpId;

/// Frames one stream sends in a row, so that no other waits long.
pub(in crate::endpoint) const PARTS_PER_CALL: usize = 8;
/// Bytes of a buffer.
pub(in crate::endpoint) const BUFFER: usize = 256 << 10;
/// Buffers of an endpoint for what it sends, and for what it receives. Of the latter half may be taken when a
/// frame comes, which may need several.
const SENDING: usize = 8;
const RECEIVING: usize = 16;
/// Buffers of a stream. One of many streams has one.
const AHEAD: usize = 2;

/// Polls for which the receiver is waited for: a few microseconds, a third of what the copy takes that its
/// answer saves.
pub(in crate::endpoint) const PATIENCE: u32 = 256;

/// What is staged at one endpoint.
#[derive(Debug)]
pub(in crate::endpoint) struct Staging {
    sending: Pool,
    pub(in crate::endpoint) receiving: Pool,
    streams: Vec<Stream>,
    pub(in crate::endpoint) landings: Vec<Landing>,
    followings: Vec<Following>,
    pub(in crate::endpoint) bounces: Bounces,
}

/// A stream of frames that is read from a device.
#[derive(Debug)]
pub(in crate::endpoint) struct Stream {
    name: u64,
    pub(in crate::endpoint) chunks: VecDeque<Chunk>,
}

/// Bytes of a stream on their way to the host, or there and to be sent.
#[derive(Debug)]
pub(in crate::endpoint) struct Chunk {
    /// Which ones.
    pub(in crate::endpoint) off: usize,
    pub(in crate::endpoint) len: usize,
    pub(in crate::endpoint) transfer: Transfer,
}

/// Bytes of a frame on their way to a device.
#[derive(Debug)]
pub(in crate::endpoint) struct Landing {
    /// The request that they are of.
    pub(in crate::endpoint) name: u64,
    pub(in crate::endpoint) transfer: Transfer,
}

/// Bytes of an injected message on their way to the host.
#[derive(Debug)]
pub(in crate::endpoint) struct Following {
    name: u64,
    pub(in crate::endpoint) transfer: Transfer,
    pub(in crate::endpoint) from: usize,
    pub(in crate::endpoint) len: usize,
    /// The peer had requested them, under this name; or has since, and gets them anyway.
    pub(in crate::endpoint) asked: Option<u64>,
    pub(in crate::endpoint) asked_late: Option<u64>,
}

impl Staging {
    pub(in crate::endpoint) fn new() -> Staging {
        let (sending, receiving) = (Pool::new(SENDING, BUFFER), Pool::new(RECEIVING, BUFFER));
        let (streams, landings, followings) = (Vec::new(), Vec::new(), Vec::new());
        Staging { sending, receiving, streams, landings, followings, bounces: Bounces::new() }
    }

    /// Whether there is no room for another frame.
    #[inline(always)]
    pub(in crate::endpoint) fn is_full(&self) -> bool {
        self.landings.len() >= RECEIVING / 2
    }

    /// Whether frames of this request are on their way to a device.
    pub(in crate::endpoint) fn is_landing(&self, name: u64) -> bool {
        self.landings.iter().any(|l| l.name == name)
    }

    /// Waits until all that is on its way to a device for this request is there; `false` if some of it cannot
    /// be put there.
    #[cold]
    pub(in crate::endpoint) fn wait_for_landings(&mut self, name: u64) -> bool {
        self.landings.iter_mut().filter(|l| l.name == name).all(|landing| {
            loop {
                match landing.transfer.poll() {
                    Some(ok) => return ok,
                    None => std::thread::yield_now(),
                }
            }
        })
    }

    /// Ends what is under way for a request: when this returns its memory is not accessed any more.
    pub(in crate::endpoint) fn cancel(&mut self, name: u64) {
        self.streams.retain(|s| s.name != name);
        self.landings.retain(|l| l.name != name);
        self.followings.retain(|f| f.name != name);
        self.bounces.cancel(name);
    }

    /// Ends what is under way for all requests.
    pub(in crate::endpoint) fn cancel_all(&mut self) {
        self.streams.clear();
        self.landings.clear();
        self.followings.clear();
        self.bounces.cancel_all();
    }

    /// Starts to copy bytes of an injected message to the host; `false` if there is no buffer for them.
    pub(in crate::endpoint) fn let_follow(
        &mut self,
        name: u64,
        asked: Option<u64>,
        iov: &[Span],
        from: usize,
        len: usize,
    ) -> bool {
        let Some(buffer) = Some(()).filter(|()| len <= BUFFER).and_then(|()| self.sending.take()) else {
            return false;
        };
        let transfer = buffer.read(iov, from, len);
        self.followings.push(Following { name, transfer, from, len, asked, asked_late: None });
        true
    }

    /// Bytes of this message on their way to the host.
    pub(in crate::endpoint) fn following(&mut self, name: u64) -> Option<&mut Following> {
        self.followings.iter_mut().find(|f| f.name == name)
    }

    pub(in crate::endpoint) fn take_following(&mut self, name: u64) -> Option<Following> {
        let at = self.followings.iter().position(|f| f.name == name)?;
        Some(self.followings.swap_remove(at))
    }

    /// The stream of this name, whose next byte to be sent is `done`, with the device at work for it; and how
    /// many copies were started. `None`: there is no buffer for it.
    pub(in crate::endpoint) fn feed(
        &mut self,
        name: u64,
        iov: &[Span],
        done: usize,
        want: usize,
    ) -> Option<(&mut Stream, usize)> {
        let at = self.streams.iter().position(|s| s.name == name).unwrap_or_else(|| {
            self.streams.push(Stream { name, chunks: VecDeque::new() });
            self.streams.len() - 1
        });
        let stream = &mut self.streams[at];
        let mut started = 0;
        while stream.chunks.len() < AHEAD {
            let off = stream.chunks.back().map_or(done, |c| c.off + c.len);
            let short = !stream.chunks.is_empty() && self.sending.taken() >= SENDING / 2;
            if off >= want || short {
                break;
            }
            let Some(buffer) = self.sending.take() else { break };
            let len = BUFFER.min(want - off);
            stream.chunks.push_back(Chunk { off, len, transfer: buffer.read(iov, off, len) });
            started += 1;
        }
        if stream.chunks.is_empty() {
            self.streams.swap_remove(at);
            return None;
        }
        Some((&mut self.streams[at], started))
    }
}

/// Where bytes come from.
#[derive(Clone, Copy)]
pub(in crate::endpoint) enum Source<'a> {
    /// A frame, from this byte of it on.
    Frame(&'a Frame, usize),
    /// What was kept of a frame: a message that has waited to be received, or an access that had to wait.
    Held(&'a [u8]),
}

/// The memory that a stream is of cannot be read.
pub(in crate::endpoint) struct Unread;

/// An injected message whose bytes are about to leave their buffer, see
/// [`Domain::start_send`](crate::Domain::start_send).
#[derive(Debug)]
#[must_use = "the buffer is in use until `Domain::has_left` says that it is not"]
pub struct Leaving {
    pub(crate) ep: EpId,
    pub(in crate::endpoint) peer: PeerId,
    pub(in crate::endpoint) name: u64,
    /// Polls for which the receiver is still waited for.
    pub(in crate::endpoint) patience: u32,
}
