//! What fi_atomic(3) does to a piece of memory.
//!
//! What an operation does follows libfabric's `prov/util/src/util_atomic.c`, from which shm takes it.

mod reduce;
mod types;

use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

use crate::copy::{read, write};
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64"))]
use crate::guard::Cell;
use crate::guard::{self, Fault, Guard};
use crate::kind::Caps;
use crate::span::{Span, total};
use crate::value::{Complex, Value};

pub use reduce::{reduce, reduces};
pub use types::{AtomicOp, Class, Datatype, valid};

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
/// `operand` is empty for [`AtomicOp::AtomicRead`], `compare` unless the operation compares. Nothing is
/// touched if the answer is [`NotApplied::Unsupported`]; elements before the one that could not be accessed
/// have been updated if it is [`NotApplied::Fault`].
///
/// An element of up to 8 bytes in memory of [`Caps::CPU`], aligned to its size, is updated by one
/// sequentially consistent atomic of the CPU: whole for any thread of any process; of memory that may vanish,
/// where [`guard`] is a handler. All others (wider, misaligned, lying across two spans, in device memory) are
/// read, changed and written: only a lock of the caller's keeps two of those apart.
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
        while let [first, others @ ..] = rest {
            if at < first.len() {
                break;
            }
            at -= first.len();
            rest = others;
        }
        let pick = |from: &[u8]| match from.get(off..off + size) {
            Some(bytes) => V::get(bytes),
            None => V::logical(false),
        };
        let (a, c) = (pick(operand), pick(compare));
        let here = rest.first().and_then(|s| s.part(at, size));
        let was = match here.and_then(|s| at_once::<V>(s, op, a, c)) {
            Some(was) => was?,
            None => in_steps::<V>(rest, at, op, a, c, old.is_some())?,
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
    if !cell.can(Caps::CPU) || cell.addr() % size_of::<V>() as u64 != 0 {
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
            // SAFETY: `Span`'s invariant makes the cell valid for the reads and writes of this operation, or
            // there is no way to find out whether it is; it is as long as `V` and so as `$bits`, and was
            // found to be aligned to that. Other accesses to it meanwhile are atomic, or race by themselves.
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

/// An atomic operation on a cell that may not be there.
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
            // SAFETY: if the cell is mapped, it may be accessed by `Span`'s invariant; it was found to be
            // aligned.
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
fn in_steps<V: Value>(
    dst: &[Span],
    at: usize,
    op: AtomicOp,
    operand: V,
    compare: V,
    fetches: bool,
) -> Result<V, Fault> {
    // Where the kernel copies, so are elements that the CPU would update at once: one at a time.
    static LOCK: Mutex<()> = Mutex::new(());
    let one_at_a_time = dst.iter().any(|s| s.may_vanish()) && guard::current() == Guard::Call;
    let _lock = one_at_a_time.then(|| LOCK.lock().unwrap_or_else(PoisonError::into_inner));
    let mut bytes = [0; 32];
    let bytes = &mut bytes[..size_of::<V>()];
    // A write that fetches nothing does not ask what was there: of a device's memory that is one copy less.
    let blind = op == AtomicOp::AtomicWrite && !fetches;
    if !blind && read(dst, at, bytes) < bytes.len() {
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
