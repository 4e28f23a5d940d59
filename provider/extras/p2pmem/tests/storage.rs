//! Files to memory of each kind and back: contents at odd lengths and offsets, ends of files, which way was
//! taken and why.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use cuda_stand_in::driver::Driver;
use p2pmem::storage::{File, Op, Options, Report, Way};
use p2pmem::topology::recording;
use p2pmem::{Buffer, Orchestrator, Request, Rules};

const BIG: usize = (9 << 20) + 4321;

/// A directory on the disk of the build, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("storage-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }

    fn file(&self, len: usize) -> PathBuf {
        let path = self.0.join("file");
        std::fs::write(&path, content(len, 0)).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn content(len: usize, from: usize) -> Vec<u8> {
    (from..from + len).map(|n| (n * 7 + (n >> 8) * 13 + (n >> 16)) as u8).collect()
}

fn open(path: &std::path::Path, options: Options) -> File {
    File::open(path, Options { write: true, ..options }).unwrap()
}

/// Host memory that begins at a page.
struct Pages(Vec<u8>, usize);

impl Pages {
    fn new(len: usize) -> Pages {
        let mut room = vec![0u8; len + 4096];
        let at = room.as_mut_ptr().expose_provenance().next_multiple_of(4096);
        Pages(room, at)
    }

    fn bytes(&self, from: usize, len: usize) -> &[u8] {
        let from = self.1 - self.0.as_ptr().addr() + from;
        &self.0[from..from + len]
    }
}

/// All but the bytes of one way.
fn others(report: &Report, way: Way) -> u64 {
    report.bytes.iter().sum::<u64>() - report.bytes[way as usize]
}

#[test]
fn host_memory_is_read_and_written_whatever_its_alignment() {
    let scratch = Scratch::new();
    let path = scratch.file(BIG);
    let file = open(&path, Options::default());
    let memory = Pages::new(BIG + 10);
    let mut moved = 0;
    for (at, len, offset) in
        [(0, BIG, 0), (0, 8192, 4096), (1, 5000, 3), (0, 4096, 1), (4096, 1, 0), (0, 0, 5)]
    {
        // SAFETY: inside of `memory`.
        let n = unsafe { file.read(memory.1 + at, len, offset as u64) }.unwrap();
        assert_eq!((n, memory.bytes(at, len)), (len, &content(len, offset)[..]), "{at} {offset}");
        moved += len as u64;
    }
    let report = file.report();
    assert_eq!(report.bytes.iter().sum::<u64>(), moved);
    assert_eq!(report.bytes[Way::Bounce as usize] + report.bytes[Way::Cufile as usize], 0);
    // The end of the file, and beyond.
    // SAFETY: inside of `memory`.
    unsafe {
        assert_eq!(file.read(memory.1, 8192, BIG as u64 - 4321).unwrap(), 4321);
        assert_eq!(file.read(memory.1, 8192, BIG as u64 + 4096).unwrap(), 0);
        assert_eq!(file.write(memory.1, 4096, BIG as u64).unwrap(), 4096);
    }
    assert_eq!(std::fs::read(&path).unwrap()[BIG..], memory.bytes(0, 4096)[..]);
}

#[test]
fn whole_blocks_go_by_o_direct_and_the_reason_is_reported_where_they_do_not() {
    let scratch = Scratch::new();
    let path = scratch.file(BIG);
    let memory = Pages::new(BIG);
    let file = open(&path, Options::default());
    // SAFETY: inside of `memory`.
    unsafe { file.read(memory.1, 1 << 20, 0) }.unwrap();
    let report = file.report();
    if report.last == Some(Way::Direct) {
        assert_eq!((others(&report, Way::Direct), report.why.as_str()), (0, ""));
    } else {
        // A file system that has no O_DIRECT.
        assert!(report.why.contains("O_DIRECT"), "{report:?}");
    }
    // SAFETY: inside of `memory`.
    unsafe { file.read(memory.1 + 1, 1000, 0) }.unwrap();
    let report = file.report();
    assert!(report.last == Some(Way::Cached) && !report.why.is_empty(), "{report:?}");
    let file = open(&path, Options { direct: false, ..Options::default() });
    // SAFETY: inside of `memory`.
    unsafe { file.read(memory.1, 1 << 20, 0) }.unwrap();
    let report = file.report();
    assert!(others(&report, Way::Cached) == 0 && report.why.contains("not wanted"), "{report:?}");
}

#[test]
fn memory_of_a_gpu_goes_through_host_memory_where_there_is_no_cufile() {
    let cu = Driver::start();
    let scratch = Scratch::new();
    let path = scratch.file(BIG);
    let at = cu.alloc(BIG + 100);
    for options in [Options::default(), Options { direct: false, cufile: false, ..Options::default() }] {
        let file = open(&path, options);
        let mut moved = 0;
        for (to, len, offset) in [(0, BIG, 0), (3, 70_000, 17), (0, 4096, 4096), (64, 1, 5)] {
            cu.write(at, &vec![0xee; BIG + 100]);
            // SAFETY: inside of the allocation.
            assert_eq!(unsafe { file.read(at + to, len, offset as u64) }.unwrap(), len);
            let back = cu.read(at + to, len + 1);
            assert!(back[..len] == content(len, offset) && back[len] == 0xee, "{to} {len} {offset}");
            moved += len as u64;
        }
        // SAFETY: inside of the allocation.
        assert_eq!(unsafe { file.read(at, 10_000, BIG as u64 - 100) }.unwrap(), 100, "the file ends");
        let report = file.report();
        assert_eq!((report.last, others(&report, Way::Bounce)), (Some(Way::Bounce), 0));
        assert_eq!(report.bytes[Way::Bounce as usize], moved + 100);
        assert!(report.why.contains("cuFile"), "{report:?}");
    }
    // And back, to another place.
    let file = open(&path, Options::default());
    cu.write(at, &content(BIG, 5));
    // SAFETY: inside of the allocation.
    assert_eq!(unsafe { file.write(at, BIG, 1000) }.unwrap(), BIG);
    assert!(std::fs::read(&path).unwrap()[1000..] == content(BIG, 5));
    cu.free(at);
    // A GPU's address that is freed is no memory any more: an error, and not the end of the process.
    // SAFETY: nothing is there.
    assert!(unsafe { file.read(at, 4096, 0) }.is_err());
}

/// A window of a tree that is laid out as sysfs is.
fn window(scratch: &Scratch, len: usize) -> (Buffer, PathBuf) {
    let sys = scratch.0.join("sys");
    let (cpu, raw) = recording::parse(include_str!("trees/switches-intel.tree")).unwrap();
    recording::lay_out(&cpu, &raw, &sys).unwrap();
    let all = Orchestrator::of_host(&sys, Rules::default(), 0).unwrap();
    let buffer = all.allocate(&Request { len: len as u64, ..Request::default() }).unwrap();
    let allocate = sys.join(format!("bus/pci/devices/{}/p2pmem/allocate", buffer.publisher()));
    (buffer, allocate)
}

#[test]
fn windows_are_read_into_by_the_disk_and_one_that_is_gone_is_an_error() {
    let scratch = Scratch::new();
    let path = scratch.file(BIG);
    let (buffer, allocate) = window(&scratch, 6 << 20);
    let at = buffer.map().unwrap()[0].addr();
    let see = |from: usize, len: usize| {
        // SAFETY: the window is mapped, and nothing writes it now.
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(at + from), len) }
            .to_vec()
    };
    for direct in [true, false] {
        let file = open(&path, Options { direct, ..Options::default() });
        for (to, len, offset) in
            [(0, 6 << 20, 0), (0, 5 << 20, 4096 + 77), (8192, 4096 + 9, 8192), (5, 100, 9)]
        {
            // SAFETY: inside of the window.
            assert_eq!(unsafe { file.read(at + to, len, offset as u64) }.unwrap(), len);
            assert!(see(to, len) == content(len, offset), "{to} {len} {offset}");
            // SAFETY: inside of the window.
            assert_eq!(unsafe { file.write(at + to, len, 0) }.unwrap(), len);
            assert!(std::fs::read(&path).unwrap()[..len] == content(len, offset));
            std::fs::write(&path, content(BIG, 0)).unwrap();
        }
        let report = file.report();
        assert_eq!(report.bytes[Way::Cached as usize] + report.bytes[Way::Cufile as usize], 0);
        assert!(direct || others(&report, Way::Bounce) == 0, "{report:?}");
    }
    let file = open(&path, Options::default());
    std::fs::OpenOptions::new().write(true).open(allocate).unwrap().set_len(0).unwrap();
    for (len, offset) in [(1 << 20, 0), (100, 3)] {
        // SAFETY: a window that is gone is what this is made for.
        unsafe {
            assert_eq!(file.read(at, len, offset).unwrap_err().errno(), libc::EIO);
            assert_eq!(file.write(at, len, offset).unwrap_err().errno(), libc::EIO);
        }
    }
}

#[test]
fn a_batch_is_done_in_any_order_and_each_transfer_has_its_own_result() {
    let scratch = Scratch::new();
    let path = scratch.file(BIG);
    let file = open(&path, Options::default());
    let memory = Pages::new(64 * 5000);
    let mut ops: Vec<Op> = (0..64)
        .map(|n| Op { write: false, addr: memory.1 + n * 5000, len: 5000, offset: n as u64 * 12_345 })
        .collect();
    ops[7].addr = 0;
    ops[9].offset = BIG as u64 - 10;
    // SAFETY: inside of `memory`, or refused.
    let done = unsafe { file.batch(&ops) };
    for (n, result) in done.iter().enumerate() {
        match n {
            7 => assert_eq!(result.as_ref().unwrap_err().errno(), libc::EINVAL),
            9 => assert_eq!(*result.as_ref().unwrap(), 10),
            n => {
                assert_eq!(*result.as_ref().unwrap(), 5000);
                assert!(memory.bytes(n * 5000, 5000) == content(5000, n * 12_345), "{n}");
            }
        }
    }
    // SAFETY: nothing is done.
    assert!(unsafe { file.batch(&[]) }.is_empty());
}

#[test]
fn mistakes_are_errors() {
    let scratch = Scratch::new();
    let path = scratch.file(4096);
    assert_eq!(
        File::open(&path.with_extension("none"), Options::default()).unwrap_err().errno(),
        libc::ENOENT
    );
    let file = File::open(&path, Options::default()).unwrap();
    let memory = Pages::new(4096);
    // SAFETY: inside of `memory`, or refused.
    unsafe {
        assert_eq!(file.write(memory.1, 4096, 0).unwrap_err().errno(), libc::EBADF);
        assert_eq!(file.read(usize::MAX, 2, 0).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(file.read(memory.1, 1, u64::MAX).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(file.read(8, 4096, 0).unwrap_err().errno(), libc::EFAULT);
    }
    assert_eq!(file.report(), Report { last: None, bytes: [0; 4], why: String::new() });
    let new =
        File::open(&path.with_extension("new"), Options { write: true, create: true, ..Options::default() });
    // SAFETY: inside of `memory`.
    assert_eq!(unsafe { new.unwrap().write(memory.1, 4096, 0) }.unwrap(), 4096);
}
