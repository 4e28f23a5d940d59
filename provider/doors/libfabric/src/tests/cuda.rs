//! Device memory, over the stand-in for CUDA's driver.

use std::os::fd::AsRawFd as _;

use cuda_stand_in::driver::Driver;
use hmem::path::Path;

use super::*;
use crate::hmem_ops::{Answer, HmemOps, NAME};

fn regattr(w: &World, at: usize, len: usize, iface: fi::fi_hmem_iface) -> Result<*mut fi::fid_mr, c_int> {
    let iov = libc::iovec { iov_base: ptr::with_exposed_provenance_mut(at), iov_len: len };
    let anon1 = fi::fi_mr_attr__bindgen_ty_1 { mr_iov: &raw const iov };
    let attr = fi::fi_mr_attr { anon1, iov_count: 1, iface, ..Default::default() };
    let mut mr = ptr::null_mut();
    match call!(w.domain, mr.regattr(&attr, 0, &mut mr)) {
        0 => Ok(mr),
        e => Err(e),
    }
}

fn path(w: &World, mr: *mut fi::fid_mr) -> (u32, [i32; Path::COUNT], String) {
    let mut ops: *mut HmemOps = ptr::null_mut();
    let at = (&raw mut ops).cast();
    assert_eq!(call_fid!(w.domain, ops_open(c"other".as_ptr(), 0, at, NO)), -fi::FI_ENOSYS);
    assert_eq!(call_fid!(w.domain, ops_open(NAME.as_ptr(), 0, at, NO)), 0);
    let mut answer = Answer { size: 8, path: 99, refused: [0; Path::COUNT], why: [0; 256] };
    // SAFETY: the table that was opened, an open registration, and an answer with its size.
    let rc = |a: &mut Answer| unsafe { ((*ops).mr_query_path)(mr, a) };
    assert_eq!(rc(&mut answer), -fi::FI_EINVAL, "an answer that is too small");
    answer.size = size_of::<Answer>();
    assert_eq!(rc(&mut answer), 0);
    // SAFETY: it ends in NUL.
    let why = unsafe { std::ffi::CStr::from_ptr(answer.why.as_ptr()) };
    (answer.path, answer.refused, why.to_str().unwrap().to_owned())
}

#[test]
fn a_registration_says_by_which_path_it_is_reached() {
    let cu = Driver::start();
    let w = World::new(Setting::default());
    let (plain, pool, host) = (cu.alloc(100), cu.alloc_async(100), Box::new([0u8; 100]));
    for (at, iface, want) in [
        (plain, fi::FI_HMEM_CUDA, Path::PeerMap),
        (pool, fi::FI_HMEM_CUDA, Path::Staged),
        (plain, fi::FI_HMEM_SYSTEM, Path::PeerMap),
        ((&raw const *host).addr(), fi::FI_HMEM_SYSTEM, Path::Cpu),
    ] {
        let mr = regattr(&w, at, 100, iface).unwrap();
        let (path, refused, why) = path(&w, mr);
        assert_eq!(path, want as u32);
        assert_eq!(why.is_empty(), want == Path::Cpu);
        assert_eq!(refused[Path::PeerMap as usize] != 0, want == Path::Staged, "{why}");
        assert_eq!(close(mr), 0);
    }
    assert_eq!(regattr(&w, (&raw const *host).addr(), 8, fi::FI_HMEM_CUDA), Err(-fi::FI_EINVAL));
    assert_eq!(regattr(&w, plain, 8, fi::FI_HMEM_ROCR), Err(-fi::FI_EOPNOTSUPP));
    cu.free(plain);
    cu.free(pool);
    w.end();
}

type Found = (u32, [i32; Path::COUNT], String);

/// What is said of a GPU's memory and of the host's where the links `shm,verbs` have such devices, whose library is
/// the stand-in, and the driver exports dma-bufs with the PCIe flag, too.
fn with_adapter(devices: &str, orders: (i32, i32)) -> [Found; 2] {
    with_setting(devices, orders, Setting { mr_mode: fi::FI_MR_ALLOCATED, ..Setting::default() })
}

fn with_setting(devices: &str, (ordering, flush): (i32, i32), setting: Setting) -> [Found; 2] {
    // SAFETY: nothing reads the environment yet: each test is a process.
    unsafe { std::env::set_var("VERBS_STAND_IN_DEVICES", devices) };
    crate::param::set_links("shm,verbs");
    stand_in::program::Program::load("verbs_stand_in");
    let cu = Driver::start();
    cu.dmabufs(2);
    // CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, and ..._FLUSH_WRITES_OPTIONS.
    cu.attribute(118, ordering);
    cu.attribute(117, flush);
    let w = World::new(setting);
    let (at, host) = (cu.alloc(70_000), Box::new([0u8; 100]));
    let all = [(at, 70_000, fi::FI_HMEM_CUDA), ((&raw const *host).addr(), 100, fi::FI_HMEM_SYSTEM)];
    let found = all.map(|(at, len, iface)| {
        let mr = regattr(&w, at, len, iface).unwrap();
        let found = path(&w, mr);
        assert_eq!(close(mr), 0);
        found
    });
    cu.free(at);
    w.end();
    found
}

#[test]
fn a_registration_names_the_adapter_and_the_way_that_it_takes() {
    if !alone() {
        return;
    }
    let [gpu, host] = with_adapter("sv0", (100, 0));
    assert_eq!(gpu.0, Path::DmabufPcie as u32, "{}", gpu.2);
    let said =
        "sv0 port 1: Cuda by dma-buf over PCIe, Cuda for peers by dma-buf over PCIe, written without a flush";
    assert_eq!(gpu.2, said);
    assert_eq!(
        (host.0, host.2.as_str()),
        (Path::Cpu as u32, "sv0 port 1: System by address, System for peers by address")
    );
}

#[test]
fn a_registration_names_the_call_by_which_the_adapter_refuses_it() {
    if !alone() {
        return;
    }
    let [gpu, _] = with_adapter("sv0:nodmabuf", (100, 0));
    assert_eq!(gpu.0, Path::PeerMap as u32, "{}", gpu.2);
    assert_eq!(gpu.1[1..3], [libc::EOPNOTSUPP; 2]);
    let said =
        "sv0 port 1: Cuda by no way (not dma-buf over PCIe: ibv_reg_dmabuf_mr: Operation not supported";
    assert!(gpu.2.starts_with(said), "{}", gpu.2);
}

#[test]
fn a_registration_says_why_no_adapter_is_there() {
    if !alone() {
        return;
    }
    let [gpu, host] = with_adapter("sv0:down", (100, 0));
    assert_eq!((gpu.0, &gpu.1[1..3]), (Path::PeerMap as u32, &[libc::ENODEV; 2][..]));
    for found in [gpu, host] {
        assert_eq!(found.2, "sv0: port 1: it is not active");
    }
}

#[test]
fn a_registration_says_that_a_flush_follows_what_the_adapter_writes() {
    if !alone() {
        return;
    }
    let [gpu, _] = with_adapter("sv0", (0, 1));
    assert!(gpu.2.ends_with("written with a flush before the completion, by peers in frames"), "{}", gpu.2);
}

#[test]
fn a_registration_says_that_the_adapter_does_not_write_it() {
    if !alone() {
        return;
    }
    let [gpu, _] = with_adapter("sv0", (0, 0));
    assert!(gpu.2.ends_with("written in frames: no order of writes, and no flush"), "{}", gpu.2);
}

#[test]
fn a_registration_goes_in_frames_where_the_adapter_has_no_windows() {
    if !alone() {
        return;
    }
    for found in with_adapter("sv0:nomw", (100, 0)) {
        assert!(found.2.ends_with(" in frames: no memory windows of type 2B"), "{}", found.2);
        assert_eq!(found.1[1..3], [if found.0 == Path::Cpu as u32 { 0 } else { libc::EOPNOTSUPP }; 2]);
    }
}

#[test]
fn a_registration_goes_in_frames_where_the_adapter_has_no_reads() {
    if !alone() {
        return;
    }
    for found in with_adapter("sv0:reads=0", (100, 0)) {
        assert!(found.2.ends_with(" in frames: no RDMA reads"), "{}", found.2);
        assert_ne!(found.0, Path::DmabufPcie as u32);
    }
}

#[test]
fn host_memory_that_may_be_unmapped_goes_to_peers_in_frames() {
    if !alone() {
        return;
    }
    let [gpu, host] = with_setting("sv0", (100, 0), Setting::default());
    assert!(gpu.2.contains("Cuda for peers by dma-buf over PCIe"), "{}", gpu.2);
    let said = "System by address, System for peers in frames: the domain is without FI_MR_ALLOCATED";
    assert!(host.2.ends_with(said), "{}", host.2);
}

#[test]
fn a_registration_names_the_adapter_of_the_domains_address() {
    if !alone() {
        return;
    }
    let src = Some(std::net::Ipv4Addr::new(10, 1, 0, 2));
    let [gpu, _] = with_setting("sv0;sv1", (100, 0), Setting { src, ..Setting::default() });
    assert!(gpu.2.starts_with("sv1 port 1: "), "{}", gpu.2);
}

#[test]
fn a_registration_names_the_next_adapter_where_the_first_one_has_too_few_completions() {
    if !alone() {
        return;
    }
    let [gpu, _] = with_adapter("sv0:cqe=8;sv1", (100, 0));
    assert!(gpu.2.starts_with("sv1 port 1: "), "{}", gpu.2);
}

#[test]
fn a_registration_has_the_errno_of_the_call_that_keeps_the_adapter_from_being_used() {
    if !alone() {
        return;
    }
    // SAFETY: nothing reads the environment yet: each test is a process.
    unsafe { std::env::set_var("VERBS_STAND_IN_FAIL", "ibv_alloc_pd=12") };
    let [gpu, _] = with_adapter("sv0", (100, 0));
    assert_eq!(gpu.1[1..3], [libc::ENOMEM; 2]);
    assert!(gpu.2.starts_with("sv0 port 1: ibv_alloc_pd: "), "{}", gpu.2);
}

/// The dma-buf that the program has named is the way for peers, too.
#[test]
fn a_registration_of_a_dmabuf_names_that_for_peers() {
    if !alone() {
        return;
    }
    // SAFETY: nothing reads the environment yet: each test is a process.
    unsafe { std::env::set_var("VERBS_STAND_IN_DEVICES", "sv0") };
    crate::param::set_links("shm,verbs");
    stand_in::program::Program::load("verbs_stand_in");
    let w = World::new(Setting { mr_mode: fi::FI_MR_ALLOCATED, ..Setting::default() });
    let len = 16 << 10;
    let (fd, base) = objects::memfd(len);
    let of = fi::fi_mr_dmabuf { fd: fd.as_raw_fd(), offset: 0, len, base_addr: base };
    let (rc, mr) = objects::register_dmabuf(w.domain, of);
    assert_eq!(rc, 0);
    let found = path(&w, mr);
    let said = "sv0 port 1: System by the program's dma-buf, System for peers by the program's dma-buf";
    assert_eq!(found.2, said);
    assert_eq!(close(mr), 0);
    w.end();
}
