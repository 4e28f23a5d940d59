//! Atomics: in mapped memory by the CPU, else by request.

use std::ffi::c_uint;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use ucx_sys::{self as ucx, Completion, Status};

use crate::ffi::guard;
use crate::rma::direct::{Way, access, may_ask, slot, way};
use crate::rma::remote::{Ask, What};
use crate::rma::requests::{Into_, Operation};
use crate::state::Ep;

macro_rules! width {
    ($int:ty, $atomic:ty, $what:expr, $apply:ident, $run:ident, $post:ident, $fetch:ident, $cswap:ident) => {
        /// Applies one operation; the value before. `None` if there is no such operation.
        ///
        /// # Safety
        /// `at` must be aligned memory, valid for reads and writes, that is only changed by atomics
        /// meanwhile.
        pub(crate) unsafe fn $apply(at: *mut u8, op: c_uint, value: $int, compare: $int) -> Option<$int> {
            // SAFETY: the caller's promise.
            let word = unsafe { <$atomic>::from_ptr(at.cast()) };
            Some(match op {
                ucx::UCT_ATOMIC_OP_ADD => word.fetch_add(value, SeqCst),
                ucx::UCT_ATOMIC_OP_AND => word.fetch_and(value, SeqCst),
                ucx::UCT_ATOMIC_OP_OR => word.fetch_or(value, SeqCst),
                ucx::UCT_ATOMIC_OP_XOR => word.fetch_xor(value, SeqCst),
                ucx::UCT_ATOMIC_OP_SWAP => word.swap(value, SeqCst),
                ucx::UCT_ATOMIC_OP_CSWAP => match word.compare_exchange(compare, value, SeqCst, SeqCst) {
                    Ok(old) | Err(old) => old,
                },
                _ => return None,
            })
        }

        /// # Safety
        /// `ep` and `rkey` must be ours, `result` null or valid until the operation is complete.
        #[inline]
        unsafe fn $run(
            ep: ucx::Ep,
            (op, value, compare): (c_uint, $int, $int),
            result: *mut $int,
            addr: u64,
            rkey: usize,
            comp: *mut Completion,
        ) -> Status {
            const SIZE: usize = size_of::<$int>();
            if addr as usize % SIZE != 0 {
                return ucx::UCS_ERR_INVALID_PARAM;
            }
            // SAFETY: the caller's promise; nothing calls back while it is borrowed. Mapped memory
            // has SIZE bytes there, aligned as the peer's address is.
            unsafe {
                let e = Ep::of(ep);
                match way(e, rkey, addr, SIZE) {
                    Err(status) => status,
                    Ok(Way::Mapped(at)) => match access(rkey, || $apply(at, op, value, compare)) {
                        Ok(Some(old)) => {
                            if !result.is_null() {
                                result.write_unaligned(old);
                            }
                            ucx::UCS_OK
                        }
                        Ok(None) => ucx::UCS_ERR_UNSUPPORTED,
                        Err(status) => status,
                    },
                    // CMA has no atomics.
                    Ok(Way::Cma | Way::Request) => {
                        if let Err(status) = may_ask(e) {
                            return status;
                        }
                        let i = &mut *e.iface();
                        let operation = Operation::new(1, comp);
                        let (a, b) = (u64::from(value), u64::from(compare));
                        let ask = Ask { what: $what, addr, a, b, slot: slot(rkey) };
                        let into = match result.is_null() {
                            // The old value comes all the same.
                            true => Into_::Nowhere,
                            false => Into_::Memory(result.cast(), SIZE),
                        };
                        i.ask(e, ask, &[op as u8], into, &operation);
                        if result.is_null() { ucx::UCS_OK } else { ucx::UCS_INPROGRESS }
                    }
                }
            }
        }

        pub(crate) unsafe extern "C" fn $post(
            ep: ucx::Ep,
            op: c_uint,
            value: $int,
            addr: u64,
            rkey: usize,
        ) -> Status {
            let null = std::ptr::null_mut();
            // SAFETY: UCX's arguments.
            guard(|| unsafe { $run(ep, (op, value, 0), std::ptr::null_mut(), addr, rkey, null) })
        }

        pub(crate) unsafe extern "C" fn $fetch(
            ep: ucx::Ep,
            op: c_uint,
            value: $int,
            result: *mut $int,
            addr: u64,
            rkey: usize,
            comp: *mut Completion,
        ) -> Status {
            // SAFETY: UCX's arguments.
            guard(|| unsafe { $run(ep, (op, value, 0), result, addr, rkey, comp) })
        }

        pub(crate) unsafe extern "C" fn $cswap(
            ep: ucx::Ep,
            compare: $int,
            swap: $int,
            addr: u64,
            rkey: usize,
            result: *mut $int,
            comp: *mut Completion,
        ) -> Status {
            let what = (ucx::UCT_ATOMIC_OP_CSWAP, swap, compare);
            // SAFETY: UCX's arguments.
            guard(|| unsafe { $run(ep, what, result, addr, rkey, comp) })
        }
    };
}

width!(u32, AtomicU32, What::Atomic32, atomic32, run32, post32, fetch32, cswap32);
width!(u64, AtomicU64, What::Atomic64, atomic64, run64, post64, fetch64, cswap64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_atomics_do() {
        let mut word = 12u64;
        let mut run = |op, value, compare| {
            let at = (&raw mut word).cast();
            // SAFETY: a word of our own.
            let old = unsafe { atomic64(at, op, value, compare) };
            (old, word)
        };
        assert_eq!(run(ucx::UCT_ATOMIC_OP_ADD, 3, 0), (Some(12), 15));
        assert_eq!(run(ucx::UCT_ATOMIC_OP_AND, 6, 0), (Some(15), 6));
        assert_eq!(run(ucx::UCT_ATOMIC_OP_OR, 9, 0), (Some(6), 15));
        assert_eq!(run(ucx::UCT_ATOMIC_OP_XOR, 1, 0), (Some(15), 14));
        assert_eq!(run(ucx::UCT_ATOMIC_OP_SWAP, 5, 0), (Some(14), 5));
        assert_eq!(run(ucx::UCT_ATOMIC_OP_CSWAP, 7, 4), (Some(5), 5));
        assert_eq!(run(ucx::UCT_ATOMIC_OP_CSWAP, 7, 5), (Some(5), 7));
        assert_eq!(run(6, 0, 0), (None, 7));
    }
}
