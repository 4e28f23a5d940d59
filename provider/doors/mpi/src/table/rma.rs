//! One-sided calls.

use crate::entry::rows;
use crate::row::Count::{One, Single};
use crate::row::Dir::{In, InOut};
use crate::row::{Buf, Ends, On};

const PUT_BUFS: &[Buf] = &[Buf::new(In, 0, One(1), 2)];
// Nothing comes from MPI_PROC_NULL.
const GET_BUFS: &[Buf] = &[Buf::new(InOut, 0, One(1), 2)];
const ACCUMULATE_BUFS: &[Buf] = &[Buf::new(In, 0, One(1), 2).computed()];
const GET_ACCUMULATE_BUFS: &[Buf] =
    &[Buf::new(In, 0, One(1), 2).computed(), Buf::new(InOut, 3, One(4), 5).computed()];
const FETCH_AND_OP_BUFS: &[Buf] =
    &[Buf::new(In, 0, Single, 2).computed(), Buf::new(InOut, 1, Single, 2).computed()];
const COMPARE_AND_SWAP_BUFS: &[Buf] =
    &[Buf::new(In, 0, Single, 3), Buf::new(In, 1, Single, 3), Buf::new(InOut, 2, Single, 3)];

rows! {
    PUT: MPI_Put [MPI_Put_c] [mpi_put_, ompi_put_f]; 8, On::Window(7, 3), Ends::Epoch, PUT_BUFS;
    GET: MPI_Get [MPI_Get_c] [mpi_get_, ompi_get_f]; 8, On::Window(7, 3), Ends::Epoch, GET_BUFS;
    ACCUMULATE: MPI_Accumulate [MPI_Accumulate_c] [mpi_accumulate_, ompi_accumulate_f]; 9, On::Window(8, 3), Ends::Epoch, ACCUMULATE_BUFS;
    GET_ACCUMULATE: MPI_Get_accumulate [MPI_Get_accumulate_c] [mpi_get_accumulate_, ompi_get_accumulate_f]; 12, On::Window(11, 6), Ends::Epoch, GET_ACCUMULATE_BUFS;
    FETCH_AND_OP: MPI_Fetch_and_op [] [mpi_fetch_and_op_, ompi_fetch_and_op_f]; 7, On::Window(6, 3), Ends::Epoch, FETCH_AND_OP_BUFS;
    COMPARE_AND_SWAP: MPI_Compare_and_swap [] [mpi_compare_and_swap_, ompi_compare_and_swap_f]; 7, On::Window(6, 4), Ends::Epoch, COMPARE_AND_SWAP_BUFS;
    RPUT: MPI_Rput [MPI_Rput_c] [mpi_rput_, ompi_rput_f]; 9, On::Window(7, 3), Ends::Request(8), PUT_BUFS;
    RGET: MPI_Rget [MPI_Rget_c] [mpi_rget_, ompi_rget_f]; 9, On::Window(7, 3), Ends::Request(8), GET_BUFS;
    RACCUMULATE: MPI_Raccumulate [MPI_Raccumulate_c] [mpi_raccumulate_, ompi_raccumulate_f]; 10, On::Window(8, 3), Ends::Request(9), ACCUMULATE_BUFS;
    RGET_ACCUMULATE: MPI_Rget_accumulate [MPI_Rget_accumulate_c] [mpi_rget_accumulate_, ompi_rget_accumulate_f]; 13, On::Window(11, 6), Ends::Request(12), GET_ACCUMULATE_BUFS;
}
