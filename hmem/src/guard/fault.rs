//! What an access finds, and how the kernel does one.

/// The memory was not there, or not for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// Has the kernel copy.
pub(super) fn by_call(to: *mut u8, from: *const u8, len: usize) -> Result<(), Fault> {
    let mut done = 0;
    while done < len {
        let part = |base: *mut u8| libc::iovec {
            iov_base: base.wrapping_add(done).cast(),
            iov_len: (len - done).min(1 << 30),
        };
        let (here, there) = (part(to), part(from.cast_mut()));
        // SAFETY: the kernel checks both; our callers may write the one and read the other.
        let n = unsafe { libc::process_vm_readv(libc::getpid(), &here, 1, &there, 1, 0) };
        match usize::try_from(n) {
            Ok(n @ 1..) => done += n,
            _ => return Err(Fault),
        }
    }
    Ok(())
}

#[cfg(all(target_arch = "x86_64", target_pointer_width = "64"))]
/// An integer in memory that may not be there: the value from before, sequentially consistent.
///
/// # Safety
/// For each function: if the cell is mapped, it must be memory that the caller may access in this way,
/// aligned.
pub(crate) trait Cell: Copy {
    /// Reads it.
    unsafe fn load(cell: *mut u8) -> Result<Self, Fault>;
    /// Puts a value there.
    unsafe fn swap(cell: *mut u8, value: Self) -> Result<Self, Fault>;
    /// Adds a value.
    unsafe fn add(cell: *mut u8, value: Self) -> Result<Self, Fault>;
    /// Bitwise and with a value.
    unsafe fn and(cell: *mut u8, value: Self) -> Result<Self, Fault>;
    /// Bitwise or with a value.
    unsafe fn or(cell: *mut u8, value: Self) -> Result<Self, Fault>;
    /// Bitwise exclusive or with a value.
    unsafe fn xor(cell: *mut u8, value: Self) -> Result<Self, Fault>;
    /// Puts a value there if it is as expected.
    unsafe fn cas(cell: *mut u8, expected: Self, value: Self) -> Result<Self, Fault>;
}
