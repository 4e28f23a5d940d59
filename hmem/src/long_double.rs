//! `long double` of x86-64: the x87's own format, 80 bits in 16 bytes.

use std::arch::asm;
use std::cmp::Ordering;

use crate::value::{Real, Value};

/// The 10 bytes that count, and 6 of padding that only travel along.
#[derive(Clone, Copy)]
pub(crate) struct F80([u8; 16]);

/// A number of that sign and exponent with the leading bit of the mantissa (if there is one) alone.
const fn of(exponent: u16) -> F80 {
    let mut bytes = [0; 16];
    bytes[7] = if exponent == 0 { 0 } else { 0x80 };
    [bytes[8], bytes[9]] = exponent.to_le_bytes();
    F80(bytes)
}

const ZERO: F80 = of(0);
const ONE: F80 = of(0x3fff);

/// `$what` on `$b` in st(0) and `$a` in st(1), leaving one result.
macro_rules! x87 {
    ($what:literal, $a:expr, $b:expr) => {{
        let mut out = [0u8; 16];
        // SAFETY: reads 10 bytes of each operand and writes 10 of `out`, all 16 long and alive.
        // All of st is declared clobbered, so it is empty at entry, and it is left empty.
        unsafe {
            asm!(
                "fld tbyte ptr [{a}]",
                "fld tbyte ptr [{b}]",
                $what,
                "fstp tbyte ptr [{out}]",
                a = in(reg) $a.0.as_ptr(),
                b = in(reg) $b.0.as_ptr(),
                out = in(reg) out.as_mut_ptr(),
                out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                options(nostack),
            );
        }
        F80(out)
    }};
}

impl PartialOrd for F80 {
    fn partial_cmp(&self, other: &F80) -> Option<Ordering> {
        let (above, below, unordered): (u8, u8, u8);
        // SAFETY: reads 10 bytes of each operand. All of st is declared clobbered, so it is empty
        // at entry; the two pushed are popped.
        unsafe {
            asm!(
                "fld tbyte ptr [{b}]",
                "fld tbyte ptr [{a}]",
                "fucomip st, st(1)",
                "fstp st(0)",
                "seta {above}",
                "setb {below}",
                "setp {unordered}",
                a = in(reg) self.0.as_ptr(),
                b = in(reg) other.0.as_ptr(),
                above = out(reg_byte) above,
                below = out(reg_byte) below,
                unordered = out(reg_byte) unordered,
                out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                options(nostack, readonly),
            );
        }
        match (unordered, above, below) {
            (1, ..) => None,
            (_, 1, _) => Some(Ordering::Greater),
            (_, _, 1) => Some(Ordering::Less),
            _ => Some(Ordering::Equal),
        }
    }
}

impl PartialEq for F80 {
    fn eq(&self, other: &F80) -> bool {
        self.partial_cmp(other) == Some(Ordering::Equal)
    }
}

impl Value for F80 {
    fn get(bytes: &[u8]) -> F80 {
        let mut raw = [0; 16];
        raw.copy_from_slice(bytes);
        F80(raw)
    }
    fn put(self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.0);
    }
    fn sum(self, other: F80) -> F80 {
        x87!("faddp st(1), st", self, other)
    }
    fn prod(self, other: F80) -> F80 {
        x87!("fmulp st(1), st", self, other)
    }
    fn truth(self) -> bool {
        self != ZERO
    }
    fn logical(yes: bool) -> F80 {
        if yes { ONE } else { ZERO }
    }
}

impl Real for F80 {
    const INFINITY: F80 = of(0x7fff);
    fn diff(self, other: F80) -> F80 {
        // a + (-b) is a - b, exactly and in every rounding mode; and fsubp has two readings,
        // by dialect of the assembler.
        let mut negative = other;
        negative.0[9] ^= 0x80;
        self.sum(negative)
    }
    fn is_infinite(self) -> bool {
        let magnitude = [self.0[8], self.0[9] & 0x7f];
        magnitude == [0xff, 0x7f] && self.0[..8] == [0, 0, 0, 0, 0, 0, 0, 0x80]
    }
    fn with_sign_of(mut self, other: F80) -> F80 {
        self.0[9] = self.0[9] & 0x7f | other.0[9] & 0x80;
        self
    }
}
