//! Memory that a file is read to: the host's, a GPU's, or a window that a device publishes.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::path::Path;
use std::str::FromStr;

use hmem::{Kind, Span};
use p2pmem::{Buffer, Orchestrator, Request, Rules, peer};

use super::cuda;
use crate::fabric::Error;

/// Where memory is to be.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    Host,
    Cuda(i32),
    /// A publisher's, by its name or one of its device's.
    Publisher(String),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        let number = text.strip_prefix("cuda").map(|rest| rest.strip_prefix(':').unwrap_or(rest));
        match number {
            _ if text == "host" => Ok(Place::Host),
            Some("") => Ok(Place::Cuda(0)),
            Some(number) => {
                number.parse().map(Place::Cuda).map_err(|_| "a GPU is cuda, cuda:0, cuda:1, ...".to_string())
            }
            None if text.is_empty() => Err("it is host, cuda, or a publisher of `strait topo`".into()),
            None => Ok(Place::Publisher(text.into())),
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Host => f.write_str("host"),
            Place::Cuda(n) => write!(f, "cuda:{n}"),
            Place::Publisher(name) => f.write_str(name),
        }
    }
}

/// What keeps it.
enum Keep {
    Host(Layout),
    Cuda(cuda::Memory),
    /// Freed on drop.
    Window(#[allow(dead_code)] Buffer),
}

pub struct Memory {
    addr: usize,
    len: usize,
    keep: Keep,
}

const PAGE: usize = 4096;

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Failed(error.to_string())
}

impl Memory {
    pub fn new(place: &Place, sysfs: &Path, len: u64) -> Result<Memory, Error> {
        let none =
            || failed(format!("{len} bytes of {place} memory are not to be had: --size asks for fewer"));
        let len = usize::try_from(len).map_err(|_| none())?;
        match place {
            Place::Host => {
                let layout = Layout::from_size_align(len.max(1), PAGE).map_err(|_| none())?;
                // SAFETY: the size is not 0.
                let at = unsafe { alloc_zeroed(layout) };
                if at.is_null() {
                    return Err(none());
                }
                Ok(Memory { addr: at.expose_provenance(), len, keep: Keep::Host(layout) })
            }
            Place::Cuda(device) => {
                let memory = cuda::Memory::new(*device, len);
                let memory = memory.map_err(|e| failed(format!("{e}; --size asks for fewer bytes")))?;
                hmem::registry::find_runtimes();
                Ok(Memory { addr: memory.addr(), len, keep: Keep::Cuda(memory) })
            }
            Place::Publisher(name) => {
                let all = Orchestrator::of_host(sysfs, Rules::default(), 0).map_err(failed)?;
                let publisher = all.client(name).map_err(failed)?.name().to_owned();
                all.add_rule(&format!("pin publisher={publisher}")).map_err(failed)?;
                let buffer =
                    all.allocate(&Request { len: len as u64, ..Request::default() }).map_err(failed)?;
                let addr = buffer.map().map_err(failed)?[0].addr();
                Ok(Memory { addr, len, keep: Keep::Window(buffer) })
            }
        }
    }

    pub fn addr(&self) -> usize {
        self.addr
    }

    pub fn len(&self) -> usize {
        self.len
    }

    fn span(&self, len: usize) -> Span {
        let kind = if let Keep::Cuda(_) = self.keep { Kind::Cuda } else { Kind::System };
        // SAFETY: memory of this, which is longer, and stays as long.
        let span = unsafe { Span::new(self.addr, len.min(self.len), kind) };
        if peer::is_window(self.addr, len.max(1)) { span.for_peers() } else { span }
    }

    /// Has it begin with these bytes.
    pub fn put(&self, bytes: &[u8]) -> Result<(), Error> {
        match hmem::write(&[self.span(bytes.len())], 0, bytes) == bytes.len() {
            true => Ok(()),
            false => Err(failed("the memory cannot be written: its device may be gone")),
        }
    }

    /// What it begins with.
    pub fn get(&self, len: usize) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; len];
        match hmem::read(&[self.span(len)], 0, &mut bytes) == len {
            true => Ok(bytes),
            false => Err(failed("the memory cannot be read: its device may be gone")),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match &self.keep {
            // SAFETY: allocated so, and used no more.
            Keep::Host(layout) => unsafe {
                dealloc(std::ptr::with_exposed_provenance_mut(self.addr), *layout);
            },
            Keep::Cuda(memory) => memory.free(),
            Keep::Window(_) => {}
        }
    }
}
