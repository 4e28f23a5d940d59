//! Types and constants.

#![allow(non_camel_case_types)]

use libc::{c_char, c_int, c_uint, c_void};

/// A pipe's end.
#[derive(Debug)]
pub enum rpipe_end {}

/// A pipe's end, made by rpipe.
pub type rpipe_t = *mut rpipe_end;

/// A block of a pipe: which pipe, where, and which of the blocks that were there. RADDR_NULL is none.
pub type raddr_t = u64;

/// No block.
pub const RADDR_NULL: u64 = 0;

/// Flags of rpipe: messages go one way, from the writer to the reader.
pub const HD_PIPE: u32 = 1;
/// Messages go both ways; `iswriter` says nothing then.
pub const FD_PIPE: u32 = 2;
/// Set up now, and not at the first use.
pub const RPIPE_EAGER: u32 = 16;
/// The reader gets the bytes, instead of the writer putting them.
pub const RPIPE_PULL: u32 = 32;
/// The writer's policy: blocks are the next that fit; the default.
pub const RPIPE_NEXT_FIT: u32 = 256;
/// The first that fit.
pub const RPIPE_FIRST_FIT: u32 = 512;
/// The shortest that fit.
pub const RPIPE_BEST_FIT: u32 = 768;
/// The longest.
pub const RPIPE_WORST_FIT: u32 = 1024;
/// The writer learns of freed blocks when the reader frees; the default for next-fit and first-fit.
pub const RPIPE_DEFERRED: u32 = 4096;
/// The writer learns of freed blocks when it allocates; the default for best-fit and worst-fit.
pub const RPIPE_IMMEDIATE: u32 = 8192;

/// Memory of a CUDA device, that of the calling thread's context or of STRAIT_RPIPE_DEVICE: the heap of a
/// reader's end, the blocks of a writer's. The other end may have the host's. rmem gives the device's
/// pointer.
pub const RPIPE_DEVICE: u32 = 65536;
/// Reader, with RPIPE_DEVICE: kernels wait for messages; see rpipe_on_device.
pub const RPIPE_NUMBERS: u32 = 131072;

/// A width: messages are as long as the heap at most.
pub const RPIPE_UNBOUNDED: usize = 0;

/// Nanoseconds: as long as the peer is there.
pub const RPIPE_FOREVER: i64 = -1;

/// What is called for an active message: with what was said at rhandle, the pipe, the bytes and how many. It
/// may call every function, also of this pipe; the bytes are there until it returns.
pub type rhandler_t =
    Option<unsafe extern "C" fn(arg: *mut c_void, rp: rpipe_t, bytes: *mut c_void, size: usize)>;

/// How rinit begins.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rinit_attr {
    /// sizeof(struct rinit_attr).
    pub size: usize,
    /// The backend, or NULL: as STRAIT_RPIPE_BACKEND says, or strait.
    pub backend: *const c_char,
}

/// How a pipe is to be.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rpipe_attr {
    /// sizeof(struct rpipe_attr).
    pub size: usize,
    /// Nonzero: this is the writer's end.
    pub iswriter: c_int,
    /// HD_PIPE or FD_PIPE, and others.
    pub flags: c_uint,
    /// Bytes of the longest message, the same at both ends; RPIPE_UNBOUNDED: as long as the heap.
    pub width: usize,
    /// Reader: bytes of the heap; 0: as STRAIT_RPIPE_HEAP says, or 1 MiB, and the width at least.
    pub heap: usize,
    /// Reader: the most messages under way; 0: as STRAIT_RPIPE_SLOTS says, or 256.
    pub slots: usize,
}

/// What a pipe has done and has now. The writer's counts are those of the heap's book; of a full-duplex pipe
/// they are those given, with the messages of the reader beside.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rpipe_stats {
    /// sizeof(struct rpipe_stats).
    pub size: usize,
    /// Bytes of the heap; 0: the pipe is not set up yet.
    pub heap: u64,
    /// Bytes in use: writer: allocated or at the reader; reader: read and not freed.
    pub used: u64,
    /// Bytes that are free.
    pub free: u64,
    /// Writer: bytes of the longest free block.
    pub largest: u64,
    /// Writer: external fragmentation, 1 - largest / free.
    pub fragmentation: f64,
    /// Messages written, and their bytes.
    pub written: u64,
    pub written_bytes: u64,
    /// Messages read, and their bytes.
    pub read: u64,
    pub read_bytes: u64,
    /// Synchronizations: how often this end put tags of freed blocks, or took such in; and how many tags.
    pub syncs: u64,
    pub tags: u64,
    /// How the reader learns of messages: store, one-write, two-writes, delivered, notified. The reason.
    pub flag_mode: [c_char; 16],
    pub flag_why: [c_char; 160],
    /// What leads to the peer. The reason.
    pub path: [c_char; 32],
    pub path_why: [c_char; 160],
    /// Writer: the policy, and the synchronization.
    pub policy: [c_char; 16],
    pub sync: [c_char; 16],
    /// Writer: messages of up to so many bytes travel in their slot; longer ones of up to so many are copied
    /// by the path, 0: none. Others go from their block.
    pub in_slot: u64,
    pub injected: u64,
    /// Where `injected` comes from: measured, given or a default, and why so.
    pub injected_why: [c_char; 160],
}

/// The number by which a kernel finds a message, in memory of the device. Each half is there at once: the
/// message is there when both have its number.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rpipe_number {
    /// Bytes of the message.
    pub size: u32,
    /// The lower half of the message's number, counted from 1.
    pub number: u32,
    /// Where its bytes begin in the heap, in granules.
    pub place: u32,
    /// The same as `number`.
    pub again: u32,
}

/// A reader's heap in memory of a device, for kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rpipe_device {
    /// sizeof(struct rpipe_device).
    pub size: usize,
    /// Where the heap begins, and its bytes.
    pub heap: *mut c_void,
    pub heap_size: usize,
    /// Bytes by which rpipe_number.place counts.
    pub granule: usize,
    /// With RPIPE_NUMBERS: `slots` of them, in memory of the device; that of message n, counted from 1, has
    /// the index (n - 1) % slots. Else NULL.
    pub numbers: *const rpipe_number,
    pub slots: usize,
    /// The number, counted from 1, of the message that rread gives next.
    pub next: u64,
    /// The device's number in this process.
    pub device: c_int,
}

/// The readers' ends of pipes of many writers.
#[derive(Debug)]
pub enum rpipe_many_end {}

/// The readers' ends of pipes of many writers, as one, made by rpipe_many_open.
pub type rpipe_many_t = *mut rpipe_many_end;

/// Processes that call collectively.
#[derive(Debug)]
pub enum rpipe_group {}

/// Processes that call collectively, made by rpipe_group_open.
pub type rpipe_group_t = *mut rpipe_group;

/// A neighbour of rpipe_neighbor_exchange, in an array of such.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rpipe_neighbor {
    /// Its rank.
    pub rank: c_int,
    /// What it gets; NULL only for no bytes.
    pub send: *const c_void,
    pub send_size: usize,
    /// Where that goes which it sends, and the room there; NULL only for none.
    pub receive: *mut c_void,
    pub receive_size: usize,
    /// Out: bytes that came.
    pub received: usize,
}

/// Types of rpipe_reduce and rpipe_allreduce.
pub const RPIPE_INT32: u32 = 1;
pub const RPIPE_INT64: u32 = 2;
pub const RPIPE_UINT32: u32 = 3;
pub const RPIPE_UINT64: u32 = 4;
pub const RPIPE_FLOAT: u32 = 5;
pub const RPIPE_DOUBLE: u32 = 6;
/// Operations of the same. Sums and products of integers wrap.
pub const RPIPE_SUM: u32 = 16;
pub const RPIPE_PROD: u32 = 32;
pub const RPIPE_MIN: u32 = 48;
pub const RPIPE_MAX: u32 = 64;
/// Bitwise, of integers.
pub const RPIPE_AND: u32 = 80;
pub const RPIPE_OR: u32 = 96;
pub const RPIPE_XOR: u32 = 112;
/// Operations of rborrow_atomic alone: the word becomes the operand; or does if it was `compare`.
pub const RPIPE_SWAP: u32 = 128;
pub const RPIPE_COMPARE_SWAP: u32 = 144;

/// Combines `count` elements at `in` with those at `inout`, one by one, into `inout`. The elements begin on
/// multiples of 8 bytes at least if their size is such a multiple and the memory of the caller does.
pub type rpipe_combine_t =
    Option<unsafe extern "C" fn(r#in: *const c_void, inout: *mut c_void, count: usize, arg: *mut c_void)>;

/// A function of the program's for rpipe_reduce_by and rpipe_allreduce_by.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rpipe_function {
    /// sizeof(struct rpipe_function).
    pub size: usize,
    /// Bytes of an element, 1 to 8192.
    pub element: usize,
    pub combine: rpipe_combine_t,
    /// What it gets.
    pub arg: *mut c_void,
}

/// Memory that this process lends.
#[derive(Debug)]
pub enum rlent {}

/// Memory that this process lends, made by rlend.
pub type rlent_t = *mut rlent;

/// Memory of another process, with a heap in it.
#[derive(Debug)]
pub enum rborrowed {}

/// Memory of another process, with a heap in it, made by rborrow.
pub type rborrowed_t = *mut rborrowed;

/// A block of borrowed memory: of which, where, and which of the blocks that were there. RADDR_NULL is none.
pub type rborrow_addr_t = u64;

/// A part of a block of borrowed memory, and where its bytes are or go in this process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rborrow_part {
    /// The block.
    pub addr: rborrow_addr_t,
    /// Where in the block.
    pub offset: usize,
    /// Memory of this process.
    pub memory: *mut c_void,
    /// Bytes.
    pub size: usize,
}

/// What was done with borrowed memory, and what is in its heap.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rborrow_stats {
    /// sizeof(struct rborrow_stats).
    pub size: usize,
    /// Bytes that were lent.
    pub heap: u64,
    /// Bytes that are allocated; without the book: that are attached, and 0 in the next three.
    pub used: u64,
    /// Bytes that are free.
    pub free: u64,
    /// Bytes of the longest free block.
    pub largest: u64,
    /// External fragmentation, 1 - largest / free.
    pub fragmentation: f64,
    /// Calls that have written, and their bytes.
    pub writes: u64,
    pub written_bytes: u64,
    /// Calls that have read, and their bytes.
    pub reads: u64,
    pub read_bytes: u64,
    /// Nonzero: the memory is mapped here, and rborrow_mem works.
    pub mapped: c_int,
    /// Nonzero: a thread of the lender's makes progress for the operations of this process.
    pub thread: c_int,
    /// The policy; "" without the book.
    pub policy: [c_char; 16],
    /// What leads to the lender. The reason.
    pub path: [c_char; 32],
    pub path_why: [c_char; 160],
    /// Calls of rborrow_atomic. From here on fields are set where `size` has room for all of them.
    pub atomics: u64,
    /// The rank of the borrower that keeps the book: the first of those that rlend_many was given. -1: the
    /// memory came from rlend, and has no other borrower.
    pub keeper: c_int,
}
