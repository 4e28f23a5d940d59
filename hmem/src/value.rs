//! The types atomics work on, with C's arithmetic.

/// An element as it lies in memory.
pub(crate) trait Value: Copy + PartialOrd {
    /// Whether the bits are the number, so that adding them adds it.
    const INTEGER: bool = false;
    /// Reads exactly `size_of::<Self>()` bytes.
    fn get(bytes: &[u8]) -> Self;
    /// Writes exactly `size_of::<Self>()` bytes.
    fn put(self, bytes: &mut [u8]);
    fn sum(self, other: Self) -> Self;
    fn prod(self, other: Self) -> Self;
    /// What C's `if` makes of it.
    fn truth(self) -> bool;
    /// C's 0 or 1.
    fn logical(yes: bool) -> Self;
    /// Bit by bit. Integers only: `valid` refuses such an operation on all others.
    fn bitwise(self, _other: Self, _each: fn(u64, u64) -> u64) -> Self {
        self
    }
    /// What FI_CSWAP takes for equal.
    fn same(self, other: Self) -> bool {
        self == other
    }
}

/// What a complex number is made of.
pub(crate) trait Real: Value {
    const INFINITY: Self;
    fn diff(self, other: Self) -> Self;
    fn is_infinite(self) -> bool;
    fn with_sign_of(self, other: Self) -> Self;
}

macro_rules! bytes {
    () => {
        #[inline]
        fn get(bytes: &[u8]) -> Self {
            let mut raw = [0; size_of::<Self>()];
            raw.copy_from_slice(bytes);
            Self::from_ne_bytes(raw)
        }
        #[inline]
        fn put(self, bytes: &mut [u8]) {
            bytes.copy_from_slice(&self.to_ne_bytes());
        }
    };
}

macro_rules! integer {
    ($($t:ty)*) => {$(
        impl Value for $t {
            const INTEGER: bool = true;
            bytes!();
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn prod(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            fn truth(self) -> bool {
                self != 0
            }
            fn logical(yes: bool) -> Self {
                yes.into()
            }
            fn bitwise(self, other: Self, each: fn(u64, u64) -> u64) -> Self {
                each(self as u64, other as u64) as Self
            }
        }
    )*};
}
integer!(i8 u8 i16 u16 i32 u32 i64 u64);

macro_rules! float {
    ($($t:ty)*) => {$(
        impl Value for $t {
            bytes!();
            fn sum(self, other: Self) -> Self {
                self + other
            }
            fn prod(self, other: Self) -> Self {
                self * other
            }
            fn truth(self) -> bool {
                self != 0.0
            }
            fn logical(yes: bool) -> Self {
                yes.into()
            }
            fn same(self, other: Self) -> bool {
                self.to_bits() == other.to_bits()
            }
        }
        impl Real for $t {
            const INFINITY: Self = <$t>::INFINITY;
            fn diff(self, other: Self) -> Self {
                self - other
            }
            fn is_infinite(self) -> bool {
                <$t>::is_infinite(self)
            }
            fn with_sign_of(self, other: Self) -> Self {
                self.copysign(other)
            }
        }
    )*};
}
float!(f32 f64);

/// C's `complex`: the real part first.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
#[repr(C)]
pub(crate) struct Complex<T> {
    re: T,
    im: T,
}

impl<T: Real> Value for Complex<T> {
    #[inline]
    fn get(bytes: &[u8]) -> Self {
        let (re, im) = bytes.split_at(size_of::<T>());
        Complex { re: T::get(re), im: T::get(im) }
    }
    #[inline]
    fn put(self, bytes: &mut [u8]) {
        let (re, im) = bytes.split_at_mut(size_of::<T>());
        self.re.put(re);
        self.im.put(im);
    }
    fn sum(self, other: Self) -> Self {
        Complex { re: self.re.sum(other.re), im: self.im.sum(other.im) }
    }
    fn prod(self, other: Self) -> Self {
        let plain = product(self, other);
        if nan(plain.re) && nan(plain.im) { rescued(self, other).unwrap_or(plain) } else { plain }
    }
    fn truth(self) -> bool {
        self.re.truth() || self.im.truth()
    }
    fn logical(yes: bool) -> Self {
        Complex { re: T::logical(yes), im: T::logical(false) }
    }
    fn same(self, other: Self) -> bool {
        if size_of::<Self>() <= 8 { self.re.same(other.re) && self.im.same(other.im) } else { self == other }
    }
}

fn nan<T: Real>(v: T) -> bool {
    v.partial_cmp(&v).is_none()
}

fn product<T: Real>(x: Complex<T>, y: Complex<T>) -> Complex<T> {
    Complex { re: x.re.prod(y.re).diff(x.im.prod(y.im)), im: x.re.prod(y.im).sum(x.im.prod(y.re)) }
}

/// C11 annex G: an infinite factor, or an overflow on the way, makes the product infinite, not NaN.
#[cold]
fn rescued<T: Real>(mut x: Complex<T>, mut y: Complex<T>) -> Option<Complex<T>> {
    fn each<T: Real>(v: Complex<T>, f: impl Fn(T) -> T) -> Complex<T> {
        Complex { re: f(v.re), im: f(v.im) }
    }
    let infinite = |v: Complex<T>| v.re.is_infinite() || v.im.is_infinite();
    let unit = |v: T| T::logical(v.is_infinite()).with_sign_of(v);
    let number = |v: T| {
        if nan(v) { T::logical(false).with_sign_of(v) } else { v }
    };
    let (big_x, big_y) = (infinite(x), infinite(y));
    let mut found = big_x || big_y;
    if big_x {
        (x, y) = (each(x, unit), each(y, number));
    }
    if big_y {
        (x, y) = (each(x, number), each(y, unit));
    }
    if !found {
        let terms = [x.re.prod(y.re), x.im.prod(y.im), x.re.prod(y.im), x.im.prod(y.re)];
        found = terms.into_iter().any(T::is_infinite);
        (x, y) = (each(x, number), each(y, number));
    }
    found.then(|| each(product(x, y), |v| T::INFINITY.prod(v)))
}
