//! The words of operations: places in registered memory, fences, and what a peer can execute.

/// The number of registered memory ([`crate::memory::Targets`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TargetId(pub u32);

/// A place in registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Which memory.
    pub target: TargetId,
    /// Bytes from its first one.
    pub offset: u64,
}

impl Place {
    /// The place so many bytes behind.
    pub fn plus(self, bytes: u64) -> Place {
        Place { offset: self.offset.wrapping_add(bytes), ..self }
    }
}

bitflags::bitflags! {
    /// What a fence orders. An executor may order more.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Fence: u32 {
        /// Reads that follow.
        const READ = 1 << 0;
        /// Writes that precede.
        const WRITE = 1 << 1;
        /// Made by the CPU.
        const FROM_CPU = 1 << 2;
        /// Made by the adapter, or whatever moves data into the device's memory.
        const FROM_HCA = 1 << 3;
        /// Of system memory.
        const MEM_SYS = 1 << 4;
        /// Of the peer device's memory.
        const MEM_PEER = 1 << 5;
    }

    /// Which operations a peer can execute: the bit of each is its number.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Caps: u32 {
        /// [`crate::Op::Fence`].
        const FENCE = 1 << 0;
        /// [`crate::Op::Store64`].
        const STORE_QWORD = 1 << 2;
        /// [`crate::Op::Copy`].
        const COPY_BLOCK = 1 << 3;
        /// [`crate::Op::Store32`].
        const STORE_DWORD = 1 << 4;
        /// [`crate::Op::Add32`].
        const ADD_DWORD = 1 << 5;
        /// [`crate::Until::And`].
        const POLL_AND_DWORD = 1 << 12;
        /// [`crate::Until::Nor`].
        const POLL_NOR_DWORD = 1 << 13;
        /// [`crate::Until::Geq`].
        const POLL_GEQ_DWORD = 1 << 14;
    }
}

impl Fence {
    /// What precedes in program order is visible to the whole system before what follows.
    pub const RELEASE: Fence =
        Fence::WRITE.union(Fence::FROM_CPU).union(Fence::MEM_SYS).union(Fence::MEM_PEER);
    /// What was written before a poll was satisfied is read by what follows.
    pub const ACQUIRE: Fence = Fence::READ
        .union(Fence::FROM_CPU)
        .union(Fence::FROM_HCA)
        .union(Fence::MEM_SYS)
        .union(Fence::MEM_PEER);
}
