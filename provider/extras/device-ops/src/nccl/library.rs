//! NCCL's functions.
//!
//! Source of names and values: NCCL's user guide, and nccl.h's public interface.

use std::ffi::{CStr, OsString, c_char, c_int, c_void};
use std::fmt;
use std::sync::OnceLock;

use super::error::NcclError;

/// `ncclComm_t`, `cudaStream_t`.
pub(super) type Handle = *mut c_void;
type Status = c_int;

/// `ncclInProgress`.
pub(super) const IN_PROGRESS: i32 = 7;

/// `ncclUniqueId`: rank 0 makes it, and the others are given it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId(pub [u8; 128]);

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UniqueId")
    }
}

/// `ncclConfig_t` as of version 2.14: calls return before what they began is over.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    _pad: u32,
}

impl Config {
    pub(super) fn new() -> Config {
        Config { size: size_of::<Config>(), magic: 0xcafe_beef, version: 21400, blocking: 0, _pad: 0 }
    }
}

macro_rules! functions {
    (
        $($field:ident $symbol:literal ($($arg:ty),*);)*
        => $($optional:ident $osymbol:literal ($($oarg:ty),*);)*
    ) => {
        /// The functions; those behind the arrow are not in every version.
        pub(super) struct Functions {
            $(pub(super) $field: unsafe extern "C" fn($($arg),*) -> Status,)*
            $(pub(super) $optional: Option<unsafe extern "C" fn($($oarg),*) -> Status>,)*
            error_string: Option<unsafe extern "C" fn(Status) -> *const c_char>,
        }

        impl Functions {
            /// In `Err`, the first function that it lacks.
            ///
            /// # Safety
            /// The library is NCCL's, or one with its interface.
            unsafe fn read(library: &libloading::Library) -> Result<Functions, &'static str> {
                Ok(Functions {
                    $(
                        // SAFETY: by nccl.h the function has that type; the library is never closed.
                        $field: *unsafe { library.get(concat!($symbol, "\0").as_bytes()) }.map_err(|_| $symbol)?,
                    )*
                    $(
                        // SAFETY: as above.
                        $optional: unsafe { library.get(concat!($osymbol, "\0").as_bytes()) }.ok().map(|f| *f),
                    )*
                    // SAFETY: as above.
                    error_string: unsafe { library.get(b"ncclGetErrorString\0") }.ok().map(|f| *f),
                })
            }
        }
    };
}

type Plain = *const c_void;
type Out = *mut c_void;

functions! {
    version "ncclGetVersion" (*mut c_int);
    unique_id "ncclGetUniqueId" (*mut UniqueId);
    init "ncclCommInitRank" (*mut Handle, c_int, UniqueId, c_int);
    destroy "ncclCommDestroy" (Handle);
    abort "ncclCommAbort" (Handle);
    async_error "ncclCommGetAsyncError" (Handle, *mut c_int);
    all_reduce "ncclAllReduce" (Plain, Out, usize, c_int, c_int, Handle, Handle);
    reduce "ncclReduce" (Plain, Out, usize, c_int, c_int, c_int, Handle, Handle);
    broadcast "ncclBroadcast" (Plain, Out, usize, c_int, c_int, Handle, Handle);
    all_gather "ncclAllGather" (Plain, Out, usize, c_int, Handle, Handle);
    reduce_scatter "ncclReduceScatter" (Plain, Out, usize, c_int, c_int, Handle, Handle);
    send "ncclSend" (Plain, usize, c_int, c_int, Handle, Handle);
    recv "ncclRecv" (Out, usize, c_int, c_int, Handle, Handle);
    group_start "ncclGroupStart" ();
    group_end "ncclGroupEnd" ();
    =>
    init_config "ncclCommInitRankConfig" (*mut Handle, c_int, UniqueId, c_int, *mut Config);
    split "ncclCommSplit" (Handle, c_int, c_int, *mut Handle, *mut Config);
}

/// Whose library it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// NCCL: libnccl.so.2, or the file that STRAIT_NCCL_LIBRARY names.
    Nvidia,
    /// RCCL: librccl.so.1. Not run.
    Amd,
}

/// The library, open for good.
pub struct Library {
    pub(super) functions: Functions,
    version: i32,
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Library({})", self.version)
    }
}

impl Library {
    /// Opens it, if that was not tried before.
    pub fn open(vendor: Vendor) -> Result<&'static Library, NcclError> {
        static OPEN: [OnceLock<Result<Library, NcclError>>; 2] = [OnceLock::new(), OnceLock::new()];
        let (place, name) = match vendor {
            Vendor::Nvidia => (&OPEN[0], std::env::var_os("STRAIT_NCCL_LIBRARY").filter(|n| !n.is_empty())),
            Vendor::Amd => (&OPEN[1], None),
        };
        let soname = if vendor == Vendor::Nvidia { "libnccl.so.2" } else { "librccl.so.1" };
        place.get_or_init(|| load(name.unwrap_or_else(|| soname.into()))).as_ref().map_err(Clone::clone)
    }

    /// Its version: 22005 is 2.20.5.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// A name for a communicator, which each of its ranks has to be given.
    pub fn unique_id(&self) -> Result<UniqueId, NcclError> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: `id` is valid for the call.
        self.check("ncclGetUniqueId", unsafe { (self.functions.unique_id)(&mut id) })?;
        Ok(id)
    }

    /// A code in words.
    pub(super) fn text(&self, code: i32) -> String {
        let text = self.functions.error_string.map(|f| {
            // SAFETY: takes any number.
            unsafe { f(code) }
        });
        match text.filter(|t| !t.is_null()) {
            // SAFETY: a constant that ends in NUL.
            Some(text) => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
            None => "an error without a text".to_owned(),
        }
    }

    /// The outcome of a call; what is in progress is no error.
    pub(super) fn check(&self, call: &'static str, code: i32) -> Result<(), NcclError> {
        match code {
            0 | IN_PROGRESS => Ok(()),
            code => Err(NcclError::Call { call, code, text: self.text(code) }),
        }
    }
}

fn load(name: OsString) -> Result<Library, NcclError> {
    let failed = |why: String| NcclError::Library { name: name.to_string_lossy().into_owned(), why };
    // SAFETY: its initialisers are NCCL's, as in every program that is linked with it.
    let library = unsafe { libloading::Library::new(&name) }.map_err(|e| failed(e.to_string()))?;
    // Its functions are in use for as long as the process lives.
    let library = Box::leak(Box::new(library));
    // SAFETY: it goes by the name of NCCL's library, or the user says that it is one.
    let functions = unsafe { Functions::read(library) }.map_err(|f| failed(format!("it has no {f}")))?;
    let mut loaded = Library { functions, version: 0 };
    // SAFETY: the place is valid for the call.
    let got = unsafe { (loaded.functions.version)(&mut loaded.version) };
    loaded.check("ncclGetVersion", got)?;
    Ok(loaded)
}
