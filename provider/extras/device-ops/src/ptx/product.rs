//! The product of complex numbers, as C defines it (C17, G.5.1): where both parts come out as NaN although a
//! factor, or a partial product, is infinite, it is computed anew with the infinities replaced by 1 and the
//! rest by 0, and multiplied by infinity.

use super::text::{Reg, Text};
use crate::types::Lane;

/// Numbers of one precision.
struct Numbers {
    bits: u32,
    zero: &'static str,
    one: &'static str,
    infinity: &'static str,
}

const SINGLE: Numbers = Numbers { bits: 32, zero: "0f00000000", one: "0f3F800000", infinity: "0f7F800000" };
const DOUBLE: Numbers = Numbers {
    bits: 64,
    zero: "0d0000000000000000",
    one: "0d3FF0000000000000",
    infinity: "0d7FF0000000000000",
};

impl Numbers {
    fn put(&self, t: &mut Text, name: &str, a: &str, b: &str) -> Reg {
        let to = t.sized(self.bits / 8);
        t.put(format!("{name}.f{} {to}, {a}, {b}", self.bits));
        to
    }

    /// The partial products, and of them both parts.
    fn product(&self, t: &mut Text, [a, b, c, d]: [&Reg; 4]) -> ([Reg; 4], [Reg; 2]) {
        let [ac, bd, ad, bc] = [(a, c), (b, d), (a, d), (b, c)].map(|(x, y)| self.put(t, "mul.rn", x, y));
        let real = self.put(t, "sub.rn", &ac, &bd);
        let imaginary = self.put(t, "add.rn", &ad, &bc);
        ([ac, bd, ad, bc], [real, imaginary])
    }

    fn test(&self, t: &mut Text, what: &str, v: &str) -> Reg {
        t.p_of(&format!("testp.{what}.f{}", self.bits), v)
    }

    fn any_infinite(&self, t: &mut Text, all: &[&Reg]) -> Reg {
        let each: Vec<Reg> = all.iter().map(|v| self.test(t, "infinite", v)).collect();
        each.into_iter().reduce(|a, b| t.p_of("or.pred", format!("{a}, {b}"))).unwrap_or_default()
    }

    /// A variable of its own.
    fn variable(&self, t: &mut Text, v: &str) -> Reg {
        let to = t.sized(self.bits / 8);
        t.put(format!("mov.b{} {to}, {v}", self.bits));
        to
    }

    /// Where `if_so`: 1 for an infinity and 0 for the rest, with the sign that was there.
    fn boxed(&self, t: &mut Text, v: &Reg, if_so: &Reg) {
        let infinite = self.test(t, "infinite", v);
        let size = t.sized(self.bits / 8);
        t.put(format!("selp.b{} {size}, {}, {}, {infinite}", self.bits, bare(self.one), bare(self.zero)));
        t.put(format!("@{if_so} copysign.f{} {v}, {v}, {size}", self.bits));
    }

    /// Where `if_so`: 0 for a NaN, with its sign.
    fn cleared(&self, t: &mut Text, v: &Reg, if_so: &Reg) {
        let nan = self.test(t, "notanumber", v);
        let both = t.p_of("and.pred", format!("{nan}, {if_so}"));
        t.put(format!("@{both} copysign.f{} {v}, {v}, {}", self.bits, self.zero));
    }
}

/// The bits of a floating point constant.
fn bare(constant: &str) -> String {
    format!("0x{}", &constant[2..])
}

/// Writes the product of `a` and `b`, two registers each.
pub(super) fn complex(t: &mut Text, lane: Lane, x: &[Reg], y: &[Reg]) -> Vec<Reg> {
    let of = if lane == Lane::F64 { DOUBLE } else { SINGLE };
    let (partial, [real, imaginary]) = of.product(t, [&x[0], &x[1], &y[0], &y[1]]);
    let done = t.label();
    let [r, i] = [&real, &imaginary].map(|v| of.test(t, "notanumber", v));
    let both = t.p_of("and.pred", format!("{r}, {i}"));
    t.put(format!("@!{both} bra {done}"));

    let [a, b, c, d] = [&x[0], &x[1], &y[0], &y[1]].map(|v| of.variable(t, v));
    let first = of.any_infinite(t, &[&a, &b]);
    [&a, &b].into_iter().for_each(|v| of.boxed(t, v, &first));
    [&c, &d].into_iter().for_each(|v| of.cleared(t, v, &first));
    let second = of.any_infinite(t, &[&c, &d]);
    [&c, &d].into_iter().for_each(|v| of.boxed(t, v, &second));
    [&a, &b].into_iter().for_each(|v| of.cleared(t, v, &second));
    let factors = t.p_of("or.pred", format!("{first}, {second}"));
    let partial = of.any_infinite(t, &partial.each_ref());
    let none = t.p();
    t.put(format!("not.pred {none}, {factors}"));
    let overflow = t.p_of("and.pred", format!("{partial}, {none}"));
    [&a, &b, &c, &d].into_iter().for_each(|v| of.cleared(t, v, &overflow));
    let again = t.p_of("or.pred", format!("{factors}, {overflow}"));
    t.put(format!("@!{again} bra {done}"));
    let (_, parts) = of.product(t, [&a, &b, &c, &d]);
    for (to, v) in [&real, &imaginary].into_iter().zip(&parts) {
        t.put(format!("mul.rn.f{} {to}, {v}, {}", of.bits, of.infinity));
    }
    t.place(&done);
    vec![real, imaginary]
}
