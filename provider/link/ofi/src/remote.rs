//! Memory that is accessed without its owner: registrations for peers, and reads and writes of theirs, by
//! libfabric's calls.
//!
//! These are posted to an endpoint of their own, since no provider has to be able to end one that is under
//! way: an endpoint that is closed accesses no memory any more (fi_endpoint(3)), and the next access opens
//! another one. Memory is lent by another one ([`Lender`]), for the same reason: many a provider goes on to
//! read memory of a registration that is closed (fi_mr(3) leaves it to the application to close none that is
//! in use).

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::ptr::null_mut;

use fabric_client::{Infos, Object, done, made};
use hmem::{Caps, Kind, Span};
use libfabric_sys as fi;
use link_api::Way;

use crate::lender::Lender;
use crate::registration::{Modes, of_device};
use crate::slab::Slab;
use below::{Lease, NotSent, Piece, Usage};

/// Accesses under way.
const READS: usize = 64;
/// What registrations may need: all that is known here.
const MODES: i32 = fi::FI_MR_LOCAL
    | fi::FI_MR_VIRT_ADDR
    | fi::FI_MR_ALLOCATED
    | fi::FI_MR_PROV_KEY
    | fi::FI_MR_ENDPOINT
    | fi::FI_MR_HMEM;
/// So many registrations of a kind of devices' memory in a row that were refused, and no more are tried.
const REFUSALS: u8 = 8;
/// In place of a key that there is none of.
const NO_KEY: u64 = u64::MAX;

/// Whether an endpoint may be closed while it reads. Of libfabric 1.17 `tcp;ofi_rxm` crashes then in
/// fi_close(3), and the domain of `net` makes no progress any more; `tcp;ofi_rxm` and `tcp` of 2.1 do
/// neither.
///
/// # Safety
/// `of` is what the core has given out with an info.
unsafe fn ends_reads(of: *const fi::fi_fabric_attr) -> bool {
    // As providers number themselves: 100 times the major number of libfabric and the minor one, above 16
    // bits.
    const SINCE: u32 = 201 << 16;
    // SAFETY: the caller's promise.
    let (name, version) = unsafe { ((*of).prov_name, (*of).prov_version) };
    if name.is_null() || version >= SINCE {
        return true;
    }
    // SAFETY: likewise.
    let name = unsafe { std::ffi::CStr::from_ptr(name) }.to_bytes();
    name != b"net" && !name.starts_with(b"tcp;")
}

/// Posts a read; what the provider answers. The memory, which is there until the access was reported to be
/// over, or [`Remote::stop`] has closed the endpoint, and the context are the provider's until then.
fn post_read(
    ep: &Object<fi::fid_ep>,
    piece: &Piece,
    desc: *mut libc::c_void,
    context: *mut fi::fi_context2,
) -> isize {
    let Piece { at, key, addr, local, .. } = *piece;
    // SAFETY: an open endpoint, and memory and a context as above.
    unsafe {
        let Some(read) = (*(*ep.at()).rma).read else { return -(fi::FI_ENOSYS as isize) };
        read(ep.at(), local.as_ptr().cast(), local.len(), desc, at.0, addr, key, context.cast())
    }
}

/// Posts a write that completes when its bytes are in the peer's memory; else as [`post_read`].
fn post_write(
    ep: &Object<fi::fid_ep>,
    piece: &Piece,
    mut desc: *mut libc::c_void,
    context: *mut fi::fi_context2,
) -> isize {
    let Piece { at, key, addr, local, .. } = *piece;
    let here = libc::iovec { iov_base: local.as_ptr().cast(), iov_len: local.len() };
    let there = fi::fi_rma_iov { addr, len: local.len(), key };
    let message = fi::fi_msg_rma {
        msg_iov: &raw const here,
        desc: &raw mut desc,
        iov_count: 1,
        addr: at.0,
        rma_iov: &raw const there,
        rma_iov_count: 1,
        context: context.cast(),
        data: 0,
    };
    // SAFETY: an open endpoint, and memory and a context as for a read; the lists are read by the call alone.
    unsafe {
        let Some(write) = (*(*ep.at()).rma).writemsg else { return -(fi::FI_ENOSYS as isize) };
        write(ep.at(), &raw const message, fi::FI_DELIVERY_COMPLETE | fi::FI_COMPLETION)
    }
}

/// What of a provider serves for accesses.
#[derive(Debug)]
pub(crate) struct Remote {
    info: Infos,
    modes: Modes,
    /// Longest access.
    pub(crate) most: usize,
    /// Whether there are writes, whose completion means that the bytes are in the peer's memory.
    pub(crate) writes: bool,
    /// Where accesses are posted, once there are any.
    ep: Option<Object<fi::fid_ep>>,
    /// Where peers access memory.
    lender: Lender,
    contexts: Slab,
    free: Vec<usize>,
    /// By place, the access, and the registration of memory here.
    flying: Vec<(u64, Option<Object<fi::fid_mr>>)>,
    leases: HashMap<u64, Object<fi::fid_mr>>,
    number: u64,
    /// Whether there is memory of devices for it.
    hmem: bool,
    /// By usage and kind of memory, how many registrations in a row were refused.
    refusals: [[u8; KINDS]; USAGES],
}

/// Kinds of memory.
const KINDS: usize = Kind::Client as usize + 1;
/// And usages.
const USAGES: usize = Usage::WrittenFrom as usize + 1;

/// What registrations and endpoints belong to.
pub(crate) struct Place<'a> {
    pub(crate) domain: &'a Object<fi::fid_domain>,
    pub(crate) av: &'a Object<fi::fid_av>,
    pub(crate) cq: &'a Object<fi::fid_cq>,
}

impl Remote {
    /// `None` where the provider has no reads, or asks for what is not known here.
    ///
    /// # Safety
    /// `info` is an element of a list that this core has given out, with all its attributes.
    pub(crate) unsafe fn new(core: &fi::Core, info: *mut fi::fi_info) -> Option<Remote> {
        const NEEDS: u64 = fi::FI_RMA | fi::FI_READ | fi::FI_REMOTE_READ;
        // SAFETY: the caller's promise.
        let (caps, mr_mode, key_size, most) = unsafe {
            let domain = (*info).domain_attr;
            ((*info).caps, (*domain).mr_mode, (*domain).mr_key_size, (*(*info).ep_attr).max_msg_size)
        };
        // Datagrams: a read from an endpoint that has been closed ends when all retries have failed, after
        // minutes. SAFETY: likewise.
        if unsafe { (*(*info).ep_attr).protocol } == fi::FI_PROTO_RXD {
            return None;
        }
        // SAFETY: likewise.
        if !unsafe { ends_reads((*info).fabric_attr) } {
            return None;
        }
        if caps & NEEDS != NEEDS || mr_mode & !MODES != 0 || !(1..=8).contains(&key_size) || most == 0 {
            return None;
        }
        // SAFETY: likewise.
        let info = unsafe { Infos::copy(core, info) }?;
        const WRITES: u64 = fi::FI_WRITE | fi::FI_REMOTE_WRITE;
        // SAFETY: a copy of this core's, with the attributes of what it is of. By its flags the endpoint
        // would have every operation wait for its delivery.
        let delivers = unsafe {
            let flags = &mut (*(*info.at()).tx_attr).op_flags;
            let delivers = *flags & fi::FI_DELIVERY_COMPLETE != 0;
            *flags &= !fi::FI_DELIVERY_COMPLETE;
            delivers
        };
        Some(Remote {
            info,
            modes: Modes { mr_mode, key_size },
            most,
            writes: delivers && caps & WRITES == WRITES,
            ep: None,
            lender: Lender::new()?,
            contexts: Slab::new(READS, 0)?,
            free: (0..READS).collect(),
            flying: (0..READS).map(|_| (0, None)).collect(),
            leases: HashMap::new(),
            number: 0,
            hmem: caps & fi::FI_HMEM != 0,
            refusals: [[0; KINDS]; USAGES],
        })
    }

    fn has(&self, mode: i32) -> bool {
        self.modes.has(mode)
    }

    /// Whether memory of this kind can be registered, as far as is known.
    pub(crate) fn reaches(&self, kind: Kind, usage: Usage) -> bool {
        match kind {
            Kind::System => true,
            Kind::Cuda | Kind::Rocr | Kind::Ze => {
                self.hmem
                    && [Usage::ReadByPeers, Usage::ReadInto].contains(&usage)
                    && self.refusals[usage as usize][kind as usize] < REFUSALS
            }
            _ => false,
        }
    }

    /// Whether something may be registered.
    fn has_registered(&self) -> bool {
        !self.leases.is_empty() || self.free.len() < READS
    }

    /// Takes note of how a registration has ended.
    fn note_registered(&mut self, span: Span, usage: Usage, outcome: Result<(), i32>) {
        if !span.can(Caps::DEVICE) {
            return;
        }
        let kind = span.kind();
        let e = match outcome {
            Ok(()) => {
                self.refusals[usage as usize][kind as usize] = 0;
                return;
            }
            // Not now; or no more than there are, which is so until some are closed.
            Err(e) if e == -fi::FI_EAGAIN => return,
            Err(e) if [fi::FI_ENOMEM, fi::FI_ENOSPC].contains(&-e) && self.has_registered() => return,
            Err(e) => e,
        };
        // Without the interface none is registered for anything.
        if e == -fi::FI_ENOSYS {
            self.refusals.iter_mut().for_each(|of| of[kind as usize] = REFUSALS);
        }
        let refusals = &mut self.refusals[usage as usize][kind as usize];
        // None is registered for this, or this memory alone is refused.
        let is_for_good = [fi::FI_ENOSYS, fi::FI_EOPNOTSUPP].contains(&-e);
        *refusals = if is_for_good { REFUSALS } else { refusals.saturating_add(1) };
        let why = self.info.core().strerror(e);
        match *refusals {
            REFUSALS => {
                log::info!(
                    "memory of {kind:?} goes in frames: the provider below registers none, {usage:?} ({why})"
                )
            }
            _ => log::debug!("memory of {kind:?} is not registered by the provider below: {why}"),
        }
    }

    /// Registers memory for peers to access this way.
    pub(crate) fn lend(&mut self, span: Span, way: Way) -> Option<Lease> {
        let device = of_device(&span)?;
        // SAFETY: a copy that this core has made.
        let (domain, ep) = unsafe { self.lender.get(self.info.core(), self.info.at()) }?;
        let access = match way {
            Way::Get => fi::FI_REMOTE_READ,
            Way::Put => fi::FI_REMOTE_WRITE,
        };
        let found = self.modes.register(domain, ep, (span, device), access);
        self.note_registered(span, Usage::by_peer(way), found.as_ref().map(drop).map_err(|e| *e));
        let region = found.ok()?;
        // SAFETY: an open registration.
        let key = unsafe { (*region.at()).key };
        if key == NO_KEY {
            return None;
        }
        self.number += 1;
        self.leases.insert(self.number, region);
        let base = if self.has(fi::FI_MR_VIRT_ADDR) { span.addr() } else { 0 };
        Some(Lease { number: self.number, key, base, lender: self.lender.address().into() })
    }

    /// Peers access it no more.
    pub(crate) fn end_lease(&mut self, number: u64) {
        self.leases.remove(&number);
    }

    /// What is to be done for peers that access memory.
    #[inline]
    pub(crate) fn serve(&mut self) {
        if !self.leases.is_empty() {
            self.lender.progress();
        }
    }

    /// Whether it is safe to sleep.
    pub(crate) fn try_wait(&mut self) -> bool {
        self.lender.try_wait()
    }

    pub(crate) fn lender_fd(&self) -> RawFd {
        self.lender.fd()
    }

    /// Whether peers may be accessing memory, which makes no descriptor readable.
    pub(crate) fn is_unseen(&self) -> bool {
        self.lender.is_unseen() && !self.leases.is_empty()
    }

    pub(crate) fn unwatch(&mut self) {
        self.lender.unwatch();
    }

    /// Ends all that is lent, with the endpoint that peers access it by. Whether none accesses memory any
    /// more.
    pub(crate) fn stop_lending(&mut self) -> bool {
        self.leases.clear();
        self.lender.close()
    }

    fn open_ep(&self, place: &Place<'_>) -> Result<Object<fi::fid_ep>, i32> {
        let domain = place.domain;
        // SAFETY: an open domain, and the info that it was opened by.
        let ep: Object<fi::fid_ep> = unsafe {
            let open = (*(*domain.at()).ops).endpoint.ok_or(-fi::FI_ENOSYS)?;
            made(|at| open(domain.at(), self.info.at(), at, null_mut()))?
        };
        ep.bind(place.av, 0)?;
        ep.bind(place.cq, fi::FI_TRANSMIT | fi::FI_RECV)?;
        ep.enable()?;
        Ok(ep)
    }

    fn error(&self, what: &str, code: i32) -> NotSent {
        match code {
            e if e == -fi::FI_EAGAIN => NotSent::Busy,
            e => NotSent::Error(format!("{what}: {}", self.info.core().strerror(e))),
        }
    }

    /// Memory here is not registered. That can become otherwise when another access is over;
    /// with none under way nothing would end the wait.
    fn not_registered(&self, code: i32) -> NotSent {
        match self.error("fi_mr_reg", code) {
            NotSent::Busy if self.free.len() == READS => {
                NotSent::Error(format!("fi_mr_reg: {}", self.info.core().strerror(code)))
            }
            why => why,
        }
    }

    /// Accesses memory of a peer's.
    pub(crate) fn access(&mut self, place: &Place<'_>, who: u64, piece: &Piece) -> Result<(), NotSent> {
        let (way, local) = (piece.way, piece.local);
        let Some(&slot) = self.free.last() else { return Err(NotSent::Busy) };
        if self.ep.is_none() {
            let opened = self.open_ep(place);
            self.ep = Some(opened.map_err(|e| self.error("an endpoint for reads and writes", e))?);
        }
        let Some(ep) = &self.ep else { return Err(NotSent::Busy) };
        let region = match self.has(fi::FI_MR_LOCAL) || local.can(Caps::DEVICE) {
            true => {
                let none = || NotSent::Error("memory that moves".into());
                let device = of_device(&local).ok_or_else(none)?;
                let access = match way {
                    Way::Get => fi::FI_READ,
                    Way::Put => fi::FI_WRITE,
                };
                let found = self.modes.register(place.domain, ep, (local, device), access);
                self.note_registered(local, Usage::by_self(way), found.as_ref().map(drop).map_err(|e| *e));
                Some(found.map_err(|e| self.not_registered(e))?)
            }
            false => None,
        };
        let Some(ep) = &self.ep else { return Err(NotSent::Busy) };
        // SAFETY: an open registration.
        let desc = region.as_ref().map_or(null_mut(), |region| unsafe { (*region.at()).mem_desc });
        let context = self.contexts.context(slot);
        let (what, code) = match way {
            Way::Get => ("fi_read", post_read(ep, piece, desc, context)),
            Way::Put => ("fi_writemsg", post_write(ep, piece, desc, context)),
        };
        done(code as i32).map_err(|e| self.error(what, e))?;
        self.free.pop();
        self.flying[slot] = (who, region);
        Ok(())
    }

    /// Which access a completion is of, if it is of one: that is over.
    pub(crate) fn over(&mut self, context: *mut libc::c_void) -> Option<u64> {
        let slot = self.contexts.of_context(context)?;
        let (who, local) = std::mem::take(&mut self.flying[slot]);
        drop(local);
        self.free.push(slot);
        Some(who)
    }

    /// Ends all accesses. Whether none accesses memory any more.
    pub(crate) fn stop(&mut self) -> bool {
        let Some(ep) = self.ep.take() else { return true };
        if self.has(fi::FI_MR_ENDPOINT) {
            // What is bound to an endpoint keeps it open.
            self.flying.iter_mut().for_each(|(_, local)| *local = None);
        }
        self.ep = ep.try_close().err();
        if self.ep.is_some() {
            return false;
        }
        self.flying.iter_mut().for_each(|(_, local)| *local = None);
        let Some(contexts) = Slab::new(READS, 0) else { return true };
        // What the queue still has of the old ones is of no access.
        std::mem::forget(std::mem::replace(&mut self.contexts, contexts));
        self.free = (0..READS).collect();
        true
    }

    /// Closes what is open. Whether all is closed.
    pub(crate) fn close(&mut self) -> bool {
        self.stop_lending() & self.stop()
    }

    /// Leaves all open for good: it is another process's.
    pub(crate) fn leak(mut self) {
        self.leases.drain().for_each(|(_, region)| region.leak());
        self.flying.drain(..).filter_map(|(_, local)| local).for_each(Object::leak);
        self.ep.take().into_iter().for_each(Object::leak);
        self.lender.leak();
        std::mem::forget(self);
    }
}
