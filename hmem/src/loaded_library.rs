//! Devices' runtimes: libraries that the application has loaded, and tables of their functions.

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};

/// The library of that name, if it is in this process. Loads nothing, and never gives it back.
pub(crate) fn find(name: &str) -> Option<&'static Library> {
    // SAFETY: with RTLD_NOLOAD nothing is loaded, so that no initialiser runs.
    let library = unsafe { Library::open(Some(name), RTLD_LAZY | RTLD_LOCAL | libc::RTLD_NOLOAD) }.ok()?;
    // Its functions are in tables for as long as the process lives.
    Some(Box::leak(Box::new(library)))
}

/// Declares the table `Api`: for each function its field, its symbol, and its parameters; those that
/// answer a value and not a status come behind `=>`. What this library does not have stays `None`,
/// and calling it is answered with the second word.
macro_rules! functions {
    (
        $(#[$doc:meta])* $error:ident, $missing:expr;
        $($field:ident $symbol:literal ($($arg:ident: $ty:ty),*);)*
        $(=> $($value:ident $vsymbol:literal ($($varg:ident: $vty:ty),*) -> $ret:ty;)*)?
    ) => {
        $(#[$doc])*
        pub(crate) struct Api {
            $($field: Option<unsafe extern "C" fn($($ty),*) -> std::ffi::c_int>,)*
            $($($value: Option<unsafe extern "C" fn($($vty),*) -> $ret>,)*)?
        }

        impl Api {
            /// # Safety
            /// `library` is the runtime's, or one that is like it; it stays loaded.
            unsafe fn read(library: &libloading::os::unix::Library) -> Api {
                Api {
                    // SAFETY: the symbols have these types by the manual.
                    $($field: unsafe { library.get($symbol) }.ok().map(|s| *s),)*
                    // SAFETY: the symbols have these types by the manual.
                    $($($value: unsafe { library.get($vsymbol) }.ok().map(|s| *s),)*)?
                }
            }

            $(
                /// As the function of that name. What is passed has to be what its manual demands,
                /// which every caller in this module sees to: places are valid for writes, handles
                /// are the runtime's own, and ranges are of a `Span`.
                #[allow(clippy::too_many_arguments)]
                pub(crate) fn $field(&self, $($arg: $ty),*) -> Result<(), $error> {
                    let Some(f) = self.$field else { return Err($error($missing)) };
                    // SAFETY: see above; the runtime itself checks handles and device addresses.
                    match unsafe { f($($arg),*) } {
                        0 => Ok(()),
                        code => Err($error(code)),
                    }
                }
            )*
            $($(
                /// A call of the library, which may lack it.
                pub(crate) fn $value(&self, $($varg: $vty),*) -> Result<$ret, $error> {
                    let Some(f) = self.$value else { return Err($error($missing)) };
                    // SAFETY: see above.
                    Ok(unsafe { f($($varg),*) })
                }
            )*)?
        }
    };
}
pub(crate) use functions;
