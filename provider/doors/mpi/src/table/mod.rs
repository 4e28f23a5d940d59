//! The calls that have buffers: the interface of MPI 4.1, as far as buffers go. Each row makes the entry
//! points of C, of C with large counts, and of Fortran.

mod collective;
mod io;
mod p2p;
mod rma;

use crate::row::Row;

/// All rows.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    [p2p::ROWS, collective::ROWS, rma::ROWS, io::ROWS].into_iter().flatten().copied()
}
