//! Endpoints of devices, fi_xpu(3): a ring of commands in place of the calls that post.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::setup::{Queue, Setup};
use crate::domain::Shared;
use crate::errno::Errno;
use crate::ffi::Ref;
use crate::info::ep::EpAttrs;
use crate::xpu::{TIMEOUT, XpuCtxFid};
use ::xpu::{Drain, Near, Peers, Place, Port, QueueSide, RingOptions, RingPlaces, Words, layout};
use engine::{CqId, EpConfig, EpId, RxId};

/// What makes an endpoint a device's.
#[derive(Debug)]
pub(crate) struct XpuEp {
    ctx: Ref<XpuCtxFid>,
    /// Its drain, among those of the context.
    name: u64,
    made: Mutex<Option<Made>>,
}

#[derive(Debug)]
struct Made {
    view: u64,
    _words: Vec<Arc<Words>>,
    _near: Option<Arc<Near>>,
    cq: CqId,
    /// Once it drains no more: until the engine has let go of the endpoint.
    drain: Option<Drain>,
}

/// Slots of a ring, as powers of two, and completions that the engine keeps.
const LEAST: u32 = 4;
const MOST: u32 = 16;
const COMPLETIONS: usize = 1 << 16;

impl XpuEp {
    pub(super) fn new(ctx: &XpuCtxFid) -> XpuEp {
        XpuEp { ctx: Ref::new(ctx), name: ctx.name(), made: Mutex::new(None) }
    }

    fn made(&self) -> MutexGuard<'_, Option<Made>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device's side of a queue; `None`: none is bound.
    fn queue(&self, bound: &Option<Queue>) -> Result<Option<QueueSide>, Errno> {
        let Some(bound) = bound else { return Ok(None) };
        let queue = bound.cq.xpu.as_ref().filter(|q| std::ptr::eq::<XpuCtxFid>(&*q.ctx, &*self.ctx));
        let Some(queue) = queue else {
            log::info!(
                "fi_enable: a device's endpoint is bound to a queue that the host reads, or another context's"
            );
            return Err(Errno::OPNOTSUPP);
        };
        queue.take().map(Some)
    }

    /// `fi_enable`: the engine gets the endpoint, and the context's thread its ring.
    pub(super) fn enable(
        &self,
        shared: &Shared,
        attrs: &EpAttrs,
        setup: &mut Setup,
    ) -> Result<(EpId, RxId), Errno> {
        let av = setup.av.as_ref().ok_or(Errno::NOAV)?.id;
        if setup.srx.is_some() {
            return Err(Errno::OPNOTSUPP);
        }
        let same = match (&setup.tx, &setup.rx) {
            (Some(tx), Some(rx)) => std::ptr::eq(&*tx.cq, &*rx.cq),
            _ => false,
        };
        let log2 = (attrs.tx_size.max(1).next_power_of_two().trailing_zeros()).clamp(LEAST, MOST);
        let (slots, control) = (self.ctx.words(8 << log2)?, self.ctx.words(64)?);
        let tx = self.queue(&setup.tx)?;
        let rx = if same { None } else { self.queue(&setup.rx)? };
        let near = self.ctx.near();
        let mut link = setup.link.take().ok_or(Errno::OPBADSTATE)?;
        if !setup.options.device_direct() {
            link.set_device_direct(false);
        }
        let mut engine = shared.lock();
        let cq = engine.cq_open(COMPLETIONS);
        let (tx_cq, rx_cq, cntrs) = (Some(cq), Some(cq), setup.cntr_ids());
        let id = engine.ep_open(EpConfig { link, av, rx: None, tx_cq, rx_cq, cntrs });
        engine.ep_set_depth(id, 1 << MOST);
        let own = engine.ep_rx(id).ok_or(Errno::OTHER)?;
        drop(engine);
        let port = Port { ep: id, rx: Some(own), cq };
        let most = attrs.max_msg_size as u64;
        let mut drain = Drain::new(port, Peers::Vector, self.ctx.regions.clone(), Some(most));
        let tx = tx.map(|side| drain.add_queue(side));
        let rx = if same { tx } else { rx.map(|side| drain.add_queue(side)) };
        for bound in setup.cntrs.iter().flatten() {
            if let Some(counter) = bound.xpu.get() {
                drain.add_counter(counter.side.clone());
            }
        }
        let place = |at| Place { words: control.clone(), at };
        let places = RingPlaces {
            slots: Place { words: slots.clone(), at: 0 },
            produced: place(0),
            status: place(16),
            near: near.clone(),
        };
        let options = RingOptions { id: 0, log2_slots: log2, bell: false, queue: tx, receive_queue: rx };
        let view = place(32);
        let ring: layout::Ring = drain.add_ring(places, options, TIMEOUT.as_nanos() as u64);
        view.write(&ring.words());
        let view = near.as_ref().and_then(|n| n.write(&ring).ok()).unwrap_or(view.device());
        *self.made() = Some(Made { view, _words: vec![slots, control], _near: near, cq, drain: None });
        self.ctx.drains.add(self.name, drain);
        Ok((id, own))
    }

    /// Where a device finds what it has to know, once enabled.
    pub(super) fn view(&self) -> Option<u64> {
        self.made().as_ref().map(|m| m.view)
    }

    /// Nothing is taken from the ring any more. To be called before the engine closes the endpoint.
    pub(super) fn stop(&self) {
        if let (Some(made), Some(drain)) = (&mut *self.made(), self.ctx.drains.remove(self.name)) {
            made.drain = Some(drain);
        }
    }

    /// The engine has closed the endpoint.
    pub(super) fn closed(&self, shared: &Shared) {
        if let Some(made) = self.made().as_mut().and_then(|m| m.drain.take().map(|_| m.cq)) {
            let _ = shared.close_in(None, |engine| engine.cq_close(made));
        }
    }
}
