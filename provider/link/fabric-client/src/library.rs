//! libfabric itself, loaded at run time.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use libc::c_int;
use libfabric_sys as sys;

use crate::Error;
use crate::infos::{Infos, provider_of, text};

type GetParamsFn = unsafe extern "C" fn(*mut *mut sys::fi_param, *mut c_int) -> c_int;
type FreeParamsFn = unsafe extern "C" fn(*mut sys::fi_param);

/// The newest API this program is written for.
const API: u32 = sys::FI_VERSION(1, 21);

/// A loaded libfabric. It stays loaded for the life of the process.
#[derive(Debug)]
pub struct Library {
    path: PathBuf,
    core: sys::Core,
    params: Option<(GetParamsFn, FreeParamsFn)>,
}

/// What to ask `fi_getinfo` for.
#[derive(Clone, Copy, Debug)]
pub struct Want<'a> {
    pub provider: &'a str,
    /// `FI_MSG` and so on; 0 for anything.
    pub caps: u64,
}

/// A parameter that libfabric or a provider reads from the environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    pub name: String,
    pub help: String,
    pub value: Option<String>,
}

impl Library {
    /// Loads the library at `path` (a file, or the directory it is in), or the one that programs
    /// get by default.
    pub fn load(path: Option<&Path>) -> Result<Arc<Library>, Error> {
        const NAME: &str = "libfabric.so.1";
        let name: PathBuf = match path {
            None => NAME.into(),
            Some(dir) if dir.is_dir() => [dir.join(NAME), dir.join("lib").join(NAME)]
                .into_iter()
                .find(|file| file.exists())
                .ok_or_else(|| format!("no {NAME} in {} or its lib/", dir.display()))?,
            // With a slash in it, or the linker would search its path.
            Some(file) => std::path::absolute(file)?,
        };
        // SAFETY: libfabric's initialisers are made to be run by any program. The object is leaked
        // below: it is never unloaded, so no pointer into it goes stale.
        let object = unsafe { libloading::Library::new(&name) }.map_err(|error| match path {
            Some(_) => format!("cannot load libfabric: {error}"),
            None => format!(
                "cannot load libfabric: {error}\n  install it (Debian, Ubuntu: libfabric1; Fedora, \
                 SUSE: libfabric), or name it with --libfabric FILE or LD_LIBRARY_PATH"
            ),
        })?;
        let object: &'static libloading::Library = Box::leak(Box::new(object));
        // SAFETY: these names are libfabric's, part of its versioned and append-only C ABI, and
        // each type is that of the function's declaration in the public headers.
        let (version, params) = unsafe {
            let version: sys::VersionFn = symbol(object, c"fi_version")?;
            let params =
                symbol(object, c"fi_getparams").and_then(|get| Ok((get, symbol(object, c"fi_freeparams")?)));
            (version as *const libc::c_void, params.ok())
        };
        let core = sys::Core::find(Some(version))
            .ok_or_else(|| format!("{}: this is no libfabric", name.display()))?;
        let library = Library { path: file_of(version).unwrap_or(name), core, params };
        Ok(Arc::new(library))
    }

    /// The file it was loaded from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its functions.
    pub fn core(&self) -> &sys::Core {
        &self.core
    }

    /// The API version it implements.
    pub fn version(&self) -> u32 {
        self.core.version()
    }

    /// The requested API version.
    pub fn api(&self) -> u32 {
        self.version().min(API)
    }

    /// Words for an error number, which may be negative.
    pub fn strerror(&self, error: i64) -> String {
        self.core.strerror(c_int::try_from(error.unsigned_abs()).unwrap_or(c_int::MAX))
    }

    /// `Err` for a negative answer.
    pub fn check(&self, rc: c_int, what: &str) -> Result<(), Error> {
        match rc {
            0.. => Ok(()),
            _ => Err(Error::of(&self.core, what, rc)),
        }
    }

    /// The function in a slot of a table.
    #[inline]
    pub fn have<F>(&self, slot: Option<F>, name: &str) -> Result<F, Error> {
        slot.ok_or_else(|| Error::Unsupported(format!("the provider has no function {name}")))
    }

    /// What fits, best first; the error says so if nothing does.
    pub fn getinfo(self: &Arc<Library>, want: Want<'_>) -> Result<Info, Error> {
        let shape = |info: *mut sys::fi_info| {
            // SAFETY: `find` gives an info with all its attributes; every field written was there in 1.0.
            unsafe {
                (*info).caps = want.caps;
                if want.caps != 0 {
                    manual(info, sys::FI_ORDER_SAS);
                } else {
                    (*(*info).domain_attr).mr_mode = !0x3;
                    (*info).mode = !0;
                }
            }
        };
        // SAFETY: the closure writes numbers alone.
        unsafe { self.find(Some(want.provider), shape) }
    }

    /// What fits hints that `shape` writes to, of this provider or of any.
    ///
    /// # Safety
    /// What `shape` writes makes valid hints: it gets an info with all its attributes, and puts no pointer
    /// into it that fi_freeinfo(3) could not free.
    pub unsafe fn find(
        self: &Arc<Library>,
        provider: Option<&str>,
        shape: impl FnOnce(*mut sys::fi_info),
    ) -> Result<Info, Error> {
        let named = provider.unwrap_or("of any name");
        let none = || Error::Unsupported(format!("provider {named} offers no such endpoint"));
        let why = |rc: i32| match -rc {
            sys::FI_ENODATA => none(),
            _ => Error::of(&self.core, &format!("fi_getinfo for provider {named}"), rc),
        };
        let hints = Infos::hints(&self.core, provider).map_err(why)?;
        shape(hints.at());
        let list = hints.find(self.api(), None, 0).map_err(why)?;
        // SAFETY: entries of a list that is there.
        let is_it =
            |info: &*mut sys::fi_info| provider.is_none_or(|name| unsafe { provider_of(*info) } == name);
        let raw = list.iter().find(is_it).and_then(NonNull::new).ok_or_else(none)?;
        Ok(Info { raw, _list: list, library: self.clone() })
    }

    /// The parameters whose name starts with `prefix`, after the providers were loaded.
    pub fn params(&self, prefix: &str) -> Vec<Param> {
        let Some((get, free)) = self.params else {
            return Vec::new();
        };
        let (mut list, mut count) = (null_mut(), 0);
        // SAFETY: both places are ours. On success `list` has `count` entries, freed once.
        unsafe {
            if get(&mut list, &mut count) != 0 || list.is_null() {
                return Vec::new();
            }
            let params = std::slice::from_raw_parts(list, usize::try_from(count).unwrap_or(0))
                .iter()
                .filter_map(|param| {
                    Some(Param {
                        name: text(param.name)?,
                        help: text(param.help_string).unwrap_or_default(),
                        value: text(param.value),
                    })
                })
                .filter(|param| param.name.starts_with(prefix))
                .collect();
            free(list);
            params
        }
    }
}

/// An entry of what `fi_getinfo` found; the list it is in is freed with this.
#[derive(Debug)]
pub struct Info {
    raw: NonNull<sys::fi_info>,
    /// What `raw` is an entry of.
    _list: Infos,
    library: Arc<Library>,
}

impl Info {
    pub fn as_ptr(&self) -> *mut sys::fi_info {
        self.raw.as_ptr()
    }

    pub fn library(&self) -> &Arc<Library> {
        &self.library
    }

    pub fn provider(&self) -> String {
        // SAFETY: an entry of a list that lives as long as `self`.
        unsafe { provider_of(self.as_ptr()) }
    }

    /// As the provider counts its own versions.
    pub fn provider_version(&self) -> u32 {
        // SAFETY: an entry that the library made has its attributes.
        unsafe { (*(*self.as_ptr()).fabric_attr).prov_version }
    }

    pub fn domain(&self) -> String {
        // SAFETY: an entry that the library made has its attributes; the name is null or a string.
        unsafe { text((*(*self.as_ptr()).domain_attr).name) }.unwrap_or_default()
    }

    pub fn caps(&self) -> u64 {
        // SAFETY: the entry is valid.
        unsafe { (*self.as_ptr()).caps }
    }

    /// Most bytes that may be injected.
    pub fn inject_size(&self) -> usize {
        // SAFETY: an entry that the library made has its attributes.
        unsafe { (*(*self.as_ptr()).tx_attr).inject_size }
    }

    pub fn max_msg_size(&self) -> usize {
        // SAFETY: an entry that the library made has its attributes.
        unsafe { (*(*self.as_ptr()).ep_attr).max_msg_size }
    }

    /// Most sends and receives at once.
    pub fn depth(&self) -> usize {
        // SAFETY: an entry that the library made has its attributes.
        unsafe {
            let (tx, rx) = ((*(*self.as_ptr()).tx_attr).size, (*(*self.as_ptr()).rx_attr).size);
            tx.min(rx)
        }
    }

    /// `FI_MR_*` that the provider wants.
    pub fn mr_mode(&self) -> c_int {
        // SAFETY: an entry that the library made has its attributes.
        unsafe { (*(*self.as_ptr()).domain_attr).mr_mode }
    }
}

/// `2.1` of a version word.
pub fn version_text(version: u32) -> String {
    format!("{}.{}", sys::FI_MAJOR(version), sys::FI_MINOR(version))
}

/// # Safety
///
/// `F` is the type of that function's pointer.
unsafe fn symbol<F: Copy>(object: &'static libloading::Library, name: &CStr) -> Result<F, Error> {
    // SAFETY: the caller's promise.
    match unsafe { object.get::<F>(name.to_bytes_with_nul()) } {
        Ok(function) => Ok(*function),
        Err(error) => Err(Error::Failed(format!("this is no libfabric: {error}"))),
    }
}

fn file_of(address: *const libc::c_void) -> Option<PathBuf> {
    let mut place = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr compares the address with the ranges of loaded objects; on success it has
    // filled in the structure, and the name lives as long as the object.
    unsafe {
        if libc::dladdr(address, place.as_mut_ptr()) == 0 {
            return None;
        }
        let name = place.assume_init().dli_fname;
        (!name.is_null()).then(|| OsStr::from_bytes(CStr::from_ptr(name).to_bytes()).into())
    }
}

/// Hints for reliable endpoints of one thread that makes progress itself and can do whatever a provider's
/// modes ask for.
///
/// # Safety
/// `info` is an info with all its attributes.
pub unsafe fn manual(info: *mut sys::fi_info, order: u64) {
    // SAFETY: the caller's promise; every field written was there in 1.0.
    unsafe {
        (*info).mode = sys::FI_CONTEXT | sys::FI_CONTEXT2;
        (*(*info).ep_attr).type_ = sys::FI_EP_RDM;
        (*(*info).tx_attr).msg_order = order;
        (*(*info).rx_attr).msg_order = order;
        let domain = (*info).domain_attr;
        (*domain).mode = sys::FI_CONTEXT | sys::FI_CONTEXT2;
        (*domain).threading = sys::FI_THREAD_DOMAIN;
        (*domain).control_progress = sys::FI_PROGRESS_MANUAL;
        (*domain).anon1.data_progress = sys::FI_PROGRESS_MANUAL;
        (*domain).av_type = sys::FI_AV_TABLE;
        (*domain).mr_mode = sys::FI_MR_LOCAL
            | sys::FI_MR_VIRT_ADDR
            | sys::FI_MR_ALLOCATED
            | sys::FI_MR_PROV_KEY
            | sys::FI_MR_ENDPOINT;
    }
}
