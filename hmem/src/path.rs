//! By which path another process or device reaches memory, and why by no better one.
//!
//! The paths are tried in the order of [`Path`], which is from the fewest copies to the most; each
//! that is refused leaves its errno.

use crate::error::Error;
use crate::kind::Caps;
use crate::registry;
use crate::span::Span;

/// Why a dma-buf is not handed to a device: an errno, and words.
pub type Refused = (i32, String);

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

/// There is no device to hand a dma-buf to.
pub fn no_device(_: Path) -> Result<(), Refused> {
    Err((libc::ENODEV, "no device here takes one".into()))
}

/// Whether dma-bufs of this memory are exported, for a device that takes them.
pub fn any_device(span: Span) -> impl FnMut(Path) -> Result<(), Refused> {
    move |path| {
        let memory = registry::of(span.kind());
        let exported = match span.can(Caps::DMABUF) {
            true => memory.export_dmabuf(span.addr() as usize, span.len(), path == Path::DmabufPcie),
            false => Err(Error::UNSUPPORTED),
        };
        exported.map(drop).map_err(|e| (e.errno(), e.to_string()))
    }
}

/// Finds the path to `span`. `dmabuf`: whether a device here takes one of it by [`Path::DmabufPcie`] or
/// [`Path::Dmabuf`].
pub fn find(span: Span, mut dmabuf: impl FnMut(Path) -> Result<(), Refused>) -> Found {
    let mut found = Found { path: Path::Cpu, refused: [0; Path::COUNT], why: String::new() };
    if span.can(Caps::CPU | Caps::CMA) {
        return found;
    }
    found.refused[Path::Cpu as usize] = libc::EFAULT;
    let (memory, addr) = (registry::of(span.kind()), span.addr() as usize);
    for path in [Path::DmabufPcie, Path::Dmabuf, Path::PeerMap] {
        let outcome = match path {
            Path::PeerMap => {
                let exported = memory.export_ipc(addr, span.len().max(1), usize::MAX);
                exported.map(drop).map_err(|e| (e.errno(), e.to_string()))
            }
            _ => dmabuf(path),
        };
        match outcome {
            Ok(()) => {
                found.path = path;
                return found;
            }
            Err((errno, why)) => {
                found.refused[path as usize] = errno;
                let sep = if found.why.is_empty() { "" } else { "; " };
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
        let host = find(Span::leak(8), no_device);
        assert_eq!((host.path, host.refused, host.why.as_str()), (Path::Cpu, [0; Path::COUNT], ""));
        let fake = crate::fake::alloc(8);
        let found = find(fake.span(), no_device);
        assert_eq!(found.path, Path::Staged);
        let none = (libc::ENODEV, libc::EOPNOTSUPP);
        assert_eq!(found.refused, [libc::EFAULT, none.0, none.0, none.1, 0]);
        assert!(found.why.contains("no device here takes one"), "{}", found.why);
    }
}
