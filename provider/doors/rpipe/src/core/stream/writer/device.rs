//! Sending where a device has part: the reader's heap is memory of one, or this end's blocks are. The bytes
//! are copied to the reader's heap by the device; the message is told of once they are visible there.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::compiler_fence;

use hmem::{Kind, Span};

use super::Writer;
use crate::core::control::NUMBER;
use crate::core::slot::{self, INLINE, Notice, Words as _};
use crate::core::stream::Patience;
use crate::device;
use crate::{Block, Error};

impl Writer {
    /// Copies a message's bytes, from its block or from `from`, and tells of it. An error has told of
    /// nothing.
    pub(super) fn store(&mut self, notice: Notice, from: Option<Span>) -> Result<(), Error> {
        let up = self.up.as_deref_mut().ok_or(Error::Again)?;
        let (Some(all), Some(mapped)) = (&up.on_device, &up.mapped) else { return Err(Error::Again) };
        let (offset, len) = (up.heap.offset(notice.granule), notice.len as usize);
        let from = match (from, &all.local) {
            (Some(from), _) => from,
            (None, Some(local)) => local.span(offset, len)?,
            (None, None) => device::host(up.local.address(up.local_at + offset), len),
        };
        let mut data = [0u8; INLINE];
        let (mut words, flag) = ([0u64; INLINE / 8], up.flag + 1);
        match &all.theirs {
            Some(theirs) => {
                theirs.put(up.shape.device_heap_at() + offset, from)?;
                if let Some(at) = up.shape.number(up.flag) {
                    theirs.put(at, device::host(number(notice, flag).as_ptr(), NUMBER))?;
                }
            }
            None if notice.is_inline => {
                device::copy(device::host(data.as_mut_ptr(), len), from)?;
                for (word, bytes) in words.iter_mut().zip(data.chunks_exact(8)) {
                    *word = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
                }
            }
            None => {
                let to = mapped.place(up.heap_at + offset).filter(|_| len <= up.shape.heap - offset);
                device::copy(device::host(to.ok_or(Error::Again)?, len), from)?;
            }
        }
        let Some(slot) = mapped.line(up.shape.slot(up.flag)) else { return Err(Error::Again) };
        up.flag = flag;
        let inline = if notice.is_inline { len.div_ceil(8) } else { 0 };
        slot::publish(slot, 0, notice, words.into_iter().take(inline), flag);
        Ok(())
    }

    /// Wakes the reader if it sleeps, and now and then sees what else there is.
    pub(super) fn see_whether_it_sleeps(&mut self) -> Result<(), Error> {
        let messages = self.messages;
        let up = self.up()?;
        if !up.fenceless {
            ipc::fence::full_fence();
        }
        compiler_fence(SeqCst);
        let sleeps = up.ready.mine.memory.load(0, Relaxed) != 0;
        if sleeps || messages % 256 == 0 { self.see_to_it() } else { Ok(()) }
    }

    /// Sends bytes of any memory of this process, without a block of the program's.
    pub(crate) fn send_from(&mut self, from: Span, patience: Patience) -> Result<(), Error> {
        let block = self.alloc(from.len(), 1, patience)?;
        let sent = self.send_block_from(block, from, patience);
        if sent.is_err() {
            // Whether it was sent all the same the book knows.
            let _ = self.free(block);
        }
        sent
    }

    fn send_block_from(&mut self, block: Block, from: Span, patience: Patience) -> Result<(), Error> {
        let on_device = self.up()?.on_device.is_some();
        if on_device && (from.kind() == Kind::System || from.kind() == Kind::Cuda) {
            return self.slow_send(block, None, 0, patience, Some(from));
        }
        let to = self.address(block)?;
        let to = match self.up()?.on_device.as_ref().and_then(|all| all.local()) {
            Some(_) => device::named(to, from.len()),
            None => device::host(to, from.len()),
        };
        device::copy(to, from)?;
        self.send(block, None, 0, patience)
    }
}

/// What tells a kernel of a message: see `NUMBER`.
fn number(notice: Notice, flag: u64) -> [u8; NUMBER] {
    let mut bytes = [0; NUMBER];
    let words = [notice.len, flag as u32, notice.granule, flag as u32];
    for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}
