//! NCCL's types and operations.

use crate::types::{Op, Type};

/// NCCL's codes for a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element {
    /// `ncclDataType_t`.
    pub(super) ty: i32,
    /// `ncclRedOp_t`.
    pub(super) op: i32,
    /// How many of NCCL's elements one is.
    pub(super) each: usize,
    /// Bytes of one.
    pub(super) bytes: usize,
}

impl Element {
    /// Bytes of one.
    pub fn extent(&self) -> usize {
        self.bytes
    }
}

/// `ncclUint8`, for what is moved as it is.
pub(super) const BYTE: i32 = 1;
/// The first version with `ncclBfloat16`: 2.10, as that counts versions from 2.9 on.
const WITH_BFLOAT16: i32 = 21000;

/// How NCCL of that version reduces elements of that type; `None` where it does not. Of NaNs it may make
/// another minimum or maximum than [`crate::reduce()`].
pub fn element(op: Op, ty: Type, version: i32) -> Option<Element> {
    let op_code = match op {
        Op::Sum => 0,
        Op::Prod => 1,
        Op::Max => 2,
        Op::Min => 3,
        _ => return None,
    };
    let (code, each) = match ty {
        Type::I8 => (0, 1),
        Type::U8 => (BYTE, 1),
        Type::I32 => (2, 1),
        Type::U32 => (3, 1),
        Type::I64 => (4, 1),
        Type::U64 => (5, 1),
        Type::F16 => (6, 1),
        Type::F32 => (7, 1),
        Type::F64 => (8, 1),
        Type::BF16 if version >= WITH_BFLOAT16 => (9, 1),
        // The sum of complex numbers is that of their parts.
        Type::ComplexF32 if op == Op::Sum => (7, 2),
        Type::ComplexF64 if op == Op::Sum => (8, 2),
        _ => return None,
    };
    Some(Element { ty: code, op: op_code, each, bytes: ty.extent() as usize })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn types_and_operations_are_nccls() {
        assert_eq!(element(Op::Min, Type::F64, 20800), Some(Element { ty: 8, op: 3, each: 1, bytes: 8 }));
        assert_eq!(element(Op::Sum, Type::BF16, 20800), None);
        assert_eq!(element(Op::Sum, Type::BF16, 22005).map(|e| e.ty), Some(9));
        assert_eq!(element(Op::Sum, Type::ComplexF64, 22005).map(|e| (e.ty, e.each)), Some((8, 2)));
        for (op, ty) in [(Op::Prod, Type::ComplexF32), (Op::Band, Type::I32), (Op::Sum, Type::I16)] {
            assert_eq!(element(op, ty, 22005), None);
        }
    }
}
