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
        self.sweep(&mut t, (&to, &[&a, &b]), &count, (&number, &threads), 1);
        t.put("ret");
        t.end(&self.name(), &PARAMETERS)
    }

    /// Reduces two buffers of `count` elements to a third one, or copies one, by so many threads, of which
    /// this one has that number. Of groups of 16 bytes a thread has `together` under way at once.
    pub(super) fn sweep(
        self,
        t: &mut Text,
        places: (&Reg, &[&Reg]),
        count: &Reg,
        threads: (&Reg, &Reg),
        together: u32,
    ) {
        let at = t.d_of("mov.b64", threads.0);
        if self.access == Access::Wide {
            self.wide(t, places, count, &at, threads.1, together);
            return;
        }
        let (again, done) = (t.label(), t.label());
        t.place(&again);
        let over = t.p_of("setp.ge.u64", format!("{at}, {count}"));
        t.put(format!("@{over} bra {done}"));
        self.one(t, places, &at);
        t.put(format!("add.u64 {at}, {at}, {}", threads.1));
        t.put(format!("bra {again}"));
        t.place(&done);
    }

    /// Groups of 16 bytes, and by one thread each what is left behind them.
    fn wide(
        self,
        t: &mut Text,
        places: (&Reg, &[&Reg]),
        count: &Reg,
        at: &Reg,
        threads: &Reg,
        together: u32,
    ) {
        let log = self.elements().trailing_zeros();
        let groups = t.d_of("shr.u64", format!("{count}, {log}"));
        let first = t.d_of("mov.b64", at);
        let stride = t.d_of("shl.b64", format!("{threads}, 4"));
        for many in [together, 1].into_iter().skip(usize::from(together == 1)) {
            let (again, rest) = (t.label(), t.label());
            let others = t.d_of("mul.lo.u64", format!("{threads}, {}", many - 1));
            t.place(&again);
            let last = t.d_of("add.u64", format!("{at}, {others}"));
            let over = t.p_of("setp.ge.u64", format!("{last}, {groups}"));
            t.put(format!("@{over} bra {rest}"));
            self.groups(t, places, at, &stride, many);
            t.put(format!("add.u64 {at}, {last}, {threads}"));
            t.put(format!("bra {again}"));
            t.place(&rest);
        }
        let done = t.label();
        let before = t.d_of("shl.b64", format!("{groups}, {log}"));
        let number = t.d_of("add.u64", format!("{first}, {before}"));
        let over = t.p_of("setp.ge.u64", format!("{number}, {count}"));
        t.put(format!("@{over} bra {done}"));
        self.one(t, places, &number);
        t.place(&done);
    }

    /// So many groups from that one on, each `stride` bytes behind the one before: all loads come first.
    fn groups(self, t: &mut Text, (to, from): (&Reg, &[&Reg]), at: &Reg, stride: &Reg, many: u32) {
        let mut offsets = vec![t.d_of("shl.b64", format!("{at}, 4"))];
        for i in 1..many as usize {
            offsets.push(t.d_of("add.u64", format!("{}, {stride}", offsets[i - 1])));
        }
        let place = |t: &mut Text, base: &Reg, offset: &Reg| t.d_of("add.u64", format!("{base}, {offset}"));
        let [a, b] = from else {
            let loaded: Vec<[Reg; 2]> = (offsets.iter().zip(from.iter().cycle()))
                .map(|(offset, from)| {
                    let at = place(t, from, offset);
                    let [x, y] = [t.d(), t.d()];
                    t.put(format!("ld.global.v2.b64 {{{x}, {y}}}, [{at}]"));
                    [x, y]
                })
                .collect();
            for (offset, [x, y]) in offsets.iter().zip(loaded) {
                let to = place(t, to, offset);
                t.put(format!("st.global.v2.b64 [{to}], {{{x}, {y}}}"));
            }
            return;
        };
        let [a, b] = [a, b].map(|from| {
            let load = |offset| {
                let at = place(t, from, offset);
                self.load_wide(t, &at)
            };
            offsets.iter().map(load).collect::<Vec<_>>()
        });
        let n = self.ty.lanes().len();
        for ((a, b), offset) in a.iter().zip(&b).zip(&offsets) {
            let each = a.chunks(n).zip(b.chunks(n));
            let results: Vec<Reg> = each.flat_map(|(a, b)| apply(t, self.op, self.ty, a, b)).collect();
            let to = place(t, to, offset);
            self.store_wide(t, &to, &results);
        }
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
    fn one(self, t: &mut Text, (to, from): (&Reg, &[&Reg]), number: &Reg) {
        let offset = t.d_of("mul.lo.u64", format!("{number}, {}", self.ty.extent()));
        let to = t.d_of("add.u64", format!("{to}, {offset}"));
        let mut loaded = from.iter().map(|from| {
            let at = t.d_of("add.u64", format!("{from}, {offset}"));
            let lanes = self.ty.lanes().iter();
            lanes.map(|(offset, lane)| self.load(t, &at, *offset, *lane)).collect::<Vec<_>>()
        });
        let (a, b) = (loaded.next().unwrap_or_default(), loaded.next());
        let results = match b {
            Some(b) => apply(t, self.op, self.ty, &a, &b),
            None => a,
        };
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
