//! Sums in memory that other processes of the user can look at: `strait top` does.
//!
//! It is a memfd whose descriptor the process keeps, so that it is found in /proc/PID/fd by its name, and
//! goes with the process. A reader copies it out, and takes any number for possible.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;

use ipc::{Mapping, memfd};

use super::counts::{Counts, ROWS, SIDES};

const NAME: &std::ffi::CStr = c"strait-usage";
/// How the link in /proc/PID/fd begins.
const LINK: &str = "/memfd:strait-usage";
/// What it begins with; the last byte is its version.
const MAGIC: u64 = u64::from_le_bytes(*b"stusage\x02");
/// Words: the mark, the number of peers, and of each side and row messages and bytes.
const HEAD: usize = 2;
const WORDS: usize = HEAD + SIDES * ROWS * 2;

/// The sums of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Peers that something was exchanged with.
    pub peers: u64,
    /// Messages and bytes.
    pub counts: [[Counts; ROWS]; SIDES],
}

/// The page of this process.
#[derive(Debug)]
pub(super) struct Page {
    memory: Mapping,
    _fd: OwnedFd,
}

impl Page {
    pub(super) fn new() -> io::Result<Page> {
        let fd = memfd::create(NAME, WORDS * 8, memfd::Writers::UntilSealed)?;
        let memory = Mapping::new(&fd, WORDS * 8, None)?;
        memfd::seal(&fd);
        let page = Page { memory, _fd: fd };
        page.set(0, MAGIC);
        Ok(page)
    }

    fn set(&self, at: usize, to: u64) {
        assert!(at < WORDS, "a word of the page");
        // SAFETY: the mapping has WORDS words of 8 bytes, and `at` is below that.
        unsafe { self.memory.wide(at * 8) }.store(to, Relaxed);
    }

    pub(super) fn set_peers(&self, peers: usize) {
        self.set(1, peers as u64);
    }

    pub(super) fn set_counts(&self, side: usize, row: usize, counts: Counts) {
        let at = HEAD + (side * ROWS + row) * 2;
        self.set(at, counts.messages);
        self.set(at + 1, counts.bytes);
    }
}

/// Whether a descriptor in /proc/PID/fd is such a page's, by what its link says.
pub fn is_page(link: &str) -> bool {
    link.strip_prefix(LINK).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
}

/// The sums in a page of another process; `None` if it is none, or of another version.
pub fn read(file: &File) -> Option<Sums> {
    let mut bytes = [0; WORDS * 8];
    file.read_exact_at(&mut bytes, 0).ok()?;
    let mut words = bytes.chunks_exact(8).filter_map(|w| Some(u64::from_le_bytes(w.try_into().ok()?)));
    if words.next() != Some(MAGIC) {
        return None;
    }
    let mut sums = Sums { peers: words.next()?, ..Sums::default() };
    for counts in sums.counts.iter_mut().flatten() {
        *counts = Counts { messages: words.next()?, bytes: words.next()? };
    }
    Some(sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_page_is_none() {
        assert!(is_page("/memfd:strait-usage (deleted)") && is_page("/memfd:strait-usage"));
        assert!(!is_page("/memfd:strait-usages") && !is_page("/tmp/memfd:strait-usage"));
        let zeros = memfd::create(c"other", WORDS * 8, memfd::Writers::All).unwrap();
        assert_eq!(read(&File::from(zeros)), None);
        let short = memfd::create(c"other", 8, memfd::Writers::All).unwrap();
        assert_eq!(read(&File::from(short)), None);
    }

    #[test]
    fn a_page_has_what_was_written() {
        let page = Page::new().unwrap();
        page.set_peers(3);
        page.set_counts(1, ROWS - 1, Counts { messages: 4, bytes: u64::MAX });
        let sums = read(&File::from(page._fd.try_clone().unwrap())).unwrap();
        assert_eq!((sums.peers, sums.counts[1][ROWS - 1]), (3, Counts { messages: 4, bytes: u64::MAX }));
        assert_eq!(sums.counts[0], [Counts::default(); ROWS]);
    }
}
