//! fi_getinfo(3): what an application asks for, and what it gets.
//!
//! | file | what it does |
//! |---|---|
//! | `hints` | reads the application's hints, guarded by version |
//! | `answer` | decides; knows no pointers |
//! | `models` | the threading and progress models |
//! | `auth` | authorization keys |
//! | `caps` | capabilities and what implies what |
//! | `addr` | sockaddrs and names |
//! | `nic` | the network device an answer names, if it is to name one |
//! | `fill` | writes the answer into the core's structures |
//! | `ep` | reads an info back when an endpoint is opened with it |

pub(crate) mod addr;
pub(crate) mod answer;
pub(crate) mod auth;
pub(crate) mod caps;
mod ends;
pub(crate) mod ep;
mod fill;
#[cfg(test)]
mod fuzz_tests;
mod hints;
pub(crate) mod limits;
mod models;
pub(crate) mod nic;
mod refusal;
#[cfg(test)]
mod tests;

use libc::{c_char, c_int};
use libfabric_sys as fi;
use wire::Addr;

use self::addr::Query;
use self::ends::Ends;
use self::hints::Hints;
use crate::errno::Errno;
use crate::ffi::{guard, put};
use crate::log::core;

/// `fi_provider::getinfo`.
pub(crate) unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi::fi_info,
    info: *mut *mut fi::fi_info,
) -> c_int {
    guard(|| {
        let core = core().ok_or(Errno::NOSYS)?;
        // SAFETY: the core passes NULL or hints in its layout, with strings and addresses that
        // fi_getinfo(3) demands of the application.
        let hints = match unsafe { hints.as_ref() } {
            None => None,
            Some(h) => {
                // Layered providers ask for what the provider does not have, several times for each question
                // of an application: answer those first. SAFETY: as above; the type is the first field of
                // every version.
                let kind = unsafe { if h.ep_attr.is_null() { fi::FI_EP_UNSPEC } else { (*h.ep_attr).type_ } };
                if answer::endpoint_type(kind).is_err() {
                    return Err(Errno::NODATA);
                }
                // SAFETY: as above.
                Some(unsafe { Hints::read(h, version, core.version()) }.map_err(|_| {
                    log::info!("fi_getinfo: an address in the hints is no IPv4 or IPv6 sockaddr");
                    Errno::NODATA
                })?)
            }
        };
        let hints = hints.map(|h| Hints { devices: h.caps & fi::FI_HMEM != 0 && devices(), ..h });
        let offer = answer::answer(hints.as_ref(), version).map_err(|r| {
            log::info!("fi_getinfo: {r}");
            Errno::NODATA
        })?;
        // SAFETY: the core passes the application's strings.
        let ends = unsafe { endpoints(node, service, flags, hints.as_ref()) }?;
        let nic = nic::wanted(hints.as_ref().and_then(|h| h.nic.as_ref()));
        // SAFETY: `info` is the core's, valid for a write.
        unsafe { put(info, fill::fill(&core, &offer, ends, hints.as_ref(), nic.as_ref())?) }
    })
}

/// Whether this process has device memory, or could have: a device's runtime may be loaded later.
fn devices() -> bool {
    let may_come = |file| std::path::Path::new(file).exists();
    hmem::registry::any_device() || may_come("/dev/nvidiactl") || may_come("/dev/kfd")
}

/// # Safety
/// `node` and `service` are each NULL or a string.
unsafe fn endpoints(
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: Option<&Hints>,
) -> Result<Ends, Errno> {
    let family = match hints.map_or(fi::FI_FORMAT_UNSPEC, |h| h.addr_format) {
        fi::FI_FORMAT_UNSPEC | fi::FI_SOCKADDR | fi::FI_SOCKADDR_IP => libc::AF_UNSPEC,
        fi::FI_SOCKADDR_IN => libc::AF_INET,
        fi::FI_SOCKADDR_IN6 => libc::AF_INET6,
        other => {
            log::info!("fi_getinfo: address format {other} asked, FI_SOCKADDR_IN and _IN6 offered");
            return Err(Errno::NODATA);
        }
    };
    let passive = flags & fi::FI_SOURCE != 0;
    let (mut src, mut dest) = hints.map_or((None, None), |h| (h.src, h.dest));
    if !node.is_null() || !service.is_null() {
        let numeric = flags & fi::FI_NUMERICHOST != 0;
        // SAFETY: the caller's promise, and one of them is not NULL.
        let found = unsafe { Query { node, service, family, passive, numeric }.resolve() };
        let Some(found) = found else {
            log::info!("fi_getinfo: the node or service name has no address");
            return Err(Errno::NODATA);
        };
        *(if passive { &mut src } else { &mut dest }) = Some(found);
    }
    let v6 = match (src, dest) {
        (Some(a), _) | (None, Some(a)) => a.ip().is_ipv6(),
        (None, None) => family == libc::AF_INET6 || family == libc::AF_UNSPEC && addr::is_v6_only(),
    };
    // Two ends of different families cannot meet, and neither fits a format of the other one.
    let fits = |a: Option<Addr>| a.is_none_or(|a| a.ip().is_ipv6() == v6);
    let format_fits = family == libc::AF_UNSPEC || (family == libc::AF_INET6) == v6;
    if !fits(src) || !fits(dest) || !format_fits {
        log::info!("fi_getinfo: source, destination and address format are of different families");
        return Err(Errno::NODATA);
    }
    let src = match (src, dest) {
        (Some(src), _) => addr::named(src),
        (None, Some(dest)) => addr::towards(dest),
        (None, None) => addr::own(v6),
    };
    if !addr::is_here(src) {
        log::info!("fi_getinfo: the source address {} is not one of this host's", src.ip());
        return Err(Errno::NODATA);
    }
    Ok(Ends { format: if v6 { fi::FI_SOCKADDR_IN6 } else { fi::FI_SOCKADDR_IN }, src, dest })
}
