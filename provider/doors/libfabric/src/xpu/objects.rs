//! What a device gets of queues, counters, addresses and registrations.

use std::sync::{Arc, Mutex, PoisonError};

use libc::c_void;
use libfabric_sys as fi;
use xpu::{CounterSide, Place, QueueSide, Regions, Words, layout};

use super::{Poller, TIMEOUT, XpuCtxFid, is_native, of, several_threads};
use crate::domain::Shared;
use crate::errno::Errno;
use crate::ffi::{Ref, put};

/// A completion queue that a device reads.
#[derive(Debug)]
pub(crate) struct Queue {
    pub ctx: Ref<XpuCtxFid>,
    view: u64,
    /// Gone to the drain of the endpoint that is bound to it.
    side: Mutex<Option<QueueSide>>,
}

/// The entries of a queue whose opener leaves the size open, and the most.
const ENTRIES: usize = 4096;
const MOST: usize = 1 << 20;
/// Words between the parts of what a queue has beside its entries.
const PART: usize = 16;

impl Queue {
    pub(crate) fn new(ctx: &XpuCtxFid, size: usize, format: fi::fi_cq_format) -> Result<Queue, Errno> {
        let size = if size == 0 { ENTRIES } else { size };
        if size > MOST {
            return Err(Errno::INVAL);
        }
        let log2 = size.next_power_of_two().trailing_zeros();
        let entries = Place { words: ctx.words(8 << log2)?, at: 0 };
        let control = ctx.words(2 * PART)?;
        let (read, head) = (Place { words: control.clone(), at: 0 }, Place { words: control, at: PART });
        let side = QueueSide::new(log2, entries, read, head, TIMEOUT.as_nanos() as u64);
        side.set_format(u64::from(format));
        Ok(Queue { ctx: Ref::new(ctx), view: side.view(), side: Mutex::new(Some(side)) })
    }

    /// Its host's side, once.
    pub(crate) fn take(&self) -> Result<QueueSide, Errno> {
        self.side.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or_else(|| {
            log::info!("fi_enable: a device's queue is for one endpoint, and this one has had one");
            Errno::OPNOTSUPP
        })
    }

    pub(crate) fn view(&self) -> u64 {
        self.view
    }
}

/// A counter that a device reads and adds to.
#[derive(Debug)]
pub(crate) struct Counter {
    /// The context stays open until the counter is closed.
    _ctx: Option<Ref<XpuCtxFid>>,
    poller: Arc<Poller>,
    pub side: Arc<CounterSide>,
}

/// Words of a counter.
const COUNTER: usize = (size_of::<layout::CounterHost>() + size_of::<layout::CounterDevice>()) / 8;

impl Counter {
    pub(crate) fn new(ctx: &XpuCtxFid, id: engine::CntrId) -> Result<Counter, Errno> {
        let words = ctx.words(COUNTER)?;
        Ok(Counter::at(words, ctx.poller.clone(), Some(Ref::new(ctx)), &ctx.shared, id))
    }

    /// Of a counter that was opened without a context: its words are where every device of the process finds
    /// host memory.
    pub(crate) fn without_context(shared: &Arc<Shared>, id: engine::CntrId) -> Result<Counter, Errno> {
        several_threads(shared)?;
        let poller = shared.streams.poller(shared)?;
        let words = Words::new(COUNTER).map_err(|e| Errno(e.errno()))?;
        Ok(Counter::at(words, poller, None, shared, id))
    }

    fn at(
        words: Arc<Words>,
        poller: Arc<Poller>,
        ctx: Option<Ref<XpuCtxFid>>,
        shared: &Shared,
        id: engine::CntrId,
    ) -> Counter {
        let side = Arc::new(CounterSide::new(id, Place { words, at: 0 }, TIMEOUT.as_nanos() as u64));
        let mut engine = shared.lock();
        engine.cntr_watch(id);
        side.show(&engine);
        drop(engine);
        poller.drains.add_counter(side.clone());
        Counter { _ctx: ctx, poller, side }
    }

    /// The counter is closed: streams that wait for it go on. They may poll its words until the domain is
    /// gone.
    pub(crate) fn release(&self, shared: &Shared) {
        self.poller.drains.remove_counter(&self.side);
        self.side.release();
        shared.streams.keep(self.side.place().words.clone());
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.poller.drains.remove_counter(&self.side);
    }
}

/// The context that the attributes of a queue name, if the application's have one. `flags` are the
/// structure's.
///
/// # Safety
/// `attr` is NULL or attributes of the domain's version.
pub(crate) unsafe fn of_cq_attr<'a>(
    attr: *const fi::fi_cq_attr,
    shared: &Arc<Shared>,
) -> Result<Option<&'a XpuCtxFid>, Errno> {
    if attr.is_null() || !is_native(shared) {
        return Ok(None);
    }
    // SAFETY: the caller's promise: that version has the field.
    unsafe { named((*attr).xpu_ctx, (*attr).flags, shared) }
}

/// The context of a counter of a device.
///
/// # Safety
/// As for [`of_cq_attr`].
pub(crate) unsafe fn of_cntr_attr<'a>(
    attr: *const fi::fi_cntr_attr,
    shared: &Arc<Shared>,
) -> Result<Option<&'a XpuCtxFid>, Errno> {
    if attr.is_null() || !is_native(shared) {
        return Ok(None);
    }
    // SAFETY: the caller's promise: that version has the field.
    unsafe { named((*attr).xpu_ctx, (*attr).flags, shared) }
}

/// fi_xpu(3)'s text wants FI_XPU in the flags, its example leaves it out: both are taken.
///
/// # Safety
/// `ctx` is NULL or a live fid.
unsafe fn named<'a>(
    ctx: *const fi::fid_xpu_ctx,
    flags: u64,
    shared: &Arc<Shared>,
) -> Result<Option<&'a XpuCtxFid>, Errno> {
    if ctx.is_null() {
        return if flags & fi::FI_XPU != 0 { Err(Errno::INVAL) } else { Ok(None) };
    }
    // SAFETY: the caller's promise.
    unsafe { of(ctx, shared) }.map(Some)
}

/// Fills in what is exported.
///
/// # Safety
/// `to` is NULL or valid for a write.
pub(crate) unsafe fn export(to: *mut fi::fid_xpu, class: usize, at: u64, flags: u64) -> Result<(), Errno> {
    if flags != 0 {
        return Err(Errno::BADFLAGS);
    }
    let made = fi::fid_xpu { fclass: class as u32, prov_id: layout::PROV_ID, prov_ctx: at };
    // SAFETY: the caller's promise.
    unsafe { put(to, made) }
}

/// Writes 8 bytes, if there is room.
///
/// # Safety
/// `len` is NULL or valid, and `buf` for writes of that many bytes.
unsafe fn answer(buf: *mut c_void, len: *mut usize, value: u64) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let room = unsafe { len.as_mut() }.ok_or(Errno::INVAL)?;
    let had = std::mem::replace(room, 8);
    if had < 8 {
        return Err(Errno::TOOSMALL);
    }
    // SAFETY: there is room; it need not be aligned.
    unsafe { put(buf.cast::<[u8; 8]>(), value.to_le_bytes()) }
}

/// fi_av_lookup2(3) with FI_XPU: the number of a peer in commands.
///
/// # Safety
/// `ctx` is NULL or a live fid; `len` is NULL or valid, and `buf` for writes of that many bytes.
pub(crate) unsafe fn lookup(
    shared: &Arc<Shared>,
    addr: fi::fi_addr_t,
    buf: *mut c_void,
    len: *mut usize,
    ctx: *const fi::fid_xpu_ctx,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe { of(ctx, shared)? };
    // Commands have 32 bits for it, and the highest number is no peer.
    if addr >= u64::from(layout::ANY) {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller's promise.
    unsafe { answer(buf, len, addr) }
}

/// Registrations that a device names, by the contexts' regions.
pub(crate) type Named = Mutex<Vec<(Arc<Regions>, u32)>>;

/// fi_mr_get_xpu_desc(3): the number of a registration in commands of that context.
///
/// # Safety
/// As for [`lookup`]; `span` stays valid until the number has been taken out of the regions again.
pub(crate) unsafe fn region_desc(
    shared: &Arc<Shared>,
    span: hmem::Span,
    named: &Named,
    of_desc: &fi::fi_mr_xpu_desc,
) -> Result<(), Errno> {
    if of_desc.flags & !fi::FI_XPU != 0 {
        return Err(Errno::BADFLAGS);
    }
    // SAFETY: the caller's promise.
    let ctx = unsafe { of(of_desc.ctx, shared)? };
    let mut named = named.lock().unwrap_or_else(PoisonError::into_inner);
    let known = named.iter().find(|(r, _)| Arc::ptr_eq(r, &ctx.regions)).map(|(_, n)| *n);
    let number = match known {
        Some(number) => number,
        None => {
            // SAFETY: the caller's promise.
            let number = unsafe { ctx.regions.add(span) }.ok_or(Errno::NOMEM)?;
            named.push((ctx.regions.clone(), number));
            number
        }
    };
    // SAFETY: the caller's promise.
    unsafe { answer(of_desc.buf, of_desc.len, number.into()) }
}
