//! What a kernel needs to wait for messages, and to find them.

use super::Reader;
use crate::Error;
use crate::core::control::NUMBER;
use crate::core::stream::Patience;

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

impl Reader {
    pub(crate) fn on_device(&mut self, patience: Patience) -> Result<OnDevice, Error> {
        if self.up.is_none() {
            self.connect(patience)?;
        }
        let up = self.up()?;
        let memory = up.ready.on_device.as_ref();
        let memory = memory.ok_or_else(|| Error::Invalid("the heap of this pipe is host memory".into()))?;
        Ok(OnDevice {
            device: memory.device(),
            heap: up.heap_base,
            heap_len: up.shape.heap,
            granule: up.shape.granule(),
            numbers: up.shape.number(0).map(|at| memory.addr() + at),
            slots: up.shape.slots,
            next: up.next,
        })
    }
}

const _: () = assert!(NUMBER == 16);
