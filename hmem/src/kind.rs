//! The kinds of memory.

/// What memory an address belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Kind {
    /// Ordinary host memory: the CPU may load and store it, and another process may reach it with
    /// process_vm_readv(2).
    #[default]
    System = 0,
    /// Memory of [`crate::fake`], which acts like a device's.
    Fake = 1,
    /// Memory of [`crate::cuda`]: a device's, or managed.
    Cuda = 2,
    /// ROCm's device memory, [`crate::rocr`].
    Rocr = 3,
    /// Level Zero's device memory, [`crate::ze`].
    Ze = 4,
    /// Memory that a program has registered a client for: [`crate::client`].
    Client = 5,
}

impl Kind {
    /// Whether the CPU, and so process_vm_readv(2) in another process, may follow the address.
    #[inline]
    pub fn is_system(self) -> bool {
        matches!(self, Kind::System)
    }
}
