//! By what collectives go to which all ranks pass device memory: found once, when MPI_Init is over.

use core::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use device_ops::nccl::{Library as Nccl, Vendor};

use crate::library::{Library, library, pmpi};
use crate::{direct, settings};

/// By what collectives go to which all ranks pass device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Nccl,
    /// Messages of device memory, and kernels of the ranks' devices.
    Devices,
}

const UNKNOWN: u8 = 0;
const OFF: u8 = 1;
const NCCL: u8 = 2;
const DEVICES: u8 = 3;

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Whether collectives are posted; found by the first call that asks, once MPI_Init is over.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    match STATE.load(Relaxed) {
        UNKNOWN => library().and_then(way_of).is_some(),
        state => state != OFF,
    }
}

/// By what they go.
pub(super) fn way_of(library: &Library) -> Option<Way> {
    match STATE.load(Relaxed) {
        NCCL => Some(Way::Nccl),
        DEVICES => Some(Way::Devices),
        OFF => None,
        _ => find(library),
    }
}

#[cold]
fn find(library: &Library) -> Option<Way> {
    let way = way(library);
    let state = match way {
        Some(Way::Nccl) => NCCL,
        Some(Way::Devices) => DEVICES,
        None => OFF,
    };
    STATE.store(state, Relaxed);
    way
}

/// Whether it is NCCL, or not known yet.
#[inline(always)]
pub(super) fn is_by_nccl() -> bool {
    matches!(STATE.load(Relaxed), NCCL | UNKNOWN)
}

/// By what collectives of this process go, if all ranks pass device memory; `None` before MPI_Init is over.
fn way(library: &Library) -> Option<Way> {
    let mut begun: c_int = 0;
    // SAFETY: a valid place.
    let is_begun = unsafe { pmpi!("Initialized", &raw mut begun) }.is_ok() && begun != 0;
    if !is_begun || settings::is_off() {
        return None;
    }
    // SAFETY: the driver's initialisers are those of every program that uses it; it stays.
    let has_driver = || unsafe { !libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY).is_null() };
    if settings::nccl_least().is_some() && has_driver() && Nccl::open(Vendor::Nvidia).is_ok() {
        return Some(Way::Nccl);
    }
    let reduces = settings::reduce_least().is_some() && settings::kernels();
    let is_wanted = reduces || settings::move_least().is_some();
    (is_wanted && is_one_host() && direct::is_possible(&library.abi)).then_some(Way::Devices)
}

/// How many ranks Open MPI's launcher says there are.
pub(super) fn ranks() -> Option<usize> {
    static RANKS: OnceLock<Option<usize>> = OnceLock::new();
    *RANKS.get_or_init(|| number("OMPI_COMM_WORLD_SIZE"))
}

fn number(name: &str) -> Option<usize> {
    std::env::var(name).ok()?.parse().ok()
}

/// Whether it says that all of them are on this host. Where it does not, ranks would be waited for that
/// cannot be seen.
fn is_one_host() -> bool {
    ranks().is_some() && ranks() == number("OMPI_COMM_WORLD_LOCAL_SIZE")
}
