//! Memory that the daemon has given, mapped.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ipc::{memfd, socket};

use super::talk::nonsense;
use crate::daemon::wire::{Descriptor, Handle, Reach};
use crate::error::Error;
use crate::peer;
use crate::publisher::{self, Mapped, Source};

/// A buffer of the daemon's, mapped. It goes back with [`super::Connection::free`], or with the connection.
#[derive(Debug)]
pub struct Remote {
    pub handle: u64,
    pub publisher: String,
    pub kind: String,
    /// How each requested device reaches it.
    pub reach: Vec<Reach>,
    pub(super) pieces: Arc<Pieces>,
}

/// Mapped memory of one buffer or of several that share it.
#[derive(Debug)]
pub(super) struct Pieces {
    mapped: Vec<Mapped>,
    /// Of a dma-buf that no processor can map: how many pieces, and why.
    unmapped: Option<(usize, String)>,
    len: u64,
}

impl Remote {
    /// Its pieces, where they are in this process; none if no processor can map them.
    pub fn pieces(&self) -> &[Mapped] {
        &self.pieces.mapped
    }

    /// The same; an error if no processor can map them.
    pub fn mapped(&self) -> Result<&[Mapped], Error> {
        match &self.pieces.unmapped {
            None => Ok(&self.pieces.mapped),
            Some((_, why)) => Err(Error::Unsupported(format!(
                "{}: its driver lets no processor map it: {why}; devices take its dma-buf",
                self.publisher
            ))),
        }
    }

    /// Bytes, of all pieces.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.pieces.len
    }

    /// In how many pieces it is.
    pub fn segments(&self) -> usize {
        self.pieces.unmapped.as_ref().map_or(self.pieces.mapped.len(), |(count, _)| *count)
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        self.mapped.iter().for_each(peer::remove);
    }
}

/// A piece as the daemon gives it.
pub(super) struct Part {
    pub from: From,
    pub offset: u64,
    pub len: u64,
}

/// What a piece is mapped by.
pub(super) enum From {
    /// Without a descriptor if the kernel has dropped it, since the process has no room for it.
    File(Option<OwnedFd>, Descriptor),
    Handle(Handle),
}

pub(super) fn map_all(parts: Vec<Part>, most: usize) -> Result<Arc<Pieces>, Error> {
    let len = parts.iter().fold(0u64, |sum, part| sum.saturating_add(part.len));
    let (count, mut pieces) = (parts.len(), Pieces { mapped: Vec::new(), unmapped: None, len });
    for (n, part) in parts.into_iter().enumerate() {
        let most = most.saturating_sub(pieces.mapped.len() + count - n - 1).max(1);
        match map(part, most)? {
            Ok(mapped) => {
                for piece in mapped {
                    peer::insert(&piece);
                    pieces.mapped.push(piece);
                }
            }
            // All pieces are of one dma-buf.
            Err(why) => pieces.unmapped = Some((count, why)),
        }
    }
    Ok(Arc::new(pieces))
}

/// Maps a piece. In the inner `Err`, why no processor can.
fn map(part: Part, most: usize) -> Result<Result<Vec<Mapped>, String>, Error> {
    let Part { from, offset, len } = part;
    let (fd, of) = match from {
        From::File(fd, of) => (fd.ok_or_else(no_descriptor)?, of),
        From::Handle(bytes) => {
            let export = hmem::share::Export::from_bytes(&bytes).ok_or_else(nonsense)?;
            let mapped = publisher::map(&Source::Handle { export, offset }, len, most);
            return mapped.map(Ok).map_err(|e| Error::Os("memory of another process's GPU".into(), e));
        }
    };
    let end = offset.checked_add(len).and_then(|end| usize::try_from(end).ok()).ok_or_else(nonsense)?;
    match of {
        Descriptor::Fixed => drop(memfd::vet(&fd, memfd::FIXED, end..).map_err(|_| nonsense())?),
        Descriptor::Kept => drop(memfd::vet(&fd, memfd::NO_SHRINK, end..).map_err(|_| nonsense())?),
        Descriptor::Window | Descriptor::Dmabuf | Descriptor::File => {}
    }
    let fd = Arc::new(fd);
    let source = match of {
        Descriptor::Window => Source::Window(fd),
        _ => Source::File { fd, offset },
    };
    match (publisher::map(&source, len, most), of) {
        // Its device may go away.
        (Ok(mapped), Descriptor::Dmabuf) => Ok(Ok(mapped.into_iter().map(Mapped::that_vanishes).collect())),
        (Ok(mapped), _) => Ok(Ok(mapped)),
        (Err(e), Descriptor::Dmabuf) if !is_passing(&e) => Ok(Err(e.to_string())),
        (Err(e), _) => Err(Error::Os("the daemon's memory: mmap".into(), e)),
    }
}

/// Whether the same may succeed later.
fn is_passing(e: &io::Error) -> bool {
    socket::is_lack(e) || e.raw_os_error() == Some(libc::EAGAIN)
}

fn no_descriptor() -> Error {
    let what = "the daemon's memory came without its descriptor: this process has as many as it may (RLIMIT_NOFILE); close some, or raise ulimit -n";
    Error::Os(what.into(), io::Error::from_raw_os_error(libc::EMFILE))
}
