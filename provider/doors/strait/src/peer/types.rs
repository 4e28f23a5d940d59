//! Types of the header, and what its functions have in common.

#![allow(non_camel_case_types, reason = "names of C")]

use std::ffi::CStr;
use std::sync::Mutex;

use libc::{c_char, c_int, c_void};
use p2pmem::daemon::{Session, SharedBuffer};
use p2pmem::orchestrator::{NoticeId, Token};
use p2pmem::{Address, Buffer, Error, Map, Orchestrator};

/// strait_p2pmem_request.flags: no host memory, even if nothing else is to be had.
pub const STRAIT_P2PMEM_NO_HOST: u32 = 1;

/// strait_p2pmem_request.flags: memory will do that a process of another user has published, and can read and
/// write.
pub const STRAIT_P2PMEM_OTHER_USERS: u32 = 2;

/// strait_p2pmem_options.flags: what is published by way of the daemon is for other users too, if their
/// requests have STRAIT_P2PMEM_OTHER_USERS.
pub const STRAIT_P2PMEM_FOR_ALL_USERS: u32 = 1;

/// strait_p2pmem_publisher.flags: it is being unpublished, and gives nothing.
pub const STRAIT_P2PMEM_DRAINING: u32 = 1;
/// strait_p2pmem_publisher.flags: a process of this user has published it.
pub const STRAIT_P2PMEM_OWN: u32 = 2;

/// strait_p2pmem_route.map: by addresses of the bus, through a switch.
pub const STRAIT_P2PMEM_MAP_BUS_ADDRESS: u32 = 0;
/// strait_p2pmem_route.map: through the host bridge.
pub const STRAIT_P2PMEM_MAP_HOST_BRIDGE: u32 = 1;
/// strait_p2pmem_route.map: host memory.
pub const STRAIT_P2PMEM_MAP_HOST_MEMORY: u32 = 2;
/// strait_p2pmem_route.map: the client does not reach the memory.
pub const STRAIT_P2PMEM_MAP_NOT_SUPPORTED: u32 = 3;

/// strait_p2pmem_unpublish: only if no buffer of it is in use.
pub const STRAIT_P2PMEM_IF_IDLE: i64 = 0;
/// strait_p2pmem_unpublish: revoke its buffers.
pub const STRAIT_P2PMEM_REVOKE: i64 = -1;

/// How to open.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct strait_p2pmem_options {
    /// sizeof(struct strait_p2pmem_options).
    pub size: usize,
    /// The name of a daemon's socket (`strait p2pmemd`), its path if it begins with /, or "" for its usual
    /// name: memory comes from there, and of the other fields `rules` and `flags` alone are used. NULL: this
    /// process has publishers of its own.
    pub daemon: *const c_char,
    /// The directory that is read instead of /sys, or NULL.
    pub sysfs: *const c_char,
    /// Rules, one a line, or NULL. With a daemon they are for this process's requests, behind the daemon's.
    pub rules: *const c_char,
    /// Host memory to publish as the last resort, in bytes: 0, or 4096 and more.
    pub host: u64,
    /// Of STRAIT_P2PMEM_FOR_ALL_USERS.
    pub flags: u32,
    /// 0.
    pub reserved: u32,
}

/// The request.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct strait_p2pmem_request {
    /// sizeof(struct strait_p2pmem_request).
    pub size: usize,
    /// Bytes. Whole pages are given.
    pub len: u64,
    /// A power of two, or 0 for a page's: of the address of memory that a program gave, of the place in a
    /// file or BAR that it gave. Others refuse more than 4096.
    pub align: u64,
    /// The devices that are to reach it: `client_count` addresses (0000:3a:00.0) or names (mlx5_0, nvme0).
    pub clients: *const *const c_char,
    /// How many they are. With 0, any memory will do.
    pub client_count: usize,
    /// In how many pieces it may be, or 0 for one.
    pub segments: u32,
    /// Of STRAIT_P2PMEM_NO_HOST and STRAIT_P2PMEM_OTHER_USERS.
    pub flags: u32,
    /// A name that rules can refer to, or NULL.
    pub job: *const c_char,
}

/// A piece of a buffer.
#[repr(C)]
#[derive(Debug)]
pub struct strait_p2pmem_segment {
    /// Where it is in this process. Of a kind of memory that the CPU cannot access it is the device's
    /// address.
    pub addr: *mut c_void,
    /// Bytes.
    pub len: usize,
}

/// What a buffer is.
#[repr(C)]
#[derive(Debug)]
pub struct strait_p2pmem_info {
    /// In: sizeof(struct strait_p2pmem_info).
    pub size: usize,
    /// Out: bytes.
    pub len: u64,
    /// Out: how many pieces it has.
    pub segments: u32,
    /// Out: 1 if it was taken back: free it.
    pub revoked: u32,
    /// Out: the publisher's name.
    pub publisher: [c_char; 72],
    /// Out: the publisher's kind: sysfs, host, file, cuda, ...
    pub kind: [c_char; 16],
}

/// How a device reaches a publisher's memory.
#[repr(C)]
#[derive(Debug)]
pub struct strait_p2pmem_route {
    /// In: sizeof(struct strait_p2pmem_route).
    pub size: usize,
    /// Out: one of STRAIT_P2PMEM_MAP_.
    pub map: u32,
    /// Out: steps.
    pub distance: u32,
    /// Out: why it is so, in words.
    pub why: [c_char; 496],
}

/// A publisher, and how some devices reach it together.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct strait_p2pmem_publisher {
    /// In, of the first of a list: sizeof(struct strait_p2pmem_publisher).
    pub size: usize,
    /// Out: bytes in all.
    pub bytes: u64,
    /// Out: bytes that are free.
    pub available: u64,
    /// Out: buffers of it.
    pub buffers: u32,
    /// Out: of STRAIT_P2PMEM_DRAINING and STRAIT_P2PMEM_OWN.
    pub flags: u32,
    /// Out: one of STRAIT_P2PMEM_MAP_, the worst of all devices.
    pub map: u32,
    /// Out: steps, the sum over all devices.
    pub distance: u32,
    /// Out: its name.
    pub name: [c_char; 72],
    /// Out: its kind, as in strait_p2pmem_info.
    pub kind: [c_char; 16],
    /// Out: the address of the PCI function that has the memory, or "".
    pub pci_function: [c_char; 32],
    /// Out: why a device does not reach it, in words, or "".
    pub why: [c_char; 496],
}

/// What another process joins a buffer by.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct strait_p2pmem_token {
    /// As good as random.
    pub bytes: [u8; 16],
}

/// Publishers, rules and buffers of this process, or a connection to a daemon.
#[derive(Debug)]
pub struct strait_p2pmem {
    pub(super) home: Home,
    /// What it publishes is for other users too.
    pub(super) for_all_users: bool,
}

/// A buffer.
#[derive(Debug)]
pub struct strait_p2pmem_buffer {
    pub(super) held: Held,
    pub(super) notices: Mutex<Vec<NoticeId>>,
}

#[derive(Debug)]
pub(super) enum Home {
    Own(Orchestrator),
    Daemon(Session),
}

#[derive(Debug)]
pub(super) enum Held {
    Own { buffer: Buffer, home: Orchestrator, tokens: Mutex<Vec<Token>> },
    Daemon(SharedBuffer),
}

impl Held {
    pub(super) fn own(buffer: Buffer, home: &Orchestrator) -> Held {
        Held::Own { buffer, home: home.clone(), tokens: Mutex::default() }
    }
}

/// Keeps the words of an error for strait_p2pmem_error.
pub(crate) fn errno<T>(result: Result<T, Error>) -> Result<T, c_int> {
    result.map_err(|e| {
        c_abi::keep_error(&e);
        e.errno()
    })
}

/// The errno `code`, with words for strait_p2pmem_error.
#[cold]
pub(crate) fn refused(code: c_int, why: &dyn std::fmt::Display) -> c_int {
    c_abi::keep_error(why);
    code
}

/// An argument is wrong.
#[cold]
pub(crate) fn wrong(why: &str) -> c_int {
    refused(libc::EINVAL, &why)
}

/// The address of a PCI function.
pub(crate) fn address(text: &str) -> Result<Address, c_int> {
    text.parse().map_err(|_| wrong(&format!("{text:?} is no address of a PCI function, as 0000:3a:00.0 is")))
}

/// An argument that may not be NULL.
pub(crate) fn not_null<T>(argument: Option<T>, name: &str) -> Result<T, c_int> {
    argument.ok_or_else(|| wrong(&format!("{name} is NULL")))
}

/// A text of the program's; `None` if it is NULL.
///
/// # Safety
/// `text` is NULL or a C string that stays for as long.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Result<Option<&'a str>, c_int> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_str().map(Some).map_err(|_| wrong("a text is not UTF-8"))
}

pub(crate) fn fill(to: &mut [c_char], text: &str) {
    let room = to.len() - 1;
    to.fill(0);
    for (to, from) in to[..room].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
}

/// # Safety
/// `at` is NULL or points to a `T` whose first field is its size.
pub(crate) unsafe fn has_size<T>(at: *const T) -> Result<(), c_int> {
    // SAFETY: the caller's promise.
    match !at.is_null() && at.is_aligned() && unsafe { at.cast::<usize>().read() } >= size_of::<T>() {
        true => Ok(()),
        false => Err(wrong(
            "a structure is NULL, not aligned, or its first member is not its size: set it to sizeof",
        )),
    }
}

/// The words of the last error that a function of this header returned in this thread: what is wrong, and
/// what to do. Valid until the next one.
#[unsafe(no_mangle)]
pub extern "C" fn strait_p2pmem_error() -> *const c_char {
    c_abi::last_error()
}

/// # Safety
/// `opened` is NULL or came from strait_p2pmem_open, and was not closed.
pub(super) unsafe fn home<'a>(opened: *const strait_p2pmem) -> Result<&'a Home, c_int> {
    // SAFETY: the caller's promise.
    not_null(unsafe { opened.as_ref() }, "`opened`").map(|o| &o.home)
}

/// # Safety
/// `clients` has `count` C strings.
pub(super) unsafe fn names<'a>(clients: *const *const c_char, count: usize) -> Result<Vec<&'a str>, c_int> {
    if count > 1024 || (count > 0 && clients.is_null()) {
        return Err(wrong("`clients` is NULL, or `client_count` is above 1024"));
    }
    // SAFETY: the caller's promise.
    (0..count).map(|n| not_null(unsafe { text(clients.add(n).read()) }?, "a client's name")).collect()
}

pub(super) fn give(held: Held, buffer: *mut *mut strait_p2pmem_buffer) {
    // SAFETY: the callers have seen that it is not NULL; the program has a place for it.
    unsafe {
        buffer.write(Box::into_raw(Box::new(strait_p2pmem_buffer { held, notices: Mutex::default() })))
    };
}

const _: () = assert!(
    STRAIT_P2PMEM_MAP_BUS_ADDRESS == Map::BusAddress as u32
        && STRAIT_P2PMEM_MAP_HOST_BRIDGE == Map::HostBridge as u32
        && STRAIT_P2PMEM_MAP_HOST_MEMORY == Map::HostMemory as u32
        && STRAIT_P2PMEM_MAP_NOT_SUPPORTED == Map::NotSupported as u32
);
