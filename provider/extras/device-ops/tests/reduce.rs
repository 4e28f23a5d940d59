//! Reductions, over the stand-in for CUDA's driver: every operation on every type, against the host.
#![cfg(not(loom))]

#[path = "support/host.rs"]
mod host;
mod support;

use cuda_stand_in::driver::Driver;
use device_ops::{Error, Op, Type, reduce};
use hmem::cuda::Stream;
use proptest::prelude::*;
use support::{alone, memory, stream};

/// Bytes in front of the elements, one each, and in place of `to`: which operand it is.
struct Case {
    op: Op,
    ty: Type,
    count: usize,
    shift: [usize; 3],
    in_place: Option<usize>,
    seed: u64,
}

const GUARD: usize = 16;

fn check(cu: Driver, stream: Stream, case: &Case) {
    let Case { op, ty, count, shift, in_place, seed } = *case;
    let len = count * ty.extent() as usize;
    let (a, b) = (host::elements(ty, count, seed), host::elements(ty, count, seed + 77));
    let room = GUARD + 16 + len + GUARD;
    let base = [(); 3].map(|()| cu.alloc(room));
    let mut at = [0, 1, 2].map(|i| base[i] + GUARD + shift[i]);
    cu.write(base[2], &vec![0xa5; room]);
    cu.write(at[0], &a);
    cu.write(at[1], &b);
    if let Some(operand) = in_place {
        at[2] = at[operand];
    }
    let before = cu.read(at[2], len + GUARD);
    reduce(stream, op, ty, memory(at[2], len), memory(at[0], len), memory(at[1], len), count as u64).unwrap();
    stream.wait().unwrap();
    let found = cu.read(at[2], len + GUARD);
    let mut wanted = before.clone();
    host::reduce(op, ty, &a, &b, &mut wanted[..len]);
    if let Some(i) = host::difference(op, ty, &found[..len], &wanted[..len]) {
        let n = ty.extent() as usize;
        let part = |v: &[u8]| format!("{:02x?}", &v[i * n..(i + 1) * n]);
        panic!(
            "{op:?} of {ty:?}, element {i} of {count}, shifts {shift:?}: {} and {} gave {}, not {}",
            part(&a),
            part(&b),
            part(&found),
            part(&wanted)
        );
    }
    assert_eq!(found[len..], before[len..], "{op:?} of {ty:?}: bytes behind the elements");
    base.into_iter().for_each(|base| cu.free(base));
}

fn every() -> impl Iterator<Item = (Op, Type)> {
    Op::ALL.into_iter().flat_map(|op| Type::ALL.map(|ty| (op, ty))).filter(|(op, ty)| op.takes(*ty))
}

#[test]
fn every_operation_on_every_type_is_that_of_the_host() {
    let (_alone, cu) = alone();
    let stream = stream(cu);
    for (op, ty) in every() {
        for (count, shift, in_place) in [
            (0, [0; 3], None),
            (1, [0; 3], None),
            (67, [0; 3], None),
            (67, [0; 3], Some(1)),
            (33, [0, 8, 8], Some(0)),
            (21, [8, 0, 0], None),
            (21, [1, 3, 7], None),
        ] {
            check(cu, stream, &Case { op, ty, count, shift, in_place, seed: 3 });
        }
    }
}

#[test]
fn a_grid_that_is_smaller_than_the_count_does_all_elements() {
    let (_alone, cu) = alone();
    let stream = stream(cu);
    // 2 multiprocessors of 8 blocks of 256 threads.
    let grid = 2 * 8 * 256;
    for (ty, shift) in [(Type::I32, 0), (Type::I32, 4), (Type::U8, 1), (Type::DoubleInt, 0)] {
        let count = 4 * grid + 13;
        check(cu, stream, &Case { op: Op::Replace, ty, count, shift: [shift; 3], in_place: None, seed: 9 });
        let op = if ty == Type::DoubleInt { Op::Minloc } else { Op::Sum };
        check(cu, stream, &Case { op, ty, count, shift: [shift; 3], in_place: None, seed: 9 });
    }
}

#[test]
fn page_locked_host_memory_is_an_operand() {
    let (_alone, cu) = alone();
    let stream = stream(cu);
    let (host, device) = (cu.alloc_host(64), cu.alloc(64));
    let ones: Vec<u8> = (0..16u32).flat_map(|i| i.to_ne_bytes()).collect();
    cu.write(host, &ones);
    cu.write(device, &ones);
    let (a, b) = (memory(host, 64), memory(device, 64));
    reduce(stream, Op::Sum, Type::I32, a, a, b, 16).unwrap();
    stream.wait().unwrap();
    let twice: Vec<u8> = (0..16u32).flat_map(|i| (2 * i).to_ne_bytes()).collect();
    assert_eq!(cu.read(host, 64), twice);
}

#[test]
fn what_is_not_defined_or_has_no_room_is_refused_with_a_sentence() {
    let (_alone, cu) = alone();
    let stream = stream(cu);
    let at = cu.alloc(64);
    let m = memory(at, 64);
    let refused = |op, ty, to, count| reduce(stream, op, ty, to, m, m, count).unwrap_err();
    for (op, ty) in [
        (Op::Sum, Type::Bool),
        (Op::Band, Type::F32),
        (Op::Min, Type::ComplexF32),
        (Op::Minloc, Type::I32),
        (Op::Land, Type::F64),
    ] {
        let e = refused(op, ty, m, 1);
        assert!(matches!(e, Error::Undefined(..)) && e.to_string().contains("on the host"), "{e}");
    }
    let e = refused(Op::Sum, Type::I32, m, 17);
    assert!(e.to_string().contains("pass all of the buffer"), "{e}");
    let e = refused(Op::Sum, Type::I32, m, u64::MAX);
    assert!(e.to_string().contains("are no buffer"), "{e}");
    let e = reduce(stream, Op::Sum, Type::I32, memory(at + 4, 60), m, m, 4).unwrap_err();
    assert!(e.to_string().contains("overlaps"), "{e}");
    assert_eq!(e.code(), None);
}

#[test]
fn calls_of_the_driver_that_fail_are_errors_with_its_code() {
    let (_alone, cu) = alone();
    let stream = stream(cu);
    let at = cu.alloc(64);
    let m = memory(at, 64);
    // Kernels that no other test here has launched before: xor of 64 bits.
    let run = |ty| reduce(stream, Op::Bxor, ty, m, m, m, 1);
    cu.fail(c"cuModuleLoadDataEx", 0, 2);
    let e = run(Type::U64).unwrap_err();
    assert_eq!(e.code(), Some(2), "{e}");
    assert!(matches!(e, Error::NotCompiled { .. }) && e.to_string().contains("cuModuleLoadDataEx"), "{e}");
    cu.fail(c"cuModuleLoadDataEx", 0, 0);
    cu.fail(c"cuModuleGetFunction", 0, 500);
    let e = run(Type::U64).unwrap_err();
    assert!(e.code() == Some(500) && e.to_string().contains("cuModuleGetFunction"), "{e}");
    cu.fail(c"cuModuleGetFunction", 0, 0);
    run(Type::U64).unwrap();
    cu.fail(c"cuLaunchKernel", 1, 701);
    let e = run(Type::U64).unwrap_err();
    assert!(e.code() == Some(701) && e.to_string().contains("launching a kernel"), "{e}");
    cu.fail(c"cuLaunchKernel", 0, 0);
    // Compiled once: a failed launch is no reason to compile again.
    let before = cu.calls(c"cuModuleLoadDataEx");
    run(Type::U64).unwrap();
    assert_eq!(cu.calls(c"cuModuleLoadDataEx"), before);
    stream.wait().unwrap();
}

#[test]
fn memory_that_is_not_there_ends_the_kernel_and_not_the_process() {
    let (_alone, cu) = alone();
    let stream = stream(cu);
    let at = cu.alloc(4096);
    let m = memory(at, 8192);
    reduce(stream, Op::Sum, Type::U8, m, m, m, 8192).unwrap();
    assert_eq!(stream.wait().unwrap_err().0, 700);
    let heap = [0u8; 64];
    let m = memory(heap.as_ptr().expose_provenance(), 64);
    reduce(stream, Op::Sum, Type::U8, m, m, m, 64).unwrap();
    assert_eq!(stream.wait().unwrap_err().0, 700);
}

#[test]
fn kernels_are_those_of_the_context() {
    let (_alone, cu) = alone();
    let run = |cu: Driver| {
        let stream = stream(cu);
        let at = cu.alloc(64);
        cu.write(at, &[3; 64]);
        reduce(stream, Op::Prod, Type::U8, memory(at, 64), memory(at, 64), memory(at, 64), 64).unwrap();
        stream.wait().unwrap();
        assert_eq!(cu.read(at, 64), [9; 64]);
    };
    run(cu);
    // A context of the same name, with none of the former's modules.
    for _ in 0..2 {
        let ctx = cu.make_context(0);
        run(cu);
        cu.end_context(ctx);
    }
    cu.enter(1);
    run(cu);
    cu.enter(0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn random_reductions_are_those_of_the_host(
        which in 0..10_000usize,
        count in 0..200usize,
        shift in [0..16usize, 0..16, 0..16],
        natural in any::<bool>(),
        in_place in proptest::option::of(0..2usize),
        seed in any::<u32>(),
    ) {
        let (_alone, cu) = alone();
        let all: Vec<(Op, Type)> = every().collect();
        let (op, ty) = all[which % all.len()];
        let shift = if natural { shift.map(|s| s & !7) } else { shift };
        check(cu, stream(cu), &Case { op, ty, count, shift, in_place, seed: seed.into() });
    }
}
