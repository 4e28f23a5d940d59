//! The negotiation: hints in, an offer or the reason for none out. No pointers here.

use libc::c_int;
use libfabric_sys::*;

use super::hints::{Hints, Object};
pub(crate) use super::limits::{INJECT_SIZE, IOV_LIMIT, MAX_MSG_SIZE};
use super::models::Models;
use super::refusal::{Kind, Refusal, refuse};
use super::{auth, caps};
use crate::param;
use crate::version::VERSION;

/// The name of the fabric and of its one domain, whatever the addresses.
pub(crate) const NAME: &str = "strait";
/// Not one of libfabric's list: those of providers outside it have the top bit set. "ST" and 1.
pub(crate) const PROTOCOL: u32 = 0x8000_5354;
pub(crate) const PROTOCOL_VERSION: u32 = wire::VERSION as u32;

/// The number of segments that is answered where the hints ask for none: as many as shm and tcp answer.
/// Programs that use all they are offered, fabtests among them, were written against that.
const IOV_UNASKED: usize = 4;
const QUEUE_SIZE: usize = 4096;
const MAX_QUEUE_SIZE: usize = 1 << 24;
const CQ_DATA_SIZE: usize = 8;
const MR_KEY_SIZE: usize = 8;
/// A count of objects without a limit of their own.
const MANY: usize = 1 << 20;

/// The order in which operations to one peer can be kept.
const ORDERS: u64 = FI_ORDER_SAS
    | RMA_ORDERS
    | FI_ORDER_ATOMIC_RAR
    | FI_ORDER_ATOMIC_RAW
    | FI_ORDER_ATOMIC_WAR
    | FI_ORDER_ATOMIC_WAW;

/// The orders that RMA takes part in. Atomics are in order among themselves anyway.
pub(crate) const RMA_ORDERS: u64 = FI_ORDER_RAR
    | FI_ORDER_RAW
    | FI_ORDER_WAR
    | FI_ORDER_WAW
    | FI_ORDER_RMA_RAR
    | FI_ORDER_RMA_RAW
    | FI_ORDER_RMA_WAR
    | FI_ORDER_RMA_WAW;

/// What may be a default of every operation.
pub(crate) const OP_FLAGS: u64 = FI_COMPLETION
    | FI_INJECT
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE
    | FI_MATCH_COMPLETE
    | FI_MULTI_RECV
    | FI_FENCE
    | FI_MORE;

/// The registration modes that an application may have if it offers them. None is needed.
const MR_MODES: c_int = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;

/// All of an answer but its addresses.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    pub caps: u64,
    pub tx: fi_tx_attr,
    pub rx: fi_rx_attr,
    pub max_order_size: [usize; 3],
    pub mem_tag_format: u64,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub models: Models,
    pub av_type: fi_av_type,
    pub mr_mode: c_int,
    pub domain_caps: u64,
    pub tclass: u32,
    pub cq_data_size: usize,
    pub mr_key_size: usize,
    pub mr_iov_limit: usize,
    pub count: usize,
}

fn word<T>(what: &'static str) -> Result<T, Refusal> {
    Err(Refusal { what, asked: 0, offered: 0, kind: Kind::Word })
}

fn within(what: &'static str, asked: usize, limit: usize) -> Result<(), Refusal> {
    let (asked, offered) = (asked as u64, limit as u64);
    if asked > offered { Err(Refusal { what, asked, offered, kind: Kind::Most }) } else { Ok(()) }
}

fn subset(what: &'static str, asked: u64, offered: u64, kind: Kind) -> Result<(), Refusal> {
    if asked & !offered != 0 { Err(Refusal { what, asked, offered, kind }) } else { Ok(()) }
}

/// Whether the endpoint type is ours: the first question, for layered providers ask often.
pub(crate) fn endpoint_type(kind: fi_ep_type) -> Result<(), Refusal> {
    match kind {
        FI_EP_UNSPEC | FI_EP_RDM => Ok(()),
        _ => refuse("endpoint type", kind, FI_EP_RDM),
    }
}

/// The answer to hints (`None`: the application gave none) of that API version.
pub(crate) fn answer(hints: Option<&Hints>, api: u32) -> Result<Offer, Refusal> {
    let none = Hints::default();
    let h = hints.unwrap_or(&none);
    endpoint_type(h.ep.kind)?;
    check_names(h)?;
    // Of older versions the bit is another, withdrawn one.
    let xpu = if api >= crate::xpu::SINCE { FI_XPU } else { 0 };
    let devices = if h.devices { FI_HMEM } else { 0 };
    subset("capabilities", h.caps, caps::ALL & !(FI_HMEM | FI_XPU) | devices | xpu, Kind::Flags)?;
    check_endpoint(h)?;
    check_queues(h)?;
    check_domain(h)?;

    let caps = caps::granted(h.caps);
    let memory = caps & (FI_RMA | FI_ATOMIC) != 0;
    // Without hints everything there is is shown; with them, order is as the hints ask.
    let order = |asked: u64| if hints.is_none() { ORDERS } else { asked | FI_ORDER_SAS };
    let either = |asked: usize, default: usize| if asked == 0 { default } else { asked };
    let segments = |asked: usize| if hints.is_some() && asked == 0 { IOV_UNASKED } else { IOV_LIMIT };
    let order_size = |asked: usize| if memory { either(asked, MAX_MSG_SIZE) } else { 0 };
    let tclass = if h.tx.tclass != 0 { h.tx.tclass } else { h.domain.tclass };
    Ok(Offer {
        caps,
        tx: fi_tx_attr {
            caps: caps::restricted(caps & caps::TX, h.tx.caps),
            mode: 0,
            op_flags: h.tx.op_flags,
            msg_order: order(h.tx.msg_order),
            comp_order: 0,
            inject_size: match h.tx.inject_size {
                0 => param::get().inject_size,
                asked => asked.max(INJECT_SIZE),
            },
            size: either(h.tx.size, QUEUE_SIZE),
            iov_limit: segments(h.tx.iov_limit),
            rma_iov_limit: segments(h.tx.rma_iov_limit),
            tclass,
        },
        rx: fi_rx_attr {
            caps: caps::restricted(caps & caps::RX, h.rx.caps),
            mode: 0,
            op_flags: h.rx.op_flags,
            msg_order: order(h.rx.msg_order),
            comp_order: 0,
            total_buffered_recv: 0,
            size: either(h.rx.size, QUEUE_SIZE),
            iov_limit: segments(h.rx.iov_limit),
        },
        max_order_size: [
            order_size(h.ep.max_order_raw_size),
            order_size(h.ep.max_order_war_size),
            order_size(h.ep.max_order_waw_size),
        ],
        mem_tag_format: if h.ep.mem_tag_format == 0 { u64::MAX } else { h.ep.mem_tag_format },
        tx_ctx_cnt: either(h.ep.tx_ctx_cnt, 1),
        rx_ctx_cnt: either(h.ep.rx_ctx_cnt, 1),
        models: h.domain.models.answer(),
        av_type: h.domain.av_type,
        mr_mode: mr_mode(h, api)?,
        domain_caps: caps::DOMAIN,
        tclass: if h.domain.tclass != 0 { h.domain.tclass } else { tclass },
        cq_data_size: CQ_DATA_SIZE,
        mr_key_size: MR_KEY_SIZE,
        mr_iov_limit: IOV_LIMIT,
        count: MANY,
    })
}

fn check_names(h: &Hints) -> Result<(), Refusal> {
    if h.fabric.object == Object::Foreign || h.domain.object == Object::Foreign {
        return word("the hints name an open object, and it is another provider's");
    }
    let other = |n: &Option<String>| n.as_deref().is_some_and(|n| !n.eq_ignore_ascii_case(NAME));
    if other(&h.fabric.name) || other(&h.domain.name) {
        return word("the hints name another fabric or domain (both are called \"strait\")");
    }
    if h.fabric.prov_version > VERSION {
        return refuse("provider version", h.fabric.prov_version, VERSION);
    }
    Ok(())
}

fn check_endpoint(h: &Hints) -> Result<(), Refusal> {
    let ep = &h.ep;
    if ep.protocol != FI_PROTO_UNSPEC && ep.protocol != PROTOCOL {
        return refuse("protocol", ep.protocol, PROTOCOL);
    }
    if ep.protocol_version > PROTOCOL_VERSION {
        return refuse("protocol version", ep.protocol_version, PROTOCOL_VERSION);
    }
    within("max_msg_size", ep.max_msg_size, MAX_MSG_SIZE)?;
    if h.caps & (FI_RMA | FI_ATOMIC) != 0 {
        within("max_order_raw_size", ep.max_order_raw_size, MAX_MSG_SIZE)?;
        within("max_order_war_size", ep.max_order_war_size, MAX_MSG_SIZE)?;
        within("max_order_waw_size", ep.max_order_waw_size, MAX_MSG_SIZE)?;
    }
    within("tx_ctx_cnt", ep.tx_ctx_cnt, 1)?;
    if ep.rx_ctx_cnt != FI_SHARED_CONTEXT {
        within("rx_ctx_cnt", ep.rx_ctx_cnt, 1)?;
    }
    within("endpoint's auth_key_size", ep.auth_key_size, auth::LONGEST)
}

fn check_queues(h: &Hints) -> Result<(), Refusal> {
    // What belongs to the other direction, or only to the whole, does no harm here.
    subset("transmit capabilities", h.tx.caps, caps::ALL, Kind::Flags)?;
    subset("receive capabilities", h.rx.caps, caps::ALL, Kind::Flags)?;
    subset("transmit op_flags", h.tx.op_flags, OP_FLAGS, Kind::Flags)?;
    subset("receive op_flags", h.rx.op_flags, OP_FLAGS, Kind::Flags)?;
    subset("transmit msg_order", h.tx.msg_order, ORDERS, Kind::Orders)?;
    subset("receive msg_order", h.rx.msg_order, ORDERS, Kind::Orders)?;
    subset("transmit comp_order", h.tx.comp_order, 0, Kind::Code)?;
    subset("receive comp_order", h.rx.comp_order, 0, Kind::Code)?;
    within("inject_size", h.tx.inject_size, param::get().most_inject())?;
    within("transmit size", h.tx.size, MAX_QUEUE_SIZE)?;
    within("receive size", h.rx.size, MAX_QUEUE_SIZE)?;
    within("transmit iov_limit", h.tx.iov_limit, IOV_LIMIT)?;
    within("rma_iov_limit", h.tx.rma_iov_limit, IOV_LIMIT)?;
    within("receive iov_limit", h.rx.iov_limit, IOV_LIMIT)?;
    within("total_buffered_recv", h.rx.total_buffered_recv, 0)
}

fn check_domain(h: &Hints) -> Result<(), Refusal> {
    let d = &h.domain;
    d.models.check()?;
    if d.resource_mgmt > FI_RM_ENABLED {
        return refuse("resource_mgmt", d.resource_mgmt, FI_RM_ENABLED);
    }
    // Which class it is makes no difference here: those that a later version names go through.
    let named = |tclass| tclass == FI_TC_UNSPEC || (FI_TC_DSCP..FI_TC_DSCP | FI_TC_LABEL).contains(&tclass);
    if let Some(other) = [h.tx.tclass, d.tclass].into_iter().find(|tclass| !named(*tclass)) {
        return refuse("tclass", other, FI_TC_UNSPEC);
    }
    if d.av_type > FI_AV_TABLE {
        return refuse("av_type", d.av_type, FI_AV_TABLE);
    }
    within("cq_data_size", d.cq_data_size, CQ_DATA_SIZE)?;
    within("cntr_cnt", d.cntr_cnt, MANY)?;
    within("mr_cnt", d.mr_cnt, MANY)?;
    within("mr_iov_limit", d.mr_iov_limit, IOV_LIMIT)?;
    within("max_err_data", d.max_err_data, 0)?;
    within("domain's auth_key_size", d.auth_key_size, auth::LONGEST)?;
    within("max_ep_auth_key", d.max_ep_auth_key, 0)?;
    subset("domain capabilities", d.caps, caps::DOMAIN, Kind::Flags)
}

/// Registration modes: none is needed. The values from before API 1.5, alone, are answered in kind.
///
/// By the book an application looks at the answer, and none would do for all. In fact some that
/// offer just what they implement do not look (SHMEM built for basic registration), or insist
/// (NVSHMEM): those get what they offer. Others offer every mode, `FI_MR_LOCAL` first, and then
/// address by offset whatever the answer is (fabtests): those get none but `FI_MR_ALLOCATED`, which changes
/// neither addresses nor keys, and has long accesses read by a provider below. And an open domain stays
/// what it is (Open MPI 5 shares one between its MTL and its BTL).
fn mr_mode(h: &Hints, api: u32) -> Result<c_int, Refusal> {
    let asked = h.domain.mr_mode;
    if let Object::Ours(_, opened_with) = h.domain.object {
        return Ok(opened_with);
    }
    match asked {
        FI_MR_BASIC | FI_MR_SCALABLE => return Ok(asked),
        FI_MR_UNSPEC if api < FI_VERSION(1, 5) => return Ok(FI_MR_SCALABLE),
        _ if api < FI_VERSION(1, 5) => return refuse("mr_mode", asked as u32, 3u64),
        _ => {}
    }
    if asked & (FI_MR_LOCAL | FI_MR_HMEM) == FI_MR_LOCAL {
        return Ok(asked & FI_MR_ALLOCATED);
    }
    let basic = if asked & FI_MR_BASIC != 0 { MR_MODES } else { 0 };
    Ok((asked | basic) & MR_MODES)
}

/// Whether the application has agreed to register memory that is there, and stays until the registration is
/// closed.
pub(crate) fn is_allocated(mode: c_int) -> bool {
    mode == FI_MR_BASIC || mode & FI_MR_ALLOCATED != 0
}

/// Whether registrations of that mode are addressed by virtual address, and whether their keys are
/// the provider's choice.
pub(crate) fn mr_semantics(mode: c_int) -> (bool, bool) {
    let all = if mode == FI_MR_BASIC { MR_MODES } else { mode };
    (all & FI_MR_VIRT_ADDR != 0, all & FI_MR_PROV_KEY != 0)
}
