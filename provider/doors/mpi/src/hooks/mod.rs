//! Calls without buffers that begin or end what others do with buffers: completion of requests, files' split
//! collectives, windows' epochs, MPI_Finalize.

mod comms;
mod external;
mod files;
mod process;
mod requests;
mod windows;

use core::ffi::c_int;

use crate::abi::Family;
use crate::args::{Args, Style};
use crate::library::{Library, Next, UNAVAILABLE, library};
use crate::words;

/// A call under way.
pub(crate) struct Call<'a> {
    pub(crate) library: &'static Library,
    pub(crate) args: Args<'a>,
    next: usize,
}

impl Call<'_> {
    /// Forwards it; its code.
    ///
    /// # Safety
    /// The arguments are those of the call.
    pub(crate) unsafe fn forward(&mut self) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            let returned = words::call(self.next, self.args.words);
            self.args.code(returned)
        }
    }
}

/// Runs a hook, or forwards the call where there is nothing to do.
///
/// # Safety
/// The arguments are those of the call, passed in that way.
unsafe fn run(
    needed: bool,
    style: Style,
    words: &mut [usize],
    next: &Next,
    hook: unsafe fn(&mut Call<'_>) -> c_int,
) -> c_int {
    // The one call for large counts here, MPI_Win_create_c, has a displacement unit for which an int is
    // enough.
    let Some(at) = next.address().or_else(|| next.with_small_counts()) else { return UNAVAILABLE };
    let Some(library) = library().filter(|_| needed) else {
        // SAFETY: the caller's promise.
        return unsafe { words::call(at, words) };
    };
    if style == Style::Fortran && library.abi.family != Family::OpenMpi {
        // SAFETY: the caller's promise. Its Fortran library calls the entry points of C.
        return unsafe { words::call(at, words) };
    }
    let args = Args { words, style, abi: &library.abi };
    let mut call = Call { library, args, next: at };
    let other = library.abi.errors.other;
    // SAFETY: the caller's promise.
    c_abi::caught(|| unsafe {
        let code = hook(&mut call);
        call.args.answer(code)
    })
    .unwrap_or(other)
}

/// Entry points: the names in C and in Fortran; the arguments in C; whether there is something to do; the
/// hook.
macro_rules! hooks {
    ($($c:ident [$($fortran:ident, $openmpi:ident)?] $arguments:tt $needed:expr => $hook:expr;)*) => {
        $(
            $crate::hooks::hooks!(@fn $c, C, $arguments, $needed, $hook);
            $(
                $crate::hooks::hooks!(@fortran $fortran, $arguments, $needed, $hook);
                $crate::hooks::hooks!(@fortran $openmpi, $arguments, $needed, $hook);
            )?
        )*
    };
    (@fortran $name:ident, ($($a:ident)*), $needed:expr, $hook:expr) => {
        $crate::hooks::hooks!(@fn $name, Fortran, ($($a)* error), $needed, $hook);
    };
    (@fn $name:ident, $style:ident, ($($a:ident)*), $needed:expr, $hook:expr) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($a: usize),*) -> core::ffi::c_int {
            static NEXT: $crate::library::Next = $crate::library::Next::new($crate::library::c_name!($name));
            let mut words = [$($a),*];
            // SAFETY: the arguments of the call.
            unsafe { $crate::hooks::run($needed, $crate::args::Style::$style, &mut words, &NEXT, $hook) }
        }
    };
}
pub(crate) use hooks;
