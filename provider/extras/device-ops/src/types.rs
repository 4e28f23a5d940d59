//! Elements of reductions, and operations on them.

/// What the elements of a buffer are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "their names say it")]
pub enum Type {
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    /// IEEE 754's binary16.
    F16,
    /// The upper half of an F32.
    BF16,
    F32,
    F64,
    ComplexF32,
    ComplexF64,
    /// One byte; any value but 0 is true.
    Bool,
    /// MPI_FLOAT_INT: F32 and I32.
    FloatInt,
    /// MPI_DOUBLE_INT: F64 and I32, of 16 bytes with a gap at the end.
    DoubleInt,
    /// MPI_LONG_INT: I64 and I32, of 16 bytes with a gap at the end.
    LongInt,
    /// MPI_2INT: two I32.
    TwoInt,
    /// MPI_SHORT_INT: I16 and I32, of 8 bytes with a gap between them.
    ShortInt,
    /// MPI_2REAL: two F32.
    TwoFloat,
    /// MPI_2DOUBLE_PRECISION: two F64.
    TwoDouble,
}

/// What is done with two elements, as MPI defines it. In [`crate::reduce()`], `a` is MPI's `invec` and `b`
/// its `inoutvec`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// a + b; integers wrap.
    Sum,
    /// a * b; integers wrap. Of complex numbers as C has it, infinities included (C, Annex G).
    Prod,
    /// a < b ? a : b
    Min,
    /// a > b ? a : b
    Max,
    /// a && b
    Land,
    /// a || b
    Lor,
    /// !a != !b
    Lxor,
    /// a & b
    Band,
    /// a | b
    Bor,
    /// a ^ b
    Bxor,
    /// The pair of the smaller value; of equal ones, that of the smaller index. Gaps are not written.
    Minloc,
    /// The pair of the larger value; of equal ones, that of the smaller index. Gaps are not written.
    Maxloc,
    /// a
    Replace,
    /// b
    NoOp,
}

/// One number in an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Lane {
    Signed(u32),
    Unsigned(u32),
    F16,
    BF16,
    F32,
    F64,
}

impl Lane {
    pub(crate) fn bytes(self) -> u32 {
        match self {
            Lane::Signed(n) | Lane::Unsigned(n) => n,
            Lane::F16 | Lane::BF16 => 2,
            Lane::F32 => 4,
            Lane::F64 => 8,
        }
    }
}

impl Type {
    /// All of them.
    pub const ALL: [Type; 22] = [
        Type::I8,
        Type::I16,
        Type::I32,
        Type::I64,
        Type::U8,
        Type::U16,
        Type::U32,
        Type::U64,
        Type::F16,
        Type::BF16,
        Type::F32,
        Type::F64,
        Type::ComplexF32,
        Type::ComplexF64,
        Type::Bool,
        Type::FloatInt,
        Type::DoubleInt,
        Type::LongInt,
        Type::TwoInt,
        Type::ShortInt,
        Type::TwoFloat,
        Type::TwoDouble,
    ];

    /// Bytes from one element to the next.
    pub fn extent(self) -> u64 {
        match self {
            Type::I8 | Type::U8 | Type::Bool => 1,
            Type::I16 | Type::U16 | Type::F16 | Type::BF16 => 2,
            Type::I32 | Type::U32 | Type::F32 => 4,
            Type::I64 | Type::U64 | Type::F64 | Type::ComplexF32 => 8,
            Type::FloatInt | Type::TwoInt | Type::ShortInt | Type::TwoFloat => 8,
            Type::ComplexF64 | Type::DoubleInt | Type::LongInt | Type::TwoDouble => 16,
        }
    }

    /// Whether it is a value and an index.
    pub fn is_pair(self) -> bool {
        self.lanes().len() == 2 && !matches!(self, Type::ComplexF32 | Type::ComplexF64)
    }

    /// Whether there are bytes in an element that belong to no number.
    pub fn has_gap(self) -> bool {
        matches!(self, Type::DoubleInt | Type::LongInt | Type::ShortInt)
    }

    /// Its numbers, and where they are.
    pub(crate) fn lanes(self) -> &'static [(u32, Lane)] {
        match self {
            Type::I8 => &[(0, Lane::Signed(1))],
            Type::I16 => &[(0, Lane::Signed(2))],
            Type::I32 => &[(0, Lane::Signed(4))],
            Type::I64 => &[(0, Lane::Signed(8))],
            Type::U8 | Type::Bool => &[(0, Lane::Unsigned(1))],
            Type::U16 => &[(0, Lane::Unsigned(2))],
            Type::U32 => &[(0, Lane::Unsigned(4))],
            Type::U64 => &[(0, Lane::Unsigned(8))],
            Type::F16 => &[(0, Lane::F16)],
            Type::BF16 => &[(0, Lane::BF16)],
            Type::F32 => &[(0, Lane::F32)],
            Type::F64 => &[(0, Lane::F64)],
            Type::ComplexF32 | Type::TwoFloat => &[(0, Lane::F32), (4, Lane::F32)],
            Type::ComplexF64 | Type::TwoDouble => &[(0, Lane::F64), (8, Lane::F64)],
            Type::FloatInt => &[(0, Lane::F32), (4, Lane::Signed(4))],
            Type::DoubleInt => &[(0, Lane::F64), (8, Lane::Signed(4))],
            Type::LongInt => &[(0, Lane::Signed(8)), (8, Lane::Signed(4))],
            Type::TwoInt => &[(0, Lane::Signed(4)), (4, Lane::Signed(4))],
            Type::ShortInt => &[(0, Lane::Signed(2)), (4, Lane::Signed(4))],
        }
    }
}

impl Op {
    /// All of them.
    pub const ALL: [Op; 14] = [
        Op::Sum,
        Op::Prod,
        Op::Min,
        Op::Max,
        Op::Land,
        Op::Lor,
        Op::Lxor,
        Op::Band,
        Op::Bor,
        Op::Bxor,
        Op::Minloc,
        Op::Maxloc,
        Op::Replace,
        Op::NoOp,
    ];

    /// Whether MPI defines it for elements of that type (MPI-4.1, 6.9.2 and 6.9.4).
    pub fn takes(self, ty: Type) -> bool {
        let integer = matches!(ty.lanes(), [(_, Lane::Signed(_) | Lane::Unsigned(_))]) && ty != Type::Bool;
        let complex = matches!(ty, Type::ComplexF32 | Type::ComplexF64);
        let real = ty.lanes().len() == 1 && !integer && ty != Type::Bool;
        match self {
            Op::Sum | Op::Prod => integer || real || complex,
            Op::Min | Op::Max => integer || real,
            Op::Land | Op::Lor | Op::Lxor => integer || ty == Type::Bool,
            Op::Band | Op::Bor | Op::Bxor => integer,
            Op::Minloc | Op::Maxloc => ty.is_pair(),
            Op::Replace | Op::NoOp => true,
        }
    }
}
