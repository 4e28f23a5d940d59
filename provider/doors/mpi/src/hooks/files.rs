//! The ends of split collective reads and writes.

use core::ffi::c_int;

use super::{Call, hooks};
use crate::call::raise;
use crate::refuse::Target;
use crate::splits::{is_empty, take};

unsafe fn end(call: &mut Call<'_>) -> c_int {
    // SAFETY: the file is the first argument, the buffer, of which the MPI looks at the address at most, the
    // second.
    unsafe {
        let file = call.args.file(0);
        let Some(mirrors) = take(file) else { return call.forward() };
        if let [mirror] = &mirrors[..] {
            call.args.words[1] = mirror.address();
        }
        let code = call.forward();
        if code != 0 {
            return code;
        }
        match mirrors.iter().try_for_each(|mirror| mirror.copy_back()) {
            Ok(()) => 0,
            Err(failure) => raise(call.library, Target::File(file), failure),
        }
    }
}

hooks! {
    MPI_File_read_all_end [mpi_file_read_all_end_, ompi_file_read_all_end_f] (a b c) !is_empty() => end;
    MPI_File_read_at_all_end [mpi_file_read_at_all_end_, ompi_file_read_at_all_end_f] (a b c) !is_empty() => end;
    MPI_File_read_ordered_end [mpi_file_read_ordered_end_, ompi_file_read_ordered_end_f] (a b c) !is_empty() => end;
    MPI_File_write_all_end [mpi_file_write_all_end_, ompi_file_write_all_end_f] (a b c) !is_empty() => end;
    MPI_File_write_at_all_end [mpi_file_write_at_all_end_, ompi_file_write_at_all_end_f] (a b c) !is_empty() => end;
    MPI_File_write_ordered_end [mpi_file_write_ordered_end_, ompi_file_write_ordered_end_f] (a b c) !is_empty() => end;
}
