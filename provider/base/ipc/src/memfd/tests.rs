//! Descriptors of a hostile process.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::Ordering::Relaxed;

use super::*;

const LEN: usize = 8192;

fn memfd(flags: libc::c_uint, len: usize, seals: libc::c_int) -> OwnedFd {
    let flags = flags | libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string; the descriptor is new.
    let fd = unsafe { OwnedFd::from_raw_fd(cvt(libc::memfd_create(c"test".as_ptr(), flags)).unwrap()) };
    set_size(&fd, len).unwrap();
    add_seals(&fd, seals).unwrap();
    fd
}

fn set_size(fd: &OwnedFd, len: usize) -> io::Result<()> {
    // SAFETY: `ftruncate` touches no memory.
    cvt(unsafe { libc::ftruncate(fd.as_raw_fd(), len as libc::off_t) }).map(drop)
}

fn why(got: Result<usize, Unfit>) -> &'static str {
    match got {
        Ok(_) => "fit",
        Err(Unfit::Kind) => "kind",
        Err(Unfit::Seals) => "seals",
        Err(Unfit::Size) => "size",
        Err(Unfit::NoRoom(_)) => "no room",
    }
}

#[test]
fn a_sealed_memfd_of_the_agreed_size_is_fit() {
    let fd = memfd(0, LEN, FIXED);
    assert_eq!(vet(&fd, FIXED, LEN..=LEN).unwrap(), LEN);
    assert_eq!(vet(&fd, FIXED, ..).unwrap(), LEN);
    assert_eq!(vet(memfd(0, LEN, NO_SHRINK), NO_SHRINK, LEN..).unwrap(), LEN);
    // What is made here is, either way.
    assert_eq!(vet(create(c"test", LEN, Writers::All).unwrap(), FIXED, ..).unwrap(), LEN);
    let fd = create(c"test", LEN, Writers::UntilSealed).unwrap();
    assert_eq!(why(vet(&fd, FIXED, ..)), "seals");
    seal(&fd);
    assert_eq!(vet(&fd, FIXED, ..).unwrap(), LEN);
}

#[test]
fn what_is_no_memfd_is_refused() {
    let mut ends = [-1; 2];
    // SAFETY: a valid place for two descriptors, which are new.
    let ends = unsafe {
        cvt(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC)).unwrap();
        ends.map(|fd| OwnedFd::from_raw_fd(fd))
    };
    for pipe in ends {
        assert_eq!(why(vet(pipe, NO_SHRINK, ..)), "kind");
    }
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    assert_eq!(why(vet(socket, NO_SHRINK, ..)), "kind");
    // The file system may be a tmpfs.
    assert_ne!(why(vet(File::open("/dev/zero").unwrap(), NO_SHRINK, ..)), "fit");
    assert_ne!(why(vet(File::open("/proc/self/exe").unwrap(), NO_SHRINK, ..)), "fit");
    // A file of a tmpfs that is no memfd.
    let path = format!("/dev/shm/strait-test-{}", std::process::id());
    if let Ok(file) = File::create(&path) {
        std::fs::remove_file(&path).unwrap();
        file.set_len(LEN as u64).unwrap();
        assert_eq!(why(vet(&file, NO_SHRINK, ..)), "seals");
    }
}

#[test]
fn a_memfd_that_lacks_a_seal_is_refused() {
    for missing in [libc::F_SEAL_SHRINK, libc::F_SEAL_GROW, libc::F_SEAL_SEAL] {
        let fd = memfd(0, LEN, FIXED & !missing);
        assert_eq!(why(vet(&fd, FIXED, ..)), "seals", "{missing}");
    }
    // The one against SIGBUS is asked for in any case.
    assert_eq!(why(vet(memfd(0, LEN, libc::F_SEAL_GROW), 0, ..)), "seals");
    // One that does not allow seals says that it is sealed, against seals.
    // SAFETY: the name is a C string; the descriptor is new.
    let fd = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC)) };
    set_size(&fd, LEN).unwrap();
    assert_eq!(why(vet(&fd, libc::F_SEAL_SEAL, ..)), "seals");
}

#[test]
fn a_memfd_of_another_size_is_refused() {
    let fd = memfd(0, LEN, FIXED);
    assert_eq!(why(vet(&fd, FIXED, LEN + 1..)), "size");
    assert_eq!(why(vet(&fd, FIXED, ..LEN)), "size");
    assert_eq!(why(vet(&fd, FIXED, LEN + 4096..=LEN + 4096)), "size");
    assert_eq!(why(vet(memfd(0, 0, FIXED), FIXED, ..)), "size", "nothing can be mapped of it");
}

#[test]
fn a_memfd_of_huge_pages_is_refused() {
    const HUGE: usize = 2 << 20;
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | libc::MFD_HUGETLB;
    // SAFETY: the name is a C string; the descriptor is new.
    let raw = unsafe { libc::memfd_create(c"test".as_ptr(), flags) };
    if raw < 0 {
        eprintln!("skipped: no huge pages here");
        return;
    }
    // SAFETY: as above.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    set_size(&fd, HUGE).unwrap();
    add_seals(&fd, FIXED).unwrap();
    assert_eq!(why(vet(&fd, FIXED, HUGE..=HUGE)), "kind");
}

#[test]
fn what_was_found_fit_stays_so() {
    let fd = memfd(0, LEN, FIXED);
    let theirs = fd.try_clone().unwrap();
    let mapping = adopt(&fd, LEN..=LEN).unwrap();
    assert!(set_size(&theirs, LEN - 4096).is_err(), "it shrank");
    assert!(set_size(&theirs, LEN + 4096).is_err(), "it grew");
    assert!(add_seals(&theirs, libc::F_SEAL_WRITE).is_err(), "it was sealed further");
    // One that only cannot shrink may grow, which does not matter to what is mapped.
    let grows = memfd(0, LEN, NO_SHRINK);
    let len = vet(&grows, NO_SHRINK, ..).unwrap();
    set_size(&grows, 2 * LEN).unwrap();
    assert!(set_size(&grows, LEN).is_err(), "it shrank");
    let grown = Mapping::new(&grows, len, None).unwrap();
    // Memory that is taken back page by page reads as zeros.
    File::from(theirs.try_clone().unwrap()).write_at(&[7; 8], 4096).unwrap();
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: `fallocate` touches no memory.
    assert_eq!(unsafe { libc::fallocate(theirs.as_raw_fd(), punch, 0, LEN as libc::off_t) }, 0);
    for of in [&mapping, &grown] {
        // SAFETY: an aligned word inside.
        let words = unsafe { (of.word(4096), of.wide(LEN - 8)) };
        assert_eq!((words.0.load(Relaxed), words.1.load(Relaxed)), (0, 0));
    }
}

#[test]
fn memory_that_is_sealed_for_writers_is_mapped_by_readers_alone() {
    let fd = create(c"test", LEN, Writers::UntilSealed).unwrap();
    let mine = Mapping::new(&fd, LEN, None).unwrap();
    seal(&fd);
    // SAFETY: an aligned word inside, which may be written.
    unsafe { mine.word(64) }.store(5, Relaxed);
    let theirs = adopt_read_only(&fd, LEN..=LEN).unwrap();
    // SAFETY: an aligned word inside.
    assert_eq!(unsafe { theirs.word(64) }.load(Relaxed), 5);
    assert!(matches!(adopt(&fd, LEN..=LEN), Err(Unfit::NoRoom(_))), "mapped to be written");
}
