//! Hints and addresses of an application, drawn from bytes. Seeds are in `__fuzz__`; plain `cargo test`
//! runs these and so many random ones, `cargo bolero` searches for more.

use std::ptr;

use super::addr;
use super::answer::{Offer, answer};
use super::caps;
use super::hints::Hints;
use libfabric_sys as fi;

/// A value that hints may hold: most of them near something that means something.
fn value(kind: u8, n: u8, rest: [u8; 8]) -> u64 {
    match kind % 6 {
        0 => u64::from(n),
        1 => 1 << (n % 64),
        2 => u64::MAX << (n % 64),
        3 => 1 << (n % 64) | 1 << (rest[0] % 64),
        4 => u64::from(n) << 32 | u64::from(rest[0]),
        _ => u64::from_le_bytes(rest),
    }
}

/// Changes a word of a structure of plain numbers and pointers.
fn change<T>(of: &mut T, word: u8, value: u64) {
    let words = size_of::<T>() / 8;
    // SAFETY: inside `of`; whatever its fields are then, only the pointers among them matter, and
    // these are set before they are looked at.
    unsafe { ptr::from_mut(of).cast::<u64>().add(usize::from(word) % words).write(value) }
}

fn back(o: &Offer) -> Hints {
    let mut h = Hints { caps: o.caps, tx: o.tx, rx: o.rx, devices: true, ..Hints::default() };
    h.ep.kind = fi::FI_EP_RDM;
    h.ep.mem_tag_format = o.mem_tag_format;
    (h.ep.tx_ctx_cnt, h.ep.rx_ctx_cnt) = (o.tx_ctx_cnt, o.rx_ctx_cnt);
    h.domain.models.threading = o.models.threading;
    (h.domain.models.control_progress, h.domain.models.data_progress) =
        (o.models.control_progress, o.models.data_progress);
    (h.domain.av_type, h.domain.mr_mode, h.domain.caps) = (o.av_type, o.mr_mode, o.domain_caps);
    (h.domain.tclass, h.domain.cq_data_size, h.domain.mr_iov_limit) =
        (o.tclass, o.cq_data_size, o.mr_iov_limit);
    h
}

#[test]
fn hints() {
    bolero::check!().with_iterations(20_000).for_each(|bytes: &[u8]| {
        let (mut info, mut tx, mut rx) =
            (fi::fi_info::default(), fi::fi_tx_attr::default(), fi::fi_rx_attr::default());
        let (mut ep, mut domain) = (fi::fi_ep_attr::default(), fi::fi_domain_attr::default());
        let mut fabric = fi::fi_fabric_attr::default();
        let (head, edits) = bytes.split_at(bytes.len().min(3));
        let head = |at: usize| head.get(at).copied().unwrap_or(0);
        for edit in edits.chunks_exact(12).take(usize::from(head(0)) % 5) {
            let v = value(edit[2], edit[3], edit[4..12].try_into().unwrap());
            match edit[0] % 6 {
                0 => change(&mut info, edit[1], v),
                1 => change(&mut tx, edit[1], v),
                2 => change(&mut rx, edit[1], v),
                3 => change(&mut ep, edit[1], v),
                4 => change(&mut domain, edit[1], v),
                _ => change(&mut fabric, edit[1], v),
            }
        }
        // What points anywhere points to something.
        ep.auth_key = ptr::null_mut();
        (domain.domain, domain.name, domain.auth_key) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        (fabric.fabric, fabric.name, fabric.prov_name) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        (info.src_addr, info.dest_addr) = (ptr::null_mut(), ptr::null_mut());
        (info.handle, info.nic, info.next) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let given = |bit: u8| head(1) >> bit & 1 == 0;
        info.tx_attr = if given(0) { &raw mut tx } else { ptr::null_mut() };
        info.rx_attr = if given(1) { &raw mut rx } else { ptr::null_mut() };
        info.ep_attr = if given(2) { &raw mut ep } else { ptr::null_mut() };
        info.domain_attr = if given(3) { &raw mut domain } else { ptr::null_mut() };
        info.fabric_attr = if given(4) { &raw mut fabric } else { ptr::null_mut() };
        let api =
            [fi::FI_VERSION(1, 4), fi::FI_VERSION(1, 18), fi::FI_VERSION(2, 1)][usize::from(head(2)) % 3];
        // SAFETY: every pointer is NULL or one of ours, and all structures are of the newest layout.
        let hints = unsafe { Hints::read(&info, api, fi::FI_VERSION(2, 1)) };
        let Ok(hints) = hints else { return };
        let Ok(offer) = answer(Some(&hints), api) else { return };
        // What was asked for is there, and nothing is promised that was excluded.
        let asked = hints.caps & caps::expand(hints.caps);
        assert_eq!(offer.caps & asked, asked);
        assert_ne!(offer.caps & (fi::FI_MSG | fi::FI_TAGGED | fi::FI_RMA | fi::FI_ATOMIC), 0);
        assert_eq!(offer.tx.msg_order & hints.tx.msg_order, hints.tx.msg_order);
        assert!(offer.tx.size >= hints.tx.size && offer.rx.size >= hints.rx.size);
        assert!(offer.tx.iov_limit >= hints.tx.iov_limit && offer.rx.iov_limit >= hints.rx.iov_limit);
        assert!(
            offer.tx.inject_size >= hints.tx.inject_size && offer.cq_data_size >= hints.domain.cq_data_size
        );
        // An answer is good as hints, fi_getinfo(3).
        let again = answer(Some(&back(&offer)), api).unwrap_or_else(|r| panic!("{r:?} of {offer:?}"));
        assert_eq!(
            (again.caps, again.models.threading, again.av_type),
            (offer.caps, offer.models.threading, offer.av_type)
        );
        assert_eq!(again.tx.caps & offer.tx.caps, offer.tx.caps);
        assert_eq!(again.rx.caps & offer.rx.caps, offer.rx.caps);
    });
}

#[test]
fn addresses() {
    bolero::check!().with_max_len(40).for_each(|bytes: &[u8]| {
        for family in [None, Some(libc::AF_INET), Some(libc::AF_INET6)] {
            // As long as it says and not a byte longer, so that tools see reads beyond it.
            let mut exact: Box<[u8]> = bytes.into();
            if let (Some(family), Some(at)) = (family, exact.get_mut(..2)) {
                at.copy_from_slice(&(family as u16).to_ne_bytes());
            }
            // SAFETY: that many bytes may be read.
            let Ok(name) = (unsafe { addr::from_sockaddr(exact.as_ptr().cast(), exact.len()) }) else {
                continue;
            };
            assert!(exact.len() >= if family == Some(libc::AF_INET6) { addr::MAX } else { 16 });
            for format in [fi::FI_SOCKADDR_IN, fi::FI_SOCKADDR_IN6] {
                let (raw, len) = addr::to_sockaddr(name, format);
                assert!(len <= addr::MAX);
                // SAFETY: so many bytes of `raw` count.
                assert_eq!(unsafe { addr::from_sockaddr(raw.as_ptr().cast(), len) }.ok(), Some(name));
            }
            assert!(addr::text(name).starts_with("fi_sockaddr_in"));
        }
    });
}
