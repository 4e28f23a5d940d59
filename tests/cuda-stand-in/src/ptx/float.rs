//! Half precision.

/// Exact.
pub(super) fn from_half(bits: u16) -> f32 {
    let sign = u32::from(bits >> 15) << 31;
    let (exponent, fraction) = (u32::from(bits >> 10 & 31), u32::from(bits & 0x3ff));
    let magnitude = match (exponent, fraction) {
        (0, f) => (f as f32 * (-24f32).exp2()).to_bits(),
        (31, 0) => 0x7f80_0000,
        (31, _) => 0x7fff_ffff,
        (e, f) => (e + 112) << 23 | f << 13,
    };
    f32::from_bits(sign | magnitude)
}

/// To the nearest, ties to even.
pub(super) fn to_half(v: f32) -> u16 {
    let bits = v.to_bits();
    let (sign, magnitude) = ((bits >> 16 & 0x8000) as u16, bits & 0x7fff_ffff);
    if magnitude > 0x7f80_0000 {
        return 0x7fff;
    }
    // From 65520 on it rounds to infinity.
    if magnitude >= 0x477f_f000 {
        return sign | 0x7c00;
    }
    if magnitude < 0x3880_0000 {
        // Subnormal: in units of 2^-24, which f32's own rounding to an integer does.
        let units = f32::from_bits(magnitude) as f64 * 24f64.exp2();
        return sign | units.round_ties_even() as u16;
    }
    let rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    sign | ((rounded >> 13) - (112 << 10)) as u16
}
