//! A row of the table of calls that have buffers: which arguments they are, and what the call does to them.

use crate::counts::Counts;
use crate::posted::Plan;

/// What a call does to a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dir {
    /// It reads.
    In,
    /// It writes all of the data that the arguments describe.
    Out,
    /// It writes some or all of them, or reads them too.
    InOut,
    /// It reads where this process is the root, and writes elsewhere.
    Bcast,
}

/// How many processes a count, or an array, is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peers {
    /// Those that the communicator communicates with.
    All,
    /// Those of this process's group.
    Local,
    /// The neighbours that are received from.
    Sources,
    /// The neighbours that are sent to.
    Targets,
}

/// Which arguments say how many elements there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// One element.
    Single,
    /// So many.
    One(u8),
    /// So many, an MPI_Aint in all interfaces.
    Bytes(u8),
    /// So many MPI_Count, of which there are so many groups.
    Partitions(u8, u8),
    /// So many for each of those.
    Times(u8, Peers),
    /// The same; in place, where only this process's are written elsewhere.
    OwnOrTimes(u8),
    /// An array: what is in place for all, and elsewhere this process's.
    OwnOrSum(u8),
    /// The sum of an array.
    Sum(u8),
    /// An array of counts, and one of displacements.
    Each(u8, Places, Peers),
}

/// An array of displacements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Places {
    /// In extents of the datatype.
    Extents(u8),
    /// In bytes, as counts are.
    Bytes(u8),
    /// In bytes, MPI_Aint in all interfaces.
    Addresses(u8),
}

/// Which arguments say what the elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// A datatype.
    One(u8),
    /// An array of datatypes.
    Each(u8),
    /// Bytes.
    Byte,
}

/// In which processes a buffer counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// In all.
    All,
    /// In the root.
    Root,
}

/// One buffer.
#[derive(Clone, Copy, Debug)]
pub struct Buf {
    /// The argument.
    pub at: u8,
    /// What is done to it.
    pub dir: Dir,
    /// How many.
    pub count: Count,
    /// Of what.
    pub datatype: Type,
    /// Where it counts.
    pub whose: Whose,
    /// The argument which is MPI_IN_PLACE where this buffer has the input too.
    pub partner: Option<u8>,
    /// Whether the MPI hands it to its transport without a copy, where the datatype has no gaps.
    pub direct: bool,
    /// Whether an MPI computes with it. Intel MPI copies the gaps of operands to results.
    pub computes: bool,
}

impl Buf {
    /// Of elements of the datatype that an argument names.
    pub const fn new(dir: Dir, at: u8, count: Count, datatype: u8) -> Buf {
        let datatype = Type::One(datatype);
        let (whose, partner) = (Whose::All, None);
        Buf { at, dir, count, datatype, whose, partner, direct: false, computes: false }
    }

    /// One of bytes.
    pub const fn bytes(self) -> Buf {
        Buf { datatype: Type::Byte, ..self }
    }

    /// One with a datatype for each process.
    pub const fn types(self) -> Buf {
        let datatype = match self.datatype {
            Type::One(at) => Type::Each(at),
            other => other,
        };
        Buf { datatype, ..self }
    }

    /// One that counts in the root.
    pub const fn at_root(self) -> Buf {
        Buf { whose: Whose::Root, ..self }
    }

    /// One that the MPI hands to its transport.
    pub const fn direct(self) -> Buf {
        Buf { direct: true, ..self }
    }

    /// One that the MPI computes with.
    pub const fn computed(self) -> Buf {
        Buf { computes: true, ..self }
    }

    /// One that has the input too where that argument is MPI_IN_PLACE.
    pub const fn with(self, partner: u8) -> Buf {
        Buf { partner: Some(partner), ..self }
    }
}

/// What the call is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// The communicator of that argument.
    Comm(u8),
    /// A root, and a communicator.
    Root(u8, u8),
    /// A window, and a rank of it.
    Window(u8, u8),
    /// A file.
    File(u8),
    /// A message, which no communicator is named with.
    Nothing,
}

impl On {
    /// How the call of that name on it is posted.
    pub const fn plan(self, name: &str) -> Option<Plan> {
        match self {
            On::Root(root, comm) => Plan::of(name, Some(root), comm),
            On::Comm(comm) => Plan::of(name, None, comm),
            _ => None,
        }
    }
}

/// When the buffers are the program's again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// When the call returns.
    Returns,
    /// When the request of that argument completes.
    Request(u8),
    /// The same, each time that it was started.
    Persistent(u8),
    /// When the window's epoch ends.
    Epoch,
    /// By the call that ends a split collective.
    Split,
}

/// A call.
#[derive(Debug)]
pub struct Row {
    /// Its name in C.
    pub name: &'static str,
    /// Its buffers.
    pub bufs: &'static [Buf],
    /// What it is on.
    pub on: On,
    /// When it ends.
    pub ends: Ends,
    /// How it is posted to the ranks of its communicator, so that NCCL may do it.
    pub plan: Option<Plan>,
    /// What came of it.
    pub counts: Counts,
}
