//! Where an entry is written that a call reads.

use engine::{Completion, Report};
use libc::c_void;
use libfabric_sys as fi;

use super::entry::Entry;

/// Room for entry `n` of the application's array, and for its source.
pub(super) struct Place {
    format: fi::fi_cq_format,
    buf: *mut c_void,
    from: *mut fi::fi_addr_t,
    n: usize,
}

impl Place {
    /// # Safety
    /// As long as this is used, `buf` has room for more than `n` entries of that format, and `from` is NULL or has for as many
    /// addresses.
    #[inline(always)]
    pub(super) unsafe fn new(
        format: fi::fi_cq_format,
        buf: *mut c_void,
        from: *mut fi::fi_addr_t,
        n: usize,
    ) -> Place {
        Place { format, buf, from, n }
    }

    /// Writes an entry of another format than that of tagged messages.
    #[inline(never)]
    fn report_shorter(&self, c: &Completion) {
        let Place { buf, n, .. } = *self;
        // SAFETY: the promise of `new`, and each entry type is its format's.
        unsafe {
            match self.format {
                fi::FI_CQ_FORMAT_DATA => buf.cast::<fi::fi_cq_data_entry>().add(n).write(Entry::of(c)),
                fi::FI_CQ_FORMAT_MSG => buf.cast::<fi::fi_cq_msg_entry>().add(n).write(Entry::of(c)),
                _ => buf.cast::<fi::fi_cq_entry>().add(n).write(Entry::of(c)),
            }
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
            _ => self.report_shorter(c),
        }
        if !self.from.is_null() {
            // SAFETY: the promise of `new`.
            unsafe { self.from.add(self.n).write(c.src) };
        }
    }
}
