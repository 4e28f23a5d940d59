//! Files.

use crate::entry::rows;
use crate::row::Count::One;
use crate::row::Dir::{In, InOut};
use crate::row::{Buf, Ends, On};

// A file may end before the buffer is full.
const READ: &[Buf] = &[Buf::new(InOut, 1, One(2), 3)];
const READ_AT: &[Buf] = &[Buf::new(InOut, 2, One(3), 4)];
const WRITTEN: &[Buf] = &[Buf::new(In, 1, One(2), 3)];
const WRITTEN_AT: &[Buf] = &[Buf::new(In, 2, One(3), 4)];

rows! {
    FILE_READ: MPI_File_read [MPI_File_read_c] [mpi_file_read_, ompi_file_read_f]; 5, On::File(0), Ends::Returns, READ;
    FILE_READ_ALL: MPI_File_read_all [MPI_File_read_all_c] [mpi_file_read_all_, ompi_file_read_all_f]; 5, On::File(0), Ends::Returns, READ;
    FILE_READ_SHARED: MPI_File_read_shared [MPI_File_read_shared_c] [mpi_file_read_shared_, ompi_file_read_shared_f]; 5, On::File(0), Ends::Returns, READ;
    FILE_READ_ORDERED: MPI_File_read_ordered [MPI_File_read_ordered_c] [mpi_file_read_ordered_, ompi_file_read_ordered_f]; 5, On::File(0), Ends::Returns, READ;
    FILE_READ_AT: MPI_File_read_at [MPI_File_read_at_c] [mpi_file_read_at_, ompi_file_read_at_f]; 6, On::File(0), Ends::Returns, READ_AT;
    FILE_READ_AT_ALL: MPI_File_read_at_all [MPI_File_read_at_all_c] [mpi_file_read_at_all_, ompi_file_read_at_all_f]; 6, On::File(0), Ends::Returns, READ_AT;
    FILE_IREAD: MPI_File_iread [MPI_File_iread_c] [mpi_file_iread_, ompi_file_iread_f]; 5, On::File(0), Ends::Request(4), READ;
    FILE_IREAD_ALL: MPI_File_iread_all [MPI_File_iread_all_c] [mpi_file_iread_all_, ompi_file_iread_all_f]; 5, On::File(0), Ends::Request(4), READ;
    FILE_IREAD_SHARED: MPI_File_iread_shared [MPI_File_iread_shared_c] [mpi_file_iread_shared_, ompi_file_iread_shared_f]; 5, On::File(0), Ends::Request(4), READ;
    FILE_IREAD_AT: MPI_File_iread_at [MPI_File_iread_at_c] [mpi_file_iread_at_, ompi_file_iread_at_f]; 6, On::File(0), Ends::Request(5), READ_AT;
    FILE_IREAD_AT_ALL: MPI_File_iread_at_all [MPI_File_iread_at_all_c] [mpi_file_iread_at_all_, ompi_file_iread_at_all_f]; 6, On::File(0), Ends::Request(5), READ_AT;
    FILE_READ_ALL_BEGIN: MPI_File_read_all_begin [MPI_File_read_all_begin_c] [mpi_file_read_all_begin_, ompi_file_read_all_begin_f]; 4, On::File(0), Ends::Split, READ;
    FILE_READ_ORDERED_BEGIN: MPI_File_read_ordered_begin [MPI_File_read_ordered_begin_c] [mpi_file_read_ordered_begin_, ompi_file_read_ordered_begin_f]; 4, On::File(0), Ends::Split, READ;
    FILE_READ_AT_ALL_BEGIN: MPI_File_read_at_all_begin [MPI_File_read_at_all_begin_c] [mpi_file_read_at_all_begin_, ompi_file_read_at_all_begin_f]; 5, On::File(0), Ends::Split, READ_AT;
    FILE_WRITE: MPI_File_write [MPI_File_write_c] [mpi_file_write_, ompi_file_write_f]; 5, On::File(0), Ends::Returns, WRITTEN;
    FILE_WRITE_ALL: MPI_File_write_all [MPI_File_write_all_c] [mpi_file_write_all_, ompi_file_write_all_f]; 5, On::File(0), Ends::Returns, WRITTEN;
    FILE_WRITE_SHARED: MPI_File_write_shared [MPI_File_write_shared_c] [mpi_file_write_shared_, ompi_file_write_shared_f]; 5, On::File(0), Ends::Returns, WRITTEN;
    FILE_WRITE_ORDERED: MPI_File_write_ordered [MPI_File_write_ordered_c] [mpi_file_write_ordered_, ompi_file_write_ordered_f]; 5, On::File(0), Ends::Returns, WRITTEN;
    FILE_WRITE_AT: MPI_File_write_at [MPI_File_write_at_c] [mpi_file_write_at_, ompi_file_write_at_f]; 6, On::File(0), Ends::Returns, WRITTEN_AT;
    FILE_WRITE_AT_ALL: MPI_File_write_at_all [MPI_File_write_at_all_c] [mpi_file_write_at_all_, ompi_file_write_at_all_f]; 6, On::File(0), Ends::Returns, WRITTEN_AT;
    FILE_IWRITE: MPI_File_iwrite [MPI_File_iwrite_c] [mpi_file_iwrite_, ompi_file_iwrite_f]; 5, On::File(0), Ends::Request(4), WRITTEN;
    FILE_IWRITE_ALL: MPI_File_iwrite_all [MPI_File_iwrite_all_c] [mpi_file_iwrite_all_, ompi_file_iwrite_all_f]; 5, On::File(0), Ends::Request(4), WRITTEN;
    FILE_IWRITE_SHARED: MPI_File_iwrite_shared [MPI_File_iwrite_shared_c] [mpi_file_iwrite_shared_, ompi_file_iwrite_shared_f]; 5, On::File(0), Ends::Request(4), WRITTEN;
    FILE_IWRITE_AT: MPI_File_iwrite_at [MPI_File_iwrite_at_c] [mpi_file_iwrite_at_, ompi_file_iwrite_at_f]; 6, On::File(0), Ends::Request(5), WRITTEN_AT;
    FILE_IWRITE_AT_ALL: MPI_File_iwrite_at_all [MPI_File_iwrite_at_all_c] [mpi_file_iwrite_at_all_, ompi_file_iwrite_at_all_f]; 6, On::File(0), Ends::Request(5), WRITTEN_AT;
    FILE_WRITE_ALL_BEGIN: MPI_File_write_all_begin [MPI_File_write_all_begin_c] [mpi_file_write_all_begin_, ompi_file_write_all_begin_f]; 4, On::File(0), Ends::Split, WRITTEN;
    FILE_WRITE_ORDERED_BEGIN: MPI_File_write_ordered_begin [MPI_File_write_ordered_begin_c] [mpi_file_write_ordered_begin_, ompi_file_write_ordered_begin_f]; 4, On::File(0), Ends::Split, WRITTEN;
    FILE_WRITE_AT_ALL_BEGIN: MPI_File_write_at_all_begin [MPI_File_write_at_all_begin_c] [mpi_file_write_at_all_begin_, ompi_file_write_at_all_begin_f]; 5, On::File(0), Ends::Split, WRITTEN_AT;
}
