//! librdmacm, as far as iWARP devices are connected by it: each connection is a socket of its own, whose end is that of the
//! queue pair.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rdma_sys as ibv;
use rdma_sys::cm_bindings as cm;

use super::calls::{At, Channel, Event, Id, Manager, Stage};
use super::{abstract_name, socket};
use crate::device::devices;
use crate::entry::{enter, set_errno};
use crate::nic;
use crate::objects::Path;
use crate::packet::Address;
use crate::settings::settings;
use crate::state::{State, eventfd, lock, signal, take};

/// A message: whose queue pair it is of, and private data. An answer without one rejects.
fn encode(qp: Option<(Address, u32)>, data: &[u8]) -> Vec<u8> {
    let (at, qpn) = qp.unwrap_or_default();
    let mut bytes = vec![u8::from(qp.is_some()), at.host, at.device, at.instance];
    bytes.extend(qpn.to_le_bytes());
    bytes.extend(data);
    bytes
}

fn decode(bytes: &[u8]) -> (Option<(Address, u32)>, Vec<u8>) {
    let at = Address { host: bytes[1], device: bytes[2], instance: bytes[3] };
    let qpn = u32::from_le_bytes(bytes[4..8].try_into().expect("4 bytes"));
    ((bytes[0] == 1).then_some((at, qpn)), bytes[8..].to_vec())
}

fn send(fd: &OwnedFd, bytes: &[u8]) {
    unsafe { libc::send(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
}

/// The next message; `None`: there is none yet; an error: the other end is gone.
fn receive(fd: RawFd) -> Result<Option<Vec<u8>>, ()> {
    let mut buffer = [0u8; 512];
    match unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), 0) } {
        n if n >= 8 => Ok(Some(buffer[..n as usize].to_vec())),
        n if n < 0 && std::io::Error::last_os_error().kind() == std::io::ErrorKind::WouldBlock => Ok(None),
        _ => Err(()),
    }
}

impl State {
    fn raise_at(&mut self, channel: usize, event: Event) {
        if let Some(channel) = self.manager.channels.get_mut(&channel) {
            channel.events.push_back(event);
            signal(&channel.fd);
        }
    }

    fn raise_of_id(&mut self, id: usize, kind: u32, status: c_int, bytes: Vec<u8>) {
        if let Some(channel) = self.manager.ids.get(&id).map(|id| id.channel) {
            self.raise_at(channel, Event { id, listener: 0, kind, status, bytes });
        }
    }

    fn add_id(&mut self, channel: usize, id: Id) -> usize {
        let verbs = self.manager.contexts.get(&id.device).map_or(null_mut(), |at| *at as *mut _);
        let raw = cm::rdma_cm_id { verbs, channel: channel as *mut _, context: null_mut() };
        let at = Box::into_raw(Box::new(raw)) as usize;
        self.manager.ids.insert(at, Id { channel, ..id });
        at
    }

    /// Takes what has come by connections. `true`: something has.
    pub fn manage(&mut self) -> bool {
        let ids: Vec<usize> =
            self.manager.ids.iter().filter(|(_, id)| id.fd().is_some()).map(|(at, _)| *at).collect();
        let mut any = false;
        for at in ids {
            while self.manage_one(at) {
                any = true;
            }
        }
        any
    }

    fn manage_one(&mut self, at: usize) -> bool {
        let Some(id) = self.manager.ids.get_mut(&at) else { return false };
        let (channel, device, qpn) = (id.channel, id.device, id.qpn);
        match &mut id.stage {
            Stage::Listening(fd) => {
                let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
                let fd = unsafe { libc::accept4(fd.as_raw_fd(), null_mut(), null_mut(), flags) };
                if fd >= 0 {
                    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
                    self.add_id(channel, Id { device, stage: Stage::Called(fd, at), ..Default::default() });
                }
                fd >= 0
            }
            Stage::Called(fd, listener) => {
                let listener = *listener;
                match receive(fd.as_raw_fd()) {
                    Ok(None) => false,
                    Ok(Some(bytes)) => {
                        let (qp, bytes) = decode(&bytes);
                        let (far, far_qpn) = qp.unwrap_or_default();
                        if let Stage::Called(fd, _) = std::mem::take(&mut id.stage) {
                            id.stage = Stage::Requests(fd, far, far_qpn);
                        }
                        let (kind, status) = (cm::RDMA_CM_EVENT_CONNECT_REQUEST, 0);
                        self.raise_at(channel, Event { id: at, listener, kind, status, bytes });
                        true
                    }
                    Err(()) => {
                        self.manager.ids.remove(&at);
                        false
                    }
                }
            }
            Stage::Calls(fd) => match receive(fd.as_raw_fd()) {
                Ok(None) => false,
                Ok(Some(bytes)) => {
                    let (qp, bytes) = decode(&bytes);
                    let stage = std::mem::take(&mut id.stage);
                    if let (Some((far, far_qpn)), Stage::Calls(fd)) = (qp, stage) {
                        id.stage = Stage::Up(fd);
                        self.connect(qpn, far, far_qpn);
                        self.raise_of_id(at, cm::RDMA_CM_EVENT_ESTABLISHED, 0, bytes);
                    } else {
                        id.stage = Stage::Over;
                        self.flush(qpn);
                        self.raise_of_id(at, cm::RDMA_CM_EVENT_REJECTED, -libc::ECONNRESET, bytes);
                    }
                    true
                }
                Err(()) => {
                    id.stage = Stage::Over;
                    self.flush(qpn);
                    self.raise_of_id(at, cm::RDMA_CM_EVENT_CONNECT_ERROR, -libc::ECONNRESET, Vec::new());
                    true
                }
            },
            Stage::Up(fd) => {
                if receive(fd.as_raw_fd()).is_ok() {
                    return false;
                }
                id.stage = Stage::Over;
                self.flush(qpn);
                self.raise_of_id(at, cm::RDMA_CM_EVENT_DISCONNECTED, 0, Vec::new());
                true
            }
            Stage::Idle | Stage::Requests(..) | Stage::Over => false,
        }
    }

    /// A queue pair is connected, by the first port of each device.
    fn connect(&mut self, qpn: u32, peer: Address, far_qpn: u32) {
        let Some(qp) = self.qps.get_mut(&qpn) else { return };
        let reads = settings().devices[qp.device].limits.reads as u8;
        let mtu = settings().devices[qp.device].mtu;
        qp.path =
            Path { peer, peer_port: 1, port: 1, qpn: far_qpn, mtu, max_reads: (reads, reads), ..qp.path };
        (qp.sending.psn, qp.receiving.psn) = (0, 0);
        qp.state = ibv::IBV_QPS_RTS;
        unsafe { (*(qp.raw as *mut ibv::ibv_qp)).state = ibv::IBV_QPS_RTS };
    }
}

fn done(outcome: Result<(), c_int>) -> c_int {
    nic::wake();
    outcome.map_err(set_errno).map_or(-1, |()| 0)
}

unsafe fn address(of: *const libc::sockaddr) -> Option<At> {
    let v4 = unsafe { *of.cast::<libc::sockaddr_in>() };
    let is_v4 = i32::from(v4.sin_family) == libc::AF_INET;
    is_v4.then(|| (Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes()).into(), u16::from_be(v4.sin_port)))
}

/// The device whose address this is. That of the host itself is the first one's.
fn device_at(ip: IpAddr) -> Option<usize> {
    settings().devices.iter().position(|profile| {
        let own = Ipv4Addr::new(10, settings().host, 0, profile.number);
        profile.is("iwarp") && (ip == own || ip.is_loopback())
    })
}

/// The library's own context of a device.
fn open(device: usize) -> Result<(), c_int> {
    if lock().manager.contexts.contains_key(&device) {
        return Ok(());
    }
    let raw = (&raw const devices()[device]).cast_mut();
    let context = unsafe { crate::device::ibv_open_device(raw) };
    if context.is_null() {
        return Err(libc::ENODEV);
    }
    lock().manager.contexts.insert(device, context as usize);
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_event_channel() -> *mut cm::rdma_event_channel {
    if enter("rdma_create_event_channel").map_err(set_errno).is_err() {
        return null_mut();
    }
    let Some(fd) = eventfd() else { return null_mut() };
    let raw = Box::into_raw(Box::new(cm::rdma_event_channel { fd: fd.as_raw_fd() }));
    lock().manager.channels.insert(raw as usize, Channel { fd, events: VecDeque::new() });
    raw
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut cm::rdma_event_channel) {
    let mut state = lock();
    // What was not taken is no program's.
    let Manager { ids, channels, .. } = &mut state.manager;
    let requests = channels.get(&(channel as usize)).into_iter().flat_map(|channel| &channel.events);
    let requests = requests.filter(|event| event.kind == cm::RDMA_CM_EVENT_CONNECT_REQUEST);
    let untaken: Vec<usize> = requests.map(|event| event.id).collect();
    ids.retain(|at, id| {
        !untaken.contains(at) && (id.channel != channel as usize || !matches!(id.stage, Stage::Called(..)))
    });
    assert!(ids.values().all(|id| id.channel != channel as usize), "a channel with ids");
    if state.manager.channels.remove(&(channel as usize)).is_some() {
        drop(unsafe { Box::from_raw(channel) });
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut cm::rdma_event_channel,
    to: *mut *mut cm::rdma_cm_id,
    context: *mut c_void,
    space: c_uint,
) -> c_int {
    if let Err(errno) = enter("rdma_create_id") {
        return done(Err(errno));
    }
    if space != cm::RDMA_PS_TCP {
        return done(Err(libc::EINVAL));
    }
    let none = Id { device: usize::MAX, ..Default::default() };
    let raw = lock().add_id(channel as usize, none) as *mut cm::rdma_cm_id;
    unsafe {
        (*raw).context = context;
        *to = raw;
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_id(id: *mut cm::rdma_cm_id) -> c_int {
    let _ = enter("rdma_destroy_id");
    let is_unanswered =
        || lock().manager.ids.get(&(id as usize)).is_some_and(|id| matches!(id.stage, Stage::Calls(_)));
    while ENDS_ARE_HELD.load(Ordering::Acquire) && is_unanswered() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut state = lock();
    let Some(old) = state.manager.ids.remove(&(id as usize)) else { return done(Err(libc::EINVAL)) };
    state.manager.channels.values_mut().for_each(|c| c.events.retain(|event| event.id != id as usize));
    if matches!(old.stage, Stage::Up(_) | Stage::Calls(_)) {
        state.flush(old.qpn);
    }
    drop(state);
    drop(unsafe { Box::from_raw(id) });
    done(Ok(()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_bind_addr(id: *mut cm::rdma_cm_id, at: *mut libc::sockaddr) -> c_int {
    let bind = || {
        enter("rdma_bind_addr")?;
        let (ip, port) = unsafe { address(at) }.ok_or(libc::EAFNOSUPPORT)?;
        let device = device_at(ip).ok_or(libc::EADDRNOTAVAIL)?;
        open(device)?;
        let mut state = lock();
        let verbs = state.manager.contexts[&device];
        let known = state.manager.ids.get_mut(&(id as usize)).ok_or(libc::EINVAL)?;
        (known.own, known.device) = (Some((ip, port)), device);
        unsafe { (*id).verbs = verbs as *mut _ };
        Ok(())
    };
    done(bind())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_listen(id: *mut cm::rdma_cm_id, backlog: c_int) -> c_int {
    let listen = || {
        enter("rdma_listen")?;
        let mut state = lock();
        let first = 20_000 + (std::process::id() % 20_000) as u16;
        let known = state.manager.ids.get_mut(&(id as usize)).ok_or(libc::EINVAL)?;
        let (ip, port) = known.own.ok_or(libc::EINVAL)?;
        let ports = if port == 0 { first..=u16::MAX } else { port..=port };
        for port in ports {
            let fd = socket().ok_or(libc::EMFILE)?;
            let (name, len) = abstract_name(&format!("manager/{ip}/{port}"));
            let bound = unsafe {
                libc::bind(fd.as_raw_fd(), (&raw const name).cast(), len) == 0
                    && libc::listen(fd.as_raw_fd(), backlog) == 0
            };
            if bound {
                (known.own, known.stage) = (Some((ip, port)), Stage::Listening(fd));
                return Ok(());
            }
        }
        Err(libc::EADDRINUSE)
    };
    done(listen())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_src_port(id: *mut cm::rdma_cm_id) -> u16 {
    let state = lock();
    state.manager.ids.get(&(id as usize)).and_then(|id| id.own).map_or(0, |(_, port)| port.to_be())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_addr(
    id: *mut cm::rdma_cm_id,
    from: *mut libc::sockaddr,
    to: *mut libc::sockaddr,
    _timeout: c_int,
) -> c_int {
    let code = unsafe { rdma_bind_addr(id, from) };
    if code != 0 {
        return code;
    }
    let resolve = || {
        enter("rdma_resolve_addr")?;
        let to = unsafe { address(to) }.ok_or(libc::EAFNOSUPPORT)?;
        let mut state = lock();
        state.manager.ids.get_mut(&(id as usize)).ok_or(libc::EINVAL)?.to = Some(to);
        state.raise_of_id(id as usize, cm::RDMA_CM_EVENT_ADDR_RESOLVED, 0, Vec::new());
        Ok(())
    };
    done(resolve())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_route(id: *mut cm::rdma_cm_id, _timeout: c_int) -> c_int {
    let resolve = || {
        enter("rdma_resolve_route")?;
        let mut state = lock();
        state.manager.ids.get(&(id as usize)).and_then(|id| id.to).ok_or(libc::EINVAL)?;
        state.raise_of_id(id as usize, cm::RDMA_CM_EVENT_ROUTE_RESOLVED, 0, Vec::new());
        Ok(())
    };
    done(resolve())
}

/// The private data of these, and whose queue pair they name.
unsafe fn said(param: *const cm::rdma_conn_param) -> (Vec<u8>, u32) {
    let param = unsafe { &*param };
    let data = param.private_data.cast::<u8>();
    let len = usize::from(param.private_data_len);
    let bytes = if data.is_null() { &[] } else { unsafe { std::slice::from_raw_parts(data, len) } };
    (bytes.to_vec(), param.qp_num)
}

static ARE_HELD: AtomicBool = AtomicBool::new(false);
static ENDS_ARE_HELD: AtomicBool = AtomicBool::new(false);

/// Whether rdma_destroy_id of a connection that is requested waits for the answer, as that of soft iWARP does.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_verbs_hold_ends(are_held: bool) {
    ENDS_ARE_HELD.store(are_held, Ordering::Release);
}

/// Whether rdma_connect goes on, or waits, as that of soft iWARP does for TCP.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_verbs_hold_connects(are_held: bool) {
    ARE_HELD.store(are_held, Ordering::Release);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_connect(id: *mut cm::rdma_cm_id, param: *mut cm::rdma_conn_param) -> c_int {
    let connect = || {
        enter("rdma_connect")?;
        while ARE_HELD.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (data, qpn) = unsafe { said(param) };
        let mut state = lock();
        let known = state.manager.ids.get(&(id as usize)).ok_or(libc::EINVAL)?;
        let (ip, port) = known.to.filter(|_| matches!(known.stage, Stage::Idle)).ok_or(libc::EINVAL)?;
        let own = state.devices.get(&known.device).ok_or(libc::ENODEV)?.at;
        let is_fresh = state.qps.get(&qpn).is_some_and(|qp| qp.state == ibv::IBV_QPS_INIT);
        if !is_fresh {
            return Err(libc::EINVAL);
        }
        let fd = socket().ok_or(libc::EMFILE)?;
        let (name, len) = abstract_name(&format!("manager/{ip}/{port}"));
        if unsafe { libc::connect(fd.as_raw_fd(), (&raw const name).cast(), len) } != 0 {
            return Err(libc::ECONNREFUSED);
        }
        send(&fd, &encode(Some((own, qpn)), &data));
        if let Some(known) = state.manager.ids.get_mut(&(id as usize)) {
            (known.qpn, known.stage) = (qpn, Stage::Calls(fd));
        }
        Ok(())
    };
    done(connect())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_accept(id: *mut cm::rdma_cm_id, param: *mut cm::rdma_conn_param) -> c_int {
    let accept = || {
        enter("rdma_accept")?;
        let (data, qpn) = unsafe { said(param) };
        let mut state = lock();
        let known = state.manager.ids.get(&(id as usize)).ok_or(libc::EINVAL)?;
        let own = state.devices.get(&known.device).ok_or(libc::ENODEV)?.at;
        let is_fresh = state.qps.get(&qpn).is_some_and(|qp| qp.state == ibv::IBV_QPS_INIT);
        let known = state.manager.ids.get_mut(&(id as usize)).ok_or(libc::EINVAL)?;
        if !is_fresh || !matches!(known.stage, Stage::Requests(..)) {
            return Err(libc::EINVAL);
        }
        if let Stage::Requests(fd, far, far_qpn) = std::mem::take(&mut known.stage) {
            send(&fd, &encode(Some((own, qpn)), &data));
            (known.qpn, known.stage) = (qpn, Stage::Up(fd));
            state.connect(qpn, far, far_qpn);
            state.raise_of_id(id as usize, cm::RDMA_CM_EVENT_ESTABLISHED, 0, Vec::new());
        }
        Ok(())
    };
    done(accept())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject(id: *mut cm::rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    let reject = || {
        enter("rdma_reject")?;
        let data =
            if data.is_null() { &[] } else { unsafe { std::slice::from_raw_parts(data.cast(), len.into()) } };
        let mut state = lock();
        let known = state.manager.ids.get_mut(&(id as usize)).ok_or(libc::EINVAL)?;
        match std::mem::replace(&mut known.stage, Stage::Over) {
            Stage::Requests(fd, ..) => send(&fd, &encode(None, data)),
            _ => return Err(libc::EINVAL),
        }
        Ok(())
    };
    done(reject())
}

/// An event that the program has, and its bytes.
#[repr(C)]
struct Given {
    event: cm::rdma_cm_event,
    bytes: Vec<u8>,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut cm::rdma_event_channel,
    to: *mut *mut cm::rdma_cm_event,
) -> c_int {
    if let Err(errno) = enter("rdma_get_cm_event") {
        return done(Err(errno));
    }
    loop {
        if !take(unsafe { (*channel).fd }) {
            return -1;
        }
        let mut state = lock();
        let event = state.manager.channels.get_mut(&(channel as usize)).and_then(|c| c.events.pop_front());
        let Some(Event { id, listener, kind, status, bytes }) = event else { continue };
        let private_data = if bytes.is_empty() { std::ptr::null() } else { bytes.as_ptr().cast() };
        let conn = cm::rdma_conn_param {
            private_data,
            private_data_len: bytes.len() as u8,
            responder_resources: 0,
            initiator_depth: 0,
            flow_control: 0,
            retry_count: 0,
            rnr_retry_count: 0,
            srq: 0,
            qp_num: 0,
        };
        let (id, listen_id) = (id as *mut _, listener as *mut _);
        let event = cm::rdma_cm_event { id, listen_id, event: kind, status, conn };
        unsafe { *to = Box::into_raw(Box::new(Given { event, bytes })).cast() };
        return 0;
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut cm::rdma_cm_event) -> c_int {
    drop(unsafe { Box::from_raw(event.cast::<Given>()) });
    0
}
