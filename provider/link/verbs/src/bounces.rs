//! Places that short accesses go by: to register memory takes longer than to copy it.

use link_api::Once;
use rdma_sys::{Pd, ibv_sge};

use crate::memory::Memory;

/// How many there are, and how long they are.
const PLACES: usize = 32;
pub(crate) const EACH: usize = 16 << 10;
// What is promised to be copied is.
const _: () = assert!(Once::COPIED <= EACH);

/// The places, registered once one is needed.
#[derive(Debug)]
pub(crate) struct Bounces {
    pd: Pd,
    memory: Option<Memory>,
    free: Vec<usize>,
}

impl Bounces {
    pub(crate) fn new(pd: &Pd) -> Bounces {
        Bounces { pd: pd.clone(), memory: None, free: Vec::new() }
    }

    /// A place for so many bytes, which is the caller's from now on; `None` if none is free. For a request of
    /// another domain if that is named.
    pub(crate) fn take(
        &mut self,
        len: usize,
        domain: Option<(u32, &Pd)>,
    ) -> Result<Option<(usize, ibv_sge)>, String> {
        if self.memory.is_none() {
            self.memory = Some(Memory::new(&self.pd, PLACES, EACH)?);
            self.free = (0..PLACES).rev().collect();
        }
        let (Some(memory), Some(&place)) = (&mut self.memory, self.free.last()) else { return Ok(None) };
        let bytes = match domain {
            Some(domain) => memory.sge_in(domain, place, len).map_err(|e| e.to_string())?,
            None => memory.sge(place, len),
        };
        self.free.pop();
        Ok(Some((place, bytes)))
    }

    /// A domain is to end, of which no request has a place.
    pub(crate) fn end_domain(&mut self, domain: u32) {
        self.memory.iter_mut().for_each(|memory| memory.end_domain(domain));
    }

    /// The bytes of a place that no request has.
    pub(crate) fn bytes_mut(&mut self, place: usize) -> &mut [u8] {
        self.memory.as_mut().map_or(&mut [], |memory| memory.bytes_mut(place))
    }

    /// A place is free.
    pub(crate) fn give_back(&mut self, place: usize) {
        self.free.push(place);
    }
}
