//! The kinds of memory, and what can be done with each.

use bitflags::bitflags;

/// What memory an address belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Kind {
    /// Ordinary host memory.
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

bitflags! {
    /// What can be done with memory. Every decision of a protocol asks for the one that it needs; which kind
    /// of memory it is matters to that kind's own functions alone.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Caps: u8 {
        /// The CPU of this process may load and store it.
        const CPU = 1;
        /// process_vm_readv(2) and process_vm_writev(2) reach it, at either end.
        const CMA = 1 << 1;
        /// The functions of its kind copy it: there are handles of its allocations for other processes, and
        /// copies that are started and run by themselves.
        const DEVICE = 1 << 2;
        /// A dma-buf may be had of it, for another device.
        const DMABUF = 1 << 3;
        /// It may not be mapped when it is accessed. Only with [`Caps::CPU`], which then takes
        /// [`crate::guard`].
        const VANISH = 1 << 4;
        /// Its owner has promised to keep it mapped, for reads and writes, for as long as it may be accessed:
        /// what cannot bear that it vanishes may access it.
        const LASTS = 1 << 5;
    }
}

impl Kind {
    /// What can be done with memory of this kind.
    pub const fn caps(self) -> Caps {
        match self {
            Kind::System => Caps::CPU.union(Caps::CMA),
            Kind::Fake => Caps::DEVICE,
            Kind::Cuda | Kind::Rocr | Kind::Ze | Kind::Client => Caps::DEVICE.union(Caps::DMABUF),
        }
    }
}
