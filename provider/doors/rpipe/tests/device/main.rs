//! Pipes with memory of a device, over the stand-in for CUDA's driver; with STRAIT_RPIPE_TEST_GPU=1, over the
//! one of this machine.

mod faults;
mod kernels;
mod peers;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{env, fs, thread};

use cuda_stand_in::driver::Driver;
use strait_rpipe::start::FileBootstrap;
use strait_rpipe::{
    Address, Context, Device, Error, Mode, Patience, Pipe, PipeOptions, Rank, Settings, Side, Sync, backends,
};

/// After so long a call has failed.
const LIMIT: Duration = Duration::from_secs(60);

fn patience() -> Patience {
    Patience::for_a(LIMIT)
}

/// Whether it is a GPU.
fn is_real() -> bool {
    env::var_os("STRAIT_RPIPE_TEST_GPU").is_some()
}

/// One process has one driver, and one number of descriptors and mappings: one test at a time, from its first
/// context on.
fn turn() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn alone() -> (MutexGuard<'static, ()>, Driver) {
    (turn(), driver())
}

fn driver() -> Driver {
    if is_real() { Driver::start_real() } else { Driver::start() }
}

/// Memory in use does not come below that, in time.
fn settles(cu: &Driver, before: usize, descriptors: usize, case: &str) {
    let begun = std::time::Instant::now();
    // A driver keeps some of both for itself: less than the heaps of two pipes.
    let (before, descriptors) =
        if is_real() { (before + (8 << 20), usize::MAX) } else { (before, descriptors) };
    while (cu.in_use() > before || self::descriptors() > descriptors) && begun.elapsed() < LIMIT {
        thread::sleep(Duration::from_millis(5));
    }
    assert!(cu.in_use() <= before, "{case}: {} bytes of the device are still in use", cu.in_use() - before);
    assert!(self::descriptors() <= descriptors, "{case}: descriptors are left");
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn scratch(name: &str) -> PathBuf {
    let dir = env::temp_dir().join(format!("strait-rpipe-device-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir(&dir).unwrap();
    dir
}

fn join(dir: &Path, rank: Rank, settings: &Settings) -> Arc<Context> {
    let backend = backends::open(settings, rank).unwrap();
    let bootstrap = FileBootstrap::new(rank, 2, dir).unwrap();
    Arc::new(Context::new(backend, Box::new(bootstrap), settings.clone()).unwrap())
}

/// Both of a job.
fn job(name: &str, settings: &Settings) -> [Arc<Context>; 2] {
    let dir = scratch(name);
    [join(&dir, 0, settings), join(&dir, 1, settings)]
}

/// An end with memory of a device, or of the host.
fn end(side: Side, on_device: bool) -> PipeOptions {
    PipeOptions { device: on_device.then_some(Device::Current), ..PipeOptions::new(side) }
}

fn pattern(n: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (n * 31 + at * 7 + at / 251) as u8).collect()
}

/// Stores where a block is.
fn fill(cu: &Driver, on_device: bool, to: *mut u8, bytes: &[u8]) {
    match on_device {
        _ if bytes.is_empty() => {}
        true => {
            cu.write(to.addr(), bytes);
            // A copy from memory that is not page-locked returns before the bytes are there.
            cu.wait(0);
        }
        // SAFETY: a block of so many bytes of the host's memory, which is this end's.
        false => unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) },
    }
}

fn write(cu: &Driver, pipe: &mut Pipe, on_device: bool, bytes: &[u8]) -> Result<(), Error> {
    let block = pipe.alloc(bytes.len(), 1, patience())?;
    let to = pipe.address(block)?;
    fill(cu, on_device, to, bytes);
    pipe.write(block, None)
}

fn look(cu: &Driver, pipe: &mut Pipe, on_device: bool, block: Address, len: usize) -> Vec<u8> {
    let from = pipe.address(block).unwrap();
    match on_device {
        _ if len == 0 => Vec::new(),
        true => cu.read(from.addr(), len),
        false => {
            let mut bytes = vec![0; len];
            // SAFETY: as in `fill`.
            unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
            bytes
        }
    }
}

fn read(cu: &Driver, pipe: &mut Pipe, on_device: bool) -> Result<Vec<u8>, Error> {
    let (block, len) = pipe.read(usize::MAX, patience())?;
    let bytes = look(cu, pipe, on_device, block, len);
    pipe.free(block)?;
    Ok(bytes)
}

/// Lengths that go in a slot elsewhere, and longer ones.
const LENGTHS: [usize; 12] = [4, 0, 8, 1, 40, 41, 64, 1000, 4096, 50_000, 65_537, (1 << 20) + 5];
const HEAP: usize = 3 << 20;

fn lengths(cu: Driver, name: &str, writers: bool, readers: bool, sync: Sync, rounds: usize) {
    let [a, b] = job(name, &Settings::default());
    thread::scope(|s| {
        s.spawn(|| {
            cu.enter(0);
            let options = PipeOptions { sync: Some(sync), ..end(Side::Writer, writers) };
            let mut pipe = Pipe::open(&a, 1, &options).unwrap();
            for n in 0..rounds * LENGTHS.len() {
                write(&cu, &mut pipe, writers, &pattern(n, LENGTHS[n % LENGTHS.len()])).unwrap();
            }
            // All of it comes back: a block as long as the heap.
            let whole = pipe.alloc(HEAP, 1, patience()).unwrap();
            let on_device = hmem::classify(pipe.address(whole).unwrap().addr(), HEAP) == hmem::Kind::Cuda;
            assert_eq!(on_device, writers);
            pipe.free(whole).unwrap();
            let (stats, ..) = pipe.writer_stats().unwrap();
            assert_eq!((stats.messages, stats.mode), ((rounds * LENGTHS.len()) as u64, Some(Mode::Store)));
            assert_eq!(stats.path_why.contains("of device 0"), writers, "{}", stats.path_why);
            assert_eq!(stats.path_why.contains("reader's heap is memory of a device"), readers);
        });
        s.spawn(|| {
            cu.enter(0);
            let options = PipeOptions { heap: Some(HEAP), ..end(Side::Reader, readers) };
            let mut pipe = Pipe::open(&b, 0, &options).unwrap();
            for n in 0..rounds * LENGTHS.len() {
                let expected = pattern(n, LENGTHS[n % LENGTHS.len()]);
                assert!(read(&cu, &mut pipe, readers).unwrap() == expected, "message {n}");
            }
            assert_eq!(pipe.reader_stats().unwrap().used, 0);
            let over = pipe.read(1, patience());
            assert!(matches!(over, Err(Error::Gone(_))), "{over:?}");
        });
    });
}

const PLACES: [(bool, bool); 3] = [(false, true), (true, false), (true, true)];

#[test]
fn messages_of_all_lengths_arrive_from_and_in_memory_of_a_device_and_it_comes_back() {
    let (_alone, cu) = alone();
    // What the driver and the library keep.
    lengths(cu, "warm", true, true, Sync::Deferred, 1);
    let (before, open) = (cu.in_use(), descriptors());
    for (writers, readers) in PLACES {
        for sync in [Sync::Deferred, Sync::Immediate] {
            lengths(cu, "lengths", writers, readers, sync, 6);
            settles(&cu, before, open, "both ends are closed");
        }
    }
}

#[test]
fn a_message_is_not_announced_before_a_slow_device_has_copied_it() {
    if is_real() {
        return;
    }
    // SAFETY: before anything else is there; one test is one process, or this one is the first to load the
    // stand-in.
    unsafe { env::set_var("CUDA_STAND_IN_DELAY_US", "2000") };
    let (_alone, cu) = alone();
    for (writers, readers) in PLACES {
        lengths(cu, "slow", writers, readers, Sync::Deferred, 1);
    }
}

#[test]
fn bytes_of_any_memory_are_written_without_a_block_of_the_programs() {
    let (_alone, cu) = alone();
    let far = Settings { map: false, ..Settings::default() };
    let frames = Settings { backend: "strait:frames".into(), ..Settings::default() };
    let near = Settings::default();
    let ways = [(&near, false, false), (&near, false, true), (&near, true, false), (&near, true, true)];
    for (number, (settings, writers, readers)) in
        ways.into_iter().chain([(&far, false, false), (&frames, false, false)]).enumerate()
    {
        let [a, b] = job(&format!("from-{number}"), settings);
        thread::scope(|s| {
            s.spawn(|| {
                cu.enter(0);
                let mut pipe = Pipe::open(&a, 1, &end(Side::Writer, writers)).unwrap();
                let source = cu.alloc(1 << 20);
                let settled = || if is_real() { 0 } else { cu.calls(c"cuPointerSetAttribute") };
                for n in 0..4 * 11 {
                    let bytes = pattern(n, LENGTHS[n % 11]);
                    let on_device = n % 3 != 0;
                    if on_device && !bytes.is_empty() {
                        cu.write(source, &bytes);
                    }
                    let at =
                        if on_device { std::ptr::with_exposed_provenance(source) } else { bytes.as_ptr() };
                    let before = settled();
                    // SAFETY: so many bytes of the host's or the device's memory.
                    unsafe { pipe.write_from(at, bytes.len(), patience()) }.unwrap();
                    // What the copy above had not done yet was waited for.
                    let wanted = on_device && !bytes.is_empty() && !is_real();
                    assert_eq!(settled() > before, wanted, "way {number}: message {n}");
                    // It has left.
                    cu.write(source, &[0xee; 4096]);
                }
                pipe.flush(patience()).unwrap();
                let over = pipe.alloc(1, 1, patience()).and_then(|_| {
                    loop {
                        pipe.alloc(1, 1, patience())?;
                    }
                });
                assert!(matches!(over, Err::<(), _>(Error::Gone(_) | Error::Full(_))), "{over:?}");
                cu.free(source);
            });
            s.spawn(|| {
                cu.enter(0);
                let options = PipeOptions { heap: Some(HEAP), ..end(Side::Reader, readers) };
                let mut pipe = Pipe::open(&b, 0, &options).unwrap();
                for n in 0..4 * 11 {
                    let got = read(&cu, &mut pipe, readers).unwrap();
                    assert!(got == pattern(n, LENGTHS[n % 11]), "way {number}: message {n}");
                }
            });
        });
    }
}
