//! Opening a provider's endpoint with all it needs, and what it promises.

use std::ptr::null_mut;
use std::rc::Rc;
use std::sync::Arc;

use fabric_client::{Info, Library, Own, manual};
use libfabric_sys as sys;

use crate::Error;

/// Where libfabric is, if it is not the one that programs find.
pub const LIBRARY: &str = "STRAIT_RPIPE_LIBFABRIC";

/// Operations under way at a time.
pub const OPERATIONS: usize = 512;

/// An endpoint, enabled. The order of the fields is that in which they are closed.
#[derive(Debug)]
pub struct Opened {
    pub ep: Own<sys::fid_ep>,
    pub cq: Own<sys::fid_cq>,
    pub av: Own<sys::fid_av>,
    pub domain: Rc<Domain>,
    pub library: Arc<Library>,
    pub limits: Limits,
    /// Readable when the queue has something.
    pub wait: Option<libc::c_int>,
}

/// A domain, which stays open as long as memory is registered in it, and its fabric. The order of the fields
/// is that in which they are closed.
#[derive(Debug)]
pub struct Domain {
    pub domain: Own<sys::fid_domain>,
    pub fabric: Own<sys::fid_fabric>,
}

/// What was agreed on with the provider.
#[derive(Clone, Debug)]
pub struct Limits {
    pub provider: String,
    pub mr_mode: i32,
    /// Bytes of a key that may be chosen.
    pub key_size: usize,
    pub inject: usize,
    pub most: usize,
    /// Writes up to so long become visible in order; `None`: no such promise.
    pub order: Option<usize>,
    pub fence: bool,
    /// Completions of writes say that the bytes are visible.
    pub delivered: bool,
    /// A read that starts after a write has completed finds its bytes.
    pub settled: bool,
    /// A write may carry 8 bytes for the target's queue.
    pub data: bool,
    pub fetch: bool,
    /// The target has to make progress.
    pub peer_progress: bool,
}

impl Limits {
    /// Whether writes are in order, whatever their length, if need be with fences.
    pub fn between(&self) -> bool {
        self.fence || self.order.is_some_and(|most| most >= self.most)
    }

    /// Whether a target can learn that a write is visible.
    fn is_sound(&self) -> bool {
        self.between() || self.delivered
    }
}

pub fn failed(e: fabric_client::Error) -> Error {
    match e {
        fabric_client::Error::Unsupported(why) => Error::Unsupported(why),
        fabric_client::Error::Failed(why) => Error::System(why),
    }
}

/// What is asked for, the best first.
#[derive(Clone, Copy, Debug)]
struct Ask {
    atomic: bool,
    order: u64,
    delivered: bool,
}

const ASKS: [Ask; 10] = {
    const fn ask(atomic: bool, order: u64, delivered: bool) -> Ask {
        Ask { atomic, order, delivered }
    }
    // Before libfabric 1.8 order of writes had one bit for RMA and atomics.
    [
        ask(true, sys::FI_ORDER_RMA_WAW | sys::FI_ORDER_RMA_RAW, false),
        ask(true, sys::FI_ORDER_RMA_WAW, false),
        ask(true, sys::FI_ORDER_WAW, false),
        ask(false, sys::FI_ORDER_RMA_WAW | sys::FI_ORDER_RMA_RAW, false),
        ask(false, sys::FI_ORDER_RMA_WAW, false),
        ask(false, sys::FI_ORDER_WAW, false),
        ask(true, 0, true),
        ask(false, 0, true),
        ask(true, 0, false),
        ask(false, 0, false),
    ]
};

fn find(library: &Arc<Library>, provider: Option<&str>, ask: Ask) -> Result<Info, fabric_client::Error> {
    let shape = |info: *mut sys::fi_info| {
        // SAFETY: `find` gives an info with all its attributes; every field written was there in 1.0.
        unsafe {
            (*info).caps = sys::FI_MSG | sys::FI_RMA | if ask.atomic { sys::FI_ATOMIC } else { 0 };
            manual(info, sys::FI_ORDER_SAS | ask.order);
            if ask.delivered {
                (*(*info).tx_attr).op_flags = sys::FI_DELIVERY_COMPLETE;
            }
            (*(*info).domain_attr).resource_mgmt = sys::FI_RM_ENABLED;
        }
    };
    // SAFETY: the closure writes numbers alone.
    unsafe { library.find(provider, shape) }
}

/// Opens an endpoint of this provider, or of the one that libfabric takes first.
pub fn open(provider: Option<&str>) -> Result<Opened, Error> {
    let path = std::env::var_os(LIBRARY).map(std::path::PathBuf::from);
    let library = Library::load(path.as_deref()).map_err(failed)?;
    let (mut some, mut last) = (None, Error::Unsupported(String::new()));
    for ask in ASKS {
        match find(&library, provider, ask) {
            // Atomics may cost the order of writes, which counts for more.
            Ok(info) if limits(&info, ask).is_sound() => return opened(&library, &info, ask),
            Ok(info) => some = some.or(Some((info, ask))),
            Err(e) => last = failed(e),
        }
    }
    match some {
        Some((info, ask)) => opened(&library, &info, ask),
        None => Err(last),
    }
}

fn limits(info: &Info, ask: Ask) -> Limits {
    // SAFETY: an info that the library made has all its attributes; every field was there in 1.0.
    unsafe {
        let raw = info.as_ptr();
        let (ep, tx, domain) = ((*raw).ep_attr, (*raw).tx_attr, (*raw).domain_attr);
        Limits {
            provider: info.provider(),
            mr_mode: (*domain).mr_mode,
            key_size: (*domain).mr_key_size,
            inject: (*tx).inject_size,
            most: (*ep).max_msg_size,
            order: (ask.order != 0 && (*tx).msg_order & ask.order == ask.order)
                .then_some((*ep).max_order_waw_size),
            settled: ask.delivered
                || (ask.order & sys::FI_ORDER_RMA_RAW != 0
                    && (*tx).msg_order & sys::FI_ORDER_RMA_RAW != 0
                    && (*ep).max_order_raw_size >= (*ep).max_msg_size),
            fence: (*raw).caps & sys::FI_FENCE != 0,
            delivered: ask.delivered,
            data: (*domain).cq_data_size >= 8,
            fetch: ask.atomic,
            peer_progress: (*domain).anon1.data_progress != sys::FI_PROGRESS_AUTO,
        }
    }
}

fn opened(library: &Arc<Library>, info: &Info, ask: Ask) -> Result<Opened, Error> {
    let mut limits = limits(info, ask);
    let fabric = Own::fabric(info).map_err(failed)?;
    // SAFETY: the fabric is open, so its table is valid; this slot was there in 1.0.
    let open = library.have(unsafe { (*(*fabric.as_ptr()).ops).domain }, "domain").map_err(failed)?;
    // SAFETY: fi_domain makes a new object on success; the info is of this fabric.
    let domain = unsafe {
        Own::<sys::fid_domain>::open(library, |place| open(fabric.as_ptr(), info.as_ptr(), place, null_mut()))
    };
    let domain = domain.map_err(failed)?;
    // SAFETY: the domain is open, so its table is valid; these slots were there in 1.0.
    let (av_open, cq_open, endpoint) = unsafe {
        let ops = (*domain.as_ptr()).ops;
        ((*ops).av_open, (*ops).cq_open, (*ops).endpoint)
    };
    let av_open = library.have(av_open, "av_open").map_err(failed)?;
    let cq_open = library.have(cq_open, "cq_open").map_err(failed)?;
    let endpoint = library.have(endpoint, "endpoint").map_err(failed)?;
    let mut attr = sys::fi_av_attr { type_: sys::FI_AV_TABLE, count: 64, ..Default::default() };
    // SAFETY: fi_av_open makes a new object on success; it reads the attributes during the call.
    let av = unsafe {
        Own::<sys::fid_av>::open(library, |place| av_open(domain.as_ptr(), &mut attr, place, null_mut()))
    };
    let av = av.map_err(failed)?;
    let queue = |wait_obj| {
        let format = sys::FI_CQ_FORMAT_DATA;
        let mut attr = sys::fi_cq_attr { size: 4 * OPERATIONS, format, wait_obj, ..Default::default() };
        // SAFETY: fi_cq_open makes a new object on success; it reads the attributes during the call.
        unsafe {
            Own::<sys::fid_cq>::open(library, |place| cq_open(domain.as_ptr(), &mut attr, place, null_mut()))
        }
    };
    let (cq, waits) = match queue(sys::FI_WAIT_FD) {
        Ok(cq) => (cq, true),
        Err(_) => (queue(sys::FI_WAIT_NONE).map_err(failed)?, false),
    };
    // SAFETY: fi_endpoint makes a new object on success; the info is of this domain.
    let ep = unsafe {
        Own::<sys::fid_ep>::open(library, |place| endpoint(domain.as_ptr(), info.as_ptr(), place, null_mut()))
    };
    let ep = ep.map_err(failed)?;
    ep.bind(&av, 0, "the address vector").map_err(failed)?;
    ep.bind(&cq, sys::FI_TRANSMIT | sys::FI_RECV, "the completion queue").map_err(failed)?;
    ep.enable().map_err(failed)?;
    limits.fetch &= fetch_works(&ep);
    let wait = if waits { wait_descriptor(&cq) } else { None };
    let domain = Rc::new(Domain { domain, fabric });
    Ok(Opened { ep, cq, av, domain, library: library.clone(), limits, wait })
}

fn wait_descriptor(cq: &Own<sys::fid_cq>) -> Option<libc::c_int> {
    let mut fd: libc::c_int = -1;
    // SAFETY: the queue is open, so its table is valid; FI_GETWAIT of a queue with FI_WAIT_FD writes an int.
    let rc = unsafe {
        let control = (*(*cq.fid()).ops).control?;
        control(cq.fid(), sys::FI_GETWAIT, (&raw mut fd).cast())
    };
    (rc == 0 && fd >= 0).then_some(fd)
}

/// Whether 64-bit numbers can be fetched and added to.
fn fetch_works(ep: &Own<sys::fid_ep>) -> bool {
    let mut count = 0;
    // SAFETY: the endpoint is open; a provider without atomics may leave the table null.
    unsafe {
        let valid = (*ep.as_ptr()).atomic.as_ref().and_then(|table| table.readwritevalid);
        valid.is_some_and(|valid| {
            valid(ep.as_ptr(), sys::FI_UINT64, sys::FI_SUM, &mut count) == 0 && count > 0
        })
    }
}
