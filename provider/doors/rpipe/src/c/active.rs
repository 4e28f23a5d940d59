//! Active messages.

use libc::{c_int, c_void};

use super::handles::{Handler, handlers, of_pipe, status, with, with_address};
use super::types::*;
use crate::Error;
use crate::core::HANDLERS;

/// Gives an active message to its handler, outside of the pipe's lock.
#[cold]
pub(super) fn handle(rp: rpipe_t, read: raddr_t, number: u16) -> Result<(), Error> {
    let (bytes, len) = with_address(read, |pipe, address| Ok((pipe.address(address)?, pipe.len(address)?)))?;
    let handler = handlers(rp)?.get(&number).copied();
    if let Some(handler) = handler {
        // SAFETY: the program's function, with what it was registered with; the block is this end's until it
        // is freed below.
        unsafe { (handler.call)(handler.arg, rp, bytes.cast(), len) };
    }
    // The handler may have closed the pipe.
    let freed = with_address(read, |pipe, address| pipe.free(address));
    match handler {
        Some(_) => Ok(()),
        None => freed.and(Err(Error::Invalid(format!(
            "an active message came for handler {number}, which this end does not have: call rhandle before reading"
        )))),
    }
}

/// Registers what is called for active messages of this number, 1 to 32767; NULL: nothing. They are handled
/// in the order of all messages, within rread and its like.
///
/// # Safety
/// `rp` is NULL or came from rpipe; the function may be called as long as the pipe is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rhandle(rp: rpipe_t, number: c_int, handler: rhandler_t, arg: *mut c_void) -> c_int {
    status(|| {
        let number = u16::try_from(number).ok().filter(|n| (1..HANDLERS).contains(n));
        let number = number.ok_or_else(|| Error::Invalid("numbers of handlers are 1 to 32767".into()))?;
        with(rp, |_, _| Ok(()))?;
        let mut all = handlers(rp)?;
        match handler {
            Some(call) => drop(all.insert(number, Handler { call, arg })),
            None => drop(all.remove(&number)),
        }
        Ok(())
    })
}

/// Writes a block as an active message: the reader's handler of this number gets it, and the block comes back
/// after that.
///
/// # Safety
/// `rp` is NULL or came from rpipe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rwrite_am(rp: rpipe_t, addr: raddr_t, number: c_int) -> c_int {
    status(|| {
        let number = u16::try_from(number).unwrap_or(0);
        with(rp, |pipe, id| pipe.write_for(of_pipe(id, addr)?, number))
    })
}
