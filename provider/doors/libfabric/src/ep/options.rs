//! The options of an endpoint, and values of options.

use libc::{c_int, c_void};
use libfabric_sys as fi;

use crate::atomic::MAX_BYTES;
use crate::errno::Errno;
use crate::info::ep::EpAttrs;

/// What the engine starts with.
pub(super) const MIN_MULTI_RECV: usize = 64;

/// First and last of the sizes in [`Options::sizes`].
const SIZES: std::ops::RangeInclusive<c_int> = fi::FI_OPT_MAX_MSG_SIZE..=fi::FI_OPT_INJECT_ATOMIC_SIZE;

/// What has options.
pub(super) trait HasOptions {
    fn get(&self, name: c_int) -> Result<Value, Errno>;
    fn set(&self, name: c_int, new: &RawValue) -> Result<(), Errno>;
}

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

    pub(super) fn get(&self, name: c_int) -> Result<Value, Errno> {
        match name {
            fi::FI_OPT_MIN_MULTI_RECV => Ok(Value::Size(self.min_multi_recv.unwrap_or(MIN_MULTI_RECV))),
            // Endpoints without connections exchange nothing when they connect.
            fi::FI_OPT_CM_DATA_SIZE => Ok(Value::Size(0)),
            fi::FI_OPT_FI_HMEM_P2P => Ok(Value::Int(self.hmem_p2p)),
            n if SIZES.contains(&n) => Ok(Value::Size(self.sizes[(n - SIZES.start()) as usize])),
            _ => Err(Errno::NOPROTOOPT),
        }
    }

    pub(super) fn set(&mut self, name: c_int, new: &RawValue, enabled: bool) -> Result<(), Errno> {
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
            // Where there is no CUDA no call to it is made; else an agent has to make them all.
            fi::FI_OPT_CUDA_API_PERMITTED => match (new.truth()?, hmem::cuda::find_driver()) {
                (false, true) => crate::agent::start()?,
                (false, false) if self.hmem => return Err(Errno::OPNOTSUPP),
                _ => {}
            },
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
pub(super) enum Value {
    Size(usize),
    Int(c_int),
}

/// What the application wants an option to say: `len` bytes.
pub(super) struct RawValue {
    value: *const c_void,
    len: usize,
}

impl RawValue {
    /// # Safety
    /// `value` is NULL, or `len` bytes at it are readable as long as this lives.
    pub(super) unsafe fn new(value: *const c_void, len: usize) -> RawValue {
        RawValue { value, len }
    }

    /// Reads a value of exactly the size it has.
    fn read<T: Copy + Plain>(&self) -> Result<T, Errno> {
        if self.value.is_null() || self.len != size_of::<T>() {
            return Err(Errno::INVAL);
        }
        // SAFETY: `new` has it that `len` bytes are readable, and any bytes make a `T`.
        Ok(unsafe { self.value.cast::<T>().read_unaligned() })
    }

    pub(super) fn size(&self) -> Result<usize, Errno> {
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
