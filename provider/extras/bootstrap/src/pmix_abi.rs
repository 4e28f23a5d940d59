//! The part of libpmix's binary interface that is used here: since version 2, in 64-bit processes.

use std::ffi::{c_char, c_int};

pub(crate) const SUCCESS: c_int = 0;
pub(crate) const RANK_WILDCARD: u32 = u32::MAX - 1;
/// Put for processes on this host and on others.
pub(crate) const GLOBAL: u8 = 3;
pub(crate) const BOOL: u16 = 1;
pub(crate) const UINT32: u16 = 14;
pub(crate) const BYTE_OBJECT: u16 = 27;
pub(crate) const COLLECT_DATA: &[u8] = b"pmix.collect";
pub(crate) const JOB_SIZE: &[u8] = b"pmix.job.size";

/// `pmix_proc_t`
#[repr(C)]
#[derive(Clone, Debug)]
pub(crate) struct Proc {
    pub(crate) nspace: [c_char; 256],
    pub(crate) rank: u32,
}

/// `pmix_byte_object_t`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes {
    pub(crate) bytes: *mut c_char,
    pub(crate) size: usize,
}

/// The members of `pmix_value_t.data` that are used here, and the longest one.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union Data {
    pub(crate) flag: bool,
    pub(crate) uint32: u32,
    pub(crate) bytes: Bytes,
    pub(crate) longest: [u64; 3],
}

/// `pmix_value_t`
#[repr(C)]
pub(crate) struct Value {
    pub(crate) kind: u16,
    pub(crate) data: Data,
}

/// `pmix_info_t`
#[repr(C)]
pub(crate) struct Info {
    pub(crate) key: [c_char; 512],
    pub(crate) flags: u32,
    pub(crate) value: Value,
}

const _: () = assert!(size_of::<Proc>() == 260 && size_of::<Value>() == 32 && size_of::<Info>() == 552);

pub(crate) type InitFn = unsafe extern "C" fn(*mut Proc, *mut Info, usize) -> c_int;
pub(crate) type FinalizeFn = unsafe extern "C" fn(*const Info, usize) -> c_int;
pub(crate) type PutFn = unsafe extern "C" fn(u8, *const c_char, *mut Value) -> c_int;
pub(crate) type CommitFn = unsafe extern "C" fn() -> c_int;
pub(crate) type FenceFn = unsafe extern "C" fn(*const Proc, usize, *const Info, usize) -> c_int;
pub(crate) type GetFn =
    unsafe extern "C" fn(*const Proc, *const c_char, *const Info, usize, *mut *mut Value) -> c_int;
pub(crate) type ErrorFn = unsafe extern "C" fn(c_int) -> *const c_char;

/// A C string in an array of so many characters.
pub(crate) fn key<const N: usize>(text: &[u8]) -> [c_char; N] {
    let mut key = [0; N];
    for (to, from) in key[..N - 1].iter_mut().zip(text) {
        *to = *from as c_char;
    }
    key
}
