//! Memory that was taken of a publisher, and its mapping.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use hmem::share::{Export, Opened, Passed};
use ipc::Mapping;

use super::contract::{Owner, PAGE, Publisher, Source};
use crate::error::Error;

/// A piece of memory that was taken, given back on drop.
#[derive(Debug)]
pub struct Lease {
    publisher: Arc<dyn Publisher>,
    at: u64,
    len: u64,
    source: Source,
}

impl Lease {
    pub fn take(publisher: &Arc<dyn Publisher>, len: u64, align: u64) -> Result<Lease, String> {
        let (at, source) = publisher.take(len, align)?;
        Ok(Lease { publisher: publisher.clone(), at, len, source })
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn source(&self) -> &Source {
        &self.source
    }

    /// A dma-buf that its publisher has of it, and where in it this begins; `None` if that makes none itself.
    pub fn dmabuf(&self) -> Option<Result<(OwnedFd, u64), Error>> {
        self.publisher.dmabuf(self.at)
    }

    /// Whose it is, where another process has published it.
    pub fn owner(&self) -> Option<Owner> {
        self.publisher.owner()
    }

    /// Whether the device that has it is still there.
    pub fn is_alive(&self) -> bool {
        self.publisher.is_alive()
    }

    /// Maps it: in one piece, or, where the kernel allocates and has none that long, in up to `most`.
    pub fn map(&self, most: usize) -> io::Result<Vec<Mapped>> {
        map(&self.source, self.len, most)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.publisher.give(self.at, self.len);
    }
}

/// Maps what was given: in one piece, or, where the kernel allocates and has none that long, in up to `most`.
pub fn map(source: &Source, len: u64, most: usize) -> io::Result<Vec<Mapped>> {
    match source {
        Source::Window(_) => in_pieces(len / PAGE, most, |pages| Mapped::new(source, pages * PAGE)),
        _ => Ok(vec![Mapped::new(source, len)?]),
    }
}

/// Takes `pages` in as few pieces as can be, the longest first, of a pool that says ENOMEM where it has no
/// piece that long.
fn in_pieces<T>(pages: u64, most: usize, mut take: impl FnMut(u64) -> io::Result<T>) -> io::Result<Vec<T>> {
    let (mut pieces, mut left) = (Vec::new(), pages);
    let is_lack = |e: &io::Error| e.raw_os_error() == Some(libc::ENOMEM);
    while left > 0 {
        match take(left) {
            Ok(piece) => {
                pieces.push(piece);
                return Ok(pieces);
            }
            Err(e) if !is_lack(&e) || pieces.len() + 1 >= most => return Err(e),
            Err(_) => {}
        }
        // What is tried is given back at once: the pool does not say what its longest piece is.
        let (mut fits, mut fails) = (0, left);
        while fails - fits > 1 {
            let middle = fits + (fails - fits) / 2;
            match take(middle) {
                Ok(_) => fits = middle,
                Err(e) if is_lack(&e) => fails = middle,
                Err(e) => return Err(e),
            }
        }
        if fits == 0 {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        pieces.push(take(fits)?);
        left -= fits;
    }
    Ok(pieces)
}

/// A multiple of any page size; BARs lie at multiples of it.
const PAGES: u64 = 1 << 16;

/// A piece of memory at an address of this process.
#[derive(Debug)]
pub struct Mapped {
    addr: usize,
    len: usize,
    mapping: Option<Mapping>,
    /// What its driver has mapped.
    device: Option<Opened>,
    /// An access may end in SIGBUS once the device is gone.
    vanishes: bool,
}

impl Mapped {
    pub fn new(source: &Source, len: u64) -> io::Result<Mapped> {
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let (fd, offset) = match source {
            Source::Here(addr) => {
                return Ok(Mapped { addr: *addr, len, mapping: None, device: None, vanishes: false });
            }
            Source::Handle { export, offset } => return Mapped::of_device(export, *offset, len),
            Source::File { fd, offset } => {
                (fd, usize::try_from(*offset).map_err(|_| io::ErrorKind::OutOfMemory)?)
            }
            Source::Bar { fd, place } => {
                let place = *place.as_ref().map_err(|why| io::Error::other(why.clone()))?;
                // VFIO maps one BAR at a time, by an offset inside it.
                let within = usize::try_from(place % PAGES).map_err(|_| io::ErrorKind::OutOfMemory)?;
                let whole = within.checked_add(len).ok_or(io::ErrorKind::OutOfMemory)?;
                let mapping = Mapping::part(&**fd, place - place % PAGES, whole)?;
                let addr = mapping.base().expose_provenance() + within;
                return Ok(Mapped { addr, len, mapping: Some(mapping), device: None, vanishes: true });
            }
            Source::Window(fd) => (fd, 0),
        };
        let end = offset.checked_add(len).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Mapping::new(&**fd, end, None)?;
        let addr = mapping.base().expose_provenance() + offset;
        let vanishes = matches!(source, Source::Window(_));
        Ok(Mapped { addr, len, mapping: Some(mapping), device: None, vanishes })
    }

    /// Memory of another process's GPU, where its driver maps it: the first call in a process needs a context
    /// of that GPU, or of another one that reaches it.
    fn of_device(export: &Export, offset: u64, len: usize) -> io::Result<Mapped> {
        hmem::registry::find_runtimes();
        let failed = |e: hmem::Error| io::Error::from_raw_os_error(e.errno());
        let opened = Passed::by_token(export).and_then(|passed| passed.open(0)).map_err(failed)?;
        let place = export.base.checked_add(offset).and_then(|at| opened.place(at));
        let (addr, _) = place.filter(|(_, room)| *room >= len).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Mapped { addr, len, mapping: None, device: Some(opened), vanishes: false })
    }

    pub fn addr(&self) -> usize {
        self.addr
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The same; an access may end in SIGBUS once the device is gone.
    pub(crate) fn that_vanishes(self) -> Mapped {
        Mapped { vanishes: true, ..self }
    }

    pub fn may_vanish(&self) -> bool {
        self.vanishes
    }

    /// Whether it was mapped for this, and is unmapped when it goes.
    pub fn is_own(&self) -> bool {
        self.mapping.is_some() || self.device.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::ranges::Ranges;

    /// A piece of a pool, given back on drop.
    struct Piece<'a>(&'a RefCell<Ranges>, u64, u64);

    impl Drop for Piece<'_> {
        fn drop(&mut self) {
            assert!(self.0.borrow_mut().give(self.1, self.2));
        }
    }

    #[test]
    fn a_pool_in_fragments_gives_its_longest_pieces() {
        let pool = RefCell::new(Ranges::new(0, 64));
        let take = |pages: u64| {
            let at = pool.borrow_mut().take(pages, 1);
            at.map(|at| Piece(&pool, at, pages)).ok_or(io::Error::from_raw_os_error(libc::ENOMEM))
        };
        let lens = |pieces: &[Piece<'_>]| pieces.iter().map(|p| p.2).collect::<Vec<_>>();
        assert_eq!(lens(&in_pieces(64, 1, take).unwrap()), [64]);
        let mut held: Vec<Piece<'_>> = (0..16).map(|_| take(4).unwrap()).collect();
        // Free: 4 pages, 8, 12.
        for at in [14, 13, 12, 9, 8, 5] {
            drop(held.remove(at));
        }
        assert_eq!(lens(&in_pieces(24, 3, take).unwrap()), [12, 8, 4]);
        assert_eq!(lens(&in_pieces(13, 2, take).unwrap()), [12, 1]);
        assert!(
            in_pieces(24, 2, take).is_err()
                && in_pieces(25, 9, take).is_err()
                && in_pieces(13, 1, take).is_err()
        );
        assert_eq!(pool.borrow().available(), 24, "what was tried is back");
        // Another error is returned at once.
        let calls = RefCell::new(0);
        let broken = |_| -> io::Result<()> {
            *calls.borrow_mut() += 1;
            Err(io::Error::from_raw_os_error(libc::ENODEV))
        };
        assert_eq!(in_pieces(9, 9, broken).unwrap_err().raw_os_error(), Some(libc::ENODEV));
        assert_eq!(*calls.borrow(), 1);
    }
}
