//! An open device.

use core::mem::MaybeUninit;
use core::ptr::NonNull;
use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use crate::extended::operation;
use crate::port::{Gid, GidType, Port};
use crate::{
    Device, Error, Functions, Library, ibv_async_event, ibv_context, ibv_context_ops, ibv_device_attr,
    ibv_device_attr_ex, ibv_event_type, ibv_port_attr, ibv_query_device_ex_input,
};

type QueryDevice = unsafe extern "C" fn(
    *mut ibv_context,
    *const ibv_query_device_ex_input,
    *mut ibv_device_attr_ex,
    usize,
) -> core::ffi::c_int;
type QueryPort = unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> core::ffi::c_int;

struct Inner {
    device: Device,
    raw: NonNull<ibv_context>,
    attributes: ibv_device_attr_ex,
}

// SAFETY: libibverbs' calls may be made from any thread (its manual: it is thread-safe), and the rest is
// constant.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: opened by this library, and all objects made of it are gone: each holds this.
        unsafe { (self.device.library().functions().ibv_close_device)(self.raw.as_ptr()) };
    }
}

/// An open device. Clones are the same one, which is closed with the last of them and of all objects made
/// of it.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

/// An asynchronous event, acknowledged when it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Of a queue pair, by its number.
    Qp { kind: ibv_event_type, number: u32 },
    /// Of a completion queue, by the value that it was made with: it overran.
    Cq { kind: ibv_event_type, value: usize },
    /// Of a shared receive queue, by the value that it was made with: the limit is reached, or an error.
    Srq { kind: ibv_event_type, value: usize },
    /// Of a port.
    Port { kind: ibv_event_type, port: u8 },
    /// Of the device as a whole: it is gone.
    Device { kind: ibv_event_type },
}

impl Context {
    /// Opens the device.
    pub fn open(device: &Device) -> Result<Context, Error> {
        // SAFETY: a device of this library, whose list is held.
        let raw = unsafe { (device.library().functions().ibv_open_device)(device.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_open_device"))?;
        let mut inner = Inner { device: device.clone(), raw, attributes: Default::default() };
        inner.attributes = query(&inner)?;
        Ok(Context(Arc::new(inner)))
    }

    pub(crate) fn raw(&self) -> *mut ibv_context {
        self.0.raw.as_ptr()
    }

    pub(crate) fn functions(&self) -> &Functions {
        self.library().functions()
    }

    /// The library that it is of.
    pub fn library(&self) -> &Library {
        self.0.device.library()
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// What ibv_query_device(3) said when it was opened.
    pub fn attributes(&self) -> &ibv_device_attr {
        &self.0.attributes.orig_attr
    }

    /// What ibv_query_device_ex(3) said; of a library without it, all but the first part is zero.
    pub fn extended_attributes(&self) -> &ibv_device_attr_ex {
        &self.0.attributes
    }

    /// Whether reliable connections send, receive, read and write memory that is registered on demand.
    pub fn has_on_demand(&self) -> bool {
        let (caps, send) = (self.0.attributes.odp_caps, crate::IBV_ODP_SUPPORT_SEND);
        let needs =
            send | crate::IBV_ODP_SUPPORT_RECV | crate::IBV_ODP_SUPPORT_WRITE | crate::IBV_ODP_SUPPORT_READ;
        caps.general_caps & u64::from(crate::IBV_ODP_SUPPORT) != 0
            && caps.per_transport_caps.rc_odp_caps & needs == needs
    }

    /// Whether memory windows are bound to a queue pair and to its domain (2B).
    pub fn has_windows(&self) -> bool {
        self.attributes().device_cap_flags & crate::IBV_DEVICE_MEM_WINDOW_TYPE_2B != 0
    }

    /// How many vectors completion channels may use.
    pub fn vectors(&self) -> u32 {
        // SAFETY: constant since it was opened.
        unsafe { (*self.raw()).num_comp_vectors }.try_into().unwrap_or(1)
    }

    /// The state of a port, which are counted from 1: EINVAL for one that is not there.
    pub fn port(&self, number: u8) -> Result<Port, Error> {
        let mut attr = ibv_port_attr::default();
        // SAFETY: an open context, the slot's type, and a structure of that size.
        let code = unsafe {
            match operation!(self.raw(), query_port: QueryPort) {
                Some(query) => query(self.raw(), number, &raw mut attr, size_of_val(&attr)),
                None => (self.functions().ibv_query_port)(self.raw(), number, (&raw mut attr).cast()),
            }
        };
        Error::check("ibv_query_port", code)?;
        Ok(Port { number, attr })
    }

    /// All entries of a port's table of GIDs that are not empty.
    pub fn gids(&self, port: &Port) -> Vec<Gid> {
        let entries = u32::try_from(port.attr.gid_tbl_len).unwrap_or(0);
        // A table has 256 entries at most where the index travels: ibv_global_route.sgid_index.
        (0..entries.min(256)).filter_map(|index| self.gid(port, index as u8)).collect()
    }

    /// The GID at this index; none if the entry is empty.
    pub fn gid(&self, port: &Port, index: u8) -> Option<Gid> {
        let mut entry = crate::ibv_gid_entry::default();
        let (number, functions) = (port.number, self.functions());
        if let Some(query) = functions.query_gid_ex {
            let size = size_of_val(&entry);
            // SAFETY: an open context, and an entry of that size.
            let code = unsafe { query(self.raw(), number.into(), index.into(), &raw mut entry, 0, size) };
            if code == 0 {
                let kind = match entry.gid_type {
                    crate::IBV_GID_TYPE_IB => GidType::Ib,
                    crate::IBV_GID_TYPE_ROCE_V1 => GidType::RoceV1,
                    crate::IBV_GID_TYPE_ROCE_V2 => GidType::RoceV2,
                    _ => GidType::Unknown,
                };
                return Gid::new(index, entry.gid, kind, entry.ndev_ifindex);
            }
            // An empty entry. A kernel without the call (before 5.10) is asked by the older one.
            if ![libc::EOPNOTSUPP, libc::ENOSYS].contains(&code.abs()) {
                return None;
            }
        }
        let mut gid = crate::ibv_gid::default();
        // SAFETY: an open context, and memory for a GID.
        let code = unsafe { (functions.ibv_query_gid)(self.raw(), number, index.into(), &raw mut gid) };
        let kind = if port.is_ethernet() { GidType::Unknown } else { GidType::Ib };
        if code == 0 { Gid::new(index, gid, kind, 0) } else { None }
    }

    /// Where asynchronous events announce themselves to poll(2).
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open while the context is.
        unsafe { BorrowedFd::borrow_raw((*self.raw()).async_fd) }
    }

    /// Whether [`Context::event`] returns at once where there is no event.
    pub fn set_nonblocking(&self) -> Result<(), Error> {
        nonblocking(self.async_fd().as_raw_fd())
    }

    /// The next asynchronous event, acknowledged. `None`: there is none, and the descriptor does not block.
    pub fn event(&self) -> Result<Option<Event>, Error> {
        let mut event = MaybeUninit::<ibv_async_event>::zeroed();
        // SAFETY: an open context, and memory for the event.
        if unsafe { (self.functions().ibv_get_async_event)(self.raw(), event.as_mut_ptr()) } != 0 {
            let error = Error::last("ibv_get_async_event");
            return if error.errno() == libc::EAGAIN { Ok(None) } else { Err(error) };
        }
        // SAFETY: filled in by the call. The object of the event is there until it is acknowledged: the
        // call that destroys it waits for that. Which member of the union is meant, its type says.
        unsafe {
            let mut event = event.assume_init();
            let (kind, element) = (event.event_type, event.element);
            let read = match kind {
                crate::IBV_EVENT_CQ_ERR => Event::Cq { kind, value: (*element.cq).cq_context as usize },
                crate::IBV_EVENT_QP_FATAL
                | crate::IBV_EVENT_QP_REQ_ERR
                | crate::IBV_EVENT_QP_ACCESS_ERR
                | crate::IBV_EVENT_COMM_EST
                | crate::IBV_EVENT_SQ_DRAINED
                | crate::IBV_EVENT_PATH_MIG
                | crate::IBV_EVENT_PATH_MIG_ERR
                | crate::IBV_EVENT_QP_LAST_WQE_REACHED => Event::Qp { kind, number: (*element.qp).qp_num },
                crate::IBV_EVENT_SRQ_ERR | crate::IBV_EVENT_SRQ_LIMIT_REACHED => {
                    Event::Srq { kind, value: (*element.srq).srq_context as usize }
                }
                crate::IBV_EVENT_DEVICE_FATAL | crate::IBV_EVENT_WQ_FATAL => Event::Device { kind },
                _ => Event::Port { kind, port: element.port_num as u8 },
            };
            (self.functions().ibv_ack_async_event)(&raw mut event);
            Ok(Some(read))
        }
    }

    /// The operations of the header's inline functions.
    pub(crate) fn ops(&self) -> ibv_context_ops {
        // SAFETY: constant since the device was opened.
        unsafe { (*self.raw()).ops }
    }
}

fn query(inner: &Inner) -> Result<ibv_device_attr_ex, Error> {
    let context = inner.raw.as_ptr();
    let mut attr = ibv_device_attr_ex::default();
    // SAFETY: an open context, the slot's type, no input, and a structure of that size.
    unsafe {
        if let Some(query) = operation!(context, query_device_ex: QueryDevice) {
            let size = size_of_val(&attr);
            match Error::check("ibv_query_device_ex", query(context, core::ptr::null(), &raw mut attr, size))
            {
                Err(error) if error.is_unsupported() => attr = Default::default(),
                done => return done.map(|()| attr),
            }
        }
        let query = inner.device.library().functions().ibv_query_device;
        Error::check("ibv_query_device", query(context, &raw mut attr.orig_attr)).map(|()| attr)
    }
}

/// Sets O_NONBLOCK.
pub(crate) fn nonblocking(fd: RawFd) -> Result<(), Error> {
    // SAFETY: an open descriptor of the library's, whose flags a program may set (ibv_get_cq_event(3)).
    let done = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        flags >= 0 && libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) == 0
    };
    if done { Ok(()) } else { Err(Error::last("fcntl")) }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(&self.device().name()).finish()
    }
}
