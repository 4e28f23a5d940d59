//! The operations and datatypes of fi_atomic(3), and which go together.
//!
//! Codes are libfabric's own. Which pairs are offered follows libfabric's
//! `prov/util/src/util_atomic.c`, from which shm takes them.

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
}
