//! PMIx, by the libpmix of the launcher or of the system, opened at run time.

use std::ffi::{CStr, c_char, c_int};
use std::path::PathBuf;
use std::ptr::{null, null_mut};

use crate::pmix_abi as abi;
use crate::{Error, Exchange};

/// A connection to the PMIx server of the launcher.
#[derive(Debug)]
pub struct Pmix {
    library: &'static Library,
    me: abi::Proc,
    size: usize,
    /// Exchanges done: part of each key, so that those of different exchanges differ.
    count: u64,
}

#[derive(Debug)]
struct Library {
    put: abi::PutFn,
    commit: abi::CommitFn,
    fence: abi::FenceFn,
    get: abi::GetFn,
    finalize: abi::FinalizeFn,
    error: abi::ErrorFn,
}

impl Pmix {
    /// Joins by the libpmix of this file, or by one that is found by its name.
    pub fn start(file: Option<PathBuf>) -> Result<Pmix, Error> {
        let names: Vec<PathBuf> = match file {
            Some(file) => vec![file],
            None => vec!["libpmix.so.2".into(), "libpmix.so".into()],
        };
        let open = |name: &PathBuf| {
            // SAFETY: libpmix's initialisers are made to be run by any program. It is never unloaded.
            unsafe { libloading::Library::new(name) }
        };
        let mut why = String::new();
        let mut found = None;
        for name in &names {
            match open(name) {
                Ok(library) => {
                    found = Some(library);
                    break;
                }
                Err(e) => why = e.to_string(),
            }
        }
        let found = found.ok_or_else(|| {
            Error::System(format!(
                "a PMIx launcher started this process, and there is no libpmix: {why}\n  install it (Debian: \
                 libpmix2), or name the launcher's own by {}",
                crate::names::PMIX
            ))
        })?;
        let object: &'static libloading::Library = Box::leak(Box::new(found));
        // SAFETY: these names are PMIx's, and each type is that of the function in pmix.h.
        let (init, library) = unsafe {
            let init: abi::InitFn = symbol(object, c"PMIx_Init")?;
            let library = Library {
                put: symbol(object, c"PMIx_Put")?,
                commit: symbol(object, c"PMIx_Commit")?,
                fence: symbol(object, c"PMIx_Fence")?,
                get: symbol(object, c"PMIx_Get")?,
                finalize: symbol(object, c"PMIx_Finalize")?,
                error: symbol(object, c"PMIx_Error_string")?,
            };
            (init, Box::leak(Box::new(library)))
        };
        let mut me = abi::Proc { nspace: [0; 256], rank: 0 };
        // SAFETY: a place for the name of this process; no further information.
        library.check(unsafe { init(&mut me, null_mut(), 0) }, "PMIx_Init")?;
        let mut pmix = Pmix { library, me, size: 0, count: 0 };
        pmix.size = pmix.job_size()?;
        if pmix.me.rank as usize >= pmix.size {
            let rank = pmix.me.rank;
            return Err(Error::System(format!("PMIx gives rank {rank} in a job of {}", pmix.size)));
        }
        Ok(pmix)
    }

    fn job_size(&self) -> Result<usize, Error> {
        let size = self.get(abi::RANK_WILDCARD, abi::JOB_SIZE, |value| match value.kind {
            // SAFETY: the kind says which member there is.
            abi::UINT32 => Some(unsafe { value.data.uint32 } as usize),
            _ => None,
        })?;
        Ok(size.max(1))
    }

    /// What a process put under this key.
    fn get<T>(&self, rank: u32, key: &[u8], read: impl Fn(&abi::Value) -> Option<T>) -> Result<T, Error> {
        let of = abi::Proc { rank, ..self.me.clone() };
        let key: [c_char; 512] = abi::key(key);
        let mut value = null_mut();
        // SAFETY: a name, a C string, and a place for the answer.
        let rc = unsafe { (self.library.get)(&of, key.as_ptr(), null(), 0, &mut value) };
        self.library.check(rc, "PMIx_Get")?;
        // SAFETY: null, or a value that libpmix made and that stays until it is freed.
        let got = unsafe { value.as_ref() }.and_then(read);
        // The value is not freed: the function for that is a macro in older releases, and which allocator
        // made the parts is libpmix's own affair. There are `size` of them for each exchange.
        got.ok_or_else(|| Error::System("PMIx_Get gave a value of another type".into()))
    }

    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), Error> {
        let key: [c_char; 512] = abi::key(key.as_bytes());
        let object = abi::Bytes { bytes: bytes.as_ptr().cast_mut().cast(), size: bytes.len() };
        let mut data = abi::Data { longest: [0; 3] };
        data.bytes = object;
        let mut value = abi::Value { kind: abi::BYTE_OBJECT, data };
        // SAFETY: a C string, and a value whose bytes libpmix copies during the call and does not change.
        let rc = unsafe { (self.library.put)(abi::GLOBAL, key.as_ptr(), &mut value) };
        self.library.check(rc, "PMIx_Put")?;
        // SAFETY: it takes nothing.
        self.library.check(unsafe { (self.library.commit)() }, "PMIx_Commit")
    }

    /// A fence of all, which hands out what was put if there is something.
    fn fence(&self, collect: bool) -> Result<(), Error> {
        let all = abi::Proc { rank: abi::RANK_WILDCARD, ..self.me.clone() };
        let mut data = abi::Data { longest: [0; 3] };
        data.flag = true;
        let value = abi::Value { kind: abi::BOOL, data };
        let info = abi::Info { key: abi::key(abi::COLLECT_DATA), flags: 0, value };
        // SAFETY: one name that stands for the whole job, and `collect` pieces of information.
        let rc = unsafe { (self.library.fence)(&all, 1, &info, usize::from(collect)) };
        self.library.check(rc, "PMIx_Fence")
    }
}

impl Exchange for Pmix {
    fn rank(&self) -> usize {
        self.me.rank as usize
    }

    fn size(&self) -> usize {
        self.size
    }

    fn allgather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        Error::check_length(mine)?;
        let key = format!("strait.{}", self.count);
        // An object of no bytes is not one: a byte goes in front.
        let mut bytes = vec![1];
        bytes.extend(mine);
        self.put(&key, &bytes)?;
        self.fence(true)?;
        self.count += 1;
        let read = |value: &abi::Value| {
            if value.kind != abi::BYTE_OBJECT {
                return None;
            }
            // SAFETY: the kind says which member there is.
            let object = unsafe { value.data.bytes };
            let len = Some(object.size)
                .filter(|len| !object.bytes.is_null() && (1..=crate::LONGEST + 1).contains(len));
            // SAFETY: an object of libpmix has as many bytes as it says, and nothing changes them.
            len.map(|len| unsafe { std::slice::from_raw_parts(object.bytes.cast::<u8>(), len) }[1..].to_vec())
        };
        (0..self.size as u32).map(|rank| self.get(rank, key.as_bytes(), read)).collect()
    }

    fn barrier(&mut self) -> Result<(), Error> {
        self.fence(false)
    }

    fn way(&self) -> &'static str {
        "pmix"
    }
}

impl Drop for Pmix {
    fn drop(&mut self) {
        // SAFETY: no further information; libpmix counts the calls that started it.
        unsafe { (self.library.finalize)(null(), 0) };
    }
}

impl Library {
    fn check(&self, rc: c_int, what: &str) -> Result<(), Error> {
        if rc == abi::SUCCESS {
            return Ok(());
        }
        // SAFETY: any number will do; the answer is null or a string that stays.
        let text = unsafe {
            let text = (self.error)(rc);
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        };
        Err(Error::System(format!("{what}: {} ({rc})", text.unwrap_or_default())))
    }
}

/// # Safety
///
/// `F` is the type of that function's pointer.
unsafe fn symbol<F: Copy>(object: &'static libloading::Library, name: &CStr) -> Result<F, Error> {
    // SAFETY: the caller's promise.
    match unsafe { object.get::<F>(name.to_bytes_with_nul()) } {
        Ok(function) => Ok(*function),
        Err(e) => Err(Error::System(format!("this is no libpmix: {e}"))),
    }
}
