//! What fi_atomic(3) does to a piece of memory.
//!
//! Codes are libfabric's own. Which pairs are offered, and what they do, follows libfabric's
//! `prov/util/src/util_atomic.c`, from which shm takes both.

use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

#[cfg(all(target_arch = "x86_64", target_pointer_width = "64"))]
use crate::guard::Cell;
use crate::guard::{self, Fault, Guard};
use crate::value::{Complex, Value};
use crate::{Span, read, total, write};

macro_rules! coded {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $code:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$vdoc])* $variant = $code,)* }

        impl $name {
            /// The one libfabric gives this code; `None` if there is none, or none that is done.
            pub const fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some($name::$variant),)*
                    _ => None,
                }
            }

            /// Its code in libfabric.
            pub const fn code(self) -> u8 {
                self as u8
            }
        }
    };
}

coded! {
    /// `enum fi_datatype`, as far as shm goes: neither the 128-bit integers (14, 15) nor the short
    /// floats (16 to 19).
    Datatype {
        /// FI_INT8
        Int8 = 0,
        /// FI_UINT8
        Uint8 = 1,
        /// FI_INT16
        Int16 = 2,
        /// FI_UINT16
        Uint16 = 3,
        /// FI_INT32
        Int32 = 4,
        /// FI_UINT32
        Uint32 = 5,
        /// FI_INT64
        Int64 = 6,
        /// FI_UINT64
        Uint64 = 7,
        /// FI_FLOAT
        Float = 8,
        /// FI_DOUBLE
        Double = 9,
        /// FI_FLOAT_COMPLEX
        FloatComplex = 10,
        /// FI_DOUBLE_COMPLEX
        DoubleComplex = 11,
        /// FI_LONG_DOUBLE
        LongDouble = 12,
        /// FI_LONG_DOUBLE_COMPLEX
        LongDoubleComplex = 13,
    }
}

coded! {
    /// `enum fi_op`, as far as util_atomic.c goes: not FI_DIFF (19, which libfabric 1.x used as
    /// the end of the list).
    AtomicOp {
        /// FI_MIN
        Min = 0,
        /// FI_MAX
        Max = 1,
        /// FI_SUM
        Sum = 2,
        /// FI_PROD
        Prod = 3,
        /// FI_LOR
        Lor = 4,
        /// FI_LAND
        Land = 5,
        /// FI_BOR
        Bor = 6,
        /// FI_BAND
        Band = 7,
        /// FI_LXOR
        Lxor = 8,
        /// FI_BXOR
        Bxor = 9,
        /// FI_ATOMIC_READ
        AtomicRead = 10,
        /// FI_ATOMIC_WRITE
        AtomicWrite = 11,
        /// FI_CSWAP
        Cswap = 12,
        /// FI_CSWAP_NE
        CswapNe = 13,
        /// FI_CSWAP_LE
        CswapLe = 14,
        /// FI_CSWAP_LT
        CswapLt = 15,
        /// FI_CSWAP_GE
        CswapGe = 16,
        /// FI_CSWAP_GT
        CswapGt = 17,
        /// FI_MSWAP
        Mswap = 18,
    }
}

impl Datatype {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Datatype::Int8 | Datatype::Uint8 => 1,
            Datatype::Int16 | Datatype::Uint16 => 2,
            Datatype::Int32 | Datatype::Uint32 | Datatype::Float => 4,
            Datatype::Int64 | Datatype::Uint64 | Datatype::Double | Datatype::FloatComplex => 8,
            Datatype::DoubleComplex | Datatype::LongDouble => 16,
            Datatype::LongDoubleComplex => 32,
        }
    }
}

impl AtomicOp {
    /// Whether it compares, and so goes through `fi_compare_atomic` alone.
    pub const fn compares(self) -> bool {
        self as u8 >= AtomicOp::Cswap as u8
    }
}

/// The three families of calls in fi_atomic(3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// `fi_atomic`, `fi_inject_atomic`
    Base,
    /// `fi_fetch_atomic`
    Fetch,
    /// `fi_compare_atomic`
    Compare,
}

const INTS: u16 = 0xff;
const LONG: u16 = 0x3000;

/// Whether this operation can be done on this datatype by a call of this family.
///
/// Up to FI_FLOAT_COMPLEX that is exactly what `ofi_atomic_valid` answers in shm. The types of 16
/// bytes and more are those that util_atomic.c has where the compiler lacks atomic built-ins; shm
/// as usually built does not offer them. Long double is offered on x86-64 alone.
pub const fn valid(op: AtomicOp, datatype: Datatype, class: Class) -> bool {
    use AtomicOp::*;
    let known = if cfg!(target_arch = "x86_64") { 0x3fff } else { 0x3fff & !LONG };
    let reals = known & (0x3ff | 1 << Datatype::LongDouble as u8);
    let types = match op {
        Min | Max | CswapLe | CswapLt | CswapGe | CswapGt => reals,
        Sum | Prod | Lor | Land | Lxor | AtomicRead | AtomicWrite | Cswap | CswapNe => known,
        Bor | Band | Bxor | Mswap => INTS,
    };
    let family = match class {
        Class::Base => !op.compares() && !matches!(op, AtomicRead),
        Class::Fetch => !op.compares(),
        Class::Compare => op.compares(),
    };
    family && types >> datatype as u8 & 1 != 0
}

/// Why an operation was not applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotApplied {
    /// It is not one for this datatype, or the lengths do not fit together.
    Unsupported,
    /// The memory is not there, or not for that, or its device failed.
    Fault,
}

impl fmt::Display for NotApplied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotApplied::Unsupported => "no such atomic operation on this datatype and length",
            NotApplied::Fault => "the memory cannot be accessed",
        })
    }
}

impl std::error::Error for NotApplied {}

/// Does `op` on every element of `dst`, `operand` and `compare` holding as many: puts the values
/// from before into `old` and the new ones into `dst`.
///
/// `operand` is empty for [`AtomicOp::AtomicRead`], `compare` unless the operation compares.
/// Nothing is touched if the answer is [`NotApplied::Unsupported`]; elements before the one that could not be accessed
/// have been updated if it is [`NotApplied::Fault`].
///
/// An element of up to 8 bytes in system memory, aligned to its size, is updated by one
/// sequentially consistent atomic of the CPU: whole for any thread of any process; of memory that may vanish, where
/// [`guard`] is a handler. All others (wider, misaligned, lying across two spans, in device memory) are read, changed and written:
/// only a lock of the caller's keeps two of those apart.
///
/// As in shm, [`AtomicOp::Cswap`] compares representations in types of up to 8 bytes (so -0.0
/// differs from 0.0) and values in wider ones; all its relatives compare values.
pub fn apply(
    dst: &[Span],
    op: AtomicOp,
    datatype: Datatype,
    operand: &[u8],
    compare: &[u8],
    old: Option<&mut [u8]>,
) -> Result<(), NotApplied> {
    let class = match &old {
        _ if op.compares() => Class::Compare,
        Some(_) => Class::Fetch,
        None => Class::Base,
    };
    let len = total(dst);
    let operands = if op == AtomicOp::AtomicRead { 0 } else { len };
    let compares = if op.compares() { len } else { 0 };
    let fits = len % datatype.size() == 0
        && operand.len() == operands
        && compare.len() == compares
        && old.as_ref().is_none_or(|o| o.len() == len);
    if !fits || !valid(op, datatype, class) {
        return Err(NotApplied::Unsupported);
    }
    let run = match datatype {
        Datatype::Int8 => run::<i8>,
        Datatype::Uint8 => run::<u8>,
        Datatype::Int16 => run::<i16>,
        Datatype::Uint16 => run::<u16>,
        Datatype::Int32 => run::<i32>,
        Datatype::Uint32 => run::<u32>,
        Datatype::Int64 => run::<i64>,
        Datatype::Uint64 => run::<u64>,
        Datatype::Float => run::<f32>,
        Datatype::Double => run::<f64>,
        Datatype::FloatComplex => run::<Complex<f32>>,
        Datatype::DoubleComplex => run::<Complex<f64>>,
        #[cfg(target_arch = "x86_64")]
        Datatype::LongDouble => run::<crate::long_double::F80>,
        #[cfg(target_arch = "x86_64")]
        Datatype::LongDoubleComplex => run::<Complex<crate::long_double::F80>>,
        #[cfg(not(target_arch = "x86_64"))]
        Datatype::LongDouble | Datatype::LongDoubleComplex => return Err(NotApplied::Unsupported),
    };
    run(dst, op, operand, compare, old).map_err(|Fault| NotApplied::Fault)
}

fn run<V: Value>(
    dst: &[Span],
    op: AtomicOp,
    operand: &[u8],
    compare: &[u8],
    mut old: Option<&mut [u8]>,
) -> Result<(), Fault> {
    let size = size_of::<V>();
    let (mut rest, mut at) = (dst, 0);
    for off in (0..total(dst)).step_by(size) {
        while let [first, more @ ..] = rest {
            if at < first.len() {
                break;
            }
            at -= first.len();
            rest = more;
        }
        let pick = |from: &[u8]| match from.get(off..off + size) {
            Some(bytes) => V::get(bytes),
            None => V::logical(false),
        };
        let (a, c) = (pick(operand), pick(compare));
        let here = rest.first().and_then(|s| s.part(at, size));
        let was = match here.and_then(|s| at_once::<V>(s, op, a, c)) {
            Some(was) => was?,
            None => in_steps::<V>(rest, at, op, a, c)?,
        };
        if let Some(old) = &mut old {
            was.put(&mut old[off..off + size]);
        }
        at += size;
    }
    Ok(())
}

/// What `old` becomes; `None` if it stays.
#[inline]
fn next<V: Value>(op: AtomicOp, old: V, operand: V, compare: V) -> Option<V> {
    let (o, a) = (old.truth(), operand.truth());
    match op {
        AtomicOp::Min => (old > operand).then_some(operand),
        AtomicOp::Max => (old < operand).then_some(operand),
        AtomicOp::Sum => Some(old.sum(operand)),
        AtomicOp::Prod => Some(old.prod(operand)),
        AtomicOp::Lor => Some(V::logical(o || a)),
        AtomicOp::Land => Some(V::logical(o && a)),
        AtomicOp::Lxor => Some(V::logical(o != a)),
        AtomicOp::Bor => Some(old.bitwise(operand, |o, a| o | a)),
        AtomicOp::Band => Some(old.bitwise(operand, |o, a| o & a)),
        AtomicOp::Bxor => Some(old.bitwise(operand, |o, a| o ^ a)),
        AtomicOp::AtomicRead => None,
        AtomicOp::AtomicWrite => Some(operand),
        AtomicOp::Cswap => old.same(compare).then_some(operand),
        AtomicOp::CswapNe => (compare != old).then_some(operand),
        AtomicOp::CswapLe => (compare <= old).then_some(operand),
        AtomicOp::CswapLt => (compare < old).then_some(operand),
        AtomicOp::CswapGe => (compare >= old).then_some(operand),
        AtomicOp::CswapGt => (compare > old).then_some(operand),
        AtomicOp::Mswap => {
            let kept = old.bitwise(compare, |o, c| o & !c);
            Some(kept.bitwise(operand.bitwise(compare, |a, c| a & c), |k, a| k | a))
        }
    }
}

/// By an atomic of the CPU: the value from before, or `None` where there is no such atomic.
#[inline]
fn at_once<V: Value>(cell: Span, op: AtomicOp, operand: V, compare: V) -> Option<Result<V, Fault>> {
    if !cell.kind().is_system() || cell.addr() % size_of::<V>() as u64 != 0 {
        return None;
    }
    if cell.may_vanish() {
        #[cfg(all(target_arch = "x86_64", target_pointer_width = "64"))]
        if guard::is_by_handler() || guard::current() == Guard::Handler {
            return guarded(cell, op, operand, compare);
        }
        if guard::current() == Guard::Call {
            return None;
        }
    }
    macro_rules! with {
        ($atomic:ty, $bits:ty) => {{
            // SAFETY: `Span`'s invariant makes the cell valid for the reads and writes of this
            // operation, or there is no way to find out whether it is; it is as long as `V` and so as `$bits`, and was found to be aligned to
            // that. Whoever else touches it meanwhile does so by atomics, or races by itself.
            let cell = unsafe { <$atomic>::from_ptr(cell.as_ptr().cast()) };
            let value = |bits: $bits| V::get(&bits.to_ne_bytes());
            let bits = |value: V| {
                let mut bytes = [0; size_of::<$bits>()];
                value.put(&mut bytes);
                <$bits>::from_ne_bytes(bytes)
            };
            let was = match op {
                AtomicOp::Sum if V::INTEGER => cell.fetch_add(bits(operand), SeqCst),
                AtomicOp::Bor => cell.fetch_or(bits(operand), SeqCst),
                AtomicOp::Band => cell.fetch_and(bits(operand), SeqCst),
                AtomicOp::Bxor => cell.fetch_xor(bits(operand), SeqCst),
                AtomicOp::AtomicRead => cell.load(SeqCst),
                AtomicOp::AtomicWrite => cell.swap(bits(operand), SeqCst),
                _ => cell
                    .fetch_update(SeqCst, SeqCst, |was| next(op, value(was), operand, compare).map(bits))
                    .unwrap_or_else(|was| was),
            };
            Some(Ok(value(was)))
        }};
    }
    match size_of::<V>() {
        1 => with!(AtomicU8, u8),
        2 => with!(AtomicU16, u16),
        4 => with!(AtomicU32, u32),
        8 => with!(AtomicU64, u64),
        _ => None,
    }
}

/// Likewise, of a cell that may not be there.
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64"))]
fn guarded<V: Value>(cell: Span, op: AtomicOp, operand: V, compare: V) -> Option<Result<V, Fault>> {
    let at = cell.as_ptr();
    macro_rules! with {
        ($bits:ty) => {{
            let value = |bits: $bits| V::get(&bits.to_ne_bytes());
            let bits = |value: V| {
                let mut bytes = [0; size_of::<$bits>()];
                value.put(&mut bytes);
                <$bits>::from_ne_bytes(bytes)
            };
            // SAFETY: if the cell is mapped, it may be accessed by `Span`'s invariant; it was found to be aligned.
            let was = unsafe {
                match op {
                    AtomicOp::Sum if V::INTEGER => <$bits>::add(at, bits(operand)),
                    AtomicOp::Bor => <$bits>::or(at, bits(operand)),
                    AtomicOp::Band => <$bits>::and(at, bits(operand)),
                    AtomicOp::Bxor => <$bits>::xor(at, bits(operand)),
                    AtomicOp::AtomicRead => <$bits>::load(at),
                    AtomicOp::AtomicWrite => <$bits>::swap(at, bits(operand)),
                    _ => <$bits>::load(at).and_then(|mut was| {
                        while let Some(new) = next(op, value(was), operand, compare) {
                            let seen = <$bits>::cas(at, was, bits(new))?;
                            if seen == was {
                                break;
                            }
                            was = seen;
                        }
                        Ok(was)
                    }),
                }
            };
            Some(was.map(value))
        }};
    }
    match size_of::<V>() {
        1 => with!(u8),
        2 => with!(u16),
        4 => with!(u32),
        8 => with!(u64),
        _ => None,
    }
}

/// By reading and writing the element that begins `at` bytes into `dst`.
#[cold]
fn in_steps<V: Value>(dst: &[Span], at: usize, op: AtomicOp, operand: V, compare: V) -> Result<V, Fault> {
    // Where the kernel copies, so are elements that the CPU would update at once: one at a time.
    static LOCK: Mutex<()> = Mutex::new(());
    let one_at_a_time = dst.iter().any(|s| s.may_vanish()) && guard::current() == Guard::Call;
    let _lock = one_at_a_time.then(|| LOCK.lock().unwrap_or_else(PoisonError::into_inner));
    let mut bytes = [0; 32];
    let bytes = &mut bytes[..size_of::<V>()];
    if read(dst, at, bytes) < bytes.len() {
        return Err(Fault);
    }
    let was = V::get(bytes);
    if let Some(new) = next(op, was, operand, compare) {
        new.put(bytes);
        if write(dst, at, bytes) < bytes.len() {
            return Err(Fault);
        }
    }
    Ok(was)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_sizes() {
        for code in 0..=255 {
            assert_eq!(Datatype::from_code(code).map(Datatype::code), (code < 14).then_some(code));
            assert_eq!(AtomicOp::from_code(code).map(AtomicOp::code), (code < 19).then_some(code));
        }
        let sizes: Vec<_> = (0..14).filter_map(Datatype::from_code).map(Datatype::size).collect();
        assert_eq!(sizes, [1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 8, 16, 16, 32]);
    }

    /// As fi_query_atomic answered for shm of libfabric 1.17 and util_atomic.c of 2.6 reads.
    #[test]
    fn what_shm_offers() {
        let offered = |op, class| {
            (0..11)
                .filter(|&t| valid(op, Datatype::from_code(t).unwrap(), class))
                .fold(0u16, |m, t| m | 1 << t)
        };
        for op in (0..19).filter_map(AtomicOp::from_code) {
            let types = match op.code() {
                0 | 1 | 14..=17 => 0x3ff,
                6 | 7 | 9 | 18 => 0xff,
                _ => 0x7ff,
            };
            let swap = op.code() >= 12;
            let is = |yes: bool| if yes { types } else { 0 };
            assert_eq!(offered(op, Class::Base), is(!swap && op.code() != 10), "{op:?}");
            assert_eq!(offered(op, Class::Fetch), is(!swap), "{op:?}");
            assert_eq!(offered(op, Class::Compare), is(swap), "{op:?}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_and_touches_nothing() {
        let s = [Span::leak(6)];
        let sum = |len: usize, old: Option<&mut [u8]>| {
            apply(&s, AtomicOp::Sum, Datatype::Int16, &[1; 8][..len], &[], old)
        };
        assert_eq!(sum(5, None), Err(NotApplied::Unsupported));
        assert_eq!(sum(6, Some(&mut [0; 4])), Err(NotApplied::Unsupported));
        let by = |op, datatype| apply(&s, op, datatype, &[1; 6], &[], None);
        assert_eq!(by(AtomicOp::Sum, Datatype::Int32), Err(NotApplied::Unsupported));
        assert_eq!(by(AtomicOp::Cswap, Datatype::Int16), Err(NotApplied::Unsupported));
        assert_eq!(
            apply(&s, AtomicOp::AtomicRead, Datatype::Int16, &[], &[], None),
            Err(NotApplied::Unsupported)
        );
        let mut now = [9; 6];
        read(&s, 0, &mut now);
        assert_eq!(now, [0; 6]);
        assert_eq!(sum(6, None), Ok(()));
    }

    /// Two threads on one counter: by one atomic each, nothing gets lost.
    #[test]
    fn an_aligned_element_is_updated_at_once() {
        // Miri has other threads run after few instructions.
        let times = if cfg!(miri) { 50 } else { 20_000 };
        let s = Span::leak(16);
        let at = s.part((8 - s.addr() % 8) as usize % 8, 8).unwrap();
        let count = |op, operand: [u8; 8]| {
            for _ in 0..times {
                apply(&[at], op, Datatype::Double, &operand, &[], None).unwrap();
            }
        };
        std::thread::scope(|t| {
            t.spawn(|| count(AtomicOp::Sum, 1f64.to_ne_bytes()));
            t.spawn(|| count(AtomicOp::Sum, 2f64.to_ne_bytes()));
        });
        let mut sum = [0; 8];
        apply(&[at], AtomicOp::AtomicRead, Datatype::Double, &[], &[], Some(&mut sum)).unwrap();
        assert_eq!(f64::from_ne_bytes(sum), 3.0 * f64::from(times));
    }

    #[test]
    fn elements_may_lie_across_spans() {
        let s = Span::leak(12);
        let odd = [s.part(1, 3).unwrap(), Span::EMPTY, s.part(4, 5).unwrap()];
        write(&odd, 0, &[1, 0, 0, 0, 255, 255, 255, 255]);
        let mut old = [0; 8];
        let operand = [1, 1, 0, 0, 1, 0, 0, 0];
        apply(&odd, AtomicOp::Sum, Datatype::Uint32, &operand, &[], Some(&mut old)).unwrap();
        assert_eq!(old, [1, 0, 0, 0, 255, 255, 255, 255]);
        read(&odd, 0, &mut old);
        assert_eq!(old, [2, 1, 0, 0, 0, 0, 0, 0]);
    }
}
