//! fi_cq_sread(3).

use std::sync::atomic::Ordering;

use libc::{c_int, c_void};
use libfabric_sys as fi;
use runtime::{Deadline, Step, Watched};

use super::{CqFid, entry};
use crate::errno::Errno;
use crate::wait::Style;

impl CqFid {
    /// Reads and, as long as there is too little, sleeps.
    ///
    /// # Safety
    /// As for [`CqFid::read`].
    pub(super) unsafe fn sread(
        &self,
        buf: *mut c_void,
        count: usize,
        from: *mut fi::fi_addr_t,
        cond: *const c_void,
        timeout: c_int,
    ) -> Result<usize, Errno> {
        if self.style == Style::None {
            return Err(Errno::NOSYS);
        }
        let enough = if self.threshold { cond.addr().clamp(1, count.max(1)) } else { 1 };
        let entry = entry::size(self.format);
        let mut n = 0;
        let ended = self.shared.block(&self.wait, self.style.idle(), Deadline::after_ms(timeout), || {
            // SAFETY: `n` entries of the caller's `count` are used, and the offsets are theirs.
            let some = unsafe {
                let from = if from.is_null() { from } else { from.add(n) };
                self.read(buf.byte_add(n * entry), count - n, from)
            };
            match some {
                Ok(read) => n += read,
                Err(Errno::AGAIN) => {}
                Err(_) if n > 0 => return Step::Done(Ok(n)),
                Err(e) => return Step::Done(Err(e)),
            }
            if n >= enough || (some.is_ok() && count == 0) {
                return Step::Done(Ok(n));
            }
            if self.signalled.swap(false, Ordering::SeqCst) {
                return Step::Done(if n > 0 { Ok(n) } else { Err(Errno::AGAIN) });
            }
            Step::Wait(Watched::Cq(self.id))
        })?;
        ended.unwrap_or(if n > 0 { Ok(n) } else { Err(Errno::AGAIN) })
    }
}
