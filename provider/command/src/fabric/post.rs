//! Posting operations and counting what completes.
//!
//! Each operation names the slot whose context it uses. Slot and memory have to be left alone until as many
//! operations have completed as were posted.

use std::mem::MaybeUninit;
use std::time::Instant;

use libfabric_sys as sys;

use super::context::{AtomicKind, Counts, Slot};
use super::{Endpoint, Error, Part};

/// Which message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Plain,
    Tagged(u64),
}

/// An operation that ended with an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// A positive `FI_E*`.
    pub number: libc::c_int,
    /// The provider's.
    pub words: String,
    pub text: String,
}

/// Operands of an atomic operation, 8 bytes each.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    pub operand: Part,
    pub compare: Part,
    pub result: Part,
}

/// Calls a function of one of the endpoint's tables until it is accepted.
macro_rules! post {
    ($self:ident . $table:ident . $name:ident ( $($arg:expr),* $(,)? )) => {{
        // SAFETY: the endpoint is open. A provider may leave a whole table null.
        let function = unsafe {
            (*$self.objects.ep.at()).$table.as_ref().and_then(|table| table.$name)
        };
        let name = concat!(stringify!($table), " ", stringify!($name));
        let function = $self.library.have(function, name)?;
        let mut since = None;
        loop {
            // SAFETY: the endpoint is open. Buffers are parts of `region` (checked by `at`) and
            // contexts are of `contexts`: both outlive the endpoint, and nothing holds references
            // into them. The descriptor is that of the region, or null if none is wanted.
            let rc = unsafe { function($self.objects.ep.at(), $($arg),*) };
            if rc == 0 {
                break;
            }
            if rc != -(sys::FI_EAGAIN as isize) {
                return Err(Error::of($self.library.core(), name, rc as i32));
            }
            if $self.poll()? == 0 {
                $self.patience(&mut since, name, "is still refused with FI_EAGAIN")?;
            }
        }
    }};
}

impl Endpoint {
    /// Sends to the peer; returns how many completions that will give.
    #[inline]
    pub fn send(&mut self, kind: Kind, part: Part, slot: Slot) -> Result<u64, Error> {
        self.send_at(self.peer, kind, part, slot)
    }

    /// Sends to one of many.
    #[inline]
    pub fn send_to(&mut self, to: usize, kind: Kind, part: Part, slot: Slot) -> Result<u64, Error> {
        self.send_at(self.peers[to], kind, part, slot)
    }

    #[inline]
    fn send_at(&mut self, peer: sys::fi_addr_t, kind: Kind, part: Part, slot: Slot) -> Result<u64, Error> {
        let buf = self.region.at(part).cast_const().cast();
        if part.len <= self.inject_size {
            match kind {
                Kind::Plain => post!(self.msg.inject(buf, part.len, peer)),
                Kind::Tagged(tag) => post!(self.tagged.inject(buf, part.len, peer, tag)),
            }
            return Ok(0);
        }
        let (desc, context) = (self.desc, self.contexts.tx(slot));
        match kind {
            Kind::Plain => post!(self.msg.send(buf, part.len, desc, peer, context)),
            Kind::Tagged(tag) => post!(self.tagged.send(buf, part.len, desc, peer, tag, context)),
        }
        Ok(1)
    }

    /// Receives from any peer.
    #[inline]
    pub fn recv(&mut self, kind: Kind, part: Part, slot: Slot) -> Result<(), Error> {
        self.recv_from(None, kind, part, slot)
    }

    /// Receives from one of many, or from any.
    #[inline]
    pub fn recv_from(
        &mut self,
        from: Option<usize>,
        kind: Kind,
        part: Part,
        slot: Slot,
    ) -> Result<(), Error> {
        let (buf, desc) = (self.region.at(part).cast(), self.desc);
        let context = self.contexts.rx(slot, part.len);
        let from = from.map_or(sys::FI_ADDR_UNSPEC, |from| self.peers[from]);
        match kind {
            Kind::Plain => post!(self.msg.recv(buf, part.len, desc, from, context)),
            Kind::Tagged(tag) => {
                post!(self.tagged.recv(buf, part.len, desc, from, tag, 0, context))
            }
        }
        Ok(())
    }

    /// Writes to the peer's region at `offset`, if `small` by injecting where that is possible;
    /// returns how many completions that will give.
    #[inline]
    pub fn write(&mut self, part: Part, offset: usize, slot: Slot, small: bool) -> Result<u64, Error> {
        let (addr, key) = self.target(part, offset)?;
        let (buf, peer) = (self.region.at(part).cast_const().cast(), self.peer);
        if small && part.len <= self.inject_size {
            post!(self.rma.inject(buf, part.len, peer, addr, key));
            return Ok(0);
        }
        let (desc, context) = (self.desc, self.contexts.tx(slot));
        post!(self.rma.write(buf, part.len, desc, peer, addr, key, context));
        Ok(1)
    }

    /// As [`Endpoint::write`], and the peer gets a completion.
    #[inline]
    pub fn write_data(&mut self, part: Part, offset: usize, data: u64, slot: Slot) -> Result<u64, Error> {
        let (addr, key) = self.target(part, offset)?;
        let (buf, peer) = (self.region.at(part).cast_const().cast(), self.peer);
        if part.len <= self.inject_size {
            post!(self.rma.injectdata(buf, part.len, data, peer, addr, key));
            return Ok(0);
        }
        let (desc, context) = (self.desc, self.contexts.tx(slot));
        post!(self.rma.writedata(buf, part.len, desc, data, peer, addr, key, context));
        Ok(1)
    }

    /// Reads from the peer's region at `offset`; gives one completion.
    #[inline]
    pub fn read(&mut self, part: Part, offset: usize, slot: Slot) -> Result<(), Error> {
        let (addr, key) = self.target(part, offset)?;
        let (buf, peer) = (self.region.at(part).cast(), self.peer);
        let (desc, context) = (self.desc, self.contexts.tx(slot));
        post!(self.rma.read(buf, part.len, desc, peer, addr, key, context));
        Ok(())
    }

    /// Reads under any key from the start of its registration; gives one completion.
    pub fn read_by_key(&mut self, part: Part, key: u64, slot: Slot) -> Result<(), Error> {
        let (buf, peer) = (self.region.at(part).cast(), self.peer);
        let (desc, context) = (self.desc, self.contexts.tx(slot));
        post!(self.rma.read(buf, part.len, desc, peer, 0, key, context));
        Ok(())
    }

    /// The next operation that has ended, and how; `None`: none has.
    pub fn next_end(&mut self) -> Result<Option<Result<(), Failure>>, Error> {
        let mut entry = MaybeUninit::<sys::fi_cq_data_entry>::uninit();
        // SAFETY: the queue is open, so its table is valid; this slot was there in 1.0.
        let read = unsafe { (*(*self.objects.cq.at()).ops).read };
        let read = self.library.have(read, "cq read")?;
        // SAFETY: the queue was opened with FI_CQ_FORMAT_DATA, and there is room for one entry.
        match unsafe { read(self.objects.cq.at(), entry.as_mut_ptr().cast(), 1) } {
            1.. => Ok(Some(Ok(()))),
            n if n == 0 || n == -(sys::FI_EAGAIN as isize) => Ok(None),
            n => self.failure(n).map(|failure| Some(Err(failure))),
        }
    }

    /// An atomic operation on the number at `offset` of the peer's region; gives one completion.
    #[inline]
    pub fn atomic(&mut self, kind: AtomicKind, on: Operands, offset: usize, slot: Slot) -> Result<(), Error> {
        let (addr, key) = self.target(Part { offset: 0, len: 8 }, offset)?;
        assert!([on.operand, on.compare, on.result].iter().all(|part| part.len == 8));
        let operand = self.region.at(on.operand).cast_const().cast();
        let compare = self.region.at(on.compare).cast_const().cast();
        let result = self.region.at(on.result).cast();
        let (d, peer, context) = (self.desc, self.peer, self.contexts.tx(slot));
        let (ty, op) = (sys::FI_UINT64, kind.op());
        match kind {
            AtomicKind::Plain => {
                post!(self.atomic.write(operand, 1, d, peer, addr, key, ty, op, context));
            }
            AtomicKind::Fetch => {
                post!(self.atomic.readwrite(operand, 1, d, result, d, peer, addr, key, ty, op, context));
            }
            AtomicKind::Compare => {
                post!(
                    self.atomic
                        .compwrite(operand, 1, d, compare, d, result, d, peer, addr, key, ty, op, context)
                );
            }
        }
        Ok(())
    }

    /// Address and key for the peer's bytes at `offset`.
    #[inline]
    fn target(&self, part: Part, offset: usize) -> Result<(u64, u64), Error> {
        if offset > self.remote.len || part.len > self.remote.len - offset {
            return Err(Error::Failed("a target outside of the peer's region".into()));
        }
        Ok((self.remote.base.wrapping_add(offset as u64), self.remote.key))
    }

    /// Makes progress and counts what completed; returns how much that was.
    #[inline]
    pub fn poll(&mut self) -> Result<usize, Error> {
        const BATCH: usize = 16;
        let mut entries = [const { MaybeUninit::<sys::fi_cq_data_entry>::uninit() }; BATCH];
        // SAFETY: the queue is open, so its table is valid; this slot was there in 1.0.
        let read = unsafe { (*(*self.objects.cq.at()).ops).read };
        let read = self.library.have(read, "cq read")?;
        // SAFETY: the queue was opened with FI_CQ_FORMAT_DATA, and there is room for BATCH entries.
        let n = unsafe { read(self.objects.cq.at(), entries.as_mut_ptr().cast(), BATCH) };
        let count = match n {
            1.. => (n as usize).min(BATCH),
            0 => return Ok(0),
            _ if n == -(sys::FI_EAGAIN as isize) => return Ok(0),
            _ => return Err(self.completion_error(n)),
        };
        for entry in &entries[..count] {
            // SAFETY: the provider has filled in the first `count` entries.
            let entry = unsafe { entry.assume_init_ref() };
            let half = self.contexts.slots();
            if entry.flags & sys::FI_REMOTE_WRITE != 0 {
                self.counts.remote += 1;
                continue;
            }
            match self.contexts.index(entry.op_context) {
                Some(slot) if slot < half => self.counts.tx += 1,
                Some(slot) => {
                    let want = self.contexts.expected(slot - half);
                    if entry.len != want {
                        return Err(Error::Failed(format!(
                            "WRONG LENGTH: a receive of {want} bytes got {}",
                            entry.len
                        )));
                    }
                    self.counts.rx += 1;
                }
                None => self.counts.remote += 1,
            }
        }
        Ok(count)
    }

    /// Polls until `done`. `what` says in an error what that would have been.
    #[inline]
    pub fn wait(&mut self, what: &str, done: impl Fn(&Counts) -> bool) -> Result<(), Error> {
        let (mut idle, mut since) = (0u32, None);
        while !done(&self.counts) {
            if self.poll()? > 0 {
                (idle, since) = (0, None);
                continue;
            }
            idle += 1;
            if idle % 256 == 0 {
                self.patience(&mut since, what, "did not happen")?;
            }
        }
        Ok(())
    }

    /// Fails if this was first called with `since` longer ago than the time limit.
    #[cold]
    pub fn patience(&self, since: &mut Option<Instant>, what: &str, state: &str) -> Result<(), Error> {
        let since = *since.get_or_insert_with(Instant::now);
        if since.elapsed() < self.timeout {
            if self.shares_core {
                std::thread::yield_now();
            }
            return Ok(());
        }
        let Counts { tx, rx, remote } = self.counts;
        Err(Error::Failed(format!(
            "TIMEOUT: {what} {state} for {:?} (completed so far: {tx} sent, {rx} received, {remote} \
             written by the peer)",
            self.timeout
        )))
    }

    #[cold]
    fn completion_error(&self, rc: isize) -> Error {
        self.failure(rc).map_or_else(|error| error, |failure| Error::Failed(failure.text))
    }

    /// What reading the completion queue returned `rc` for.
    #[cold]
    fn failure(&self, rc: isize) -> Result<Failure, Error> {
        if rc != -(sys::FI_EAVAIL as isize) {
            return Err(Error::of(self.library.core(), "reading the completion queue", rc as i32));
        }
        let mut entry = sys::fi_cq_err_entry::default();
        let mut detail = [0u8; 256];
        // SAFETY: the queue is open; these slots were there in 1.0. The entry is at least as long as
        // any version of it, has no buffer for err_data, and the text has room for its length.
        let words = unsafe {
            let ops = (*self.objects.cq.at()).ops;
            let Some(readerr) = (*ops).readerr else {
                return Err(Error::Failed("a failed completion".into()));
            };
            let got = readerr(self.objects.cq.at(), &mut entry, 0);
            if got < 1 {
                return Err(Error::of(self.library.core(), "reading a failed completion", got as i32));
            }
            let text = (*ops).strerror.map(|strerror| {
                strerror(
                    self.objects.cq.at(),
                    entry.prov_errno,
                    entry.err_data,
                    detail.as_mut_ptr().cast(),
                    detail.len(),
                )
            });
            match text {
                Some(text) if !text.is_null() => {
                    std::ffi::CStr::from_ptr(text).to_string_lossy().into_owned()
                }
                _ => String::new(),
            }
        };
        let which = match self.contexts.index(entry.op_context) {
            Some(slot) if slot < self.contexts.slots() => "one of our sends or RMA operations",
            Some(_) => "one of our receives",
            None => "an operation",
        };
        let text = format!(
            "{which} failed: {} (provider: {} {words:?})",
            self.library.strerror(entry.err.into()),
            entry.prov_errno
        );
        Ok(Failure { number: entry.err, words, text })
    }
}
