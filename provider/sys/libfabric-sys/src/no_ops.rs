//! Full-size tables of operations in which nothing is supported.
//!
//! libfabric's inline wrappers call most slots unchecked, so every slot of every table must hold a
//! function. The core has its `fi_no_*` for that and does not export them; these answer the same.
//! A table of a provider is written as what it does support and the rest from here:
//!
//! ```
//! use libfabric_sys::{NO_OPS_EP, fi_ops_ep, fid_t};
//!
//! unsafe extern "C" fn cancel(_fid: fid_t, _context: *mut core::ffi::c_void) -> isize {
//!     0
//! }
//! static OPS: fi_ops_ep = fi_ops_ep { cancel: Some(cancel), ..NO_OPS_EP };
//! ```

use crate::bindings::*;
use core::ffi::{c_char, c_int, c_void};

/// What a function of this return type answers when it does nothing.
trait Answer {
    const NOT_SUPPORTED: Self;
}

impl Answer for c_int {
    const NOT_SUPPORTED: Self = -FI_ENOSYS;
}

impl Answer for isize {
    const NOT_SUPPORTED: Self = -FI_ENOSYS as isize;
}

/// The value of a counter.
impl Answer for u64 {
    const NOT_SUPPORTED: Self = 0;
}

/// `strerror` and `straddr`: the core's stubs answer this text.
impl Answer for *const c_char {
    const NOT_SUPPORTED: Self = c"unknown".as_ptr();
}

/// A slot that a stub of its own signature can fill.
trait Slot {
    const STUB: Self;
}

macro_rules! slots {
    ($($argument:ident)*) => {
        impl<R: Answer, $($argument),*> Slot for Option<unsafe extern "C" fn($($argument),*) -> R> {
            const STUB: Self = {
                unsafe extern "C" fn stub<R: Answer, $($argument),*>($(_: $argument),*) -> R {
                    R::NOT_SUPPORTED
                }
                Some(stub::<R, $($argument),*>)
            };
        }
    };
}

slots!(A);
slots!(A B);
slots!(A B C);
slots!(A B C D);
slots!(A B C D E);
slots!(A B C D E F);
slots!(A B C D E F G);
slots!(A B C D E F G H);
slots!(A B C D E F G H I);
slots!(A B C D E F G H I J);
slots!(A B C D E F G H I J K);
slots!(A B C D E F G H I J K L);
slots!(A B C D E F G H I J K L M);
slots!(A B C D E F G H I J K L M N);
slots!(A B C D E F G H I J K L M N O);
slots!(A B C D E F G H I J K L M N O P);

macro_rules! tables {
    ($($(#[$meta:meta])* $name:ident: $table:ident { $($slot:ident $(= $stub:expr)?),* $(,)? })*) => {
        $(
            $(#[$meta])*
            pub const $name: $table = $table {
                size: size_of::<$table>(),
                $($slot: tables!(@stub $($stub)?)),*
            };
        )*
    };
    (@stub) => { Slot::STUB };
    (@stub $stub:expr) => { Some($stub) };
}

tables! {
    /// Of every object.
    NO_OPS: fi_ops { close, bind, control, ops_open, tostr, ops_set }

    /// Of a fabric.
    NO_OPS_FABRIC: fi_ops_fabric {
        domain, passive_ep, eq_open, wait_open, trywait, domain2 = domain2,
    }

    /// Of a domain.
    NO_OPS_DOMAIN: fi_ops_domain {
        av_open, cq_open, endpoint, scalable_ep, cntr_open, poll_open, stx_ctx, srx_ctx,
        query_atomic, query_collective, endpoint2 = endpoint2, xpu_ctx,
    }

    /// Registration of memory, in a domain.
    NO_OPS_MR: fi_ops_mr { reg, regv, regattr }

    /// Of an endpoint.
    NO_OPS_EP: fi_ops_ep {
        cancel, getopt, setopt, tx_ctx, rx_ctx, rx_size_left, tx_size_left, export_xpu,
    }

    /// Connections and names, of an endpoint.
    NO_OPS_CM: fi_ops_cm {
        setname, getname, getpeer, connect, listen, accept, reject, shutdown, join,
    }

    /// Messages, of an endpoint.
    NO_OPS_MSG: fi_ops_msg {
        recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata, injectdata,
    }

    /// Tagged messages, of an endpoint.
    NO_OPS_TAGGED: fi_ops_tagged {
        recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata, injectdata,
    }

    /// Remote memory, of an endpoint.
    NO_OPS_RMA: fi_ops_rma {
        read, readv, readmsg, write, writev, writemsg, inject, writedata, injectdata,
    }

    /// Atomics, of an endpoint.
    NO_OPS_ATOMIC: fi_ops_atomic {
        write, writev, writemsg, inject, readwrite, readwritev, readwritemsg, compwrite, compwritev,
        compwritemsg, writevalid, readwritevalid, compwritevalid,
    }

    /// Collectives, of an endpoint.
    NO_OPS_COLLECTIVE: fi_ops_collective {
        barrier, broadcast, alltoall, allreduce, allgather, reduce_scatter, reduce, scatter, gather,
        msg, barrier2 = barrier2,
    }

    /// Of an address vector.
    NO_OPS_AV: fi_ops_av {
        insert, insertsvc, insertsym, remove, lookup, straddr, av_set, insert_auth_key,
        lookup_auth_key, set_user_id, lookup2,
    }

    /// Of a set of addresses.
    NO_OPS_AV_SET: fi_ops_av_set { set_union, intersect, diff, insert, remove, addr }

    /// Of a completion queue.
    NO_OPS_CQ: fi_ops_cq {
        read, readfrom, readerr, sread, sreadfrom, signal, strerror, export_xpu,
    }

    /// Of a counter.
    NO_OPS_CNTR: fi_ops_cntr { read, readerr, add, set, wait, adderr, seterr, export_xpu }

    /// Of an event queue.
    NO_OPS_EQ: fi_ops_eq { read, readerr, write, sread, strerror }

    /// Of a wait set.
    NO_OPS_WAIT: fi_ops_wait { wait }

    /// Of a poll set.
    NO_OPS_POLL: fi_ops_poll { poll, poll_add, poll_del }

    /// Of a context on an accelerator.
    NO_OPS_XPU_CTX: fi_ops_xpu_ctx { query }
}

// The newer forms with flags fall back to the older ones when there are none, as the core's do.

unsafe extern "C" fn domain2(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    domain: *mut *mut fid_domain,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: a caller of this slot passes a live fabric, whose table is set and full.
    match unsafe { (*(*fabric).ops).domain } {
        // SAFETY: the arguments are what the caller passed for the same parameters.
        Some(plain) if flags == 0 => unsafe { plain(fabric, info, domain, context) },
        _ => -FI_ENOSYS,
    }
}

unsafe extern "C" fn endpoint2(
    domain: *mut fid_domain,
    info: *mut fi_info,
    ep: *mut *mut fid_ep,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: a caller of this slot passes a live domain, whose table is set and full.
    match unsafe { (*(*domain).ops).endpoint } {
        // SAFETY: the arguments are what the caller passed for the same parameters.
        Some(plain) if flags == 0 => unsafe { plain(domain, info, ep, context) },
        _ => -FI_ENOSYS,
    }
}

unsafe extern "C" fn barrier2(ep: *mut fid_ep, group: fi_addr_t, flags: u64, context: *mut c_void) -> isize {
    // SAFETY: a caller of this slot passes a live endpoint, whose table is set and full.
    match unsafe { (*(*ep).collective).barrier } {
        // SAFETY: the arguments are what the caller passed for the same parameters.
        Some(plain) if flags == 0 => unsafe { plain(ep, group, context) },
        _ => -FI_ENOSYS as isize,
    }
}
