//! The entry points of a call: `MPI_Name`, `MPI_Name_c`, and of Fortran `mpi_name_` and Open MPI's
//! `ompi_name_f`, by which its module mpi_f08 calls the same.

/// An entry point: its name, how its arguments are passed, and how many there are.
macro_rules! entry {
    ($row:ident, $name:ident, $style:ident, 4) => {
        $crate::entry::entry!(@fn $row, $name, $style, a b c d);
    };
    ($row:ident, $name:ident, $style:ident, 5) => {
        $crate::entry::entry!(@fn $row, $name, $style, a b c d e);
    };
    ($row:ident, $name:ident, $style:ident, 6) => {
        $crate::entry::entry!(@fn $row, $name, $style, a b c d e f);
    };
    ($row:ident, $name:ident, $style:ident, 7) => {
        $crate::entry::entry!(@fn $row, $name, $style, a b c d e f g);
    };
    ($row:ident, $name:ident, $style:ident, 8) => {
        $crate::entry::entry!(@fn $row, $name, $style, a b c d e f g h);
    };
    ($row:ident, $name:ident, $style:ident, 9) => {
        $crate::entry::entry!(@fn $row, $name, $style, a b c d e f g h i);
    };
    ($row:ident, $name:ident, $style:ident, 10) => {
        $crate::entry::entry!(@fn $row, $name, $style, a b c d e f g h i j);
    };
    ($row:ident, $name:ident, $style:ident, 11) => {
        $crate::entry::entry!(@fn $row, $name, $style, a b c d e f g h i j k);
    };
    ($row:ident, $name:ident, $style:ident, 12) => {
        $crate::entry::entry!(@fn $row, $name, $style, a b c d e f g h i j k l);
    };
    ($row:ident, $name:ident, $style:ident, 13) => {
        $crate::entry::entry!(@fn $row, $name, $style, a b c d e f g h i j k l m);
    };
    ($row:ident, $name:ident, $style:ident, 14) => {
        $crate::entry::entry!(@fn $row, $name, $style, a b c d e f g h i j k l m n);
    };
    (@fn $row:ident, $name:ident, $style:ident, $($a:ident)*) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($a: usize),*) -> core::ffi::c_int {
            static NEXT: $crate::library::Next = $crate::library::Next::new($crate::library::c_name!($name));
            let words = [$($a),*];
            let (mut is_host, mut n) = (true, 0);
            while n < $row::BUFS.len() {
                let word = words[$row::BUFS[n].at as usize];
                is_host &= $crate::host::is_host(word);
                if let $crate::args::Style::Fortran = $crate::args::Style::$style {
                    is_host &= !$crate::fortran::is_bottom(word);
                }
                n += 1;
            }
            // SAFETY: the arguments of the call.
            is_host &= unsafe {
                !$crate::collective::is_posted($row::PLAN.as_ref(), $crate::args::Style::$style, &words)
            };
            let returned = if let (true, Some(next)) = (is_host, NEXT.address()) {
                // SAFETY: a function of the same name has the same arguments.
                unsafe {
                    let next: unsafe extern "C" fn($($crate::entry::entry!(@word $a)),*) -> core::ffi::c_int =
                        core::mem::transmute::<usize, _>(next);
                    next($($a),*)
                }
            } else {
                let mut words = words;
                // SAFETY: the arguments of the call.
                unsafe { $crate::call::run(&$row, $crate::args::Style::$style, &mut words, &NEXT) }
            };
            if $crate::requests::any_freed() {
                $crate::requests::end_freed();
            }
            returned
        }
    };
    (@word $a:ident) => { usize };
}
pub(crate) use entry;

/// An entry point of Fortran: one argument more than C's, the place for the error's code.
macro_rules! fortran {
    ($row:ident, $name:ident, 4) => {
        $crate::entry::entry!($row, $name, Fortran, 5);
    };
    ($row:ident, $name:ident, 5) => {
        $crate::entry::entry!($row, $name, Fortran, 6);
    };
    ($row:ident, $name:ident, 6) => {
        $crate::entry::entry!($row, $name, Fortran, 7);
    };
    ($row:ident, $name:ident, 7) => {
        $crate::entry::entry!($row, $name, Fortran, 8);
    };
    ($row:ident, $name:ident, 8) => {
        $crate::entry::entry!($row, $name, Fortran, 9);
    };
    ($row:ident, $name:ident, 9) => {
        $crate::entry::entry!($row, $name, Fortran, 10);
    };
    ($row:ident, $name:ident, 10) => {
        $crate::entry::entry!($row, $name, Fortran, 11);
    };
    ($row:ident, $name:ident, 11) => {
        $crate::entry::entry!($row, $name, Fortran, 12);
    };
    ($row:ident, $name:ident, 12) => {
        $crate::entry::entry!($row, $name, Fortran, 13);
    };
    ($row:ident, $name:ident, 13) => {
        $crate::entry::entry!($row, $name, Fortran, 14);
    };
}
pub(crate) use fortran;

/// Rows, and their entry points: the names in C, in C with large counts, and in Fortran, where it has them;
/// that of Open MPI before MPI 4; how many arguments there are in C; the row.
macro_rules! rows {
    ($($row:ident: $c:ident [$($large:ident)?] [$($fortran:ident, $openmpi:ident)?] $([$alias:ident])?;
       $n:tt, $on:expr, $ends:expr, $bufs:ident;)*) => {
        $(
            #[allow(non_snake_case, reason = "named as the row is")]
            mod $row {
                pub(super) const BUFS: &[$crate::row::Buf] = super::$bufs;
                pub(super) const PLAN: Option<$crate::posted::Plan> = {
                    use super::On;
                    On::plan($on, stringify!($c))
                };
            }
            static $row: $crate::row::Row = $crate::row::Row {
                name: stringify!($c),
                bufs: $row::BUFS,
                on: $on,
                ends: $ends,
                plan: $row::PLAN,
                counts: $crate::counts::Counts::new(),
            };
            $crate::entry::entry!($row, $c, C, $n);
            $($crate::entry::entry!($row, $alias, C, $n);)?
            $($crate::entry::entry!($row, $large, Large, $n);)?
            $(
                $crate::entry::fortran!($row, $fortran, $n);
                $crate::entry::fortran!($row, $openmpi, $n);
            )?
        )*
        /// The rows of this file.
        pub(super) static ROWS: &[&$crate::row::Row] = &[$(&$row),*];
    };
}
pub(crate) use rows;
