//! Memory of an end: its own, which its peer was granted, and what its peer has granted.

use std::sync::Arc;

use super::ready::{Met, Ready};
use crate::core::control::Shape;
use crate::{Backend, DeviceMemory, Error, Grant, PeerMemory, Promise, Region, RegionId};

#[derive(Debug, Default)]
pub(super) struct Regions {
    mine: Option<Region>,
    on_device: Option<(RegionId, Arc<DeviceMemory>)>,
    theirs: Option<Grant>,
    their_device: Option<Arc<PeerMemory>>,
}

impl Regions {
    /// Makes a reader's slots and heap. What was made before an error stays.
    pub(super) fn expose_heap(
        &mut self,
        backend: &mut dyn Backend,
        shape: Shape,
        device: Option<i32>,
    ) -> Result<(), Error> {
        self.mine = Some(backend.expose(shape.region())?);
        if let Some(device) = device {
            let memory = DeviceMemory::new(device, shape.device_region())?;
            if shape.number(0).is_some() {
                memory.clear(0, shape.device_heap_at())?;
            }
            self.on_device = Some((backend.expose_device(&memory)?, memory));
        }
        Ok(())
    }

    /// A writer's own region, and the reader's.
    pub(super) fn set_writer(&mut self, mine: Region, theirs: Grant) {
        (self.mine, self.theirs) = (Some(mine), Some(theirs));
    }

    pub(super) fn set_theirs(&mut self, grant: Grant) {
        self.theirs = Some(grant);
    }

    /// Takes the reader's heap in memory of a device, if it is as long as the shape says.
    pub(super) fn take_device(&mut self, grant: Option<Grant>, shape: Shape) -> bool {
        let device = grant.and_then(|grant| grant.device);
        self.their_device = device.filter(|heap| heap.len() >= shape.device_region());
        self.has_peer_device()
    }

    pub(super) fn has_peer_device(&self) -> bool {
        self.their_device.is_some()
    }

    /// What the peer is granted.
    pub(super) fn granted(&self) -> Vec<RegionId> {
        let device = self.on_device.iter().map(|(id, _)| *id);
        self.mine.iter().map(|region| region.id).chain(device).collect()
    }

    /// Gives up what was made for a reader that cannot begin: its regions, to be withdrawn.
    pub(super) fn unmake(&mut self) -> impl Iterator<Item = RegionId> + use<> {
        let device = self.on_device.take().map(|(id, _)| id);
        device.into_iter().chain(self.mine.take().map(|region| region.id))
    }

    /// All of an end whose two sides have met.
    pub(super) fn ready(&self, met: &Met, promise: Promise) -> Option<Ready> {
        Some(Ready {
            mine: self.mine.clone()?,
            theirs: self.theirs.clone()?,
            on_device: self.on_device.as_ref().map(|(_, memory)| memory.clone()),
            their_device: self.their_device.clone(),
            met: met.clone(),
            promise,
        })
    }

    /// Gives all back but the region of this process, which is what remains.
    pub(super) fn leave(self, backend: &mut dyn Backend) -> Result<Option<Region>, Error> {
        if let Some((id, _)) = self.on_device {
            backend.withdraw(id)?;
        }
        if let Some(theirs) = self.theirs {
            backend.forget(theirs.remote);
        }
        Ok(self.mine)
    }
}
