//! librdmacm: connections of iWARP devices, which nothing else makes.
//!
//! [`CmLibrary`] is `librdmacm.so.1`, opened at run time like libibverbs. Owners are [`CmChannel`], by which
//! events come, and [`CmId`]: an address that is listened at, or a connection. The queue pair of a connection
//! is named by its number, and stays its owner's.

use core::ffi::{CStr, c_int, c_uint, c_void};
use core::ptr::{NonNull, null_mut};
use std::ffi::CString;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use loaded::Object;

use crate::cm_bindings::{
    RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_DISCONNECTED,
    RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_PS_TCP, rdma_cm_event, rdma_cm_id,
    rdma_conn_param, rdma_event_channel,
};
use crate::context::nonblocking;
use crate::error::text;
use crate::library::functions;
use crate::{Device, Error};

/// What rdma-core's packages install.
const CM_SONAME: &CStr = c"librdmacm.so.1";
/// Connections that may wait to be accepted.
const BACKLOG: c_int = 1024;

functions! {
    CmFunctions
    required {
        rdma_create_event_channel: fn() -> *mut rdma_event_channel;
        rdma_destroy_event_channel: fn(*mut rdma_event_channel);
        rdma_create_id: fn(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, c_uint) -> c_int;
        rdma_destroy_id: fn(*mut rdma_cm_id) -> c_int;
        rdma_bind_addr: fn(*mut rdma_cm_id, *mut libc::sockaddr) -> c_int;
        rdma_listen: fn(*mut rdma_cm_id, c_int) -> c_int;
        rdma_get_src_port: fn(*mut rdma_cm_id) -> u16;
        rdma_resolve_addr: fn(*mut rdma_cm_id, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
        rdma_resolve_route: fn(*mut rdma_cm_id, c_int) -> c_int;
        rdma_connect: fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        rdma_accept: fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        rdma_reject: fn(*mut rdma_cm_id, *const c_void, u8) -> c_int;
        rdma_get_cm_event: fn(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
        rdma_ack_cm_event: fn(*mut rdma_cm_event) -> c_int;
    }
    optional {}
}

/// A librdmacm, which stays loaded.
#[derive(Clone, Debug)]
pub struct CmLibrary {
    functions: Arc<CmFunctions>,
}

impl CmLibrary {
    /// The library in this file, else the one that the linker finds.
    pub fn open(path: Option<&Path>) -> Result<CmLibrary, Error> {
        let name = path.map_or(Ok(CM_SONAME.to_owned()), |path| CString::new(path.as_os_str().as_bytes()));
        let name = name.map_err(|_| Error::NoManager(format!("{path:?} has a zero byte in its name")))?;
        // SAFETY: its initialisers read what the host has; any process may run them.
        let object = unsafe { Object::load(&name) }.map_err(Error::NoManager)?;
        let functions = CmFunctions::of(&object)?;
        core::mem::forget(object);
        Ok(CmLibrary { functions: Arc::new(functions) })
    }
}

/// An address as the library takes it.
#[repr(C)]
union Sockaddr {
    any: libc::sockaddr,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl Sockaddr {
    fn new(address: SocketAddr) -> Sockaddr {
        match address {
            SocketAddr::V4(v4) => Sockaddr {
                v4: libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                    sin_zero: [0; 8],
                },
            },
            SocketAddr::V6(v6) => Sockaddr {
                v6: libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    sin6_scope_id: v6.scope_id(),
                },
            },
        }
    }
}

struct RawChannel {
    library: CmLibrary,
    raw: NonNull<rdma_event_channel>,
}

// SAFETY: librdmacm's calls may be made from any thread.
unsafe impl Send for RawChannel {}
// SAFETY: as above.
unsafe impl Sync for RawChannel {}

impl Drop for RawChannel {
    fn drop(&mut self) {
        // SAFETY: made by this library, and all that was made of it is gone: each holds this.
        unsafe { (self.library.functions.rdma_destroy_event_channel)(self.raw.as_ptr()) };
    }
}

/// Where events come, without blocking.
#[derive(Clone)]
pub struct CmChannel(Arc<RawChannel>);

/// What has happened.
#[derive(Debug)]
pub enum CmEvent {
    /// A peer wants to connect, and sends these bytes.
    Request(CmId, Vec<u8>),
    /// Of the id with this key: its address, or its route, is known.
    Resolved(usize),
    Routed(usize),
    /// It is connected; bytes of the peer, if it was this end that has connected.
    Established(usize, Vec<u8>),
    /// The connection has ended.
    Disconnected(usize),
    /// Another event, by which a connection is not made or ends: `enum rdma_cm_event_type`, and status.
    Failed(usize, c_uint, c_int),
}

impl CmEvent {
    /// The key of the id that it is of; none of a request.
    pub fn key(&self) -> Option<usize> {
        match self {
            CmEvent::Request(..) => None,
            CmEvent::Resolved(key)
            | CmEvent::Routed(key)
            | CmEvent::Established(key, _)
            | CmEvent::Disconnected(key)
            | CmEvent::Failed(key, ..) => Some(*key),
        }
    }
}

impl CmChannel {
    pub fn new(library: &CmLibrary) -> Result<CmChannel, Error> {
        // SAFETY: takes nothing.
        let raw = unsafe { (library.functions.rdma_create_event_channel)() };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("rdma_create_event_channel"))?;
        let channel = CmChannel(Arc::new(RawChannel { library: library.clone(), raw }));
        nonblocking(channel.fd().as_raw_fd())?;
        Ok(channel)
    }

    fn functions(&self) -> &CmFunctions {
        &self.0.library.functions
    }

    /// What is readable when there is an event.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open while the channel is.
        unsafe { BorrowedFd::borrow_raw(self.0.raw.as_ref().fd) }
    }

    /// The next event, acknowledged; `None`: there is none.
    pub fn event(&self) -> Result<Option<CmEvent>, Error> {
        let mut event = null_mut();
        // SAFETY: a channel of this library, and a place for the event.
        if unsafe { (self.functions().rdma_get_cm_event)(self.0.raw.as_ptr(), &raw mut event) } != 0 {
            let error = Error::last("rdma_get_cm_event");
            return if error.errno() == libc::EAGAIN { Ok(None) } else { Err(error) };
        }
        // SAFETY: the event and its bytes are there until it is acknowledged. These types have the member of
        // the union that is read. The id of a request is handed over by it.
        unsafe {
            let rdma_cm_event { id, event: kind, status, conn, .. } = &*event;
            let key = *id as usize;
            let bytes = || match conn.private_data.is_null() {
                true => Vec::new(),
                false => {
                    let (data, len) = (conn.private_data.cast::<u8>(), conn.private_data_len.into());
                    core::slice::from_raw_parts(data, len).to_vec()
                }
            };
            let found = match (*kind, NonNull::new(*id)) {
                (RDMA_CM_EVENT_CONNECT_REQUEST, Some(raw)) => {
                    CmEvent::Request(CmId { raw, channel: self.clone() }, bytes())
                }
                (RDMA_CM_EVENT_ADDR_RESOLVED, _) => CmEvent::Resolved(key),
                (RDMA_CM_EVENT_ROUTE_RESOLVED, _) => CmEvent::Routed(key),
                (RDMA_CM_EVENT_ESTABLISHED, _) => CmEvent::Established(key, bytes()),
                (RDMA_CM_EVENT_DISCONNECTED, _) => CmEvent::Disconnected(key),
                (kind, _) => CmEvent::Failed(key, kind, *status),
            };
            (self.functions().rdma_ack_cm_event)(event);
            Ok(Some(found))
        }
    }
}

impl fmt::Debug for CmChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CmChannel").field(&self.fd()).finish()
    }
}

/// What one end says to the other where they connect, and which queue pair it connects.
#[derive(Clone, Copy, Debug)]
pub struct CmSaid<'a> {
    pub qpn: u32,
    /// At most 56 bytes.
    pub bytes: &'a [u8],
    /// Reads of the peer's, and own ones, that may be under way.
    pub serves: u8,
    pub starts: u8,
}

impl CmSaid<'_> {
    fn param(&self) -> rdma_conn_param {
        rdma_conn_param {
            private_data: self.bytes.as_ptr().cast(),
            private_data_len: self.bytes.len().try_into().unwrap_or(0),
            responder_resources: self.serves,
            initiator_depth: self.starts,
            flow_control: 0,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: 0,
            qp_num: self.qpn,
        }
    }
}

/// An address that is listened at, or a connection, which ends when this is dropped.
pub struct CmId {
    raw: NonNull<rdma_cm_id>,
    channel: CmChannel,
}

// SAFETY: librdmacm's calls may be made from any thread.
unsafe impl Send for CmId {}

impl Drop for CmId {
    fn drop(&mut self) {
        // SAFETY: made by this library, its one end, and its events are acknowledged.
        unsafe { (self.channel.functions().rdma_destroy_id)(self.raw.as_ptr()) };
    }
}

impl CmId {
    pub fn new(channel: &CmChannel) -> Result<CmId, Error> {
        let mut raw = null_mut();
        let create = channel.functions().rdma_create_id;
        // SAFETY: a channel of this library, and a place for the id.
        let code = unsafe { create(channel.0.raw.as_ptr(), &raw mut raw, null_mut(), RDMA_PS_TCP) };
        Error::check("rdma_create_id", code)?;
        let raw = NonNull::new(raw).ok_or(Error::Missing("rdma_create_id"))?;
        Ok(CmId { raw, channel: channel.clone() })
    }

    /// What events name it by, as long as it is there.
    pub fn key(&self) -> usize {
        self.raw.as_ptr() as usize
    }

    fn functions(&self) -> &CmFunctions {
        self.channel.functions()
    }

    /// Takes an address of this host; 0: a port that is free.
    pub fn bind(&self, address: SocketAddr) -> Result<(), Error> {
        let mut address = Sockaddr::new(address);
        // SAFETY: an id of this library, and an address of its family's length.
        let code = unsafe { (self.functions().rdma_bind_addr)(self.raw.as_ptr(), &raw mut address.any) };
        Error::check("rdma_bind_addr", code)
    }

    /// The device that its address is of, once that is known.
    pub fn device_name(&self) -> Option<String> {
        // SAFETY: the context is the library's own, there while the id is; so is its device.
        unsafe {
            let context = (*self.raw.as_ptr()).verbs.as_ref();
            context.and_then(|context| context.device.as_ref()).map(|device| text(&device.name))
        }
    }

    /// Whether its address is of this device.
    pub fn is_of(&self, device: &Device) -> bool {
        self.device_name().is_some_and(|name| name == device.name())
    }

    /// Listens at its address: by which port.
    pub fn listen(&self) -> Result<u16, Error> {
        // SAFETY: an id of this library.
        unsafe {
            let code = (self.functions().rdma_listen)(self.raw.as_ptr(), BACKLOG);
            Error::check("rdma_listen", code)?;
            Ok(u16::from_be((self.functions().rdma_get_src_port)(self.raw.as_ptr())))
        }
    }

    /// Begins to find the device and the way to an address; [`CmEvent::Resolved`] ends that.
    pub fn resolve(&self, from: SocketAddr, to: SocketAddr, patience: Duration) -> Result<(), Error> {
        let (mut from, mut to) = (Sockaddr::new(from), Sockaddr::new(to));
        let resolve = self.functions().rdma_resolve_addr;
        // SAFETY: an id of this library, and addresses of their families' lengths.
        let code = unsafe {
            resolve(self.raw.as_ptr(), &raw mut from.any, &raw mut to.any, patience.as_millis() as c_int)
        };
        Error::check("rdma_resolve_addr", code)
    }

    /// Begins to find the route, after that; [`CmEvent::Routed`] ends it.
    pub fn resolve_route(&self, patience: Duration) -> Result<(), Error> {
        let resolve = self.functions().rdma_resolve_route;
        // SAFETY: an id of this library.
        let code = unsafe { resolve(self.raw.as_ptr(), patience.as_millis() as c_int) };
        Error::check("rdma_resolve_route", code)
    }

    /// Begins to connect, after that.
    pub fn connect(&self, said: &CmSaid<'_>) -> Result<(), Error> {
        // SAFETY: an id of this library, and bytes that are there during the call.
        let code = unsafe { (self.functions().rdma_connect)(self.raw.as_ptr(), &mut said.param()) };
        Error::check("rdma_connect", code)
    }

    /// Accepts what [`CmEvent::Request`] brought.
    pub fn accept(&self, said: &CmSaid<'_>) -> Result<(), Error> {
        // SAFETY: as above.
        let code = unsafe { (self.functions().rdma_accept)(self.raw.as_ptr(), &mut said.param()) };
        Error::check("rdma_accept", code)
    }

    /// Refuses it.
    pub fn reject(self) {
        // SAFETY: an id of this library, and no bytes. It is destroyed next, whatever this says.
        let _ = unsafe { (self.functions().rdma_reject)(self.raw.as_ptr(), null_mut(), 0) };
    }
}

impl fmt::Debug for CmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CmId").field(&self.key()).finish()
    }
}
