//! An operation on one element.

use super::product;
use super::text::{Reg, Text};
use crate::types::{Lane, Op, Type};

/// Writes `a op b`. Each number of the elements is in a register; those of 8 and 16 bits are extended by
/// their sign or by zeros.
pub(super) fn apply(t: &mut Text, op: Op, ty: Type, a: &[Reg], b: &[Reg]) -> Vec<Reg> {
    let lanes = ty.lanes();
    match op {
        Op::Minloc | Op::Maxloc => located(t, op, [lanes[0].1, lanes[1].1], a, b),
        Op::Replace => a.to_vec(),
        Op::NoOp => b.to_vec(),
        Op::Prod if lanes.len() == 2 => product::complex(t, lanes[0].1, a, b),
        _ => {
            let each = lanes.iter().zip(a.iter().zip(b));
            each.map(|((_, lane), (a, b))| scalar(t, op, *lane, a, b)).collect()
        }
    }
}

fn scalar(t: &mut Text, op: Op, lane: Lane, a: &Reg, b: &Reg) -> Reg {
    let bytes = lane.bytes();
    let bits = if bytes == 8 { 64 } else { 32 };
    match op {
        Op::Sum | Op::Prod => match lane {
            Lane::Signed(_) | Lane::Unsigned(_) => {
                let name = if op == Op::Sum { "add" } else { "mul.lo" };
                of(t, bytes, &format!("{name}.u{bits}"), &[a, b])
            }
            _ => {
                let name = if op == Op::Sum { "add.rn" } else { "mul.rn" };
                let (x, y) = (widened(t, lane, a), widened(t, lane, b));
                let v = of(t, bytes, &format!("{name}.f{bits}"), &[&x, &y]);
                narrowed(t, lane, v)
            }
        },
        Op::Min | Op::Max => {
            let first = less(t, op == Op::Max, lane, a, b);
            of(t, bytes, &format!("selp.b{bits}"), &[a, b, &first])
        }
        Op::Land | Op::Lor | Op::Lxor => {
            let name = match op {
                Op::Land => "and.pred",
                Op::Lor => "or.pred",
                _ => "xor.pred",
            };
            let [a, b] = [a, b].map(|v| t.p_of(&format!("setp.ne.u{bits}"), format!("{v}, 0")));
            let both = t.p_of(name, format!("{a}, {b}"));
            of(t, bytes, &format!("selp.b{bits}"), &["1", "0", &both])
        }
        Op::Band => of(t, bytes, &format!("and.b{bits}"), &[a, b]),
        Op::Bor => of(t, bytes, &format!("or.b{bits}"), &[a, b]),
        Op::Bxor => of(t, bytes, &format!("xor.b{bits}"), &[a, b]),
        Op::Minloc | Op::Maxloc | Op::Replace | Op::NoOp => a.clone(),
    }
}

/// An instruction whose result is a number of that many bytes.
fn of(t: &mut Text, bytes: u32, name: &str, operands: &[&str]) -> Reg {
    let to = t.sized(bytes);
    t.put(format!("{name} {to}, {}", operands.join(", ")));
    to
}

/// The number as a device computes with it: half precision as F32, which is exact, and rounding the sum or
/// product of two of them twice, to F32 first, gives what rounding once does.
fn widened(t: &mut Text, lane: Lane, v: &Reg) -> Reg {
    match lane {
        Lane::F16 => {
            let half = t.h();
            t.put(format!("cvt.u16.u32 {half}, {v}"));
            t.r_of("cvt.f32.f16", half)
        }
        Lane::BF16 => t.r_of("shl.b32", format!("{v}, 16")),
        _ => v.clone(),
    }
}

/// Back from there, to the nearest, ties to even.
fn narrowed(t: &mut Text, lane: Lane, v: Reg) -> Reg {
    match lane {
        Lane::F16 => {
            let half = t.h();
            t.put(format!("cvt.rn.f16.f32 {half}, {v}"));
            t.r_of("cvt.u32.u16", half)
        }
        Lane::BF16 => {
            let odd = t.r_of("bfe.u32", format!("{v}, 16, 1"));
            let sum = t.r_of("add.u32", format!("{v}, 0x7fff"));
            let sum = t.r_of("add.u32", format!("{sum}, {odd}"));
            let upper = t.r_of("shr.u32", format!("{sum}, 16"));
            let nan = t.p_of("testp.notanumber.f32", &v);
            t.r_of("selp.b32", format!("0x7fff, {upper}, {nan}"))
        }
        _ => v,
    }
}

/// Whether `a` is the smaller one, or with `greater` the larger one; of NaN false.
fn less(t: &mut Text, greater: bool, lane: Lane, a: &Reg, b: &Reg) -> Reg {
    compare(t, if greater { "gt" } else { "lt" }, lane, a, b)
}

fn compare(t: &mut Text, how: &str, lane: Lane, a: &Reg, b: &Reg) -> Reg {
    let (x, y) = (widened(t, lane, a), widened(t, lane, b));
    let ty = match lane {
        Lane::Signed(8) => "s64",
        Lane::Signed(_) => "s32",
        Lane::Unsigned(8) => "u64",
        Lane::Unsigned(_) => "u32",
        Lane::F64 => "f64",
        Lane::F16 | Lane::BF16 | Lane::F32 => "f32",
    };
    t.p_of(&format!("setp.{how}.{ty}"), format!("{x}, {y}"))
}

/// Of two pairs one, or the equal value with the smaller index.
fn located(t: &mut Text, op: Op, [value, index]: [Lane; 2], a: &[Reg], b: &[Reg]) -> Vec<Reg> {
    let bits = |lane: Lane| if lane.bytes() == 8 { 64 } else { 32 };
    let first = less(t, op == Op::Maxloc, value, &a[0], &b[0]);
    let equal = compare(t, "eq", value, &a[0], &b[0]);
    let smaller = less(t, false, index, &a[1], &b[1]);
    let also = t.p_of("and.pred", format!("{equal}, {smaller}"));
    let first_index = t.p_of("or.pred", format!("{first}, {also}"));
    let v = of(t, value.bytes(), &format!("selp.b{}", bits(value)), &[&a[0], &b[0], &first]);
    let i = of(t, index.bytes(), &format!("selp.b{}", bits(index)), &[&a[1], &b[1], &first_index]);
    vec![v, i]
}
