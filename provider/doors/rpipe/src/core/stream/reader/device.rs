//! What a kernel needs to wait for messages, and to find them.

use crate::core::control::NUMBER;

/// A reader's heap in memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnDevice {
    /// The device's number.
    pub device: i32,
    /// Where the heap begins, and its bytes.
    pub heap: usize,
    pub heap_len: usize,
    /// Bytes by which places in it are counted.
    pub granule: usize,
    /// Where the numbers of messages are, if there are such: so many of 16 bytes.
    pub numbers: Option<usize>,
    pub slots: usize,
    /// The number, from 0, of the message that is read next.
    pub next: u64,
}

const _: () = assert!(NUMBER == 16);
