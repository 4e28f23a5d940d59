//! BARs of devices that VFIO has, up to the calls: a file in place of the device, and a function in place of
//! ioctl(2). A process of its own, since the function has no state but the process's.

use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::Relaxed};

use p2pmem::publisher::bar::{DmaBuf, FEATURE, GET_REGION_INFO, RegionInfo, ioctl};
use p2pmem::publisher::{PAGE, Publisher, Region};
use p2pmem::{Error, Map, Orchestrator, Request, Rules, Topology};

/// BAR 2 is 16 pages long and begins at page 4 of the device's file.
const PAGES: u64 = 16;
const AT: u64 = 4;

/// What the kernel's driver answers: an errno, or 0.
static INFO: AtomicI32 = AtomicI32::new(0);
static EXPORT: AtomicI32 = AtomicI32::new(0);
static FLAGS: AtomicU32 = AtomicU32::new(4);

fn refuse(errno: i32) -> i32 {
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// As vfio-pci, by linux/vfio.h.
unsafe fn vfio(fd: RawFd, request: u64, argument: *mut c_void) -> i32 {
    // SAFETY: the caller says which structure it is.
    unsafe {
        match request {
            GET_REGION_INFO => {
                let info = &mut *argument.cast::<RegionInfo>();
                assert_eq!(info.argsz, 32);
                if INFO.load(Relaxed) != 0 {
                    return refuse(INFO.load(Relaxed));
                }
                if info.index != 2 {
                    (info.size, info.offset, info.flags) = (0, 0, 0);
                    return 0;
                }
                (info.size, info.offset, info.flags) = (PAGES * PAGE, AT * PAGE, FLAGS.load(Relaxed));
                0
            }
            FEATURE => {
                let ask = *argument.cast::<DmaBuf>();
                assert_eq!((ask.argsz, ask.feature, ask.ranges, ask.flags), (40, 1 << 16 | 11, 1, 0));
                assert_eq!(ask.open_flags as i32, libc::O_RDWR | libc::O_CLOEXEC);
                assert_eq!((ask.region, ask.offset, ask.len), (2, 2 * PAGE, 8 * PAGE));
                if EXPORT.load(Relaxed) != 0 {
                    return refuse(EXPORT.load(Relaxed));
                }
                libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0)
            }
            other => panic!("{other:#x}"),
        }
    }
}

fn device() -> OwnedFd {
    ipc::memfd::create(c"bar", ((AT + PAGES) * PAGE) as usize, ipc::memfd::Writers::All).unwrap()
}

fn of(device: OwnedFd, part: (u32, u64, u64)) -> Result<Region, Error> {
    Region::of_bar("fpga0", Some("0000:07:00.0".parse().unwrap()), device, part, vfio)
}

#[test]
fn a_bar_is_mapped_exported_and_given_and_each_refusal_has_its_words() {
    let part = (2, 2 * PAGE, 8 * PAGE);
    let file = device();
    let all = Orchestrator::new(
        Topology::parse(include_str!("trees/switches-intel.tree")).unwrap(),
        Rules::parse("prefer publisher=kind:vfio").unwrap(),
        Some(1),
    );
    all.publish(Arc::new(of(file.try_clone().unwrap(), part).unwrap())).unwrap();
    let request =
        Request { clients: vec![all.client("mlx5_0").unwrap()], len: 3 * PAGE, ..Request::default() };
    let first = all.allocate(&request).unwrap();
    let second = all.allocate(&request).unwrap();
    assert_eq!((second.publisher(), second.routes()[0].1.map), ("fpga0", Map::BusAddress));
    // The CPU's way: at its place in the device's file.
    let at = second.map().unwrap()[0].addr();
    assert!(second.map().unwrap()[0].may_vanish() && p2pmem::peer::is_window(at, 3 * PAGE as usize));
    // SAFETY: mapped, and nothing else writes it.
    unsafe { std::ptr::with_exposed_provenance_mut::<u8>(at).write_volatile(0x5a) };
    let mut byte = [0u8];
    let place = (AT + 2 + 3) * PAGE;
    // SAFETY: `byte` is a valid place.
    let got = unsafe { libc::pread(file.as_raw_fd(), byte.as_mut_ptr().cast(), 1, place as libc::off_t) };
    assert_eq!((got, byte), (1, [0x5a]));
    // A driver's: each buffer has its place in the one dma-buf.
    assert_eq!((first.dmabuf(0).unwrap().1, second.dmabuf(0).unwrap().1), (0, 3 * PAGE));
    assert!(second.dmabuf(0).unwrap().0.as_fd().try_clone_to_owned().is_ok() && second.dmabuf(1).is_err());
    drop((first, second));

    // No dma-buf: the memory is there all the same, and why there is none is reported.
    for (errno, words) in [
        (libc::ENOTTY, "since 6.19"),
        (libc::EOPNOTSUPP, "shows other BARs"),
        (libc::EINVAL, "passes nothing"),
        (libc::ENODEV, "being reset"),
        (libc::EPERM, "may not"),
        (libc::EMFILE, "VFIO_DEVICE_FEATURE_DMA_BUF"),
    ] {
        EXPORT.store(errno, Relaxed);
        let region = of(device(), part).unwrap();
        let (taken, _) = region.take(PAGE, 1).unwrap();
        let error = region.dmabuf(taken).unwrap().unwrap_err();
        assert!(error.errno() == errno && error.to_string().contains(words), "{error}");
        assert!(error.to_string().starts_with("fpga0: dma-buf: "), "{error}");
    }
    EXPORT.store(0, Relaxed);
    // Not mapped: the dma-buf is there all the same.
    FLAGS.store(0, Relaxed);
    all.unpublish("fpga0", p2pmem::Drain::IfIdle).unwrap();
    all.publish(Arc::new(of(device(), part).unwrap())).unwrap();
    let buffer = all.grant(&request).unwrap();
    assert!(buffer.map().unwrap_err().to_string().contains("does not let this BAR be mapped"));
    assert!(buffer.dmabuf(0).is_ok());
    FLAGS.store(4, Relaxed);
    // Mistakes.
    for part in [
        (2, 0, 17 * PAGE),
        (2, 1, PAGE),
        (2, 0, 100),
        (2, 0, 0),
        (2, u64::MAX - 4095, PAGE),
        (1, 0, PAGE),
        (7, 0, PAGE),
    ] {
        assert_eq!(of(device(), part).unwrap_err().errno(), libc::EINVAL, "{part:?}");
    }
    INFO.store(libc::EINVAL, Relaxed);
    assert!(of(device(), part).unwrap_err().to_string().contains("BARs are 0 to 5"));
    INFO.store(0, Relaxed);
    // The real call, of what is no device.
    let error = Region::of_bar("x", None, device(), part, ioctl).unwrap_err();
    assert!(error.to_string().contains("no device of VFIO's"), "{error}");
}
