//! Predefined datatypes and operations that devices compute with.

use core::ffi::{CStr, c_int};
use std::sync::OnceLock;

use device_ops::{Op, Type};

use crate::abi::{Family, Handle};
use crate::library::{Library, object, pmpi};

/// The name of Open MPI's object; the handles of MPICH's mpi.h and of the ABI of MPI 5 (its mpi_abi.h), 0
/// where it is not used of that.
type Named<T> = (&'static CStr, Handle, Handle, T);

const TYPES: &[Named<Type>] = &[
    (c"ompi_mpi_signed_char", 0x4c00_0118, 0x244, Type::I8),
    (c"ompi_mpi_unsigned_char", 0x4c00_0102, 0x245, Type::U8),
    (c"ompi_mpi_short", 0x4c00_0203, 0x208, Type::I16),
    (c"ompi_mpi_unsigned_short", 0x4c00_0204, 0x20c, Type::U16),
    (c"ompi_mpi_int", 0x4c00_0405, 0x209, Type::I32),
    (c"ompi_mpi_unsigned", 0x4c00_0406, 0x20d, Type::U32),
    (c"ompi_mpi_long", 0x4c00_0807, 0x20a, Type::I64),
    (c"ompi_mpi_unsigned_long", 0x4c00_0808, 0x20e, Type::U64),
    (c"ompi_mpi_long_long_int", 0x4c00_0809, 0x20b, Type::I64),
    (c"ompi_mpi_unsigned_long_long", 0x4c00_0819, 0x20f, Type::U64),
    (c"ompi_mpi_float", 0x4c00_040a, 0x210, Type::F32),
    (c"ompi_mpi_double", 0x4c00_080b, 0x214, Type::F64),
    (c"ompi_mpi_int8_t", 0x4c00_0137, 0x240, Type::I8),
    (c"ompi_mpi_int16_t", 0x4c00_0238, 0x248, Type::I16),
    (c"ompi_mpi_int32_t", 0x4c00_0439, 0x250, Type::I32),
    (c"ompi_mpi_int64_t", 0x4c00_083a, 0x258, Type::I64),
    (c"ompi_mpi_uint8_t", 0x4c00_013b, 0x241, Type::U8),
    (c"ompi_mpi_uint16_t", 0x4c00_023c, 0x249, Type::U16),
    (c"ompi_mpi_uint32_t", 0x4c00_043d, 0x251, Type::U32),
    (c"ompi_mpi_uint64_t", 0x4c00_083e, 0x259, Type::U64),
    (c"ompi_mpi_c_float_complex", 0x4c00_0840, 0x212, Type::ComplexF32),
    (c"ompi_mpi_c_double_complex", 0x4c00_1041, 0x216, Type::ComplexF64),
    (c"ompi_mpi_float_int", 0x8c00_0000, 0, Type::FloatInt),
    (c"ompi_mpi_double_int", 0x8c00_0001, 0, Type::DoubleInt),
    (c"ompi_mpi_long_int", 0x8c00_0002, 0, Type::LongInt),
    (c"ompi_mpi_short_int", 0x8c00_0003, 0, Type::ShortInt),
    (c"ompi_mpi_2int", 0x4c00_0816, 0, Type::TwoInt),
];
/// Of Fortran, under Open MPI. How long they are is the compiler's choice.
const FORTRAN: &[Named<Type>] = &[
    (c"ompi_mpi_integer", 0, 0, Type::I32),
    (c"ompi_mpi_integer4", 0, 0, Type::I32),
    (c"ompi_mpi_integer8", 0, 0, Type::I64),
    (c"ompi_mpi_real", 0, 0, Type::F32),
    (c"ompi_mpi_real4", 0, 0, Type::F32),
    (c"ompi_mpi_real8", 0, 0, Type::F64),
    (c"ompi_mpi_dblprec", 0, 0, Type::F64),
    (c"ompi_mpi_cplex", 0, 0, Type::ComplexF32),
    (c"ompi_mpi_dblcplex", 0, 0, Type::ComplexF64),
];
const OPS: &[Named<Op>] = &[
    (c"ompi_mpi_op_max", 0x5800_0001, 0x23, Op::Max),
    (c"ompi_mpi_op_min", 0x5800_0002, 0x22, Op::Min),
    (c"ompi_mpi_op_sum", 0x5800_0003, 0x21, Op::Sum),
    (c"ompi_mpi_op_prod", 0x5800_0004, 0x24, Op::Prod),
    (c"ompi_mpi_op_land", 0x5800_0005, 0x30, Op::Land),
    (c"ompi_mpi_op_band", 0x5800_0006, 0x28, Op::Band),
    (c"ompi_mpi_op_lor", 0x5800_0007, 0x31, Op::Lor),
    (c"ompi_mpi_op_bor", 0x5800_0008, 0x29, Op::Bor),
    (c"ompi_mpi_op_lxor", 0x5800_0009, 0x32, Op::Lxor),
    (c"ompi_mpi_op_bxor", 0x5800_000a, 0x2a, Op::Bxor),
    (c"ompi_mpi_op_minloc", 0x5800_000b, 0, Op::Minloc),
    (c"ompi_mpi_op_maxloc", 0x5800_000c, 0, Op::Maxloc),
];

type Table<T> = OnceLock<Vec<(Handle, T)>>;

fn find<T: Copy>(library: &Library, table: &Table<T>, all: &[Named<T>], handle: Handle) -> Option<T> {
    let known = table.get_or_init(|| {
        let of = |(name, mpich, standard, of): &Named<T>| match library.abi.family {
            Family::OpenMpi => (object(library, name), *of),
            Family::Mpich => (*mpich, *of),
            Family::Standard => (*standard, *of),
        };
        all.iter().map(of).collect()
    });
    known.iter().find(|(known, _)| *known == handle && handle != 0).map(|(_, of)| *of)
}

/// What a datatype's elements are, where it is one of these.
pub(super) fn type_of(library: &Library, handle: Handle) -> Option<Type> {
    static TABLE: Table<Type> = OnceLock::new();
    find(library, &TABLE, TYPES, handle)
}

/// Which operation it is, where it is one of these.
pub(super) fn op_of(library: &Library, handle: Handle) -> Option<Op> {
    static TABLE: Table<Op> = OnceLock::new();
    find(library, &TABLE, OPS, handle)
}

/// The same of Fortran's, if they are as long.
fn fortran_type_of(library: &Library, handle: Handle) -> Option<Type> {
    static TABLE: Table<Type> = OnceLock::new();
    let ty = find(library, &TABLE, FORTRAN, handle)?;
    let mut size: c_int = 0;
    // SAFETY: a datatype of the MPI's, and a valid place.
    unsafe { pmpi!("Type_size", handle, &raw mut size) }.ok()?;
    (size as u64 == ty.extent()).then_some(ty)
}

/// What a kernel computes in the place of a predefined operation on a predefined datatype; `None` where it
/// would be something else, or MPI does not define it.
pub(super) fn computed(library: &Library, op: Handle, datatype: Handle) -> Option<(Op, Type)> {
    let op = op_of(library, op)?;
    let fortran = || {
        // MPI-4.1, 6.9.2: integers of Fortran are not logical.
        let is_logical = matches!(op, Op::Land | Op::Lor | Op::Lxor);
        fortran_type_of(library, datatype).filter(|_| !is_logical)
    };
    let ty = type_of(library, datatype).or_else(fortran)?;
    (op.takes(ty) && !is_other(library.abi.family, op, ty)).then_some((op, ty))
}

/// Whether the MPI computes it in another way than C's operators do. Open MPI 4.1 on x86-64 saturates sums of
/// 8 and 16 bits, and compares 64-bit numbers without a sign as if they had one: results do not depend on
/// where a buffer is.
fn is_other(family: Family, op: Op, ty: Type) -> bool {
    family == Family::OpenMpi
        && match op {
            Op::Sum => matches!(ty, Type::I8 | Type::U8 | Type::I16 | Type::U16),
            Op::Min | Op::Max => ty == Type::U64,
            _ => false,
        }
}
