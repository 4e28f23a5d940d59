//! What ends while callbacks of a client run: when `unregister` or `invalidate` has returned, none of them
//! runs. One process, so one test at a time.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use std::{ptr, thread};

use hmem::client::{self, Client, Importer, Place, Registered, Segment};
use hmem::{Kind, Span, classify, read, registry};

const PAGE: usize = 4096;
/// More than the registrations that are kept.
const PAGES: usize = 300;
/// As long a callback stays in which `unregister` is to wait for it.
const STAY: Duration = Duration::from_millis(100);

/// A device, which stays in one kind of callback until it may go on.
struct Device {
    at: usize,
    /// The callback to stay in.
    stop: Mutex<&'static str>,
    inside: SyncSender<()>,
    /// `unregister` has returned.
    over: AtomicBool,
    /// Callbacks that ran then.
    late: AtomicUsize,
    running: AtomicUsize,
    released: AtomicUsize,
    refuse: AtomicI32,
    name: AtomicU64,
    own: OnceLock<Arc<Registered>>,
}

impl Device {
    fn new() -> (Arc<Device>, Receiver<()>) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, where the kernel finds room.
        let at = unsafe { libc::mmap(ptr::null_mut(), PAGES * PAGE, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let (inside, entered) = sync_channel(PAGES);
        let device = Device {
            at: at.expose_provenance(),
            stop: Mutex::default(),
            inside,
            over: AtomicBool::new(false),
            late: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            released: AtomicUsize::new(0),
            refuse: AtomicI32::new(0),
            name: AtomicU64::new(0),
            own: OnceLock::new(),
        };
        (Arc::new(device), entered)
    }

    fn stop_in(&self, callback: &'static str) {
        *self.stop.lock().unwrap() = callback;
    }

    fn enter(&self, callback: &'static str) -> Running<'_> {
        self.running.fetch_add(1, SeqCst);
        let running = Running(self);
        let mut stop = self.stop.lock().unwrap();
        let stays = *stop == callback;
        if stays {
            *stop = "";
        }
        drop(stop);
        if stays {
            self.inside.send(()).unwrap();
            let (step, mut waited) = (Duration::from_millis(1), Duration::ZERO);
            while waited < STAY && !self.over.load(SeqCst) {
                thread::sleep(step);
                waited += step;
            }
        }
        running
    }

    fn page(&self, n: usize) -> Span {
        // SAFETY: it stays mapped; copies are the registry's.
        unsafe { Span::new(self.at + n * PAGE, PAGE, Kind::Client) }
    }
}

struct Running<'a>(&'a Device);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.0.over.load(SeqCst) {
            self.0.late.fetch_add(1, SeqCst);
        }
        self.0.running.fetch_sub(1, SeqCst);
    }
}

struct Plug(Arc<Device>);

impl Client for Plug {
    fn name(&self) -> String {
        let _in = self.0.enter("name");
        "ends".into()
    }

    fn acquire(&self, addr: usize, _len: usize) -> Result<Option<usize>, i32> {
        let _in = self.0.enter("acquire");
        let off = addr.wrapping_sub(self.0.at);
        Ok((off < PAGES * PAGE).then_some(off))
    }

    fn get_pages(&self, _: usize, _: usize, len: usize, _: bool, name: u64) -> Result<Vec<Segment>, i32> {
        let d = &self.0;
        let _in = d.enter("get_pages");
        d.name.store(name, SeqCst);
        if let Some(own) = d.own.get() {
            assert_eq!(own.invalidate(name), Err(libc::EDEADLK), "from a callback");
            assert_eq!(own.unregister(), Err(libc::EDEADLK), "from a callback");
        }
        match d.refuse.load(SeqCst) {
            0 => Ok(vec![Segment { len, place: Place::Opaque }]),
            refused => Err(refused),
        }
    }

    fn dma_map(&self, _: usize, _: Importer, _: &mut Vec<Segment>) -> Result<(), i32> {
        let _in = self.0.enter("dma_map");
        Ok(())
    }

    fn dma_unmap(&self, _: usize, _: Importer, _: &[Segment]) {
        let _in = self.0.enter("dma_unmap");
    }

    fn put_pages(&self, _: usize, _: &[Segment]) {
        let _in = self.0.enter("put_pages");
    }

    fn release(&self, _: usize) {
        let _in = self.0.enter("release");
        self.0.released.fetch_add(1, SeqCst);
    }

    unsafe fn copy(&self, _: usize, _: usize, _: *mut u8, _: usize, _: bool) -> Option<Result<(), i32>> {
        let _in = self.0.enter("copy");
        Some(Ok(()))
    }

    fn export_dmabuf(&self, _: usize, _: usize, _: usize) -> Result<(OwnedFd, u64), i32> {
        let _in = self.0.enter("export_dmabuf");
        Err(libc::EOPNOTSUPP)
    }
}

fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn plug(device: &Arc<Device>) -> Registered {
    client::register(Box::new(Plug(device.clone()))).unwrap()
}

/// Unregisters while another thread, which does `work`, is in `callback`.
fn unregister_during(callback: &'static str, work: impl Fn(&Device, &Registered) + Sync) {
    let (d, entered) = Device::new();
    let client = plug(&d);
    // The one that is invalidated.
    read(&[d.page(0)], 0, &mut [0; 8]);
    d.stop_in(callback);
    thread::scope(|scope| {
        scope.spawn(|| work(&d, &client));
        entered.recv().unwrap();
        client.unregister().unwrap();
        d.over.store(true, SeqCst);
        assert_eq!(d.running.load(SeqCst), 0, "unregister returned during {callback}");
    });
    assert_eq!(d.late.load(SeqCst), 0, "{callback} ended after unregister had returned");
}

fn copy_out(d: &Device) {
    read(&[d.page(1)], 0, &mut [0; 8]);
}

#[test]
fn unregister_waits_for_the_callbacks_of_an_operation() {
    let _alone = alone();
    for callback in ["acquire", "get_pages", "dma_map", "copy"] {
        unregister_during(callback, |d, _| copy_out(d));
    }
    unregister_during("export_dmabuf", |d, _| {
        let _ = registry::of(Kind::Client).export_dmabuf(d.at, PAGE, false);
    });
    unregister_during("name", |_, _| {
        let _ = registry::of(Kind::Client).describe();
    });
}

#[test]
fn unregister_waits_for_an_eviction() {
    let _alone = alone();
    for callback in ["dma_unmap", "put_pages", "release"] {
        unregister_during(callback, |d, _| {
            for n in 1..PAGES {
                read(&[d.page(n)], 0, &mut [0; 8]);
            }
        });
    }
}

#[test]
fn unregister_waits_for_an_invalidation_by_another_thread() {
    let _alone = alone();
    for callback in ["dma_unmap", "put_pages", "release"] {
        unregister_during(callback, |d, client| {
            let _ = client.invalidate(d.name.load(SeqCst));
        });
    }
}

#[test]
fn unregister_waits_for_the_release_of_a_registration_without_pages() {
    let _alone = alone();
    unregister_during("release", |d, _| {
        d.refuse.store(libc::ENOMEM, SeqCst);
        copy_out(d);
    });
}

/// The memory has been given back when the second one returns, too.
#[test]
fn a_second_invalidation_waits_for_the_first() {
    let _alone = alone();
    let (d, entered) = Device::new();
    let client = plug(&d);
    read(&[d.page(0)], 0, &mut [0; 8]);
    let name = d.name.load(SeqCst);
    d.stop_in("put_pages");
    thread::scope(|scope| {
        scope.spawn(|| client.invalidate(name).unwrap());
        entered.recv().unwrap();
        assert_eq!(client.invalidate(name), Err(libc::ENOENT));
        d.over.store(true, SeqCst);
    });
    assert_eq!(d.late.load(SeqCst), 0);
    client.unregister().unwrap();
}

#[test]
fn callbacks_that_invalidate_or_unregister_are_refused_and_nothing_waits() {
    let _alone = alone();
    let (d, _) = Device::new();
    let client = Arc::new(plug(&d));
    d.own.set(client.clone()).unwrap();
    assert_eq!(read(&[d.page(0)], 0, &mut [0; 8]), 8);
    client.unregister().unwrap();
}

/// Memory that is invalidated while it is registered has no registration that is open.
/// Memory that is invalidated while it is being registered: either the registration fails, or it is one of
/// memory that is gone.
#[test]
fn memory_invalidated_in_registration_has_no_open_registration() {
    let _alone = alone();
    let (d, entered) = Device::new();
    let client = plug(&d);
    let (go, gone) = (AtomicU64::new(0), AtomicU64::new(0));
    let rounds = 300;
    let (mut open, mut untouched, mut other) = (0, 0, 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=rounds {
                while go.load(SeqCst) < round {
                    std::hint::spin_loop();
                    thread::yield_now();
                }
                // It has begun to register: `name` is this round's.
                let done = client.invalidate(d.name.load(SeqCst)).is_ok();
                gone.store(round * 2 + u64::from(done), SeqCst);
            }
        });
        for round in 1..=rounds {
            d.name.store(0, SeqCst);
            let registered = thread::scope(|inner| {
                let one = inner.spawn(|| registry::of(Kind::Client).get_pages(d.at, PAGE, true));
                while d.name.load(SeqCst) == 0 {
                    thread::yield_now();
                }
                go.store(round, SeqCst);
                one.join().unwrap()
            });
            while gone.load(SeqCst) < round * 2 {
                thread::yield_now();
            }
            untouched += u32::from(gone.load(SeqCst) % 2 == 0);
            match registered {
                Err(e) => other += u32::from(e.errno() != libc::ESTALE),
                Ok(pages) => {
                    // Other memory at that address is out of this registration's reach.
                    open += u32::from(registry::of(Kind::Client).get_pages(d.at, PAGE, true).is_ok());
                    drop(pages);
                }
            }
            let _ = client.invalidate(d.name.load(SeqCst));
        }
    });
    assert_eq!((untouched, other), (0, 0), "what nothing else takes away is invalidated, and says so");
    assert_eq!(open, 0, "registrations of {rounds} that were open after the memory was invalidated");
    client.unregister().unwrap();
    assert_eq!(classify(d.at, 8), Kind::System);
    drop(entered);
}

/// Clients that unregister during evictions and invalidations get no callback after that.
/// Threads that copy, so that registrations are evicted, and clients that go.
#[test]
fn unregistered_clients_get_no_late_callbacks() {
    let _alone = alone();
    let mut late = 0;
    let rounds = 30;
    for _ in 0..rounds {
        let (d, _) = Device::new();
        let client = plug(&d);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for t in 0..3 {
                let (d, stop) = (&d, &stop);
                scope.spawn(move || {
                    for n in (0..PAGES).cycle().skip(t * 97) {
                        if stop.load(SeqCst) {
                            break;
                        }
                        read(&[d.page(n)], 0, &mut [0; 8]);
                    }
                });
            }
            scope.spawn(|| {
                while !stop.load(SeqCst) {
                    let _ = client.invalidate(d.name.load(SeqCst));
                    thread::yield_now();
                }
            });
            // Evictions are going on.
            while d.released.load(SeqCst) < 10 {
                thread::yield_now();
            }
            client.unregister().unwrap();
            d.over.store(true, SeqCst);
            late += usize::from(d.running.load(SeqCst) != 0);
            stop.store(true, SeqCst);
        });
        late += usize::from(d.late.load(SeqCst) != 0);
    }
    assert_eq!(late, 0, "of {rounds}: unregister returned while a callback ran");
}
