//! Instructions.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    Bits,
    Unsigned,
    Signed,
    Float,
    Predicate,
}

/// `.u32` and the like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Type {
    pub(crate) class: Class,
    pub(crate) bits: u32,
}

impl Type {
    pub(crate) fn parse(text: &str) -> Option<Type> {
        if text == "pred" {
            return Some(Type { class: Class::Predicate, bits: 1 });
        }
        let class = match text.as_bytes().first()? {
            b'b' => Class::Bits,
            b'u' => Class::Unsigned,
            b's' => Class::Signed,
            b'f' => Class::Float,
            _ => return None,
        };
        let bits: u32 = text[1..].parse().ok()?;
        let known = matches!(bits, 16 | 32 | 64) || bits == 8 && class != Class::Float;
        known.then_some(Type { class, bits })
    }

    pub(crate) fn mask(self) -> u64 {
        if self.bits == 64 { u64::MAX } else { (1 << self.bits) - 1 }
    }

    /// The value of these bits as a signed number.
    pub(crate) fn signed(self, v: u64) -> i64 {
        let unused = 64 - self.bits;
        (v << unused) as i64 >> unused
    }
}

/// A register, by its place.
pub(crate) type Reg = usize;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Arg {
    Reg(Reg),
    Value(u64),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Special {
    Thread,
    Block,
    Threads,
    Blocks,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Rem,
    And,
    Or,
    Xor,
    Shl,
    Shr,
    Min,
    Max,
    CopySign,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Compare {
    Lt,
    Le,
    Gt,
    Ge,
    Eq,
    Ne,
}

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Parameter {
        to: Reg,
        number: usize,
    },
    Load {
        ty: Type,
        to: Vec<Reg>,
        at: Reg,
        offset: i64,
        /// It waits for what others store.
        acquires: bool,
    },
    /// `atom.global.inc.u32`: to 0 where it is as large as that.
    Increment {
        to: Reg,
        at: Reg,
        offset: i64,
        most: Arg,
    },
    Store {
        ty: Type,
        from: Vec<Reg>,
        at: Reg,
        offset: i64,
    },
    /// `red.sys.global.add`, and `atom.acq_rel.gpu.global.add`, which has what was there before.
    Add {
        ty: Type,
        to: Option<Reg>,
        from: Arg,
        at: Reg,
        offset: i64,
    },
    /// `membar.sys`, `fence.acq_rel.sys`: each load here acquires, and each store releases.
    Barrier,
    /// `bar.sync 0`: all threads of the block.
    Meet,
    /// `bar.red.or.pred`: the same, and whether any of them has it.
    MeetAny {
        to: Reg,
        from: Reg,
    },
    Move {
        to: Reg,
        from: Arg,
    },
    Read {
        to: Reg,
        from: Special,
    },
    Split {
        low: Reg,
        high: Reg,
        from: Reg,
    },
    Join {
        to: Reg,
        low: Reg,
        high: Reg,
    },
    Binary {
        what: Binary,
        ty: Type,
        to: Reg,
        a: Arg,
        b: Arg,
    },
    /// `mul.wide.u32`.
    MulWide {
        to: Reg,
        a: Arg,
        b: Arg,
    },
    Not {
        ty: Type,
        to: Reg,
        a: Arg,
    },
    Extract {
        ty: Type,
        to: Reg,
        a: Arg,
        at: Arg,
        len: Arg,
    },
    Insert {
        to: Reg,
        a: Arg,
        b: Arg,
        at: Arg,
        len: Arg,
    },
    Set {
        compare: Compare,
        ty: Type,
        to: Reg,
        a: Arg,
        b: Arg,
    },
    /// `testp`; infinite, or not a number.
    Test {
        infinite: bool,
        ty: Type,
        to: Reg,
        a: Arg,
    },
    Select {
        to: Reg,
        a: Arg,
        b: Arg,
        by: Reg,
    },
    Convert {
        to_ty: Type,
        from_ty: Type,
        to: Reg,
        a: Arg,
    },
    Branch {
        to: usize,
    },
    Return,
}

#[derive(Clone, Debug)]
pub(crate) struct Instruction {
    /// A predicate, and what it has to be.
    pub(crate) guard: Option<(Reg, bool)>,
    pub(crate) op: Op,
}

#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) name: String,
    /// Each of 64 bits.
    pub(crate) parameters: Vec<String>,
    pub(crate) code: Vec<Instruction>,
    pub(crate) registers: usize,
    /// It waits for other kernels: it is begun by itself, and whatever asks for it is not held up.
    pub(crate) waits: bool,
}
