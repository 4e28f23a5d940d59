//! The place in a peer's registration that an operation names, against the same in wider numbers.

use super::*;

/// Small numbers and those next to where 64 bits end: every combination is tried.
const NUMBERS: [u64; 15] = [
    0,
    1,
    2,
    7,
    8,
    9,
    1 << 32,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX - 9,
    u64::MAX - 8,
    u64::MAX - 7,
    u64::MAX - 2,
    u64::MAX - 1,
    u64::MAX,
];

/// First byte of the place, if all of it is inside the registration and has an address.
fn model(m: &Region, addr: u64, len: u64) -> Option<u64> {
    let [mine, all, addr, len] = [m.addr, m.len, addr, len].map(i128::from);
    let off = if m.virt_addr { addr - mine } else { addr };
    (off >= 0 && off + len <= all).then(|| u64::try_from(mine + off).ok())?
}

/// As it might have been written.
fn careless(m: &Region, addr: u64, len: u64) -> Option<u64> {
    let off = addr.wrapping_sub(if m.virt_addr { m.addr } else { 0 });
    (off.wrapping_add(len) <= m.len).then(|| m.addr.wrapping_add(off))
}

#[test]
#[cfg_attr(miri, ignore = "100 000 sums in safe code, which take Miri minutes")]
fn a_place_is_inside_what_is_exposed() {
    let (mut inside, mut found) = (0, 0);
    for (i, virt_addr) in (0..NUMBERS.len().pow(4)).flat_map(|i| [(i, false), (i, true)]) {
        let [a, l, addr, len] = [0, 1, 2, 3].map(|n| NUMBERS[i / NUMBERS.len().pow(n) % NUMBERS.len()]);
        let m = Region {
            key: 1,
            addr: a,
            len: l,
            read: true,
            write: true,
            virt_addr,
            target_must_observe: false,
        };
        let want = model(&m, addr, len);
        let got = place(&m, addr, len, true);
        assert_eq!(got.map(|s| s.addr.get()), want, "{m:?}: {addr:#x}+{len:#x}");
        assert!(got.is_none_or(|s| s.len.get() == len));
        inside += usize::from(want.is_some());
        found += usize::from(careless(&m, addr, len) != want);
    }
    assert!(inside > 1000, "only {inside} are inside");
    assert!(found > 1000, "the model would not notice a sum that wraps: {found}");
}

#[test]
fn what_is_not_allowed_or_is_counted_has_no_place() {
    for i in 0..8u8 {
        let (read, write, target_must_observe) = (i & 1 != 0, i & 2 != 0, i & 4 != 0);
        let m = Region { key: 1, addr: 64, len: 64, read, write, virt_addr: false, target_must_observe };
        assert_eq!(place(&m, 0, 8, true).is_some(), write && !target_must_observe);
        assert_eq!(place(&m, 0, 8, false).is_some(), read && !target_must_observe);
    }
}
