//! fi_open_ops(3): the state of links, and the path to a peer.

use std::ffi::{CStr, c_char};

use super::*;
use crate::ep::link_ops::{LinkOps, NAME};
use crate::info::addr::to_sockaddr;
use wire::Addr;

fn ops(of: *mut impl Sized) -> &'static LinkOps {
    let mut ops: *const LinkOps = ptr::null();
    let at = (&raw mut ops).cast();
    assert_eq!(call_fid!(of, ops_open(c"other".as_ptr(), 0, at, ptr::null_mut())), -fi::FI_ENOSYS);
    assert_eq!(call_fid!(of, ops_open(NAME.as_ptr(), 1, at, ptr::null_mut())), -fi::FI_EINVAL);
    assert_eq!(call_fid!(of, ops_open(ptr::null(), 0, at, ptr::null_mut())), -fi::FI_EINVAL);
    assert_eq!(call_fid!(of, ops_open(NAME.as_ptr(), 0, ptr::null_mut(), ptr::null_mut())), -fi::FI_EINVAL);
    assert_eq!(call_fid!(of, ops_open(NAME.as_ptr(), 0, at, ptr::null_mut())), 0);
    // SAFETY: the table is static.
    let ops = unsafe { &*ops };
    assert_eq!(ops.size, size_of::<LinkOps>());
    ops
}

/// The text of a call that writes as snprintf(3) does: whole, in part, and not at all.
fn text(call: impl Fn(*mut c_char, usize) -> c_int) -> String {
    let len = usize::try_from(call(ptr::null_mut(), 0)).expect("a length");
    assert_eq!(call(ptr::null_mut(), 1), -fi::FI_EINVAL);
    let mut room = vec![0x7f; len + 2];
    assert_eq!(call(room.as_mut_ptr(), room.len()), len as c_int);
    assert_eq!(room[len..], [0, 0x7f], "it ends where it has to");
    // SAFETY: it ends in NUL.
    let whole = unsafe { CStr::from_ptr(room.as_ptr()) }.to_str().expect("text").to_owned();
    assert_eq!(whole.len(), len);
    room.fill(0x7f);
    assert_eq!(call(room.as_mut_ptr(), 4), len as c_int);
    assert_eq!(room[3..5], [0, 0x7f]);
    // SAFETY: as above.
    assert_eq!(unsafe { CStr::from_ptr(room.as_ptr()) }.to_str(), Ok(&whole[..3]));
    whole
}

fn far(w: &World, name: &str) -> fi::fi_addr_t {
    let (bytes, _) = to_sockaddr(Addr::new(name.parse().unwrap()), fi::FI_SOCKADDR_IN);
    let mut at = fi::FI_ADDR_UNSPEC;
    assert_eq!(call!(w.av, ops.insert(bytes.as_ptr().cast(), 1, &mut at, 0, ptr::null_mut())), 1);
    at
}

#[test]
fn the_path_to_a_peer_is_reported_with_the_refusals_of_other_links() {
    let w = World::new();
    let ((ep, own), (other, near)) = (w.enabled(0), w.enabled(0));
    // An address that no host has: for documentation, RFC 5737.
    let away = far(&w, "198.51.100.1:7");
    let ops = ops(ep);
    // SAFETY: the endpoint is open, and `text` passes NULL or a buffer of that length.
    let path = |peer| text(|buf, len| unsafe { (ops.path)(ep, peer, buf, len) });
    let line = path(near);
    assert!(
        line.starts_with("shm ") && line.contains("; its address is this host's; not tcp: shm"),
        "{line}"
    );
    assert!(path(own).contains("; it is this endpoint; not tcp: shm comes before it"));
    let line = path(away);
    assert!(
        line.starts_with("tcp not connected, ") && line.contains("; not shm: its address is not"),
        "{line}"
    );
    assert!(!line.contains('\n'));
    for ep in [ep, other] {
        assert_eq!(close(ep), 0);
    }
    w.end();
}

#[test]
fn what_is_no_peer_or_no_endpoint_has_no_path() {
    let w = World::new();
    let ((ep, peer), fresh) = (w.enabled(0), w.ep());
    let ops = ops(ep);
    // SAFETY: NULL, or an open object, and no buffer.
    let code = |ep, peer| unsafe { (ops.path)(ep, peer, ptr::null_mut(), 0) };
    assert!(code(ep, peer) > 0);
    for none in [peer + 1, 1 << 40, fi::FI_ADDR_UNSPEC, fi::FI_ADDR_NOTAVAIL] {
        assert_eq!(code(ep, none), -fi::FI_EADDRNOTAVAIL, "{none:#x}");
    }
    assert_eq!(code(fresh, peer), -fi::FI_EOPBADSTATE);
    assert_eq!(code(ptr::null_mut(), peer), -fi::FI_EINVAL);
    assert_eq!(code(w.domain.cast(), peer), -fi::FI_EINVAL);
    let gone = &mut [peer];
    assert_eq!(call!(w.av, ops.remove(gone.as_mut_ptr(), 1, 0)), 0);
    assert_eq!(code(ep, peer), -fi::FI_EADDRNOTAVAIL);
    for ep in [ep, fresh] {
        assert_eq!(close(ep), 0);
    }
    w.end();
}

#[test]
fn the_links_of_an_endpoint_are_listed_of_a_domain() {
    let w = World::new();
    let ops = ops(w.domain);
    // SAFETY: NULL, or an open object, and no buffer.
    let code = |of| unsafe { (ops.links)(of, ptr::null_mut(), 0) };
    assert_eq!(code(ptr::null_mut()), -fi::FI_EINVAL);
    assert_eq!(code(w.av.cast()), -fi::FI_EINVAL);
    let mut listed = vec![0u8; 4096];
    // SAFETY: an open domain, and a buffer of that length. The port is another one each time.
    let len = unsafe { (ops.links)(w.domain, listed.as_mut_ptr().cast(), listed.len()) };
    let listed = std::str::from_utf8(&listed[..len as usize]).expect("text");
    let lines: Vec<Vec<&str>> = listed.lines().map(|line| line.splitn(3, ' ').collect()).collect();
    let mut names: Vec<&str> = lines.iter().map(|line| line[0]).collect();
    names.sort_unstable();
    assert_eq!(names, ["ofi", "shm", "tcp"], "{listed}");
    assert!(lines.iter().all(|line| matches!(line[1], "yes" | "no") && line[2].len() > 20), "{listed}");
    assert!(listed.contains("tcp yes listens on "), "{listed}");
    w.end();
}
