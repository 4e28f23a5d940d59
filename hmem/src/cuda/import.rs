//! Other processes' allocations, mapped for one context of this one.

use std::os::fd::AsRawFd;

use super::api::{
    ACCESS_READ_WRITE, AccessDesc, Error, HANDLE_POSIX_FD, IPC_LAZY_PEER_ACCESS, IpcHandle, LOCATION_DEVICE,
    NOT_FOUND, loaded,
};
use super::info::{Sort, info};
use super::stream::{self, Entered};
use crate::share::{Backing, Export, HandleType, Mapped, fetch};

/// `CUDA_ERROR_INVALID_VALUE`, `CUDA_ERROR_INVALID_HANDLE`.
const INVALID_VALUE: i32 = 1;
const INVALID_HANDLE: i32 = 400;

/// The context that a copy between `export` and `local` is to be done in.
pub(super) fn context(export: &Export, local: usize) -> Result<usize, Error> {
    let api = loaded().ok_or(Error(NOT_FOUND))?;
    match info(local).filter(|i| i.device >= 0 && i.sort != Sort::Host) {
        Some(of) => stream::context_of(api, &of),
        None => stream::context_near(api, &export.device),
    }
}

/// What is to be undone when a mapping is closed.
struct Mapping {
    ctx: usize,
    /// Number of the context; a later context with the same handle has another one.
    id: u64,
    at: u64,
    len: u64,
    handle_type: HandleType,
}

/// Maps it for `ctx`.
pub(super) fn import(pid: i32, export: &Export, ctx: usize) -> Result<Mapped, Error> {
    let api = loaded().ok_or(Error(NOT_FOUND))?;
    let entered = Entered::new(api, ctx)?;
    let mapping = map(pid, export, ctx, &entered)?;
    Ok(Mapped { at: mapping.at, len: mapping.len, backing: Backing::Runtime(Box::new(mapping)) })
}

fn map(pid: i32, export: &Export, ctx: usize, entered: &Entered<'_>) -> Result<Mapping, Error> {
    let api = loaded().ok_or(Error(NOT_FOUND))?;
    let (mut at, id) = (0, stream::id_of(api, ctx));
    match export.handle_type {
        HandleType::Legacy => {
            api.ipc_open(&mut at, IpcHandle(export.token), IPC_LAZY_PEER_ACCESS)?;
            let mapping = Mapping { ctx, id, at, len: export.len, handle_type: export.handle_type };
            // Its length is the owner's word until the driver confirms it.
            let (mut base, mut len) = (0, 0);
            api.mem_range(&mut base, &mut len, at)?;
            let follow = (base + len as u64).saturating_sub(at);
            if base > at || follow < export.len {
                return Err(Error(INVALID_VALUE));
            }
            Ok(mapping)
        }
        HandleType::Descriptor => {
            let fd = fetch(pid, export.fd).map_err(|_| Error(INVALID_HANDLE))?;
            let mut handle = 0;
            let as_ptr = std::ptr::without_provenance_mut(fd.as_raw_fd() as usize);
            api.mem_import(&mut handle, as_ptr, HANDLE_POSIX_FD)?;
            let len = export.len as usize;
            let mapped = (|| {
                api.mem_reserve(&mut at, len, 0, 0, 0)?;
                if let Err(e) = api.mem_map(at, len, 0, handle, 0) {
                    let _ = api.mem_unreserve(at, len);
                    return Err(e);
                }
                let mapping = Mapping { ctx, id, at, len: export.len, handle_type: export.handle_type };
                let desc =
                    AccessDesc { kind: LOCATION_DEVICE, device: entered.device()?, flags: ACCESS_READ_WRITE };
                api.mem_access(at, len, &desc, 1)?;
                Ok(mapping)
            })();
            // The mapping, if there is one, keeps it.
            let _ = api.mem_release(handle);
            mapped
        }
        HandleType::File | HandleType::Hsa | HandleType::Ze | HandleType::Pool => Err(Error(INVALID_VALUE)),
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let Some(api) = loaded() else { return };
        let entered = Entered::new(api, self.ctx);
        let len = self.len as usize;
        let _ = match self.handle_type {
            // It is gone with its context, and something else may be there.
            HandleType::Legacy if entered.is_err() || stream::id_of(api, self.ctx) != self.id => Ok(()),
            HandleType::Legacy => api.ipc_close(self.at),
            // That belongs to none, and keeps the owner's memory.
            _ => api.mem_unmap(self.at, len).and_then(|()| api.mem_unreserve(self.at, len)),
        };
    }
}
