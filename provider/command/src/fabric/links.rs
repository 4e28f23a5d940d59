//! The state of the provider's links, by include/strait_link.h.

use std::ffi::{CStr, c_char};
use std::mem::offset_of;
use std::net::SocketAddr;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

use fabric_client::{manual, open_domain};
use libc::c_int;
use libfabric_sys as sys;

use super::{Endpoint, Error, Info, Library, Region, Remote};

const NAME: &CStr = c"strait_link_v1";

/// `struct fi_strait_ops_link`.
#[repr(C)]
struct LinkOps {
    size: usize,
    path: unsafe extern "C" fn(*mut sys::fid_ep, sys::fi_addr_t, *mut c_char, usize) -> c_int,
    links: unsafe extern "C" fn(*mut sys::fid_domain, *mut c_char, usize) -> c_int,
}

/// The provider's table, of an object that has it.
///
/// # Safety
/// `fid` is of an open endpoint or domain of this library.
unsafe fn ops(library: &Library, fid: *mut sys::fid) -> Result<*const LinkOps, Error> {
    // SAFETY: the caller's promise: its table is valid.
    let open = library.have(unsafe { (*(*fid).ops).ops_open }, "ops_open")?;
    let mut ops = null_mut();
    // SAFETY: an open object, a string, and a place of ours.
    let rc = unsafe { open(fid, NAME.as_ptr(), 0, &mut ops, null_mut()) };
    library.check(
        rc,
        "asking the provider what it reports of links (one that is older than this command reports nothing)",
    )?;
    let ops: *const LinkOps = ops.cast_const().cast();
    // SAFETY: the provider's table, which begins with its size.
    match !ops.is_null() && unsafe { (*ops).size } >= offset_of!(LinkOps, links) + size_of::<usize>() {
        true => Ok(ops),
        false => {
            Err(Error::Unsupported("the provider's table of what it reports of links is too short".into()))
        }
    }
}

/// What a call writes as snprintf(3) does.
fn text(library: &Library, call: impl Fn(*mut c_char, usize) -> c_int) -> Result<String, Error> {
    const WHAT: &str = "asking the provider for its links";
    let mut room = vec![0u8; 4096];
    loop {
        let len = call(room.as_mut_ptr().cast(), room.len());
        library.check(len.min(0), WHAT)?;
        let len = usize::try_from(len).unwrap_or(0);
        if len < room.len() {
            room.truncate(len);
            return Ok(String::from_utf8_lossy(&room).into_owned());
        }
        // The next text may be another one: ports differ.
        room.resize(len + 64, 0);
    }
}

/// An entry of this provider's with these capabilities, for addresses of that version of IP.
pub(super) fn info(library: &Arc<Library>, provider: &str, v6: bool, caps: u64) -> Result<Info, Error> {
    let format = if v6 { sys::FI_SOCKADDR_IN6 } else { sys::FI_SOCKADDR_IN };
    let shape = |info: *mut sys::fi_info| {
        // SAFETY: `find` gives an info with all its attributes; every field written was there in 1.0.
        unsafe {
            (*info).caps = caps;
            (*info).addr_format = format;
            manual(info, sys::FI_ORDER_SAS);
        }
    };
    // SAFETY: the closure writes numbers alone.
    unsafe { library.find(Some(provider), shape) }
}

/// Whether this libfabric offers a provider of this name here.
pub fn has_provider(library: &Arc<Library>, name: &str) -> bool {
    // SAFETY: the closure writes nothing.
    unsafe { library.find(Some(name), |_| {}) }.is_ok()
}

/// The status of a link: name, whether an endpoint has it, and what it offers or the reason why not.
pub type LinkStatus = (String, bool, String);

/// The links that an endpoint of this provider has.
pub fn links(library: &Arc<Library>, provider: &str) -> Result<Vec<LinkStatus>, Error> {
    let info = info(library, provider, false, sys::FI_MSG)?;
    // SAFETY: an entry of a list of this library's.
    let (domain, fabric) = unsafe { open_domain(library.core(), info.as_ptr())? };
    // SAFETY: the domain is open.
    let ops = unsafe { ops(library, domain.fid())? };
    // SAFETY: the table is the provider's, the domain open; `text` passes a buffer with its length.
    let links = text(library, |buf, len| unsafe { ((*ops).links)(domain.at(), buf, len) });
    drop((domain, fabric));
    Ok(links?.lines().filter_map(parse_line).collect())
}

/// Parses a line of `links` (include/strait_link.h).
fn parse_line(line: &str) -> Option<LinkStatus> {
    let mut parts = line.splitn(3, ' ');
    let (name, is, words) = (parts.next()?, parts.next()?, parts.next()?);
    Some((name.to_owned(), is == "yes", words.to_owned()))
}

/// The way that a new endpoint of this provider has to a peer, in the provider's words, which begin with the
/// link's name. Nothing is sent.
pub fn path(library: &Arc<Library>, provider: &str, peer: SocketAddr) -> Result<String, Error> {
    let info = info(library, provider, peer.is_ipv6(), sys::FI_MSG)?;
    let mut endpoint = Endpoint::open(&info, Region::new(1)?, 1, Duration::from_secs(1), false)?;
    endpoint.connect(Remote { name: sockaddr(peer), ..Remote::default() })?;
    path_of(&endpoint)
}

/// The path of an endpoint to its peer.
pub(super) fn path_of(endpoint: &Endpoint) -> Result<String, Error> {
    let library = &endpoint.library;
    let (ep, peer) = (endpoint.objects.ep.at(), endpoint.peer);
    // SAFETY: the endpoint is open.
    let ops = unsafe { ops(library, endpoint.objects.ep.fid())? };
    // SAFETY: the table is the provider's, the endpoint open; `text` passes a buffer with its length.
    text(library, |buf, len| unsafe { ((*ops).path)(ep, peer, buf, len) })
}

/// The bytes of a `sockaddr_in` or `sockaddr_in6`.
pub(super) fn sockaddr(of: SocketAddr) -> Vec<u8> {
    let port = of.port().to_be_bytes();
    match of {
        SocketAddr::V4(of) => {
            let family = (libc::AF_INET as u16).to_ne_bytes();
            [&family[..], &port, &of.ip().octets(), &[0; 8]].concat()
        }
        SocketAddr::V6(of) => {
            let family = (libc::AF_INET6 as u16).to_ne_bytes();
            [&family[..], &port, &[0; 4], &of.ip().octets(), &of.scope_id().to_ne_bytes()].concat()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_the_bytes_of_the_system() {
        let [a, b] = (libc::AF_INET as u16).to_ne_bytes();
        let v4 = [a, b, 1, 2, 10, 9, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(sockaddr("10.9.0.1:258".parse().unwrap()), v4);
        let v6 = sockaddr("[fe80::1%3]:258".parse().unwrap());
        assert_eq!(v6.len(), size_of::<libc::sockaddr_in6>());
        assert_eq!((v6[8], v6[9], v6[23]), (0xfe, 0x80, 1));
        assert_eq!(v6[24..], 3u32.to_ne_bytes());
    }

    #[test]
    fn lines_are_a_name_a_word_and_words() {
        assert_eq!(parse_line("tcp no a b"), Some(("tcp".into(), false, "a b".into())));
        assert_eq!(parse_line("shm yes a"), Some(("shm".into(), true, "a".into())));
        assert_eq!(parse_line("what"), None);
    }
}
