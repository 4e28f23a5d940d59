//! Kernels that pack and unpack.
//!
//! A thread moves one unit of 1 to 16 bytes at a time: from its number among the packed units follow the
//! block it is in, the block's index in each level, and, where a block is a list of pieces, the piece.

use std::ffi::CString;

use super::text::{Reg, Text};

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Direction {
    Pack,
    Unpack,
}

/// A kernel: which one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PackKernel {
    pub(crate) direction: Direction,
    /// Levels around a block, 0 to [`LEVELS`].
    pub(crate) levels: u32,
    /// A block is a list of pieces.
    pub(crate) listed: bool,
    /// A unit has 2 to this power bytes, at most 16.
    pub(crate) unit: u32,
    /// Numbers of units, blocks and indices have 32 bits, which is quicker to divide by.
    pub(crate) short: bool,
}

/// Most levels of a kernel.
pub(crate) const LEVELS: usize = 4;

/// The typed memory's origin, the packed memory, the number of the first unit and how many there are, units
/// of a block, the table of pieces and their number, then count and stride of each level, from the innermost.
const PARAMETERS: [&str; 7 + 2 * LEVELS] = [
    "typed", "packed", "first", "units", "block", "table", "pieces", "c0", "s0", "c1", "s1", "c2", "s2",
    "c3", "s3",
];

impl PackKernel {
    pub(crate) fn name(self) -> String {
        let PackKernel { direction, levels, listed, unit, short } = self;
        let (list, wide) = (if listed { "_list" } else { "" }, if short { "" } else { "_wide" });
        format!("strait_{direction:?}_{levels}{list}_{}b{wide}", 1 << unit).to_lowercase()
    }

    pub(crate) fn text(self) -> CString {
        let mut t = Text::default();
        let [typed, packed, first, units, block, table, pieces, levels @ ..] = t.parameters(PARAMETERS);
        let (number, threads) = t.grid();
        let block_number = self.index(&mut t, &block);
        let counts: Vec<Reg> =
            (0..self.levels as usize).map(|i| self.index(&mut t, &levels[2 * i])).collect();
        let (again, done) = (t.label(), t.label());
        t.place(&again);
        let over = t.p_of("setp.ge.u64", format!("{number}, {units}"));
        t.put(format!("@{over} bra {done}"));

        let unit = t.d_of("add.u64", format!("{number}, {first}"));
        let (mut whole, mut within, mut at) = (unit.clone(), unit.clone(), t.d_of("mov.b64", &typed));
        if self.levels > 0 {
            let unit = self.index(&mut t, &unit);
            let (quotient, rest) = self.divide(&mut t, &unit, &block_number);
            within = self.wide(&mut t, &rest);
            whole = quotient;
        }
        for (i, count) in counts.iter().enumerate() {
            let index = if i + 1 == counts.len() {
                whole.clone()
            } else {
                let (quotient, rest) = self.divide(&mut t, &whole, count);
                whole = quotient;
                rest
            };
            let index = self.wide(&mut t, &index);
            let distance = t.d_of("mul.lo.u64", format!("{index}, {}", levels[2 * i + 1]));
            at = t.d_of("add.u64", format!("{at}, {distance}"));
        }
        let mut byte = t.d_of("shl.b64", format!("{within}, {}", self.unit));
        if self.listed {
            (byte, at) = piece(&mut t, byte, at, &table, &pieces);
        }
        at = t.d_of("add.u64", format!("{at}, {byte}"));
        let distance = t.d_of("shl.b64", format!("{number}, {}", self.unit));
        let packed = t.d_of("add.u64", format!("{packed}, {distance}"));
        match self.direction {
            Direction::Pack => self.copy(&mut t, &packed, &at),
            Direction::Unpack => self.copy(&mut t, &at, &packed),
        }
        t.put(format!("add.u64 {number}, {number}, {threads}"));
        t.put(format!("bra {again}"));
        t.place(&done);
        t.put("ret");
        t.end(&self.name(), &PARAMETERS)
    }

    /// A number of 64 bits as one to divide.
    fn index(self, t: &mut Text, v: &Reg) -> Reg {
        if self.short { t.r_of("cvt.u32.u64", v) } else { v.clone() }
    }

    /// Back.
    fn wide(self, t: &mut Text, v: &Reg) -> Reg {
        if self.short { t.d_of("cvt.u64.u32", v) } else { v.clone() }
    }

    /// The quotient and what is left.
    fn divide(self, t: &mut Text, v: &Reg, by: &Reg) -> (Reg, Reg) {
        let bits = if self.short { 32 } else { 64 };
        let [quotient, product, rest] = [(); 3].map(|()| t.sized(bits / 8));
        t.put(format!("div.u{bits} {quotient}, {v}, {by}"));
        t.put(format!("mul.lo.u{bits} {product}, {quotient}, {by}"));
        t.put(format!("sub.u{bits} {rest}, {v}, {product}"));
        (quotient, rest)
    }

    /// One unit.
    fn copy(self, t: &mut Text, to: &Reg, from: &Reg) {
        let (ty, registers) = match self.unit {
            0 => ("u8", vec![t.r()]),
            1 => ("u16", vec![t.r()]),
            2 => ("b32", vec![t.r()]),
            3 => ("b64", vec![t.d()]),
            _ => ("v2.b64", vec![t.d(), t.d()]),
        };
        let list = match registers.as_slice() {
            [one] => one.clone(),
            all => format!("{{{}}}", all.join(", ")),
        };
        t.put(format!("ld.global.{ty} {list}, [{from}]"));
        t.put(format!("st.global.{ty} [{to}], {list}"));
    }
}

/// The piece that a byte of a block is in, by bisection: the byte in the piece, and the piece's place. An
/// entry of the table is the number of bytes before the piece, and its offset.
fn piece(t: &mut Text, byte: Reg, at: Reg, table: &Reg, pieces: &Reg) -> (Reg, Reg) {
    let (low, high) = (t.d_of("mov.b64", "0"), t.d_of("mov.b64", pieces));
    let (again, found) = (t.label(), t.label());
    t.place(&again);
    let left = t.d_of("sub.u64", format!("{high}, {low}"));
    let one = t.p_of("setp.le.u64", format!("{left}, 1"));
    t.put(format!("@{one} bra {found}"));
    let middle = t.d_of("add.u64", format!("{low}, {high}"));
    let middle = t.d_of("shr.u64", format!("{middle}, 1"));
    let entry = t.d_of("shl.b64", format!("{middle}, 4"));
    let entry = t.d_of("add.u64", format!("{entry}, {table}"));
    let before = t.d_of("ld.global.b64", format!("[{entry}]"));
    let later = t.p_of("setp.le.u64", format!("{before}, {byte}"));
    t.put(format!("selp.b64 {low}, {middle}, {low}, {later}"));
    t.put(format!("selp.b64 {high}, {high}, {middle}, {later}"));
    t.put(format!("bra {again}"));
    t.place(&found);
    let entry = t.d_of("shl.b64", format!("{low}, 4"));
    let entry = t.d_of("add.u64", format!("{entry}, {table}"));
    let (before, offset) = (t.d(), t.d());
    t.put(format!("ld.global.v2.b64 {{{before}, {offset}}}, [{entry}]"));
    let byte = t.d_of("sub.u64", format!("{byte}, {before}"));
    (byte, t.d_of("add.u64", format!("{at}, {offset}")))
}
