//! An endpoint of a provider below: [`Below`] by libfabric's calls.

use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::RawFd;
use std::ptr::null_mut;

use fabric_client::{Object, Objects};
use hmem::{Kind, Span};
use libfabric_sys as fi;
use wire::session::MOST_ADDRESS;

use crate::below::{Below, Buffer, Dest, Did, Lease, Message, NotSent, Usage};
use crate::remote::{Place, Remote};
use crate::slab::Slab;

mod open;

/// Bytes of a message, at most.
const MESSAGE: usize = 64 << 10;
/// Messages that are received into places of their own.
const RECEIVES: usize = 64;
/// Messages that are being sent from places of their own.
const SENDS: usize = 32;
/// How many of them one peer may have under way.
const WINDOW: u32 = 32;
/// Completions taken in one go.
const BATCH: usize = 16;
/// So many calls in a row that report sends and nothing else are not followed by another one at once. A
/// provider may do nothing for what arrives in a call that finds completions, and has to be called again
/// before long.
const ONLY_SENT: u32 = 3;

/// An endpoint of a provider below.
#[derive(Debug)]
pub struct Fabric {
    objects: ManuallyDrop<Objects>,
    receives: ManuallyDrop<Slab>,
    sends: ManuallyDrop<Slab>,
    /// What the registrations of both are called locally.
    descs: [Desc; 2],
    /// Places that no operation has. Short messages take one, too: a provider that fails to deliver what was
    /// injected does not report of which peer that was.
    free: Vec<usize>,
    /// By place, what is reported if the message fails.
    who: Vec<u64>,
    /// Likewise, whether it is a frame that the provider has; and how many are.
    kept: Vec<bool>,
    keeps: usize,
    /// How many calls in a row have reported sends and nothing else.
    only_sent: u32,
    /// Places that the provider had no room to take.
    unposted: Vec<usize>,
    most: usize,
    name: String,
    detail: String,
    dialect: (u32, u32),
    address: Vec<u8>,
    wait: Option<RawFd>,
    /// Completions that were taken, and not reported yet.
    did: Vec<Did>,
    dead: Option<String>,
    remote: Option<Remote>,
    core: fi::Core,
    pid: u32,
}

/// The local name of a registration.
#[derive(Clone, Copy, Debug)]
struct Desc(*mut libc::c_void);

// SAFETY: a name, which only the provider makes anything of.
unsafe impl Send for Desc {}

impl Fabric {
    /// Posts receives into places that have none.
    fn post(&mut self) {
        while let Some(place) = self.unposted.pop() {
            let ep = self.objects.ep.at();
            let (at, context) = (self.receives.place(place), self.receives.context(place));
            // SAFETY: an open endpoint. The place has so many bytes, and is the provider's from here on,
            // until the completion with this context, as is the context.
            let code = unsafe {
                match (*(*ep).msg).recv {
                    Some(recv) => {
                        recv(ep, at.cast(), self.most, self.descs[0].0, fi::FI_ADDR_UNSPEC, context.cast())
                    }
                    None => -(fi::FI_ENOSYS as isize),
                }
            };
            if code != 0 {
                self.unposted.push(place);
                if code != -(fi::FI_EAGAIN as isize) {
                    self.dead = Some(format!("fi_recv: {}", self.core.strerror(code as i32)));
                }
                return;
            }
        }
    }

    /// A place is not the provider's any more.
    fn let_go(&mut self, place: usize) {
        self.keeps -= usize::from(std::mem::take(&mut self.kept[place]));
        self.free.push(place);
    }

    /// What is reported next, of what was taken.
    #[inline]
    fn next_did(&mut self) -> Option<Did> {
        if let Some(did) = self.did.pop() {
            return Some(did);
        }
        if let Some(remote) = &mut self.remote {
            remote.serve();
        }
        self.dead.take().map(Did::Dead)
    }

    fn outcome(&self, what: &str, code: isize) -> Result<(), NotSent> {
        match code {
            0 => Ok(()),
            e if e == -(fi::FI_EAGAIN as isize) => Err(NotSent::Busy),
            e => Err(NotSent::Error(format!("{what}: {}", self.core.strerror(e as i32)))),
        }
    }

    /// Takes completions off the queue; how many there were.
    fn read(&mut self) -> usize {
        let mut found: [MaybeUninit<fi::fi_cq_msg_entry>; BATCH] = [const { MaybeUninit::uninit() }; BATCH];
        let cq = self.objects.cq.at();
        // SAFETY: an open queue of this format, and room for so many entries.
        let n = unsafe {
            match (*(*cq).ops).read {
                Some(read) => read(cq, found.as_mut_ptr().cast(), BATCH),
                None => -(fi::FI_ENOSYS as isize),
            }
        };
        if n == -(fi::FI_EAVAIL as isize) {
            return self.read_error().into();
        }
        if n < 0 {
            if ![fi::FI_EAGAIN, fi::FI_EINTR].contains(&(-n as i32)) {
                self.dead = Some(format!("fi_cq_read: {}", self.core.strerror(n as i32)));
            }
            return 0;
        }
        for entry in found.iter().take(n as usize) {
            // SAFETY: the first `n` were written.
            let entry = unsafe { entry.assume_init_ref() };
            if let Some(place) = self.receives.of_context(entry.op_context) {
                self.did.push(Did::Came(Buffer(place as u32), entry.len.min(self.most)));
            } else if let Some(place) = self.sends.of_context(entry.op_context) {
                self.let_go(place);
            } else if let Some(who) = self.remote.as_mut().and_then(|r| r.over(entry.op_context)) {
                self.did.push(Did::Read(who, true));
            }
        }
        self.did.reverse();
        n as usize
    }

    #[cold]
    fn read_error(&mut self) -> bool {
        // SAFETY: plain data, for which zeros are a value.
        let mut entry: fi::fi_cq_err_entry = unsafe { std::mem::zeroed() };
        let cq = self.objects.cq.at();
        // SAFETY: an open queue, and an entry, as long as any version has it, that asks for no further data.
        let n = unsafe {
            match (*(*cq).ops).readerr {
                Some(read) => read(cq, &mut entry, 0),
                None => -(fi::FI_ENOSYS as isize),
            }
        };
        if n <= 0 {
            return false;
        }
        let why = self.core.strerror(entry.err);
        if let Some(place) = self.receives.of_context(entry.op_context) {
            log::debug!("{}: a receive failed: {why}", self.name);
            self.unposted.push(place);
            self.post();
        } else if let Some(place) = self.sends.of_context(entry.op_context) {
            self.let_go(place);
            self.did.push(Did::Failed(self.who[place], why));
        } else if let Some(who) = self.remote.as_mut().and_then(|r| r.over(entry.op_context)) {
            log::debug!("{}: a read failed: {why}", self.name);
            self.did.push(Did::Read(who, false));
        }
        true
    }
}

/// Calls a method of what serves for reads, if there is that.
macro_rules! remote {
    ($self:ident, $method:ident($($arg:expr),*), $else:expr) => {{
        let Objects { domain, av, cq, .. } = &*$self.objects;
        match &mut $self.remote {
            Some(remote) => remote.$method(&Place { domain, av, cq }, $($arg),*),
            None => $else,
        }
    }};
}

impl Below for Fabric {
    fn name(&self) -> &str {
        &self.name
    }

    fn detail(&self) -> &str {
        &self.detail
    }

    fn dialect(&self) -> (u32, u32) {
        self.dialect
    }

    fn address(&self) -> &[u8] {
        &self.address
    }

    fn most(&self) -> usize {
        self.most
    }

    fn window(&self) -> u32 {
        WINDOW
    }

    fn meet(&mut self, address: &[u8]) -> Result<Dest, String> {
        // No provider reads behind an address of its own length.
        let mut room = [0; MOST_ADDRESS];
        if address.len() != self.address.len() {
            return Err(format!("its address has {} bytes, and not {}", address.len(), self.address.len()));
        }
        room[..address.len()].copy_from_slice(address);
        let (mut dest, av) = (fi::FI_ADDR_NOTAVAIL, self.objects.av.at());
        // SAFETY: an open address vector; one address of the length that this provider's have, and a place
        // for the answer.
        let n = unsafe {
            match (*(*av).ops).insert {
                Some(insert) => insert(av, room.as_ptr().cast(), 1, &mut dest, 0, null_mut()),
                None => -fi::FI_ENOSYS,
            }
        };
        if n == 1 && dest != fi::FI_ADDR_NOTAVAIL {
            Ok(Dest(dest))
        } else {
            Err("fi_av_insert refuses its address".into())
        }
    }

    fn part(&mut self, dest: Dest) {
        let (mut dest, av) = (dest.0, self.objects.av.at());
        // SAFETY: an open address vector, and an address of it.
        unsafe {
            if let Some(remove) = (*(*av).ops).remove {
                remove(av, &mut dest, 1, 0);
            }
        }
    }

    fn send(&mut self, to: Dest, message: &Message<'_>) -> Result<(), NotSent> {
        let total = message.total();
        assert!(total <= self.most, "a message that is too long");
        let Some(&place) = self.free.last() else { return Err(NotSent::Busy) };
        let at = self.sends.place(place);
        // SAFETY: a place of so many bytes that no operation has.
        let bytes = unsafe { std::slice::from_raw_parts_mut(at, total) };
        if !message.copy_to(bytes) {
            return Err(NotSent::Fault);
        }
        let (ep, context) = (self.objects.ep.at(), self.sends.context(place));
        // SAFETY: an open endpoint. The place is the provider's from here on, until the completion with this
        // context, as is the context.
        let code = unsafe {
            match (*(*ep).msg).send {
                Some(send) => send(ep, at.cast(), total, self.descs[1].0, to.0, context.cast()),
                None => -(fi::FI_ENOSYS as isize),
            }
        };
        self.outcome("fi_send", code)?;
        self.free.pop();
        self.who[place] = message.who;
        self.kept[place] = message.is_frame;
        self.keeps += usize::from(message.is_frame);
        Ok(())
    }

    fn keeps(&self, who: u64) -> bool {
        self.keeps > 0 && self.kept.iter().zip(&self.who).any(|(kept, of)| *kept && *of == who)
    }

    fn reads(&self) -> Option<usize> {
        self.remote.as_ref().map(|remote| remote.most)
    }

    fn reaches(&self, kind: Kind, usage: Usage) -> bool {
        self.remote.as_ref().is_some_and(|remote| remote.reaches(kind, usage))
    }

    fn stage_devices(&mut self) {
        if let Some(remote) = &mut self.remote {
            remote.stage_devices();
        }
    }

    fn lend(&mut self, span: Span) -> Option<Lease> {
        self.remote.as_mut()?.lend(span)
    }

    fn end_lease(&mut self, number: u64) {
        if let Some(remote) = &mut self.remote {
            remote.end_lease(number);
        }
    }

    fn read(&mut self, who: u64, from: Dest, lent: (u64, u64), into: Span) -> Result<(), NotSent> {
        remote!(self, read(who, from, lent, into), Err(NotSent::Error("it has no reads".into())))
    }

    fn stop_reads(&mut self) -> bool {
        self.remote.as_mut().is_none_or(Remote::stop)
    }

    fn lender(&self) -> &[u8] {
        self.remote.as_ref().map_or(&[], Remote::lender)
    }

    fn stop_lending(&mut self) -> bool {
        self.remote.as_mut().is_none_or(Remote::stop_lending)
    }

    fn poll(&mut self) -> Option<Did> {
        while self.did.is_empty() && self.dead.is_none() && self.read() > 0 {}
        self.next_did()
    }

    fn poll_soon(&mut self) -> Option<Did> {
        while self.did.is_empty() && self.dead.is_none() {
            let n = self.read();
            // Nothing, or the ends of sends, which are not reported.
            self.only_sent = if n == 0 || !self.did.is_empty() { 0 } else { self.only_sent + 1 };
            if n == 0 || n < BATCH && (1..=ONLY_SENT).contains(&self.only_sent) {
                break;
            }
        }
        self.next_did()
    }

    fn poll_taken(&mut self) -> Option<Did> {
        self.did.pop()
    }

    fn bytes(&self, buffer: Buffer) -> &[u8] {
        let at = self.receives.place(buffer.0 as usize);
        // SAFETY: the place was written by a receive that is over, and belongs to this side until it is given
        // back.
        unsafe { std::slice::from_raw_parts(at, self.receives.each()) }
    }

    fn give_back(&mut self, buffer: Buffer) {
        assert!((buffer.0 as usize) < self.receives.len());
        self.unposted.push(buffer.0 as usize);
        self.post();
    }

    fn try_wait(&mut self) -> bool {
        if !self.did.is_empty() || self.dead.is_some() {
            return false;
        }
        if !self.unposted.is_empty() {
            self.post();
        }
        if !self.remote.as_mut().is_none_or(Remote::try_wait) {
            return false;
        }
        let (fabric, mut fids) = (self.objects.fabric.at(), [self.objects.cq.fid()]);
        // SAFETY: an open fabric, and a list of one open object of it.
        unsafe { (*(*fabric).ops).trywait.is_some_and(|f| f(fabric, fids.as_mut_ptr(), 1) == 0) }
    }

    fn wait_fd(&self) -> Option<RawFd> {
        self.wait
    }

    fn lender_fd(&self) -> Option<RawFd> {
        self.remote.as_ref().map(Remote::lender_fd)
    }

    fn is_read_unseen(&self) -> bool {
        self.remote.as_ref().is_some_and(Remote::is_unseen)
    }

    fn unwatch_lender(&mut self) {
        if let Some(remote) = &mut self.remote {
            remote.unwatch();
        }
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        // SAFETY: taken once, here, and not used after this.
        let (objects, receives, sends) = unsafe {
            let objects = ManuallyDrop::take(&mut self.objects);
            (objects, ManuallyDrop::take(&mut self.receives), ManuallyDrop::take(&mut self.sends))
        };
        let Objects { ep, regions, av, cq, domain, fabric } = objects;
        // What a forked child has is its parent's.
        let stays = if std::process::id() == self.pid {
            let reads = self.remote.take().is_some_and(|mut remote| {
                let stays = !remote.close();
                if stays {
                    remote.leak();
                }
                stays
            });
            ep.close().is_err() || reads
        } else {
            if let Some(remote) = self.remote.take() {
                remote.leak();
            }
            ep.leak();
            true
        };
        if stays {
            // An endpoint that is open may still write.
            log::debug!("{}: its endpoint stays open, and keeps its memory", self.name);
            regions.into_iter().for_each(Object::leak);
            av.leak();
            cq.leak();
            domain.leak();
            fabric.leak();
            std::mem::forget((receives, sends));
            return;
        }
        // A completion that is still there refers to nothing any more.
        drop((regions, av, cq, domain, fabric));
        drop((receives, sends));
    }
}
