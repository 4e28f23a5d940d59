//! By which path another process or device reaches memory, and why by no better one.
//!
//! The paths are tried in the order of [`Path`], which is from the fewest copies to the most; each
//! that is refused leaves its errno.

use crate::error::Error;
use crate::kind::Caps;
use crate::registry;
use crate::span::Span;

/// There is no device to hand a dma-buf to.
const NO_DEVICE: Error = Error::os(libc::ENODEV);

/// A way to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Path {
    /// Host memory: the CPU, of this process or of another one.
    Cpu = 0,
    /// A dma-buf that is sure to be reached over PCIe, handed to another device.
    DmabufPcie = 1,
    /// A dma-buf, handed to another device.
    Dmabuf = 2,
    /// Mapped by another process, whose device copies.
    PeerMap = 3,
    /// Copied to host memory and on from there.
    Staged = 4,
}

impl Path {
    /// How many there are.
    pub const COUNT: usize = 5;

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Path::Cpu => "cpu",
            Path::DmabufPcie => "dma-buf over PCIe",
            Path::Dmabuf => "dma-buf",
            Path::PeerMap => "peer mapping",
            Path::Staged => "staged",
        }
    }
}

/// The answer of [`find`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The first path that was not refused.
    pub path: Path,
    /// Those tried before it: by path, an errno; 0 where there was no refusal.
    pub refused: [i32; Path::COUNT],
    /// The reasons in words; empty where the first path was taken.
    pub why: String,
}

/// Finds the path to `span`. `importers`: whether there is a device here that a dma-buf could be
/// handed to; where there is none, that is the refusal.
pub fn find(span: Span, importers: bool) -> Found {
    let mut found = Found { path: Path::Cpu, refused: [0; Path::COUNT], why: String::new() };
    if span.can(Caps::CPU | Caps::CMA) {
        return found;
    }
    found.refused[Path::Cpu as usize] = libc::EFAULT;
    let (memory, addr) = (registry::of(span.kind()), span.addr() as usize);
    for path in [Path::DmabufPcie, Path::Dmabuf, Path::PeerMap] {
        let outcome = match path {
            Path::PeerMap => memory.export_ipc(addr, span.len().max(1), usize::MAX).map(drop),
            _ if !importers => Err(NO_DEVICE),
            _ if !span.can(Caps::DMABUF) => Err(Error::UNSUPPORTED),
            _ => memory.export_dmabuf(addr, span.len(), path == Path::DmabufPcie).map(drop),
        };
        match outcome {
            Ok(()) => {
                found.path = path;
                return found;
            }
            Err(e) => {
                found.refused[path as usize] = e.errno();
                let sep = if found.why.is_empty() { "" } else { "; " };
                let why = if e == NO_DEVICE { "no device here takes one".to_owned() } else { e.to_string() };
                found.why.push_str(&format!("{sep}{}: {why}", path.name()));
            }
        }
    }
    found.path = Path::Staged;
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_memory_needs_no_path_and_a_device_without_one_is_staged() {
        let host = find(Span::leak(8), true);
        assert_eq!((host.path, host.refused, host.why.as_str()), (Path::Cpu, [0; Path::COUNT], ""));
        let fake = crate::fake::alloc(8);
        let found = find(fake.span(), false);
        assert_eq!(found.path, Path::Staged);
        let none = (libc::ENODEV, libc::EOPNOTSUPP);
        assert_eq!(found.refused, [libc::EFAULT, none.0, none.0, none.1, 0]);
        assert!(found.why.contains("no device here takes one"), "{}", found.why);
    }
}
