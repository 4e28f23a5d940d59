//! The flattened form of each datatype, made once. It is an attribute of a derived datatype, so that it goes
//! with MPI_Type_free; those of predefined ones are in a table.

use core::ffi::{c_int, c_void};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::Shape;
use super::contents::Contents;
use super::flatten::{self, Part};
use crate::abi::{Abi, Handle};
use crate::library::pmpi;

static PREDEFINED: Mutex<Option<HashMap<Handle, Arc<Shape>>>> = Mutex::new(None);

fn predefined(datatype: Handle, add: Option<&Arc<Shape>>) -> Option<Arc<Shape>> {
    let mut table = PREDEFINED.lock().unwrap_or_else(PoisonError::into_inner);
    let table = table.get_or_insert_with(HashMap::new);
    if let Some(shape) = add {
        table.insert(datatype, shape.clone());
    }
    table.get(&datatype).cloned()
}

/// Forgets the table of predefined datatypes: the MPI ends.
pub fn forget_predefined() {
    *PREDEFINED.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

/// The key of the attribute, while there is one.
static KEY: Mutex<Option<c_int>> = Mutex::new(None);

fn key() -> Result<c_int, c_int> {
    let mut kept = KEY.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(key) = *kept {
        return Ok(key);
    }
    let mut key: c_int = 0;
    let (copy, delete) = (no_copy as *const (), dropped as *const ());
    // SAFETY: valid places, and functions of the types that MPI_Type_create_keyval takes.
    unsafe { pmpi!("Type_create_keyval", copy, delete, &raw mut key, 0usize) }?;
    *kept = Some(key);
    Ok(key)
}

/// Frees the key: a session ends, and with the last one all keys of the MPI, which may then give the same
/// number to another. The attributes of datatypes that are still there stay until these are freed.
pub fn free_key() {
    let kept = KEY.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(mut key) = kept {
        // SAFETY: a key that this library has made, in a session that has not ended.
        let _ = unsafe { pmpi!("Type_free_keyval", &raw mut key) };
    }
}

/// MPI_Type_copy_attr_function, and MPI_Comm_copy_attr_function: a duplicate has none.
///
/// # Safety
/// `flag` is a place for the answer.
pub unsafe extern "C" fn no_copy(
    _: usize,
    _: usize,
    _: *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
    flag: *mut c_int,
) -> c_int {
    // SAFETY: MPI_Type_create_keyval(3): a place for the flag.
    unsafe { flag.write(0) };
    0
}

/// MPI_Type_delete_attr_function.
unsafe extern "C" fn dropped(_: usize, _: usize, shape: *mut c_void, _: *mut c_void) -> c_int {
    // SAFETY: the value was made by `Arc::into_raw`, and the attribute is gone.
    let _ = c_abi::caught(|| drop(unsafe { Arc::from_raw(shape.cast::<Shape>()) }));
    0
}

/// The flattened form of a datatype; `Err` with an error's code.
///
/// # Safety
/// `datatype` is a valid one.
pub unsafe fn shape_of(abi: &Abi, datatype: Handle) -> Result<Arc<Shape>, c_int> {
    if let Some(shape) = predefined(datatype, None) {
        return Ok(shape);
    }
    if let Ok(key) = key() {
        let (mut value, mut flag): (*const Shape, c_int) = (std::ptr::null(), 0);
        // SAFETY: valid places; the caller's promise.
        let asked = unsafe { pmpi!("Type_get_attr", datatype, key, &raw mut value, &raw mut flag) };
        if asked.is_ok() && flag != 0 && !value.is_null() {
            // SAFETY: the value is one that `Arc::into_raw` made, which the attribute holds while the
            // datatype is there.
            return Ok(unsafe {
                Arc::increment_strong_count(value);
                Arc::from_raw(value)
            });
        }
    }
    // SAFETY: the caller's promise.
    let (shape, is_named) = unsafe { flattened(abi, datatype) }?;
    let shape = Arc::new(shape);
    if is_named {
        predefined(datatype, Some(&shape));
    } else if let Ok(key) = key() {
        let value = Arc::into_raw(shape.clone());
        // SAFETY: the caller's promise. The attribute has one reference.
        if unsafe { pmpi!("Type_set_attr", datatype, key, value) }.is_err() {
            // SAFETY: the reference that the attribute did not take.
            drop(unsafe { Arc::from_raw(value) });
        }
    }
    Ok(shape)
}

/// The form, and whether the datatype is predefined.
unsafe fn flattened(abi: &Abi, datatype: Handle) -> Result<(Shape, bool), c_int> {
    let (mut size, mut lower, mut extent, mut low, mut true_extent): (i64, i64, i64, i64, i64) =
        (0, 0, 0, 0, 0);
    // SAFETY: valid places; the caller's promise.
    let contents = unsafe {
        pmpi!("Type_get_extent_x", datatype, &raw mut lower, &raw mut extent)?;
        Contents::of(abi, datatype)?
    };
    if contents.types.is_empty() && contents.integers.is_empty() {
        // SAFETY: as above.
        unsafe {
            pmpi!("Type_size_x", datatype, &raw mut size)?;
            pmpi!("Type_get_true_extent_x", datatype, &raw mut low, &raw mut true_extent)?;
        }
        let tree = flatten::predefined(size as usize, low as isize, (low + true_extent) as isize);
        // Types by the range of their numbers are predefined and not named: MPI_Type_create_f90_real(3).
        return Ok((Shape::new(tree, extent as isize), true));
    }
    let mut parts = Vec::with_capacity(contents.types.len());
    let mut error = None;
    for part in &contents.types {
        // SAFETY: MPI_Type_get_contents(3): new references to derived datatypes, which are freed here, or
        // predefined ones.
        unsafe {
            match part_of(abi, *part) {
                Ok(part) => parts.push(part),
                Err(code) => error = Some(code),
            }
        }
    }
    if let Some(code) = error {
        return Err(code);
    }
    let tree = flatten::made(abi, &contents, &parts).ok_or(abi.errors.other)?;
    Ok((Shape::new(tree, extent as isize), false))
}

unsafe fn part_of(abi: &Abi, datatype: Handle) -> Result<Part, c_int> {
    // SAFETY: the caller's promise.
    unsafe {
        let shape = shape_of(abi, datatype)?;
        if predefined(datatype, None).is_none() {
            let mut handles = [0usize; 1];
            let at = handles.as_mut_ptr() as usize;
            abi.set_handle(at, 0, datatype);
            pmpi!("Type_free", at)?;
        }
        Ok(Part { tree: shape.tree.clone(), extent: shape.extent })
    }
}
