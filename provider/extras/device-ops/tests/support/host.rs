//! What the host makes of a reduction: the reference for kernels.

use device_ops::{Op, Type};

/// A number that C's operators are defined for.
trait Number: Copy + PartialEq + PartialOrd {
    fn read(at: &[u8]) -> Self;
    fn write(self, to: &mut [u8]);
    fn sum(self, b: Self) -> Self;
    fn prod(self, b: Self) -> Self;
    fn land(self, b: Self) -> Self;
    fn lor(self, b: Self) -> Self;
    fn lxor(self, b: Self) -> Self;
    fn band(self, b: Self) -> Self;
    fn bor(self, b: Self) -> Self;
    fn bxor(self, b: Self) -> Self;
}

macro_rules! integers {
    ($($ty:ty),*) => {$(
        impl Number for $ty {
            fn read(at: &[u8]) -> $ty {
                <$ty>::from_ne_bytes(at[..size_of::<$ty>()].try_into().unwrap())
            }
            fn write(self, to: &mut [u8]) {
                to[..size_of::<$ty>()].copy_from_slice(&self.to_ne_bytes());
            }
            fn sum(self, b: $ty) -> $ty { self.wrapping_add(b) }
            fn prod(self, b: $ty) -> $ty { self.wrapping_mul(b) }
            fn land(self, b: $ty) -> $ty { (self != 0 && b != 0).into() }
            fn lor(self, b: $ty) -> $ty { (self != 0 || b != 0).into() }
            fn lxor(self, b: $ty) -> $ty { ((self != 0) != (b != 0)).into() }
            fn band(self, b: $ty) -> $ty { self & b }
            fn bor(self, b: $ty) -> $ty { self | b }
            fn bxor(self, b: $ty) -> $ty { self ^ b }
        }
    )*};
}
integers!(i8, i16, i32, i64, u8, u16, u32, u64);

macro_rules! floats {
    ($($ty:ty, $bits:ty, $from:expr, $to:expr;)*) => {$(
        impl Number for $ty {
            fn read(at: &[u8]) -> $ty {
                $from(<$bits>::from_ne_bytes(at[..size_of::<$bits>()].try_into().unwrap()))
            }
            fn write(self, to: &mut [u8]) {
                to[..size_of::<$bits>()].copy_from_slice(&$to(self).to_ne_bytes());
            }
            fn sum(self, b: $ty) -> $ty { self + b }
            fn prod(self, b: $ty) -> $ty { self * b }
            fn land(self, _: $ty) -> $ty { unreachable!() }
            fn lor(self, _: $ty) -> $ty { unreachable!() }
            fn lxor(self, _: $ty) -> $ty { unreachable!() }
            fn band(self, _: $ty) -> $ty { unreachable!() }
            fn bor(self, _: $ty) -> $ty { unreachable!() }
            fn bxor(self, _: $ty) -> $ty { unreachable!() }
        }
    )*};
}
floats! {
    f32, u32, f32::from_bits, f32::to_bits;
    f64, u64, f64::from_bits, f64::to_bits;
    Half, u16, Half::of, Half::bits;
    Brain, u16, Brain::of, Brain::bits;
}

/// IEEE 754's binary16, as its value.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
struct Half(f64);

impl Half {
    fn of(bits: u16) -> Half {
        let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 0x3ff));
        let magnitude = match exponent {
            0 => fraction * 2f64.powi(-24),
            31 if fraction == 0.0 => f64::INFINITY,
            31 => f64::NAN,
            e => (1024.0 + fraction) * 2f64.powi(e - 25),
        };
        Half(if bits >> 15 == 1 { -magnitude } else { magnitude })
    }

    /// The nearest number that has 11 bits and an exponent from -14 on.
    fn bits(self) -> u16 {
        let sign = if self.0.is_sign_negative() { 0x8000 } else { 0 };
        let v = self.0.abs();
        if v.is_nan() {
            return 0x7fff;
        }
        let exponent = (v.to_bits() >> 52) as i32 - 1023;
        let step = 2f64.powi(exponent.max(-14) - 10);
        let units = (v / step).round_ties_even();
        if units * step >= 65520.0 {
            return sign | 0x7c00;
        }
        // Units from 1024 on carry into the exponent.
        sign | (units as u16 + (((exponent.max(-14) + 14) as u16) << 10))
    }
}

/// The upper half of an f32, as its value.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
struct Brain(f64);

impl Brain {
    fn of(bits: u16) -> Brain {
        Brain(f32::from_bits(u32::from(bits) << 16).into())
    }

    fn bits(self) -> u16 {
        let sign = if self.0.is_sign_negative() { 0x8000 } else { 0 };
        let v = self.0.abs();
        if v.is_nan() {
            return 0x7fff;
        }
        let exponent = ((v.to_bits() >> 52) as i32 - 1023).max(-126);
        let step = 2f64.powi(exponent - 7);
        let units = (v / step).round_ties_even();
        if units * step >= 2f64.powi(128) {
            return sign | 0x7f80;
        }
        sign | (units as u16 + (((exponent + 126) as u16) << 7))
    }
}

macro_rules! arithmetic {
    ($($ty:ident),*) => {$(
        impl std::ops::Add for $ty {
            type Output = $ty;
            fn add(self, b: $ty) -> $ty { $ty(self.0 + b.0) }
        }
        impl std::ops::Mul for $ty {
            type Output = $ty;
            fn mul(self, b: $ty) -> $ty { $ty(self.0 * b.0) }
        }
    )*};
}
arithmetic!(Half, Brain);

fn scalar<N: Number>(op: Op, a: &[u8], b: &[u8], to: &mut [u8]) {
    let (x, y) = (N::read(a), N::read(b));
    match op {
        Op::Sum => x.sum(y).write(to),
        Op::Prod => x.prod(y).write(to),
        // The bits as they are, those of a NaN too.
        Op::Min => to.copy_from_slice(if x < y { a } else { b }),
        Op::Max => to.copy_from_slice(if x > y { a } else { b }),
        Op::Land => x.land(y).write(to),
        Op::Lor => x.lor(y).write(to),
        Op::Lxor => x.lxor(y).write(to),
        Op::Band => x.band(y).write(to),
        Op::Bor => x.bor(y).write(to),
        Op::Bxor => x.bxor(y).write(to),
        Op::Replace => to.copy_from_slice(a),
        Op::NoOp => to.copy_from_slice(b),
        Op::Minloc | Op::Maxloc => unreachable!(),
    }
}

/// A value, and an index at `at`.
fn pair<V: Number, I: Number>(op: Op, at: usize, a: &[u8], b: &[u8], to: &mut [u8]) {
    let (value, index) = (size_of_bits::<V>(), size_of_bits::<I>());
    let (x, y) = (V::read(a), V::read(b));
    let (i, j) = (I::read(&a[at..]), I::read(&b[at..]));
    let first = match op {
        Op::Minloc => x < y,
        Op::Maxloc => x > y,
        _ => op == Op::Replace,
    };
    let equal = x == y && matches!(op, Op::Minloc | Op::Maxloc);
    let of_value = if first { a } else { b };
    let of_index = if first || equal && i < j { a } else { b };
    to[..value].copy_from_slice(&of_value[..value]);
    to[at..at + index].copy_from_slice(&of_index[at..at + index]);
}

fn size_of_bits<N>() -> usize {
    size_of::<N>()
}

macro_rules! complex {
    ($name:ident, $ty:ty) => {
        fn $name(op: Op, a: &[u8], b: &[u8], to: &mut [u8]) {
            let half = size_of::<$ty>();
            let read = |at: &[u8]| (<$ty as Number>::read(at), <$ty as Number>::read(&at[half..]));
            let ((a, b), (c, d)) = (read(a), read(b));
            let (x, y) = match op {
                Op::Sum => (a + c, b + d),
                Op::Replace => (a, b),
                Op::NoOp => (c, d),
                _ => {
                    let product = |a: $ty, b: $ty, c: $ty, d: $ty| (a * c - b * d, a * d + b * c);
                    // Annex G of C.
                    let unit = |v: $ty| (if v.is_infinite() { 1.0 } else { 0.0 as $ty }).copysign(v);
                    let some = |v: $ty| if v.is_nan() { (0.0 as $ty).copysign(v) } else { v };
                    let plain = product(a, b, c, d);
                    let (mut a, mut b, mut c, mut d, mut again) = (a, b, c, d, false);
                    let inner = [a * c, b * d, a * d, b * c].iter().any(|v| v.is_infinite());
                    if a.is_infinite() || b.is_infinite() {
                        (a, b, c, d, again) = (unit(a), unit(b), some(c), some(d), true);
                    }
                    if c.is_infinite() || d.is_infinite() {
                        (a, b, c, d, again) = (some(a), some(b), unit(c), unit(d), true);
                    }
                    if !again && inner {
                        (a, b, c, d, again) = (some(a), some(b), some(c), some(d), true);
                    }
                    if plain.0.is_nan() && plain.1.is_nan() && again {
                        let (x, y) = product(a, b, c, d);
                        (<$ty>::INFINITY * x, <$ty>::INFINITY * y)
                    } else {
                        plain
                    }
                }
            };
            x.write(to);
            y.write(&mut to[half..]);
        }
    };
}
complex!(single, f32);
complex!(double, f64);

/// `a op b`, for every element; bytes of gaps in `to` stay.
pub fn reduce(op: Op, ty: Type, a: &[u8], b: &[u8], to: &mut [u8]) {
    let n = ty.extent() as usize;
    for ((a, b), to) in a.chunks(n).zip(b.chunks(n)).zip(to.chunks_mut(n)) {
        match ty {
            Type::I8 => scalar::<i8>(op, a, b, to),
            Type::I16 => scalar::<i16>(op, a, b, to),
            Type::I32 => scalar::<i32>(op, a, b, to),
            Type::I64 => scalar::<i64>(op, a, b, to),
            Type::U8 | Type::Bool => scalar::<u8>(op, a, b, to),
            Type::U16 => scalar::<u16>(op, a, b, to),
            Type::U32 => scalar::<u32>(op, a, b, to),
            Type::U64 => scalar::<u64>(op, a, b, to),
            Type::F16 => scalar::<Half>(op, a, b, to),
            Type::BF16 => scalar::<Brain>(op, a, b, to),
            Type::F32 => scalar::<f32>(op, a, b, to),
            Type::F64 => scalar::<f64>(op, a, b, to),
            Type::ComplexF32 => single(op, a, b, to),
            Type::ComplexF64 => double(op, a, b, to),
            Type::FloatInt => pair::<f32, i32>(op, 4, a, b, to),
            Type::DoubleInt => pair::<f64, i32>(op, 8, a, b, to),
            Type::LongInt => pair::<i64, i32>(op, 8, a, b, to),
            Type::TwoInt => pair::<i32, i32>(op, 4, a, b, to),
            Type::ShortInt => pair::<i16, i32>(op, 4, a, b, to),
            Type::TwoFloat => pair::<f32, f32>(op, 4, a, b, to),
            Type::TwoDouble => pair::<f64, f64>(op, 8, a, b, to),
        }
    }
}

/// Where the NaNs of an element's numbers may be: width of its floating point numbers, if it has any.
fn float_width(ty: Type) -> Option<usize> {
    match ty {
        Type::F16 | Type::BF16 => Some(2),
        Type::F32 | Type::ComplexF32 => Some(4),
        Type::F64 | Type::ComplexF64 => Some(8),
        _ => None,
    }
}

fn is_nan(ty: Type, at: &[u8]) -> bool {
    match ty {
        Type::F16 => Half::read(at).0.is_nan(),
        Type::BF16 => Brain::read(at).0.is_nan(),
        Type::F32 | Type::ComplexF32 => f32::read(at).is_nan(),
        _ => f64::read(at).is_nan(),
    }
}

/// The first element that is not the same; one NaN is as good as another.
pub fn difference(op: Op, ty: Type, found: &[u8], wanted: &[u8]) -> Option<usize> {
    let n = ty.extent() as usize;
    let any_nan = matches!(op, Op::Sum | Op::Prod);
    (0..wanted.len() / n).find(|i| {
        let (x, y) = (&found[i * n..(i + 1) * n], &wanted[i * n..(i + 1) * n]);
        match float_width(ty).filter(|_| any_nan) {
            Some(w) => x.chunks(w).zip(y.chunks(w)).any(|(x, y)| x != y && !(is_nan(ty, x) && is_nan(ty, y))),
            None => x != y,
        }
    })
}

/// Bytes of elements: random ones, among them the numbers at which something may go wrong.
pub fn elements(ty: Type, count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = move || {
        // xorshift64*
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    };
    let mut all = Vec::with_capacity(count * ty.extent() as usize);
    for _ in 0..count {
        let mut element = vec![0u8; ty.extent() as usize];
        element.fill_with(|| next() as u8);
        let special = next();
        if special % 3 == 0 {
            let width = float_width(ty).unwrap_or(element.len().min(8));
            for number in element.chunks_mut(width) {
                number.copy_from_slice(&pick(ty, next(), width));
            }
        } else if special % 3 == 1 {
            // Small numbers, so that some are equal.
            let pick = next();
            element.fill(0);
            element[0] = pick as u8 % 4;
            if ty.is_pair() {
                element[ty.extent() as usize / 2] = (pick >> 8) as u8 % 3;
            }
        }
        all.extend(element);
    }
    all
}

/// A number of its type that is special.
fn pick(ty: Type, random: u64, width: usize) -> Vec<u8> {
    let bits = match ty {
        Type::F16 => [0x7c00, 0xfc00, 0x7e00, 1, 0x8000, 0x3c00, 0x7bff, 0x0400][random as usize % 8],
        Type::BF16 => [0x7f80, 0xff80, 0x7fc0, 1, 0x8000, 0x3f80, 0x7f7f, 0x0080][random as usize % 8],
        Type::F32 | Type::ComplexF32 => u64::from(
            [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-45, -0.0, 1.0, f32::MAX, 1e-38]
                [random as usize % 8]
                .to_bits(),
        ),
        Type::F64 | Type::ComplexF64 => {
            [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 5e-324, -0.0, 1.0, f64::MAX, 1e-308]
                [random as usize % 8]
                .to_bits()
        }
        _ => [0, u64::MAX, 1 << (8 * width - 1), (1 << (8 * width - 1)) - 1][random as usize % 4],
    };
    bits.to_le_bytes()[..width].to_vec()
}
