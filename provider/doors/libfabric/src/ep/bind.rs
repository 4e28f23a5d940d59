//! Binding an endpoint, and enabling it.

use std::sync::Arc;

use engine::EpConfig;
use libc::c_int;
use libfabric_sys as fi;
use runtime::Attached;

use super::context::SrxFid;
use super::endpoint::{Endpoint, EpFid, Live};
use super::flags;
use super::receiver::AnySource;
use super::setup::{COUNTED, Queue, Setup};
use crate::av::AvFid;
use crate::cntr::CntrFid;
use crate::cq::CqFid;
use crate::eq::EqFid;
use crate::errno::Errno;
use crate::ffi::{Counted, Ref, arg, guard, obj};

/// fi_ep_bind(3).
///
/// # Safety
/// `to` is NULL or a live fid, which nothing closes during the call.
pub(super) unsafe fn bind(ep: &Endpoint, to: *mut fi::fid, flags: u64) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let class = unsafe { arg(to) }?.fclass;
    let setup = &mut *ep.setup();
    let enabled = ep.live.get().is_some();
    let fresh = if enabled { Err(Errno::OPBADSTATE) } else { Ok(()) };
    if !matches!(class, fi::FI_CLASS_CQ | fi::FI_CLASS_CNTR) && flags != 0 {
        return Err(Errno::BADFLAGS);
    }
    match class {
        fi::FI_CLASS_CNTR => {
            // SAFETY: the caller's promise.
            let cntr: &CntrFid = unsafe { obj(to) }?;
            same(ep, &cntr.shared)?;
            bind_cntr(ep, setup, cntr, flags)
        }
        fi::FI_CLASS_CQ => {
            fresh?;
            // SAFETY: the caller's promise.
            let cq: &CqFid = unsafe { obj(to) }?;
            same(ep, &cq.shared)?;
            bind_cq(setup, cq, flags)
        }
        fi::FI_CLASS_AV => {
            fresh?;
            // SAFETY: the caller's promise.
            let av: &AvFid = unsafe { obj(to) }?;
            same(ep, &av.shared)?;
            once(&mut setup.av, av)
        }
        fi::FI_CLASS_EQ => {
            // SAFETY: the caller's promise.
            let eq: &EqFid = unsafe { obj(to) }?;
            once(&mut setup.eq, eq)
        }
        fi::FI_CLASS_SRX_CTX => {
            fresh?;
            // SAFETY: the caller's promise.
            let srx: &SrxFid = unsafe { obj(to) }?;
            same(ep, srx.shared())?;
            once(&mut setup.srx, srx)
        }
        _ => Err(Errno::INVAL),
    }
}

/// Names in one domain mean nothing in another.
fn same(ep: &Endpoint, other: &Arc<crate::domain::Shared>) -> Result<(), Errno> {
    if Arc::ptr_eq(&ep.shared, other) { Ok(()) } else { Err(Errno::INVAL) }
}

fn once<T: Counted>(place: &mut Option<Ref<T>>, to: &T) -> Result<(), Errno> {
    if place.is_some() {
        return Err(Errno::INVAL);
    }
    *place = Some(Ref::new(to));
    Ok(())
}

fn bind_cq(setup: &mut Setup, cq: &CqFid, flags: u64) -> Result<(), Errno> {
    const SIDES: u64 = fi::FI_TRANSMIT | fi::FI_RECV;
    if flags & !(SIDES | fi::FI_SELECTIVE_COMPLETION) != 0 {
        return Err(Errno::BADFLAGS);
    }
    let [tx, rx] = [fi::FI_TRANSMIT, fi::FI_RECV].map(|side| flags & side != 0);
    if !(tx || rx) || tx && setup.tx.is_some() || rx && setup.rx.is_some() {
        return Err(Errno::INVAL);
    }
    let selective = flags & fi::FI_SELECTIVE_COMPLETION != 0;
    if tx {
        setup.tx = Some(Queue { cq: Ref::new(cq), selective });
    }
    if rx {
        setup.rx = Some(Queue { cq: Ref::new(cq), selective });
    }
    Ok(())
}

/// A counter may come late: Sandia OpenSHMEM binds its own after `fi_enable`.
fn bind_cntr(ep: &Endpoint, setup: &mut Setup, cntr: &CntrFid, flags: u64) -> Result<(), Errno> {
    if flags & !COUNTED.iter().fold(0, |all, f| all | f) != 0 {
        return Err(Errno::BADFLAGS);
    }
    let wanted = COUNTED.map(|f| flags & f != 0);
    let twice = wanted.iter().zip(&setup.cntrs).any(|(w, c)| *w && c.is_some());
    if flags == 0 || twice {
        return Err(Errno::INVAL);
    }
    let live = ep.live.get();
    if live.is_some() {
        let awake = Attached::new(&cntr.wait, setup.wait_fd)?;
        setup.awake.push(awake);
    }
    for (place, _) in setup.cntrs.iter_mut().zip(wanted).filter(|(_, w)| *w) {
        *place = Some(Ref::new(cntr));
    }
    if let Some(live) = live {
        ep.shared.lock().ep_bind_cntrs(live.ep, setup.cntr_ids());
    }
    Ok(())
}

/// `fi_enable`: the engine gets the endpoint.
pub(super) fn enable(ep: &Endpoint) -> Result<(), Errno> {
    let setup = &mut *ep.setup();
    if ep.live.get().is_some() {
        return Ok(());
    }
    if let Some(xpu) = &ep.xpu {
        let (id, rx) = xpu.enable(&ep.shared, &ep.attrs, setup)?;
        // Nothing else can have set it: `setup` is locked.
        let (each_rx, any) = (engine::OpFlags::empty(), AnySource::of(0));
        let _ = ep.live.set(Live { ep: id, rx, tx_always: false, each_rx, any, no_receive_queue: true });
        return Ok(());
    }
    if [&setup.tx, &setup.rx].into_iter().flatten().any(|q| q.cq.xpu.is_some()) {
        log::info!("fi_enable: an endpoint of the host's is bound to a queue that a device reads");
        return Err(Errno::OPNOTSUPP);
    }
    let caps = ep.attrs.caps;
    let initiates = caps & (fi::FI_SEND | fi::FI_READ | fi::FI_WRITE) != 0;
    if initiates && setup.tx.is_none() {
        return Err(Errno::NOCQ);
    }
    // An endpoint that only ever writes need have no queue for receives: the receives are refused instead.
    let no_receive_queue = setup.rx.is_none() && setup.srx.is_none() && setup.cntr_ids().recv.is_none();
    let av = setup.av.as_ref().ok_or(Errno::NOAV)?.id;
    if ep.attrs.shared_rx && setup.srx.is_none() {
        return Err(Errno::OPBADSTATE);
    }
    let awake = wake_all(setup, &ep.shared)?;
    let mut link = setup.link.take().ok_or(Errno::OPBADSTATE)?;
    if !setup.options.device_direct() {
        link.set_device_direct(false);
    }
    let config = EpConfig {
        link,
        av,
        rx: setup.srx.as_ref().map(|s| s.id()),
        tx_cq: setup.tx.as_ref().map(|q| q.cq.id),
        rx_cq: setup.rx.as_ref().map(|q| q.cq.id),
        cntrs: setup.cntr_ids(),
    };
    let always = |q: &Option<Queue>| q.as_ref().is_some_and(|q| !q.selective);
    let (tx_always, rx_always) = (always(&setup.tx), always(&setup.rx));
    let each_rx = flags::each_rx(setup.srx.is_some(), rx_always);
    let mut engine = ep.shared.lock();
    let id = engine.ep_open(config);
    if let Some(meter) = crate::report::meter() {
        engine.ep_meter(id, meter);
    }
    engine.ep_set_depth(id, ep.attrs.tx_size.max(4096));
    let rx = engine.ep_rx(id).ok_or(Errno::OTHER)?;
    if let Some(bytes) = setup.options.min_multi_recv() {
        engine.rx_set_min_multi_recv(rx, bytes);
    }
    if rx_always {
        engine.ep_write_every_receive(id);
    }
    if caps & fi::FI_COLLECTIVE != 0 {
        engine.ep_allow_collectives(id);
    }
    drop(engine);
    setup.awake = awake;
    // Nothing else can have set it: `setup` is locked.
    let any = AnySource::of(ep.attrs.caps);
    let _ = ep.live.set(Live { ep: id, rx, tx_always, each_rx, any, no_receive_queue });
    Ok(())
}

/// Attaches the link to all that is slept on for what the endpoint feeds.
fn wake_all(setup: &Setup, domain: &crate::domain::Shared) -> Result<Vec<Attached>, Errno> {
    let queues = [&setup.tx, &setup.rx].into_iter().flatten().map(|q| &q.cq.wait);
    let cntrs = setup.cntrs.iter().flatten().map(|c| &c.wait);
    let mut all = Vec::new();
    for wait in queues.chain(cntrs) {
        all.push(Attached::new(wait, setup.wait_fd)?);
    }
    // Whether or not anything is bound: peers may write memory of one that has nothing.
    all.extend(domain.attach(setup.wait_fd)?);
    Ok(all)
}

/// `fi_ops_ep::export_xpu`.
pub(crate) unsafe extern "C" fn export_xpu(
    ep: *mut fi::fid_ep,
    flags: u64,
    to: *mut fi::fid_xpu_ep,
) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open endpoint.
        let ep = unsafe { obj::<EpFid, _>(ep)? };
        let xpu = ep.endpoint.xpu.as_ref().ok_or(Errno::INVAL)?;
        let at = xpu.view().ok_or(Errno::OPBADSTATE)?;
        // SAFETY: NULL or a place for the answer, whose sole member is this.
        unsafe { crate::xpu::export(to.cast(), fi::FI_CLASS_EP, at, flags) }
    })
}
