//! Collective calls: blocking, nonblocking and persistent, with all processes and with neighbours.

use crate::entry::rows;
use crate::row::Count::{Each, One, OwnOrSum, OwnOrTimes, Sum, Times};
use crate::row::Dir::{Bcast, In, InOut, Out};
use crate::row::Peers::{All, Local, Sources, Targets};
use crate::row::Places::{Addresses, Bytes, Extents};
use crate::row::{Buf, Ends, On};

const BCAST_BUFS: &[Buf] = &[Buf::new(Bcast, 0, One(1), 2)];
const GATHER_BUFS: &[Buf] =
    &[Buf::new(In, 0, One(1), 2), Buf::new(Out, 3, Times(4, All), 5).at_root().with(0)];
const GATHERV_BUFS: &[Buf] =
    &[Buf::new(In, 0, One(1), 2), Buf::new(Out, 3, Each(4, Extents(5), All), 6).at_root().with(0)];
const SCATTER_BUFS: &[Buf] = &[Buf::new(In, 0, Times(1, All), 2).at_root(), Buf::new(Out, 3, One(4), 5)];
const SCATTERV_BUFS: &[Buf] =
    &[Buf::new(In, 0, Each(1, Extents(2), All), 3).at_root(), Buf::new(Out, 4, One(5), 6)];
const ALLGATHER_BUFS: &[Buf] = &[Buf::new(In, 0, One(1), 2), Buf::new(Out, 3, Times(4, All), 5).with(0)];
const ALLGATHERV_BUFS: &[Buf] =
    &[Buf::new(In, 0, One(1), 2), Buf::new(Out, 3, Each(4, Extents(5), All), 6).with(0)];
const ALLTOALL_BUFS: &[Buf] =
    &[Buf::new(In, 0, Times(1, All), 2), Buf::new(Out, 3, Times(4, All), 5).with(0)];
const ALLTOALLV_BUFS: &[Buf] =
    &[Buf::new(In, 0, Each(1, Extents(2), All), 3), Buf::new(Out, 4, Each(5, Extents(6), All), 7).with(0)];
const ALLTOALLW_BUFS: &[Buf] = &[
    Buf::new(In, 0, Each(1, Bytes(2), All), 3).types(),
    Buf::new(Out, 4, Each(5, Bytes(6), All), 7).types().with(0),
];
const REDUCE_BUFS: &[Buf] =
    &[Buf::new(In, 0, One(2), 3).computed(), Buf::new(Out, 1, One(2), 3).at_root().with(0).computed()];
const ALLREDUCE_BUFS: &[Buf] =
    &[Buf::new(In, 0, One(2), 3).computed(), Buf::new(Out, 1, One(2), 3).with(0).computed()];
// The first process's buffer is not written.
const EXSCAN_BUFS: &[Buf] =
    &[Buf::new(In, 0, One(2), 3).computed(), Buf::new(InOut, 1, One(2), 3).with(0).computed()];
const REDUCE_SCATTER_BUFS: &[Buf] =
    &[Buf::new(In, 0, Sum(2), 3).computed(), Buf::new(Out, 1, OwnOrSum(2), 3).with(0).computed()];
const REDUCE_SCATTER_BLOCK_BUFS: &[Buf] =
    &[Buf::new(In, 0, Times(2, Local), 3).computed(), Buf::new(Out, 1, OwnOrTimes(2), 3).with(0).computed()];
const REDUCE_LOCAL_BUFS: &[Buf] =
    &[Buf::new(In, 0, One(2), 3).computed(), Buf::new(InOut, 1, One(2), 3).computed()];
// Nothing is written for a neighbour that is MPI_PROC_NULL.
const NEIGHBOR_ALLGATHER_BUFS: &[Buf] =
    &[Buf::new(In, 0, One(1), 2), Buf::new(InOut, 3, Times(4, Sources), 5)];
const NEIGHBOR_ALLGATHERV_BUFS: &[Buf] =
    &[Buf::new(In, 0, One(1), 2), Buf::new(InOut, 3, Each(4, Extents(5), Sources), 6)];
const NEIGHBOR_ALLTOALL_BUFS: &[Buf] =
    &[Buf::new(In, 0, Times(1, Targets), 2), Buf::new(InOut, 3, Times(4, Sources), 5)];
const NEIGHBOR_ALLTOALLV_BUFS: &[Buf] =
    &[Buf::new(In, 0, Each(1, Extents(2), Targets), 3), Buf::new(InOut, 4, Each(5, Extents(6), Sources), 7)];
const NEIGHBOR_ALLTOALLW_BUFS: &[Buf] = &[
    Buf::new(In, 0, Each(1, Addresses(2), Targets), 3).types(),
    Buf::new(InOut, 4, Each(5, Addresses(6), Sources), 7).types(),
];

rows! {
    BCAST: MPI_Bcast [MPI_Bcast_c] [mpi_bcast_, ompi_bcast_f]; 5, On::Root(3, 4), Ends::Returns, BCAST_BUFS;
    IBCAST: MPI_Ibcast [MPI_Ibcast_c] [mpi_ibcast_, ompi_ibcast_f]; 6, On::Root(3, 4), Ends::Request(5), BCAST_BUFS;
    BCAST_INIT: MPI_Bcast_init [MPI_Bcast_init_c] [mpi_bcast_init_, ompi_bcast_init_f] [MPIX_Bcast_init]; 7, On::Root(3, 4), Ends::Persistent(6), BCAST_BUFS;
    GATHER: MPI_Gather [MPI_Gather_c] [mpi_gather_, ompi_gather_f]; 8, On::Root(6, 7), Ends::Returns, GATHER_BUFS;
    IGATHER: MPI_Igather [MPI_Igather_c] [mpi_igather_, ompi_igather_f]; 9, On::Root(6, 7), Ends::Request(8), GATHER_BUFS;
    GATHER_INIT: MPI_Gather_init [MPI_Gather_init_c] [mpi_gather_init_, ompi_gather_init_f] [MPIX_Gather_init]; 10, On::Root(6, 7), Ends::Persistent(9), GATHER_BUFS;
    GATHERV: MPI_Gatherv [MPI_Gatherv_c] [mpi_gatherv_, ompi_gatherv_f]; 9, On::Root(7, 8), Ends::Returns, GATHERV_BUFS;
    IGATHERV: MPI_Igatherv [MPI_Igatherv_c] [mpi_igatherv_, ompi_igatherv_f]; 10, On::Root(7, 8), Ends::Request(9), GATHERV_BUFS;
    GATHERV_INIT: MPI_Gatherv_init [MPI_Gatherv_init_c] [mpi_gatherv_init_, ompi_gatherv_init_f] [MPIX_Gatherv_init]; 11, On::Root(7, 8), Ends::Persistent(10), GATHERV_BUFS;
    SCATTER: MPI_Scatter [MPI_Scatter_c] [mpi_scatter_, ompi_scatter_f]; 8, On::Root(6, 7), Ends::Returns, SCATTER_BUFS;
    ISCATTER: MPI_Iscatter [MPI_Iscatter_c] [mpi_iscatter_, ompi_iscatter_f]; 9, On::Root(6, 7), Ends::Request(8), SCATTER_BUFS;
    SCATTER_INIT: MPI_Scatter_init [MPI_Scatter_init_c] [mpi_scatter_init_, ompi_scatter_init_f] [MPIX_Scatter_init]; 10, On::Root(6, 7), Ends::Persistent(9), SCATTER_BUFS;
    SCATTERV: MPI_Scatterv [MPI_Scatterv_c] [mpi_scatterv_, ompi_scatterv_f]; 9, On::Root(7, 8), Ends::Returns, SCATTERV_BUFS;
    ISCATTERV: MPI_Iscatterv [MPI_Iscatterv_c] [mpi_iscatterv_, ompi_iscatterv_f]; 10, On::Root(7, 8), Ends::Request(9), SCATTERV_BUFS;
    SCATTERV_INIT: MPI_Scatterv_init [MPI_Scatterv_init_c] [mpi_scatterv_init_, ompi_scatterv_init_f] [MPIX_Scatterv_init]; 11, On::Root(7, 8), Ends::Persistent(10), SCATTERV_BUFS;
    ALLGATHER: MPI_Allgather [MPI_Allgather_c] [mpi_allgather_, ompi_allgather_f]; 7, On::Comm(6), Ends::Returns, ALLGATHER_BUFS;
    IALLGATHER: MPI_Iallgather [MPI_Iallgather_c] [mpi_iallgather_, ompi_iallgather_f]; 8, On::Comm(6), Ends::Request(7), ALLGATHER_BUFS;
    ALLGATHER_INIT: MPI_Allgather_init [MPI_Allgather_init_c] [mpi_allgather_init_, ompi_allgather_init_f] [MPIX_Allgather_init]; 9, On::Comm(6), Ends::Persistent(8), ALLGATHER_BUFS;
    ALLGATHERV: MPI_Allgatherv [MPI_Allgatherv_c] [mpi_allgatherv_, ompi_allgatherv_f]; 8, On::Comm(7), Ends::Returns, ALLGATHERV_BUFS;
    IALLGATHERV: MPI_Iallgatherv [MPI_Iallgatherv_c] [mpi_iallgatherv_, ompi_iallgatherv_f]; 9, On::Comm(7), Ends::Request(8), ALLGATHERV_BUFS;
    ALLGATHERV_INIT: MPI_Allgatherv_init [MPI_Allgatherv_init_c] [mpi_allgatherv_init_, ompi_allgatherv_init_f] [MPIX_Allgatherv_init]; 10, On::Comm(7), Ends::Persistent(9), ALLGATHERV_BUFS;
    ALLTOALL: MPI_Alltoall [MPI_Alltoall_c] [mpi_alltoall_, ompi_alltoall_f]; 7, On::Comm(6), Ends::Returns, ALLTOALL_BUFS;
    IALLTOALL: MPI_Ialltoall [MPI_Ialltoall_c] [mpi_ialltoall_, ompi_ialltoall_f]; 8, On::Comm(6), Ends::Request(7), ALLTOALL_BUFS;
    ALLTOALL_INIT: MPI_Alltoall_init [MPI_Alltoall_init_c] [mpi_alltoall_init_, ompi_alltoall_init_f] [MPIX_Alltoall_init]; 9, On::Comm(6), Ends::Persistent(8), ALLTOALL_BUFS;
    ALLTOALLV: MPI_Alltoallv [MPI_Alltoallv_c] [mpi_alltoallv_, ompi_alltoallv_f]; 9, On::Comm(8), Ends::Returns, ALLTOALLV_BUFS;
    IALLTOALLV: MPI_Ialltoallv [MPI_Ialltoallv_c] [mpi_ialltoallv_, ompi_ialltoallv_f]; 10, On::Comm(8), Ends::Request(9), ALLTOALLV_BUFS;
    ALLTOALLV_INIT: MPI_Alltoallv_init [MPI_Alltoallv_init_c] [mpi_alltoallv_init_, ompi_alltoallv_init_f] [MPIX_Alltoallv_init]; 11, On::Comm(8), Ends::Persistent(10), ALLTOALLV_BUFS;
    ALLTOALLW: MPI_Alltoallw [MPI_Alltoallw_c] [mpi_alltoallw_, ompi_alltoallw_f]; 9, On::Comm(8), Ends::Returns, ALLTOALLW_BUFS;
    IALLTOALLW: MPI_Ialltoallw [MPI_Ialltoallw_c] [mpi_ialltoallw_, ompi_ialltoallw_f]; 10, On::Comm(8), Ends::Request(9), ALLTOALLW_BUFS;
    ALLTOALLW_INIT: MPI_Alltoallw_init [MPI_Alltoallw_init_c] [mpi_alltoallw_init_, ompi_alltoallw_init_f] [MPIX_Alltoallw_init]; 11, On::Comm(8), Ends::Persistent(10), ALLTOALLW_BUFS;
    REDUCE: MPI_Reduce [MPI_Reduce_c] [mpi_reduce_, ompi_reduce_f]; 7, On::Root(5, 6), Ends::Returns, REDUCE_BUFS;
    IREDUCE: MPI_Ireduce [MPI_Ireduce_c] [mpi_ireduce_, ompi_ireduce_f]; 8, On::Root(5, 6), Ends::Request(7), REDUCE_BUFS;
    REDUCE_INIT: MPI_Reduce_init [MPI_Reduce_init_c] [mpi_reduce_init_, ompi_reduce_init_f] [MPIX_Reduce_init]; 9, On::Root(5, 6), Ends::Persistent(8), REDUCE_BUFS;
    ALLREDUCE: MPI_Allreduce [MPI_Allreduce_c] [mpi_allreduce_, ompi_allreduce_f]; 6, On::Comm(5), Ends::Returns, ALLREDUCE_BUFS;
    IALLREDUCE: MPI_Iallreduce [MPI_Iallreduce_c] [mpi_iallreduce_, ompi_iallreduce_f]; 7, On::Comm(5), Ends::Request(6), ALLREDUCE_BUFS;
    ALLREDUCE_INIT: MPI_Allreduce_init [MPI_Allreduce_init_c] [mpi_allreduce_init_, ompi_allreduce_init_f] [MPIX_Allreduce_init]; 8, On::Comm(5), Ends::Persistent(7), ALLREDUCE_BUFS;
    SCAN: MPI_Scan [MPI_Scan_c] [mpi_scan_, ompi_scan_f]; 6, On::Comm(5), Ends::Returns, ALLREDUCE_BUFS;
    ISCAN: MPI_Iscan [MPI_Iscan_c] [mpi_iscan_, ompi_iscan_f]; 7, On::Comm(5), Ends::Request(6), ALLREDUCE_BUFS;
    SCAN_INIT: MPI_Scan_init [MPI_Scan_init_c] [mpi_scan_init_, ompi_scan_init_f] [MPIX_Scan_init]; 8, On::Comm(5), Ends::Persistent(7), ALLREDUCE_BUFS;
    EXSCAN: MPI_Exscan [MPI_Exscan_c] [mpi_exscan_, ompi_exscan_f]; 6, On::Comm(5), Ends::Returns, EXSCAN_BUFS;
    IEXSCAN: MPI_Iexscan [MPI_Iexscan_c] [mpi_iexscan_, ompi_iexscan_f]; 7, On::Comm(5), Ends::Request(6), EXSCAN_BUFS;
    EXSCAN_INIT: MPI_Exscan_init [MPI_Exscan_init_c] [mpi_exscan_init_, ompi_exscan_init_f] [MPIX_Exscan_init]; 8, On::Comm(5), Ends::Persistent(7), EXSCAN_BUFS;
    REDUCE_SCATTER: MPI_Reduce_scatter [MPI_Reduce_scatter_c] [mpi_reduce_scatter_, ompi_reduce_scatter_f]; 6, On::Comm(5), Ends::Returns, REDUCE_SCATTER_BUFS;
    IREDUCE_SCATTER: MPI_Ireduce_scatter [MPI_Ireduce_scatter_c] [mpi_ireduce_scatter_, ompi_ireduce_scatter_f]; 7, On::Comm(5), Ends::Request(6), REDUCE_SCATTER_BUFS;
    REDUCE_SCATTER_INIT: MPI_Reduce_scatter_init [MPI_Reduce_scatter_init_c] [mpi_reduce_scatter_init_, ompi_reduce_scatter_init_f] [MPIX_Reduce_scatter_init]; 8, On::Comm(5), Ends::Persistent(7), REDUCE_SCATTER_BUFS;
    REDUCE_SCATTER_BLOCK: MPI_Reduce_scatter_block [MPI_Reduce_scatter_block_c] [mpi_reduce_scatter_block_, ompi_reduce_scatter_block_f]; 6, On::Comm(5), Ends::Returns, REDUCE_SCATTER_BLOCK_BUFS;
    IREDUCE_SCATTER_BLOCK: MPI_Ireduce_scatter_block [MPI_Ireduce_scatter_block_c] [mpi_ireduce_scatter_block_, ompi_ireduce_scatter_block_f]; 7, On::Comm(5), Ends::Request(6), REDUCE_SCATTER_BLOCK_BUFS;
    REDUCE_SCATTER_BLOCK_INIT: MPI_Reduce_scatter_block_init [MPI_Reduce_scatter_block_init_c] [mpi_reduce_scatter_block_init_, ompi_reduce_scatter_block_init_f] [MPIX_Reduce_scatter_block_init]; 8, On::Comm(5), Ends::Persistent(7), REDUCE_SCATTER_BLOCK_BUFS;
    NEIGHBOR_ALLGATHER: MPI_Neighbor_allgather [MPI_Neighbor_allgather_c] [mpi_neighbor_allgather_, ompi_neighbor_allgather_f]; 7, On::Comm(6), Ends::Returns, NEIGHBOR_ALLGATHER_BUFS;
    INEIGHBOR_ALLGATHER: MPI_Ineighbor_allgather [MPI_Ineighbor_allgather_c] [mpi_ineighbor_allgather_, ompi_ineighbor_allgather_f]; 8, On::Comm(6), Ends::Request(7), NEIGHBOR_ALLGATHER_BUFS;
    NEIGHBOR_ALLGATHER_INIT: MPI_Neighbor_allgather_init [MPI_Neighbor_allgather_init_c] [mpi_neighbor_allgather_init_, ompi_neighbor_allgather_init_f] [MPIX_Neighbor_allgather_init]; 9, On::Comm(6), Ends::Persistent(8), NEIGHBOR_ALLGATHER_BUFS;
    NEIGHBOR_ALLGATHERV: MPI_Neighbor_allgatherv [MPI_Neighbor_allgatherv_c] [mpi_neighbor_allgatherv_, ompi_neighbor_allgatherv_f]; 8, On::Comm(7), Ends::Returns, NEIGHBOR_ALLGATHERV_BUFS;
    INEIGHBOR_ALLGATHERV: MPI_Ineighbor_allgatherv [MPI_Ineighbor_allgatherv_c] [mpi_ineighbor_allgatherv_, ompi_ineighbor_allgatherv_f]; 9, On::Comm(7), Ends::Request(8), NEIGHBOR_ALLGATHERV_BUFS;
    NEIGHBOR_ALLGATHERV_INIT: MPI_Neighbor_allgatherv_init [MPI_Neighbor_allgatherv_init_c] [mpi_neighbor_allgatherv_init_, ompi_neighbor_allgatherv_init_f] [MPIX_Neighbor_allgatherv_init]; 10, On::Comm(7), Ends::Persistent(9), NEIGHBOR_ALLGATHERV_BUFS;
    NEIGHBOR_ALLTOALL: MPI_Neighbor_alltoall [MPI_Neighbor_alltoall_c] [mpi_neighbor_alltoall_, ompi_neighbor_alltoall_f]; 7, On::Comm(6), Ends::Returns, NEIGHBOR_ALLTOALL_BUFS;
    INEIGHBOR_ALLTOALL: MPI_Ineighbor_alltoall [MPI_Ineighbor_alltoall_c] [mpi_ineighbor_alltoall_, ompi_ineighbor_alltoall_f]; 8, On::Comm(6), Ends::Request(7), NEIGHBOR_ALLTOALL_BUFS;
    NEIGHBOR_ALLTOALL_INIT: MPI_Neighbor_alltoall_init [MPI_Neighbor_alltoall_init_c] [mpi_neighbor_alltoall_init_, ompi_neighbor_alltoall_init_f] [MPIX_Neighbor_alltoall_init]; 9, On::Comm(6), Ends::Persistent(8), NEIGHBOR_ALLTOALL_BUFS;
    NEIGHBOR_ALLTOALLV: MPI_Neighbor_alltoallv [MPI_Neighbor_alltoallv_c] [mpi_neighbor_alltoallv_, ompi_neighbor_alltoallv_f]; 9, On::Comm(8), Ends::Returns, NEIGHBOR_ALLTOALLV_BUFS;
    INEIGHBOR_ALLTOALLV: MPI_Ineighbor_alltoallv [MPI_Ineighbor_alltoallv_c] [mpi_ineighbor_alltoallv_, ompi_ineighbor_alltoallv_f]; 10, On::Comm(8), Ends::Request(9), NEIGHBOR_ALLTOALLV_BUFS;
    NEIGHBOR_ALLTOALLV_INIT: MPI_Neighbor_alltoallv_init [MPI_Neighbor_alltoallv_init_c] [mpi_neighbor_alltoallv_init_, ompi_neighbor_alltoallv_init_f] [MPIX_Neighbor_alltoallv_init]; 11, On::Comm(8), Ends::Persistent(10), NEIGHBOR_ALLTOALLV_BUFS;
    NEIGHBOR_ALLTOALLW: MPI_Neighbor_alltoallw [MPI_Neighbor_alltoallw_c] [mpi_neighbor_alltoallw_, ompi_neighbor_alltoallw_f]; 9, On::Comm(8), Ends::Returns, NEIGHBOR_ALLTOALLW_BUFS;
    INEIGHBOR_ALLTOALLW: MPI_Ineighbor_alltoallw [MPI_Ineighbor_alltoallw_c] [mpi_ineighbor_alltoallw_, ompi_ineighbor_alltoallw_f]; 10, On::Comm(8), Ends::Request(9), NEIGHBOR_ALLTOALLW_BUFS;
    NEIGHBOR_ALLTOALLW_INIT: MPI_Neighbor_alltoallw_init [MPI_Neighbor_alltoallw_init_c] [mpi_neighbor_alltoallw_init_, ompi_neighbor_alltoallw_init_f] [MPIX_Neighbor_alltoallw_init]; 11, On::Comm(8), Ends::Persistent(10), NEIGHBOR_ALLTOALLW_BUFS;
    REDUCE_LOCAL: MPI_Reduce_local [MPI_Reduce_local_c] [mpi_reduce_local_, ompi_reduce_local_f]; 5, On::Nothing, Ends::Returns, REDUCE_LOCAL_BUFS;
}
