//! MPI_Pack_external and MPI_Unpack_external of Open MPI's Fortran: the length of the representation's name
//! comes behind the place for the error's code.

use core::ffi::c_int;
use std::ffi::CString;

use crate::abi::Family;
use crate::args::{Args, Style};
use crate::call;
use crate::host::is_host;
use crate::library::{Next, UNAVAILABLE, library};
use crate::{fortran, table, words};

/// How an argument of Fortran's goes to C.
#[derive(Clone, Copy)]
enum As {
    Buffer,
    Int,
    Size,
    Datatype,
    Place,
}
use As::{Buffer, Datatype, Int, Place, Size};

/// The call in C, and its arguments behind the name.
struct In {
    name: &'static str,
    next: Next,
    arguments: [As; 6],
}

static PACK: In = In {
    name: "MPI_Pack_external",
    next: Next::new(c"MPI_Pack_external"),
    arguments: [Buffer, Int, Datatype, Buffer, Size, Place],
};
static UNPACK: In = In {
    name: "MPI_Unpack_external",
    next: Next::new(c"MPI_Unpack_external"),
    arguments: [Buffer, Size, Place, Buffer, Int, Datatype],
};

/// Calls it as C does, if a buffer may be in device memory.
///
/// # Safety
/// The arguments are those of the call.
unsafe fn run(of: &In, words: &mut [usize; 9], next: &Next) -> c_int {
    let Some(at) = next.address() else { return UNAVAILABLE };
    let is_all_host = of.arguments.iter().zip(&words[1..]).all(|(how, word)| match how {
        Buffer => is_host(*word) && !fortran::is_bottom(*word),
        _ => true,
    });
    let library = library().filter(|library| library.abi.family == Family::OpenMpi && !is_all_host);
    let (Some(library), Some(row)) = (library, table::rows().find(|row| row.name == of.name)) else {
        // SAFETY: the caller's promise.
        return unsafe { words::call(at, words) };
    };
    // SAFETY: the caller's promise: a name of that many characters, filled up with blanks.
    let name = unsafe { std::slice::from_raw_parts(words[0] as *const u8, words[8] as c_int as usize) };
    let Ok(name) = CString::new(name.trim_ascii_end()) else { return library.abi.errors.other };
    let error = words[7] as *mut c_int;
    let args = Args { words, style: Style::Fortran, abi: &library.abi };
    let mut in_c = [name.as_ptr() as usize; 7];
    for (n, how) in of.arguments.iter().enumerate() {
        let n = n + 1;
        // SAFETY: the caller's promise.
        in_c[n] = unsafe {
            match how {
                Buffer if fortran::is_bottom(args.words[n]) => 0,
                Buffer | Place => args.words[n],
                Int => args.count(n),
                Size => args.long(n),
                Datatype => args.datatype(n),
            }
        };
    }
    // SAFETY: the arguments of the row's call, and a place for the code.
    unsafe {
        let code = call::run(row, Style::C, &mut in_c, &of.next);
        error.write(code);
        code
    }
}

macro_rules! external {
    ($($name:ident: $of:ident;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(
                a: usize,
                b: usize,
                c: usize,
                d: usize,
                e: usize,
                f: usize,
                g: usize,
                error: usize,
                len: usize,
            ) -> c_int {
                static NEXT: Next = Next::new($crate::library::c_name!($name));
                // SAFETY: the arguments of the call.
                unsafe { run(&$of, &mut [a, b, c, d, e, f, g, error, len], &NEXT) }
            }
        )*
    };
}

external! {
    mpi_pack_external_: PACK;
    ompi_pack_external_f: PACK;
    mpi_unpack_external_: UNPACK;
    ompi_unpack_external_f: UNPACK;
}
