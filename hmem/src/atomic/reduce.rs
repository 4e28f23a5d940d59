//! Reductions: an operation of fi_atomic(3) on memory that nothing else changes meanwhile.

use super::{AtomicOp, Class, Datatype, NotApplied, next, valid};
use crate::copy::{read, write};
use crate::span::Span;
use crate::value::{Complex, Value};

/// Bytes that are reduced at a time: a whole number of elements of any datatype.
const PIECE: usize = 4096;
/// Up to so many take no more room than that.
const FEW: usize = 64;

/// Whether `op` reduces elements of this datatype.
pub fn reduces(op: AtomicOp, datatype: Datatype) -> bool {
    let one_by_one = matches!(
        op,
        AtomicOp::Min
            | AtomicOp::Max
            | AtomicOp::Sum
            | AtomicOp::Prod
            | AtomicOp::Lor
            | AtomicOp::Land
            | AtomicOp::Bor
            | AtomicOp::Band
            | AtomicOp::Lxor
            | AtomicOp::Bxor
    );
    one_by_one && valid(op, datatype, Class::Base)
}

/// Reduces each element of `from` into that of `into`, which has as many bytes, of any kind of memory.
/// Nothing is touched if the answer is [`NotApplied::Unsupported`].
pub fn reduce(into: Span, op: AtomicOp, datatype: Datatype, from: Span) -> Result<(), NotApplied> {
    if into.len() != from.len() || into.len() % datatype.size() != 0 || !reduces(op, datatype) {
        return Err(NotApplied::Unsupported);
    }
    let combine = match datatype {
        Datatype::Int8 => combine::<i8>,
        Datatype::Uint8 => combine::<u8>,
        Datatype::Int16 => combine::<i16>,
        Datatype::Uint16 => combine::<u16>,
        Datatype::Int32 => combine::<i32>,
        Datatype::Uint32 => combine::<u32>,
        Datatype::Int64 => combine::<i64>,
        Datatype::Uint64 => combine::<u64>,
        Datatype::Float => combine::<f32>,
        Datatype::Double => combine::<f64>,
        Datatype::FloatComplex => combine::<Complex<f32>>,
        Datatype::DoubleComplex => combine::<Complex<f64>>,
        #[cfg(target_arch = "x86_64")]
        Datatype::LongDouble => combine::<crate::long_double::F80>,
        #[cfg(target_arch = "x86_64")]
        Datatype::LongDoubleComplex => combine::<Complex<crate::long_double::F80>>,
        #[cfg(not(target_arch = "x86_64"))]
        Datatype::LongDouble | Datatype::LongDoubleComplex => return Err(NotApplied::Unsupported),
    };
    if into.len() <= FEW {
        in_pieces::<FEW>(into, from, |a, b| combine(op, a, b))
    } else {
        in_pieces::<PIECE>(into, from, |a, b| combine(op, a, b))
    }
}

/// By way of the stack, `N` bytes at a time.
fn in_pieces<const N: usize>(
    into: Span,
    from: Span,
    combine: impl Fn(&mut [u8], &[u8]),
) -> Result<(), NotApplied> {
    let (mut a, mut b) = ([0; N], [0; N]);
    for at in (0..into.len()).step_by(N) {
        let len = N.min(into.len() - at);
        let (a, b) = (&mut a[..len], &mut b[..len]);
        if read(&[into], at, a) != len || read(&[from], at, b) != len {
            return Err(NotApplied::Fault);
        }
        combine(a, b);
        if write(&[into], at, a) != len {
            return Err(NotApplied::Fault);
        }
    }
    Ok(())
}

/// Of each operation a loop of its own.
fn combine<V: Value>(op: AtomicOp, into: &mut [u8], from: &[u8]) {
    match op {
        AtomicOp::Sum => each(into, from, V::sum),
        AtomicOp::Prod => each(into, from, V::prod),
        AtomicOp::Min => each(into, from, |o: V, a| if o > a { a } else { o }),
        AtomicOp::Max => each(into, from, |o: V, a| if o < a { a } else { o }),
        op => each(into, from, |o: V, a| next(op, o, a, a).unwrap_or(o)),
    }
}

#[inline]
fn each<V: Value>(into: &mut [u8], from: &[u8], f: impl Fn(V, V) -> V) {
    let size = size_of::<V>();
    for (into, from) in into.chunks_exact_mut(size).zip(from.chunks_exact(size)) {
        f(V::get(into), V::get(from)).put(into);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPS: [AtomicOp; 10] = [
        AtomicOp::Min,
        AtomicOp::Max,
        AtomicOp::Sum,
        AtomicOp::Prod,
        AtomicOp::Lor,
        AtomicOp::Land,
        AtomicOp::Bor,
        AtomicOp::Band,
        AtomicOp::Lxor,
        AtomicOp::Bxor,
    ];

    /// A reduction is what an atomic does that nothing else interferes with, for each operation and datatype
    /// that there is, and over the end of a piece.
    #[test]
    fn a_reduction_is_an_atomic_of_each_element() {
        for datatype in (0..64).filter_map(Datatype::from_code) {
            for op in OPS {
                let len = PIECE + 2 * datatype.size();
                let bytes =
                    |seed: usize| -> Vec<u8> { (0..len).map(|i| (i * 7 + seed * 31) as u8 & 0x3f).collect() };
                let spans = [Span::leak(len), Span::leak(len), Span::leak(len)];
                let [reduced, by_atomic, from] = spans;
                for (span, seed) in [(reduced, 1), (by_atomic, 1), (from, 2)] {
                    assert_eq!(write(&[span], 0, &bytes(seed)), len);
                }
                let outcome = reduce(reduced, op, datatype, from);
                assert_eq!(outcome.is_ok(), valid(op, datatype, Class::Base), "{op:?} {datatype:?}");
                if outcome.is_err() {
                    continue;
                }
                super::super::apply(&[by_atomic], op, datatype, &bytes(2), &[], None).unwrap();
                let (mut a, mut b) = (vec![0; len], vec![0; len]);
                read(&[reduced], 0, &mut a);
                read(&[by_atomic], 0, &mut b);
                assert!(a == b, "{op:?} {datatype:?}");
            }
        }
    }

    #[test]
    fn what_reduces_nothing_is_refused() {
        let span = Span::leak(16);
        for (op, other) in
            [(AtomicOp::AtomicRead, span), (AtomicOp::Cswap, span), (AtomicOp::Sum, Span::leak(8))]
        {
            assert_eq!(reduce(span, op, Datatype::Int64, other), Err(NotApplied::Unsupported));
        }
        assert_eq!(reduce(span, AtomicOp::Bor, Datatype::Double, span), Err(NotApplied::Unsupported));
    }
}
