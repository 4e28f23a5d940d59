//! Memory that a program has registered a client for. One process, so one test at a time.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hmem::client::{self, Registered};
use hmem::client::{Client, Importer, Place, Segment};
use hmem::path::{Path, any_device, find, no_device};
use hmem::share::{self, HandleType};
use hmem::{Kind, Span, classify, copy, read, registry, write};

const LEN: usize = 5 * 4096;

/// A device of one memory: what a program sees of it is out of the CPU's reach.
struct Device {
    at: usize,
    memory: OwnedFd,
    /// Where the CPU finds it, for the client's own copies.
    alias: usize,
    /// How get_pages says where it is, and what copies.
    way: Mutex<&'static str>,
    refuse: AtomicI32,
    gone: AtomicBool,
    log: Mutex<Vec<String>>,
    /// What is pinned now, by name.
    pinned: Mutex<HashMap<u64, usize>>,
}

fn map(fd: &OwnedFd, prot: i32) -> usize {
    // SAFETY: a new mapping, where the kernel finds room.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), LEN, prot, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.expose_provenance()
}

impl Device {
    fn new(sealed: bool) -> Arc<Device> {
        // SAFETY: a new file, open nowhere else.
        let memory = unsafe {
            let fd = libc::memfd_create(c"device".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
            assert!(fd >= 0 && libc::ftruncate(fd, LEN as i64) == 0);
            assert!(!sealed || libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) == 0);
            OwnedFd::from_raw_fd(fd)
        };
        let (at, alias) = (map(&memory, libc::PROT_NONE), map(&memory, libc::PROT_READ | libc::PROT_WRITE));
        Arc::new(Device {
            at,
            memory,
            alias,
            way: Mutex::new("file"),
            refuse: AtomicI32::new(0),
            gone: AtomicBool::new(false),
            log: Mutex::default(),
            pinned: Mutex::default(),
        })
    }

    fn way(&self) -> &'static str {
        *self.way.lock().unwrap()
    }

    fn say(&self, what: impl Into<String>) {
        self.log.lock().unwrap().push(what.into());
    }

    fn said(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock().unwrap())
    }

    fn span(&self) -> Span {
        assert_eq!(classify(self.at, LEN), Kind::Client);
        // SAFETY: it stays as long as the test, or else is asked for again.
        unsafe { Span::new(self.at, LEN, Kind::Client) }
    }

    fn names(&self) -> Vec<u64> {
        self.pinned.lock().unwrap().keys().copied().collect()
    }
}

struct Plug(Arc<Device>);

impl Client for Plug {
    fn name(&self) -> String {
        "test".into()
    }

    fn acquire(&self, addr: usize, len: usize) -> Result<Option<usize>, i32> {
        let d = &self.0;
        if addr.wrapping_sub(d.at) >= LEN || d.gone.load(SeqCst) {
            return Ok(None);
        }
        assert_eq!(classify(addr, len), Kind::System, "nothing is a client's while one is asked");
        d.say("acquire");
        Ok(Some(addr - d.at))
    }

    fn get_pages(
        &self,
        ctx: usize,
        addr: usize,
        len: usize,
        _write: bool,
        name: u64,
    ) -> Result<Vec<Segment>, i32> {
        let d = &self.0;
        d.say("get_pages");
        let refuse = d.refuse.load(SeqCst);
        if refuse != 0 || addr + len > d.at + LEN {
            return Err(if refuse != 0 { refuse } else { libc::EINVAL });
        }
        assert_eq!(ctx, addr - d.at);
        d.pinned.lock().unwrap().insert(name, ctx);
        let place = |off: usize| match d.way() {
            "file" => Place::File(d.memory.as_raw_fd(), off as u64),
            "cpu" => Place::Cpu(d.alias + off),
            _ => Place::Opaque,
        };
        if d.way() == "short" {
            return Ok(vec![Segment { len: len - 1, place: place(ctx) }]);
        }
        // In two pieces.
        let half = len / 2;
        Ok([(half, ctx), (len - half, ctx + half)]
            .map(|(len, off)| Segment { len, place: place(off) })
            .into_iter()
            .filter(|s| s.len > 0)
            .collect())
    }

    fn dma_map(&self, _ctx: usize, by: Importer, _segments: &mut Vec<Segment>) -> Result<(), i32> {
        assert_eq!(by, Importer::Process);
        self.0.say("dma_map");
        if self.0.way() == "unmappable" { Err(libc::ENOSPC) } else { Ok(()) }
    }

    fn dma_unmap(&self, _ctx: usize, _by: Importer, _segments: &[Segment]) {
        self.0.say("dma_unmap");
    }

    fn put_pages(&self, ctx: usize, _segments: &[Segment]) {
        self.0.say("put_pages");
        self.0.pinned.lock().unwrap().retain(|_, c| *c != ctx);
    }

    fn release(&self, _ctx: usize) {
        self.0.say("release");
    }

    unsafe fn copy(
        &self,
        _ctx: usize,
        addr: usize,
        host: *mut u8,
        len: usize,
        to_host: bool,
    ) -> Option<Result<(), i32>> {
        if self.0.way() != "own" {
            return None;
        }
        let at = std::ptr::with_exposed_provenance_mut::<u8>(self.0.alias + (addr - self.0.at));
        // SAFETY: inside the mapping, and the host's side as promised.
        unsafe { if to_host { at.copy_to(host, len) } else { host.copy_to(at, len) } }
        Some(Ok(()))
    }

    fn export_dmabuf(&self, ctx: usize, _addr: usize, _len: usize) -> Result<(OwnedFd, u64), i32> {
        match self.0.way() {
            "own" => Err(libc::EOPNOTSUPP),
            _ => Ok((self.0.memory.try_clone().unwrap(), ctx as u64)),
        }
    }
}

fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn plug(device: &Arc<Device>) -> Registered {
    client::register(Box::new(Plug(device.clone()))).unwrap()
}

fn pattern(seed: usize) -> Vec<u8> {
    (0..LEN).map(|i| (i * 7 + i / 251 + seed) as u8).collect()
}

const ALL: [&str; 6] = ["acquire", "get_pages", "dma_map", "dma_unmap", "put_pages", "release"];

#[test]
fn the_six_calls_come_in_order_and_once() {
    let _alone = alone();
    let d = Device::new(true);
    assert_eq!(classify(d.at, 8), Kind::System, "it is not registered");
    let client = plug(&d);
    for way in ["file", "cpu", "own"] {
        *d.way.lock().unwrap() = way;
        let s = d.span();
        assert_eq!(write(&[s], 0, &pattern(1)), LEN, "{way}");
        let mut back = vec![0; LEN];
        assert_eq!(read(&[s], 0, &mut back), LEN);
        assert!(back == pattern(1));
        let mut some = vec![0; LEN - 4097];
        // Across the two pieces, by the same registration.
        assert_eq!(read(&[s], 4000, &mut some), LEN - 4097);
        assert!(some == back[4000..][..LEN - 4097]);
        // Between two places in it, each in a registration that covers it.
        assert_eq!(copy(&[s], 0, &[s], 4096, 4096), 4096);
        read(&[s], 0, &mut back);
        assert!(back[..4096] == pattern(1)[4096..8192]);
        assert_eq!(d.said(), ALL[..3], "{way}");
        for name in d.names() {
            client.invalidate(name).unwrap();
        }
        assert_eq!(d.said(), ALL[3..], "{way}");
    }
    client.unregister().unwrap();
    assert_eq!(classify(d.at, 8), Kind::System);
    assert_eq!(client.unregister(), Err(libc::ENOENT));
    assert!(d.said().is_empty());
}

#[test]
fn a_registration_lasts_until_it_is_dropped_and_ends_with_the_client() {
    let _alone = alone();
    let d = Device::new(true);
    let client = plug(&d);
    let s = d.span();
    let kept = registry::get_pages(s, true).unwrap();
    let again = registry::get_pages(s.part(4096, 4096).unwrap(), true).unwrap();
    assert_eq!(d.said(), ALL[..3], "the second is inside the first");
    drop((kept, again));
    assert!(d.said().is_empty(), "kept for the next one");
    client.unregister().unwrap();
    assert_eq!(d.said(), ALL[3..]);
    assert_eq!(write(&[s], 0, &[1; 8]), 0, "the address is not followed");
}

/// Memory that is invalidated while it is registered stays out of reach until the registration is closed.
#[test]
fn memory_invalidated_in_registration_stays_out_of_reach() {
    let _alone = alone();
    let d = Device::new(true);
    let client = plug(&d);
    let s = d.span();
    let kept = registry::get_pages(s, true).unwrap();
    let name = d.names()[0];
    client.invalidate(name).unwrap();
    assert_eq!(client.invalidate(name), Err(libc::ENOENT));
    assert_eq!(d.said(), ALL);
    // The client would give other memory at the same address: not under this registration.
    assert_eq!(classify(d.at, 8), Kind::Client);
    assert_eq!(write(&[s], 0, &[1; 8]), 0);
    assert_eq!(registry::get_pages(s, true).unwrap_err().errno(), libc::ESTALE);
    assert!(d.said().is_empty());
    drop(kept);
    assert_eq!(write(&[s], 0, &[1; 8]), 8);
    assert_eq!(d.said(), ALL[..3]);
    client.unregister().unwrap();
}

#[test]
fn refusals_are_errors_and_leave_nothing_behind() {
    let _alone = alone();
    let d = Device::new(true);
    let client = plug(&d);
    let s = d.span();
    d.refuse.store(libc::ENOMEM, SeqCst);
    assert_eq!(registry::get_pages(s, true).unwrap_err().errno(), libc::ENOMEM);
    assert_eq!(write(&[s], 0, &[1; 8]), 0);
    assert_eq!(d.said().concat(), "acquireget_pagesreleaseacquireget_pagesrelease");
    d.refuse.store(0, SeqCst);
    for (way, code) in [("unmappable", libc::ENOSPC), ("short", libc::EINVAL)] {
        *d.way.lock().unwrap() = way;
        assert_eq!(registry::get_pages(s, true).unwrap_err().errno(), code, "{way}");
        assert!(d.names().is_empty(), "{way}");
        assert_eq!(d.said().last().unwrap(), "release");
    }
    *d.way.lock().unwrap() = "opaque";
    assert!(registry::get_pages(s, true).is_ok());
    assert_eq!(write(&[s], 0, &[1; 8]), 0, "it cannot be copied");
    *d.way.lock().unwrap() = "file";
    // What goes on behind the memory's end.
    assert_eq!(classify(d.at + LEN - 4, 8), Kind::Client);
    let wide = registry::of(Kind::Client).get_pages(d.at + LEN - 4, 8, true);
    assert_eq!(wide.unwrap_err().errno(), libc::EINVAL);
    client.unregister().unwrap();
}

#[test]
fn a_client_that_takes_no_address_leaves_it_the_hosts() {
    let _alone = alone();
    let d = Device::new(true);
    let client = plug(&d);
    d.gone.store(true, SeqCst);
    assert_eq!(classify(d.at, 8), Kind::System);
    let big = vec![0u8; 1 << 20];
    assert_eq!(classify(big.as_ptr().addr(), 8), Kind::System);
    assert!(d.said().is_empty());
    client.unregister().unwrap();
}

#[test]
fn only_files_that_cannot_shrink_are_shared() {
    let _alone = alone();
    for (sealed, way, path, errno) in [
        (true, "file", Path::PeerMap, 0),
        (false, "file", Path::Staged, libc::EPERM),
        (true, "cpu", Path::Staged, libc::EOPNOTSUPP),
    ] {
        let d = Device::new(sealed);
        let client = plug(&d);
        *d.way.lock().unwrap() = way;
        let found = find(d.span(), no_device);
        assert_eq!((found.path, found.refused[Path::PeerMap as usize]), (path, errno), "{}", found.why);
        if sealed && way == "file" {
            assert_eq!(find(d.span(), any_device(d.span())).path, Path::DmabufPcie);
            write(&[d.span()], 0, &pattern(3));
            let exports = registry::of(Kind::Client).export_ipc(d.at + 100, LEN - 200, 8).unwrap();
            assert_eq!(exports.len(), 2);
            assert_eq!((exports[0].handle_type, exports[0].base), (HandleType::File, d.at as u64));
            // As another process would have it, through a pidfd.
            let pid = std::process::id() as i32;
            let opened = share::open(pid, 1, &exports[1], 0).unwrap();
            let (at, follow) = opened.place(exports[1].base + 5).unwrap();
            assert_eq!(follow as u64, exports[1].len - 5);
            // SAFETY: mapped while `opened` lives.
            let byte = unsafe { *std::ptr::with_exposed_provenance::<u8>(at) };
            assert_eq!(byte, pattern(3)[LEN / 2 + 5]);
            // A descriptor of other memory than its export names is not opened.
            let mut other = exports[0];
            other.fd = exports[1].fd;
            other.token[8] ^= 1;
            assert_eq!(share::open(pid, 1, &other, 0).unwrap_err().errno(), libc::ESTALE);
            let mut long = exports[0];
            long.len = 1 << 40;
            assert_eq!(share::open(pid, 2, &long, 0).unwrap_err().errno(), libc::EINVAL);
            share::forget(1);
        } else {
            assert!(registry::of(Kind::Client).export_ipc(d.at, LEN, 8).is_err());
        }
        client.unregister().unwrap();
    }
}

#[test]
fn invalidation_waits_for_copies_and_never_tears_one() {
    let _alone = alone();
    let d = Device::new(true);
    let client = plug(&d);
    let s = d.span();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Each has a half of it: two that write the same bytes at once are at fault themselves.
        for half in 0..2 {
            let (d, stop) = (&d, &stop);
            scope.spawn(move || {
                let (at, mut back) = (half * LEN / 2, vec![0; LEN / 2]);
                while !stop.load(SeqCst) {
                    assert_eq!(classify(d.at, LEN), Kind::Client);
                    assert_eq!(read(&[s], at, &mut back), LEN / 2);
                    assert_eq!(write(&[s], at, &back), LEN / 2);
                }
            });
        }
        let has_begun = || d.log.lock().unwrap().iter().filter(|l| *l == "acquire").count() > 1;
        let start = Instant::now();
        // The threads may begin late.
        for n in 0.. {
            if n >= 300 && (start.elapsed() > Duration::from_secs(10) || has_begun()) {
                break;
            }
            for name in d.names() {
                client.invalidate(name).ok();
            }
            std::thread::yield_now();
        }
        stop.store(true, SeqCst);
    });
    client.unregister().unwrap();
    let log = d.said();
    let count = |what: &str| log.iter().filter(|l| *l == what).count();
    assert!(count("acquire") > 1, "nothing was invalidated: the test tests nothing");
    for (one, other) in [("acquire", "release"), ("get_pages", "put_pages"), ("dma_map", "dma_unmap")] {
        assert_eq!(count(one), count(other), "{one}");
    }
}
