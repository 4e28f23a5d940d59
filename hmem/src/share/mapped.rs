//! Memory of another process, mapped.

use super::file::File;

/// Memory of another process, mapped here until it is dropped.
#[derive(Debug)]
pub struct Mapped {
    /// First byte.
    pub(crate) at: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// Dropping it unmaps the memory.
    pub(crate) backing: Backing,
}

/// What a mapping goes by.
pub(crate) enum Backing {
    /// Nothing: it is this process's own memory.
    Own,
    /// A file, mapped for the CPU.
    File(File),
    /// A runtime's mapping.
    Runtime(#[allow(dead_code, reason = "it is there to be dropped")] Box<dyn std::any::Any + Send + Sync>),
}

impl std::fmt::Debug for Backing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Backing::Own => "own",
            Backing::File(_) => "file",
            Backing::Runtime(_) => "runtime",
        })
    }
}

impl From<File> for Mapped {
    fn from(file: File) -> Mapped {
        Mapped { at: file.at() as u64, len: file.len() as u64, backing: Backing::File(file) }
    }
}
