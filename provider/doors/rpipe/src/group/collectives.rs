//! Calls that all members make: barrier, gather, scatter, all-to-all, reduce and allreduce.

use std::ptr;

use super::number::{FUNCTION, predefined};
use super::pieces::{Incoming, Kind, Outgoing};
use super::reduction::{ELEMENT_MOST, Reduction, Target, piece};
use super::transfer::Also;
use super::{Elements, Group, How, Number, Operation};
use crate::core::Patience;
use crate::{Error, Rank};

/// How elements are combined. A function has to be associative and commutative, like the operations.
pub enum Combine<'a, T> {
    By(Operation),
    Function(&'a mut dyn FnMut(T, T) -> T),
}

impl<T> std::fmt::Debug for Combine<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Combine::By(operation) => operation.fmt(f),
            Combine::Function(_) => f.write_str("Function"),
        }
    }
}

impl<T> From<Operation> for Combine<'_, T> {
    fn from(operation: Operation) -> Self {
        Combine::By(operation)
    }
}

/// From this length on, for each member, an allreduce goes around a ring.
const RING: usize = 4096;

/// The parts of memory that members have, one behind the other: places and lengths.
pub(crate) fn parts(sizes: &[usize]) -> Result<Vec<(usize, usize)>, Error> {
    let mut end = 0usize;
    let part = |size: &usize| {
        let at = end;
        end = end
            .checked_add(*size)
            .filter(|end| isize::try_from(*end).is_ok())
            .ok_or_else(|| Error::Invalid("the parts are longer together than memory can be".into()))?;
        Ok((at, *size))
    };
    sizes.iter().map(part).collect()
}

/// The bytes of all parts.
fn sum(parts: &[(usize, usize)]) -> usize {
    parts.last().map_or(0, |(at, size)| at + size)
}

fn fits(has: usize, needs: usize, what: &str) -> Result<(), Error> {
    if has == needs {
        return Ok(());
    }
    Err(Error::Invalid(format!("{what} has {has} elements, and {needs} are needed")))
}

impl Group {
    /// Returns when all members have called it.
    pub fn barrier(&mut self, patience: Patience) -> Result<(), Error> {
        let what = self.begin_call(Kind::Barrier, 0, 0)?;
        let patience = patience.of_call();
        let (n, me) = (self.size(), self.transfers.members.me);
        // In the k-th round each member notifies the one 2^k places behind it, by which that one knows of
        // 2^k members more.
        let mut distance = 1;
        while distance < n {
            self.transfers.clear();
            let (to, from) = ((me + distance) % n, (me + n - distance) % n);
            self.transfers.incoming.push(Incoming::new(from, what, (ptr::null_mut(), 0), true));
            self.transfers.outgoing.push(Outgoing::new(to, what, (ptr::NonNull::dangling().as_ptr(), 0)));
            self.run(Also::Nothing, patience)?;
            distance *= 2;
        }
        Ok(())
    }

    /// The bytes of each member come to the root, which has `sizes` of them by place, one behind the other in
    /// `receive`. Others give an empty `receive` and no sizes.
    pub fn gather(
        &mut self,
        root: Rank,
        send: &[u8],
        receive: &mut [u8],
        sizes: &[usize],
        patience: Patience,
    ) -> Result<(), Error> {
        let mut to = Vec::new();
        if root == self.rank() {
            to = parts(sizes)?;
            fits(receive.len(), sum(&to), "what is received")?;
        }
        // SAFETY: slices of this call's; the lengths were compared.
        unsafe { self.gather_at(root, (send.as_ptr(), send.len()), receive.as_mut_ptr(), &to, patience) }
    }

    /// As [`Group::gather`].
    ///
    /// # Safety
    /// What is sent is readable; at the root the parts of `receive` are writable. Nothing else uses either.
    pub(crate) unsafe fn gather_at(
        &mut self,
        root: Rank,
        send: (*const u8, usize),
        receive: *mut u8,
        parts: &[(usize, usize)],
        patience: Patience,
    ) -> Result<(), Error> {
        let root = self.place(root)?;
        if root != self.transfers.members.me {
            let what = self.begin_call(Kind::Gather, root, 0)?;
            self.transfers.outgoing.push(Outgoing::new(root, what, send));
            return self.run(Also::Nothing, patience);
        }
        self.one_each(parts)?;
        // SAFETY: the caller's promise.
        unsafe { copy_own(send, (receive.wrapping_add(parts[root].0), parts[root].1))? };
        let what = self.begin_call(Kind::Gather, root, 0)?;
        for (place, (at, size)) in parts.iter().enumerate().filter(|(place, _)| *place != root) {
            let to = (receive.wrapping_add(*at), *size);
            self.transfers.incoming.push(Incoming::new(place, what, to, true));
        }
        self.run(Also::Nothing, patience)
    }

    /// The root's bytes go to all: `sizes` by place, one behind the other in `send`. Others give an empty
    /// `send` and no sizes.
    pub fn scatter(
        &mut self,
        root: Rank,
        send: &[u8],
        sizes: &[usize],
        receive: &mut [u8],
        patience: Patience,
    ) -> Result<(), Error> {
        let mut from = Vec::new();
        if root == self.rank() {
            from = parts(sizes)?;
            fits(send.len(), sum(&from), "what is sent")?;
        }
        let to = (receive.as_mut_ptr(), receive.len());
        // SAFETY: slices of this call's; the lengths were compared.
        unsafe { self.scatter_at(root, send.as_ptr(), &from, to, patience) }
    }

    /// As [`Group::scatter`].
    ///
    /// # Safety
    /// At the root the parts of `send` are readable; what is received is writable. Nothing else uses either.
    pub(crate) unsafe fn scatter_at(
        &mut self,
        root: Rank,
        send: *const u8,
        parts: &[(usize, usize)],
        receive: (*mut u8, usize),
        patience: Patience,
    ) -> Result<(), Error> {
        let root = self.place(root)?;
        if root != self.transfers.members.me {
            let what = self.begin_call(Kind::Scatter, root, 0)?;
            self.transfers.incoming.push(Incoming::new(root, what, receive, true));
            return self.run(Also::Nothing, patience);
        }
        self.one_each(parts)?;
        // SAFETY: the caller's promise.
        unsafe { copy_own((send.wrapping_add(parts[root].0), parts[root].1), receive)? };
        let what = self.begin_call(Kind::Scatter, root, 0)?;
        for (place, (at, size)) in parts.iter().enumerate().filter(|(place, _)| *place != root) {
            let from = (send.wrapping_add(*at), *size);
            self.transfers.outgoing.push(Outgoing::new(place, what, from));
        }
        self.run(Also::Nothing, patience)
    }

    /// Each member sends a part to each, and receives one of each; the sizes are by place, and the parts are
    /// one behind the other.
    pub fn alltoall(
        &mut self,
        (send, send_sizes): (&[u8], &[usize]),
        (receive, receive_sizes): (&mut [u8], &[usize]),
        patience: Patience,
    ) -> Result<(), Error> {
        let (from, to) = (parts(send_sizes)?, parts(receive_sizes)?);
        fits(send.len(), sum(&from), "what is sent")?;
        fits(receive.len(), sum(&to), "what is received")?;
        // SAFETY: slices of this call's; the lengths were compared.
        unsafe { self.alltoall_at((send.as_ptr(), &from), (receive.as_mut_ptr(), &to), patience) }
    }

    /// As [`Group::alltoall`].
    ///
    /// # Safety
    /// The parts of what is sent are readable, those of what is received writable; neither is in the other,
    /// and nothing else uses them.
    pub(crate) unsafe fn alltoall_at(
        &mut self,
        (send, from): (*const u8, &[(usize, usize)]),
        (receive, to): (*mut u8, &[(usize, usize)]),
        patience: Patience,
    ) -> Result<(), Error> {
        self.one_each(from)?;
        self.one_each(to)?;
        let (n, me) = (self.size(), self.transfers.members.me);
        let part = |(at, size): (usize, usize)| (receive.wrapping_add(at), size);
        // SAFETY: the caller's promise.
        unsafe { copy_own((send.wrapping_add(from[me].0), from[me].1), part(to[me]))? };
        let what = self.begin_call(Kind::Alltoall, 0, 0)?;
        // Each begins with its next one, so that not all write to one at a time.
        for distance in 1..n {
            let (next, before) = ((me + distance) % n, (me + n - distance) % n);
            let (at, size) = from[next];
            self.transfers.incoming.push(Incoming::new(before, what, part(to[before]), true));
            self.transfers.outgoing.push(Outgoing::new(next, what, (send.wrapping_add(at), size)));
        }
        self.run(Also::Nothing, patience)
    }

    /// Combines the elements of all members, one by one, at the root, where `receive` is as long as `send`;
    /// others give an empty one. Rounding depends on the number of members and on the root alone.
    pub fn reduce<'a, T: Number + 'a>(
        &mut self,
        root: Rank,
        send: &[T],
        receive: &mut [T],
        combine: impl Into<Combine<'a, T>>,
        patience: Patience,
    ) -> Result<(), Error> {
        if root == self.rank() {
            fits(receive.len(), send.len(), "what is received")?;
        }
        let (from, to) = (send.as_ptr().cast(), receive.as_mut_ptr().cast());
        with(combine.into(), |elements| {
            // SAFETY: slices of this call's; the lengths were compared.
            unsafe { self.reduce_at(root, (from, send.len()), to, elements, patience) }
        })
    }

    /// As [`Group::reduce`].
    ///
    /// # Safety
    /// So many elements are readable at `send` and, at the root, writable at `receive`, which is the same or
    /// does not overlap. Nothing else uses either.
    pub(crate) unsafe fn reduce_at(
        &mut self,
        root: Rank,
        (send, count): (*const u8, usize),
        receive: *mut u8,
        mut elements: Elements<'_>,
        patience: Patience,
    ) -> Result<(), Error> {
        let root = self.place(root)?;
        let total = elements.bytes(count)?;
        let what = self.begin_call(Kind::Reduce, root, elements.code)?;
        // SAFETY: the caller's promise.
        unsafe { self.reduce_along_tree(root, (send, total), receive, &mut elements, (what, patience)) }
    }

    /// Children are those of a broadcast, in the order of their places behind the root.
    ///
    /// # Safety
    /// That of [`Group::reduce_at`].
    unsafe fn reduce_along_tree(
        &mut self,
        root: usize,
        own: (*const u8, usize),
        receive: *mut u8,
        elements: &mut Elements<'_>,
        (what, patience): (u64, Patience),
    ) -> Result<(), Error> {
        let tree = self.tree(root);
        let to = tree.parent().map_or(Target::Memory(receive), Target::Member);
        let reduction = Reduction::new(elements, own, what, tree.children(), to);
        self.run(Also::Reduce(reduction), patience)
    }

    /// Combines the elements of all members, one by one, at all: `receive` is as long as `send`. All get the
    /// same bits.
    pub fn allreduce<'a, T: Number + 'a>(
        &mut self,
        send: &[T],
        receive: &mut [T],
        combine: impl Into<Combine<'a, T>>,
        patience: Patience,
    ) -> Result<(), Error> {
        fits(receive.len(), send.len(), "what is received")?;
        let (from, to) = (send.as_ptr().cast(), receive.as_mut_ptr().cast());
        with(combine.into(), |elements| {
            // SAFETY: slices of this call's; the lengths were compared.
            unsafe { self.allreduce_at((from, send.len()), to, elements, patience) }
        })
    }

    /// As [`Group::allreduce`].
    ///
    /// # Safety
    /// So many elements are readable at `send` and writable at `receive`, which is the same or does not
    /// overlap. Nothing else uses either.
    pub(crate) unsafe fn allreduce_at(
        &mut self,
        (send, count): (*const u8, usize),
        receive: *mut u8,
        mut elements: Elements<'_>,
        patience: Patience,
    ) -> Result<(), Error> {
        let total = elements.bytes(count)?;
        let what = self.begin_call(Kind::Allreduce, 0, elements.code)?;
        let patience = patience.of_call();
        let n = self.size();
        if n > 1 && total / n >= RING {
            // SAFETY: the caller's promise.
            return unsafe {
                self.allreduce_in_ring((send, count), receive, &mut elements, (what, patience))
            };
        }
        // SAFETY: as above; `receive` is used at place 0 alone.
        unsafe { self.reduce_along_tree(0, (send, total), receive, &mut elements, (what, patience))? };
        let first = self.transfers.members.all[0].rank;
        // SAFETY: as above.
        unsafe { self.bcast_at(first, receive, total, patience) }
    }

    /// Each member has a part of the elements, which goes around: in the first lap each adds its own, in the
    /// second each keeps the outcome.
    ///
    /// # Safety
    /// That of [`Group::allreduce_at`].
    unsafe fn allreduce_in_ring(
        &mut self,
        (send, count): (*const u8, usize),
        receive: *mut u8,
        elements: &mut Elements<'_>,
        (what, patience): (u64, Patience),
    ) -> Result<(), Error> {
        let (n, me, size) = (self.size(), self.transfers.members.me, elements.size);
        let (next, before) = ((me + 1) % n, (me + n - 1) % n);
        let begin = |part: usize| (count as u128 * part as u128 / n as u128) as usize * size;
        let part = |back: usize| {
            let part = (me + 2 * n - back) % n;
            (begin(part), begin(part + 1) - begin(part))
        };
        for step in 0..n - 1 {
            let (at, len) = part(step);
            let from = if step == 0 { send } else { receive.cast_const() };
            let out = Outgoing::new(next, what, (from.wrapping_add(at), len)).in_pieces(piece(size));
            self.transfers.clear();
            self.transfers.outgoing.push(out);
            let (at, len) = part(step + 1);
            let own = (send.wrapping_add(at), len);
            let to = Target::Memory(receive.wrapping_add(at));
            let reduction = Reduction::new(elements, own, what, std::iter::once(before), to);
            self.run(Also::Reduce(reduction), patience)?;
        }
        for step in 0..n - 1 {
            // Of the first one this member has added the last.
            let ((at, len), (to, room)) = (part(n - 1 + step), part(n + step));
            self.transfers.clear();
            self.transfers.outgoing.push(Outgoing::new(next, what, (receive.wrapping_add(at), len)));
            self.transfers.incoming.push(Incoming::new(before, what, (receive.wrapping_add(to), room), true));
            self.run(Also::Nothing, patience)?;
        }
        Ok(())
    }

    fn one_each(&self, parts: &[(usize, usize)]) -> Result<(), Error> {
        let n = self.size();
        if parts.len() == n {
            return Ok(());
        }
        Err(Error::Invalid(format!("there are {} sizes, and {n} members", parts.len())))
    }
}

/// What a member has for itself.
///
/// # Safety
/// What is sent is readable, what is received writable.
unsafe fn copy_own(send: (*const u8, usize), receive: (*mut u8, usize)) -> Result<(), Error> {
    if send.1 != receive.1 {
        return Err(Error::TooLong(format!(
            "{} bytes from this member to itself, which has asked for {}",
            send.1, receive.1
        )));
    }
    if send.1 != 0 {
        // SAFETY: the caller's promise; the lengths are one.
        unsafe { ptr::copy(send.0, receive.0, send.1) };
    }
    Ok(())
}

/// Calls with the way in which elements are combined.
fn with<T: Number, R>(
    combine: Combine<'_, T>,
    call: impl FnOnce(Elements<'_>) -> Result<R, Error>,
) -> Result<R, Error> {
    match combine {
        Combine::By(operation) => call(predefined::<T>(operation).ok_or_else(|| {
            Error::Invalid(format!("{operation:?} is an operation of integers: use sum, prod, min or max"))
        })?),
        Combine::Function(function) => {
            let mut each = |from: *const u8, to: *mut u8, count: usize| {
                let (from, to) = (from.cast::<T>(), to.cast::<T>());
                for at in 0..count {
                    // SAFETY: `Elements::combine` has so many of both, and any bytes are a number.
                    unsafe {
                        let (a, b) = (to.add(at).read_unaligned(), from.add(at).read_unaligned());
                        to.add(at).write_unaligned(function(a, b));
                    }
                }
            };
            call(Elements { size: size_of::<T>(), code: FUNCTION, how: How::Function(&mut each) })
        }
    }
}

impl Elements<'_> {
    /// Of so many.
    fn bytes(&self, count: usize) -> Result<usize, Error> {
        if self.size == 0 || self.size > ELEMENT_MOST {
            return Err(Error::Invalid(format!(
                "an element has {} bytes: 1 to {ELEMENT_MOST} can be combined",
                self.size
            )));
        }
        count.checked_mul(self.size).filter(|all| isize::try_from(*all).is_ok()).ok_or_else(|| {
            Error::Invalid(format!("{count} elements of {} bytes are more than memory can have", self.size))
        })
    }
}
