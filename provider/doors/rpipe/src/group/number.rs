//! Predefined datatypes and operations of reductions, and functions of the program's.

use std::fmt;

/// A predefined operation. It is associative and commutative; a sum or product of integers wraps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Sum = 1,
    Prod,
    Min,
    Max,
    /// Bitwise, as the next two: of integers alone.
    And,
    Or,
    Xor,
}

/// Combines so many elements of two arrays into a third one, which may be the first.
type Kernel = unsafe fn(*const u8, *const u8, *mut u8, usize);

mod sealed {
    pub trait Sealed {
        const CODE: u8;
        fn kernel(operation: super::Operation) -> Option<super::Kernel>;
    }
}

use sealed::Sealed;

/// A predefined datatype: `i32`, `i64`, `u32`, `u64`, `f32`, `f64`.
pub trait Number: Copy + Sealed {}

/// How the elements of a reduction are combined.
#[derive(Debug)]
pub(crate) struct Elements<'a> {
    /// Bytes of one.
    pub(crate) size: usize,
    /// What members have to agree on: the type and the operation.
    pub(crate) code: u8,
    pub(crate) how: How<'a>,
}

pub(crate) enum How<'a> {
    Predefined(Kernel),
    /// Combines so many elements of the first array into the second one.
    Function(&'a mut dyn FnMut(*const u8, *mut u8, usize)),
}

impl fmt::Debug for How<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if matches!(self, How::Predefined(_)) { "Predefined" } else { "Function" })
    }
}

/// The code of a function of the program's.
pub(crate) const FUNCTION: u8 = 0xff;

impl Elements<'_> {
    /// Combines `count` elements of `a` and `b` into `to`, which may be `a`.
    ///
    /// # Safety
    /// So many elements are readable, and writable at `to`; it overlaps neither array, unless it is `a`.
    pub(super) unsafe fn combine(&mut self, a: *const u8, b: *const u8, to: *mut u8, count: usize) {
        match &mut self.how {
            // SAFETY: the caller's promise.
            How::Predefined(kernel) => unsafe { kernel(a, b, to, count) },
            How::Function(function) => {
                if !std::ptr::eq(a, to) {
                    // SAFETY: as above.
                    unsafe { std::ptr::copy_nonoverlapping(a, to, count * self.size) };
                }
                function(b, to, count);
            }
        }
    }
}

/// A predefined operation on elements of a type; `None`: it has no such operation.
pub(crate) fn predefined<T: Number>(operation: Operation) -> Option<Elements<'static>> {
    let how = How::Predefined(T::kernel(operation)?);
    Some(Elements { size: size_of::<T>(), code: T::CODE << 4 | operation as u8, how })
}

/// # Safety
/// `n` elements are readable at `a` and `b`, and writable at `to`.
#[inline(always)]
unsafe fn each<T: Copy>(a: *const u8, b: *const u8, to: *mut u8, n: usize, combine: impl Fn(T, T) -> T) {
    let (a, b, to) = (a.cast::<T>(), b.cast::<T>(), to.cast::<T>());
    for at in 0..n {
        // SAFETY: the caller's promise. A peer may write to the memory of its pipe meanwhile: each element is
        // loaded once, and any bytes are a number.
        unsafe {
            to.add(at).write_unaligned(combine(a.add(at).read_unaligned(), b.add(at).read_unaligned()))
        };
    }
}

macro_rules! kernels {
    ($type:ty, $operation:expr, $($name:ident => $combine:expr),* ; $($else:tt)*) => {
        match $operation {
            // SAFETY: those that call a kernel promise what `each` asks for.
            $(Operation::$name => Some(|a, b, to, n| unsafe { each::<$type>(a, b, to, n, $combine) }),)*
            $($else)*
        }
    };
}

macro_rules! numbers {
    ($($type:ty, $code:literal, $operation:ident => $kernels:expr);* $(;)?) => {$(
        impl Sealed for $type {
            const CODE: u8 = $code;
            fn kernel($operation: Operation) -> Option<Kernel> {
                $kernels
            }
        }
        impl Number for $type {}
    )*};
}

macro_rules! integer {
    ($type:ty, $operation:expr) => {
        kernels!($type, $operation,
            Sum => <$type>::wrapping_add, Prod => <$type>::wrapping_mul, Min => <$type>::min, Max => <$type>::max,
            And => |a, b| a & b, Or => |a, b| a | b, Xor => |a, b| a ^ b;)
    };
}

macro_rules! float {
    ($type:ty, $operation:expr) => {
        kernels!($type, $operation,
            Sum => |a, b| a + b, Prod => |a, b| a * b, Min => <$type>::min, Max => <$type>::max;
            Operation::And | Operation::Or | Operation::Xor => None)
    };
}

numbers! {
    i32, 1, operation => integer!(i32, operation);
    i64, 2, operation => integer!(i64, operation);
    u32, 3, operation => integer!(u32, operation);
    u64, 4, operation => integer!(u64, operation);
    f32, 5, operation => float!(f32, operation);
    f64, 6, operation => float!(f64, operation);
}
