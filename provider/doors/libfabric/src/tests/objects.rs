//! Opening and closing, and what is asked wrongly.

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use super::*;

#[test]
fn what_is_in_use_stays_open() {
    let w = World::new(Setting::default());
    assert_eq!(close(w.domain), BUSY);
    assert_eq!(close(w.fabric), BUSY);
    let (ep, _) = w.ep();
    for part in [w.cq.cast::<fi::fid>(), w.cntr.cast(), w.av.cast()] {
        assert_eq!(close(part), BUSY);
    }
    assert_eq!(close(ep), 0);
    let mr = w.register(leak([0u8; 8]).cast(), 8, 1);
    assert_eq!(bind(mr, w.cntr, fi::FI_REMOTE_WRITE), 0);
    assert_eq!(close(w.cntr), BUSY);
    assert_eq!(close(mr), 0);
    w.end();
}

#[test]
fn objects_of_another_kind_are_refused() {
    let w = World::new(Setting::default());
    let mut entry = fi::fi_cq_data_entry::default();
    // SAFETY: an open object, though not a completion queue, and a full table.
    let n = unsafe { ((*(*w.cq).ops).read.unwrap())(w.av.cast(), (&raw mut entry).cast(), 1) };
    assert_eq!(n, -(fi::FI_EINVAL as isize));
    // SAFETY: as above, and NULL is for the function to find.
    let n = unsafe { ((*(*w.cq).ops).read.unwrap())(ptr::null_mut(), NO, 1) };
    assert_eq!(n, -(fi::FI_EINVAL as isize));
    assert_eq!(bind(w.av, w.cq, 0), -fi::FI_EINVAL);
    w.end();
}

#[test]
fn registrations_without_remote_access_share_a_key() {
    let w = World::new(Setting::default());
    let at: *mut c_void = leak([0u8; 64]).cast();
    let local = |key| {
        let mut mr = ptr::null_mut();
        assert_eq!(call!(w.domain, mr.reg(at, 64, fi::FI_SEND | fi::FI_RECV, 0, key, 0, &mut mr, NO)), 0);
        mr
    };
    let all = [local(0), local(0), w.register(at, 64, 0), w.register(ptr::null_mut(), usize::MAX, 7)];
    // SAFETY: registrations that are open.
    let (desc, key) = unsafe { ((*all[3]).mem_desc, (*all[3]).key) };
    assert_eq!((desc, key), (all[3].cast(), 7));
    let mut mr = ptr::null_mut();
    let rc = call!(w.domain, mr.reg(at, 64, fi::FI_REMOTE_READ, 0, 7, 0, &mut mr, NO));
    assert_eq!(rc, -fi::FI_ENOKEY);
    for mr in all {
        assert_eq!(call_fid!(mr, control(fi::FI_ENABLE, NO)), 0);
        assert_eq!(close(mr), 0);
    }
    w.end();
}

#[test]
fn memory_that_is_registered_stays_with_fi_mr_allocated_and_all_memory_does_not() {
    let w = World::new(Setting::default());
    // SAFETY: attributes that `World` has leaked.
    unsafe { (*(*w.info).domain_attr).mr_mode = fi::FI_MR_ALLOCATED };
    let mut domain = ptr::null_mut();
    assert_eq!(call!(w.fabric, ops.domain(w.info, &mut domain, NO)), 0);
    let at: *mut c_void = leak([0u8; 64]).cast();
    for (domain, at, len, stays) in [
        (domain, at, 64, true),
        (domain, ptr::null_mut(), usize::MAX, false),
        (w.domain, at, 64, false),
        (w.domain, ptr::null_mut(), usize::MAX, false),
    ] {
        let (mut mr, access) = (ptr::null_mut(), fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE);
        assert_eq!(call!(domain, mr.reg(at, len, access, 0, 1, 0, &mut mr, NO)), 0);
        // SAFETY: an open registration.
        let memory = unsafe { (*mr.cast::<crate::mr::MrFid>()).memory };
        assert_eq!(memory.for_peers().stays(), stays, "{memory:?}");
        assert_eq!(close(mr), 0);
    }
    assert_eq!(close(domain), 0);
    w.end();
}

#[test]
fn device_memory_is_refused_by_name() {
    let w = World::new(Setting::default());
    let iov = libc::iovec { iov_base: leak([0u8; 8]).cast(), iov_len: 8 };
    let attr = fi::fi_mr_attr {
        anon1: fi::fi_mr_attr__bindgen_ty_1 { mr_iov: &raw const iov },
        iov_count: 1,
        iface: fi::FI_HMEM_ROCR,
        ..Default::default()
    };
    let mut mr = ptr::null_mut();
    assert_eq!(call!(w.domain, mr.regattr(&attr, 0, &mut mr)), -fi::FI_EOPNOTSUPP);
    let attr = fi::fi_mr_attr { iface: fi::FI_HMEM_SYSTEM, ..attr };
    assert_eq!(call!(w.domain, mr.regattr(&attr, 0, &mut mr)), 0);
    assert_eq!(close(mr), 0);
    w.end();
}

/// A memfd that stands for a dma-buf, and its mapping, which stays.
pub(super) fn memfd(len: usize) -> (OwnedFd, *mut c_void) {
    // SAFETY: a name, and numbers; the descriptor is new.
    let fd =
        unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"dma-buf".as_ptr(), libc::MFD_ALLOW_SEALING)) };
    let (raw, both) = (fd.as_raw_fd(), libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: numbers, and a mapping where the kernel finds room.
    let base = unsafe {
        assert_eq!(libc::ftruncate(raw, len as libc::off_t), 0);
        assert_eq!(libc::fcntl(raw, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK), 0);
        libc::mmap(ptr::null_mut(), len, both, libc::MAP_SHARED, raw, 0)
    };
    assert_ne!(base, libc::MAP_FAILED);
    (fd, base)
}

/// A domain with FI_MR_ALLOCATED.
fn allocated(w: &World) -> *mut fi::fid_domain {
    // SAFETY: attributes that `World` has leaked.
    unsafe { (*(*w.info).domain_attr).mr_mode = fi::FI_MR_ALLOCATED };
    let mut domain = ptr::null_mut();
    assert_eq!(call!(w.fabric, ops.domain(w.info, &mut domain, NO)), 0);
    domain
}

pub(super) fn register_dmabuf(domain: *mut fi::fid_domain, of: fi::fi_mr_dmabuf) -> (c_int, *mut fi::fid_mr) {
    register_dmabufs(domain, &[of])
}

fn register_dmabufs(domain: *mut fi::fid_domain, of: &[fi::fi_mr_dmabuf]) -> (c_int, *mut fi::fid_mr) {
    let attr = fi::fi_mr_attr {
        anon1: fi::fi_mr_attr__bindgen_ty_1 { dmabuf: of.as_ptr() },
        iov_count: of.len(),
        iface: fi::FI_HMEM_SYSTEM,
        access: fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE,
        requested_key: of[0].offset,
        ..Default::default()
    };
    let mut mr = ptr::null_mut();
    (call!(domain, mr.regattr(&attr, fi::FI_MR_DMABUF, &mut mr)), mr)
}

#[test]
fn a_dmabuf_is_found_by_its_memory_until_the_registration_is_closed() {
    let w = World::new(Setting::default());
    let domain = allocated(&w);
    let len = 16 << 10;
    let (fd, base) = memfd(len);
    let regattr = |of| register_dmabuf(domain, of);
    let all = fi::fi_mr_dmabuf { fd: fd.as_raw_fd(), offset: 0, len, base_addr: base };
    let unmapped = fi::fi_mr_dmabuf { base_addr: ptr::null_mut(), ..all };
    assert_eq!(regattr(unmapped).0, -fi::FI_EOPNOTSUPP);
    assert_eq!(
        register_dmabufs(domain, &[all, all]).0,
        -fi::FI_EINVAL,
        "only the first one would be registered"
    );
    for fd in [-1, 1 << 20] {
        assert_eq!(regattr(fi::fi_mr_dmabuf { fd, ..all }).0, -libc::EBADF, "{fd}");
    }
    let other = std::fs::File::open("/dev/null").expect("no dma-buf");
    assert_eq!(regattr(fi::fi_mr_dmabuf { fd: other.as_raw_fd(), ..all }).0, -fi::FI_EINVAL);
    for (offset, len) in [(0, len + 1), (len as u64 - 7, 8), (0, 0), (u64::MAX, 1)] {
        assert_eq!(regattr(fi::fi_mr_dmabuf { offset, len, ..all }).0, -fi::FI_EINVAL, "{offset} {len}");
    }
    let [(one, first), (two, second)] =
        [(0, len), (100, 5000)].map(|(offset, len)| regattr(fi::fi_mr_dmabuf { offset, len, ..all }));
    assert_eq!((one, two), (0, 0));
    // Where it has not agreed to FI_MR_ALLOCATED, other memory may be mapped there: its address alone counts.
    let end = fi::fi_mr_dmabuf { offset: 8192, len: 8192, ..all };
    let (rc, other) = register_dmabuf(w.domain, end);
    // The program may close its own.
    drop(fd);
    // SAFETY: memory that nothing here follows.
    let at = |off: usize| unsafe { hmem::Span::new(base as usize + off, 8, hmem::Kind::System) };
    let offset = |off| hmem::share::find_dmabuf(at(off)).map(|(_, offset)| offset);
    assert_eq!((offset(0), offset(100), offset(len - 8)), (Some(0), Some(100), Some(len as u64 - 8)));
    assert_eq!((rc, close(first)), (0, 0));
    assert_eq!(offset(8192), None);
    assert_eq!(close(other), 0);
    assert_eq!((offset(0), offset(100), offset(5092), offset(5093)), (None, Some(100), Some(5092), None));
    assert_eq!(close(second), 0);
    assert_eq!((offset(100), close(domain)), (None, 0));
    w.end();
}

#[test]
fn a_dmabuf_is_registered_by_its_address_where_there_is_no_room_for_a_descriptor() {
    if !alone() {
        return;
    }
    let w = World::new(Setting::default());
    let domain = allocated(&w);
    let len = 16 << 10;
    let [(fd, base), (other, at)] = [(); 2].map(|()| memfd(len));
    let of = |fd: &OwnedFd, base_addr, offset| {
        let of = fi::fi_mr_dmabuf { fd: fd.as_raw_fd(), offset, len: 4096, base_addr };
        register_dmabuf(domain, of)
    };
    let (rc, first) = of(&fd, base, 0);
    assert_eq!(rc, 0);
    let few = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
    // SAFETY: a valid place.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &few) }, 0);
    let mut all = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        all.push(file);
    }
    // One of the same dma-buf needs none.
    let [(one, second), (two, third)] = [of(&fd, base, 4096), of(&other, at, 8192)];
    assert_eq!((one, two), (0, 0));
    drop(all);
    // SAFETY: memory that nothing here follows.
    let span = |base, off| unsafe { hmem::Span::new(base as usize + off, 8, hmem::Kind::System) };
    let is_named = |base: *mut c_void, off| hmem::share::has_dmabuf(span(base, off));
    assert_eq!((is_named(base, 4096), is_named(at, 8192)), (true, false));
    assert_eq!([first, second, third].map(close), [0; 3]);
    assert_eq!(close(domain), 0);
    w.end();
}

#[test]
fn an_address_comes_back_as_it_went_in() {
    let w = World::new(Setting::default());
    let (ep, name) = w.ep();
    let addr = w.insert(&name);
    assert_eq!((addr, w.insert(&name)), (0, 1));
    let (mut back, mut len) = ([0u8; 64], 64);
    assert_eq!(call!(w.av, ops.lookup(addr, back.as_mut_ptr().cast(), &mut len)), 0);
    assert_eq!(&back[..len], &name[..]);
    assert_eq!(call!(w.av, ops.lookup(9, back.as_mut_ptr().cast(), &mut len)), -fi::FI_EINVAL);
    let (mut text, mut len) = ([0 as libc::c_char; 64], 64);
    call!(w.av, ops.straddr(name.as_ptr().cast(), text.as_mut_ptr(), &mut len));
    // SAFETY: `straddr` ends what it writes with NUL.
    let text = unsafe { std::ffi::CStr::from_ptr(text.as_ptr()) }.to_str().unwrap();
    assert!(text.starts_with("fi_sockaddr_in://") && text.len() + 1 == len, "{text} {len}");
    let remove = |at| call!(w.av, ops.remove([at].as_mut_ptr(), 1, 0));
    assert_eq!(remove(addr), 0);
    for none in [addr, 2, 1 << 40, fi::FI_ADDR_UNSPEC] {
        assert_eq!(remove(none), -fi::FI_EINVAL, "{none}");
    }
    assert_eq!(close(ep), 0);
    w.end();
}

#[test]
fn every_version_gets_an_error_entry_of_its_length() {
    for (api, bytes) in [((1, 4), 72), ((1, 19), 80), ((1, 20), 88)] {
        let w = World::new(Setting { api, ..Setting::default() });
        let (ep, _) = w.ep();
        let into: *mut c_void = leak([0u8; 8]).cast();
        assert_eq!(call!(ep, msg.recv(into, 8, NO, fi::FI_ADDR_UNSPEC, into)), 0);
        // SAFETY: an open endpoint with full tables.
        assert_eq!(unsafe { ((*(*ep).ops).cancel.unwrap())(ep.cast(), into) }, 0);
        assert_eq!(w.read().unwrap_err(), -(fi::FI_EAVAIL as isize));
        let mut entry = [0xffu8; 96];
        entry[72..80].fill(0);
        assert_eq!(call!(w.cq, ops.readerr(entry.as_mut_ptr().cast(), 0)), 1);
        assert_eq!(entry[56..60], fi::FI_ECANCELED.to_ne_bytes());
        if api.1 == 20 {
            assert_eq!(entry[80..88], fi::FI_ADDR_NOTAVAIL.to_ne_bytes());
        }
        assert!(entry[bytes.max(80)..].iter().all(|b| *b == 0xff), "{api:?}");
        assert_eq!(call!(w.cq, ops.readerr(entry.as_mut_ptr().cast(), 0)), AGAIN);
        let number = c_int::from_ne_bytes(entry[60..64].try_into().unwrap());
        let text = call!(w.cq, ops.strerror(number, NO, ptr::null_mut(), 0));
        // SAFETY: a string that lives for ever.
        assert_eq!(unsafe { std::ffi::CStr::from_ptr(text) }, c"cancelled by the application");
        assert_eq!(close(ep), 0);
        w.end();
    }
}

/// Flags that are not offered are refused by each call that opens or binds.
/// A queue of FI_PEER would never get an entry: nothing here writes to another provider's.
#[test]
fn open_and_bind_calls_refuse_flags_not_offered() {
    const REFUSED: c_int = -fi::FI_EBADFLAGS;
    let w = World::new(Setting::default());
    let (mut cq, mut eq) = (ptr::null_mut::<fi::fid_cq>(), ptr::null_mut::<fi::fid_eq>());
    let (mut cntr, mut av) = (ptr::null_mut::<fi::fid_cntr>(), ptr::null_mut::<fi::fid_av>());
    for flags in [fi::FI_PEER, fi::FI_XPU, fi::FI_PEER | fi::FI_AFFINITY, 1 << 62] {
        let attr = &mut fi::fi_cq_attr { flags, ..Default::default() };
        assert_eq!(call!(w.domain, ops.cq_open(attr, &mut cq, NO)), REFUSED, "{flags:#x}");
        let attr = &mut fi::fi_eq_attr { flags, ..Default::default() };
        assert_eq!(call!(w.fabric, ops.eq_open(attr, &mut eq, NO)), REFUSED, "{flags:#x}");
        let attr = &mut fi::fi_cntr_attr { flags, ..Default::default() };
        assert_eq!(call!(w.domain, ops.cntr_open(attr, &mut cntr, NO)), REFUSED, "{flags:#x}");
        let attr = &mut fi::fi_av_attr { flags, ..Default::default() };
        assert_eq!(call!(w.domain, ops.av_open(attr, &mut av, NO)), REFUSED, "{flags:#x}");
        let mut attr = fi::fi_atomic_attr::default();
        let sum = call!(w.domain, ops.query_atomic(fi::FI_UINT64, fi::FI_SUM, &mut attr, flags));
        assert_eq!(sum, REFUSED, "{flags:#x}");
        let (mut code, mut event) = (0, [0u8; 64]);
        let (at, len) = (event.as_mut_ptr().cast(), event.len());
        let refused = REFUSED as isize;
        assert_eq!(call!(w.eq, ops.read(&mut code, at, len, flags)), refused, "{flags:#x}");
        assert_eq!(call!(w.eq, ops.sread(&mut code, at, len, 0, flags)), refused, "{flags:#x}");
        assert_eq!(call!(w.eq, ops.readerr(&mut fi::fi_eq_err_entry::default(), flags)), refused);
        assert_eq!(call!(w.eq, ops.write(9, at, len, flags)), refused, "{flags:#x}");
        assert_eq!(call!(w.cq, ops.readerr(&mut fi::fi_cq_err_entry::default(), flags)), refused);
    }
    // The processor that interrupts had better go to is a hint, and there are none.
    let attr = &mut fi::fi_cq_attr { flags: fi::FI_AFFINITY, signaling_vector: 1, ..Default::default() };
    assert_eq!(call!(w.domain, ops.cq_open(attr, &mut cq, NO)), 0);
    let attr = &mut fi::fi_eq_attr {
        flags: fi::FI_AFFINITY | fi::FI_WRITE,
        signaling_vector: 1,
        ..Default::default()
    };
    assert_eq!(call!(w.fabric, ops.eq_open(attr, &mut eq, NO)), 0);
    assert_eq!((close(cq), close(eq)), (0, 0));

    let (ep, _) = w.ep();
    let mr = w.register(leak([0u8; 8]).cast(), 8, 1);
    assert_eq!(bind(mr, ep, fi::FI_REMOTE_WRITE), REFUSED);
    assert_eq!(bind(mr, w.cntr, fi::FI_REMOTE_WRITE | fi::FI_PEER), REFUSED);
    assert_eq!(bind(mr, ep, 0), 0);
    assert_eq!((close(mr), close(ep)), (0, 0));
    w.end();
}
