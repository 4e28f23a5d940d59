//! Host memory through which the bytes of devices' memory travel in frames, and the copies between the two,
//! which are started and polled: no caller waits for a device.
//!
//! A [`Pool`] has a bound. A [`Buffer`] of it is page-locked by the runtime whose device copies, and goes
//! back when it is dropped. While a device copies it is inside of the [`Transfer`], so that nothing else
//! reaches its bytes.

use crate::copy::{copy_in, copy_out, read, write};
use crate::kind::Caps;
use crate::locked;
use crate::pending::{Part, PendingCopy};
use crate::registry;
use crate::span::{Span, walk};

/// Bytes in front of the payload of a buffer, for the header of a frame.
const ROOM: usize = 64;

/// Buffers for staging, up to a number of them. They are made when they are first needed, and go with the
/// pool and the last of them.
#[derive(Clone, Debug)]
pub struct Pool {
    len: usize,
    buffers: locked::Pool,
}

impl Pool {
    /// At most so many buffers of so many bytes of payload.
    pub fn new(most: usize, len: usize) -> Pool {
        Pool { len, buffers: locked::Pool::new(most, ROOM + len) }
    }

    /// Bytes of payload in a buffer.
    pub fn buffer_len(&self) -> usize {
        self.len
    }

    /// A buffer; `None` if all are taken, or there is no memory.
    pub fn take(&self) -> Option<Buffer> {
        self.buffers.take().ok().map(Buffer)
    }

    /// Buffers that are taken.
    pub fn taken(&self) -> usize {
        self.buffers.taken()
    }
}

/// Host memory of a pool's, which goes back to it.
#[derive(Debug)]
pub struct Buffer(locked::Buffer);

impl Buffer {
    /// All bytes, the room in front included.
    fn all(&mut self) -> &mut [u8] {
        // SAFETY: so many bytes were allocated, zeroed, and `self` is borrowed for as long as the slice is;
        // nothing gives the memory of one up that was handed out. No device copies, an agent's neither: a
        // transfer hands its buffer out when it is over, and an agent stores there by nothing else.
        unsafe { std::slice::from_raw_parts_mut(self.0.at(), self.0.len()) }
    }

    /// The payload.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.all()[ROOM..]
    }

    /// Bytes `at..at+len` of the payload with `head` in front of them, which takes the place of what is
    /// there.
    ///
    /// # Panics
    /// If `head` is longer than 64 bytes, or that is not inside.
    pub fn frame(&mut self, head: &[u8], at: usize, len: usize) -> &[u8] {
        let begin = ROOM + at - head.len();
        let frame = &mut self.all()[begin..ROOM + at + len];
        frame[..head.len()].copy_from_slice(head);
        frame
    }

    /// Starts to fill it with the bytes `off..off+len` of `src`.
    pub fn read(self, src: &[Span], off: usize, len: usize) -> Transfer {
        self.start(src, off, len, false)
    }

    /// Starts to copy its first `len` bytes to byte `off` of `dst`.
    pub fn write(self, dst: &[Span], off: usize, len: usize) -> Transfer {
        self.start(dst, off, len, true)
    }

    fn start(self, iov: &[Span], off: usize, len: usize, out: bool) -> Transfer {
        assert!(ROOM + len <= self.0.len(), "more than a buffer holds");
        // Not derived from a reference, since references that are made later would end its validity.
        let host = self.0.at().wrapping_add(ROOM);
        let (mut spans, mut parts) = (Vec::new(), Vec::new());
        let mut kinds = iov.iter().filter(|s| !s.can(Caps::CPU) && !s.is_empty()).map(|s| s.kind());
        let kind = kinds.next().filter(|first| kinds.all(|k| k == *first));
        let done = walk(iov, off, len, |s, at| {
            // `walk` hands out no more than `len` bytes, which are inside.
            let here = host.wrapping_add(at);
            spans.push(s);
            if s.can(Caps::CPU) {
                if out {
                    return true;
                }
                // SAFETY: `s.len()` bytes of the buffer's memory, which is there until it is dropped, and
                // which no device uses.
                return unsafe { copy_out(s, here, s.len()) };
            }
            let (there, here) = (s.addr() as usize, here.expose_provenance());
            let (dst, src) = if out { (there, here) } else { (here, there) };
            parts.push(Part { dst, src, len: s.len() });
            true
        });
        let left = if out && spans.iter().any(|s| s.can(Caps::CPU)) { Left::Host } else { Left::Nothing };
        let mut transfer = Transfer { flight: None, ok: done == len, left, buffer: self, spans, len, out };
        if !transfer.ok || parts.is_empty() {
            return transfer;
        }
        transfer.flight = kind.and_then(|kind| {
            transfer.buffer.0.lock_for(registry::of(kind));
            // SAFETY: the device's side is of spans, valid until the last operation that was given them has
            // completed, before which its caller sees the transfer over or drops it; the buffer is inside of
            // the transfer, behind the flight.
            unsafe { registry::of(kind).start(&parts, Vec::new(), true) }.ok()
        });
        if transfer.flight.is_none() && out {
            transfer.left = Left::All;
        } else if transfer.flight.is_none() {
            transfer.copy_in_call();
        }
        transfer
    }
}

/// A copy between a buffer and devices' memory, in flight or over. Dropping it waits until no device uses the
/// memory any more.
#[derive(Debug)]
pub struct Transfer {
    /// Goes first.
    flight: Option<Box<dyn PendingCopy>>,
    ok: bool,
    left: Left,
    buffer: Buffer,
    /// The memory, which the buffer's first `len` bytes are to be in, or of.
    spans: Vec<Span>,
    len: usize,
    out: bool,
}

/// What of a transfer [`Transfer::poll`] copies itself, once no device does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Nothing,
    /// To the host's memory: a peer's flag there is not to be seen before the bytes in a device's memory that
    /// it stands for.
    Host,
    /// Everything.
    All,
}

impl Transfer {
    /// Whether it is over: `None` means not yet, `false` that the bytes are not there. What is written to the
    /// host's memory is written by this call, after what a device writes: transfers that are polled in order
    /// take effect so there.
    pub fn poll(&mut self) -> Option<bool> {
        if let Some(flight) = &mut self.flight {
            let how = flight.poll();
            if how == Ok(false) {
                return None;
            }
            self.flight = None;
            if how.is_err() {
                self.left = Left::All;
            }
        }
        if self.ok {
            match std::mem::replace(&mut self.left, Left::Nothing) {
                Left::Nothing => {}
                Left::Host => self.copy_to_host(),
                Left::All => self.copy_in_call(),
            }
        }
        Some(self.ok)
    }

    /// Writes what the host's memory is to get.
    fn copy_to_host(&mut self) {
        let (mut at, bytes) = (0, &*self.buffer.bytes());
        for s in &self.spans {
            let part = &bytes[at..at + s.len()];
            // SAFETY: `part` is a slice of as many bytes.
            self.ok &= !s.can(Caps::CPU) || unsafe { copy_in(*s, part.as_ptr(), part.len()) };
            at += s.len();
        }
    }

    /// Where no copy can be started and polled (some kinds, several at once), and to make up for one that
    /// failed.
    fn copy_in_call(&mut self) {
        let bytes = &mut self.buffer.bytes()[..self.len];
        let done = if self.out { write(&self.spans, 0, bytes) } else { read(&self.spans, 0, bytes) };
        self.ok = done == self.len;
    }

    /// The buffer, once the transfer is over.
    pub fn buffer(&mut self) -> Option<&mut Buffer> {
        if self.flight.is_some() || self.left != Left::Nothing { None } else { Some(&mut self.buffer) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|n| (n * 7 + n / 251) as u8).collect()
    }

    fn until_over(transfer: &mut Transfer) -> bool {
        loop {
            match transfer.poll() {
                Some(ok) => return ok,
                None => assert!(transfer.buffer().is_none(), "in use, and handed out"),
            }
        }
    }

    #[test]
    fn bytes_come_from_devices_and_the_host_and_go_there() {
        let pool = Pool::new(1, 1000);
        let (near, far) = (Span::leak(300), fake::alloc(900));
        let iov = [far.span().part(100, 400).unwrap(), near, far.span().part(600, 300).unwrap()];
        let sent = pattern(1000);
        assert_eq!(write(&iov, 0, &sent), 1000);
        let mut transfer = pool.take().unwrap().read(&iov, 50, 900);
        assert!(until_over(&mut transfer));
        let buffer = transfer.buffer().unwrap();
        assert_eq!(buffer.frame(b"head", 0, 900), [&b"head"[..], &sent[50..950]].concat());
        // The next frame's head takes the place of what was sent.
        assert_eq!(buffer.frame(b"next", 500, 400), [&b"next"[..], &sent[550..950]].concat());
        drop(transfer);
        let mut buffer = pool.take().unwrap();
        buffer.bytes()[..600].fill(9);
        assert!(until_over(&mut buffer.write(&iov, 200, 600)));
        let mut got = vec![0; 1000];
        assert_eq!(read(&iov, 0, &mut got), 1000);
        assert_eq!(got, [&sent[..200], &[9; 600], &sent[800..]].concat());
        // More than there is.
        assert!(!until_over(&mut pool.take().unwrap().read(&iov, 500, 501)));
    }

    #[test]
    fn the_host_s_part_of_a_write_is_there_after_the_device_s() {
        let pool = Pool::new(2, 100);
        let (flag, memory) = (Span::leak(8), fake::alloc(92));
        let seen = |span: Span| {
            let mut bytes = vec![0; span.len()];
            read(&[span], 0, &mut bytes);
            bytes
        };
        for iov in [[memory.span(), flag], [flag, memory.span()]] {
            write(&[flag], 0, &[0; 8]);
            memory.hold(true);
            let mut buffer = pool.take().unwrap();
            buffer.bytes().fill(7);
            let mut data = buffer.write(&iov, 0, 100);
            let mut behind = pool.take().unwrap();
            behind.bytes().fill(8);
            let mut behind = behind.write(&[flag], 0, 8);
            (0..10).for_each(|_| assert_eq!(data.poll(), None));
            assert_eq!(seen(flag), [0; 8]);
            memory.hold(false);
            assert!(until_over(&mut data));
            assert_eq!((seen(flag), seen(memory.span())), (vec![7; 8], vec![7; 92]));
            assert!(until_over(&mut behind));
            assert_eq!(seen(flag), [8; 8]);
        }
    }

    #[test]
    fn a_pool_has_no_more_buffers_than_it_may_and_gets_them_back() {
        let pool = Pool::new(2, 10);
        let (one, two) = (pool.take().unwrap(), pool.take().unwrap());
        assert!(pool.take().is_none());
        drop(one);
        let memory = fake::alloc(10);
        let transfer = pool.take().unwrap().read(&[memory.span()], 0, 10);
        assert!(pool.take().is_none());
        drop((transfer, two));
        assert_eq!(pool.taken(), 0);
        assert!(pool.take().is_some());
    }

    /// A held copy is pending until it is released, and writes nothing when it is dropped.
    #[test]
    fn held_copy_completes_on_release_and_copies_nothing_when_dropped() {
        let (pool, memory) = (Pool::new(2, 10), fake::alloc(10));
        memory.hold(true);
        let mut transfer = pool.take().unwrap().read(&[memory.span()], 0, 10);
        (0..10).for_each(|_| assert_eq!(transfer.poll(), None));
        assert_eq!(memory.in_flight(), 1);
        let dropped = pool.take().unwrap().write(&[memory.span()], 0, 10);
        assert_eq!(memory.in_flight(), 2);
        drop(dropped);
        assert_eq!((memory.in_flight(), pool.taken()), (1, 1));
        memory.hold(false);
        assert!(until_over(&mut transfer));
        assert_eq!(memory.in_flight(), 0);
    }
}
