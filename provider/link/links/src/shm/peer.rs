//! What an endpoint has of a peer.

use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, compiler_fence};
use std::time::Instant;

use hmem::Span;
use ipc::pieces::Counters;
use ipc::socket;
use link_api::{Gone, Refused, Sent};
use meet::Life;
use wire::Addr;
use wire::channel::{Packet, Space};

use crate::shm::channel::producer::Producer;
use crate::shm::channel::ring;
use crate::shm::channel::ring::{Consumer, Mem};
use crate::shm::channel::segment::Segment;
use crate::shm::channel::wake;
use crate::shm::channel::wake::Consuming;
use crate::shm::meet::looks::Ask;
use crate::shm::meet::reach::Reach;
use crate::shm::memory::devices::Devices;
use crate::shm::memory::mr_table::PeerMrTable;
use crate::space::{self, Target};

/// A channel to a peer. Short frames touch its first cache line alone.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Outbound {
    pub(super) tx: Producer<Segment>,
    pub(super) sock: OwnedFd,
    pub(super) pid: i32,
    /// The peer's address space, once it has welcomed this side.
    pub(super) space: Option<Space>,
    /// Which endpoint of that name it leads to, once the peer has welcomed it.
    pub(super) incarnation: Option<u64>,
    /// Since when a packet of it waits that comes with a descriptor, for which there is no place.
    pub(super) lacks: Option<Instant>,
    /// Length of a frame that found no room.
    pub(super) starved: Option<usize>,
    /// The registrations that the peer publishes, once it has welcomed this side.
    pub(super) mr_table: Option<PeerMrTable>,
    /// Piece counters that were opened here.
    pub(super) pieces: Counters,
    /// When it is asked, if the peer has not answered, whether its process still listens.
    pub(super) ask: Ask,
}

impl Outbound {
    /// Wakes the peer if it sleeps; to be called after a frame was published. A peer that has closed has not
    /// read it.
    #[inline(always)]
    pub(super) fn notify(&mut self, registered: bool) -> Result<Sent, Refused> {
        if wake::is_awake(self.tx.mem(), registered) { Ok(Sent::Done) } else { self.wake() }
    }

    #[cold]
    #[inline(never)]
    fn wake(&mut self) -> Result<Sent, Refused> {
        match wake::consuming(self.tx.mem()) {
            Consuming::Awake => Ok(Sent::Done),
            Consuming::Asleep => {
                socket::notify(&self.sock, &Packet::Wake.encode());
                Ok(Sent::Done)
            }
            Consuming::Closed if self.tx.is_read() => Ok(Sent::Done),
            // Its socket has hung up before: the next poll sees that, and what follows from it.
            Consuming::Closed => Err(Refused::Gone(Gone::Reset)),
        }
    }

    /// Sends a frame that a line has room for, of `head` and one stretch of memory that the processor may
    /// just read; `None` if it is another one, or there may be no room.
    #[inline(always)]
    pub(super) fn send_short(&mut self, head: &[u8], body: &[Span], off: usize, len: usize) -> Option<()> {
        let total = head.len() + len;
        if total > ring::SHORT {
            return None;
        }
        let at = self.tx.reserve_short()?;
        let part = match body {
            [only] => only.part(off, len).filter(|p| p.is_plain())?,
            [] if len == 0 => Span::EMPTY,
            _ => return None,
        };
        let mem = self.tx.mem();
        // How much of the body is on the first cache line.
        let near = ring::SHORTEST.saturating_sub(head.len()).min(len);
        let far = len - near;
        // SAFETY: `total` bytes from `at` on are reserved, for what `reserve_short` says; `head` is a slice,
        // and the part is valid for reads by `Span`'s invariant.
        unsafe {
            if far > 0 {
                mem.put(at + head.len() + near, part.as_ptr().add(near), far);
                // The receiver polls the first cache line all the time, and takes it away as often as it
                // does: so what goes there goes last, and all at once.
                compiler_fence(Ordering::Release);
            }
            mem.put(at, head.as_ptr(), head.len());
            if near > 0 {
                mem.put(at + head.len(), part.as_ptr(), near);
            }
        }
        self.tx.publish_short(total);
        Some(())
    }

    /// Copies bytes `off..off+len` of `body` to byte `at` of the reserved frame; returns how many
    /// there were, or fewer where they could not be read.
    #[inline(always)]
    pub(super) fn copy_in(&mut self, at: usize, body: &[Span], off: usize, len: usize) -> usize {
        let mem = self.tx.mem();
        if let ([only], Some(at)) = (body, self.tx.straight(at, len)) {
            if let Some(part) = only.part(off, len).filter(|p| p.is_plain()) {
                // SAFETY: the part is valid for reads by `Span`'s invariant; its place in the ring
                // was found by `straight`, and is reserved.
                unsafe { mem.put(at, part.as_ptr(), len) };
                return len;
            }
        }
        self.copy_in_parts(at, body, off, len)
    }

    #[inline(never)]
    fn copy_in_parts(&mut self, at: usize, body: &[Span], off: usize, len: usize) -> usize {
        let mem = self.tx.mem();
        mem.lock_for(body);
        let mut done = 0;
        for (at, n) in self.tx.stretches(at, len) {
            if n > 0 {
                done += hmem::copy(&[mem.span(at, n)], 0, body, off + done, n);
            }
        }
        done
    }
}

/// A channel from a peer. Short frames touch its first cache line alone: with many peers, those of all fit a
/// first cache.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Inbound {
    /// How far it is read once its sender is gone: no further than a ring can hold.
    pub(super) end: u32,
    /// Nothing more is read from it.
    pub(super) broken: bool,
    pub(super) rx: Consumer<Segment>,
    pub(super) sock: OwnedFd,
    pub(super) pid: i32,
    pub(super) space: Space,
    pub(super) incarnation: u64,
    /// How far the ring was read when it was last asked whether it is in use.
    pub(super) cooled_at: u32,
}

impl Inbound {
    /// Gives the frame at hand back.
    #[inline(always)]
    pub(super) fn advance(&mut self) {
        if self.rx.advance() {
            self.notify_of_room();
        }
    }

    /// Gives a frame at hand of one line back.
    #[inline(always)]
    pub(super) fn advance_line(&mut self) {
        if self.rx.advance_line() {
            self.notify_of_room();
        }
    }

    /// Its sender is gone: of what it has sent no more is read than a ring can hold. Lines that a lap left
    /// out which ended early count as well, and so do those that the next one passed by: of less than two
    /// rings together.
    pub(super) fn ends(&mut self) {
        self.end = self.rx.pos().wrapping_add(2 * self.rx.mem().lines());
    }

    /// Whether there may be more to read of a sender that is gone.
    pub(super) fn has_unread(&self) -> bool {
        !self.broken && (self.end.wrapping_sub(self.rx.pos()) as i32) > 0
    }

    /// Publishes how far the ring was read, if that is not known.
    pub(super) fn publish(&mut self) {
        if !self.rx.is_published() {
            self.rx.publish();
            self.notify_of_room();
        }
    }

    /// The position was published: the sender may wait for that.
    #[cold]
    fn notify_of_room(&self) {
        if wake::room_wanted(self.rx.mem()) {
            socket::notify(&self.sock, &Packet::Wake.encode());
        }
    }
}

/// An address space that a tid led to so long ago is still there under that tid, or nothing is: to use a
/// tid again takes as many new tasks as there are numbers. In nanoseconds.
pub(super) const SURE: u64 = 10_000_000;

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) out: Option<Outbound>,
    pub(super) inb: Option<Inbound>,
    pub(super) addr: Addr,
    /// This side's name towards it, once one of the two has called the other.
    pub(super) name: Option<Addr>,
    /// It ended; `Closed` follows once `inb` is drained.
    pub(super) dying: Option<Gone>,
    /// Readable once the process that has this pid has ended. Its sockets show that too, but not
    /// while a process forked from it holds copies of them.
    pub(super) life: Option<Life>,
    /// Its address space, and the tick at which it was last found to be that.
    pub(super) target: Option<(Target, u64)>,
    /// Its memory was gone when some was wanted. That is before its end can be seen by any descriptor.
    pub(super) lost: bool,
    /// Channels of its successors under the same name.
    pub(super) waiting: Vec<Inbound>,
    /// Its address space was gone when that was last asked.
    pub(super) missed: bool,
    /// How it could be connected to.
    pub(super) reach: Reach,
    /// Why its memory cannot be reached directly, once that was tried.
    pub(super) no_cma: Option<String>,
    /// Devices' memory, here and there.
    pub(super) devices: Devices,
}

impl Peer {
    /// A peer nothing is known of but its name.
    pub(super) fn new(addr: Addr) -> Peer {
        Peer {
            out: None,
            inb: None,
            addr,
            name: None,
            dying: None,
            life: None,
            target: None,
            lost: false,
            waiting: Vec::new(),
            missed: false,
            reach: Reach::default(),
            no_cma: None,
            devices: Devices::default(),
        }
    }

    /// The pid of a peer that is connected, 0 where it is not visible here.
    pub(super) fn pid(&self) -> Option<i32> {
        self.inb.as_ref().map(|i| i.pid).or(self.out.as_ref().map(|o| o.pid))
    }

    /// Whether there is a channel, or one that ended and is still to be reported.
    pub(super) fn is_connected(&self) -> bool {
        self.out.is_some() || self.inb.is_some() || self.dying.is_some() || !self.waiting.is_empty()
    }

    /// Whether a peer accesses nothing any more for certain: its process or address space has ended, or it
    /// closed its sockets.
    pub(super) fn has_ended(&self) -> bool {
        let socks = self.inb.iter().map(|i| &i.sock).chain(self.out.iter().map(|o| &o.sock));
        self.lost
            || self.life.as_ref().is_some_and(Life::has_ended)
            || self.space_is_gone()
            || socks.into_iter().any(socket::hung_up)
    }

    /// Whether the address space of a peer is gone for certain.
    pub(super) fn space_is_gone(&self) -> bool {
        let of_out = self.out.as_ref().and_then(|o| Some((o.pid, o.space?)));
        let mut spaces = self.inb.iter().map(|i| (i.pid, i.space)).chain(of_out);
        spaces.any(|(pid, space)| space::is_gone(&space, pid))
    }
}
