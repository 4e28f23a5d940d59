//! A reduction, piece by piece: the pieces of a member's children, in its heaps, and its own elements are
//! combined into the heap of its parent, or into the memory of its caller.

use std::ptr;

use super::members::{Fault, HEAP, Members};
use super::number::Elements;
use super::pieces::{HEAD, Incoming, write_head};

use crate::core::Patience;
use crate::{Address, Error};

/// The longest element: a piece has whole ones.
pub(crate) const ELEMENT_MOST: usize = 8192;

/// Where the combined elements go.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    Memory(*mut u8),
    /// The member at this place.
    Member(usize),
}

/// What comes of a member that has combined those behind it.
#[derive(Debug)]
struct Child {
    message: Incoming,
    /// Its next piece, which is not freed yet.
    piece: Option<(Address, *const u8)>,
}

/// A member's part in a reduction.
#[derive(Debug)]
pub(super) struct Reduction<'a, 'b> {
    elements: &'a mut Elements<'b>,
    own: *const u8,
    total: usize,
    what: u64,
    to: Target,
    children: Vec<Child>,
    /// Bytes that are combined and written.
    done: usize,
    begun: bool,
    /// All has left.
    flushed: bool,
    /// A block with the next piece that the path has not taken yet.
    block: Option<Address>,
}

/// Bytes of a piece of elements of this size.
pub(super) fn piece(element: usize) -> usize {
    (HEAP / 4 - HEAD) / element * element
}

impl<'a, 'b> Reduction<'a, 'b> {
    /// Combines `total` bytes at `own` with those of the members at these places.
    pub(super) fn new(
        elements: &'a mut Elements<'b>,
        (own, total): (*const u8, usize),
        what: u64,
        children: impl Iterator<Item = usize>,
        to: Target,
    ) -> Reduction<'a, 'b> {
        let message = |place| Incoming::new(place, what, (ptr::null_mut(), total), true);
        let children = children.map(|place| Child { message: message(place), piece: None }).collect();
        let (done, begun, flushed, block) = (0, false, false, None);
        Reduction { elements, own, total, what, to, children, done, begun, flushed, block }
    }

    pub(super) fn is_done(&self) -> bool {
        self.flushed
    }

    /// The children whose next piece is not there.
    pub(super) fn missing(&self) -> impl Iterator<Item = usize> {
        let all = self.is_written();
        self.children.iter().filter(move |one| !all && one.piece.is_none()).map(|one| one.message.member)
    }

    /// Whether something is to come of the member.
    pub(super) fn reads(&self, place: usize) -> bool {
        let mut children = self.children.iter().filter(|one| one.message.member == place);
        children.any(|one| one.piece.is_some() || !self.is_written())
    }

    /// The member that the elements go to.
    pub(super) fn target(&self) -> Option<usize> {
        if let Target::Member(place) = self.to { Some(place) } else { None }
    }

    /// The members that something is waited for.
    pub(super) fn waits_for(&self) -> impl Iterator<Item = usize> {
        let target = self.target().filter(|_| !self.flushed && self.missing().next().is_none());
        self.missing().chain(target)
    }

    fn is_written(&self) -> bool {
        self.begun && self.done == self.total
    }

    /// Goes on as far as it can now; whether it has.
    pub(super) fn step(&mut self, members: &mut Members, ask: bool) -> Result<bool, Fault> {
        let mut moved = false;
        if !self.is_written() {
            let len = piece(self.elements.size).min(self.total - self.done);
            if !self.take(members, len, ask, &mut moved)? || !self.put(members, len, ask)? {
                return Ok(moved);
            }
            for child in &mut self.children {
                child.message.got += len;
                if let Some((address, _)) = child.piece.take() {
                    let place = child.message.member;
                    members.free(place, address).map_err(|error| (place, error))?;
                }
            }
            self.begun = true;
            self.done += len;
            // A function of the program's may take long: the time is looked at between pieces.
            return Ok(true);
        }
        if !self.flushed {
            self.flushed = match self.target() {
                Some(place) => members.flush(place).map_err(|error| (place, error))?,
                None => true,
            };
            moved |= self.flushed;
        }
        Ok(moved)
    }

    /// Has the next piece of each child, of this length; whether all are there.
    fn take(
        &mut self,
        members: &mut Members,
        len: usize,
        ask: bool,
        moved: &mut bool,
    ) -> Result<bool, Fault> {
        let mut all = true;
        for child in self.children.iter_mut().filter(|child| child.piece.is_none()) {
            let place = child.message.member;
            let mut next = || -> Result<Option<(Address, *const u8)>, Error> {
                let first = child.message.total.is_none();
                let Some((address, at, long)) = members.next(place, first, ask)? else { return Ok(None) };
                let (at, long) = child.message.payload(at, long, members.all[place].rank)?;
                if long != len {
                    return Err(Error::Broken(format!("a piece of {long} bytes came instead of {len}")));
                }
                Ok(Some((address, at)))
            };
            child.piece = next().map_err(|error| (place, error))?;
            all &= child.piece.is_some();
            *moved |= child.piece.is_some();
        }
        Ok(all)
    }

    /// Combines the pieces, and passes the outcome on; whether it has left.
    fn put(&mut self, members: &mut Members, len: usize, ask: bool) -> Result<bool, Fault> {
        let place = match self.to {
            Target::Memory(to) => {
                // SAFETY: the caller of the reduction has `total` bytes there, which end behind these.
                unsafe { self.combine(to.wrapping_add(self.done), len) };
                return Ok(true);
            }
            Target::Member(place) => place,
        };
        let mut write = || -> Result<bool, Error> {
            let Some((pipe, _)) = members.writable(place, ask)? else { return Ok(false) };
            let block = match self.block {
                Some(block) => block,
                None => {
                    let head = if self.begun { 0 } else { HEAD };
                    let Some(block) = pipe.alloc_now(head + len)? else { return Ok(false) };
                    let to = pipe.address(block)?;
                    // SAFETY: a block of so many bytes, which is this end's.
                    unsafe {
                        if head != 0 {
                            write_head(to, self.what, self.total);
                        }
                        self.combine(to.add(head), len);
                    }
                    block
                }
            };
            self.block = Some(block);
            match pipe.write_timed(block, None, Patience::Poll) {
                Err(Error::Again) => return Ok(false),
                other => other?,
            }
            self.block = None;
            Ok(true)
        };
        write().map_err(|error| (place, error))
    }

    /// Combines this member's own bytes and the pieces that are there, in the order of the children.
    ///
    /// # Safety
    /// `len` bytes are writable at `to`, and are no part of a piece. Those at `own` are readable.
    unsafe fn combine(&mut self, to: *mut u8, len: usize) {
        let own = self.own.wrapping_add(self.done);
        let count = len / self.elements.size;
        let mut before = own;
        for (_, piece) in self.children.iter().filter_map(|child| child.piece) {
            // SAFETY: `len` bytes were read of the child (`take`), in a heap, which has no byte of `to`; the
            // caller promises the others.
            unsafe { self.elements.combine(before, piece, to, count) };
            before = to;
        }
        if self.children.is_empty() && len != 0 && !ptr::eq(own, to) {
            // SAFETY: as above.
            unsafe { ptr::copy_nonoverlapping(own, to, len) };
        }
    }
}
