//! What processes have published: whose each publisher is.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use hmem::share::HandleType;

use crate::address::Address;
use crate::daemon::wire::Handle;
use crate::error::Error;
use crate::publisher::descriptor::Class;
use crate::publisher::{Kind, Owner, PAGE, Region, Source};

/// Most publishers of processes, and most of one user.
const MOST: usize = 1024;
pub(super) const MOST_OF_USER: usize = 64;
/// Most descriptors of a user that are being closed.
const MOST_CLOSING: usize = 16;

/// What a process says of memory that it publishes.
#[derive(Debug)]
pub(super) struct Publication {
    pub name: String,
    pub function: String,
    pub kind: String,
    pub offset: u64,
    pub len: u64,
    pub all_users: bool,
}

impl Publication {
    /// The publisher, if what is said fits the descriptor.
    pub(super) fn region(&self, class: Class, fd: OwnedFd, uid: u32, trusted: bool) -> Result<Region, Error> {
        let kind = kind(&self.kind, class)?;
        let source = Source::File { fd: Arc::new(fd), offset: self.offset };
        self.of(kind, source, class.size(), Owner { uid, trusted, all_users: self.all_users, whole: false })
    }

    /// The same of an allocation that a driver opens by a token.
    pub(super) fn region_of_handle(&self, export: &Handle, uid: u32, trusted: bool) -> Result<Region, Error> {
        let by_token =
            |e: &hmem::share::Export| matches!(e.handle_type, HandleType::Legacy | HandleType::Hsa);
        let export = hmem::share::Export::from_bytes(export).filter(by_token);
        let export = export.ok_or_else(|| Error::Invalid("that is no handle that a driver opens".into()))?;
        let kind = Kind::Memory(export.handle_type.kind());
        if kind.name() != self.kind {
            return Err(Error::Invalid(format!(
                "the handle is one of {}, not of {:?}",
                kind.name(),
                self.kind
            )));
        }
        let source = Source::Handle { export, offset: self.offset };
        self.of(kind, source, export.len, Owner { uid, trusted, all_users: false, whole: false })
    }

    /// The publisher of a part of `size` bytes.
    fn of(&self, kind: Kind, source: Source, size: u64, owner: Owner) -> Result<Region, Error> {
        let name = self.name.as_str();
        if !name.bytes().all(|b| b.is_ascii_graphic() && !b"*?#=".contains(&b)) {
            return Err(Error::Invalid(
                "a publisher's name is of letters, digits and marks but * ? # =".into(),
            ));
        }
        if name == "host" || name.contains("kind:") || name.parse::<Address>().is_ok() {
            return Err(Error::Invalid(format!("{name}: that is the name of other publishers")));
        }
        let function = match self.function.as_str() {
            "" => None,
            text => Some(text.parse().map_err(|_| {
                Error::Invalid(format!("{text:?} is no address of a PCI function, as 0000:3a:00.0 is"))
            })?),
        };
        let end = self.offset.checked_add(self.len).filter(|end| *end <= size);
        // A descriptor is mapped by pages, a handle as a whole.
        let aligned = self.offset % PAGE == 0 || matches!(source, Source::Handle { .. });
        if !aligned || self.len == 0 || end.is_none() {
            return Err(Error::Invalid(format!(
                "{} bytes from {} on are not whole pages of the {size} that there are",
                self.len, self.offset
            )));
        }
        let whole = self.offset == 0 && self.len == size;
        Ok(Region::of_process((name, kind), function, source, self.len, Owner { whole, ..owner }))
    }
}

/// The kind that a process says its memory is. That of a memfd is its own.
fn kind(label: &str, class: Class) -> Result<Kind, Error> {
    let of = match label {
        "file" => Some(Kind::File),
        "client" => Some(Kind::Memory(hmem::Kind::Client)),
        "vfio" => Some(Kind::Bar),
        "cuda" => Some(Kind::Memory(hmem::Kind::Cuda)),
        "rocr" => Some(Kind::Memory(hmem::Kind::Rocr)),
        "ze" => Some(Kind::Memory(hmem::Kind::Ze)),
        _ => None,
    };
    let is_plain = matches!(label, "file" | "client");
    of.filter(|_| is_plain || matches!(class, Class::Dmabuf(_))).ok_or_else(|| {
        Error::Invalid(format!("{label:?}: memory of that kind is not published by such a descriptor"))
    })
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Publications {
    /// By its name, the connection that published it and the user.
    by_name: HashMap<String, (u64, u32)>,
    /// By user, descriptors that are being closed.
    closing: HashMap<u32, Arc<AtomicUsize>>,
}

impl Publications {
    pub(super) fn of_user(&self, uid: u32) -> usize {
        self.by_name.values().filter(|(_, of)| *of == uid).count()
    }

    fn is_closing(&self, uid: u32) -> usize {
        self.closing.get(&uid).map_or(0, |n| n.load(Ordering::Relaxed))
    }

    /// Whether a descriptor of that user is received at all.
    pub(super) fn may_receive(&self, uid: u32) -> bool {
        self.is_closing(uid) < MOST_CLOSING
    }

    /// Whether that user may publish something else.
    pub(super) fn room(&self, uid: u32) -> Result<(), Error> {
        if !self.may_receive(uid) {
            let why = format!(
                "uid {uid} has sent {MOST_CLOSING} descriptors whose files do not let them be closed"
            );
            return Err(Error::Daemon(libc::EBUSY, why));
        }
        let (all, own) = (self.by_name.len(), self.of_user(uid));
        if own >= MOST_OF_USER || all >= MOST {
            let why = format!("uid {uid} has {own} publishers, all users {all}: unpublish some");
            return Err(Error::Daemon(libc::EUSERS, why));
        }
        Ok(())
    }

    pub(super) fn add(&mut self, name: String, connection: u64, uid: u32) {
        self.by_name.insert(name, (connection, uid));
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.by_name.remove(name);
    }

    /// Whether a process of that user has published it.
    pub(super) fn is_of(&self, name: &str, uid: u32) -> bool {
        self.by_name.get(name).is_some_and(|(_, of)| *of == uid)
    }

    /// A connection is over: the names of what it has published.
    pub(super) fn end(&mut self, connection: u64) -> Vec<String> {
        let names: Vec<String> = self
            .by_name
            .iter()
            .filter(|(_, (of, _))| *of == connection)
            .map(|(name, _)| name.clone())
            .collect();
        names.iter().for_each(|name| self.remove(name));
        names
    }

    /// Closes descriptors of a user's that are no memory, in a thread: a file of FUSE is closed when its
    /// server likes.
    pub(super) fn close(&mut self, uid: u32, fds: Vec<OwnedFd>) {
        if fds.is_empty() {
            return;
        }
        self.closing.retain(|_, n| n.load(Ordering::Relaxed) > 0);
        let count = self.closing.entry(uid).or_default().clone();
        count.fetch_add(fds.len(), Ordering::Relaxed);
        let held = Arc::new(Mutex::new(fds));
        let theirs = held.clone();
        let closes = move || {
            let fds = std::mem::take(&mut *theirs.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
            for fd in fds {
                drop(fd);
                count.fetch_sub(1, Ordering::Relaxed);
            }
        };
        if std::thread::Builder::new().name("p2pmemd-close".into()).spawn(closes).is_err() {
            // They stay open, and count.
            std::mem::forget(held);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publication(name: &str) -> Publication {
        let (function, kind) = (String::new(), "file".into());
        Publication { name: name.into(), function, kind, offset: 0, len: PAGE, all_users: false }
    }

    fn errno(of: &Publication, class: Class) -> i32 {
        let fd = ipc::memfd::create(c"test", 8192, ipc::memfd::Writers::All).unwrap();
        of.region(class, fd, 1000, false).map_or_else(|e| e.errno(), |_| 0)
    }

    #[test]
    fn what_is_said_of_memory_is_checked() {
        let memfd = Class::Memfd(8192);
        assert_eq!(errno(&publication("card"), memfd), 0);
        for name in ["host", "0000:01:00.0", "01:00.0", "a b", "a*", "\u{1b}[2J", "kind:cuda", "é"] {
            assert_eq!(errno(&publication(name), memfd), libc::EINVAL, "{name:?}");
        }
        for (offset, len) in
            [(0, 0), (1, 4096), (4096, 8192), (8192, 4096), (u64::MAX - 4095, 8192), (0, u64::MAX)]
        {
            let of = Publication { offset, len, ..publication("card") };
            assert_eq!(errno(&of, memfd), libc::EINVAL, "{offset} {len}");
        }
        let of = |kind: &str, function: &str| Publication {
            kind: kind.into(),
            function: function.into(),
            ..publication("card")
        };
        for (kind, class, is) in [
            ("client", memfd, 0),
            ("cuda", memfd, libc::EINVAL),
            ("vfio", Class::Dmabuf(8192), 0),
            ("host", memfd, libc::EINVAL),
            ("sysfs", Class::Dmabuf(8192), libc::EINVAL),
        ] {
            assert_eq!(errno(&of(kind, ""), class), is, "{kind}");
        }
        assert_eq!(errno(&of("file", "0000:01:00.0"), memfd), 0);
        assert_eq!(errno(&of("file", "card"), memfd), libc::EINVAL);
    }

    #[test]
    fn a_handle_that_no_driver_opens_by_its_token_is_refused() {
        let export = hmem::share::Export {
            handle_type: HandleType::Legacy,
            id: 1,
            base: 1 << 40,
            len: 8192,
            fd: -1,
            device: [0; 16],
            token: [9; 64],
        };
        let errno = |of: &Publication, handle: &Handle| {
            of.region_of_handle(handle, 1000, false).map_or_else(|e| e.errno(), |_| 0)
        };
        let cuda = |offset, len| Publication { kind: "cuda".into(), offset, len, ..publication("gpu") };
        assert_eq!(errno(&cuda(256, 4096), &export.to_bytes()), 0);
        for (offset, len) in [(0, 0), (0, 8193), (8192, 1), (u64::MAX, 2), (2, u64::MAX)] {
            assert_eq!(errno(&cuda(offset, len), &export.to_bytes()), libc::EINVAL, "{offset} {len}");
        }
        assert_eq!(errno(&publication("gpu"), &export.to_bytes()), libc::EINVAL, "of another kind");
        let file = hmem::share::Export { handle_type: HandleType::File, ..export };
        let wraps = hmem::share::Export { len: u64::MAX, ..export };
        for handle in [
            file.to_bytes(),
            wraps.to_bytes(),
            [0; hmem::share::Export::LEN],
            [255; hmem::share::Export::LEN],
        ] {
            assert_eq!(errno(&cuda(0, 4096), &handle), libc::EINVAL, "{:?}", &handle[..4]);
        }
    }

    #[test]
    fn descriptors_that_are_being_closed_count_for_their_user() {
        let mut all = Publications::default();
        let (reader, writer) = std::os::unix::net::UnixStream::pair().unwrap();
        all.close(1, vec![OwnedFd::from(writer)]);
        assert!(all.may_receive(1) && all.may_receive(2));
        // It is closed by the thread.
        assert_eq!(std::io::Read::read(&mut &reader, &mut [0; 1]).unwrap(), 0);
        all.closing.insert(1, Arc::new(AtomicUsize::new(MOST_CLOSING)));
        assert!(!all.may_receive(1) && all.may_receive(2));
        assert_eq!(all.room(1).unwrap_err().errno(), libc::EBUSY);
        for n in 0..MOST_OF_USER {
            all.add(format!("p{n}"), 7, 2);
        }
        assert_eq!(all.room(2).unwrap_err().errno(), libc::EUSERS);
        assert!(all.is_of("p0", 2) && !all.is_of("p0", 3));
        assert_eq!((all.end(8).len(), all.end(7).len(), all.of_user(2)), (0, MOST_OF_USER, 0));
    }
}
