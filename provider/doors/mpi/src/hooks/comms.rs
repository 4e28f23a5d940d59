//! Communicators that are made of others: whether their collectives may go by NCCL.

use core::ffi::c_int;

use super::{Call, hooks};
use crate::collective;

/// The parent is the first argument, the place of the new communicator that one.
unsafe fn made(call: &mut Call<'_>, at: usize) -> c_int {
    // SAFETY: by the call.
    unsafe {
        let parent = call.args.comm(0);
        let code = call.forward();
        if code == 0 {
            let comm = call.args.comm_at(at);
            let is_one = comm != call.args.abi.handles.comm_null;
            collective::made(call.library, parent, is_one.then_some(comm));
        }
        code
    }
}

macro_rules! making {
    ($($name:ident: $at:literal;)*) => {
        $(
            unsafe fn $name(call: &mut Call<'_>) -> c_int {
                // SAFETY: the place of that call's argument.
                unsafe { made(call, $at) }
            }
        )*
    };
}

making! {
    second: 1;
    third: 2;
    fourth: 3;
    fifth: 4;
}

hooks! {
    MPI_Comm_dup [mpi_comm_dup_, ompi_comm_dup_f] (a b) collective::is_on() => second;
    MPI_Comm_dup_with_info [mpi_comm_dup_with_info_, ompi_comm_dup_with_info_f] (a b c) collective::is_on() => third;
    MPI_Comm_create [mpi_comm_create_, ompi_comm_create_f] (a b c) collective::is_on() => third;
    MPI_Comm_split [mpi_comm_split_, ompi_comm_split_f] (a b c d) collective::is_on() => fourth;
    MPI_Comm_split_type [mpi_comm_split_type_, ompi_comm_split_type_f] (a b c d e) collective::is_on() => fifth;
}
