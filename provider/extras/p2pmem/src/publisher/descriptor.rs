//! What a descriptor is that another process has sent.
//!
//! Memory that its owner, or whatever else has the descriptor, can make shorter is SIGBUS at an access. So
//! two kinds are taken: a memfd that is sealed against that, and a dma-buf, whose size is fixed. A file of a
//! file system is neither. It may be one of FUSE too, of which each question could wait for ever: nothing is
//! asked here that such a file answers.

use std::os::fd::{AsRawFd, OwnedFd};

use ipc::memfd::{self, Unfit};

use crate::error::Error;

/// What can be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// So many bytes, which cannot become fewer.
    Memfd(u64),
    /// So many bytes.
    Dmabuf(u64),
}

impl Class {
    pub fn size(self) -> u64 {
        match self {
            Class::Memfd(size) | Class::Dmabuf(size) => size,
        }
    }
}

/// What seals a memfd must not have: nothing could write to it.
const UNWRITABLE: libc::c_int = libc::F_SEAL_WRITE | libc::F_SEAL_FUTURE_WRITE;

/// What a descriptor is. In `Err`, why it cannot be published.
pub fn class(fd: &OwnedFd) -> Result<Class, Error> {
    // SAFETY: neither request touches memory.
    let (flags, seals) = unsafe {
        (libc::fcntl(fd.as_raw_fd(), libc::F_GETFL), libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS))
    };
    if flags < 0 || flags & libc::O_PATH != 0 {
        return Err(Error::Unsupported("a descriptor of O_PATH, or none, cannot be mapped".into()));
    }
    if seals < 0 {
        // Only files of tmpfs and hugetlbfs have seals.
        return dmabuf_size(fd).map(Class::Dmabuf).ok_or_else(|| {
            Error::Unsupported(
                "only a memfd or a dma-buf is published to other processes: any other file may become shorter, or is not there, under a process that has it mapped".into(),
            )
        });
    }
    if flags & libc::O_ACCMODE != libc::O_RDWR || seals & UNWRITABLE != 0 {
        return Err(Error::Invalid("the memfd cannot be written by other processes".into()));
    }
    match memfd::vet(fd, memfd::NO_SHRINK, ..) {
        Ok(size) => Ok(Class::Memfd(size as u64)),
        Err(Unfit::NoRoom(e)) => Err(Error::Os("the memfd".into(), e)),
        Err(Unfit::Kind) => {
            Err(Error::Unsupported("huge pages can run out at an access: publish a memfd of ordinary ones".into()))
        }
        Err(Unfit::Seals) => Err(Error::Unsupported(
            "the file could become shorter under a process that has it mapped: publish a memfd, with F_SEAL_SHRINK".into(),
        )),
        Err(Unfit::Size) => Err(Error::Invalid("the memfd has no bytes".into())),
    }
}

/// Seals a memfd of this process so that it can be published; what it is.
pub fn sealed(fd: &OwnedFd) -> Result<Class, Error> {
    // SAFETY: the request touches no memory. What cannot be sealed is found below.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
    class(fd)
}

/// What dma-buf's own lines of /proc/self/fdinfo say: the file system has no part in them.
fn dmabuf_size(fd: &OwnedFd) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    size_in(&text)
}

fn size_in(fdinfo: &str) -> Option<u64> {
    let value = |key: &str| fdinfo.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    value("exp_name:")?;
    value("size:")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::fd::FromRawFd;

    use ipc::memfd::Writers;

    use super::*;

    fn memfd(flags: libc::c_uint, len: i64) -> OwnedFd {
        // SAFETY: a C string, and a descriptor that is new.
        unsafe {
            let fd = libc::memfd_create(c"test".as_ptr(), flags | libc::MFD_CLOEXEC);
            assert!(fd >= 0 && libc::ftruncate(fd, len) == 0);
            OwnedFd::from_raw_fd(fd)
        }
    }

    #[test]
    fn what_can_become_shorter_is_not_published() {
        let open = memfd(libc::MFD_ALLOW_SEALING, 8192);
        assert_eq!(class(&open).unwrap_err().errno(), libc::EOPNOTSUPP);
        assert_eq!(sealed(&open).unwrap(), Class::Memfd(8192));
        assert_eq!(class(&open).unwrap().size(), 8192);
        // SAFETY: a descriptor that is open.
        assert_eq!(unsafe { libc::ftruncate(open.as_raw_fd(), 4096) }, -1);
        // One that takes no seals.
        assert_eq!(sealed(&memfd(0, 8192)).unwrap_err().errno(), libc::EOPNOTSUPP);
        assert_eq!(sealed(&memfd(libc::MFD_ALLOW_SEALING, 0)).unwrap_err().errno(), libc::EINVAL);
        let unwritable = memfd(libc::MFD_ALLOW_SEALING, 4096);
        // SAFETY: a descriptor that is open.
        unsafe { libc::fcntl(unwritable.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_WRITE) };
        assert_eq!(sealed(&unwritable).unwrap_err().errno(), libc::EINVAL);
        let made = memfd::create(c"test", 4096, Writers::All).unwrap();
        assert_eq!(class(&made).unwrap(), Class::Memfd(4096));
    }

    #[test]
    fn what_is_no_memory_is_not_published() {
        let path = std::env::temp_dir().join(format!("strait-descriptor-{}", std::process::id()));
        std::fs::write(&path, [0; 8192]).unwrap();
        let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        for fd in [OwnedFd::from(file), socket.into(), null.into()] {
            assert_eq!(class(&fd).unwrap_err().errno(), libc::EOPNOTSUPP, "{fd:?}");
        }
    }

    #[test]
    fn a_dma_buf_is_known_by_what_the_kernel_says_of_it() {
        let is =
            "pos:\t0\nflags:\t02000002\nmnt_id:\t15\nino:\t9\nsize:\t65536\ncount:\t2\nexp_name:\tudmabuf\n";
        assert_eq!(size_in(is), Some(65536));
        assert_eq!(size_in("pos:\t0\nsize:\t65536\n"), None);
        assert_eq!(size_in("exp_name:\tx\nsize:\t-1\n"), None);
    }
}
