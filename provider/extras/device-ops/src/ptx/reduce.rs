//! Kernels that reduce.

use std::ffi::CString;

use super::element::apply;
use super::text::{Reg, Text};
use crate::types::{Lane, Op, Type};

/// How the elements of the three buffers are accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Access {
    /// 16 bytes at once: all three begin at a multiple of that.
    Wide,
    /// Number by number, at addresses that are multiples of its size.
    Aligned,
    /// Byte by byte.
    Bytes,
}

/// A kernel: which one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ReduceKernel {
    pub(crate) op: Op,
    pub(crate) ty: Type,
    pub(crate) access: Access,
}

const PARAMETERS: [&str; 4] = ["to", "a", "b", "count"];

impl ReduceKernel {
    pub(crate) fn name(self) -> String {
        format!("strait_{:?}_{:?}_{:?}", self.op, self.ty, self.access).to_lowercase()
    }

    /// Elements that a thread does at a time.
    pub(crate) fn elements(self) -> u64 {
        if self.access == Access::Wide { 16 / self.ty.extent() } else { 1 }
    }

    /// The module. Parameters: where to, a, b, the number of elements.
    pub(crate) fn text(self) -> CString {
        let mut t = Text::default();
        let [to, a, b, count] = t.parameters(PARAMETERS);
        let (number, threads) = t.grid();
        let places = [&to, &a, &b];
        if self.access == Access::Wide {
            self.wide(&mut t, places, &count, &number, &threads);
        } else {
            let (again, done) = (t.label(), t.label());
            t.place(&again);
            let over = t.p_of("setp.ge.u64", format!("{number}, {count}"));
            t.put(format!("@{over} bra {done}"));
            self.one(&mut t, places, &number);
            t.put(format!("add.u64 {number}, {number}, {threads}"));
            t.put(format!("bra {again}"));
            t.place(&done);
        }
        t.put("ret");
        t.end(&self.name(), &PARAMETERS)
    }

    /// Groups of 16 bytes, and by one thread each what is left behind them.
    fn wide(self, t: &mut Text, places: [&Reg; 3], count: &Reg, number: &Reg, threads: &Reg) {
        let log = self.elements().trailing_zeros();
        let groups = t.d_of("shr.u64", format!("{count}, {log}"));
        let at = t.d_of("mov.b64", number);
        let (again, rest, done) = (t.label(), t.label(), t.label());
        t.place(&again);
        let over = t.p_of("setp.ge.u64", format!("{at}, {groups}"));
        t.put(format!("@{over} bra {rest}"));
        let offset = t.d_of("shl.b64", format!("{at}, 4"));
        let [to, a, b] = places.map(|p| t.d_of("add.u64", format!("{p}, {offset}")));
        let (a, b) = (self.load_wide(t, &a), self.load_wide(t, &b));
        let n = self.ty.lanes().len();
        let groups_of = a.chunks(n).zip(b.chunks(n));
        let results: Vec<Reg> = groups_of.flat_map(|(a, b)| apply(t, self.op, self.ty, a, b)).collect();
        self.store_wide(t, &to, &results);
        t.put(format!("add.u64 {at}, {at}, {threads}"));
        t.put(format!("bra {again}"));
        t.place(&rest);
        let before = t.d_of("shl.b64", format!("{groups}, {log}"));
        t.put(format!("add.u64 {number}, {number}, {before}"));
        let over = t.p_of("setp.ge.u64", format!("{number}, {count}"));
        t.put(format!("@{over} bra {done}"));
        self.one(t, places, number);
        t.place(&done);
    }

    /// The numbers in 16 bytes.
    fn load_wide(self, t: &mut Text, at: &Reg) -> Vec<Reg> {
        let lane = self.ty.lanes()[0].1;
        if lane.bytes() == 8 {
            let [x, y] = [t.d(), t.d()];
            t.put(format!("ld.global.v2.b64 {{{x}, {y}}}, [{at}]"));
            return vec![x, y];
        }
        let words = [t.r(), t.r(), t.r(), t.r()];
        t.put(format!("ld.global.v4.b32 {{{}}}, [{at}]", words.join(", ")));
        if lane.bytes() == 4 {
            return words.to_vec();
        }
        let (bits, sign) = (8 * lane.bytes(), if matches!(lane, Lane::Signed(_)) { 's' } else { 'u' });
        let fields = words.iter().flat_map(|w| (0..32 / bits).map(move |i| (w, i * bits)));
        fields.map(|(w, from)| t.r_of(&format!("bfe.{sign}32"), format!("{w}, {from}, {bits}"))).collect()
    }

    fn store_wide(self, t: &mut Text, at: &Reg, all: &[Reg]) {
        let bytes = self.ty.lanes()[0].1.bytes();
        if bytes == 8 {
            t.put(format!("st.global.v2.b64 [{at}], {{{}}}", all.join(", ")));
            return;
        }
        let bits = 8 * bytes;
        let words: Vec<Reg> = all
            .chunks(4 / bytes as usize)
            .map(|fields| {
                let mut word = fields[0].clone();
                for (i, field) in fields.iter().enumerate().skip(1) {
                    word = t.r_of("bfi.b32", format!("{field}, {word}, {}, {bits}", i as u32 * bits));
                }
                word
            })
            .collect();
        t.put(format!("st.global.v4.b32 [{at}], {{{}}}", words.join(", ")));
    }

    /// The element of that number.
    fn one(self, t: &mut Text, places: [&Reg; 3], number: &Reg) {
        let offset = t.d_of("mul.lo.u64", format!("{number}, {}", self.ty.extent()));
        let [to, a, b] = places.map(|p| t.d_of("add.u64", format!("{p}, {offset}")));
        let [a, b] = [a, b].map(|at| {
            let lanes = self.ty.lanes().iter();
            lanes.map(|(offset, lane)| self.load(t, &at, *offset, *lane)).collect::<Vec<_>>()
        });
        let results = apply(t, self.op, self.ty, &a, &b);
        for ((offset, lane), v) in self.ty.lanes().iter().zip(&results) {
            self.store(t, &to, *offset, *lane, v);
        }
    }

    fn load(self, t: &mut Text, at: &Reg, offset: u32, lane: Lane) -> Reg {
        let (bytes, signed) = (lane.bytes(), matches!(lane, Lane::Signed(_)));
        let bits = 8 * bytes;
        if self.access != Access::Bytes {
            let ty = if bytes >= 4 {
                'b'
            } else if signed {
                's'
            } else {
                'u'
            };
            let to = t.sized(bytes);
            t.put(format!("ld.global.{ty}{bits} {to}, [{at}+{offset}]"));
            return to;
        }
        let low = word(t, at, offset, bytes.min(4));
        match bytes {
            8 => {
                let high = word(t, at, offset + 4, 4);
                let [low, high] = [low, high].map(|w| t.d_of("cvt.u64.u32", w));
                let high = t.d_of("shl.b64", format!("{high}, 32"));
                t.d_of("or.b64", format!("{low}, {high}"))
            }
            4 => low,
            _ if signed => t.r_of("bfe.s32", format!("{low}, 0, {bits}")),
            _ => low,
        }
    }

    fn store(self, t: &mut Text, at: &Reg, offset: u32, lane: Lane, v: &Reg) {
        let bytes = lane.bytes();
        if self.access != Access::Bytes {
            t.put(format!("st.global.b{} [{at}+{offset}], {v}", 8 * bytes));
            return;
        }
        for i in 0..bytes {
            // Of a sum or a product of floats, driver 580 stores 0 as the low byte of the register itself.
            let byte = match (bytes, i) {
                (8, 0) => t.d_of("and.b64", format!("{v}, 255")),
                (_, 0) => t.r_of("and.b32", format!("{v}, 255")),
                (8, _) => t.d_of("shr.u64", format!("{v}, {}", 8 * i)),
                _ => t.r_of("shr.u32", format!("{v}, {}", 8 * i)),
            };
            t.put(format!("st.global.b8 [{at}+{}], {byte}", offset + i));
        }
    }
}

/// Up to 4 bytes as one number.
fn word(t: &mut Text, at: &Reg, offset: u32, bytes: u32) -> Reg {
    let load = |t: &mut Text, i: u32| t.r_of("ld.global.u8", format!("[{at}+{}]", offset + i));
    let mut all = load(t, 0);
    for i in 1..bytes {
        let byte = load(t, i);
        all = t.r_of("bfi.b32", format!("{byte}, {all}, {}, 8", 8 * i));
    }
    all
}
