//! All that the process has of its devices, under one lock.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rdma_sys as ibv;

use crate::connection::Connections;
use crate::connection::calls::Manager;
use crate::objects::{Channel, Cq, DeviceMemory, Mr, PeerMemory, Qp, Srq, Window};
use crate::packet::{Address, Packet};

/// A device that the process has opened once.
#[derive(Debug)]
pub struct Opened {
    pub listener: OwnedFd,
    pub at: Address,
    /// Of each port.
    pub is_up: Vec<bool>,
}

impl Opened {
    pub fn is_up(&self, port: u8) -> bool {
        self.is_up.get(usize::from(port).wrapping_sub(1)).is_some_and(|is_up| *is_up)
    }
}

/// An open context: which device, and its asynchronous events.
#[derive(Debug)]
pub struct Context {
    pub device: usize,
    pub fd: OwnedFd,
    pub events: VecDeque<Event>,
}

/// An asynchronous event: its type, and the address of its object or the number of its port.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    pub kind: u32,
    pub element: usize,
}

#[derive(Debug, Default)]
pub struct State {
    /// By the place in the settings.
    pub devices: HashMap<usize, Opened>,
    pub contexts: HashMap<usize, Context>,
    /// The device of each domain, by its address.
    pub pds: HashMap<usize, usize>,
    pub mrs: HashMap<u32, Mr>,
    pub peer_memory: Option<PeerMemory>,
    /// Memory that no device faults in.
    pub beyond: Vec<(u64, u64)>,
    /// Memory that is mapped without pages, which no device pins by its address.
    pub no_pages: Vec<(u64, u64)>,
    pub device_memory: Option<DeviceMemory>,
    pub windows: HashMap<u32, Window>,
    pub channels: HashMap<u32, Channel>,
    pub cqs: HashMap<u32, Cq>,
    pub srqs: HashMap<u32, Srq>,
    pub qps: BTreeMap<u32, Qp>,
    pub connections: Connections,
    pub manager: Manager,
    /// From devices of this process to each other.
    pub inbox: VecDeque<Packet>,
    /// Send requests posted, and which of the later ones end with which status.
    pub sends: u64,
    pub planned: Vec<(u64, u32)>,
    /// Bytes of the send requests that have succeeded, by device and port.
    pub moved: HashMap<(usize, u8), u64>,
    /// The last number of an object.
    pub last: u32,
    /// Of generated numbers.
    pub seed: u64,
}

/// So often a processor is offered to those.
const TURNS: usize = 1_000;
/// How many wait for the state, or have just got it.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Lets threads that wait for the state have it, where this one would take it again at once: a lock that is
/// released need not go to them.
pub fn let_others() {
    for _ in 0..TURNS {
        std::thread::yield_now();
        if WAITING.load(Relaxed) == 0 {
            return;
        }
    }
}

pub fn lock() -> MutexGuard<'static, State> {
    static STATE: OnceLock<Mutex<State>> = OnceLock::new();
    let fresh = || {
        let settings = crate::settings::settings();
        let (planned, seed) = (settings.status.clone(), settings.reorder.unwrap_or(0));
        Mutex::new(State { planned, seed, ..Default::default() })
    };
    WAITING.fetch_add(1, Relaxed);
    let state = STATE.get_or_init(fresh).lock().unwrap_or_else(PoisonError::into_inner);
    WAITING.fetch_sub(1, Relaxed);
    state
}

pub fn eventfd() -> Option<OwnedFd> {
    let flags = libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE;
    let fd = unsafe { libc::eventfd(0, flags) };
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

pub fn signal(fd: &OwnedFd) {
    let one = 1u64;
    unsafe { libc::write(fd.as_raw_fd(), (&raw const one).cast(), 8) };
}

/// Takes one event of an eventfd, as the descriptor's flags say: `false` if it was refused, with errno.
pub fn take(fd: i32) -> bool {
    let mut count = 0u64;
    unsafe { libc::read(fd, (&raw mut count).cast(), 8) == 8 }
}

impl State {
    pub fn number(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    pub fn random(&mut self) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.seed >> 33
    }

    pub fn is_own(&self, at: Address) -> bool {
        self.devices.values().any(|device| device.at == at)
    }

    pub fn has_room(&self, to: Address) -> bool {
        if self.is_own(to) { self.inbox.len() < 64 } else { self.connections.has_room(to) }
    }

    pub fn send(&mut self, to: Address, packet: Packet) {
        if self.is_own(to) {
            self.inbox.push_back(packet);
        } else {
            self.connections.send(to, &packet);
        }
    }

    /// Raises an asynchronous event of the context at this address.
    pub fn raise(&mut self, context: usize, kind: u32, element: usize) {
        if let Some(context) = self.contexts.get_mut(&context) {
            context.events.push_back(Event { kind, element });
            signal(&context.fd);
        }
    }

    pub fn raise_of_qp(&mut self, qpn: u32, kind: u32) {
        if let Some(raw) = self.qps.get(&qpn).map(|qp| qp.raw) {
            let context = unsafe { (*(raw as *const ibv::ibv_qp)).context };
            self.raise(context as usize, kind, raw);
        }
    }

    /// To all contexts of a device.
    pub fn raise_of_device(&mut self, device: usize, kind: u32, element: usize) {
        let of: Vec<usize> =
            self.contexts.iter().filter(|(_, c)| c.device == device).map(|(at, _)| *at).collect();
        of.into_iter().for_each(|context| self.raise(context, kind, element));
    }
}
