//! What the environment says.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use crate::stderr::say;

/// Before what a call is to wait for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// It does not wait.
    Off,
    /// For the legacy default stream, which has the copies of cudaMemcpy.
    Stream,
    /// For all of the device's work.
    Device,
}

const UNREAD: u8 = 0;
const ON: u8 = 1;
const OFF: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(UNREAD);

/// Whether `STRAIT_MPI=0` says that calls are forwarded as they are.
#[inline(always)]
pub fn is_off() -> bool {
    match STATE.load(Relaxed) {
        UNREAD => read(),
        state => state == OFF,
    }
}

#[cold]
fn read() -> bool {
    let off = !is_set("STRAIT_MPI", true);
    STATE.store(if off { OFF } else { ON }, Relaxed);
    off
}

/// What a variable with the values 1 and 0 says; `default` where it is not set, or has neither.
fn is_set(name: &str, default: bool) -> bool {
    match value(name).as_deref() {
        None => default,
        Some("1" | "yes" | "on") => true,
        Some("0" | "no" | "off") => false,
        Some(other) => {
            let taken = u8::from(default);
            say(&format!("{name}={other} is not known, {taken} is taken: set 1 (yes, on) or 0 (no, off)\n"));
            default
        }
    }
}

fn value(name: &str) -> Option<String> {
    std::env::var(name).ok().map(|value| value.trim().to_ascii_lowercase()).filter(|value| !value.is_empty())
}

/// `STRAIT_MPI_REPORT`.
pub fn reports() -> bool {
    static REPORTS: OnceLock<bool> = OnceLock::new();
    *REPORTS.get_or_init(|| is_set("STRAIT_MPI_REPORT", false))
}

/// `STRAIT_MPI_KERNELS`.
pub fn kernels() -> bool {
    static KERNELS: OnceLock<bool> = OnceLock::new();
    *KERNELS.get_or_init(|| is_set("STRAIT_MPI_KERNELS", true))
}

/// `STRAIT_MPI_SYNC`.
pub fn sync() -> Sync {
    static SYNC: OnceLock<Sync> = OnceLock::new();
    *SYNC.get_or_init(|| match value("STRAIT_MPI_SYNC").as_deref() {
        Some("off" | "0") => Sync::Off,
        None | Some("stream") => Sync::Stream,
        Some("device") => Sync::Device,
        Some(other) => {
            say(&format!("STRAIT_MPI_SYNC={other} is not known: set stream, device or off\n"));
            Sync::Stream
        }
    })
}

/// The least bytes of a collective that NCCL may do, by `STRAIT_MPI_NCCL_LEAST`; `None` without
/// `STRAIT_MPI_NCCL=1`: NCCL refuses two ranks of one GPU, and that would be an error of the call.
pub fn nccl_least() -> Option<usize> {
    static LEAST: OnceLock<Option<usize>> = OnceLock::new();
    *LEAST.get_or_init(|| is_set("STRAIT_MPI_NCCL", false).then(|| bytes("STRAIT_MPI_NCCL_LEAST", 32768)))
}

/// Whether collectives that return a request go from device to device, too: unless
/// `STRAIT_MPI_NONBLOCKING=0`.
pub fn nonblocking() -> bool {
    is_set("STRAIT_MPI_NONBLOCKING", true)
}

/// A number of bytes above 0.
fn bytes(name: &str, default: usize) -> usize {
    let Some(text) = value(name) else { return default };
    text.parse().ok().filter(|bytes| *bytes > 0).unwrap_or_else(|| {
        say(&format!("{name}={text} is not known, {default} is taken: set a number of bytes above 0\n"));
        default
    })
}

/// The least bytes of what goes from device to device where the MPI's transport takes device memory. Staging
/// of less takes less time than two messages between devices.
const LEAST: usize = 1 << 18;

/// A number of bytes above 0, or off.
fn bytes_or_off(name: &str, default: usize) -> Option<usize> {
    let is_on = !matches!(value(name).as_deref(), Some("off" | "no"));
    is_on.then(|| bytes(name, default))
}

/// The least bytes of a reduction of all ranks that their devices compute, by `STRAIT_MPI_REDUCE_LEAST`;
/// `None` where that is off.
pub fn reduce_least() -> Option<usize> {
    static REDUCE: OnceLock<Option<usize>> = OnceLock::new();
    *REDUCE.get_or_init(|| bytes_or_off("STRAIT_MPI_REDUCE_LEAST", LEAST))
}

/// The least bytes of all blocks of a collective that goes from device to device and computes nothing, by
/// `STRAIT_MPI_MOVE_LEAST`; `None` where that is off.
pub fn move_least() -> Option<usize> {
    static MOVE: OnceLock<Option<usize>> = OnceLock::new();
    // With a GPU for each rank devices take as long as staging of some 40 KiB.
    *MOVE.get_or_init(|| bytes_or_off("STRAIT_MPI_MOVE_LEAST", 1 << 16))
}

/// The least bytes of a message of a datatype with gaps that kernels pack to device memory, by
/// `STRAIT_MPI_PACK_LEAST`; `None` where they pack to the host's alone.
pub fn pack_least() -> Option<usize> {
    static PACK: OnceLock<Option<usize>> = OnceLock::new();
    *PACK.get_or_init(|| bytes_or_off("STRAIT_MPI_PACK_LEAST", LEAST))
}

/// The most bytes of device memory for what a rank receives of such a reduction from others, by
/// `STRAIT_MPI_REDUCE_MEMORY`.
pub fn reduce_memory() -> usize {
    static MEMORY: OnceLock<usize> = OnceLock::new();
    *MEMORY.get_or_init(|| bytes("STRAIT_MPI_REDUCE_MEMORY", 1 << 26))
}
