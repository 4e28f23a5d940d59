//! What a publisher is to the rest.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::address::Address;
use crate::error::Error;

/// The unit in which memory is given out.
pub const PAGE: u64 = 4096;

/// `len` in whole pages; `None` if it is 0 or too much.
pub fn pages(len: u64) -> Option<u64> {
    len.checked_next_multiple_of(PAGE).filter(|n| (1..=1 << 48).contains(n))
}

/// What sort of publisher it is. Rules name it `kind:NAME`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Memory behind a device's BARs that its driver has published, in sysfs.
    Sysfs,
    /// Memory that a program gives, of a kind that `hmem` knows.
    Memory(hmem::Kind),
    /// A file that a program gives: a dma-buf, or a memfd.
    File,
    /// A BAR of a device that VFIO has.
    Bar,
    /// The host's own.
    Host,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Sysfs => "sysfs",
            Kind::File => "file",
            Kind::Bar => "vfio",
            Kind::Host => "host",
            Kind::Memory(hmem::Kind::Cuda) => "cuda",
            Kind::Memory(hmem::Kind::Rocr) => "rocr",
            Kind::Memory(hmem::Kind::Ze) => "ze",
            Kind::Memory(hmem::Kind::Client) => "client",
            Kind::Memory(hmem::Kind::Fake) => "fake",
            Kind::Memory(_) => "memory",
        }
    }

    /// All names that rules may use.
    pub const NAMES: [&str; 10] =
        ["sysfs", "file", "vfio", "host", "cuda", "rocr", "ze", "client", "fake", "memory"];
}

/// Where a piece of memory is to be had.
#[derive(Clone, Debug)]
pub enum Source {
    /// In a file that can be mapped, from that byte on. A process that has the descriptor reaches all of the
    /// file.
    File { fd: Arc<OwnedFd>, offset: u64 },
    /// In sysfs: each mapping of this file is an allocation of its own, which the kernel makes.
    Window(Arc<OwnedFd>),
    /// In a BAR that VFIO has: the device's descriptor, by which all of the device is controlled, and where
    /// in it; in `Err`, why the BAR cannot be mapped.
    Bar { fd: Arc<OwnedFd>, place: Result<u64, String> },
    /// At that address of this process.
    Here(usize),
    /// In an allocation of another process's GPU that its driver opens by a token, from that byte on. A
    /// process that has the token reaches all of the allocation.
    Handle { export: hmem::share::Export, offset: u64 },
}

/// Which user's process has published memory for other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    pub uid: u32,
    /// It is root, or the user that the orchestrator runs as.
    pub trusted: bool,
    /// Other users may have it too.
    pub all_users: bool,
    /// Its descriptor reaches what is published and nothing else.
    pub whole: bool,
}

impl Owner {
    /// Whether a user may have this memory; `others`: it takes memory that other users can read and write. In
    /// `Err`, why not.
    pub fn admit(&self, uid: u32, others: bool) -> Result<(), String> {
        let of = self.uid;
        if uid == of {
            return Ok(());
        }
        if !self.all_users && uid != 0 {
            return Err(format!("uid {of} has published it for its own processes"));
        }
        if !self.trusted && !others {
            return Err(format!(
                "uid {of} has published it, which can read and write it: the request takes no memory of other users"
            ));
        }
        Ok(())
    }
}

/// Something that offers memory. Its methods may be called from any thread.
pub trait Publisher: Send + Sync + fmt::Debug {
    /// What it is called; no other of an orchestrator has the name.
    fn name(&self) -> String;

    fn kind(&self) -> Kind;

    /// The PCI function that has the memory.
    fn function(&self) -> Option<Address>;

    /// Bytes in all.
    fn size(&self) -> u64;

    /// Bytes that are free.
    fn available(&self) -> u64;

    /// The longest piece that may be had at a multiple of `align`.
    fn longest(&self, align: u64) -> u64;

    /// Takes `len` bytes, whole pages, at a multiple of `align`: a number to give them back by, and where
    /// they are. In `Err`, why not.
    fn take(&self, len: u64, align: u64) -> Result<(u64, Source), String>;

    /// Gives back what was taken.
    fn give(&self, at: u64, len: u64);

    /// A dma-buf that the publisher has of what was taken at `at`, and where in it that begins; `None` if it
    /// makes none itself.
    fn dmabuf(&self, at: u64) -> Option<Result<(OwnedFd, u64), Error>> {
        let _ = at;
        None
    }

    /// Whose it is, where another process has published it.
    fn owner(&self) -> Option<Owner> {
        None
    }

    /// Whether its device is still there.
    fn is_alive(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_a_user_is_for_others_if_both_agree() {
        let owner = Owner { uid: 1000, trusted: false, all_users: false, whole: true };
        let admits = |owner: Owner, uid, others| owner.admit(uid, others).is_ok();
        let all = Owner { all_users: true, ..owner };
        let root = Owner { uid: 0, trusted: true, ..all };
        for (of, uid, others, is) in [
            (owner, 1000, false, true),
            (owner, 1001, true, false),
            (owner, 0, true, true),
            (owner, 0, false, false),
            (all, 1001, false, false),
            (all, 1001, true, true),
            (root, 1001, false, true),
            (Owner { all_users: false, ..root }, 1001, true, false),
        ] {
            assert_eq!(admits(of, uid, others), is, "{of:?} {uid} {others}");
        }
    }
}
