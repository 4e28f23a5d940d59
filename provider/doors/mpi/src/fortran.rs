//! The addresses of Open MPI's Fortran library that have a meaning: MPI_IN_PLACE and its like are variables
//! of common blocks.

use core::ffi::CStr;
use std::sync::OnceLock;

use loaded::Object;

/// Where the program has the variable: a program's own definition of a common block comes before its
/// library's.
fn place(cell: &OnceLock<usize>, name: &CStr) -> usize {
    *cell.get_or_init(|| {
        let global = Object::global().map_or(0, |object| object.lookup(name) as usize);
        if global != 0 {
            return global;
        }
        Object::all_defining(name).first().map_or(0, |(object, _)| object.lookup(name) as usize)
    })
}

/// Whether the argument is MPI_IN_PLACE.
pub fn is_in_place(word: usize) -> bool {
    static PLACE: OnceLock<usize> = OnceLock::new();
    word != 0 && word == place(&PLACE, c"mpi_fortran_in_place_")
}

/// Whether the argument is MPI_BOTTOM.
pub fn is_bottom(word: usize) -> bool {
    static PLACE: OnceLock<usize> = OnceLock::new();
    word != 0 && word == place(&PLACE, c"mpi_fortran_bottom_")
}

/// Whether the argument is MPI_STATUS_IGNORE or MPI_STATUSES_IGNORE.
pub fn is_status_ignore(word: usize) -> bool {
    static PLACE: OnceLock<usize> = OnceLock::new();
    static PLACES: OnceLock<usize> = OnceLock::new();
    let is = |cell, name| word == place(cell, name);
    word != 0 && (is(&PLACE, c"mpi_fortran_status_ignore_") || is(&PLACES, c"mpi_fortran_statuses_ignore_"))
}
