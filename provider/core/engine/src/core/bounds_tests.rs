//! The memory that a peer names, against a model that lists every byte.

use super::*;
use crate::config::Reg;
use wire::RmaSeg;

fn config(virt_addr: bool) -> Config {
    Config { virt_addr, rma_order: false }
}

/// Numbers at which bounds go wrong: around those given, and at either end.
fn near(around: &[u64]) -> Vec<u64> {
    // Miri takes as long for one of them as a processor for thousands.
    let (ends, far): (&[u64], _) =
        if cfg!(miri) { (&[0], 1) } else { (&[0, 1 << 31, 1 << 32, 1 << 63, u64::MAX - 2], 2) };
    let mut all: Vec<u64> = ends
        .iter()
        .chain(around)
        .flat_map(|&at| (-far..=far).map(move |by| at.wrapping_add_signed(by)))
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Every byte of a registration, by its address.
fn bytes(iov: &[Span]) -> Vec<u64> {
    iov.iter().flat_map(|s| (0..s.len() as u64).map(|i| s.addr() + i)).collect()
}

/// What the model says that `addr..addr+len` is.
fn model(all: &[u64], base: u64, addr: u64, len: u64) -> Option<&[u64]> {
    let first = i128::from(addr) - i128::from(base);
    let end = first + i128::from(len);
    (first >= 0 && end <= all.len() as i128).then(|| &all[first as usize..end as usize])
}

#[test]
fn a_peer_reaches_the_bytes_it_names_and_no_other() {
    let block = Span::leak(64);
    let part = |off, len| block.part(off, len).unwrap();
    let shapes: [&[Span]; 5] = [
        &[part(8, 40)],
        &[part(32, 9), part(8, 7)],
        &[part(8, 5), Span::EMPTY, part(20, 1), part(40, 6)],
        &[Span::EMPTY, part(3, 4)],
        &[part(8, 0)],
    ];
    let (mut inside, mut outside) = (0, 0);
    for (iov, virt_addr) in shapes.iter().flat_map(|s| [(*s, false), (*s, true)]) {
        let mut core = Core::new(config(virt_addr));
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let (_, key) = core.mrs.register(&Reg { iov, access, key: Some(5) }).unwrap();
        let all = bytes(iov);
        let base = if virt_addr { iov[0].addr() } else { 0 };
        let n = all.len() as u64;
        for addr in near(&[base, base + n / 2, base + n]) {
            for len in near(&[n / 2, n, base]) {
                let seg = RmaSeg { addr: addr.into(), len: len.into(), key: key.into() };
                let want = model(&all, base, addr, len);
                let got = core.mrs.reach(&[seg], Access::REMOTE_WRITE).ok();
                let what = format!("{iov:?}, virt_addr {virt_addr}: {addr:#x}+{len:#x}");
                match want {
                    Some(_) => inside += 1,
                    None => outside += 1,
                }
                assert_eq!(got.as_ref().map(|r| bytes(&r.iov)).as_deref(), want, "{what}");
                assert_eq!(got.map(|r| r.len as u64), want.map(|_| len), "{what}");
                if let [_] = iov {
                    let plain = core.mrs.reach_plain(&seg).map(|(span, _)| bytes(&[span]));
                    assert_eq!(plain.as_deref(), want, "{what}, as one stretch");
                }
            }
        }
    }
    let least = if cfg!(miri) { (20, 200) } else { (100, 1000) };
    assert!(inside > least.0 && outside > least.1, "{inside} inside, {outside} outside");
}

#[test]
fn the_lengths_of_several_segments_do_not_wrap() {
    let mut core = Core::new(config(false));
    let iov = [Span::leak(32)];
    let access = Access::REMOTE_WRITE;
    let (_, key) = core.mrs.register(&Reg { iov: &iov, access, key: Some(5) }).unwrap();
    let seg = |addr: u64, len: u64| RmaSeg { addr: addr.into(), len: len.into(), key: key.into() };
    for (a, b) in [(8u64, 24u64), (0, 32), (32, 32)] {
        let reached = core.mrs.reach(&[seg(0, a), seg(32 - b, b)], access).unwrap();
        assert_eq!(reached.len as u64, a + b);
        assert_eq!(bytes(&reached.iov).len() as u64, a + b);
    }
    for len in near(&[33]) {
        let bad = len > 32;
        assert_eq!(core.mrs.reach(&[seg(0, 32), seg(0, len)], access).is_err(), bad, "{len:#x} behind 32");
    }
}
