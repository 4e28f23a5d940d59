//! What the header calls through `verbs_context`, which lies before the `ibv_context` of a device.

use core::mem::{offset_of, size_of};

use crate::{ibv_context, verbs_context};

/// The extended operations of a context, if its library has any.
///
/// # Safety
/// `context` is an open one.
unsafe fn extended(context: *mut ibv_context) -> Option<*const verbs_context> {
    // SAFETY: the caller's promise. All bits set says that this is the last member of a `verbs_context`, of
    // which the library has allocated as much as `sz` says.
    unsafe {
        let is = (*context).abi_compat as usize == usize::MAX;
        is.then(|| context.byte_sub(offset_of!(verbs_context, context)).cast_const().cast())
    }
}

/// One slot, at `offset` of the structure.
///
/// # Safety
/// `context` is an open one, and `offset` is that of a member of type `Option<F>`, a pointer to a function.
pub(crate) unsafe fn slot<F: Copy>(context: *mut ibv_context, offset: usize) -> Option<F> {
    const { assert!(size_of::<Option<F>>() == size_of::<usize>()) };
    // SAFETY: the caller's promise. The structure grows at its beginning: a slot is there if `sz` reaches it.
    unsafe {
        let extended = extended(context)?;
        if (*extended).sz < size_of::<verbs_context>() - offset {
            return None;
        }
        *extended.byte_add(offset).cast::<Option<F>>()
    }
}

/// The operation of this name, if the library and the driver have it.
macro_rules! operation {
    ($context:expr, $name:ident: $type:ty) => {
        $crate::extended::slot::<$type>($context, core::mem::offset_of!($crate::verbs_context, $name))
    };
}
pub(crate) use operation;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ibv_port_attr;

    type QueryPort =
        unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> core::ffi::c_int;

    unsafe extern "C" fn query(
        _: *mut ibv_context,
        _: u8,
        _: *mut ibv_port_attr,
        _: usize,
    ) -> core::ffi::c_int {
        7
    }

    fn with(sz: usize, abi: usize) -> Option<QueryPort> {
        let mut all = Box::new(verbs_context { query_port: Some(query), sz, ..Default::default() });
        all.context.abi_compat = abi as *mut _;
        // Derived from the whole structure, as the library's pointer is.
        let context = (&raw mut *all).wrapping_byte_add(offset_of!(verbs_context, context)).cast();
        // SAFETY: a whole structure, and that slot's type.
        unsafe { operation!(context, query_port: QueryPort) }
    }

    #[test]
    fn a_slot_is_read_where_the_size_reaches_it() {
        let full = size_of::<verbs_context>();
        let needed = full - offset_of!(verbs_context, query_port);
        assert!(with(full, usize::MAX).is_some());
        assert!(with(needed, usize::MAX).is_some());
        assert!(with(needed - 1, usize::MAX).is_none(), "an older library");
        assert!(with(full, 0).is_none(), "a library without extended operations");
    }
}
