//! What a writer's end has once the reader's is known.

use std::collections::VecDeque;

use super::{Options, Up};
use crate::core::context::{Context, Ready, UNAWAITED};
use crate::core::stream::on_device::OnDevice;
use crate::core::stream::{Mode, inject};
use crate::core::tags::Turn as TagTurn;
use crate::{Error, Heap, Memory};

impl Up {
    pub(super) fn new(
        context: &Context,
        ready: Ready,
        options: Options,
        inject: inject::Chosen,
    ) -> Result<Up, Error> {
        let shape = ready.met.shape;
        let mode = ready.met.manner.mode;
        let heap = Heap::new(shape.heap, shape.granule(), options.policy)?;
        let mapped = ready.theirs.mapped.clone().filter(|_| mode == Mode::Store);
        let (local, local_at) = match mapped {
            Some(_) if options.device.is_some() => (Memory::private(0)?, 0),
            Some(_) => (Memory::private(shape.heap)?, 0),
            None => (ready.mine.memory.clone(), shape.writer_heap_at()),
        };
        let on_device = OnDevice::new(&ready, options.device, &local, shape)?;
        let direct = mapped.clone().filter(|_| on_device.is_none());
        let local_base = match on_device.as_ref().and_then(|all| all.local()) {
            Some(local) => local.addr(),
            None => local.address(local_at).expose_provenance(),
        };
        Ok(Up {
            shape,
            mode,
            heap,
            local_base,
            on_device,
            direct,
            out: 0,
            quick: 0,
            over: false,
            most: shape.most(),
            local,
            local_at,
            heap_at: shape.heap_at(),
            mapped,
            flag: 0,
            tag: TagTurn::new(shape.slots),
            fenceless: context.barrier.registered && ready.met.fences,
            op: inject.op,
            waiting: VecDeque::new(),
            fetching: None,
            inject,
            ready,
        })
    }

    pub(in crate::core::stream) fn next_op(&mut self) -> u32 {
        self.op = self.op.checked_add(1).unwrap_or(UNAWAITED + 1);
        self.op
    }
}
