//! Wait objects, `enum fi_wait_obj`: how an application waits on a queue or a counter.

use libc::{c_int, c_void};
use libfabric_sys as fi;
use runtime::{Idle, Wait};

use crate::errno::Errno;

/// How an application wants to wait on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// Not at all.
    None,
    /// In blocking calls, or on a descriptor.
    Fd(fi::fi_wait_obj),
    /// In blocking calls that spin and yield.
    Yield,
}

impl Style {
    pub(crate) fn of(object: fi::fi_wait_obj) -> Result<Style, Errno> {
        match object {
            fi::FI_WAIT_NONE => Ok(Style::None),
            fi::FI_WAIT_UNSPEC | fi::FI_WAIT_FD => Ok(Style::Fd(object)),
            fi::FI_WAIT_YIELD => Ok(Style::Yield),
            _ => {
                log::info!("wait object {object} asked; FD, YIELD, NONE and UNSPEC are offered");
                Err(Errno::NOSYS)
            }
        }
    }

    /// What a blocking call does while there is nothing.
    pub(crate) fn idle(self) -> Idle {
        match self {
            Style::Fd(_) => Idle::Sleep,
            Style::None | Style::Yield => Idle::Yield,
        }
    }

    fn code(self) -> fi::fi_wait_obj {
        match self {
            Style::None => fi::FI_WAIT_NONE,
            Style::Yield => fi::FI_WAIT_YIELD,
            Style::Fd(_) => fi::FI_WAIT_FD,
        }
    }

    /// `FI_GETWAIT` and `FI_GETWAITOBJ` of fi_control(3).
    ///
    /// # Safety
    /// `arg` is as the command demands, or NULL.
    pub(crate) unsafe fn control(self, wait: &Wait, command: c_int, arg: *mut c_void) -> Result<(), Errno> {
        match (command, self) {
            (fi::FI_GETWAIT, Style::Fd(_)) => {
                // SAFETY: the caller's promise: an `int` for a descriptor.
                unsafe { crate::ffi::put(arg.cast::<c_int>(), wait.fd()?) }
            }
            (fi::FI_GETWAIT, _) => Err(Errno::NODATA),
            // SAFETY: the caller's promise: an `enum fi_wait_obj`.
            (fi::FI_GETWAITOBJ, _) => unsafe { crate::ffi::put(arg.cast(), self.code()) },
            _ => Err(Errno::NOSYS),
        }
    }
}
