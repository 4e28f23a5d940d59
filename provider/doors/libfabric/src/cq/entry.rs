//! Completions in the formats an application may choose.

use engine::{Completion, What};
use libc::c_void;
use libfabric_sys as fi;

use crate::errno::{self, Errno};

/// One format.
pub(super) trait Entry {
    fn of(c: &Completion) -> Self;
}

/// Bytes of an entry.
pub(super) fn size(format: fi::fi_cq_format) -> usize {
    match format {
        fi::FI_CQ_FORMAT_TAGGED => size_of::<fi::fi_cq_tagged_entry>(),
        fi::FI_CQ_FORMAT_DATA => size_of::<fi::fi_cq_data_entry>(),
        fi::FI_CQ_FORMAT_MSG => size_of::<fi::fi_cq_msg_entry>(),
        _ => size_of::<fi::fi_cq_entry>(),
    }
}

fn context(c: &Completion) -> *mut c_void {
    // It was the application's pointer and means nothing here.
    std::ptr::with_exposed_provenance_mut(c.ctx.0)
}

impl Entry for fi::fi_cq_entry {
    #[inline]
    fn of(c: &Completion) -> Self {
        fi::fi_cq_entry { op_context: context(c) }
    }
}

impl Entry for fi::fi_cq_msg_entry {
    #[inline]
    fn of(c: &Completion) -> Self {
        fi::fi_cq_msg_entry { op_context: context(c), flags: flags_of(c.what), len: c.len }
    }
}

impl Entry for fi::fi_cq_data_entry {
    #[inline]
    fn of(c: &Completion) -> Self {
        fi::fi_cq_data_entry {
            op_context: context(c),
            flags: flags_of(c.what),
            len: c.len,
            buf: c.buf as *mut c_void,
            data: c.data,
        }
    }
}

impl Entry for fi::fi_cq_tagged_entry {
    #[inline]
    fn of(c: &Completion) -> Self {
        fi::fi_cq_tagged_entry {
            op_context: context(c),
            flags: flags_of(c.what),
            len: c.len,
            buf: c.buf as *mut c_void,
            data: c.data,
            tag: c.tag,
        }
    }
}

/// What a completion is of, in libfabric's flags: all but one have the same value.
#[inline(always)]
pub(super) fn flags_of(what: What) -> u64 {
    u64::from(what.intersection(SAME).bits()) | u64::from(what.intersection(What::CLAIM).bits()) << CLAIM_BITS
}

const SAME: What = What::all().difference(What::PART.union(What::CLAIM));
/// How far libfabric's flag is from the engine's.
const CLAIM_BITS: u32 = fi::FI_CLAIM.trailing_zeros() - What::CLAIM.bits().trailing_zeros();

const _: () = {
    const ALL: [(What, u64); 13] = [
        (What::MSG, fi::FI_MSG),
        (What::TAGGED, fi::FI_TAGGED),
        (What::RMA, fi::FI_RMA),
        (What::ATOMIC, fi::FI_ATOMIC),
        (What::SEND, fi::FI_SEND),
        (What::RECV, fi::FI_RECV),
        (What::READ, fi::FI_READ),
        (What::WRITE, fi::FI_WRITE),
        (What::REMOTE_READ, fi::FI_REMOTE_READ),
        (What::REMOTE_WRITE, fi::FI_REMOTE_WRITE),
        (What::REMOTE_CQ_DATA, fi::FI_REMOTE_CQ_DATA),
        (What::MULTI_RECV, fi::FI_MULTI_RECV),
        (What::COLLECTIVE, fi::FI_COLLECTIVE),
    ];
    let (mut n, mut seen) = (0, What::empty());
    while n < ALL.len() {
        assert!(ALL[n].0.bits() as u64 == ALL[n].1);
        seen = seen.union(ALL[n].0);
        n += 1;
    }
    assert!(seen.bits() == SAME.bits());
};

/// Writes an error entry as long as that version's is.
///
/// # Safety
/// `buf` is valid for writes of that length.
pub(super) unsafe fn write_error(buf: *mut fi::fi_cq_err_entry, c: &Completion, api_version: u32) {
    let (err, prov_errno) = c.err.map_or((0, 0), |e| (Errno::from(e).0, errno::detail(e)));
    // SAFETY: the caller's promise; the places form no reference to a structure that may be shorter.
    unsafe {
        (*buf).op_context = c.ctx.0 as *mut c_void;
        (*buf).flags = flags_of(c.what);
        (*buf).len = c.len;
        (*buf).buf = c.buf as *mut c_void;
        (*buf).data = c.data;
        (*buf).tag = c.tag;
        (*buf).olen = c.olen;
        (*buf).err = err;
        (*buf).prov_errno = prov_errno;
        if api_version < fi::FI_VERSION(1, 5) {
            (*buf).err_data = std::ptr::null_mut();
            return;
        }
        // A buffer of the application's is returned with nothing in it; where there is none, there
        // is none of ours.
        if (*buf).err_data_size == 0 {
            (*buf).err_data = std::ptr::null_mut();
        }
        (*buf).err_data_size = 0;
        if api_version >= fi::FI_VERSION(1, 20) {
            (*buf).src_addr = c.src;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_libfabrics() {
        let what = What::TAGGED | What::RECV | What::REMOTE_CQ_DATA;
        assert_eq!(flags_of(what), fi::FI_TAGGED | fi::FI_RECV | fi::FI_REMOTE_CQ_DATA);
        assert_eq!(flags_of(What::RMA | What::REMOTE_WRITE), fi::FI_RMA | fi::FI_REMOTE_WRITE);
        assert_eq!(flags_of(What::CLAIM | What::RECV), fi::FI_CLAIM | fi::FI_RECV);
        // Parts of collective operations have no entry.
        let entries = What::all() - What::PART;
        assert_eq!(flags_of(entries).count_ones(), 14);
        for (n, bit) in entries.iter().enumerate() {
            assert_eq!(flags_of(bit).count_ones(), 1, "bit {n}");
        }
    }
}
