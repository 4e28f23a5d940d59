//! Attributes of addresses.

use stand_in::memory::{Region, Sort, find};

use crate::{INVALID_VALUE, Ptr, SUCCESS, enter};

/// Unlike the call for one attribute, this one does not fail for what is not the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttributes(
    n: u32,
    attributes: *const u32,
    data: *const Ptr,
    at: u64,
) -> i32 {
    enter!("cuPointerGetAttributes");
    let r = find(at as usize);
    for i in 0..n as usize {
        let (what, to) = unsafe { (*attributes.add(i), *data.add(i)) };
        let of = |f: fn(&Region) -> u64| r.as_ref().map_or(0, f);
        // Programs have places that are not aligned for all 8 bytes.
        let word = |v: u64| unsafe { to.cast::<u64>().write_unaligned(v) };
        let half = |v: u64| unsafe { to.cast::<u32>().write_unaligned(v as u32) };
        match what {
            1 => word(of(|r| r.ctx as u64)),
            2 => half(of(|r| if r.sort == Sort::Host { 1 } else { 2 })),
            7 => word(of(|r| r.id)),
            8 => half(of(|r| u64::from(r.sort == Sort::Managed))),
            9 => half(r.as_ref().map_or(-2i32, |r| r.device) as u64),
            10 => half(of(|r| u64::from(r.sort == Sort::Plain))),
            11 => word(of(|r| r.base as u64)),
            12 => word(of(|r| r.len as u64)),
            14 => word(of(|r| u64::from(r.sort == Sort::Mapped || crate::pool::is_shareable(r)))),
            17 => word(r.as_ref().map_or(0, crate::pool::of)),
            _ => return INVALID_VALUE,
        }
    }
    SUCCESS
}

/// For one attribute, and only of memory that is the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttribute(data: Ptr, attribute: u32, at: u64) -> i32 {
    enter!("cuPointerGetAttribute");
    if find(at as usize).is_none() {
        return INVALID_VALUE;
    }
    unsafe { cuPointerGetAttributes(1, &attribute, &data, at) }
}
