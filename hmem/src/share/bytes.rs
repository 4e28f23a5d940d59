//! A handle as bytes; many of them in a file, which another process opens by a few bytes.

use std::fs::File;
use std::io::Write;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use super::file::FileAt;
use super::handle::{Export, HandleType};
use super::owner::Owner;
use crate::error::Error;

impl Export {
    /// Bytes of one.
    pub const LEN: usize = 112;

    /// As bytes.
    pub fn to_bytes(&self) -> [u8; Export::LEN] {
        let mut out = [0; Export::LEN];
        out[0] = self.handle_type as u8;
        out[4..8].copy_from_slice(&self.fd.to_le_bytes());
        for (to, word) in out[8..32].chunks_exact_mut(8).zip([self.id, self.base, self.len]) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        out[32..48].copy_from_slice(&self.device);
        out[48..].copy_from_slice(&self.token);
        out
    }

    /// From bytes; `None` if they are none.
    pub fn from_bytes(bytes: &[u8; Export::LEN]) -> Option<Export> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let export = Export {
            handle_type: HandleType::from_u8(bytes[0])?,
            fd: i32::from_le_bytes(bytes[4..8].try_into().expect("4 bytes")),
            id: word(8),
            base: word(16),
            len: word(24),
            device: bytes[32..48].try_into().expect("16 bytes"),
            token: bytes[48..].try_into().expect("64 bytes"),
        };
        let sane = bytes[1..4] == [0; 3] && export.len > 0 && export.base.checked_add(export.len).is_some();
        sane.then_some(export)
    }
}

/// Most handles in a file.
const MOST: usize = 4096;

/// A list of handles that another process can fetch.
#[derive(Debug)]
pub struct List {
    /// Open as long as the list is to be fetched.
    _fd: OwnedFd,
    at: FileAt,
}

impl List {
    /// A list of these.
    pub fn new(exports: &[Export]) -> Result<List, Error> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a name that ends in NUL.
        let fd = unsafe { libc::memfd_create(c"strait-handles".as_ptr(), flags) };
        if fd < 0 {
            return Err(Error::last_os());
        }
        // SAFETY: just opened, for this call alone.
        let mut to = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        let bytes: Vec<u8> = exports.iter().flat_map(Export::to_bytes).collect();
        to.write_all(&bytes).map_err(|_| Error::last_os())?;
        let fd = OwnedFd::from(to);
        Ok(List { at: FileAt::of(&fd)?, _fd: fd })
    }

    /// Where it is, as long as it is not dropped.
    pub fn at(&self) -> FileAt {
        self.at
    }

    /// Fetches `count` handles of another process's. Nothing there is trusted.
    pub fn fetch(owner: Owner, at: FileAt, count: usize) -> Result<Vec<Export>, Error> {
        let invalid = Error::os(libc::EINVAL);
        if count == 0 || count > MOST {
            return Err(invalid);
        }
        let fd = at.fetch(owner.pid)?;
        let mut bytes = vec![0; count * Export::LEN];
        File::from(fd).read_exact_at(&mut bytes, 0).map_err(|_| invalid)?;
        let all = bytes.chunks_exact(Export::LEN).map(|c| Export::from_bytes(c.try_into().expect("as long")));
        all.collect::<Option<Vec<_>>>().ok_or(invalid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(n: u64) -> Export {
        let (device, token) = ([n as u8; 16], [n as u8 + 1; 64]);
        Export {
            handle_type: HandleType::Descriptor,
            id: n,
            base: n << 20,
            len: 1 << 20,
            fd: 7,
            device,
            token,
        }
    }

    #[test]
    fn bytes_stand_for_a_handle_or_for_none() {
        let bytes = export(3).to_bytes();
        assert_eq!(Export::from_bytes(&bytes), Some(export(3)));
        for (at, wrong) in [(0, 0), (0, 99), (1, 1), (23, 0xff)] {
            let mut bytes = Export { len: u64::MAX >> 8, ..export(3) }.to_bytes();
            bytes[at] = wrong;
            assert_eq!(Export::from_bytes(&bytes), None, "byte {at}");
        }
        assert_eq!(Export::from_bytes(&Export { len: 0, ..export(3) }.to_bytes()), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "process_vm_readv(2), which Miri does not know")]
    fn a_list_is_fetched_whole_or_not_at_all() {
        let all: Vec<Export> = (1..250).map(export).collect();
        let list = List::new(&all).unwrap();
        let me = Owner::now(std::process::id() as i32);
        assert_eq!(List::fetch(me, list.at(), all.len()), Ok(all.clone()));
        let errno = |at, count| List::fetch(me, at, count).map_err(Error::errno).unwrap_err();
        assert_eq!(errno(list.at(), all.len() + 1), libc::EINVAL);
        assert_eq!(errno(list.at(), 0), libc::EINVAL);
        assert_eq!(errno(FileAt { file: [0; 2], ..list.at() }, 1), libc::ESTALE);
        assert_eq!(errno(FileAt { fd: 9999, ..list.at() }, 1), libc::EBADF);
    }
}
