//! What a reader's end has once the writer's is known.

use super::Up;
use crate::Error;
use crate::core::context::{Context, Ready};
use crate::core::received::Received;
use crate::core::settings::Sync;
use crate::core::stream::Mode;
use crate::core::tags::{Frees, Turn as TagTurn};

impl Up {
    pub(super) fn new(ready: Ready) -> Result<Up, Error> {
        let shape = ready.met.shape;
        let mode = ready.met.manner.mode;
        let granules = shape.heap / shape.granule();
        let heap_base = match &ready.on_device {
            Some(device) => device.addr() + shape.device_heap_at(),
            None => ready.mine.memory.address(shape.heap_at()).expose_provenance(),
        };
        Ok(Up {
            shape,
            mode,
            memory: ready.mine.memory.clone(),
            heap_at: shape.heap_at(),
            heap_base,
            mapped: ready.theirs.mapped.clone().filter(|_| mode == Mode::Store),
            next: 0,
            received: Received::new(granules, shape.granule())?,
            frees: Frees::default(),
            tag: TagTurn::new(shape.slots),
            blocks_most: (shape.slots / 4).max(1) as u32,
            granules_most: (granules / 4).max(1) as u32,
            op: 0,
            notified: 0,
            fetching: None,
            plain: mode != Mode::Notified && !ready.met.manner.pull && !shape.is_on_device(),
            direct: mode == Mode::Store
                && ready.theirs.mapped.is_some()
                && ready.met.manner.sync == Sync::Deferred,
            ready,
        })
    }

    pub(super) fn next_op(&mut self) -> u32 {
        self.op = self.op.checked_add(1).unwrap_or(1);
        self.op
    }

    /// So much was freed that the writer is to know.
    pub(super) fn has_many(&self) -> bool {
        self.frees.blocks() >= self.blocks_most || self.frees.granules() >= self.granules_most
    }

    /// Whether the next message has been told of. Notifications come in order: each says how many there are.
    pub(super) fn is_notified(&mut self, context: &Context, no: u32) -> bool {
        while self.notified <= self.next {
            let Some(low) = context.lock().take_notified(no) else { return false };
            let ahead = low.wrapping_sub(self.notified as u16);
            self.notified += u64::from(ahead);
        }
        true
    }
}
