//! What an access of a peer's to registered memory takes, guarded as it is and not: 8 bytes written, an
//! atomic, longer copies. In ns, the least of many runs, which take turns.

use std::hint::black_box;
use std::time::Instant;

use hmem::{AtomicOp, Datatype, Span, apply, copy, guard};

const CALLS: u32 = 1000;
const RUNS: usize = 300;

fn main() {
    println!("guard: {:?}", guard::hold(std::env::args().nth(1).is_none()));
    println!("{:>16} {:>10} {:>10}", "", "not", "guarded");
    for len in [1, 4, 8, 20, 40, 64, 100, 256, 512, 1023, 1024, 2048, 4096, 8192, 65536, 1 << 18] {
        let (to, from) = (Span::leak(len), Span::leak(len));
        let of = |to: Span| {
            move || assert_eq!(black_box(copy(black_box(&[to]), 0, black_box(&[from]), 0, len)), len)
        };
        line(&format!("copy {len}"), of(to), of(to.for_peers()));
    }
    let cell = Span::leak(16);
    let at = cell.part((8 - cell.addr() as usize % 8) % 8, 8).unwrap();
    for op in [AtomicOp::Sum, AtomicOp::AtomicWrite, AtomicOp::Bor] {
        let of = |at: Span| {
            move || apply(black_box(&[at]), op, Datatype::Uint64, black_box(&[1; 8]), &[], None).unwrap()
        };
        line(&format!("{op:?}"), of(at), of(at.for_peers()));
    }
}

fn line(name: &str, mut one: impl FnMut(), mut other: impl FnMut()) {
    let mut least = [f64::MAX; 2];
    for _ in 0..RUNS {
        least[0] = least[0].min(time(&mut one));
        least[1] = least[1].min(time(&mut other));
    }
    println!("{name:>16} {:>10.2} {:>10.2}", least[0], least[1]);
}

fn time(call: &mut impl FnMut()) -> f64 {
    let begin = Instant::now();
    (0..CALLS).for_each(|_| call());
    begin.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
}
