//! Buffers of split collective reads and writes of files, from MPI_File_..._begin to MPI_File_..._end.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use crate::abi::Handle;
use crate::buffer::Mirror;
use crate::refuse::Target;

static FILES: Mutex<Option<HashMap<Handle, Vec<Mirror>>>> = Mutex::new(None);

/// Whether there ever was one.
static ANY: AtomicBool = AtomicBool::new(false);

/// Whether no file has one.
pub(crate) fn is_empty() -> bool {
    !ANY.load(Relaxed)
}

/// A split collective has begun: a file has one at a time.
pub(crate) fn add(target: Target, mirrors: Vec<Mirror>) {
    if let Target::File(file) = target {
        ANY.store(true, Relaxed);
        FILES
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert_with(HashMap::new)
            .insert(file, mirrors);
    }
}

/// It ends: its mirrors.
pub(crate) fn take(file: Handle) -> Option<Vec<Mirror>> {
    FILES.lock().unwrap_or_else(PoisonError::into_inner).as_mut()?.remove(&file)
}
