//! A BAR of a device that VFIO has (linux/vfio.h): mapped through the device's descriptor, and, since Linux
//! 6.19, a dma-buf of it for other devices' drivers.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use super::contract::PAGE;
use crate::error::Error;

/// ioctl(2), or what a test has in its place.
pub type Ioctl = unsafe fn(RawFd, u64, *mut c_void) -> i32;

/// # Safety
/// As of ioctl(2).
pub unsafe fn ioctl(fd: RawFd, request: u64, argument: *mut c_void) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { libc::ioctl(fd, request as _, argument) }
}

/// `VFIO_DEVICE_GET_REGION_INFO` and `VFIO_DEVICE_FEATURE`: _IO(';', 100 + 8) and 100 + 17.
pub const GET_REGION_INFO: u64 = 0x3b6c;
pub const FEATURE: u64 = 0x3b75;

const REGION_CAN_BE_MAPPED: u32 = 4;
const FEATURE_GET: u32 = 1 << 16;
const FEATURE_DMA_BUF: u32 = 11;

/// `struct vfio_region_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RegionInfo {
    pub argsz: u32,
    pub flags: u32,
    pub index: u32,
    pub cap_offset: u32,
    pub size: u64,
    pub offset: u64,
}

/// `struct vfio_device_feature`, with a `struct vfio_device_feature_dma_buf` of one range.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DmaBuf {
    pub argsz: u32,
    pub feature: u32,
    pub region: u32,
    pub open_flags: u32,
    pub flags: u32,
    pub ranges: u32,
    pub offset: u64,
    pub len: u64,
}

/// What VFIO gives for a part of a BAR.
#[derive(Debug)]
pub(super) struct Opened {
    /// Where the part is in the device's file; in `Err`, why it cannot be mapped.
    pub place: Result<u64, String>,
    /// In `Err`, why there is none.
    pub dmabuf: Result<Arc<OwnedFd>, Refusal>,
}

/// An errno, and what it means here.
#[derive(Clone, Debug)]
pub(super) struct Refusal(pub i32, pub String);

impl Refusal {
    pub fn error(&self, of: &str) -> Error {
        Error::Os(format!("{of}: dma-buf: {}", self.1), io::Error::from_raw_os_error(self.0))
    }
}

/// Looks at `len` bytes from `offset` on of BAR `index`, and exports them.
pub(super) fn open(
    device: BorrowedFd<'_>,
    index: u32,
    offset: u64,
    len: u64,
    ioctl: Ioctl,
) -> Result<Opened, Error> {
    let mut info = RegionInfo { argsz: size_of::<RegionInfo>() as u32, index, ..RegionInfo::default() };
    // SAFETY: the structure that this request has, with its size.
    if unsafe { ioctl(device.as_raw_fd(), GET_REGION_INFO, (&raw mut info).cast()) } < 0 {
        let e = io::Error::last_os_error();
        let what = match e.raw_os_error() {
            Some(libc::ENOTTY | libc::EBADF) => "this descriptor is no device of VFIO's",
            Some(libc::EINVAL) => "the device has no such region: BARs are 0 to 5",
            _ => "VFIO_DEVICE_GET_REGION_INFO",
        };
        return Err(Error::Os(format!("BAR {index}: {what}"), e));
    }
    let fits = offset.checked_add(len).is_some_and(|end| end <= info.size);
    if index > 5 || len == 0 || offset % PAGE != 0 || len % PAGE != 0 || !fits {
        return Err(Error::Invalid(format!(
            "BAR {index} has {} bytes: {len} from {offset} on are not whole pages of them",
            info.size
        )));
    }
    let place = match info.flags & REGION_CAN_BE_MAPPED {
        0 => Err("VFIO does not let this BAR be mapped".into()),
        _ => Ok(info.offset + offset),
    };
    Ok(Opened { place, dmabuf: export(device, index, offset, len, ioctl).map(Arc::new) })
}

fn export(
    device: BorrowedFd<'_>,
    region: u32,
    offset: u64,
    len: u64,
    ioctl: Ioctl,
) -> Result<OwnedFd, Refusal> {
    let mut ask = DmaBuf {
        argsz: size_of::<DmaBuf>() as u32,
        feature: FEATURE_GET | FEATURE_DMA_BUF,
        region,
        open_flags: (libc::O_RDWR | libc::O_CLOEXEC) as u32,
        flags: 0,
        ranges: 1,
        offset,
        len,
    };
    // SAFETY: the structure that this request has, with its size.
    let fd = unsafe { ioctl(device.as_raw_fd(), FEATURE, (&raw mut ask).cast()) };
    if fd >= 0 {
        // SAFETY: the kernel has just opened it, for this call alone.
        return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
    }
    let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    let what = match errno {
        libc::ENOTTY => "this kernel exports no BARs: Linux does since 6.19, with CONFIG_VFIO_PCI_DMABUF",
        libc::EOPNOTSUPP => {
            "the device's VFIO driver shows other BARs than the device has, or is not vfio-pci"
        }
        libc::EINVAL => {
            "the kernel passes nothing from this device to others, or not from this part of the BAR"
        }
        libc::ENODEV => "the device is gone, is being reset, or has its memory turned off",
        libc::EPERM | libc::EACCES => "this process may not",
        _ => "VFIO_DEVICE_FEATURE_DMA_BUF",
    };
    Err(Refusal(errno, what.into()))
}
