//! What goes through bounce buffers at an endpoint: see `bounce`.

use std::collections::VecDeque;

use hmem::Span;
use hmem::bounce::{Arena, Fill, NoRoom, Room};
use link_api::{OpId, PeerId};

/// Bytes of a block of the buffers, which are 128 blocks for each device: 32 MiB.
const BLOCK: usize = 256 << 10;
/// Most bytes of a part. To start a copy and to find it over costs as much as to copy 1 MiB, on each side;
/// and where both sides are on one device, which the two processes have in turns, longer parts make fewer
/// turns.
const PART: usize = 4 << 20;

/// What goes through bounce buffers at one endpoint.
#[derive(Debug)]
pub(in crate::endpoint) struct Bounces {
    arena: Arena,
    streams: Vec<Stream>,
    /// Copies from peers' buffers in flight, and the byte of the payload that each begins at.
    taking: Vec<(OpId, PeerId, usize)>,
    /// Why there are no buffers is in the log.
    pub(in crate::endpoint) warned: bool,
}

/// A message on its way through buffers here.
#[derive(Debug)]
pub(in crate::endpoint) struct Stream {
    name: u64,
    peer: PeerId,
    /// Parts that the device copies into buffers, and those that are there and that are to be announced to
    /// the peer, in order.
    pub(in crate::endpoint) filling: VecDeque<(usize, Fill)>,
    /// Parts that were announced to the peer, which has not taken them.
    announced: Vec<(usize, Room)>,
    /// The next byte.
    next: usize,
    /// The first byte that is to go another way.
    pub(in crate::endpoint) broken: Option<usize>,
    /// The peer said so.
    pub(in crate::endpoint) refused: bool,
}

/// How far [`Bounces::feed`] came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::endpoint) enum Fed {
    /// So many copies were started.
    Started(usize),
    /// There is no room before this peer has taken what was announced to it, or will be.
    Waits,
    /// Nor would there be then.
    NoRoom(NoRoom),
}

impl Stream {
    /// The first part was announced to the peer, or does without.
    pub(in crate::endpoint) fn announce(&mut self) {
        if let Some((off, fill)) = self.filling.pop_front() {
            self.announced.push((off, fill.into_room()));
        }
    }

    /// What begins at `off` goes another way, and so does all that was not announced.
    pub(in crate::endpoint) fn stop_at(&mut self, off: usize) {
        let unannounced = self.filling.front().map(|(off, _)| *off);
        self.filling.clear();
        self.broken = [self.broken, unannounced].into_iter().flatten().chain([off]).min();
    }

    /// The peer has no use any more for the part that begins at `off`. `false`: it was not announced.
    pub(in crate::endpoint) fn take_back(&mut self, off: usize) -> bool {
        let at = self.announced.iter().position(|(o, _)| *o == off);
        at.map(|at| self.announced.swap_remove(at)).is_some()
    }

    /// Whether the peer has taken all that was announced to it.
    pub(in crate::endpoint) fn is_taken(&self) -> bool {
        self.announced.is_empty()
    }

    /// Whether nothing goes on before the peer has taken something of it.
    pub(in crate::endpoint) fn is_with_peer(&self) -> bool {
        self.filling.is_empty() && !self.announced.is_empty()
    }

    /// Whether all up to `want` is in buffers, or was.
    pub(in crate::endpoint) fn is_announced(&self, want: usize) -> bool {
        self.filling.is_empty() && self.next >= want
    }

    /// The next byte that is to go into a buffer.
    pub(in crate::endpoint) fn next(&self) -> usize {
        self.next
    }

    fn size(&self) -> usize {
        let filling = self.filling.iter().map(|(_, fill)| fill.room().size());
        filling.chain(self.announced.iter().map(|(_, room)| room.size())).sum()
    }
}

impl Bounces {
    pub(in crate::endpoint) fn new() -> Bounces {
        Bounces { arena: Arena::new(BLOCK), streams: Vec::new(), taking: Vec::new(), warned: false }
    }

    /// This message is to go through buffers.
    pub(in crate::endpoint) fn begin(&mut self, name: u64, peer: PeerId) {
        let (filling, announced) = (VecDeque::new(), Vec::new());
        self.streams.push(Stream { name, peer, filling, announced, next: 0, broken: None, refused: false });
    }

    #[inline]
    pub(in crate::endpoint) fn stream(&mut self, name: u64) -> Option<&mut Stream> {
        self.streams.iter_mut().find(|s| s.name == name)
    }

    /// Whether this message does.
    #[inline]
    pub(in crate::endpoint) fn has(&self, name: u64) -> bool {
        !self.streams.is_empty() && self.streams.iter().any(|s| s.name == name)
    }

    /// Starts to copy what there is room for. No peer gets more than three quarters of it, so that one that
    /// does not go on keeps nothing from others.
    pub(in crate::endpoint) fn feed(&mut self, name: u64, iov: &[Span], want: usize) -> Fed {
        let Some(at) = self.streams.iter().position(|s| s.name == name) else { return Fed::Waits };
        let peer = self.streams[at].peer;
        let mut held: usize = self.streams.iter().filter(|s| s.peer == peer).map(Stream::size).sum();
        let (stream, most) = (&mut self.streams[at], self.arena.capacity() / 4 * 3);
        let mut started = 0;
        while stream.next < want && stream.broken.is_none() {
            let len = PART.min(want - stream.next).min(most.saturating_sub(held));
            let room = if len > 0 { self.arena.take(iov, len) } else { Err(NoRoom::Taken) };
            let room = match room {
                Ok(room) => room,
                Err(_) if started > 0 => break,
                Err(NoRoom::Taken) if held > 0 => return Fed::Waits,
                Err(why) => return Fed::NoRoom(why),
            };
            let (len, size) = (room.len(), room.size());
            let Some(fill) = room.fill(iov, stream.next) else {
                stream.stop_at(stream.next);
                break;
            };
            stream.filling.push_back((stream.next, fill));
            stream.next += len;
            held += size;
            started += 1;
        }
        Fed::Started(started)
    }

    /// Ends what is under way for a message here: its memory is not accessed any more when this returns.
    #[inline]
    pub(in crate::endpoint) fn cancel(&mut self, name: u64) {
        if !self.streams.is_empty() {
            self.streams.retain(|s| s.name != name);
        }
    }

    pub(in crate::endpoint) fn cancel_all(&mut self) {
        self.streams.clear();
        self.taking.clear();
    }

    /// A copy from a peer's buffer was started.
    pub(in crate::endpoint) fn take(&mut self, copy: OpId, peer: PeerId, off: usize) {
        self.taking.push((copy, peer, off));
    }

    /// Whether a peer has announced more parts than it has blocks for.
    pub(in crate::endpoint) fn are_too_many(&self, peer: PeerId) -> bool {
        self.taking.iter().filter(|(_, from, _)| *from == peer).count() >= Arena::BLOCKS
    }

    /// It is over, or cancelled: where in the payload it was. `None`: it is no such copy.
    #[inline]
    pub(in crate::endpoint) fn taken(&mut self, copy: OpId) -> Option<usize> {
        let at = self.taking.iter().position(|(c, ..)| *c == copy)?;
        Some(self.taking.swap_remove(at).2)
    }
}
