//! Options and other things an endpoint is asked: fi_endpoint(3).

use libc::{c_int, c_void};
use libfabric_sys as fi;

use super::EpFid;
use super::post::{Receiver, ctx};
use super::srx::SrxFid;
use crate::atomic::MAX_BYTES;
use crate::errno::Errno;
use crate::ffi::{arg, guard, obj};
use crate::info::ep::EpAttrs;

pub(super) static EP_OPS: fi::fi_ops_ep = fi::fi_ops_ep {
    cancel: Some(cancel_of_endpoint),
    getopt: Some(getopt::<EpFid>),
    setopt: Some(setopt::<EpFid>),
    rx_size_left: Some(rx_size_left),
    tx_size_left: Some(tx_size_left),
    ..fi::NO_OPS_EP
};

pub(super) static SRX_OPS: fi::fi_ops_ep = fi::fi_ops_ep {
    cancel: Some(cancel_of_context),
    getopt: Some(getopt::<SrxFid>),
    setopt: Some(setopt::<SrxFid>),
    ..fi::NO_OPS_EP
};

/// What the engine starts with.
pub(super) const MIN_MULTI_RECV: usize = 64;

/// First and last of the sizes in [`Options::sizes`].
const SIZES: std::ops::RangeInclusive<c_int> = fi::FI_OPT_MAX_MSG_SIZE..=fi::FI_OPT_INJECT_ATOMIC_SIZE;

/// An endpoint's options.
#[derive(Clone, Debug)]
pub(super) struct Options {
    min_multi_recv: Option<usize>,
    hmem_p2p: c_int,
    /// The endpoint has promised that device memory may be used.
    hmem: bool,
    /// `FI_OPT_MAX_MSG_SIZE` to `FI_OPT_INJECT_ATOMIC_SIZE`.
    sizes: [usize; 8],
}

impl Options {
    pub(super) fn new(attrs: &EpAttrs) -> Options {
        let (most, inject) = (attrs.max_msg_size, attrs.inject_size);
        Options {
            min_multi_recv: None,
            hmem_p2p: fi::FI_HMEM_P2P_ENABLED,
            hmem: attrs.caps & fi::FI_HMEM != 0,
            sizes: [most, most, most, MAX_BYTES, inject, inject, inject, inject.min(MAX_BYTES)],
        }
    }

    /// As the application set it.
    pub(super) fn min_multi_recv(&self) -> Option<usize> {
        self.min_multi_recv
    }

    /// Whether devices may copy from and to peers' memory.
    pub(super) fn device_direct(&self) -> bool {
        self.hmem_p2p != fi::FI_HMEM_P2P_DISABLED
    }

    fn get(&self, name: c_int) -> Result<Value, Errno> {
        match name {
            fi::FI_OPT_MIN_MULTI_RECV => Ok(Value::Size(self.min_multi_recv.unwrap_or(MIN_MULTI_RECV))),
            // Endpoints without connections exchange nothing when they connect.
            fi::FI_OPT_CM_DATA_SIZE => Ok(Value::Size(0)),
            fi::FI_OPT_FI_HMEM_P2P => Ok(Value::Int(self.hmem_p2p)),
            n if SIZES.contains(&n) => Ok(Value::Size(self.sizes[(n - SIZES.start()) as usize])),
            _ => Err(Errno::NOPROTOOPT),
        }
    }

    fn set(&mut self, name: c_int, new: &Given, enabled: bool) -> Result<(), Errno> {
        match name {
            fi::FI_OPT_MIN_MULTI_RECV => self.min_multi_recv = Some(new.size()?),
            fi::FI_OPT_FI_HMEM_P2P => match new.int()? {
                // That no path copies on the way cannot be promised.
                mode @ (fi::FI_HMEM_P2P_ENABLED | fi::FI_HMEM_P2P_PREFERRED) => self.hmem_p2p = mode,
                // The link, which is open once the endpoint is enabled, shares no device memory.
                fi::FI_HMEM_P2P_DISABLED if enabled && self.device_direct() => return Err(Errno::OPBADSTATE),
                fi::FI_HMEM_P2P_DISABLED => self.hmem_p2p = fi::FI_HMEM_P2P_DISABLED,
                fi::FI_HMEM_P2P_REQUIRED => return Err(Errno::OPNOTSUPP),
                _ => return Err(Errno::INVAL),
            },
            // Device memory can only be told and copied by calls into CUDA. Where there is none,
            // none is made.
            fi::FI_OPT_CUDA_API_PERMITTED => {
                if !new.truth()? && (self.hmem || hmem::cuda::look()) {
                    return Err(Errno::OPNOTSUPP);
                }
            }
            // Peers on the same host meet in shared memory: there is no other way to them.
            fi::FI_OPT_SHARED_MEMORY_PERMITTED if new.truth()? => {}
            fi::FI_OPT_SHARED_MEMORY_PERMITTED => return Err(Errno::OPNOTSUPP),
            n if SIZES.contains(&n) => {
                if enabled {
                    return Err(Errno::OPBADSTATE);
                }
                let (size, place) = (new.size()?, &mut self.sizes[(n - SIZES.start()) as usize]);
                if size > *place {
                    return Err(Errno::INVAL);
                }
                *place = size;
            }
            _ => return Err(Errno::NOPROTOOPT),
        }
        Ok(())
    }
}

/// What an option says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Size(usize),
    Int(c_int),
}

/// What the application wants an option to say: `len` bytes.
struct Given {
    value: *const c_void,
    len: usize,
}

impl Given {
    /// Reads a value of exactly the size it has.
    fn read<T: Copy + Plain>(&self) -> Result<T, Errno> {
        if self.value.is_null() || self.len != size_of::<T>() {
            return Err(Errno::INVAL);
        }
        // SAFETY: `setopt`, the only place that makes one, has it that `len` bytes are readable,
        // and any bytes make a `T`.
        Ok(unsafe { self.value.cast::<T>().read_unaligned() })
    }

    fn size(&self) -> Result<usize, Errno> {
        self.read()
    }

    fn int(&self) -> Result<c_int, Errno> {
        self.read()
    }

    /// A C `bool`; some pass an `int`.
    fn truth(&self) -> Result<bool, Errno> {
        self.read::<u8>().map(|b| b != 0).or_else(|_| self.int().map(|i| i != 0))
    }
}

/// Any bytes make one.
trait Plain {}
impl Plain for usize {}
impl Plain for c_int {}
impl Plain for u8 {}

/// What has options.
trait HasOptions {
    fn get(&self, name: c_int) -> Result<Value, Errno>;
    fn set(&self, name: c_int, new: &Given) -> Result<(), Errno>;
}

impl HasOptions for EpFid {
    fn get(&self, name: c_int) -> Result<Value, Errno> {
        match name {
            fi::FI_OPT_TX_SIZE => Ok(Value::Size(self.endpoint.attrs.tx_size)),
            fi::FI_OPT_RX_SIZE => Ok(Value::Size(self.endpoint.attrs.rx_size)),
            _ => self.endpoint.setup().options.get(name),
        }
    }

    fn set(&self, name: c_int, new: &Given) -> Result<(), Errno> {
        let setup = &mut *self.endpoint.setup();
        let live = self.endpoint.live.get();
        setup.options.set(name, new, live.is_some())?;
        if let (fi::FI_OPT_MIN_MULTI_RECV, Some(live)) = (name, live) {
            let bytes = setup.options.min_multi_recv().unwrap_or(MIN_MULTI_RECV);
            self.endpoint.shared.lock().rx_set_min_multi_recv(live.rx, bytes);
        }
        Ok(())
    }
}

impl HasOptions for SrxFid {
    fn get(&self, name: c_int) -> Result<Value, Errno> {
        match name {
            fi::FI_OPT_MIN_MULTI_RECV => Ok(Value::Size(self.min_multi_recv())),
            _ => Err(Errno::NOPROTOOPT),
        }
    }

    fn set(&self, name: c_int, new: &Given) -> Result<(), Errno> {
        match name {
            fi::FI_OPT_MIN_MULTI_RECV => {
                self.set_min_multi_recv(new.size()?);
                Ok(())
            }
            _ => Err(Errno::NOPROTOOPT),
        }
    }
}

/// Stores a value and its length where the application asked.
///
/// # Safety
/// `to` is NULL or valid for `*len` bytes of writes; `len` is NULL or valid.
unsafe fn answer(value: Value, to: *mut c_void, len: *mut usize) -> Result<(), Errno> {
    let bytes: &[u8] = match &value {
        Value::Size(n) => &n.to_ne_bytes(),
        Value::Int(n) => &n.to_ne_bytes(),
    };
    // SAFETY: the caller's promise.
    let room = unsafe { *arg(len)? };
    // SAFETY: `arg` has seen that it is not NULL; the caller promised that it is valid.
    unsafe { len.write(bytes.len()) };
    if room < bytes.len() {
        return Err(Errno::TOOSMALL);
    }
    if to.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: `to` has `room` bytes by the caller's promise, and that is enough.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len()) };
    Ok(())
}

unsafe extern "C" fn getopt<T: HasOptions + crate::ffi::Fid>(
    fid: fi::fid_t,
    level: c_int,
    name: c_int,
    to: *mut c_void,
    len: *mut usize,
) -> c_int {
    guard(|| {
        // SAFETY: fi_getopt(3): a live fid.
        let of = unsafe { obj::<T, _>(fid) }?;
        if level != fi::FI_OPT_ENDPOINT {
            return Err(Errno::NOPROTOOPT);
        }
        let value = of.get(name)?;
        // SAFETY: fi_getopt(3): a buffer, and how long it is.
        unsafe { answer(value, to, len) }
    })
}

unsafe extern "C" fn setopt<T: HasOptions + crate::ffi::Fid>(
    fid: fi::fid_t,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: usize,
) -> c_int {
    guard(|| {
        // SAFETY: fi_setopt(3): a live fid.
        let of = unsafe { obj::<T, _>(fid) }?;
        if level != fi::FI_OPT_ENDPOINT {
            return Err(Errno::NOPROTOOPT);
        }
        // fi_setopt(3): `len` bytes at `value`, which is what `Given` counts on.
        of.set(name, &Given { value, len })
    })
}

unsafe extern "C" fn cancel_of_endpoint(fid: fi::fid_t, context: *mut c_void) -> isize {
    guard(|| {
        // SAFETY: fi_cancel(3): a live fid.
        let ep = unsafe { obj::<EpFid, _>(fid) }?;
        let live = ep.live()?.ep;
        Ok(ep.endpoint.shared.lock().ep_cancel(live, ctx(context))?)
    })
}

unsafe extern "C" fn cancel_of_context(fid: fi::fid_t, context: *mut c_void) -> isize {
    guard(|| {
        // SAFETY: fi_cancel(3): a live fid.
        let rx = unsafe { obj::<SrxFid, _>(fid) }?.rx()?;
        Ok(rx.shared.lock().cancel(rx.id, ctx(context))?)
    })
}

unsafe extern "C" fn tx_size_left(ep: *mut fi::fid_ep) -> isize {
    guard(|| {
        // SAFETY: fi_tx_size_left(3): a live endpoint.
        let ep = unsafe { obj::<EpFid, _>(ep) }?;
        ep.live().map(|_| ep.endpoint.attrs.tx_size)
    })
}

unsafe extern "C" fn rx_size_left(ep: *mut fi::fid_ep) -> isize {
    guard(|| {
        // SAFETY: fi_rx_size_left(3): a live endpoint.
        let ep = unsafe { obj::<EpFid, _>(ep) }?;
        ep.live().map(|_| ep.endpoint.attrs.rx_size)
    })
}
