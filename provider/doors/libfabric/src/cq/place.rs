//! Where an entry is written that a call reads.

use engine::{Completion, Ctx, Report, What};
use libc::c_void;
use libfabric_sys as fi;

use super::entry::{self, Entry};

/// Room for entry `n` of the application's array, and for its source.
pub(super) struct Place {
    format: fi::fi_cq_format,
    buf: *mut c_void,
    from: *mut fi::fi_addr_t,
    n: usize,
}

impl Place {
    /// # Safety
    /// As long as this is used, `buf` has room for more than `n` entries of that format, and `from` is NULL
    /// or has for as many addresses.
    #[inline(always)]
    pub(super) unsafe fn new(
        format: fi::fi_cq_format,
        buf: *mut c_void,
        from: *mut fi::fi_addr_t,
        n: usize,
    ) -> Place {
        Place { format, buf, from, n }
    }
}

/// Writes an entry of another format than that of tagged messages. What it is made of comes in registers:
/// neither a [`Place`] nor a completion is in memory where this is not called.
///
/// # Safety
/// `to` has room for an entry of that format.
#[inline(never)]
unsafe fn write_shorter(
    format: fi::fi_cq_format,
    to: *mut c_void,
    ctx: Ctx,
    what: What,
    len: usize,
    buf: u64,
    data: u64,
) {
    let c = Completion { ctx, what, len, buf, data, ..Completion::BLANK };
    // SAFETY: the caller's promise, and each entry type is its format's.
    unsafe {
        match format {
            fi::FI_CQ_FORMAT_DATA => to.cast::<fi::fi_cq_data_entry>().write(Entry::of(&c)),
            fi::FI_CQ_FORMAT_MSG => to.cast::<fi::fi_cq_msg_entry>().write(Entry::of(&c)),
            _ => to.cast::<fi::fi_cq_entry>().write(Entry::of(&c)),
        }
    }
}

impl Report for Place {
    #[inline(always)]
    fn report(&mut self, c: &Completion) {
        match self.format {
            // SAFETY: the promise of `new`, and the entry type is the format's.
            fi::FI_CQ_FORMAT_TAGGED => unsafe {
                self.buf.cast::<fi::fi_cq_tagged_entry>().add(self.n).write(Entry::of(c));
            },
            // SAFETY: the promise of `new`: entry `n` has room for one of the format.
            format => unsafe {
                let to = self.buf.byte_add(self.n * entry::size(format));
                write_shorter(format, to, c.ctx, c.what, c.len, c.buf, c.data);
            },
        }
        if !self.from.is_null() {
            // SAFETY: the promise of `new`.
            unsafe { self.from.add(self.n).write(c.src) };
        }
    }
}
