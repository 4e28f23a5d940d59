//! Every operation on every datatype, against a C compiler's arithmetic, in each sort of memory.

use std::io::Write as _;
use std::process::{Command, Stdio};

use hmem::{AtomicOp, Class, Datatype, Span, apply, fake, read, valid, write};

/// Builds tests/`source`; `None` if there is no C compiler, or not what the source needs.
fn build(source: &str, name: &str) -> Option<String> {
    let out = format!("{}/{name}", env!("CARGO_TARGET_TMPDIR"));
    let source = format!("{}/tests/{source}", env!("CARGO_MANIFEST_DIR"));
    let built = Command::new("cc").args(["-O1", "-fwrapv", "-o", &out, &source]).status();
    built.is_ok_and(|s| s.success()).then_some(out)
}

/// The values worth trying, as bytes.
fn values(datatype: Datatype) -> Vec<Vec<u8>> {
    fn pairs(v: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        v.iter().flat_map(|a| v.iter().map(|b| [&a[..], b].concat())).collect()
    }
    let size = datatype.size();
    match datatype {
        Datatype::Float => [0.0, -0.0, 1.5, -3.25, 1e-45, f32::MAX, f32::INFINITY, f32::NAN]
            .map(|v| v.to_ne_bytes().to_vec())
            .to_vec(),
        Datatype::Double => [0.0, -0.0, 1.5, -0.1, 5e-324, -f64::MAX, -f64::INFINITY, f64::NAN]
            .map(|v| v.to_ne_bytes().to_vec())
            .to_vec(),
        Datatype::LongDouble => [
            (0, 0),
            (0x8000, 0),
            (0x3fff, 0x8000_0000_0000_0001), // just above 1, distinguished from it by no double
            (0xbffe, 0xcccc_cccc_cccc_cccd),
            (0, 1),
            (0xfffe, u64::MAX),
            (0x7fff, 1 << 63),
            (0x7fff, 3 << 62),
        ]
        .map(|(high, mantissa): (u16, u64)| {
            [&mantissa.to_le_bytes()[..], &high.to_le_bytes(), &[0; 6]].concat()
        })
        .to_vec(),
        Datatype::FloatComplex => pairs(values(Datatype::Float)),
        Datatype::DoubleComplex => pairs(values(Datatype::Double)),
        Datatype::LongDoubleComplex => pairs(values(Datatype::LongDouble)),
        _ => [0, 1, 2, -1, -2, 0x5a, i64::MAX, i64::MIN, 0x1234_5678_9abc_def1]
            .map(|v: i64| v.to_le_bytes()[..size].to_vec())
            .into_iter()
            .chain((1..size as u32 * 2).map(|n| (!0u64 << (n * 4) >> 1).to_le_bytes()[..size].to_vec()))
            .collect(),
    }
}

/// Targets, operands and compare values: all pairs, and where it compares also the target itself
/// and its neighbours as the third.
fn cases(datatype: Datatype, op: AtomicOp) -> [Vec<u8>; 3] {
    let v = values(datatype);
    let mut out = [const { Vec::new() }; 3];
    for i in 0..v.len() {
        for j in 0..v.len() {
            let last = [&v[i], &v[(i + j) % v.len()], &v[(i + 1) % v.len()]];
            let take = if op.compares() { 3 } else { 1 };
            for c in last.into_iter().take(take) {
                for (to, from) in out.iter_mut().zip([&v[i], &v[j], c]) {
                    to.extend_from_slice(from);
                }
            }
        }
    }
    out
}

/// The same number, any NaN being like any other.
fn alike(datatype: Datatype, a: &[u8], b: &[u8]) -> bool {
    let halves = |of| {
        let n = datatype.size() / 2;
        alike(of, &a[..n], &b[..n]) && alike(of, &a[n..], &b[n..])
    };
    match datatype {
        Datatype::Float => {
            let [a, b] = [a, b].map(|v| f32::from_ne_bytes(v.try_into().unwrap()));
            a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
        }
        Datatype::Double => {
            let [a, b] = [a, b].map(|v| f64::from_ne_bytes(v.try_into().unwrap()));
            a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
        }
        Datatype::LongDouble => {
            let nan = |v: &[u8]| v[9] & 0x7f == 0x7f && v[8] == 0xff && v[..8] != [0, 0, 0, 0, 0, 0, 0, 0x80];
            a[..10] == b[..10] || nan(a) && nan(b)
        }
        Datatype::FloatComplex => halves(Datatype::Float),
        Datatype::DoubleComplex => halves(Datatype::Double),
        Datatype::LongDoubleComplex => halves(Datatype::LongDouble),
        _ => a == b,
    }
}

#[test]
fn every_operation_does_what_c_does() {
    let Some(reference) = build("reference.c", "reference") else {
        return eprintln!("skipped: no C compiler");
    };
    let mut todo = Vec::new();
    let mut input = Vec::new();
    for op in (0..19).filter_map(AtomicOp::from_code) {
        let class = if op.compares() { Class::Compare } else { Class::Fetch };
        for datatype in (0..14).filter_map(Datatype::from_code) {
            if !valid(op, datatype, class) {
                continue;
            }
            let args = cases(datatype, op);
            input.extend([op.code(), datatype.code()]);
            input.extend(((args[0].len() / datatype.size()) as u32).to_ne_bytes());
            args.iter().for_each(|a| input.extend_from_slice(a));
            todo.push((op, datatype, args));
        }
    }
    let mut child = Command::new(reference).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let feeder = std::thread::spawn(move || stdin.write_all(&input).unwrap());
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap();
    assert!(output.status.success());

    let mut results = &output.stdout[..];
    for (op, datatype, [target, operand, compare]) in todo {
        let (expected, rest) = results.split_at(target.len());
        results = rest;
        let (n, size) = (target.len(), datatype.size());
        let host = Span::leak(n + 64);
        let aligned = (32 - host.addr() % 32) as usize;
        let device = fake::alloc(n + 1);
        let places = [
            vec![host.part(aligned, n).unwrap()],
            vec![host.part(aligned + 1, n).unwrap()],
            vec![host.part(aligned, n / 2).unwrap(), host.part(aligned + n / 2 + 3, n - n / 2).unwrap()],
            vec![device.span().part(1, n).unwrap()],
        ];
        for (place, dst) in places.iter().enumerate() {
            for fetch in [true, false] {
                if op == AtomicOp::AtomicRead && !fetch {
                    continue;
                }
                write(dst, 0, &target);
                let mut old = vec![0xee; n];
                let operand = if op == AtomicOp::AtomicRead { &[] } else { &operand[..] };
                let compare = if op.compares() { &compare[..] } else { &[] };
                let old_to = fetch.then_some(&mut old[..]);
                apply(dst, op, datatype, operand, compare, old_to).unwrap();
                assert!(!fetch || old == target, "{op:?} {datatype:?} place {place}");
                let mut new = vec![0; n];
                read(dst, 0, &mut new);
                for at in (0..n).step_by(size) {
                    let (is, be) = (&new[at..at + size], &expected[at..at + size]);
                    assert!(
                        alike(datatype, is, be),
                        "{op:?} {datatype:?} place {place}: {:x?} by {:x?} is {is:x?} not {be:x?}",
                        &target[at..at + size],
                        operand.get(at..at + size),
                    );
                }
            }
        }
    }
    assert!(results.is_empty());
}
