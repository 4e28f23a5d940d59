//! The calls that are posted to the ranks of their communicator, so that NCCL or the ranks' devices may do
//! them: where their arguments are.

/// Which call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "their names say it")]
pub enum What {
    Bcast,
    Reduce,
    Allreduce,
    Allgather,
    ReduceScatterBlock,
    Alltoall,
    ReduceScatter,
    Scan,
    Exscan,
    Gather,
    Scatter,
    Allgatherv,
    Gatherv,
    Scatterv,
    Alltoallv,
    Alltoallw,
}

impl What {
    /// Whether NCCL has it.
    pub const fn is_of_nccl(self) -> bool {
        matches!(
            self,
            What::Bcast
                | What::Reduce
                | What::Allreduce
                | What::Allgather
                | What::ReduceScatterBlock
                | What::Alltoall
        )
    }

    /// Whether no rank, or the root alone, knows how long all blocks are.
    pub const fn is_vector(self) -> bool {
        matches!(self, What::Gatherv | What::Scatterv | What::Alltoallv | What::Alltoallw)
    }

    /// The call that returns a request.
    pub const fn nonblocking(self) -> &'static str {
        match self {
            What::Bcast => "MPI_Ibcast",
            What::Reduce => "MPI_Ireduce",
            What::Allreduce => "MPI_Iallreduce",
            What::Allgather => "MPI_Iallgather",
            What::ReduceScatterBlock => "MPI_Ireduce_scatter_block",
            What::Alltoall => "MPI_Ialltoall",
            What::ReduceScatter => "MPI_Ireduce_scatter",
            What::Scan => "MPI_Iscan",
            What::Exscan => "MPI_Iexscan",
            What::Gather => "MPI_Igather",
            What::Scatter => "MPI_Iscatter",
            What::Allgatherv => "MPI_Iallgatherv",
            What::Gatherv => "MPI_Igatherv",
            What::Scatterv => "MPI_Iscatterv",
            What::Alltoallv => "MPI_Ialltoallv",
            What::Alltoallw => "MPI_Ialltoallw",
        }
    }

    /// Whether it reduces.
    pub const fn is_reduction(self) -> bool {
        use What::{Allreduce, Exscan, Reduce, ReduceScatter, ReduceScatterBlock, Scan};
        matches!(self, Reduce | Allreduce | ReduceScatterBlock | ReduceScatter | Scan | Exscan)
    }
}

/// What says at a root how long a block is.
#[derive(Clone, Copy, Debug)]
pub struct InPlace {
    /// The argument that is MPI_IN_PLACE.
    pub at: usize,
    /// The count, and the datatype, that have a meaning then.
    pub count: usize,
    /// See `count`.
    pub datatype: usize,
}

/// One of them: the places of its arguments.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Which call it is.
    pub what: What,
    /// The count of a block; of MPI_Reduce_scatter and MPI_Allgatherv the counts of all.
    pub count: usize,
    /// Its datatype.
    pub datatype: usize,
    /// Where those have no meaning at a root that passes MPI_IN_PLACE.
    pub in_place: Option<InPlace>,
    /// The operation of a reduction.
    pub op: Option<usize>,
    /// The root, if there is one.
    pub root: Option<usize>,
    /// The communicator.
    pub comm: usize,
}

const NAMES: [(&str, What); 16] = [
    ("MPI_Bcast", What::Bcast),
    ("MPI_Reduce", What::Reduce),
    ("MPI_Allreduce", What::Allreduce),
    ("MPI_Allgather", What::Allgather),
    ("MPI_Reduce_scatter_block", What::ReduceScatterBlock),
    ("MPI_Alltoall", What::Alltoall),
    ("MPI_Reduce_scatter", What::ReduceScatter),
    ("MPI_Scan", What::Scan),
    ("MPI_Exscan", What::Exscan),
    ("MPI_Gather", What::Gather),
    ("MPI_Scatter", What::Scatter),
    ("MPI_Allgatherv", What::Allgatherv),
    ("MPI_Gatherv", What::Gatherv),
    ("MPI_Scatterv", What::Scatterv),
    ("MPI_Alltoallv", What::Alltoallv),
    ("MPI_Alltoallw", What::Alltoallw),
];

const fn is_same(a: &[u8], b: &[u8]) -> bool {
    let (mut n, mut same) = (0, a.len() == b.len());
    while same && n < a.len() {
        same = a[n] == b[n];
        n += 1;
    }
    same
}

impl Plan {
    /// That of the call of this name, if it is posted.
    pub const fn of(name: &str, root: Option<u8>, comm: u8) -> Option<Plan> {
        let mut n = 0;
        while n < NAMES.len() {
            let (blocking, nonblocking) = (NAMES[n].0, NAMES[n].1.nonblocking());
            if is_same(blocking.as_bytes(), name.as_bytes())
                || is_same(nonblocking.as_bytes(), name.as_bytes())
            {
                break;
            }
            n += 1;
        }
        if n == NAMES.len() {
            return None;
        }
        let what = NAMES[n].1;
        let (count, datatype, op) = match what {
            What::Bcast => (1, 2, None),
            What::Allgather | What::Alltoall | What::Scatter => (4, 5, None),
            What::Allgatherv => (4, 6, None),
            What::Gather | What::Gatherv => (1, 2, None),
            What::Scatterv => (5, 6, None),
            What::Alltoallv | What::Alltoallw => (5, 7, None),
            _ => (2, 3, Some(4)),
        };
        let in_place = match what {
            What::Gather => Some(InPlace { at: 0, count: 4, datatype: 5 }),
            What::Scatter => Some(InPlace { at: 3, count: 1, datatype: 2 }),
            _ => None,
        };
        let root = match root {
            Some(root) => Some(root as usize),
            None => None,
        };
        let comm = comm as usize;
        Some(Plan { what, count, datatype, in_place, op, root, comm })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_posted_that_block_and_that_return_a_request() {
        let of = |name, root| Plan::of(name, root, 5).map(|plan| (plan.comm, plan.root));
        assert_eq!(of("MPI_Allreduce", None), Some((5, None)));
        assert_eq!(of("MPI_Bcast", Some(3)), Some((5, Some(3))));
        assert_eq!(of("MPI_Exscan", None), Some((5, None)));
        assert_eq!(of("MPI_Gather", Some(3)), Some((5, Some(3))));
        assert_eq!(of("MPI_Gatherv", Some(3)), Some((5, Some(3))));
        assert_eq!(of("MPI_Iallreduce", None), Some((5, None)));
        assert_eq!(of("MPI_Igatherv", Some(3)), Some((5, Some(3))));
        for name in ["MPI_Allreduce_init", "MPI_Reduce_local", "MPI_Send", "MPI_Isend"] {
            assert_eq!(of(name, None), None);
        }
    }
}
