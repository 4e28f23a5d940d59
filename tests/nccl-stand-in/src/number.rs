//! Reductions of NCCL's types, one number at a time.

/// Bytes of an element of that `ncclDataType_t`.
pub(crate) fn size(ty: i32) -> Option<usize> {
    Some(match ty {
        0 | 1 => 1,
        6 | 9 => 2,
        2 | 3 | 7 => 4,
        4 | 5 | 8 => 8,
        _ => return None,
    })
}

macro_rules! integer {
    ($ty:ty, $op:expr, $a:expr, $b:expr) => {{
        let a = <$ty>::from_ne_bytes((*$a).try_into().unwrap());
        let b = <$ty>::from_ne_bytes((*$b).try_into().unwrap());
        let v = match $op {
            0 => a.wrapping_add(b),
            1 => a.wrapping_mul(b),
            2 => a.max(b),
            _ => a.min(b),
        };
        $a.copy_from_slice(&v.to_ne_bytes());
    }};
}

fn float(op: i32, a: f64, b: f64) -> f64 {
    match op {
        0 => a + b,
        1 => a * b,
        2 => a.max(b),
        _ => a.min(b),
    }
}

fn from_half(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 0x3ff));
    let v = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        e => (1024.0 + fraction) * 2f64.powi(e - 25),
    };
    if bits >> 15 == 1 { -v } else { v }
}

/// Rounds to a number with so many bits behind the first, the least exponent being that.
fn round(v: f64, bits: i32, least: i32, infinity: u16) -> u16 {
    let sign = if v.is_sign_negative() { 0x8000 } else { 0 };
    if v.is_nan() {
        return infinity | 1;
    }
    let v = v.abs();
    let exponent = ((v.to_bits() >> 52) as i32 - 1023).max(least);
    let units = (v / 2f64.powi(exponent - bits)).round_ties_even();
    let all = units + f64::from(exponent - least) * 2f64.powi(bits);
    sign | if all >= f64::from(infinity) { infinity } else { all as u16 }
}

/// `a = a op b`.
fn one(ty: i32, op: i32, a: &mut [u8], b: &[u8]) {
    match ty {
        0 => integer!(i8, op, a, b),
        1 => integer!(u8, op, a, b),
        2 => integer!(i32, op, a, b),
        3 => integer!(u32, op, a, b),
        4 => integer!(i64, op, a, b),
        5 => integer!(u64, op, a, b),
        7 => {
            let [x, y] = [&*a, b].map(|v| f64::from(f32::from_ne_bytes(v.try_into().unwrap())));
            a.copy_from_slice(&(float(op, x, y) as f32).to_ne_bytes());
        }
        8 => {
            let [x, y] = [&*a, b].map(|v| f64::from_ne_bytes(v.try_into().unwrap()));
            a.copy_from_slice(&float(op, x, y).to_ne_bytes());
        }
        6 => {
            let [x, y] = [&*a, b].map(|v| from_half(u16::from_ne_bytes(v.try_into().unwrap())));
            a.copy_from_slice(&round(float(op, x, y), 10, -14, 0x7c00).to_ne_bytes());
        }
        _ => {
            let wide = |v: &[u8]| f32::from_bits(u32::from(u16::from_ne_bytes(v.try_into().unwrap())) << 16);
            let [x, y] = [&*a, b].map(|v| f64::from(wide(v)));
            a.copy_from_slice(&round(float(op, x, y), 7, -126, 0x7f80).to_ne_bytes());
        }
    }
}

/// `a[i] = a[i] op b[i]`.
pub(crate) fn reduce(ty: i32, op: i32, a: &mut [u8], b: &[u8]) {
    let n = size(ty).unwrap_or(1);
    a.chunks_exact_mut(n).zip(b.chunks_exact(n)).for_each(|(a, b)| one(ty, op, a, b));
}
