//! Device memory, over the stand-in for CUDA's driver.

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
