//! Operations under way, and the calls that start them.

use std::cell::UnsafeCell;

use libfabric_sys as sys;

use super::open::{OPERATIONS, Opened};
use crate::{Error, Rank, Token};

/// What an operation was started for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    Free,
    /// A put or a get.
    Move(Rank, Token),
    /// A fetch into the buffer of this number.
    Fetch(Rank, Token, usize),
    /// A message, or a few bytes, from the buffer of this number.
    Buffer(usize),
    /// A receive into the buffer of this number.
    Receive(usize),
    /// An operation of a peer that is gone; the buffer is still in use, if there is one.
    Dead(Option<usize>),
}

/// The memory that a provider keeps its state of each operation in, and what each is for.
#[derive(Debug)]
pub struct Slots {
    contexts: Box<[UnsafeCell<sys::fi_context2>]>,
    work: Vec<Work>,
    free: Vec<usize>,
}

impl Slots {
    pub fn new(more: usize) -> Slots {
        let count = OPERATIONS + more;
        let context = |_| UnsafeCell::new(sys::fi_context2::default());
        let (contexts, free) = ((0..count).map(context).collect(), (0..count).rev().collect());
        Slots { contexts, work: vec![Work::Free; count], free }
    }

    /// A slot for this; none is free: [`Error::Again`].
    #[inline]
    pub fn take(&mut self, work: Work) -> Result<usize, Error> {
        let slot = self.free.pop().ok_or(Error::Again)?;
        self.work[slot] = work;
        Ok(slot)
    }

    #[inline]
    pub fn context(&self, slot: usize) -> *mut libc::c_void {
        self.contexts[slot].get().cast()
    }

    /// What the operation with this context was for; its slot is free again.
    #[inline]
    pub fn end(&mut self, context: *mut libc::c_void) -> Work {
        let offset = context.addr().wrapping_sub(self.contexts.as_ptr().addr());
        let slot = offset / size_of::<sys::fi_context2>();
        match self.work.get_mut(slot) {
            Some(work) if *work != Work::Free => {
                self.free.push(slot);
                std::mem::replace(work, Work::Free)
            }
            _ => Work::Free,
        }
    }

    /// Whether no operation but receives is under way.
    pub fn quiet(&self) -> bool {
        self.work.iter().all(|work| matches!(work, Work::Free | Work::Receive(_) | Work::Dead(_)))
    }

    /// The tokens of what is under way to a peer, which will not come to an end for the caller any more.
    pub fn abandon(&mut self, peer: Rank) -> Vec<Token> {
        let mut tokens = Vec::new();
        for work in &mut self.work {
            match *work {
                Work::Move(to, token) if to == peer => {
                    tokens.push(token);
                    *work = Work::Dead(None);
                }
                Work::Fetch(to, token, buffer) if to == peer => {
                    tokens.push(token);
                    *work = Work::Dead(Some(buffer));
                }
                _ => {}
            }
        }
        tokens
    }
}

/// A write.
#[derive(Clone, Copy, Debug)]
pub struct Write {
    pub from: *const u8,
    pub len: usize,
    pub desc: *mut libc::c_void,
    pub to: sys::fi_addr_t,
    pub address: u64,
    pub key: u64,
    /// For the target's queue.
    pub data: Option<u64>,
    /// Behind all earlier ones, which the provider does not promise by itself.
    pub fence: bool,
}

/// Calls a function of one of the endpoint's tables.
macro_rules! call {
    ($with:ident . $table:ident . $name:ident ( $($arg:expr),* $(,)? )) => {{
        // SAFETY: the endpoint is open. A provider may leave a whole table null.
        let function = unsafe { (*$with.ep.as_ptr()).$table.as_ref().and_then(|table| table.$name) };
        let name = concat!(stringify!($table), " ", stringify!($name));
        match function {
            // SAFETY: the endpoint is open. The caller of each function below has checked that the buffers
            // are inside of registered memory, which outlives the endpoint, and holds no reference into it;
            // contexts are of `Slots`, which outlive it too.
            Some(function) => answer($with, unsafe { function($with.ep.as_ptr(), $($arg),*) }, name),
            None => Err(Error::Unsupported(format!("provider {} has no {name}", $with.limits.provider))),
        }
    }};
}

#[inline]
fn answer(with: &Opened, rc: isize, what: &str) -> Result<(), Error> {
    match rc {
        0 => Ok(()),
        _ if rc == -(sys::FI_EAGAIN as isize) => Err(Error::Again),
        _ => Err(Error::System(format!(
            "provider {}, {what}: {} ({rc})",
            with.limits.provider,
            with.library.strerror(rc as i64)
        ))),
    }
}

pub fn send(
    with: &Opened,
    from: *const u8,
    len: usize,
    desc: *mut libc::c_void,
    to: u64,
    context: *mut libc::c_void,
) -> Result<(), Error> {
    call!(with.msg.send(from.cast(), len, desc, to, context))
}

pub fn receive(
    with: &Opened,
    at: *mut u8,
    len: usize,
    desc: *mut libc::c_void,
    context: *mut libc::c_void,
) -> Result<(), Error> {
    call!(with.msg.recv(at.cast(), len, desc, sys::FI_ADDR_UNSPEC, context))
}

/// A write with a completion.
#[inline]
pub fn write(with: &Opened, w: &Write, context: *mut libc::c_void) -> Result<(), Error> {
    match (w.fence, w.data) {
        (false, None) => call!(with.rma.write(w.from.cast(), w.len, w.desc, w.to, w.address, w.key, context)),
        (false, Some(data)) => {
            call!(with.rma.writedata(w.from.cast(), w.len, w.desc, data, w.to, w.address, w.key, context))
        }
        (true, data) => {
            let flags =
                sys::FI_FENCE | sys::FI_COMPLETION | if data.is_some() { sys::FI_REMOTE_CQ_DATA } else { 0 };
            let iov = libc::iovec { iov_base: w.from.cast_mut().cast(), iov_len: w.len };
            let rma = sys::fi_rma_iov { addr: w.address, len: w.len, key: w.key };
            let mut desc = w.desc;
            let message = sys::fi_msg_rma {
                msg_iov: &iov,
                desc: &mut desc,
                iov_count: 1,
                addr: w.to,
                rma_iov: &rma,
                rma_iov_count: 1,
                context,
                data: data.unwrap_or(0),
            };
            call!(with.rma.writemsg(&message, flags))
        }
    }
}

/// A write without one, whose buffer may be reused at once.
#[inline]
pub fn inject(with: &Opened, w: &Write) -> Result<(), Error> {
    match w.data {
        None => call!(with.rma.inject(w.from.cast(), w.len, w.to, w.address, w.key)),
        Some(data) => call!(with.rma.injectdata(w.from.cast(), w.len, data, w.to, w.address, w.key)),
    }
}

#[inline]
pub fn read(
    with: &Opened,
    at: *mut u8,
    len: usize,
    desc: *mut libc::c_void,
    (from, address, key): (u64, u64, u64),
    context: *mut libc::c_void,
) -> Result<(), Error> {
    call!(with.rma.read(at.cast(), len, desc, from, address, key, context))
}

/// Adds the number at `at` to a peer's, which comes behind it.
pub fn fetch_add(
    with: &Opened,
    at: *mut u8,
    desc: *mut libc::c_void,
    (peer, address, key): (u64, u64, u64),
    context: *mut libc::c_void,
) -> Result<(), Error> {
    let (ty, op) = (sys::FI_UINT64, sys::FI_SUM);
    let result = at.wrapping_add(8);
    call!(with.atomic.readwrite(
        at.cast_const().cast(),
        1,
        desc,
        result.cast(),
        desc,
        peer,
        address,
        key,
        ty,
        op,
        context
    ))
}
