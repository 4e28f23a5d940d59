//! Memory of which the program has named a dma-buf.

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use hmem::share::Dmabuf;

use super::*;

/// Names a memfd for a dma-buf of this memory until what is returned is dropped.
fn name(span: Span) -> Dmabuf {
    // SAFETY: a name, and numbers; the descriptor is new.
    let fd =
        unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"dma-buf".as_ptr(), libc::MFD_ALLOW_SEALING)) };
    // SAFETY: numbers alone.
    let sealed = unsafe {
        libc::ftruncate(fd.as_raw_fd(), 4096)
            | libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK)
    };
    assert_eq!(sealed, 0);
    Dmabuf::new(fd.as_raw_fd(), 0, span).expect("a dma-buf")
}

#[test]
fn the_programs_dmabuf_is_the_first_way_of_any_memory_until_it_is_closed() {
    let mut all = registry_of(&[], true);
    for span in [Span::leak(64), device(64)] {
        let named = name(span);
        for uses in [READ, Uses::default()] {
            all.register(span.part(8, 16).expect("a part"), uses, false).expect("a way");
        }
        drop(named);
        all.register(span, READ, false).expect("a way");
    }
    let ways = [Way::Own, Way::Own, Way::Plain, Way::Own, Way::Own, Way::DmabufPcie];
    assert_eq!(all.device().calls, ways);
    let of = |kind| all.describe(kind, true).unwrap_or_default();
    assert_eq!(of(Kind::System), "System for peers by the program's dma-buf and address");
    assert_eq!(of(Kind::Cuda), "Cuda for peers by the program's dma-buf and dma-buf over PCIe");
}

#[test]
fn a_refusal_of_the_programs_dmabuf_is_kept_and_the_other_ways_are_tried() {
    let mut all = registry_of(&[(Way::Own, libc::EOPNOTSUPP)], true);
    let span = Span::leak(64);
    let _named = name(span);
    for _ in 0..2 {
        // What no device faults in is not registered on demand.
        all.register(span, Uses::default(), false).expect("a way");
    }
    assert_eq!(all.device().calls, [Way::Own, Way::Plain, Way::Own, Way::Plain]);
    let text = all.describe(Kind::System, false).expect("what came of it");
    assert_eq!(
        text,
        "System by address (not the program's dma-buf: ibv_reg: Operation not supported (os error 95))"
    );
}

/// It says nothing of memory of that kind for which none is named.
#[test]
fn a_kind_whose_other_ways_are_refused_is_not_registered_for_the_programs_dmabuf() {
    let refused = [Way::DmabufPcie, Way::Dmabuf, Way::PeerMemory].map(|way| (way, libc::EOPNOTSUPP));
    let mut all = registry(&refused);
    all.register(device(64), READ, false).expect_err("no way");
    assert!(!all.may(Kind::Cuda, true));
    let span = device(64);
    assert!(!all.may_take(&span, true));
    let _named = name(span);
    assert!(all.may_take(&span, true) && !all.may(Kind::Cuda, true), "of what is named alone");
    all.register(span, READ, false).expect("its dma-buf");
    assert!(all.may(Kind::Cuda, true));
    assert_eq!(all.describe(Kind::Cuda, true).as_deref(), Some("Cuda for peers by the program's dma-buf"));
}

#[test]
fn what_is_named_is_not_reached_where_every_way_is_refused() {
    let refused = Way::ALL.map(|way| (way, libc::EOPNOTSUPP));
    let mut all = registry(&refused);
    let span = device(64);
    let _named = name(span);
    assert!(all.may_take(&span, true));
    all.register(span, READ, false).expect_err("no way");
    assert!(!all.may_take(&span, true) && all.may_take(&span, false), "for this side nothing was tried");
}
