//! Whom a communicator connects.

use core::ffi::c_int;

use crate::abi::{Abi, Handle};
use crate::library::pmpi;

/// Whom a communicator connects.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// Of this process.
    pub rank: c_int,
    /// Processes of this one's group.
    pub local: usize,
    /// Processes of the group that is communicated with.
    pub peers: usize,
    /// Whether those are two.
    pub is_inter: bool,
}

impl Group {
    /// Of a communicator.
    ///
    /// # Safety
    /// `comm` is one.
    pub unsafe fn of(comm: Handle) -> Result<Group, c_int> {
        let (mut rank, mut local, mut inter): (c_int, c_int, c_int) = (0, 0, 0);
        // SAFETY: valid places; the caller's promise.
        unsafe {
            pmpi!("Comm_size", comm, &raw mut local)?;
            pmpi!("Comm_rank", comm, &raw mut rank)?;
            pmpi!("Comm_test_inter", comm, &raw mut inter)?;
        }
        let mut peers = local;
        if inter != 0 {
            // SAFETY: as above.
            unsafe { pmpi!("Comm_remote_size", comm, &raw mut peers) }?;
        }
        Ok(Group { rank, local: local as usize, peers: peers as usize, is_inter: inter != 0 })
    }
}

/// Neighbours that are received from, and that are sent to.
///
/// # Safety
/// `comm` is a communicator.
pub unsafe fn neighbours(abi: &Abi, comm: Handle) -> Result<(usize, usize), c_int> {
    let (mut topology, mut rank, mut count): (c_int, c_int, c_int) = (0, 0, 0);
    // SAFETY: valid places; the caller's promise. Each topology is asked by its own calls.
    unsafe {
        pmpi!("Topo_test", comm, &raw mut topology)?;
        if topology == abi.topologies.cart {
            pmpi!("Cartdim_get", comm, &raw mut count)?;
            Ok((2 * count as usize, 2 * count as usize))
        } else if topology == abi.topologies.graph {
            pmpi!("Comm_rank", comm, &raw mut rank)?;
            pmpi!("Graph_neighbors_count", comm, rank, &raw mut count)?;
            Ok((count as usize, count as usize))
        } else {
            let (mut sources, mut targets, mut weighted): (c_int, c_int, c_int) = (0, 0, 0);
            pmpi!("Dist_graph_neighbors_count", comm, &raw mut sources, &raw mut targets, &raw mut weighted)?;
            Ok((sources as usize, targets as usize))
        }
    }
}
